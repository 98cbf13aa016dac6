/** Charts of kind `table`: a real table, which scrolls in its box. */
import { csvOf } from "./csv.js";
import { number } from "./numbers.js";
import { fileOf, made } from "./drawing.js";
import { FONT } from "./frame.js";
import { inks } from "./palette.js";
import { written } from "./text.js";

const MOST_PIXELS = 420;

/** What a cell says, and whether it is a number. */
function said(cell) {
  if (cell === null || cell === undefined) return { text: "", numeric: false };
  const value = number(cell);
  return value === null ? { text: String(cell), numeric: false } : { text: whole(value) ?? written(value), numeric: true };
}

/** A large whole number, such as a step, in all its digits. */
function whole(value) {
  const large = Number.isInteger(value) && Math.abs(value) >= 1e6 && Math.abs(value) < 1e12;
  return large ? value.toLocaleString("en").replaceAll(",", "\u202f").replace("-", "−") : null;
}

export class Table {
  constructor(container, chart, context) {
    Object.assign(this, { id: chart.id, kind: chart.kind, container, context });
    this.box = document.createElement("div");
    this.box.className = "chart-table";
    this.box.tabIndex = 0; // so that the keyboard can scroll it
    this.box.setAttribute("role", "region");
    this.box.style.cssText = `overflow:auto;max-height:${MOST_PIXELS}px;max-width:100%`;
    container.replaceChildren(this.box);
    this.update(chart);
  }

  update(chart, context = this.context) {
    Object.assign(this, { chart, context });
    this.box.setAttribute("aria-label", chart.title || "table");
    const ink = inks(this.context.theme);
    const table = document.createElement("table");
    table.style.cssText = `border-collapse:collapse;width:100%;font-size:12.5px;font-variant-numeric:tabular-nums;color:${ink.text}`;
    table.append(this.head(ink), this.body(ink));
    this.box.replaceChildren(table);
  }

  head(ink) {
    const row = document.createElement("tr");
    this.chart.table.columns.forEach((name, at) => {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.append(this.sorter(name, at));
      if (this.sort?.at === at) cell.ariaSort = this.sort.down ? "descending" : "ascending";
      const numeric = this.chart.table.cells.some((line) => said(line[at]).numeric);
      cell.style.cssText =
        `position:sticky;top:0;background:${ink.paper};color:${ink.muted};font-weight:600;padding:5px 10px;` +
        `text-align:${numeric ? "right" : "left"};box-shadow:inset 0 -1px ${ink.line};white-space:nowrap`;
      row.append(cell);
    });
    const head = document.createElement("thead");
    head.append(row);
    return head;
  }

  /** A column's title, which sorts by it: down, up, and as it came. */
  sorter(name, at) {
    const button = document.createElement("button");
    const mark = this.sort?.at === at ? (this.sort.down ? " ▼" : " ▲") : "";
    Object.assign(button, { type: "button", textContent: name + mark, title: `Sort by ${name}` });
    button.style.cssText = "all:unset;cursor:pointer;font:inherit;color:inherit";
    button.className = "sorter";
    button.addEventListener("click", () => {
      const next = this.sort?.at !== at ? { at, down: true } : this.sort.down ? { at, down: false } : null;
      this.sort = next;
      this.update(this.chart);
      this.box.querySelectorAll(".sorter")[at]?.focus();
    });
    return button;
  }

  /** Rows in the order that was asked for; what is missing comes last. */
  sorted() {
    const { cells } = this.chart.table;
    if (!this.sort) return cells;
    const { at, down } = this.sort;
    const value = (line) => number(line[at]) ?? line[at];
    return [...cells].sort((one, other) => {
      const [a, b] = [value(one), value(other)];
      const [noA, noB] = [a, b].map((each) => each === null || each === undefined || Number.isNaN(each));
      if (noA || noB) return noA - noB;
      const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
      return down ? -order : order;
    });
  }

