/** The life of a Plotly chart: when it draws, what it tells the page, and how it is taken along. */
import { csvOf } from "./csv.js";
import { Cursor, numberAt, pixelAt } from "./cursor.js";
import { FONT, pictureLegend } from "./frame.js";
import { Legend } from "./legend.js";
import { merged } from "./merge.js";
import { inks } from "./palette.js";
import { ask, forget } from "./queue.js";
import { escaped } from "./text.js";

/**
 * How a kind of chart is drawn.
 * @typedef {Object} Kind
 * @property {(chart: any, context: any, state: State) => Figure} figure
 * @property {(chart: any, width: number, context: any) => number} height what it would like
 * @property {boolean} [synced] whether its x is that of the page, for hover and zoom
 *
 * @typedef {{range: [number, number] | null, hidden: Set<string>, width: number, height: number, left?: number}} State
 * @typedef {Object} Figure
 * @property {any[]} data @property {any} layout
 * @property {{drawn: (x: number) => number, read: (x: number) => number}} [axis]
 * @property {import("./legend.js").Entry[]} legend
 * @property {(x: number) => {name: string, colour: string, value: string}[]} [readout] what the hover line says
 * @property {(point: any) => string | null} [key] what a click on a point picks
 */

const CONFIG = { displayModeBar: false, displaylogo: false, doubleClick: false, showTips: false, scrollZoom: false };

export class Plot {
  /** @param {HTMLElement} container @param {any} chart @param {any} context @param {Kind} kind */
  constructor(container, chart, context, kind) {
    Object.assign(this, { id: chart.id, kind: chart.kind, chart, context, how: kind, visible: Boolean(context.seen) });
    /** @type {State} */
    this.state = { range: null, hidden: new Set(), width: 0, height: 0 };
    this.container = container;
    this.frame = document.createElement("div");
    this.frame.style.cssText = "position:relative;flex:1 1 auto;min-width:0;width:100%;overflow:hidden";
    this.gd = document.createElement("div");
    this.gd.style.cssText = "position:absolute;inset:0";
    this.gd.className = "chart-plot";
    this.frame.append(this.gd);
    this.cursor = new Cursor(this.frame);
    container.style.display = "flex";
    container.style.flexDirection = "column";
    container.replaceChildren(this.frame);
    this.legend = new Legend(container, (group, alone) => this.toggle(group, alone));
    this.frame.style.minHeight = `${kind.height(chart, container.clientWidth || 480, context)}px`;
    this.promiseAnew();
    this.watch();
    if (this.visible) this.request();
  }

  /** What `drawn` answers with until the next drawing is done. */
  promiseAnew() {
    this.promise = new Promise((done, failed) => Object.assign(this, { done, failed }));
    this.promise.catch(() => {}); // whoever waits hears of it; nobody has to wait
  }

  /** Draws when it is known whether the chart is on the screen, and again when its size is another. */
  watch() {
    this.seen = new IntersectionObserver((entries) => {
      this.visible = entries.at(-1).isIntersecting;
      if (this.dirty !== false) this.request();
    });
    this.sized = new ResizeObserver(() => {
      if (this.dirty === false) this.resize();
      else if (this.dirty && this.visible) this.request();
    });
    this.seen.observe(this.frame);
    this.sized.observe(this.frame);
  }

  request() {
    if (this.dirty === false) this.promiseAnew();
    this.dirty = true;
    ask(this);
  }

  /** Now; called by the queue. One drawing has to end before the next begins. */
  draw() {
    if (this.busy) return;
    const { done, failed } = this;
    if (!this.frame.clientWidth) return done(); // hidden or not in the page: its observers come back
    this.dirty = false;
    this.busy = true;
    this.drawing = this.paint().then(done, (error) => (console.error(error), failed(error))).finally(() => {
      this.busy = false;
      if (this.dirty) ask(this);
    });
  }

