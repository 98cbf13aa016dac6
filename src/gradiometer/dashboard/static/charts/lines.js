/** Charts of kind `lines`: the traces of each line, and what lies around them. */
import { axisLook, clockTicks, decades, fixedEnds, places, titled, xAxis, xRange, xTitle } from "./axes.js";
import { edgeTraces } from "./edges.js";
import { around, base, margins } from "./frame.js";
import { ascending, extent, finite, nearest, numbers } from "./numbers.js";
import { laneRoom, lanes, onsetsOf } from "./onsets.js";
import { faint, pens } from "./palette.js";
import { coarser, envelope, outline, smoothed, sparser } from "./smooth.js";
import { escaped, written } from "./text.js";

const FEW_POINTS = 40; // so many are shown as dots as well
const BEHIND = 16_000; // points of all bands, and of all raw lines behind smoothed ones: they cost as much as the lines
const FEW_LINES = 10; // more than so many are hovered one at a time

/** @type {import("./plot.js").Kind} */
export const LINES = { figure, height, synced: true };

function height(chart, _, context) {
  return (chart.wide ? 280 : 230) + laneRoom(onsetsOf(chart, context.look));
}

/** A line's own name among the others, in whatever order they come; the seeds of a group go with their mean. */
function groupOf(line) {
  const together = line.key && (line.role === "faint" || line.role === "mean");
  return together ? line.key : `${line.run} ${line.name} ${line.role} ${line.label}`;
}

/** Whether y is logarithmic. */
export function isLog(chart, look) {
  return look.y === "log" || (look.y !== "linear" && chart.y?.scale === "log");
}

/** What to call each line: its label, with the run's name where there are several runs.
 * @param {any[]} lines @param {Map<string, any>} runs @returns {string[]} */
export function lineNames(lines, runs) {
  const ids = [...new Set(lines.map((line) => line.run))];
  const named = (id) => runs.get(id)?.name ?? id;
  const shared = new Set(ids.map(named)).size < ids.length;
  return lines.map((line) => {
    if (ids.length < 2 || line.label === line.run || !runs.has(line.run)) return line.label;
    const [own, name] = [shared ? line.run : named(line.run), named(line.run)];
    if (line.label === name || !line.label) return own;
    return line.label.startsWith(`${name} · `) ? own + line.label.slice(name.length) : `${own} · ${line.label}`;
  });
}

/** The numbers of a line, translated once and kept with its points. */
const KNOWN = new WeakMap();
function series(points) {
  if (!KNOWN.has(points)) {
    const [values, low, high] = [points.values, points.low, points.high].map((list) => list && numbers(list));
    KNOWN.set(points, { values, low, high });
  }
  return KNOWN.get(points);
}

/** What a chart of lines looks like now. @param {any} chart @param {any} context @param {import("./plot.js").State} state */
function figure(chart, context, state) {
  const { look, theme, runs } = context;
  const axis = xAxis(look);
  const log = isLog(chart, look);
  const all = chart.lines.map((line) => ({ line, ...series(line.points), x: places(line.points, axis) }));
  const names = lineNames(chart.lines, runs);
  const looks = pens(chart.lines, runs, theme);
  const alone = all.length <= FEW_LINES;
  const banded = (pen) => pen.mean || (look.envelope && !pen.faint && alone);
  const reach = extent(all.flatMap((each, at) => [each.values, ...(banded(looks[at]) ? [each.low ?? [], each.high ?? []] : [])]), log);
  const shared = {
    look, log, axis, theme, single: all.length === 1, of: all.length, alone, behind: BEHIND / all.length,
    floor: log && reach ? reach[0] : -Infinity,
  };
  const data = all.flatMap((each, at) =>
    traces(each, { ...shared, at, name: names[at], pen: looks[at], off: state.hidden.has(groupOf(each.line)) }),
  );
  const shown = all.map((each, at) => ({ ...each, name: all.length > 1 ? names[at] : "", colour: looks[at].colour }));
  const readout = (x) => readings(shown.filter((each, at) => !looks[at].faint && !state.hidden.has(groupOf(each.line))), axis.drawn(x), look.smooth);
  const key = (point) => chart.lines.find((line) => groupOf(line) === point.data.legendgroup)?.key;
  const legend = all.length > 1 ? legendOf(all, names, looks) : [];
  return { data, layout: layout(chart, context, state, { axis, log, reach, all }), axis, readout, key, legend };
}

