/** Charts of kind `parallel`: a line a run through its settings, coloured by its outcome. */
import { csvOf } from "./csv.js";
import { FONT } from "./frame.js";
import { number } from "./numbers.js";
import { colourScale, inks, oddColours } from "./palette.js";
import { shortened, written } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";
const [HEIGHT, TOP, BOTTOM, SIDE] = [310, 48, 24, 74];
const MOST_TICKS = 9;
const SPREAD = 16; // pixels over which runs of one value lie beside each other, the best at the top
const LINE = 13; // pixels between two labels

function made(tag, attributes, text = "") {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  if (text) element.textContent = text;
  return element;
}

/** Between two colours "#RRGGBB". */
function mixed(from, to, share) {
  const parts = [1, 3, 5].map((at) => {
    const [a, b] = [from, to].map((colour) => parseInt(colour.slice(at, at + 2), 16));
    return Math.round(a + (b - a) * share).toString(16).padStart(2, "0");
  });
  return `#${parts.join("")}`;
}

/** The colour at a share from 0 to 1 of a scale; the brightest end of the light theme would not be seen on white. */
export function colourAt(share, theme) {
  const stops = colourScale("sequential", theme);
  const last = theme === "light" ? stops.length - 2 : stops.length - 1;
  const first = theme === "light" ? 0 : 0.22; // nor would the darkest end be seen on black
  const place = (first + (1 - first) * Math.min(Math.max(share, 0), 1)) * last;
  const low = Math.min(Math.floor(place), last - 1);
  return mixed(stops[low][1], stops[low + 1][1], place - low);
}

/** Where values lie between 0 and 1; the middle where all are the same. */
function scaleOf(values, log) {
  const finite = values.filter((value) => Number.isFinite(value)).map((value) => (log ? Math.log(value) : value));
  const [low, high] = [Math.min(...finite), Math.max(...finite)];
  return (value) => (high > low ? ((log ? Math.log(value) : value) - low) / (high - low) : 0.5);
}

export class ParallelPlot {
  constructor(container, chart, context) {
    Object.assign(this, { id: chart.id, kind: chart.kind, container, context, width: 0 });
    this.box = document.createElement("div");
    this.box.className = "parallel-plot";
    this.box.tabIndex = 0; // so that the keyboard can scroll it
    this.box.setAttribute("role", "img");
    container.replaceChildren(this.box);
    this.sized = new ResizeObserver(() => this.resize());
    this.sized.observe(this.box);
    this.update(chart);
  }

  update(chart, context = this.context) {
    Object.assign(this, { chart, context });
    this.width = Math.max(560, this.box.clientWidth || 900);
    const { axes, runs } = chart.parallel;
    this.box.setAttribute("aria-label", `${chart.title}: ${runs.length} runs over ${axes.map((axis) => axis.name).join(", ")}; the table below has the numbers`);
    this.box.replaceChildren(this.drawing());
  }

  /** Axes of the settings, and a last one of the outcome. */
  columns() {
    const { axes, outcome, values } = this.chart.parallel;
    return [...axes.map((axis) => ({ ...axis, values: axis.values.map(number) })), { name: outcome, scale: "linear", names: [], values: values.map(number), last: true }];
  }

  drawing() {
    const { theme } = this.context;
    const ink = inks(theme);
    const columns = this.columns();
    const size = { width: this.width, height: HEIGHT };
    const svg = made("svg", { ...size, viewBox: `0 0 ${size.width} ${size.height}`, "font-family": FONT, "font-size": 12 });
    const x = (at) => SIDE + ((this.width - 2 * SIDE) * at) / Math.max(1, columns.length - 1);
    const scales = columns.map((column) => scaleOf(column.values, column.scale === "log"));
    const y = (at, value) => HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * scales[at](value);
    svg.append(...this.lines(columns, x, y), ...columns.flatMap((column, at) => axisOf(column, x(at), (value) => y(at, value), ink)));
    return svg;
  }

