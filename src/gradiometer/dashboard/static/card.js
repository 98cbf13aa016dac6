/** One chart on the page: its frame, its ⓘ, its exports, and its picture. */

import { merged } from "./charts/merge.js";
import { download, el, iconButton } from "./dom.js";
import { emptyBox } from "./words.js";

const TIMED = new Set(["lines", "map"]);

/**
 * @typedef {Object} CardActions
 * @property {() => string} prefix of the names of exported files
 * @property {(card: Card) => void} full show it at full size, or back
 * @property {(card: Card) => Promise<void>} need have it mounted now
 */

/** A chart's card. It holds the chart until it is mounted; then the handle does. */
export class Card {
  /**
   * @param {object} chart
   * @param {CardActions} act
   */
  constructor(chart, act) {
    this.id = chart.id;
    this.kind = chart.kind;
    this.act = act;
    this.handle = null;
    this.near = false;
    this.plot = el("div", { class: `plot ${chart.kind}` });
    this.title = el("div", { class: "card-title", role: "heading", "aria-level": "3", id: `title-${chart.id}` });
    this.subtitle = el("p", { class: "card-subtitle" });
    this.about = iconButton("about", "About this chart", () => {}, { "aria-haspopup": "dialog", "aria-expanded": "false" });
    this.popover = el("div", { class: "about", popover: "auto", role: "dialog", onbeforetoggle: () => this.popover.replaceChildren(...this.chart.info.map(explanation)), ontoggle: (event) => this.#opened(event) });
    this.about.popoverTargetElement = this.popover;
    this.exports = [
      iconButton("picture", "PNG", () => this.#save("png"), { dataset: { export: "png" } }),
      iconButton("vector", "SVG", () => this.#save("svg"), { dataset: { export: "svg" } }),
      iconButton("sheet", "CSV", () => this.#save("csv"), { dataset: { export: "csv" } }),
    ];
    this.larger = iconButton("full", "Full size", () => act.full(this), { class: "larger" });
    this.element = el(
      "article",
      { class: "card", id: `chart-${chart.id}`, dataset: { chart: chart.id, kind: chart.kind }, "aria-labelledby": `title-${chart.id}` },
      el("header", {}, el("div", { class: "card-words" }, this.title, this.subtitle), el("div", { class: "card-tools" }, this.about, this.exports, this.larger), this.popover),
      this.plot,
    );
    this.#describe(chart);
  }

  /** Whether its x is the page's x axis. */
  get timed() {
    return TIMED.has(this.kind);
  }

  /** Whether something has to be mounted before it can be seen. */
  get waiting() {
    return !this.handle && !this.chart.empty && !this.chart.later;
  }

  /**
   * The chart anew, as of a fresh view.
   * @param {object} chart
   * @param {object} [context] of the page, where that may be another too
   */
  take(chart, context) {
    const other = chart.kind !== this.kind || Boolean(chart.empty) || chart.later;
    this.kind = chart.kind;
    this.element.dataset.kind = chart.kind;
    this.plot.className = `plot ${chart.kind}`;
    if (other) this.#unmount();
    this.#describe(chart);
    this.handle?.update(chart, context);
  }

  /** What is new in it, as of a delta. */
  add(news) {
    const delta = { ...news, info: this.chart.info };
    if (!this.handle) {
      this.#describe(merged(this.chart, delta));
      return;
    }
    if (delta.empty) return this.take(delta);
    this.#describe(delta);
    this.handle.append(delta);
  }

  /**
   * Draw it; the chart itself waits for its turn.
   * @param {(container: HTMLElement, chart: object, context: object) => object} mount
   * @param {object} context
   */
  mount(mount, context) {
    this.plot.replaceChildren();
    try {
      this.handle = mount(this.plot, this.chart, context);
      this.chart = { ...this.chart, lines: [] };
    } catch (error) {
      this.fail(error);
    }
  }

  /** Say that it cannot be drawn. */
  fail(error) {
    console.error(error);
    const empty = { title: "This chart could not be drawn", cause: String(error.message), fix: "Its numbers are in the JSON of this view.", code: "" };
    this.chart = { ...this.chart, empty };
    this.plot.replaceChildren(emptyBox(empty));
  }

  destroy() {
    this.#unmount();
    this.element.remove();
  }

  #unmount() {
    this.handle?.destroy();
    this.handle = null;
    this.plot.replaceChildren();
  }

  #describe(chart) {
    // While it is mounted the points are the handle's: two holders of the same lists would both add to them.
    this.chart = this.handle ? { ...chart, lines: [] } : chart;
    this.title.textContent = chart.title;
    this.subtitle.textContent = chart.subtitle;
    this.subtitle.hidden = !chart.subtitle;
    this.element.classList.toggle("wide", chart.wide);
    this.about.hidden = chart.info.length === 0;
    this.about.setAttribute("aria-label", `About ${chart.title}`);
    this.popover.setAttribute("aria-label", `About ${chart.title}`);
    [...this.exports, this.larger].forEach((button) => {
      button.hidden = Boolean(chart.empty);
      button.setAttribute("aria-label", `${button.title} of ${chart.title}`);
    });
    if (chart.empty) this.plot.replaceChildren(emptyBox(chart.empty));
  }

  #opened(event) {
    const open = event.newState === "open";
    this.about.setAttribute("aria-expanded", String(open));
    if (!open) return;
    const button = this.about.getBoundingClientRect();
    const { width, height } = this.popover.getBoundingClientRect();
    const below = button.bottom + 6 + height < innerHeight || button.top < innerHeight / 2;
    this.popover.style.left = `${Math.max(8, Math.min(button.right - width, innerWidth - width - 8))}px`;
    this.popover.style.top = `${below ? button.bottom + 6 : Math.max(8, button.top - height - 6)}px`;
  }

  async #save(kind) {
    await this.act.need(this);
    if (!this.handle) return;
    const name = `${this.act.prefix()}-${this.id.replace(/[^\w.-]+/g, "_")}.${kind}`;
    try {
      const blob = kind === "csv" ? new Blob([this.handle.csv()], { type: "text/csv" }) : await this.handle[kind]();
      download(blob, name);
    } catch (error) {
      console.error(error);
    }
  }
}

function explanation(info) {
  const part = (term, text) => (text ? [el("dt", {}, term), el("dd", {}, text)] : null);
  return el(
    "section",
    {},
    el("p", { class: "about-name" }, el("code", {}, info.name)),
    el("p", {}, info.meaning),
    el("dl", {}, part("Unit", info.unit), part("Healthy", [info.healthy, info.source && info.healthy ? ` (${info.source})` : ""].join("")), part("What to do", info.remedy)),
  );
}