  /** Before the first drawing of this and its neighbours: legends make rows higher, and then all would draw again. */
  prepare() {
    if (!this.figure && this.frame.clientWidth) this.compose();
  }

  compose() {
    const { chart, context, state } = this;
    state.width = this.frame.clientWidth;
    this.frame.style.minHeight = `${this.how.height(chart, state.width, context)}px`;
    state.height = this.frame.clientHeight;
    this.figure = this.how.figure(chart, context, state);
    this.legend.show(this.figure.legend, state.hidden, chart.title, context.theme);
  }

  async paint() {
    const { chart, state } = this;
    this.compose();
    state.height = this.frame.clientHeight; // the legend has taken its part
    const layout = { ...this.figure.layout, width: state.width, height: state.height };
    const first = !this.gd._fullLayout;
    await globalThis.Plotly.react(this.gd, this.figure.data, layout, CONFIG);
    await this.makeRoom();
    if (first) this.listen();
    this.gd.dataset.drawn = String(Number(this.gd.dataset.drawn ?? 0) + 1);
    if (chart.pick && this.figure.key) for (const area of this.gd.querySelectorAll(".nsewdrag")) area.style.cursor = "pointer";
  }

  /** Where what stands left of the axis is wider than its margin, once more with as much as it needs. */
  async makeRoom() {
    const { margin } = this.figure.layout;
    if (margin.autoexpand !== false) return;
    const edge = this.gd.getBoundingClientRect().left;
    const title = this.gd.querySelector(".ytitle")?.getBoundingClientRect().width ?? 0;
    const free = Math.min(...[...this.gd.querySelectorAll(".ytick text")].map((text) => text.getBoundingClientRect().left)) - edge - title;
    if (!(free < 0)) return;
    this.state.left = margin.l = Math.ceil(margin.l - free + 4);
    await globalThis.Plotly.relayout(this.gd, { "margin.l": margin.l });
  }

  listen() {
    this.gd.on("plotly_click", (event) => this.pick(this.figure.key?.(event.points[0])));
    this.gd.addEventListener("click", (event) => this.pickName(event));
    if (!this.how.synced) return this.gd.on("plotly_doubleclick", () => this.request());
    this.gd.on("plotly_relayout", (change) => this.zoomed(change));
    this.gd.on("plotly_doubleclick", () => {
      this.zoom(null, null);
      this.context.onZoom?.(null, null);
    });
    this.gd.addEventListener("pointermove", (event) => this.pointed(event));
    this.gd.addEventListener("pointerleave", () => this.left());
  }

  /** A legend click hides or shows a line with all that belongs to it, two clicks isolate it. */
  toggle(group, isolate) {
    const { hidden } = this.state;
    const others = new Set(this.figure.legend.map((entry) => entry.group).filter((each) => each !== group));
    const alone = !hidden.has(group) && [...others].every((each) => hidden.has(each));
    if (isolate) this.state.hidden = alone ? new Set() : others;
    else if (!hidden.delete(group)) hidden.add(group);
    this.request();
    this.context.onLegend?.(this.id, [...this.state.hidden]);
  }

  pick(key) {
    if (this.chart.pick && key) this.context.onPick?.(this.chart.pick, key);
  }

  /** The names beside a map pick as its cells do. */
  pickName(event) {
    const { xaxis, yaxis } = this.gd._fullLayout;
    const { left, top } = this.gd.getBoundingClientRect();
    const down = event.clientY - top - yaxis._offset;
    if (this.kind !== "map" || event.clientX - left > xaxis._offset || down < 0 || down > yaxis._length) return;
    this.pick(this.figure.key({ y: yaxis.p2l(down) }));
  }

  zoomed(change) {
    if (!("xaxis.range[0]" in change || "xaxis.range" in change)) return;
    const axis = this.gd._fullLayout.xaxis;
    const ends = axis.range.map((end) => axis.r2l(end)).map((end) => this.figure.axis.read(axis.type === "log" ? 10 ** end : end));
    this.zoom(...ends);
    this.context.onZoom?.(...ends);
  }

