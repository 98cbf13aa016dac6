/** The hover line of the other charts: drawn over the plot, so that nothing has to be redrawn. */
import { inks } from "./palette.js";
import { shortened } from "./text.js";

const MOST = 7;

/** Where on the page's x a number is drawn, in pixels from the chart's left; null outside. */
export function pixelAt(axis, x) {
  const at = axis.l2p(axis.type === "log" ? Math.log10(x) : x);
  return Number.isFinite(at) && at >= 0 && at <= axis._length ? at + axis._offset : null;
}

/** The number at so many pixels; null outside. */
export function numberAt(axis, pixel) {
  const at = pixel - axis._offset;
  if (at < 0 || at > axis._length) return null;
  return axis.type === "log" ? 10 ** axis.p2l(at) : axis.p2l(at);
}

export class Cursor {
  /** @param {HTMLElement} frame what it lies in */
  constructor(frame) {
    this.rule = element("position:absolute;width:0;pointer-events:none;display:none");
    this.box = element(
      "position:absolute;pointer-events:none;display:none;padding:3px 6px;border-radius:4px;" +
        "font-size:11px;line-height:15px;white-space:nowrap;font-variant-numeric:tabular-nums",
    );
    frame.append(this.rule, this.box);
  }

  /** @param {any} full Plotly's layout @param {number} pixel @param {{name: string, colour: string, value: string}[]} entries */
  show(full, pixel, entries, theme) {
    const ink = inks(theme);
    const { t, h } = full._size;
    Object.assign(this.rule.style, { display: "block", left: `${pixel}px`, top: `${t}px`, height: `${h}px`, borderLeft: `1px dotted ${ink.muted}` });
    if (!entries.length) return void (this.box.style.display = "none");
    this.box.replaceChildren(...entries.slice(0, MOST).map(entry), ...(entries.length > MOST ? [note(entries.length - MOST)] : []));
    const left = pixel > full.width / 2;
    Object.assign(this.box.style, {
      display: "block", top: `${t + 2}px`, left: left ? "" : `${pixel + 6}px`, right: left ? `${full.width - pixel + 6}px` : "",
      background: ink.paper, color: ink.text, border: `1px solid ${ink.line}`, opacity: "0.93",
    });
  }

  hide() {
    this.rule.style.display = this.box.style.display = "none";
  }
}

function element(style) {
  const made = document.createElement("div");
  made.style.cssText = style;
  made.setAttribute("aria-hidden", "true");
  return made;
}

function entry({ name, colour, value }) {
  const row = document.createElement("div");
  const dot = element(`display:inline-block;width:8px;height:8px;border-radius:50%;margin-right:5px;background:${colour}`);
  row.append(dot, name ? `${shortened(name, 28)}  ${value}` : value);
  return row;
}

function note(count) {
  const row = document.createElement("div");
  row.textContent = `and ${count} more`;
  return row;
}
