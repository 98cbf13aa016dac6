/** The page of Gradiometer's dashboard: what the URL says is asked of the server, shown, and kept live. */

import { Gone, Refusal, ask, askView } from "./api.js";
import { debounce, el, icon, painted } from "./dom.js";
import { createForesight } from "./foresight.js";
import { createHome } from "./home.js";
import { bindKeys } from "./keys.js";
import { createLive } from "./live.js";
import { createPage, zoomOf } from "./page.js";
import { createPicker } from "./picker.js";
import { HOME, TABS, address, asked, createStore, strangers } from "./state.js";
import { createToolbar } from "./toolbar.js";

const root = document.documentElement;
const main = document.getElementById("main");
const runs = new Map();
const dark = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 700px)");
const store = createStore(changed);
let pinned = [];
let asking = null;
let [round, live] = [0, null];
let [missed, refused] = [false, false];
let travelled = false; // whether the question came with other runs or from another tab
let names = null;

const theme = () => (store.state.theme === "auto" ? (dark.matches ? "dark" : "light") : store.state.theme);
const query = () => asked(store.state, pinned);
const choose = (ids) => {
  pinned = [];
  store.set({ runs: ids, full: "" });
};
const current = () => (store.state.runs.length ? store.state.runs : page.runs);
const focus = (id) => choose([id, ...current().filter((other) => other !== id)]);

const page = createPage(store, runs, theme, {
  focus,
  only: (id) => choose([id]),
  again: () => load(),
  without,
  zoom,
  mount: drawing,
  recolour: () => picker.recolour(theme()),
});
const picker = createPicker(document.getElementById("picker"), { choose, close: () => drawer(false) });
const toolbar = createToolbar(document.getElementById("toolbar"), {
  set: (patch, how) => store.set(patch, how),
  unzoom: () => zoom(null, null),
  help: () => keys.help(),
});
const foresight = createForesight(document.getElementById("tabs"), (tab) => (tab === HOME || tab === store.state.tab ? null : asked(store.on(tab), pinned)));
const atHome = () => store.state.tab === HOME;
const home = createHome(document.getElementById("home"), store, {
  open(tab, ids) {
    pinned = [];
    store.set({ tab, runs: ids, full: "", options: {} });
  },
  theme: () => toolbar.nextTheme(),
  help: () => keys.help(),
});
const keys = bindKeys({
  0: ["runs", () => store.go(HOME)],
  ...Object.fromEntries(TABS.map((tab, place) => [String(place + 1), [tab, () => store.go(tab)]])),
  "/": ["search runs", () => (atHome() ? home.find.focus() : (drawer(true), picker.search.focus()))],
  s: ["smoothing on or off", () => toolbar.flipSmoothing()],
  l: ["log y on or off", () => store.set({ y: store.state.y === "log" ? "auto" : "log" })],
  x: ["next x axis", () => toolbar.nextAxis()],
  e: ["envelope on or off", () => store.set({ env: !store.state.env })],
  d: ["theme: auto, light, dark", () => toolbar.nextTheme()],
  r: ["reset the zoom", () => zoom(null, null)],
  j: ["next run in focus", () => stepRun(1)],
  k: ["previous run in focus", () => stepRun(-1)],
  "?": ["these shortcuts", () => keys.help()],
});

/** Ask the whole view that the URL names, and show it. */
async function load() {
  asking?.abort();
  asking = new AbortController();
  const mine = ++round;
  delete root.dataset.ready;
  main.setAttribute("aria-busy", "true");
  try {
    if (atHome()) return await loadHome(mine);
    const view = await foresight.view(store.state.tab, query(), asking.signal);
    if (mine !== round) return;
    travelled = false;
    settled();
    await shown(view, mine);
  } catch (error) {
    if (error.name === "AbortError" || mine !== round) return;
    settled();
    if (error instanceof Refusal) (travelled && without(error)) || refuse(error);
    else if (error instanceof Gone) live?.lost();
    else throw error;
  }
}

