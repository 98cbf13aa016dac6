/** Charts of kind `bars` and `marks`: values with intervals, by category or number. */
import { axisLook, decades, fixedEnds, titled } from "./axes.js";
import { around, base } from "./frame.js";
import { broken, extent, finite, number, numbers } from "./numbers.js";
import { faint, oddColours, pens } from "./palette.js";
import { escaped, written } from "./text.js";

/** @type {import("./plot.js").Kind} */
export const BARS = { figure: barsFigure, height: () => 240 };
/** @type {import("./plot.js").Kind} */
export const MARKS = { figure: marksFigure, height: () => 250 };

/** What bars and marks have in common, with numbers translated. */
function read(item, values, categories) {
  const lists = { values: numbers(values), low: item.low && numbers(item.low), high: item.high && numbers(item.high) };
  return { ...lists, item, x: categories };
}

/** Intervals, where both ends are known or where one is. Plotly wants distances where we have ends, and draws a null, or a NaN
 * beside a number, as a cap at the value itself. */
function interval(each, colour, ends) {
  if (!each.low || !each.high) return undefined;
  const known = each.values.map((_, at) => Number(finite(each.low[at])) + Number(finite(each.high[at])));
  if (ends === 1 && !known.includes(1)) return undefined;
  const apart = (from, to) => from.map((value, at) => (known[at] === ends && finite(value) && finite(to[at]) ? Math.max(0, to[at] - value) : NaN));
  return {
    type: "data", symmetric: false, array: apart(each.values, each.high), arrayminus: apart(each.low, each.values), color: colour, thickness: 1.3,
    width: ends === 2 ? 3 : 0,
  };
}

/** A trace that cannot be seen, for the intervals with an open end: they have no caps. */
function openEnded(each, trace, colour) {
  const error_y = interval(each, colour, 1);
  if (!error_y) return [];
  return [{ ...trace, error_y, opacity: 1, mode: "markers", marker: { color: "rgba(0,0,0,0)" }, showlegend: false, hoverinfo: "skip", hovertemplate: undefined, meta: "open" }];
}

function saying(each) {
  return each.values.map((value, at) => {
    const x = each.item.categories?.[at] ?? each.item.x[at];
    const ends = each.low && each.high && finite(each.low[at]) ? ` [${written(each.low[at], 3)} … ${written(each.high[at], 3)}]` : "";
    const note = each.item.notes?.[at];
    const place = typeof x === "number" ? written(x) : x;
    return `${escaped(place)}: <b>${value === null ? "nothing" : written(value)}</b>${ends}${note ? `<br>${escaped(note)}` : ""}`;
  });
}

function barsFigure(chart, context, state) {
  const { theme } = context;
  const all = chart.bars.map((item) => read(item, item.values, item.categories.map(escaped)));
  const [looks, log] = [pens(chart.bars, context.runs, theme), logarithmic(chart, context.look, all)];
  const data = all.flatMap((each, at) => {
    const group = `bars${at} ${each.item.label}`;
    const common = { legendgroup: group, name: escaped(each.item.label), visible: state.hidden.has(group) ? "legendonly" : true };
    const whiskers = context.theme === "dark" ? "#E4E8EE" : "#1F2630";
    const bar = {
      ...common, type: "bar", offsetgroup: group, x: each.x, y: each.values, marker: { color: faint(looks[at].colour, 0.85) }, showlegend: all.length > 1,
      meta: { label: each.item.label, colour: looks[at].colour }, error_y: interval(each, whiskers, 2), hovertext: saying(each), textposition: "none",
      hovertemplate: `%{hovertext}${all.length > 1 ? "" : "<extra></extra>"}`,
    };
    return [bar, ...openEnded(each, bar, whiskers), ...odd(each, common, { log, theme, colour: looks[at].colour })];
  });
  const layout = layoutOf(chart, context, all, { log, categorical: true });
  layout.xaxis.fixedrange = true;
  return { data, legend: legendOf(data, "square"), layout: { ...layout, barmode: "group", bargap: 0.25, bargroupgap: 0.08, dragmode: false } };
}

