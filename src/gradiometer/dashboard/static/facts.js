/** Facts of the runs: a table with a column a run, in groups that fold; what differs stands out. */

import { el } from "./dom.js";
import { runName } from "./words.js";

/**
 * @param {object[]} facts
 * @param {string[]} runs ids, one column each
 * @param {import("./words.js").Scene} scene
 */
export function factTables(facts, runs, scene) {
  if (!facts.length) return null;
  const groups = [...new Set(facts.map((fact) => fact.group))];
  const differing = facts.some((fact) => fact.differs);
  const only = differing
    ? el("label", { class: "check" }, el("input", { type: "checkbox", onchange: narrow }), "only what differs")
    : null;
  return el(
    "section",
    { class: "facts", "aria-label": "Facts" },
    el("div", { class: "section-head" }, el("h2", { class: "section-name" }, "Facts"), only),
    groups.map((group) => groupTable(group, facts.filter((fact) => fact.group === group), runs, scene)),
  );
}

function narrow(event) {
  event.target.closest(".facts").classList.toggle("only-differing", event.target.checked);
}

function groupTable(group, facts, runs, scene) {
  const columns = runs.filter((id) => facts.some((fact) => id in fact.values));
  const differ = facts.filter((fact) => fact.differs).length;
  const named = columns.length > 1;
  return el(
    "details",
    { class: `fact-group ${differ ? "" : "same"}`, open: differ > 0 },
    el("summary", {}, group || "Facts", el("span", { class: "dim" }, ` ${facts.length}${differ ? `, ${differ} differ` : ""}`)),
    el(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": `${group || "Facts"} of the runs` },
      el(
        "table",
        { class: "fact-table" },
        named && el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Name"), columns.map((id) => el("th", { scope: "col" }, runName(id, scene))))),
        el("tbody", {}, facts.map((fact) => factRow(fact, columns, named))),
      ),
    ),
  );
}

function factRow(fact, columns, named) {
  const cells = columns.map((id) =>
    id in fact.values ? el("td", {}, fact.values[id]) : el("td", { class: "dim" }, named ? "not set" : ""),
  );
  return el("tr", { class: fact.differs ? "differs" : "" }, el("th", { scope: "row" }, fact.name), cells);
}