/** The table of runs; the page behind it is empty. */
async function loadHome(mine) {
  page.clear();
  document.title = "Runs · Gradiometer";
  await home.load();
  if (mine !== round) return;
  document.getElementById("problem").replaceChildren();
  settled();
  root.dataset.ready = HOME;
}

/** An answer is there; if something changed while it was on its way, ask for that. */
function settled() {
  asking = null;
  main.setAttribute("aria-busy", "false");
  if (missed) live?.tick();
  missed = false;
}

/** A choice of another run or of an earlier visit, which this view does not know, is left out; whether there was one. */
function without(refusal) {
  const strange = strangers(refusal, store.state.options);
  if (!strange.length) return false;
  const kept = Object.entries(store.state.options).filter(([name]) => !strange.includes(name));
  store.set({ options: Object.fromEntries(kept) }, { replace: true });
  return true;
}

function refuse(refusal) {
  refused = true;
  page.refuse(refusal);
  root.dataset.ready = "problem";
  drawing();
}

async function shown(view, mine) {
  refused = false;
  page.show(view);
  pinned = view.runs;
  picker.show(view.runs);
  toolbar.offer(page.series, page.curves, view.charts.length > 0);
  if (!performance.getEntriesByName("words").length) {
    performance.mark("words");
    await painted();
  }
  drawing();
  if ((await page.settle()) && mine === round) root.dataset.ready = view.view;
}

/** Ask only what is new. */
async function tick() {
  if (asking) return void (missed = true);
  if (atHome()) return home.tick();
  if (refused) return; // the same question has the same answer, until the runs or the question change
  if (!page.cursor) return load();
  const mine = round;
  try {
    const view = await askView(store.state.tab, query(), page.cursor);
    if (mine !== round || asking) return;
    if (view.delta) page.add(view);
    else await shown(view, mine);
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    if (mine === round) refuse(error);
  }
}

async function askRuns() {
  if (atHome()) return; // the table asks for itself
  const shelved = await ask("/runs.json");
  const before = names;
  names = shelved.runs.map((card) => card.id).sort().join("\n");
  runs.clear();
  for (const card of shelved.runs) runs.set(card.id, card);
  picker.fill(shelved.runs);
  page.rename();
  if (before !== null && before !== names && (refused || !page.runs.length)) await load();
}

/** The state changed: ask anew what the server answers to, redraw what only the eye sees. */
function changed(state, before) {
  if (state.runs !== before.runs && !state.runs.length) pinned = [];
  links();
  toolbar.show(state);
  if (state.theme !== before.theme) paintTheme();
  const [was, is] = [zoomOf(before), zoomOf(state)];
  if (was.from !== is.from || was.to !== is.to) page.zoom(is.from, is.to);
  const looks = ["smooth", "raw", "env", "y", "logx", "theme"];
  if (looks.some((name) => state[name] !== before[name])) page.look();
  if (state.full !== before.full) page.full(state.full);
  document.body.classList.toggle("at-home", state.tab === HOME);
  if (state.tab === HOME && before.tab === HOME) return home.show();
  if (before.tab === HOME) home.leave(), askRuns().catch(() => {});
  if (state.tab === before.tab && asked(state) === asked(before)) return;
  const onlyZoom = state.tab === before.tab && asked({ ...state, from: null, to: null }) === asked({ ...before, from: null, to: null });
  travelled ||= state.tab !== before.tab || String(state.runs) !== String(before.runs);
  if (state.tab !== before.tab) drawer(false);
  if (state.runs.length) picker.show(state.runs);
  delete root.dataset.ready;
  if (onlyZoom) return reload();
  reload.cancel();
  load();
}
const reload = debounce(load, 220);

