/** Axes: what x is, how its numbers are drawn and read back, and ticks that people can read. */
import { inks } from "./palette.js";
import { duration, escaped, written } from "./text.js";
import { finite, number } from "./numbers.js";

const TITLES = { step: "step", wall: "time", relative: "time since start", env_steps: "environment steps", rollout: "rollout", epoch: "epoch" };
const METRIC = "metric:";
const STRIDES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
const TICKS = 6;

/** How x is drawn. `drawn` takes a number as the server gives it (seconds, steps) to Plotly's, `read` takes it back.
 * @param {{x: string, logx: boolean}} look */
export function xAxis(look) {
  if (look.x === "wall") {
    // Plotly shows dates in UTC; people want their own clock.
    const shift = -new Date().getTimezoneOffset() * 60_000;
    return { type: "date", drawn: (x) => x * 1000 + shift, read: (x) => (x - shift) / 1000, named: xTitle(look) };
  }
  const same = (x) => x;
  return { type: look.logx ? "log" : "linear", drawn: same, read: same, named: xTitle(look) };
}

/** @param {{x: string}} look @param {{title: string}} axis the chart's own */
export function xTitle(look, axis) {
  if (look.x === "step" && axis?.title) return axis.title;
  return look.x.startsWith(METRIC) ? look.x.slice(METRIC.length) : TITLES[look.x] ?? look.x;
}

/** Where the points of a line lie, as Plotly takes it; the same list where nothing changes. */
export function places(points, axis) {
  const spoken = points.x ?? points.steps;
  if (axis.type !== "date") return points.x ? spoken.map(number) : spoken;
  return spoken.map((x) => (finite(number(x)) ? axis.drawn(x) : null));
}

/** What all axes share. @param {"light" | "dark"} theme */
export function axisLook(theme) {
  const ink = inks(theme);
  return {
    gridcolor: ink.grid, linecolor: ink.line, zeroline: false, ticks: "outside", ticklen: 4, tickcolor: ink.line, automargin: true,
    tickfont: { size: 11, color: ink.muted }, ticklabeloverflow: "allow", // whether one is cut off is costly to find out
  };
}

/** An axis title, small. */
export function titled(text, theme, standoff) {
  return { text: escaped(text), font: { size: 11, color: inks(theme).muted }, standoff };
}

/** Where a log axis has ticks and what they say: decades, as many as fit; within less than two of them also 2 and 5 times
 * those, and within a fraction of one round numbers. @param {number} low @param {number} high both above zero */
export function logTicks(low, high, fit = TICKS) {
  const span = Math.log10(high / low);
  if (span < 0.6) return worded(roundNumbers(low, high), false);
  const each = Math.max(1, Math.ceil(span / fit));
  const values = [];
  for (let power = Math.floor(Math.log10(low)) - 1; power <= Math.ceil(Math.log10(high)) + 1; power++)
    if (span < 2) values.push(...[1, 2, 5].map((times) => Number(`${times}e${power}`)));
    else if (power % each === 0) values.push(Number(`1e${power}`));
  return worded(values, span >= 2 && (low < 1e-3 || high > 1e4));
}

function roundNumbers(low, high) {
  const rough = (high - low) / 3 || low;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const stride = [1, 2, 5, 10].map((times) => times * unit).find((each) => each >= rough * 0.999);
  const values = [];
  for (let count = Math.max(1, Math.floor(low / stride) - 1); count <= Math.ceil(high / stride) + 1; count++)
    values.push(Number((count * stride).toPrecision(12)));
  return values;
}

function worded(values, powers) {
  const power = (value) => `10<sup>${Math.round(Math.log10(value))}</sup>`.replace("-", "−");
  const ticktext = values.map((value) => (powers && value !== 1 && value !== 10 ? power(value) : written(value, 3)));
  return { tickmode: "array", tickvals: values, ticktext };
}

/** Ticks of a log axis. @param {[number, number] | null} reach smallest and largest positive number */
export function decades(reach) {
  if (!reach) return {};
  const wide = reach[1] / reach[0] >= 100;
  return { ...logTicks(...reach), ...(wide ? { minor: { dtick: "D1", ticks: "outside", ticklen: 2, showgrid: false } } : {}) };
}

/** The range of x: always said, never left to Plotly, whose own does not come back reliably after a zoom.
 * @param {[number, number] | null} ends @param {string} type @param {number} pad share of it to leave free on both sides */
export function xRange(ends, type, pad = 0) {
  if (!ends) return { autorange: true };
  const onAxis = (end) => (type === "log" ? Math.log10(Math.max(end, 1e-12)) : end);
  const [low, high] = ends.map(onAxis);
  const free = high > low ? (high - low) * pad : type === "date" ? 30_000 : 0.5;
  return { autorange: false, range: [low - free, high + free] };
}

/** Ticks for seconds, in seconds, minutes, hours and days. @param {[number, number] | null} reach */
export function clockTicks(reach) {
  if (!reach || !(reach[1] > reach[0])) return {};
  const span = reach[1] - reach[0];
  if (span < 4) return { ticksuffix: "s" };
  const days = 86400 * 10 ** Math.ceil(Math.log10(span / TICKS / 86400));
  const stride = STRIDES.find((each) => span / each <= TICKS) ?? days;
  const tickvals = [];
  for (let at = Math.ceil(reach[0] / stride) * stride; at <= reach[1]; at += stride) tickvals.push(at);
  return { tickmode: "array", tickvals, ticktext: tickvals.map((at) => (at === 0 ? "0" : duration(at))) };
}

/** The ends of a value axis where the chart fixes them, unless a number lies beyond: nothing is cut off silently.
 * @param {{low: number | null, high: number | null}} axis @param {[number, number] | null} reach @param {boolean} log */
export function fixedEnds(axis, reach, log) {
  const keeps = (end, sign) => finite(end) && (!log || end > 0) && !(reach && sign * reach[sign > 0 ? 1 : 0] > sign * end);
  const margin = finite(axis?.low) && finite(axis?.high) && !log ? (axis.high - axis.low) * 0.02 : 0;
  const low = keeps(axis?.low, -1) ? (log ? Math.log10(axis.low) : axis.low - margin) : null;
  const high = keeps(axis?.high, 1) ? (log ? Math.log10(axis.high) : axis.high + margin) : null;
  if (low === null && high === null) return {};
  return { range: [low, high], autorange: low === null ? "min" : high === null ? "max" : false };
}
