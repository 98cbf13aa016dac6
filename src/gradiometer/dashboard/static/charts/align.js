/** Rows of a map on common columns. */
import { number, nearest } from "./numbers.js";

/** @typedef {{steps: number[], values: (number | null)[], steps_at: (number | null)[][]}} Grid */

const EVEN = 0.01; // rows whose lengths differ by no more than this are buckets of the same series of steps

/** A grid of cells: `cells[row][column]`, null where the row has nothing there; `where` has the row's own step of each.
 *
 * Columns are the steps of all rows. Rows that were thinned apart have buckets that end at slightly different steps; then
 * the columns are those of the longest row, and a point goes to the nearest within half its row's stride. What lies farther
 * off has a column of its own. Nothing is filled in.
 * @param {any[]} lines @param {"max" | "min" | "mean"} reduce which number of a bucket counts
 * @returns {{steps: number[], cells: (number | null)[][], where: (number | null)[][]}} */
export function grid(lines, reduce) {
  const rows = lines.map((line) => row(line.points, reduce));
  const steps = columns(rows, lines.some((line) => line.points.low));
  const place = new Map(steps.map((step, at) => [step, at]));
  const cells = rows.map(() => new Array(steps.length).fill(null));
  const where = rows.map(() => new Array(steps.length).fill(null));
  rows.forEach((each, at) => {
    each.steps.forEach((step, index) => {
      const column = place.get(step) ?? nearest(steps, step);
      if (!counts(cells[at][column], each.values[index], reduce)) return;
      cells[at][column] = each.values[index];
      where[at][column] = step;
    });
  });
  return { steps, cells, where };
}

/** A row's numbers: of a thinned one the extremes or means as asked; a bucket with a NaN in it is NaN. */
function row(points, reduce) {
  const list = (reduce === "max" ? points.high : reduce === "min" ? points.low : null) ?? points.values;
  const nans = new Set(points.nans ?? []);
  const values = list.map((value, at) => (nans.has(points.steps[at]) ? NaN : number(value)));
  return { steps: points.steps, values };
}

function columns(rows, thinned) {
  const all = [...new Set(rows.flatMap((each) => each.steps))].sort((a, b) => a - b);
  const longest = rows.reduce((best, each) => (each.steps.length > best.length ? each.steps : best), []);
  if (all.length === longest.length) return all;
  const shortest = Math.min(...rows.map((each) => each.steps.length));
  if (!thinned && shortest < longest.length * (1 - EVEN)) return all;
  const apart = rows.flatMap((each) => strangers(each.steps, longest));
  return apart.length ? [...new Set([...longest, ...apart])].sort((a, b) => a - b) : longest;
}

/** Steps that are farther from every column than half their row's stride. */
function strangers(steps, columns) {
  if (steps === columns) return [];
  const reach = Math.max(stride(steps), stride(columns)) / 2;
  return steps.filter((step) => Math.abs(columns[nearest(columns, step)] - step) > reach);
}

function stride(steps) {
  if (steps.length < 2) return 0;
  const gaps = steps.slice(1).map((step, at) => step - steps[at]);
  return gaps.sort((a, b) => a - b)[gaps.length >> 1];
}

/** Whether a value takes the place of the one that is in its cell: NaN is never hidden. */
function counts(there, value, reduce) {
  if (value === null || Number.isNaN(there)) return false;
  if (there === null || Number.isNaN(value)) return true;
  return reduce === "max" ? value > there : reduce === "min" ? value < there : true;
}