/** Steps go to the server, which then sends them all; another axis is zoomed only here. */
function zoom(from, to) {
  const whole = from === null ? { from: null, to: null } : { from: String(Math.floor(from)), to: String(Math.ceil(to)) };
  const patch = store.state.x === "step" ? { ...whole, xfrom: null, xto: null } : { xfrom: from, xto: to, ...(from === null ? whole : {}) };
  store.set(patch);
}

function stepRun(by) {
  const id = picker.beside(by);
  if (id) choose([id, ...(current().length > 1 ? current().filter((other) => other !== id) : [])]);
}

function links() {
  const host = document.getElementById("tabs");
  [HOME, ...TABS].forEach((tab, place) => {
    const link = host.children[place] ?? host.appendChild(el("a", { dataset: { tab } }, tab[0].toUpperCase() + tab.slice(1)));
    link.href = address(store.on(tab));
    if (tab === store.state.tab) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
  // By hand: scrollIntoView would also make the Tab key start from here.
  const { offsetLeft, offsetWidth } = host.querySelector("[aria-current]");
  host.scrollLeft = offsetLeft - host.offsetLeft + offsetWidth / 2 - host.clientWidth / 2;
}

function paintTheme() {
  root.dataset.theme = theme();
  picker.recolour(theme());
  page.rename();
}

function say(status) {
  const words = { live: "live", polling: "polling", offline: "offline, trying again" };
  document.getElementById("status").dataset.status = status;
  const word = document.getElementById("status-word");
  if (word.textContent !== words[status]) word.textContent = words[status];
}

function drawer(open) {
  const button = document.getElementById("open-picker");
  document.body.classList.toggle("drawer", open && narrow.matches);
  button.setAttribute("aria-expanded", String(open && narrow.matches));
  document.getElementById("veil").hidden = !(open && narrow.matches);
  document.getElementById("picker").inert = narrow.matches && !open;
}

let plotly = null;
/** The function that draws, once Plotly and our charts are there. Both are fetched early, but run only after the words. */
function drawing() {
  plotly ??= Promise.all([
    import("./charts/index.js"),
    window.Plotly ?? new Promise((done, fail) => document.head.append(el("script", { src: "/plotly.min.js", onload: done, onerror: () => fail(new Error("/plotly.min.js could not be loaded")) }))),
  ]).then(([charts]) => charts.mount);
  plotly.catch(() => (plotly = null));
  return plotly;
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-tab], a[data-go]");
  if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  store.go(link.dataset.tab ?? link.dataset.go);
});
document.addEventListener("keydown", (event) => event.key === "Escape" && drawer(false));
document.getElementById("open-picker").append(icon("menu"));
document.getElementById("open-picker").addEventListener("click", () => drawer(!document.body.classList.contains("drawer")));
document.getElementById("veil").addEventListener("click", () => drawer(false));
narrow.addEventListener("change", () => drawer(false));
dark.addEventListener("change", () => store.state.theme === "auto" && (paintTheme(), page.look()));

root.dataset.theme = theme();
document.body.classList.toggle("at-home", atHome());
if (!atHome()) document.head.append(el("link", { rel: "preload", as: "script", href: "/plotly.min.js", fetchpriority: "low" }));
picker.recolour(theme());
links();
toolbar.show(store.state);
drawer(false);
load();
askRuns().catch((error) => error instanceof Gone || Promise.reject(error));
live = createLive({
  tick,
  runs: askRuns,
  status: say,
  changed({ run, step, state }) {
    const card = runs.get(run);
    const moved = card && (card.newest_step !== step || state === "live"); // a diagnosis that got ready is news too, but no writing
    if (card) picker.touch(Object.assign(card, { newest_step: step, state }, moved ? { changed: Date.now() / 1000 } : {}));
    return atHome() || page.runs.includes(run);
  },
});
// A run falls still without an event; and an empty folder is where a first run is waited for.
let beats = 0;
setInterval(() => {
  const due = runs.size === 0 || (++beats % 4 === 0 && [...runs.values()].some((card) => card.state === "live"));
  if (due && !document.hidden) askRuns().catch(() => {});
}, 5000);