  lines(columns, x, y) {
    const { theme } = this.context;
    const { labels, values, lower, runs } = this.chart.parallel;
    const outcomes = values.map(number);
    const share = scaleOf(outcomes, false);
    const shares = outcomes.map((value) => (Number.isFinite(value) ? (lower ? 1 - share(value) : share(value)) : null));
    const order = runs.map((_, run) => run).sort((a, b) => (shares[a] ?? -1) - (shares[b] ?? -1)); // the best on top
    const few = columns.map((column) => !column.last && new Set(column.values).size <= MOST_TICKS);
    return order.map((run, rank) => {
      const beside = SPREAD * (0.5 - rank / Math.max(1, order.length - 1));
      const places = columns.map((column, at) => [x(at), Number.isFinite(column.values[run]) ? y(at, column.values[run]) + (few[at] ? beside : 0) : null]);
      const d = places.filter(([, top]) => top !== null).map(([left, top], at) => `${at ? "L" : "M"}${left.toFixed(1)} ${top.toFixed(1)}`).join("");
      const colour = shares[run] === null ? oddColours(theme).broken : colourAt(shares[run], theme);
      const line = made("path", { d, class: "run-line", stroke: colour, fill: "none", "stroke-width": 2, "data-run": runs[run] });
      line.append(made("title", {}, `${labels[run]}: ${outcomes[run] === null ? "no outcome" : written(outcomes[run])}`));
      return line;
    });
  }

  append(chart) {
    this.update({ ...this.chart, ...chart });
  }

  look(context) {
    const other = context.theme !== this.context.theme;
    this.context = context;
    if (other) this.update(this.chart);
  }

  resize() {
    if (Math.abs((this.box.clientWidth || 0) - this.width) > 2 && this.box.clientWidth >= 560) this.update(this.chart);
  }

  hover() {}
  zoom() {}
  get drawn() {
    return Promise.resolve();
  }

  csv() {
    const columns = this.columns();
    const { labels } = this.chart.parallel;
    const cell = (column, run) => (column.names?.length && column.values[run] !== null ? column.names[column.values[run]] : column.values[run]);
    const cells = labels.map((label, run) => [label, ...columns.map((column) => cell(column, run))]);
    return csvOf({ kind: "table", table: { columns: ["run", ...columns.map((column) => column.name)], cells } });
  }

  async svg() {
    const drawing = this.drawing();
    drawing.setAttribute("xmlns", SVG);
    drawing.prepend(made("rect", { width: this.width, height: HEIGHT, fill: inks(this.context.theme).paper }));
    return new Blob([new XMLSerializer().serializeToString(drawing)], { type: "image/svg+xml" });
  }

  async png() {
    const address = URL.createObjectURL(await this.svg());
    const picture = new Image();
    picture.src = address;
    await picture.decode();
    const canvas = Object.assign(document.createElement("canvas"), { width: 2 * this.width, height: 2 * HEIGHT });
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    URL.revokeObjectURL(address);
    return new Promise((done) => canvas.toBlob(done, "image/png"));
  }

  destroy() {
    this.sized.disconnect();
    this.box.remove();
  }
}

/** The line of an axis with its name and ticks: a tick for each value where there are few, else its ends and middle. */
function axisOf(column, x, y, ink) {
  const found = [...new Set(column.values.filter((value) => Number.isFinite(value)))].sort((a, b) => a - b);
  const ticks = found.length <= MOST_TICKS && !column.last ? found : [found[0], found[Math.floor(found.length / 2)], found.at(-1)];
  const name = made("text", { x, y: 18, "text-anchor": "middle", fill: ink.text, "font-weight": 600 }, shortened(column.name, 18));
  name.append(made("title", {}, column.name));
  const line = made("line", { x1: x, x2: x, y1: TOP - 8, y2: HEIGHT - BOTTOM + 8, stroke: ink.muted, "stroke-width": 1 });
  const apart = ticks.filter((value, at) => value !== undefined && (at === ticks.length - 1 || Math.abs(y(value) - y(ticks.at(-1))) >= LINE) && ticks.indexOf(value) === at);
  const digits = [3, 4, 5, 6].find((each) => new Set(apart.map((value) => written(value, each))).size === apart.length) ?? 7;
  const words = apart.map((value) => {
    const text = column.names?.length ? shortened(column.names[value], 14) : written(value, digits);
    return made("text", { x: x + (column.last ? 6 : -6), y: y(value) + 4, "text-anchor": column.last ? "start" : "end", fill: ink.muted, "paint-order": "stroke", stroke: ink.paper, "stroke-width": 3 }, text);
  });
  return [line, name, ...words];
}
