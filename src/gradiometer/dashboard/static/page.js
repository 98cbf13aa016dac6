/** A view on the page: words at once, charts as they come into sight, and what is new added to what is there. */

import { createBoard } from "./board.js";
import { createControls } from "./controls.js";
import { el, refresh } from "./dom.js";
import { factTables } from "./facts.js";
import { findingCards } from "./findings.js";
import { choosePlaces } from "./charts/palette.js";
import { address, strangers } from "./state.js";
import { greyTabs } from "./tabs.js";
import { answerCards, emptyBox, headerLines, problemBox, verdictBanners } from "./words.js";

const WORDS = ["header", "verdicts", "answers", "findings", "controls", "facts", "empty"];
const MANY_NEW = 1000;
const part = (id) => document.getElementById(id);

/**
 * @typedef {Object} PageActions
 * @property {(id: string) => void} focus
 * @property {(id: string) => void} only
 * @property {() => void} again ask once more
 * @property {(refusal: object) => void} without ask without what the refusal speaks of
 * @property {(from: ?number, to: ?number) => void} zoom
 * @property {() => Promise<Function>} mount
 * @property {() => void} recolour runs have other colours now
 */

/**
 * @param {ReturnType<typeof import("./state.js").createStore>} store
 * @param {Map<string, object>} runs cards by id
 * @param {() => string} theme light or dark
 * @param {PageActions} act
 */
