/** Charts of kind `map`: a row for each line, a column for each step. */
import { grid } from "./align.js";
import { axisLook, clockTicks, decades, titled, xAxis, xRange, xTitle } from "./axes.js";
import { heatLayout, heatLegend, heatTraces } from "./heat.js";
import { lineNames } from "./lines.js";
import { ascending, extent, finite, number } from "./numbers.js";
import { escaped, written } from "./text.js";

const STEP = { x: "step", logx: false };

/** @type {import("./plot.js").Kind} */
export const MAP = { figure, height, synced: true };

function height(chart) {
  const rows = chart.lines.length;
  return Math.round(Math.max(130, Math.min(rows * 18, 60 + rows * 13, 620)) + 50);
}

function figure(chart, context, state) {
  const { theme } = context;
  const table = grid(chart.lines, chart.reduce ?? "max");
  const { look, axis, x } = columns(chart, table.steps, context.look);
  const names = lineNames(chart.lines, context.runs);
  const says = table.cells.map((row, at) => row.map((value, column) => saying(names[at], table.where[at][column], value)));
  const heat = {
    x, rows: names, cells: table.cells, says, log: chart.y?.scale === "log", colours: chart.colours ?? "sequential",
    low: chart.y?.low, high: chart.y?.high, title: chart.y?.title ?? "", gap: chart.lines.length <= 40 && x.length <= 60 ? 1 : 0,
  };
  const data = heatTraces(heat, theme);
  const xaxis = { ...axisLook(theme), type: axis.type, showgrid: false, automargin: false, title: titled(xTitle(look, chart.x), theme, 4) };
  const reach = state.range?.map(axis.drawn) ?? edges(x, axis.type);
  if (axis.type === "log") Object.assign(xaxis, decades(extent([state.range ? reach : x], true)));
  if (look.x === "relative" && axis.type === "linear") Object.assign(xaxis, clockTicks(reach));
  Object.assign(xaxis, xRange(reach, axis.type));
  return { data, layout: heatLayout(names, theme, state, xaxis, { r: chart.y?.title ? 76 : 58, b: axis.type === "date" ? 48 : 36, autoexpand: false }), legend: heatLegend(data), axis, key: (point) => chart.lines[Math.round(point.y)]?.key };
}

/** From half a column before the first to half a column behind the last. */
function edges(x, type) {
  if (x.length < 2 || type === "log") return extent([x]);
  return [x[0] - (x[1] - x[0]) / 2, x.at(-1) + (x.at(-1) - x.at(-2)) / 2];
}

function saying(name, step, value) {
  if (value === null) return "";
  return `${escaped(name)}<br>step ${step}: <b>${written(value)}</b>`;
}

/** Where the columns lie: on the asked axis if every step has its place there and they stay in order, else at their steps. */
function columns(chart, steps, look) {
  const at = new Map();
  for (const { points } of chart.lines) points.x?.forEach((x, index) => at.set(points.steps[index], number(x)));
  const asked = steps.map((step) => at.get(step) ?? null);
  if (look.x !== "step" && ascending(asked) && asked.every(finite)) {
    const axis = xAxis(look);
    return { look, axis, x: asked.map(axis.drawn) };
  }
  const own = look.x === "step" ? look : STEP;
  return { look: own, axis: xAxis({ ...own, logx: own.logx && steps[0] > 0 }), x: steps };
}
