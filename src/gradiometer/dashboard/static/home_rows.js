/** Rows of the table of runs: columns, their order, their groups. */

import { numberOf, settingOf } from "./home_filter.js";

/** Worst first. */
export const STATES = ["unreadable", "broken", "not-learning", "concern", "unknown", "too-early", "not-a-run", "healthy", ""];
const SEVERITIES = ["critical", "warn", "info", "unknown", "fine"];
const SETTING = "set:";
export const FOLDER = "folder";
const MOST_SETTINGS = 5; // columns of settings that nobody chose

/** The tone of a state: its colour, as of a severity. */
export function toneOf(row) {
  if (!row.state) return "unknown";
  if (row.state === "broken" || row.state === "unreadable") return "critical";
  if (row.state === "not-learning" || row.state === "concern") return row.severity === "critical" ? "critical" : "warn";
  return row.state === "healthy" ? "fine" : "unknown";
}

export const COLUMNS = {
  state: { title: "State and verdict", width: 240, by: (row) => STATES.indexOf(row.state) * 10 + SEVERITIES.indexOf(row.severity) },
  status: { title: "Status", width: 92, by: (row) => row.status },
  outcome: { title: "Outcome", width: 160, by: (row) => row.outcome?.series ?? null },
  best: { title: "Best", width: 84, right: true, down: true, by: (row) => row.outcome?.best ?? null },
  last: { title: "Last", width: 84, right: true, down: true, by: (row) => row.outcome?.last ?? null },
  steps: { title: "Steps", width: 84, right: true, down: true, by: (row) => row.newest_step },
  duration: { title: "Duration", width: 84, right: true, down: true, by: (row) => row.seconds },
  changed: { title: "Written", width: 96, right: true, down: true, by: (row) => row.changed },
  started: { title: "Started", width: 150, down: true, by: (row) => row.started || null },
  tags: { title: "Tags", width: 110, by: (row) => row.tags.join(" ") || null },
  note: { title: "Note", width: 220, by: (row) => row.note || null },
  findings: { title: "Findings", width: 220, by: (row) => row.findings.join(" ") || null },
};
export const NAME = { title: "Run", width: 220, by: (row) => row.id };
const USUAL = ["state", "status", "outcome", "best", "last", "steps", "duration"];
const USUAL_NARROW = ["state", "last"];

/** A column by its name in the URL; of a setting its own. */
export function columnOf(key, shared) {
  if (key === "name") return NAME;
  if (!key.startsWith(SETTING)) return COLUMNS[key] ?? null;
  const name = key.slice(SETTING.length);
  const by = (row) => {
    const text = settingOf(row, name, shared);
    if (text === undefined) return null;
    const number = numberOf(text);
    return Number.isNaN(number) ? text : number;
  };
  const short = name.includes(".") ? `…${name.slice(name.lastIndexOf(".") + 1)}` : name;
  return { title: short, whole: name, width: Math.min(150, Math.max(74, 26 + 7 * short.length)), right: true, setting: name, by };
}

/** How many values each differing setting has, the settings that say most first: few values before one for each run. */
export function differing(rows) {
  const values = new Map();
  for (const row of rows)
    for (const [name, value] of Object.entries(row.settings)) values.set(name, (values.get(name) ?? new Map()).set(value, true));
  const known = rows.filter((row) => Object.keys(row.settings).length).length;
  const own = (count) => Number(known > 3 && count >= known); // a value for each run: a name, a path
  const found = [...values].map(([name, seen]) => ({ name, count: seen.size }));
  return found.sort((a, b) => own(a.count) - own(b.count) || Number(b.count > 1) - Number(a.count > 1) || a.name.split(".").length - b.name.split(".").length);
}

/** The columns of a table that nobody chose columns for. */
export function usualColumns(rows, narrow) {
  if (narrow) return USUAL_NARROW;
  const settings = differing(rows).slice(0, MOST_SETTINGS).map((each) => SETTING + each.name);
  const more = [rows.some((row) => row.tags.length) && "tags", rows.some((row) => row.note) && "note"].filter(Boolean);
  return [...USUAL, ...more, ...settings];
}

export const settingColumn = (name) => SETTING + name;

/** Rows in order; nothing is worth less than anything, in either direction. Without a wish the worst come first. */
export function inOrder(rows, sort, shared) {
  const down = sort.startsWith("-");
  const column = columnOf(sort.replace(/^-/, "") || "state", shared) ?? COLUMNS.state;
  const keyed = rows.map((row) => [column.by(row), row]);
  const sign = down ? -1 : 1;
  keyed.sort(([a, first], [b, second]) => {
    const [noA, noB] = [a === null || a === undefined, b === null || b === undefined];
    if (noA || noB) return noA - noB || second.changed - first.changed;
    const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
    return sign * order || second.changed - first.changed || first.id.localeCompare(second.id);
  });
  return keyed.map(([, row]) => row);
}

/** Rows under the headings of their groups, the group of the first row first. @returns {{key, label, rows}[]} */
export function inGroups(rows, group, shared) {
  const groups = new Map();
  for (const row of rows) {
    const value = group === FOLDER ? row.folder || "(the served folder)" : settingOf(row, group, shared);
    const label = group === FOLDER ? value : value === undefined ? `${group} not set` : `${group} = ${value}`;
    if (!groups.has(label)) groups.set(label, { key: `group ${label}`, label, rows: [] });
    groups.get(label).rows.push(row);
  }
  return [...groups.values()];
}

/** "3 broken, 12 healthy" */
export function tallyOf(rows) {
  const counts = new Map(STATES.map((state) => [state, 0]));
  for (const row of rows) counts.set(row.state, (counts.get(row.state) ?? 0) + 1);
  return [...counts].filter(([, number]) => number).map(([state, number]) => `${number} ${state || "being read"}`).join(", ");
}
