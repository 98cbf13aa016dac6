/** Findings as cards: what it is, since when, why, what to do, how to confirm it; with places for their charts. */

import { count, el } from "./dom.js";
import { runName, severityBadge } from "./words.js";

/**
 * Every finding. Charts go into the elements with `data-slot`; one that two findings share is drawn in the first.
 * @param {object[]} findings
 * @param {import("./words.js").Scene} scene
 * @param {string[]} first charts that stand above all of them
 */
export function findingCards(findings, scene, first = []) {
  if (!findings.length) return null;
  const several = new Set(findings.map((finding) => finding.run)).size > 1;
  const drawn = new Set();
  return el(
    "section",
    { class: "findings", "aria-label": "Findings" },
    first.length > 0 && el("h2", { class: "section-name" }, "What came first"),
    first.map((id) => el("div", { dataset: { slot: id } })),
    findings.map((finding) => findingCard(finding, several, drawn, scene)),
  );
}

function findingCard(finding, named, drawn, scene) {
  const here = finding.charts.filter((id) => !drawn.has(id));
  const above = finding.charts.filter((id) => drawn.has(id));
  here.forEach((id) => drawn.add(id));
  return el(
    "article",
    { class: `finding ${finding.severity}`, dataset: { finding: finding.id, severity: finding.severity, of: finding.run } },
    el(
      "header",
      {},
      severityBadge(finding.severity),
      el("h2", { class: "finding-title" }, finding.title),
      el(
        "p",
        { class: "finding-facts" },
        named && runName(finding.run, scene),
        finding.since_step !== null && el("span", {}, `since step ${count(finding.since_step)}`),
        finding.block && el("span", {}, "block ", el("b", {}, finding.block)),
        el("span", {}, finding.basis),
        el("code", {}, finding.id),
      ),
    ),
    el("div", { class: `finding-body ${here.length ? "" : "alone"}` }, advice(finding), slots(here, above)),
    finding.folded.length > 0 &&
      el(
        "details",
        { class: "fold" },
        el("summary", {}, finding.folded.length === 1 ? "1 consequence of it" : `${finding.folded.length} consequences of it`),
        el("ul", {}, finding.folded.map((each) => el("li", {}, each))),
      ),
  );
}

function advice(finding) {
  return el(
    "dl",
    { class: "advice" },
    el("dt", {}, "Cause"),
    el("dd", {}, finding.cause),
    finding.fix.length > 0 && [el("dt", {}, "Fix"), el("dd", {}, el("ol", {}, finding.fix.map((each) => el("li", {}, each))))],
    finding.confirm && [el("dt", {}, "Confirm"), el("dd", {}, finding.confirm)],
    finding.evidence.length > 0 && [el("dt", {}, "Evidence"), el("dd", {}, el("ul", {}, finding.evidence.map(evidence)))],
    finding.references.length > 0 && [
      el("dt", {}, "References"),
      el("dd", {}, el("ul", { class: "references" }, finding.references.map((each) => el("li", {}, reference(each))))),
    ],
  );
}

function evidence(piece) {
  const span = [piece.first_step, piece.last_step].filter((step) => step !== null && step !== undefined);
  const steps = span.length === 2 && span[0] !== span[1] ? `steps ${count(span[0])}–${count(span[1])}` : span.length ? `step ${count(span[0])}` : "";
  return el("li", {}, el("code", {}, piece.series ?? ""), " ", piece.reading ?? "", steps && el("span", { class: "dim" }, ` (${steps})`));
}

const REFERENCES = /https?:\/\/[^\s,;)]*[^\s,;):.]/gi;

/** A text in which addresses are links. */
function reference(text) {
  const parts = [];
  let end = 0;
  for (const found of text.matchAll(REFERENCES)) {
    const [href] = found;
    parts.push(text.slice(end, found.index), el("a", { href, target: "_blank", rel: "noopener noreferrer" }, found[0].replace(/^https?:\/\//, "")));
    end = found.index + found[0].length;
  }
  return [...parts, text.slice(end)];
}

function slots(here, above) {
  if (!here.length && !above.length) return null;
  return el(
    "div",
    { class: "evidence" },
    here.map((id) => el("div", { dataset: { slot: id } })),
    above.map((id) => el("p", { class: "dim" }, el("a", { href: `#chart-${id}` }, "Its chart is shown with the finding above"))),
  );
}
