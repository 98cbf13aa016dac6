/** Cells of the table of runs. */

import { ago, count, el, icon } from "./dom.js";
import { written } from "./charts/text.js";
import { columnOf, toneOf } from "./home_rows.js";
import { settingOf } from "./home_filter.js";

const SVG = "http://www.w3.org/2000/svg";
const MOST_TAGS = 3;

/** "2 h 5 min" */
export function lasted(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** A curve in 100 × 20 pixels; where it was not finite there is a gap, and a mark below. */
export function sparkline(values) {
  const svg = document.createElementNS(SVG, "svg");
  for (const [name, value] of Object.entries({ viewBox: "0 0 100 20", class: "spark", "aria-hidden": "true" })) svg.setAttribute(name, value);
  const x = (at) => (values.length > 1 ? 2 + (96 * at) / (values.length - 1) : 50);
  let pen = "";
  let line = "";
  let gaps = "";
  values.forEach((value, at) => {
    if (value === null) gaps += `M${x(at).toFixed(1)} 17v3`;
    else line += `${pen === "down" ? "L" : "M"}${x(at).toFixed(1)} ${(18 - 0.16 * value).toFixed(1)}`;
    pen = value === null ? "" : "down";
  });
  for (const [d, name] of [[line, "line"], [gaps, "gap"]]) {
    if (!d) continue;
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", d);
    path.setAttribute("class", name);
    svg.append(path);
  }
  return svg;
}

const number = (value) => (value === null || value === undefined ? "" : written(value));

const CELLS = {
  state(row) {
    const tone = toneOf(row);
    if (!row.state) return el("span", { class: "dim" }, "reading…");
    const why = row.verdict.startsWith(`${row.state}: `) ? row.verdict.slice(row.state.length + 2) : row.verdict;
    return [
      el("span", { class: `badge ${tone}` }, icon(tone), row.state),
      el("span", { class: "cut why", title: why }, why),
    ];
  },
  status: (row) => el("span", { class: `run-status ${row.status}`, title: row.ended || null }, row.status),
  outcome: (row) => row.outcome && [sparkline(row.outcome.spark), el("span", { class: "cut dim", title: row.outcome.series }, row.outcome.series)],
  best: (row) => row.outcome && el("span", { title: `at step ${count(row.outcome.best_step)}` }, number(row.outcome.best)),
  last: (row) => row.outcome && el("span", { title: "the level of the last tenth" }, number(row.outcome.last)),
  steps: (row) => count(row.newest_step),
  duration: (row) => lasted(row.seconds),
  changed: (row) => (row.changed ? ago(row.changed) : ""),
  started: (row) => row.started.replace("T", " ").slice(0, 16),
  tags: (row) => [
    row.tags.slice(0, MOST_TAGS).map((tag) => el("span", { class: "tag" }, tag)),
    row.tags.length > MOST_TAGS && el("span", { class: "dim", title: row.tags.join(", ") }, `+${row.tags.length - MOST_TAGS} more`),
  ],
  note: (row) => el("span", { class: "cut", title: row.note }, row.note),
  findings: (row) => el("span", { class: "cut", title: row.findings.join(", ") }, row.findings.join(", ")),
};

/** What stands in a column. */
export function cell(row, key, shared) {
  if (CELLS[key]) return CELLS[key](row);
  const { setting } = columnOf(key, shared);
  const value = settingOf(row, setting, shared) ?? "";
  return el("span", { class: "cut", title: value }, value);
}
