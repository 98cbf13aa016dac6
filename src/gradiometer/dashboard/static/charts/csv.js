/** Charts as comma-separated values: every number that is drawn, names quoted. */
import { numbers } from "./numbers.js";
import { smoothed } from "./smooth.js";

/** @param {unknown} value */
function field(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return Number.isNaN(value) ? "NaN" : String(value);
  return `"${String(value).replaceAll('"', '""')}"`;
}

function text(head, rows) {
  return [head.map(field), ...rows.map((row) => row.map(field))].map((row) => row.join(",")).join("\r\n") + "\r\n";
}

/** @param {any} chart @param {{smooth?: number}} look @returns {string} */
export function csvOf(chart, look = {}) {
  return WRITERS[chart.kind](chart, look);
}

const SPOKEN = new Set(["NaN", "Infinity", "-Infinity"]);
const said = (value) => (SPOKEN.has(value) ? Number(value) : value);

function linesCsv(chart, look) {
  const weight = chart.kind === "lines" ? look.smooth ?? 0 : 0;
  const head = ["run", "series", "label", "step", "x", "value", "low", "high", ...(weight > 0 ? ["smoothed"] : [])];
  const rows = chart.lines.flatMap(({ run, name, label, points }) => {
    const soft = weight > 0 ? smoothed(numbers(points.values), weight) : null;
    return points.steps.map((step, at) => {
      const measured = [points.x ? points.x[at] : step, points.values[at], points.low?.[at], points.high?.[at]];
      return [run, name, label, step, ...measured.map(said), ...(soft ? [soft[at]] : [])];
    });
  });
  return text(head, rows);
}

function barsCsv(chart) {
  const rows = chart.bars.flatMap((bars) =>
    bars.categories.map((category, at) => [
      bars.label, category, ...[bars.values, bars.low, bars.high].map((list) => said(list?.[at])), bars.notes?.[at] ?? null,
    ]),
  );
  return text(["label", "category", "value", "low", "high", "note"], rows);
}

function marksCsv(chart) {
  const rows = chart.marks.flatMap((marks) =>
    marks.x.map((x, at) => [
      marks.run, marks.label, ...[marks.x, marks.y, marks.low, marks.high].map((list) => said(list?.[at])), marks.notes?.[at] ?? null,
    ]),
  );
  return text(["run", "label", "x", "y", "low", "high", "note"], rows);
}

function matrixCsv({ matrix }) {
  return text(["", ...matrix.columns], matrix.rows.map((row, at) => [row, ...matrix.cells[at].map(said)]));
}

function tableCsv({ table }) {
  return text(table.columns, table.cells.map((row) => row.map(said)));
}

const WRITERS = { lines: linesCsv, map: linesCsv, bars: barsCsv, marks: marksCsv, matrix: matrixCsv, table: tableCsv };
