/** What an axis cannot show is marked at the bottom edge: NaN and Inf with a cross, zero and below on a log axis with a
 * triangle. Nothing is dropped silently. */
import { broken, finite } from "./numbers.js";
import { oddColours } from "./palette.js";
import { escaped } from "./text.js";

const MOST = 80; // marks of a line; neighbours are told together beyond that

/** The marks of one line. @param {any} each values, x and the line @param {any} common what its traces share @param {any} how */
export function edgeTraces(each, common, how) {
  const { steps, nans } = each.line.points;
  const odd = new Set(nans ?? []);
  const bad = steps.flatMap((step, at) => (odd.has(step) || broken(each.values[at]) ? [at] : []));
  const low = how.log ? each.values.flatMap((value, at) => (finite(value) && value <= 0 ? [at] : [])) : [];
  const colour = oddColours(how.theme).broken;
  return [
    ...marks(each, bad, common, how, { word: "NaN or Inf", symbol: "x", height: 0.025, uid: "nan", colour }),
    ...marks(each, low, common, how, { word: "zero or negative", symbol: "triangle-down", height: 0.025, uid: "zero", colour: how.pen.colour }),
  ];
}

function marks(each, at, common, how, kind) {
  if (!at.length) return [];
  const groups = together(at, MOST);
  const name = how.single ? "" : ` · ${escaped(how.name)}`;
  return [
    {
      ...common, uid: `${common.uid}${kind.uid}`, hoverinfo: "text", mode: "markers", yaxis: "y2", cliponaxis: false,
      x: groups.map((group) => each.x[group[0]]), y: groups.map(() => kind.height),
      hovertext: groups.map((group) => words(group, each.line.points.steps, kind.word) + name),
      marker: { symbol: kind.symbol, color: kind.colour, size: 7, line: { width: 0 } }, meta: kind.uid,
    },
  ];
}

function words(group, steps, word) {
  const [first, last] = [steps[group[0]], steps[group[group.length - 1]]];
  return first === last ? `${word} at step ${first}` : `${word} at ${group.length} points, steps ${first} to ${last}`;
}

/** Places in at most so many groups of neighbours. */
function together(at, most) {
  const size = Math.ceil(at.length / most);
  const groups = [];
  for (let from = 0; from < at.length; from += size) groups.push(at.slice(from, from + size));
  return groups;
}
