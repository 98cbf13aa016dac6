/** Charts of kind `drawing`: shapes that were placed before they came here, drawn as SVG. */
import { csvOf } from "./csv.js";
import { FONT } from "./frame.js";

const SPACE = "http://www.w3.org/2000/svg";
const NARROW = 640;
const INKED = new Set(["fill", "stroke"]);

/** An element of SVG. @param {string} tag @param {Object<string, any>} attributes @param {string} [text] */
export function made(tag, attributes, text = "") {
  const element = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  if (text) element.append(text);
  return element;
}

/** A drawing as a file. @param {SVGElement} svg */
export function fileOf(svg) {
  return new Blob([new XMLSerializer().serializeToString(svg)], { type: "image/svg+xml" });
}

export class Drawing {
  constructor(container, chart, context) {
    Object.assign(this, { id: chart.id, kind: chart.kind, container, context, chart });
    this.box = document.createElement("div");
    this.box.className = "drawing";
    container.replaceChildren(this.box);
    this.sized = new ResizeObserver(() => this.narrow !== this.isNarrow && this.paint());
    this.sized.observe(container);
    this.paint();
  }

  /** Whether the page has room for the phone's arrangement only. */
  get isNarrow() {
    return this.container.clientWidth > 0 && this.container.clientWidth < NARROW;
  }

  paint() {
    this.narrow = this.isNarrow;
    const at = document.activeElement?.closest?.("a")?.getAttribute("href");
    const held = at && this.box.contains(document.activeElement);
    this.box.replaceChildren(this.picture({ links: true }));
    if (held) this.box.querySelector(`a[href="${CSS.escape(at)}"]`)?.focus({ preventScroll: true });
  }

  /** The drawing in the colours of the page. */
  picture({ links = false, ground = false, narrow = this.narrow } = {}) {
    const { drawing } = this.chart;
    const sheet = narrow ? drawing.narrow : drawing.wide;
    const inks = drawing.inks[this.context.theme];
    const size = { viewBox: `0 0 ${sheet.width} ${sheet.height}`, "font-family": FONT };
    const svg = made("svg", links ? { ...size, role: "group", "aria-label": drawing.title } : { ...size, width: sheet.width, height: sheet.height });
    if (ground) svg.append(made("title", {}, drawing.title), made("rect", { width: "100%", height: "100%", fill: inks.paper }));
    if (links) svg.style.maxWidth = `${sheet.width * 1.25}px`;
    svg.append(...sheet.shapes.map((shape) => drawn(shape, inks, links)));
    return svg;
  }

  update(chart, context = this.context) {
    Object.assign(this, { chart, context });
    this.paint();
  }

  append(chart) {
    this.update({ ...this.chart, ...chart });
  }

  look(context) {
    const other = context.theme !== this.context.theme;
    this.context = context;
    if (other) this.paint();
  }

  resize() {}
  hover() {}
  zoom() {}
  get drawn() {
    return Promise.resolve();
  }

  csv() {
    return csvOf({ ...this.chart, kind: "table" }, {});
  }

  svg() {
    return Promise.resolve(fileOf(this.picture({ ground: true, narrow: false })));
  }

  /** Painted at twice its size. */
  async png() {
    const svg = this.picture({ ground: true, narrow: false });
    const picture = new Image();
    picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(svg))}`;
    await picture.decode();
    const canvas = document.createElement("canvas");
    Object.assign(canvas, { width: 2 * svg.getAttribute("width"), height: 2 * svg.getAttribute("height") });
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    return new Promise((done) => canvas.toBlob(done, "image/png"));
  }

  destroy() {
    this.sized.disconnect();
    this.box.remove();
  }
}

/** A shape as an element; one that leads somewhere is a link, which the keyboard reaches too. */
function drawn(shape, inks, links) {
  const colours = Object.entries(shape.at).map(([name, value]) => [name, INKED.has(name) ? (inks[value] ?? value) : value]);
  const element = made(shape.tag, Object.fromEntries(colours));
  if (shape.title) element.append(made("title", {}, shape.title));
  element.append(shape.text, ...shape.inside.map((each) => drawn(each, inks, false)));
  if (!links || !shape.go) return element;
  const link = made("a", { href: `#chart-${shape.go}`, "aria-label": `${shape.title}; to its curve` });
  link.append(element);
  return link;
}