export function createPage(store, runs, theme, act) {
  let view = null;
  let refusal = null;
  let added = 0;
  let drawn = false;

  const scene = () => ({
    runs,
    theme: theme(),
    link: (tab) => el("a", { href: address(store.on(tab)), dataset: { go: tab } }),
    focus: act.focus,
    only: act.only,
    again: act.again,
    without: (problem) => strangers(problem, store.state.options).map((name) => `${name}=${store.state.options[name].join(",")}`).join(" "),
    leave: act.without,
    afresh: () => store.set({ runs: [], x: "step", from: null, to: null, xfrom: null, xto: null, full: "", options: {} }),
  });

  const controls = createControls(part("controls"), (name, values, how) => store.option(name, values, how));
  const board = createBoard(part("board"), {
    mount: act.mount,
    prefix: () => `gradiometer-${store.state.tab}`,
    zoom: () => zoomOf(store.state),
    full: (id) => store.state.full !== id && store.set({ full: id }, { replace: true }),
    opened: () => store.state.options.open ?? [],
    open(name, wanted) {
      const others = (store.state.options.open ?? []).filter((each) => each !== name);
      const names = wanted ? [...others, name] : others;
      store.option("open", names.length ? names : null, { replace: true });
    },
    first() {
      if (!drawn) performance.mark("charts");
      drawn = true;
    },
    context(chart) {
      const { smooth, raw, env, y, logx, x } = store.state;
      return {
        runs,
        many: (view?.runs.length ?? 0) > 1,
        theme: theme(),
        look: { smooth, raw, envelope: env, y, logx, x },
        onHover: (id, at) => board.hover(id, at),
        onZoom: (from, to) => ["lines", "map"].includes(chart.kind) && act.zoom(from, to, chart.id),
        onPick: (name, key) => store.option(name, store.state.options[name]?.[0] === key ? null : key),
      };
    },
  });

  function words() {
    const { header, verdicts, answers, findings, facts, empty, runs: ids } = view;
    const names = [...runs.values()].map((card) => [card.id, card.colour]);
    const look = [theme(), ids, ids.length ? names.filter(([id]) => ids.includes(id)) : [], address(store.on("findings"))];
    part("title").textContent = view.title;
    document.title = [view.title, runs.get(ids[0])?.name, "Gradiometer"].filter(Boolean).join(" · ");
    const above = answers.length ? [] : header; // answers come first, what they rest on below them
    refresh(part("header"), above, () => headerLines(above));
    refresh(part("words"), [verdicts.map((each) => ({ ...each, step: null })), answers, answers.length > 0 && header, findings.length > 0, look], () => [
      verdictBanners(verdicts, scene(), findings.length > 0),
      answerCards(answers, scene()),
      answers.length > 0 && el("div", { class: "below-answers" }, headerLines(header)),
    ]);
    const told = view.charts.filter((chart) => chart.onsets?.length).map((chart) => chart.id);
    refresh(part("findings"), [findings, told, look.slice(0, 3)], () => findingCards(findings, scene(), told));
    refresh(part("empty"), empty, () => empty && emptyBox(empty, true));
    refresh(part("facts"), [facts, look.slice(0, 3)], () => factTables(facts, ids, scene()));
    controls.show(view.controls, store.state.options);
  }

  const slots = () => new Map([...part("findings").querySelectorAll("[data-slot]")].map((slot) => [slot.dataset.slot, slot]));

  return {
    get cursor() {
      // Many small additions make a line longer than the server would send: then it is time for a fresh view.
      return added > MANY_NEW ? "" : (view?.cursor ?? "");
    },
    get runs() {
      return view?.runs ?? [];
    },
    get view() {
      return view;
    },
    /** Whether something here lies on the page's x axis. */
    get curves() {
      return (view?.charts ?? []).some((chart) => ["lines", "map"].includes(chart.kind) && !chart.empty);
    },
    /** The series that could be an axis. */
    get series() {
      const names = new Set();
      for (const chart of view?.charts ?? []) for (const line of chart.lines) names.add(line.name);
      return [...names].sort();
    },
    /** A fresh view. */
    show(next) {
      if (view && view.view !== next.view) {
        board.clear();
        controls.forget();
        scrollTo({ top: 0 });
      } else if (view && String(view.runs) !== String(next.runs)) controls.forget();
      view = next;
      if (choosePlaces(view.runs)) act.recolour();
      added = 0;
      refusal = null;
      part("problem").replaceChildren();
      document.getElementById("main").classList.remove("stale");
      words();
      greyTabs(document.getElementById("tabs"), view.bare);
      board.show(view.charts, slots());
      board.full(store.state.full);
    },
    /** What is new in the view. */
    add(delta) {
      for (const name of WORDS) if (delta.parts.includes(name)) view[name] = delta[name];
      view.cursor = delta.cursor;
      greyTabs(document.getElementById("tabs"), (view.bare = delta.bare));
      added += Math.max(0, ...delta.charts.flatMap((chart) => chart.lines.map((line) => line.points.steps.length)));
      if (delta.parts.length) words();
      board.add(delta.charts, slots());
    },
    /** The server said no. What was there stays, greyed when it is about something else. */
    refuse(problem) {
      refusal = problem;
      part("problem").replaceChildren(problemBox(refusal, scene()));
      if (!view) part("title").textContent = "Gradiometer";
      document.getElementById("main").classList.toggle("stale", Boolean(view));
      if (view && view.view !== store.state.tab) this.clear();
    },
    clear() {
      view = null;
      board.clear();
      for (const name of ["header", "words", "findings", "empty", "facts"]) refresh(part(name), "nothing", () => null);
      controls.show([], {});
    },
    /** Runs or colours changed. */
    rename() {
      if (refusal) part("problem").replaceChildren(problemBox(refusal, scene()));
      if (view) words();
      board.place(slots());
    },
    look: () => board.look(),
    zoom: (from, to, except) => board.zoom(from, to, except),
    full: (id) => board.full(id),
    settle: () => board.settle(),
  };
}

/** The zoom of a state, on the axis it has. */
export function zoomOf({ x, from, to, xfrom, xto }) {
  const number = (text) => (text === null || !Number.isFinite(Number(text)) ? null : Number(text));
  return x === "step" ? { from: number(from), to: number(to) } : { from: xfrom, to: xto };
}