function marksFigure(chart, context, state) {
  const { theme } = context;
  const categorical = chart.marks.some((item) => item.x.some((x) => typeof x === "string" && number(x) === null));
  const place = (x) => (categorical ? escaped(x) : number(x));
  const all = chart.marks.map((item) => read(item, item.y, item.x.map(place)));
  const [looks, log] = [pens(chart.marks, context.runs, theme), logarithmic(chart, context.look, all)];
  const data = all.flatMap((each, at) => {
    const group = `marks${at} ${each.item.label}`;
    const common = { legendgroup: group, name: escaped(each.item.label), visible: state.hidden.has(group) ? "legendonly" : true };
    const colour = looks[at].colour;
    const many = each.values.length > 60;
    const dots = {
      ...common, type: "scatter", mode: each.item.joined ? "lines+markers" : "markers", x: each.x, y: each.values, showlegend: all.length > 1,
      meta: { label: each.item.label, colour }, line: { color: colour, width: 1.6, dash: looks[at].dash }, error_y: interval(each, faint(colour, 0.75), 2), cliponaxis: false,
      marker: { color: each.item.joined ? colour : faint(colour, many ? 0.45 : 0.8), size: many ? 5 : 7 }, hovertext: saying(each),
      hovertemplate: `%{hovertext}${all.length > 1 ? "" : "<extra></extra>"}`,
    };
    return [dots, ...openEnded(each, dots, faint(colour, 0.75)), ...odd(each, common, { log, theme, colour })];
  });
  return { data, legend: legendOf(data, "dot"), layout: layoutOf(chart, context, all, { log, categorical }) };
}

/** An entry for each trace that has a name to be told. */
function legendOf(data, shape) {
  const named = data.filter((trace) => trace.showlegend);
  return named.map(({ legendgroup, meta }) => ({ group: legendgroup, name: meta.label, colour: meta.colour, shape }));
}

/** Marks at the bottom edge for what the axis cannot show. */
function odd(each, common, { log, theme, colour }) {
  const kinds = [
    ["NaN or Inf", "x", oddColours(theme).broken, broken],
    ["zero or negative", "triangle-down", colour, (value) => log && finite(value) && value <= 0],
  ];
  return kinds.flatMap(([word, symbol, ink, test]) => {
    const at = each.values.flatMap((value, index) => (test(value) ? [index] : []));
    if (!at.length) return [];
    return [{
      ...common, type: "scatter", mode: "markers", yaxis: "y2", showlegend: false, cliponaxis: false,
      x: at.map((index) => each.x[index]), y: at.map(() => 0.03),
      hovertext: at.map((index) => `${word}: ${escaped(each.item.categories?.[index] ?? each.item.x[index])}`), hoverinfo: "text", meta: word,
      marker: { symbol, color: ink, size: 8 },
    }];
  });
}

/** Whether y is logarithmic: as the reader says, unless a value is not above zero, which a log axis has no place for. */
function logarithmic(chart, look, all) {
  if (look.y !== "log") return look.y !== "linear" && chart.y?.scale === "log";
  return all.every((each) => each.values.every((value) => !finite(value) || value > 0));
}

/** Ticks at so few values. */
function just(values) {
  return { tickmode: "array", tickvals: values, ticktext: values.map((value) => written(value)) };
}

/** Whether marks were measured at a few chosen places, which a tick each tells best; a cloud lies anywhere. */
function isCurve(all, values) {
  return values.length <= 12 && all.some((each) => each.item.joined);
}

function layoutOf(chart, context, all, { log, categorical }) {
  const { theme } = context;
  const lists = all.flatMap((each) => [each.values, each.low ?? [], each.high ?? []]);
  const reach = extent(lists, log);
  const x = {
    ...axisLook(theme), title: titled(chart.x?.title ?? "", theme, 4), showgrid: !categorical,
    type: categorical ? "category" : chart.x?.scale ?? "linear",
  };
  const values = [...new Set(all.flatMap((each) => each.x))].filter((value) => value !== null);
  if (categorical) x.range = [-0.5, values.length - 0.5];
  else if (x.type === "log") Object.assign(x, isCurve(all, values) ? just(values) : decades(extent([values], true)));
  if (!categorical) Object.assign(x, fixedEnds(chart.x, extent(all.map((each) => each.x), x.type === "log"), x.type === "log"));
  const y = { ...axisLook(theme), type: log ? "log" : "linear", title: titled(chart.y?.title ?? "", theme, 6), fixedrange: true };
  const levels = (chart.levels ?? []).map((level) => level.value);
  const plain = { exponentformat: "power", zeroline: true, zerolinecolor: y.linecolor };
  Object.assign(y, log ? decades(extent([reach ?? [], levels], true)) : plain, fixedEnds(chart.y, reach, log));
  if (log && !reach) Object.assign(y, { range: [-1, 1], autorange: false });
  return {
    ...base(theme), xaxis: x, yaxis: y, hovermode: "closest",
    yaxis2: { overlaying: "y", range: [0, 1], fixedrange: true, visible: false },
    ...around({ ...chart, spans: [] }, context, { log, reach, ends: null, missing: "" }),
  };
}
