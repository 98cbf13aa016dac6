/** Onsets: when things began, in order, in a lane each below the lines. */
import { faint, inks, severityColour } from "./palette.js";
import { escaped } from "./text.js";

const LANE = 22;
const GAP = 8; // between the curve and the first lane
const LETTER = 6.2; // how wide a letter of 11 pixels is, about

/** Those that can be placed: on an axis of steps. @param {any} chart @param {{x: string}} look */
export function onsetsOf(chart, look) {
  return look.x === "step" ? (chart.onsets ?? []) : [];
}

/** The room that lanes take below a curve, in pixels. */
export function laneRoom(onsets) {
  return onsets.length ? onsets.length * LANE + GAP : 0;
}

/** Bars, marks through the curve and words, as Plotly's shapes and annotations; and where the curve ends.
 * @param {any[]} onsets @param {{theme: "light" | "dark", ends: number[] | null, logx: boolean, width: number, height: number}} how
 * `width` and `height` are those of the plot, lanes and all */
export function lanes(onsets, { theme, ends, logx, width, height }) {
  if (!onsets.length || !ends) return { shapes: [], annotations: [], floor: 0 };
  const floor = Math.min(0.7, laneRoom(onsets) / Math.max(height, 1));
  const lane = (floor * height - GAP) / onsets.length / height;
  const shapes = [];
  const annotations = [];
  onsets.forEach((onset, at) => {
    const top = floor - GAP / height - at * lane;
    const colour = severityColour(onset.severity, theme);
    const begin = Math.max(onset.step, ends[0]);
    if (onset.step > ends[1]) return;
    const bar = { type: "rect", xref: "x", yref: "paper", x0: begin, x1: ends[1], y0: top - 0.82 * lane, y1: top, line: { width: 0 } };
    shapes.push({ ...bar, layer: "below", fillcolor: faint(colour, 0.15) });
    if (onset.step >= ends[0]) {
      const mark = { type: "line", xref: "x", yref: "paper", x0: begin, x1: begin };
      shapes.push({ ...mark, y0: bar.y0, y1: bar.y1, line: { color: colour, width: 3 } });
      shapes.push({ ...mark, y0: floor, y1: 1, layer: "below", line: { color: faint(colour, 0.8), width: 1, dash: "dot" } });
    }
    annotations.push(words(onset, at, { theme, ends, logx, width, begin, y: top - 0.41 * lane, colour }));
  });
  return { shapes, annotations, floor };
}

/** On the bar, or before it where the bar is too short. */
function words(onset, at, { theme, ends, logx, width, begin, y, colour }) {
  const step = `step ${onset.step.toLocaleString("en")}`;
  const scaled = (x) => (logx ? Math.log10(Math.max(x, 1e-12)) : x);
  const share = (scaled(ends[1]) - scaled(begin)) / (scaled(ends[1]) - scaled(ends[0]) || 1);
  const fits = (words) => share * width >= words.length * LETTER + 10;
  const [short, long] = [`${at + 1}  ${onset.label} · ${step}`, `${at + 1}  ${step} · ${onset.note} (${onset.label})`];
  const text = onset.note && fits(long) ? long : short;
  const before = !fits(text);
  return {
    text: escaped(text), hovertext: escaped(onset.note ?? ""), showarrow: false, captureevents: Boolean(onset.note), borderpad: 1,
    font: { size: 11, color: colour }, xref: "x", x: scaled(begin), xanchor: before ? "right" : "left", xshift: before ? -5 : 6, yref: "paper", y, yanchor: "middle",
    bgcolor: before ? faint(inks(theme).paper, 0.7) : "rgba(0,0,0,0)",
  };
}
