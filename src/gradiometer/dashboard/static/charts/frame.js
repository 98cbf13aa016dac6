/** What stands around the numbers: margins, legend, levels and spans. */
import { finite } from "./numbers.js";
import { faint, inks, severityColour } from "./palette.js";
import { escaped } from "./text.js";

export const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";
const LABELLED_SPANS = 3;

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

/** Levels, spans and a word about points that are not on the axis, as Plotly's shapes and annotations. */
export function around(chart, context, { log, reach, ends, left }) {
  const spans = context.look.x === "step" ? (chart.spans ?? []).map((span) => spanShape(span, chart, context.theme, ends)) : [];
  const levels = (chart.levels ?? []).filter((level) => finite(level.value) && (!log || level.value > 0));
  return {
    shapes: [...spans, ...levels.map((level) => levelShape(level, context.theme, reach))],
    annotations: left ? [aside(`${left} ${left === 1 ? "point" : "points"} at x ≤ 0 not on this axis`, context.theme)] : [],
  };
}

function spanShape(span, chart, theme, ends) {
  const colour = severityColour(span.severity ?? "info", theme);
  const last = span.last ?? Math.max(ends?.[1] ?? span.first, span.first);
  const label = chart.spans.length > LABELLED_SPANS ? {} : {
    label: { text: escaped(span.label), textposition: "top left", padding: 2, font: { size: 10, color: colour } },
  };
  return {
    type: "rect", xref: "x", yref: "paper", x0: span.first, x1: last, y0: 0, y1: 1, layer: "below", fillcolor: faint(colour, 0.1),
    line: { width: span.first === last ? 1.5 : 0, color: faint(colour, 0.6) }, ...label,
  };
}

/** A label stands above its line, unless that is the top of the chart. */
function levelShape(level, theme, reach) {
  const { muted } = inks(theme);
  return {
    type: "line", xref: "paper", yref: "y", x0: 0, x1: 1, y0: level.value, y1: level.value, line: { color: muted, width: 1, dash: "dash" },
    label: { text: escaped(level.label), textposition: "end", yanchor: reach && level.value >= reach[1] ? "top" : "bottom", padding: 2, font: { size: 10, color: muted } },
  };
}

function aside(text, theme) {
  return { text, showarrow: false, xref: "paper", yref: "paper", x: 0, y: 0, xanchor: "left", yanchor: "bottom", font: { size: 10, color: inks(theme).muted } };
}
