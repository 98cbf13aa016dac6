/** Charts of kind `matrix`: numbers by row and column. */
import { axisLook, titled } from "./axes.js";
import { heatLayout, heatLegend, heatTraces } from "./heat.js";
import { ascending, numbers } from "./numbers.js";
import { escaped, shortened, written } from "./text.js";

/** @type {import("./plot.js").Kind} */
export const MATRIX = { figure, height };

function height({ matrix }) {
  const rows = matrix.rows.length;
  return Math.round(Math.max(150, Math.min(rows * (matrix.written ? 30 : 20), 180 + rows * 5, 620)) + 64);
}

function figure(chart, context, state) {
  const { matrix } = chart;
  const { theme } = context;
  const numeric = matrix.columns.length > 1 && ascending(matrix.columns);
  const cells = matrix.cells.map(numbers);
  const heat = {
    x: numeric ? matrix.columns : matrix.columns.map((_, at) => at), rows: matrix.rows, cells, says: saying(chart, cells),
    log: matrix.scale === "log", colours: matrix.colours, low: matrix.low, high: matrix.high, title: "",
    gap: matrix.rows.length * matrix.columns.length <= 400 ? 2 : 0, written: matrix.written,
  };
  const data = heatTraces(heat, theme);
  const xaxis = { ...axisLook(theme), showgrid: false, title: titled(chart.x?.title ?? "", theme, 4), fixedrange: true };
  if (numeric) xaxis.type = "linear";
  else Object.assign(xaxis, named(matrix.columns, state.width));
  const layout = heatLayout(matrix.rows, theme, state, xaxis);
  layout.yaxis.title = titled(chart.y?.title ?? "", theme, 4);
  if (chart.y?.title) layout.margin = { ...layout.margin, l: layout.margin.l + 16 };
  return { data, legend: heatLegend(data), layout: { ...layout, dragmode: false }, key: (point) => matrix.rows[Math.round(point.y)] };
}

function named(columns, width) {
  const most = Math.max(8, Math.floor(width / columns.length / 4));
  return {
    type: "linear", range: [-0.5, columns.length - 0.5], tickmode: "array", tickvals: columns.map((_, at) => at), ticks: "",
    ticktext: columns.map((name) => escaped(shortened(String(name), Math.min(most, 24)))),
  };
}

function saying({ matrix }, cells) {
  return cells.map((row, at) =>
    row.map((value, column) => {
      if (value === null) return "";
      const note = matrix.notes?.[at]?.[column];
      const head = `${escaped(matrix.rows[at])} × ${escaped(matrix.columns[column])}: <b>${written(value)}</b>`;
      return note ? `${head}<br>${escaped(note)}` : head;
    }),
  );
}
