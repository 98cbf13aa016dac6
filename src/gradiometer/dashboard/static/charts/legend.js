/** The legend below a chart: buttons, so that the keyboard and a screen reader can use them too. In an exported picture
 * Plotly's own takes its place. */
import { inks } from "./palette.js";
import { shortened } from "./text.js";

/** @typedef {{group: string, name: string, colour: string, dash?: string, shape: "line" | "dot" | "square", still?: boolean}} Entry */

const SVG = "http://www.w3.org/2000/svg";
const DASHES = { dash: "6 4", dot: "1.5 2.5", dashdot: "6 3 1.5 3", longdash: "10 4", longdashdot: "10 3 1.5 3" };
const HINT = "Click: hide or show. Double click, or shift click: this one alone.";

export class Legend {
  /** @param {HTMLElement} container @param {(group: string, alone: boolean) => void} act */
  constructor(container, act) {
    this.act = act;
    this.box = document.createElement("div");
    this.box.className = "chart-legend";
    this.box.setAttribute("role", "group");
    this.box.style.cssText = "flex:none;display:none;flex-wrap:wrap;gap:0 4px;max-height:136px;overflow-y:auto;padding:0 4px 2px";
    container.append(this.box);
    this.key = "";
  }

  /** @param {Entry[]} entries @param {Set<string>} hidden @param {string} title of the chart @param {"light" | "dark"} theme */
  show(entries, hidden, title, theme) {
    const key = JSON.stringify([entries, title, theme]);
    if (key !== this.key) {
      this.key = key;
      this.box.style.display = entries.length ? "flex" : "none";
      this.box.setAttribute("aria-label", `Legend of ${title}`);
      this.box.replaceChildren(...entries.map((entry) => this.button(entry, inks(theme))));
    }
    for (const each of this.box.querySelectorAll("button")) {
      const off = hidden.has(each.dataset.group);
      each.setAttribute("aria-pressed", String(!off));
      each.style.opacity = off ? "0.4" : "1";
    }
  }

  button(entry, ink) {
    const made = document.createElement(entry.still ? "span" : "button");
    made.append(swatch(entry), shortened(entry.name, 44));
    made.style.cssText =
      "display:inline-flex;align-items:center;gap:6px;padding:2px 6px;border:0;border-radius:4px;" +
      `background:none;font:inherit;font-size:12px;line-height:18px;color:${ink.text}`;
    if (entry.still) return made;
    made.type = "button";
    made.dataset.group = entry.group;
    made.title = `${entry.name}\n${HINT}`;
    made.style.cursor = "pointer";
    made.addEventListener("click", (event) => this.act(entry.group, event.shiftKey));
    made.addEventListener("dblclick", () => this.act(entry.group, true));
    return made;
  }

  remove() {
    this.box.remove();
  }
}

function swatch({ colour, dash, shape }) {
  const wide = shape === "line" ? 24 : 12;
  const svg = shapeOf("svg", { width: wide, height: 12, "aria-hidden": "true" });
  svg.style.flex = "none";
  if (shape === "line") svg.append(shapeOf("path", { d: "M0 6h24", stroke: colour, "stroke-width": 2.2, "stroke-dasharray": DASHES[dash] ?? "none" }));
  else if (shape === "dot") svg.append(shapeOf("circle", { cx: 6, cy: 6, r: 4, fill: colour }));
  else svg.append(shapeOf("rect", { x: 1, y: 1, width: 10, height: 10, rx: 2, fill: colour }));
  return svg;
}

function shapeOf(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  return made;
}