  body(ink) {
    const body = document.createElement("tbody");
    for (const line of this.sorted()) {
      const row = document.createElement("tr");
      line.forEach((content) => {
        const { text, numeric } = said(content);
        const cell = document.createElement("td");
        cell.textContent = text;
        if (numeric) cell.title = String(content);
        cell.style.cssText =
          `padding:4px 10px;border-bottom:1px solid ${ink.grid};white-space:${text.length < 40 ? "nowrap" : "normal"};` +
          `text-align:${numeric ? "right" : "left"}`;
        row.append(cell);
      });
      body.append(row);
    }
    return body;
  }

  append(chart) {
    this.update({ ...this.chart, ...chart });
  }

  look(context) {
    const other = context.theme !== this.context.theme;
    this.context = context;
    if (other) this.update(this.chart);
  }

  resize() {}
  hover() {}
  zoom() {}
  get drawn() {
    return Promise.resolve();
  }

  csv() {
    return csvOf(this.chart, {});
  }

  /** The table painted, so that it can be pasted where only pictures can. */
  png() {
    const { columns, cells } = this.chart.table;
    const rows = [columns.map((name) => ({ text: name, numeric: false })), ...cells.map((line) => line.map(said))];
    const canvas = document.createElement("canvas");
    const brush = canvas.getContext("2d");
    const font = `13px ${FONT}`;
    brush.font = font;
    const widths = columns.map((_, at) => 20 + Math.max(...rows.map((row) => brush.measureText(row[at]?.text ?? "").width)));
    const size = { width: widths.reduce((sum, each) => sum + each, 0), height: rows.length * 24 };
    Object.assign(canvas, { width: size.width * 2, height: size.height * 2 });
    brush.scale(2, 2);
    paint(brush, rows, widths, size, inks(this.context.theme), font);
    return new Promise((done) => canvas.toBlob(done, "image/png"));
  }

  /** The same as text that can be marked and set in type. */
  svg() {
    const { columns, cells } = this.chart.table;
    const rows = [columns.map((name) => ({ text: name, numeric: false })), ...cells.map((line) => line.map(said))];
    const brush = document.createElement("canvas").getContext("2d");
    brush.font = `13px ${FONT}`;
    const widths = columns.map((_, at) => 20 + Math.max(...rows.map((row) => brush.measureText(row[at]?.text ?? "").width)));
    return Promise.resolve(svgOf(rows, widths, inks(this.context.theme)));
  }

  destroy() {
    this.box.remove();
  }
}

/** Rows of cells as an SVG file. */
function svgOf(rows, widths, ink) {
  const size = { width: widths.reduce((sum, each) => sum + each, 0), height: rows.length * 24 };
  const svg = made("svg", { ...size, viewBox: `0 0 ${size.width} ${size.height}`, "font-family": FONT, "font-size": 13 });
  svg.append(made("rect", { ...size, fill: ink.paper }));
  rows.forEach((row, line) => {
    let left = 0;
    row.forEach(({ text, numeric }, at) => {
      const place = { x: numeric ? left + widths[at] - 10 : left + 10, y: line * 24 + 16, "text-anchor": numeric ? "end" : "start" };
      svg.append(made("text", { ...place, fill: line ? ink.text : ink.muted }, text));
      left += widths[at];
    });
  });
  return fileOf(svg);
}

function paint(brush, rows, widths, size, ink, font) {
  Object.assign(brush, { fillStyle: ink.paper, font });
  brush.fillRect(0, 0, size.width, size.height);
  rows.forEach((row, line) => {
    let left = 0;
    row.forEach(({ text, numeric }, at) => {
      Object.assign(brush, { fillStyle: line ? ink.text : ink.muted, textAlign: numeric ? "right" : "left" });
      brush.fillText(text, numeric ? left + widths[at] - 10 : left + 10, line * 24 + 16);
      left += widths[at];
    });
  });
}