  pointed(event) {
    this.inside = true;
    this.pointer = event.clientX - this.gd.getBoundingClientRect().left;
    if (this.telling) return;
    this.telling = requestAnimationFrame(() => {
      this.telling = null;
      if (!this.inside || !this.gd._fullLayout?.xaxis) return;
      const x = numberAt(this.gd._fullLayout.xaxis, this.pointer);
      this.context.onHover?.(this.id, x === null ? null : this.figure.axis.read(x));
    });
  }

  left() {
    this.inside = false;
    this.context.onHover?.(this.id, null);
  }

  // What the page asks of it.

  update(chart, context = this.context) {
    this.chart = chart;
    this.look(context);
  }

  append(delta) {
    this.update(merged(this.chart, delta));
  }

  look(context) {
    if (context.look.x !== this.context.look.x) this.state.range = null;
    this.context = context;
    this.request();
  }

  resize() {
    const { clientWidth, clientHeight } = this.frame;
    if (clientWidth !== this.state.width || clientHeight !== this.state.height) this.request();
  }

  /** Shows the hover line at x, in the units of the axis (seconds for times). */
  hover(x) {
    const full = this.gd._fullLayout;
    const pixel = x === null || this.inside || !this.how.synced || !full?.xaxis ? null : pixelAt(full.xaxis, this.figure.axis.drawn(x));
    if (pixel === null) return this.cursor.hide();
    this.cursor.show(full, pixel, this.figure.readout?.(x) ?? [], this.context.theme);
  }

  zoom(from, to) {
    if (!this.how.synced) return;
    this.state.range = from === null || from === undefined ? null : [from, to];
    this.request();
  }

  /** Resolves when what was asked for is drawn. @returns {Promise<void>} */
  get drawn() {
    return this.promise;
  }

  csv() {
    return csvOf(this.chart, this.context.look);
  }

  /** A picture that stands alone: with its title, on a ground. */
  png() {
    return this.picture("png");
  }

  svg() {
    return this.picture("svg");
  }

  /** @param {"png" | "svg"} format @returns {Promise<Blob>} */
  async picture(format) {
    await this.drawn;
    const { theme } = this.context;
    const [ink, { layout }] = [inks(theme), this.figure];
    const title = { text: escaped(this.chart.title), x: 0.01, xanchor: "left", font: { size: 15, color: ink.text, family: FONT } };
    if (this.chart.subtitle) title.subtitle = { text: escaped(this.chart.subtitle), font: { size: 12, color: ink.muted } };
    const top = this.chart.subtitle ? 58 : 42;
    const { room, layout: legend } = pictureLegend(this.figure.legend, this.state.width);
    const margin = { ...layout.margin, t: layout.margin.t + top, b: layout.margin.b + room };
    const picture = { ...layout, ...legend, title, paper_bgcolor: ink.paper, margin };
    const size = { width: this.state.width, height: this.state.height + top + room };
    const url = await globalThis.Plotly.toImage({ data: this.figure.data, layout: picture }, { format, scale: format === "png" ? 2 : 1, ...size });
    return format === "png" ? blobOf(url) : new Blob([decodeURIComponent(url.slice(url.indexOf(",") + 1))], { type: "image/svg+xml" });
  }

  destroy() {
    forget(this);
    this.seen.disconnect();
    this.sized.disconnect();
    cancelAnimationFrame(this.telling);
    this.drawing?.finally(() => globalThis.Plotly.purge(this.gd)); // not while it is still at it
    this.done();
    this.frame.remove();
    this.legend.remove();
    this.container.style.display = this.container.style.flexDirection = "";
  }
}

/** A data URL as a file; the page's policy forbids to fetch it. @param {string} url */
function blobOf(url) {
  const bytes = Uint8Array.from(atob(url.slice(url.indexOf(",") + 1)), (letter) => letter.charCodeAt(0));
  return new Blob([bytes], { type: "image/png" });
}
