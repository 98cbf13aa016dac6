/** The words of a view: header lines, verdicts, answers, empty states and problems. */

import { runColour } from "./charts/palette.js";
import { codeBlock, count, el, icon } from "./dom.js";

const RANK = ["critical", "warn", "info", "unknown", "fine"];
const SPOKEN = { critical: "Critical", warn: "Warning", info: "Note", fine: "Healthy", unknown: "Not known" };
const SHOWN = 4;

/**
 * @typedef {Object} Scene what words need to know of the page
 * @property {Map<string, object>} runs cards by id
 * @property {string} theme light or dark
 * @property {(tab: string) => HTMLAnchorElement} link a link to a tab, with no text yet
 * @property {(id: string) => void} focus make a run the one in focus
 */

/** A run's name with its colour; its whole id where another run has the same name. */
export function runName(id, scene) {
  const card = scene.runs.get(id);
  const twins = card && [...scene.runs.values()].filter((other) => other.name === card.name).length > 1;
  return el("span", { class: "run-name", title: id }, swatch(card, scene.theme), el("span", { class: "cut" }, card && !twins ? card.name : id));
}

/** The colour of a run, as a small square. */
export function swatch(card, theme) {
  const mark = el("span", { class: "swatch", "aria-hidden": "true" });
  if (card) mark.style.background = runColour(card, theme);
  return mark;
}

/** A severity as drawing and word. */
export function severityBadge(severity, word = SPOKEN[severity] ?? severity) {
  return el("span", { class: `badge ${severity}` }, icon(severity in SPOKEN ? severity : "unknown"), word);
}

/** The lines above everything. */
export function headerLines(header) {
  return header.length ? el("ul", { class: "header-lines" }, header.map((line) => el("li", {}, line))) : null;
}

/**
 * Verdicts: the run in focus in full, the others in a line each with the worst first. Where the findings
 * stand below anyway, a verdict says no more than itself.
 */
export function verdictBanners(verdicts, scene, brief = false) {
  if (!verdicts.length) return null;
  const [first, ...others] = verdicts;
  const ranked = [...others].sort((a, b) => RANK.indexOf(a.severity) - RANK.indexOf(b.severity));
  const rows = ranked.map((verdict) => verdictRow(verdict, scene));
  return el(
    "section",
    { class: "verdicts", "aria-label": "Verdict" },
    verdictBanner(first, verdicts.length > 1, scene, brief),
    el("div", { class: "verdict-rows" }, rows.slice(0, SHOWN)),
    rows.length > SHOWN &&
      el(
        "details",
        { class: "fold" },
        el("summary", {}, `+${rows.length - SHOWN} more runs: ${tally(ranked.slice(SHOWN))}`),
        el("div", { class: "verdict-rows" }, rows.slice(SHOWN)),
      ),
  );
}

function tally(verdicts) {
  const found = RANK.map((severity) => [severity, verdicts.filter((each) => each.severity === severity).length]);
  return found.filter(([, number]) => number).map(([severity, number]) => `${number} ${SPOKEN[severity].toLowerCase()}`).join(", ");
}

function verdictBanner(verdict, named, scene, brief) {
  const { severity } = verdict;
  const finding = brief ? null : verdict.finding;
  const toFindings = scene.link("findings");
  const total = Object.values(verdict.counts).reduce((sum, number) => sum + number, 0);
  toFindings.append(total === 1 ? "the finding" : `all ${total} findings`);
  const said = finding && verdict.text.includes(finding.title);
  return el(
    "div",
    { class: `verdict ${severity}`, dataset: { severity, verdict: verdict.run } },
    icon(severity),
    el(
      "div",
      { class: "verdict-body" },
      el(
        "p",
        { class: "verdict-text" },
        el("strong", {}, verdictText(verdict)),
        el("span", { class: "dim" }, named && runName(verdict.run, scene), verdict.step !== null && ` read to step ${count(verdict.step)}`),
      ),
      finding && !said && el("p", {}, finding.title),
      finding && el("p", {}, el("span", { class: "term" }, "Cause"), finding.cause),
      finding?.fix.length > 0 && el("p", {}, el("span", { class: "term" }, "Do first"), finding.fix[0]),
      total > 0 && !brief && el("p", { class: "dim" }, toFindings),
    ),
  );
}

