/** Heat maps: cells with a colour, with NaN, zero and missing told apart. */
import { logTicks } from "./axes.js";
import { extent, finite } from "./numbers.js";
import { base } from "./frame.js";
import { colourScale, inks, oddColours } from "./palette.js";
import { escaped, shortened, written } from "./text.js";

/**
 * @typedef {Object} Heat
 * @property {(number | string)[]} x @property {string[]} rows names, the first on top
 * @property {(number | null)[][]} cells @property {string[][]} says what hovering says of each cell
 * @property {boolean} log @property {"sequential" | "diverging" | "health"} colours
 * @property {number | null} [low] @property {number | null} [high] ends of the scale
 * @property {string} title of the colour bar @property {number} [gap] between cells @property {boolean} [written]
 */

/** The traces of a heat map. @param {Heat} heat @param {"light" | "dark"} theme */
export function heatTraces(heat, theme) {
  const { cells, log } = heat;
  const on = (value) => finite(value) && (!log || value > 0);
  const z = cells.map((row) => row.map((value) => (on(value) ? (log ? Math.log10(value) : value) : null)));
  const [zmin, zmax] = ends(heat, z);
  const common = { type: "heatmap", x: heat.x, y: heat.rows.map((_, at) => at), xgap: heat.gap ?? 0, ygap: heat.gap ?? 0, hoverongaps: false };
  const told = { hovertext: heat.says, hovertemplate: "%{hovertext}<extra></extra>" };
  const name = heat.written ? { ...told, text: true } : told;
  const main = {
    ...common, ...told, z, zmin, zmax, colorscale: colourScale(heat.colours, theme), colorbar: colourBar(heat, zmin, zmax, theme),
    customdata: cells,
  };
  if (heat.written)
    Object.assign(main, { text: cells.map((row) => row.map((value) => (on(value) ? written(value, 3) : ""))), texttemplate: "%{text}", textfont: { size: 11 } });
  const odd = oddColours(theme);
  return [
    main,
    ...mask(cells, (value) => typeof value === "number" && !Number.isFinite(value), odd.broken, "NaN or Inf", common, name),
    ...mask(cells, (value) => finite(value) && !on(value), odd.none, "zero or negative", common, name),
  ];
}

/** Cells that the scale has no colour for, in one of their own, with a word in the legend. */
function mask(cells, test, colour, name, common, told) {
  if (!cells.some((row) => row.some(test))) return [];
  const z = cells.map((row) => row.map((value) => (test(value) ? 1 : null)));
  const one = { ...common, ...told, z, zmin: 0, zmax: 1, showscale: false, meta: name, colorscale: [[0, colour], [1, colour]] };
  const marker = { symbol: "square", size: 10, color: colour };
  const key = { type: "scatter", x: [null], y: [null], mode: "markers", name, showlegend: true, hoverinfo: "skip", marker };
  const text = () => z.map((row, at) => row.map((on, column) => (on ? written(cells[at][column]) : "")));
  if (told.text) Object.assign(one, { text: text(), texttemplate: "%{text}", textfont: { size: 11 } });
  return [one, key];
}

function ends(heat, z) {
  if (heat.colours === "health") return [heat.low ?? 0, heat.high ?? 1];
  const found = extent(z) ?? [0, 1];
  const fixed = (end, otherwise) => (!finite(end) || (heat.log && end <= 0) ? otherwise : heat.log ? Math.log10(end) : end);
  let [low, high] = [fixed(heat.low, found[0]), fixed(heat.high, found[1])];
  if (heat.colours === "diverging") high = Math.max(Math.abs(low), Math.abs(high)) || 1, low = -high;
  return low === high ? [low - (Math.abs(low) * 0.05 || 0.5), high + (Math.abs(high) * 0.05 || 0.5)] : [low, high];
}

function colourBar(heat, low, high, theme) {
  const { muted } = inks(theme);
  return {
    thickness: 10, outlinewidth: 0, len: 1, x: 1.01, xpad: 4, ypad: 0, ticklen: 3, tickcolor: muted, tickfont: { size: 10, color: muted },
    title: { text: escaped(heat.title), side: "right", font: { size: 11, color: muted } }, ...(heat.log ? barTicks(low, high) : {}),
  };
}

function barTicks(low, high) {
  const ticks = logTicks(10 ** low, 10 ** high);
  const inside = ticks.tickvals.map((value) => Math.log10(value)).map((at, place) => [at, ticks.ticktext[place]]);
  const shown = inside.filter(([at]) => at >= low - 1e-9 && at <= high + 1e-9);
  return { tickmode: "array", tickvals: shown.map(([at]) => at), ticktext: shown.map(([, text]) => text) };
}

/** Words for the cells that have a colour of their own. @param {any[]} traces */
export function heatLegend(traces) {
  const keys = traces.filter((trace) => trace.showlegend);
  return keys.map(({ name, marker }) => ({ group: name, name, colour: marker.color, shape: "square", still: true }));
}

/** The room a row name may take, and the names cut to it. @param {string[]} rows @param {number} width of the chart */
export function rowNames(rows, width) {
  const most = Math.max(8, Math.floor(Math.min(width * 0.34, 260) / 6.4));
  const names = rows.map((name) => shortened(name, most));
  return { names, room: Math.max(0, ...names.map((name) => [...name].length)) * 6.4 + 14 };
}

/** The layout of a heat map: rows from the top, as many names as there is room for; `more` says more of its margins. */
export function heatLayout(rows, theme, state, xaxis, more = {}) {
  const { names, room } = rowNames(rows, state.width);
  const layout = base(theme);
  const margin = { ...layout.margin, l: room, r: 12, ...more };
  const step = Math.max(1, Math.ceil((rows.length * 12) / Math.max(60, state.height - margin.t - margin.b)));
  const shown = rows.map((_, at) => at).filter((at) => at % step === 0);
  const ink = inks(theme);
  return {
    ...layout, margin, hovermode: "closest", plot_bgcolor: ink.none, xaxis,
    yaxis: {
      range: [rows.length - 0.5, -0.5], fixedrange: true, tickmode: "array", tickvals: shown, ticktext: shown.map((at) => escaped(names[at])),
      tickfont: { size: 11, color: ink.text }, showgrid: false, zeroline: false, automargin: false, ticks: "",
    },
  };
}