function legendOf(all, names, looks) {
  return all.flatMap(({ line }, at) => {
    const { colour, dash, faint: silent } = looks[at];
    return silent ? [] : [{ group: groupOf(line), name: names[at], shape: "line", colour, dash }];
  });
}

/** What lies behind a line: extremes where there are any, unless the lines are so many that bands could not be told apart; the
 * spread of a group belongs to its mean, smoothed like it. */
function behind(each, { look, pen, alone }, weight) {
  if (pen.mean && each.low && each.high) {
    const [low, high] = weight > 0 ? [each.low, each.high].map((list) => smoothed(list, weight)) : [each.low, each.high];
    return { low, high };
  }
  return look.envelope && !pen.faint && alone ? envelope(each.values, each.low, each.high, weight) : null;
}

/** Band, raw line, line and marks of one series: a group of the legend. */
function traces(each, how) {
  const { look, pen, at } = how;
  const weight = look.smooth > 0 ? look.smooth : 0;
  const common = { type: "scatter", legendgroup: groupOf(each.line), visible: how.off ? "legendonly" : true };
  const hushed = { ...common, hoverinfo: "skip", showlegend: false };
  const soft = weight > 0 ? smoothed(each.values, weight) : null;
  const made = [];
  const band = behind(each, how, weight);
  if (band) {
    const few = coarser(each.x, band.low, band.high, how.behind / 2);
    made.push({
      ...hushed, ...outline(few.x, few.low, few.high, how.floor), uid: `band${at}`, mode: "none", fill: "toself",
      fillcolor: faint(pen.colour, how.single ? 0.18 : Math.min(0.12, 0.4 / how.of)),
    });
  }
  if (soft && look.raw && !pen.faint)
    made.push({
      ...hushed, uid: `raw${at}`, ...sparser(each.x, each.values, how.behind), mode: "lines", opacity: how.alone ? 0.28 : 0.16,
      line: { color: pen.colour, width: 1, simplify: true },
    });
  made.push(mainTrace(each, soft ?? each.values, common, how, soft));
  made.push(...edgeTraces(each, { ...hushed, uid: `edge${at}` }, how));
  return made;
}

function mainTrace(each, y, common, how, soft) {
  const few = each.values.length <= FEW_POINTS && how.alone;
  const lone = few ? [] : lonely(each.values);
  const marker = lone.length ? { color: how.pen.colour, size: sizes(y.length, lone) } : { color: how.pen.colour, size: 5 };
  return {
    ...common, uid: `line${how.at}`, name: escaped(how.name), showlegend: !how.single && !how.pen.faint, opacity: how.pen.faint ? 0.35 : 1, x: each.x, y,
    mode: few || lone.length ? "lines+markers" : "lines", marker, connectgaps: false,
    line: { color: how.pen.colour, dash: how.pen.dash, width: how.pen.width, simplify: true },
    ...hover(each, how, soft),
  };
}

/** What hovering says: the value, the raw one beside a smoothed one, and the extremes of a bucket. */
function hover(each, how, soft) {
  const parts = ["%{y:.4~g}"];
  const columns = [];
  if (soft) columns.push(each.values), parts.push(` raw %{customdata[${columns.length - 1}]:.4~g}`);
  if (each.low && each.high) {
    columns.push(each.low, each.high);
    parts.push(` [%{customdata[${columns.length - 2}]:.3~g} … %{customdata[${columns.length - 1}]:.3~g}]`);
  }
  const wide = how.alone ? {} : { hoverlabel: { namelength: 40 } };
  const customdata = columns.length ? each.values.map((_, at) => columns.map((list) => list[at])) : undefined;
  return { customdata, hovertemplate: parts.join("") + (how.single ? "<extra></extra>" : ""), ...wide };
}

