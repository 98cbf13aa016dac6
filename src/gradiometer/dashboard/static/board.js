/** All charts of a view: in sections, drawn when they come into sight, with one hover and one zoom for all of them. */

import { Card } from "./card.js";
import { el, onceAFrame } from "./dom.js";

const NEAR = 250;
const PATIENCE = 10_000;

/**
 * @typedef {Object} BoardScene
 * @property {() => Promise<Function>} mount the function that draws a chart, once Plotly is there
 * @property {(chart: object) => object} context what a chart needs to know of the page
 * @property {() => {from: ?number, to: ?number}} zoom
 * @property {() => string} prefix of exported files
 * @property {(id: string) => void} full the chart at full size changed; "" for none
 * @property {() => string[]} opened folded sections that the reader opened
 * @property {(name: string, wanted: boolean) => void} open a folded section was opened or closed
 * @property {() => void} first the first chart was drawn
 */

/**
 * @param {HTMLElement} host
 * @param {BoardScene} scene
 */
export function createBoard(host, scene) {
  /** @type {Map<string, Card>} */
  const cards = new Map();
  let layout = "";
  let home = null;
  let turn = 0;

  const dialog = el("dialog", { class: "full", "aria-label": "Chart at full size", onclose: unfull });
  document.body.append(dialog);
  const act = { prefix: scene.prefix, full: (card) => (home ? dialog.close() : full(card.id)), need: (card) => draw(card, true) };
  const sight = new IntersectionObserver(looked, { rootMargin: `${NEAR}px 0px` });

  function looked(entries) {
    for (const entry of entries) {
      const card = cards.get(entry.target.dataset.chart);
      if (!card) continue;
      card.near = entry.isIntersecting;
      draw(card);
    }
  }

  /** Mount a card that is near the screen. */
  async function draw(card, now = false) {
    if (!card.waiting || !(card.near || now)) return;
    let mount;
    try {
      mount = await scene.mount();
    } catch (error) {
      return card.fail(error);
    }
    if (!card.waiting || cards.get(card.id) !== card) return;
    card.mount(mount, { ...scene.context(card.chart), seen: onScreen(card.element) });
    zoomOne(card);
    if (card.handle) card.handle.drawn.then(scene.first);
  }

  function zoomOne(card) {
    const { from, to } = scene.zoom();
    if (card.timed && card.handle && (from !== null || to !== null)) card.handle.zoom(from, to);
  }

  /** Each chart in its slot, the others in the sections they name. */
  function place(slots) {
    const loose = [...cards.values()].filter((card) => !slots.has(card.id));
    for (const card of cards.values()) {
      const slot = slots.get(card.id);
      if (slot && card.element.parentElement !== slot && home?.card !== card) slot.append(card.element);
    }
    const sections = new Map();
    for (const card of loose) sections.set(card.chart.section, [...(sections.get(card.chart.section) ?? []), card]);
    const next = JSON.stringify([...sections].map(([name, inside]) => [name, inside.map((card) => card.id), folded(inside)]));
    if (next === layout) return;
    layout = next;
    if (home) dialog.close();
    host.replaceChildren(...[...sections].map(([name, inside]) => section(name, inside)));
  }

  /** Of two columns the last chart takes both where nothing stands beside it. */
  function markLone(inside) {
    let beside = 0;
    inside.forEach((card, at) => {
      beside = card.chart.wide ? 0 : beside + 1;
      const last = at + 1 === inside.length || inside[at + 1].chart.wide;
      card.element.classList.toggle("lone", last && beside % 2 === 1);
    });
  }

  function section(name, inside) {
    markLone(inside);
    if (folded(inside)) return fold(name, inside);
    return el(
      "section",
      { class: "chart-section", "aria-label": name || "Charts" },
      el("h2", { class: name ? "section-name" : "unseen" }, name || "Charts"),
      el("div", { class: "grid" }, inside.map((card) => card.element)),
    );
  }

  /** A section that is closed until it is wanted: what nobody sees is not drawn. */
  function fold(name, inside) {
    const empty = inside.filter((card) => card.chart.empty).length;
    const size = empty === inside.length ? "no data" : inside.length - empty === 1 ? "1 chart" : `${inside.length - empty} charts`;
    const toggled = ({ target }) => target.open !== scene.opened().includes(name) && scene.open(name, target.open);
    return el(
      "details",
      { class: "chart-section fold-section", "aria-label": name, open: scene.opened().includes(name), ontoggle: toggled },
      el("summary", {}, el("h2", { class: "section-name" }, name), el("span", { class: "dim" }, size)),
      el("div", { class: "grid" }, inside.map((card) => card.element)),
    );
  }

  function full(id) {
    const card = cards.get(id);
    if (!card || home || card.chart.empty) return;
    if (card.chart.later) scene.open(card.chart.section, true);
    const mark = document.createComment("");
    card.element.replaceWith(mark);
    home = { card, mark };
    dialog.append(card.element);
    dialog.showModal();
    card.larger.focus(); // the same button leads back
    draw(card, true);
    scene.full(id);
  }

  function unfull() {
    if (!home) return;
    const { card, mark } = home;
    home = null;
    if (mark.isConnected && cards.has(card.id)) mark.replaceWith(card.element);
    else card.element.remove();
    card.larger.focus({ preventScroll: true });
    scene.full("");
  }

  function drop(card) {
    if (home?.card === card) dialog.close();
    cards.delete(card.id);
    sight.unobserve(card.element);
    card.element.remove();
    // Taking a picture down costs as much as a small one costs to draw: not before the new ones are there.
    setTimeout(() => card.destroy(), 400);
  }

  return {
    /**
     * The charts of a fresh view; those that stay are updated, not drawn anew.
     * @param {object[]} charts
     * @param {Map<string, HTMLElement>} slots where charts have a place of their own
     */
    show(charts, slots) {
      const there = new Set(charts.map((chart) => chart.id));
      for (const card of [...cards.values()]) if (!there.has(card.id)) drop(card);
      const kept = new Map(cards);
      cards.clear();
      for (const chart of charts) {
        const card = kept.get(chart.id);
        if (card) card.take(chart, scene.context(chart));
        cards.set(chart.id, card ?? new Card(chart, act));
        if (!card) continue;
        zoomOne(card);
        draw(card);
      }
      place(slots);
      for (const card of cards.values()) if (!kept.has(card.id)) sight.observe(card.element);
    },
    /** What is new in some of them. */
    add(charts, slots) {
      for (const chart of charts) {
        const card = cards.get(chart.id);
        if (!card) continue;
        card.add(chart);
        draw(card);
      }
      place(slots);
    },
    /** Words were built anew: put the charts back among them. */
    place,
    /** Until all that can be seen is drawn; whether nothing else was shown meanwhile. */
    async settle() {
      const mine = ++turn;
      const late = new Promise((done) => setTimeout(done, PATIENCE, "late"));
      const waited = new Set();
      for (;;) {
        // Drawn charts are higher than those to come: what they push off the screen is not waited for.
        const seen = [...cards.values()].filter((card) => !waited.has(card) && card.element.isConnected && onScreen(card.element));
        if (!seen.length) break;
        await Promise.all(seen.map((card) => draw(card, true)));
        const done = seen.map((card) => Promise.resolve(card.handle?.drawn).catch(() => {}).then(() => card));
        const first = await Promise.race([...done, late]);
        if (first === "late") break;
        waited.add(first);
      }
      return mine === turn;
    },
    clear() {
      for (const card of [...cards.values()]) drop(card);
      layout = "";
      host.replaceChildren();
    },
    look() {
      for (const card of cards.values()) card.handle?.look(scene.context(card.chart));
    },
    hover: onceAFrame((id, x) => {
      for (const card of cards.values()) if (card.timed && card.near && card.id !== id) card.handle?.hover(x);
    }),
    zoom(from, to, except = "") {
      for (const card of cards.values()) if (card.timed && card.id !== except) card.handle?.zoom(from, to);
    },
    /** Show a chart at full size; "" for none. */
    full(id) {
      if (home && home.card.id !== id) dialog.close();
      if (id) full(id);
    },
    get size() {
      return cards.size;
    },
  };
}

function folded(inside) {
  return inside.every((card) => card.chart.fold);
}

function onScreen(element) {
  if (!element.checkVisibility()) return false;
  const box = element.getBoundingClientRect();
  return box.bottom > 0 && box.top < innerHeight;
}
