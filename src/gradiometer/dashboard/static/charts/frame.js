/** What stands around the numbers: margins, legend, levels and spans. */
import { finite } from "./numbers.js";
import { faint, inks, severityColour } from "./palette.js";
import { escaped } from "./text.js";

export const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";
const LABELLED_SPANS = 3;
const LABEL_SHARE = 0.3; // of the axis: about the length of the longest label
const LEFT = 54;

/** Of every chart. @param {"light" | "dark"} theme */
export function base(theme) {
  const ink = inks(theme);
  return {
    margin: { l: 46, r: 12, t: 8, b: 36, pad: 0 }, showlegend: false, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: FONT, size: 11, color: ink.text }, dragmode: coarse() ? false : "zoom",
    hoverlabel: { bgcolor: ink.paper, bordercolor: ink.line, font: { family: FONT, size: 11, color: ink.text }, namelength: 28 },
    hoverdistance: 30, spikedistance: -1,
  };
}

/** Margins that Plotly need not find out by drawing twice; `Plot` sees to it that what stands left has room.
 * @param {{top?: number, dated?: boolean, left?: number, right?: number}} of */
export function margins({ top = 8, dated = false, left = 0, right = 16 }) {
  return { l: Math.max(left, LEFT), r: right, t: top, b: dated ? 48 : 36, pad: 0, autoexpand: false };
}

/** On a touch screen a finger scrolls the page. */
function coarse() {
  return globalThis.matchMedia?.("(pointer: coarse)").matches ?? false;
}

/** Plotly's legend for a picture without a page around it, and the room it needs.
 * @param {{name: string}[]} entries @param {number} width of the picture */
export function pictureLegend(entries, width) {
  if (!entries.length) return { room: 0, layout: { showlegend: false } };
  const entry = Math.min(Math.max(...entries.map(({ name }) => [...name].length)), 44) * 6.6 + 16;
  const columns = Math.max(1, Math.floor((width - 60) / (entry + 46)));
  const legend = {
    orientation: "h", x: 0, xref: "container", xanchor: "left", y: 0, yref: "container", yanchor: "bottom",
    tracegroupgap: 0, entrywidth: entry, entrywidthmode: "pixels", maxheight: 10_000, bgcolor: "rgba(0,0,0,0)",
  };
  return { room: Math.ceil(entries.length / columns) * 20 + 12, layout: { showlegend: true, legend } };
}

/** Levels, spans and a word about points that are not on the axis, as Plotly's shapes and annotations. Words stand on a ground
 * of their own: those of spans above the plot, those of levels at its right end, so that no line runs through them.
 * @param {any} chart @param {any} context
 * @param {{log: boolean, logx?: boolean, reach: number[] | null, ends: number[] | null, missing: string}} how */
export function around(chart, context, { log, logx = false, reach, ends, missing }) {
  const { theme } = context;
  const spans = context.look.x === "step" ? (chart.spans ?? []) : [];
  const levels = (chart.levels ?? []).filter((level) => finite(level.value) && (!log || level.value > 0));
  const told = spans.length > LABELLED_SPANS ? [] : apart(spans.flatMap((span) => spanWords(span, theme, ends, logx)), ends);
  return {
    shapes: [...spans.map((span) => spanShape(span, theme, ends)), ...levels.map((level) => levelShape(level, theme))],
    annotations: [...levels.map((level) => levelWords(level, theme, reach, log, chart.y?.low)), ...told, ...(missing ? [aside(missing, theme)] : [])],
    ...(told.length ? { margin: { ...base(theme).margin, t: 22 } } : {}),
  };
}

function lastOf(span, ends) {
  return span.last ?? Math.max(ends?.[1] ?? span.first, span.first);
}

function spanShape(span, theme, ends) {
  const colour = severityColour(span.severity ?? "info", theme);
  const last = lastOf(span, ends);
  return {
    type: "rect", xref: "x", yref: "paper", x0: span.first, x1: last, y0: 0, y1: 1, layer: "below", fillcolor: faint(colour, 0.1),
    line: { width: span.first === last ? 1.5 : 0, color: faint(colour, 0.6) },
  };
}

/** Above the part of the span that is in sight, and no farther to the right than there is room. */
function spanWords(span, theme, ends, logx) {
  const [low, high] = ends ?? [span.first, lastOf(span, ends)];
  if (span.first > high || lastOf(span, ends) < low) return [];
  const at = Math.max(span.first, low);
  const late = at - low > 0.6 * (high - low);
  const x = late ? Math.min(lastOf(span, ends), high) : at;
  const onAxis = logx ? Math.log10(Math.max(x, 1e-12)) : x; // annotations take logarithms where shapes take numbers
  return [words(span.label, severityColour(span.severity ?? "info", theme), { xref: "x", x: onAxis, xanchor: late ? "right" : "left", yref: "paper", y: 1, yanchor: "bottom" })];
}

/** Words that would lie on each other stand one after the other. */
function apart(told, ends) {
  const near = ends ? LABEL_SHARE * (ends[1] - ends[0]) : 0;
  const kept = [];
  for (const each of [...told].sort((a, b) => a.x - b.x)) {
    const before = kept.at(-1);
    if (before && before.xanchor === each.xanchor && Math.abs(each.x - before.x) <= near) before.text += ` · ${each.text}`;
    else kept.push(each);
  }
  return kept;
}

function levelShape(level, theme) {
  return { type: "line", xref: "paper", yref: "y", x0: 0, x1: 1, y0: level.value, y1: level.value, line: { color: inks(theme).muted, width: 1, dash: "dash" } };
}

/** Above its line, unless that is the top of the chart, or all numbers are above and there is room below. */
function levelWords(level, theme, reach, log, floor) {
  const y = log ? Math.log10(level.value) : level.value;
  const below = reach && (level.value >= reach[1] || (level.value < reach[0] && finite(floor) && floor < level.value));
  const at = { xref: "paper", x: 1, xanchor: "right", yref: "y", y, yanchor: below ? "top" : "bottom" };
  return { ...words(level.label, inks(theme).muted, at), bgcolor: faint(inks(theme).paper, 0.82) };
}

function words(text, color, at) {
  return { text: escaped(text), showarrow: false, borderpad: 1, font: { size: 10, color }, ...at };
}

function aside(text, theme) {
  return words(text, inks(theme).muted, { xref: "paper", yref: "paper", x: 0, y: 0, xanchor: "left", yanchor: "bottom" });
}