/** Points with a gap on both sides, which a line alone would not show. */
function lonely(values) {
  const there = (at) => finite(values[at]);
  const found = [];
  for (let at = 0; at < values.length; at++) if (there(at) && !there(at - 1) && !there(at + 1)) found.push(at);
  return found;
}

function sizes(length, lone) {
  const list = new Array(length).fill(0);
  for (const at of lone) list[at] = 5;
  return list;
}

/** What each line has nearest to x. */
function readings(shown, x, weight) {
  return shown.flatMap(({ name, colour, values, x: places }) => {
    if (!ascending(places)) return [];
    const at = nearest(places, x);
    if (at < 0 || values[at] === null) return [];
    const value = weight > 0 && finite(values[at]) ? smoothed(values.slice(0, at + 1), weight)[at] : values[at];
    return [{ name, colour, value: written(value) }];
  });
}

function layout(chart, context, state, { axis, log, reach, all }) {
  const { look, theme } = context;
  const ends = state.range?.map(axis.drawn) ?? extent(all.map((each) => each.x), axis.type === "log");
  const dots = all.some((each) => each.values.length <= FEW_POINTS) && all.length <= FEW_LINES;
  const x = { ...axisLook(theme), type: axis.type, title: titled(xTitle(look, chart.x), theme, 4), ...spikes(theme) };
  if (axis.type === "log") Object.assign(x, decades(extent(state.range ? [ends] : all.map((each) => each.x), true)));
  if (look.x === "relative" && !look.logx) Object.assign(x, clockTicks(ends));
  if (look.x === "step") Object.assign(x, { hoverformat: ",d", exponentformat: "SI" });
  Object.assign(x, xRange(ends, axis.type, state.range ? 0 : dots ? 0.02 : 0.005));
  const y = { ...axisLook(theme), type: log ? "log" : "linear", fixedrange: true, title: titled(chart.y?.title ?? "", theme, 6) };
  x.automargin = y.automargin = false;
  const levels = (chart.levels ?? []).map((level) => level.value);
  Object.assign(y, log ? decades(extent([reach ?? [], levels], true)) : { exponentformat: "power" }, fixedEnds(chart.y, reach, log));
  if (log && !reach) Object.assign(y, { range: [-1, 1], autorange: false });
  const words = around(chart, context, { log, logx: axis.type === "log", reach, ends, missing: notOnAxis(axis, all, Boolean(state.range)) });
  const margin = margins({ top: words.margin?.t, dated: axis.type === "date", left: state.left });
  const room = { width: state.width - margin.l - margin.r, height: state.height - margin.t - margin.b };
  const below = lanes(onsetsOf(chart, look), { theme, ends, logx: axis.type === "log", ...room });
  if (below.floor) Object.assign(x, { anchor: "free", position: 0 }), Object.assign(y, { domain: [below.floor, 1] });
  const raised = words.shapes.map((shape) => (shape.yref === "paper" ? { ...shape, y0: below.floor } : shape));
  const [shapes, annotations] = [[...raised, ...below.shapes], [...words.annotations, ...below.annotations]];
  return {
    ...base(theme), ...words, shapes, annotations, margin, xaxis: x, yaxis: y, hovermode: all.length <= FEW_LINES ? "x" : "closest",
    yaxis2: { overlaying: "y", range: [0, 1], fixedrange: true, visible: false },
  };
}

function spikes(theme) {
  const color = theme === "dark" ? "#98A3B3" : "#667180";
  return { showspikes: true, spikemode: "across", spikethickness: 1, spikedash: "dot", spikecolor: color, spikesnap: "data" };
}

/** A word about points that have no place on the x axis. */
function notOnAxis(axis, all, zoomed) {
  const points = all.reduce((sum, each) => sum + each.x.length, 0);
  if (!points) return zoomed ? "no points in this range" : "no points yet";
  if (!all.some((each) => each.x.some(finite))) return `no point here has a value of ${axis.named}`;
  if (axis.type !== "log") return "";
  const left = all.reduce((sum, each) => sum + each.x.filter((x) => finite(x) && x <= 0).length, 0);
  return left ? `${left} ${left === 1 ? "point" : "points"} at x ≤ 0 not on this axis` : "";
}