/** The sentence, with the state that it begins with as a word of its own: a run may be called like a state. */
function verdictText({ state, text, severity }) {
  const begin = `${state}: `;
  if (!state || !text.startsWith(begin)) return text;
  return [el("span", { class: `state-word ${severity}` }, state.replaceAll("-", " ")), text.slice(state.length)];
}

function verdictRow(verdict, scene) {
  return el(
    "button",
    {
      type: "button",
      class: `verdict-row ${verdict.severity}`,
      dataset: { severity: verdict.severity, verdict: verdict.run },
      title: `Put ${verdict.run} in focus`,
      onclick: () => scene.focus(verdict.run),
    },
    icon(verdict.severity),
    runName(verdict.run, scene),
    el("span", { class: "cut" }, verdictText(verdict)),
  );
}

const TONES = { good: "fine", warn: "warn", bad: "critical", unsure: "unknown" };

/** The questions about experts, each with its answer; a heading a run when there are several. */
export function answerCards(answers, scene) {
  if (!answers.length) return null;
  const runs = [...new Set(answers.map((answer) => answer.run))];
  return el(
    "section",
    { class: "answers", "aria-label": "Questions and answers" },
    runs.map((run) => [
      runs.length > 1 && el("h2", { class: "section-name" }, runName(run, scene)),
      el("div", { class: "answer-row" }, answers.filter((answer) => answer.run === run).map(answerCard)),
    ]),
  );
}

function answerCard(answer) {
  return el(
    "article",
    { class: `answer ${answer.tone}`, dataset: { tone: answer.tone } },
    el("p", { class: "question" }, answer.question),
    el("p", { class: "reply" }, icon(TONES[answer.tone]), el("strong", {}, answer.verdict)),
    el(
      "dl",
      {},
      answer.source_reading && [el("dt", {}, "By gradient norms alone"), el("dd", {}, answer.source_reading)],
      answer.sound_reading && [el("dt", {}, "With the routing weight taken out"), el("dd", {}, answer.sound_reading)],
    ),
    answer.missing.length > 0 &&
      el("div", { class: "dim" }, "Log these for a better answer:", el("ul", {}, answer.missing.map((each) => el("li", {}, each)))),
  );
}

/** Why there is nothing, and how there would be something. */
export function emptyBox(empty, whole = false) {
  return el(
    "div",
    { class: `empty ${whole ? "whole" : ""}` },
    el(whole ? "h2" : "p", { class: "empty-title" }, empty.title),
    el("p", {}, empty.cause),
    el("p", {}, empty.fix),
    empty.code && codeBlock(empty.code),
  );
}

const ADVICE = {
  "unknown-run": "The link may be older than the folder, or the run was moved. These runs are here:",
  "unknown-view": "Choose a tab above.",
  "bad-request": "The URL has a parameter that does not fit this view. Start again without parameters:",
  forbidden: "Open the URL that gradiometer serve printed.",
  unreadable: "Choose another run, or look at the file the message names.",
  fault: "This is a bug in Gradiometer. The terminal of gradiometer serve shows the details; reloading may help.",
};

/**
 * What the server said no to, and the ways out.
 * @param {{kind: string, message: string}} refusal
 * @param {Scene & {only: (id: string) => void, afresh: () => void, again: () => void, leave: (refusal: object) => void,
 *   without: (refusal: object) => string}} scene `without` names the parameters that can be left out, if any
 */
export function problemBox(refusal, scene) {
  const readable = [...scene.runs.values()].filter((card) => card.state !== "unreadable").slice(0, 12);
  const offer = ["unknown-run", "unreadable", "bad-request"].includes(refusal.kind);
  const button = (text, act) => el("button", { type: "button", onclick: act }, text);
  const strange = scene.without(refusal);
  return el(
    "div",
    { class: "problem", role: "alert", dataset: { problem: refusal.kind } },
    icon("critical"),
    el(
      "div",
      {},
      el("p", {}, el("strong", {}, refusal.message)),
      el("p", {}, ADVICE[refusal.kind] ?? (refusal.kind.startsWith("unknown-") ? ADVICE["bad-request"] : ADVICE.fault)),
      el(
        "p",
        { class: "ways" },
        offer
          ? readable.map((card) =>
              el("button", { type: "button", class: "chip", onclick: () => scene.only(card.id) }, swatch(card, scene.theme), card.id),
            )
          : null,
        strange && button(`Leave out ${strange}`, () => scene.leave(refusal)),
        button("Start afresh", scene.afresh),
        button("Try again", scene.again),
      ),
    ),
  );
}
