/** New points joined to the ones the page has. */

/** @typedef {{steps: number[], values: any[], low: any[] | null, high: any[] | null, x: any[] | null, nans: number[]}} Points */

/** A chart with the news of a delta: its words, levels, spans and pictures replaced, its lines longer.
 * Lines without news are the same objects as before. @param {any} chart @param {any} delta */
export function merged(chart, delta) {
  const lines = [...(chart.lines ?? [])];
  for (const news of delta.lines ?? []) {
    const place = placeOf(lines, news);
    if (place < 0) lines.push(news);
    else if (news.points.steps.length) lines[place] = { ...lines[place], points: joined(lines[place].points, news.points) };
  }
  return { ...chart, ...delta, lines };
}

function placeOf(lines, news) {
  const alike = (line) => line.run === news.run && line.name === news.name;
  const same = lines.findIndex((line) => alike(line) && line.role === news.role && line.label === news.label);
  return same >= 0 ? same : lines.findIndex(alike);
}

/** Points of a series, each step once and in order; of two for a step the later told counts.
 * @param {Points} had @param {Points} news @returns {Points} */
export function joined(had, news) {
  const [old, more] = [columns(had, news), columns(news, had)];
  const together = Object.fromEntries(Object.keys(old).map((name) => [name, old[name].concat(more[name])]));
  const nans = [...new Set([...kept(had.nans, news.steps), ...(news.nans ?? [])])].sort((a, b) => a - b);
  const apart = had.steps.length === 0 || news.steps[0] > had.steps[had.steps.length - 1];
  return { low: null, high: null, x: null, ...(apart ? together : inOrder(together)), nans };
}

/** A step that is told anew may no longer be broken. */
function kept(nans, steps) {
  const told = new Set(steps);
  return (nans ?? []).filter((step) => !told.has(step));
}

/** The lists of some points; those that only the other points have are made from what is there. */
function columns(points, other) {
  const all = { steps: points.steps, values: points.values };
  for (const name of ["low", "high"]) if (points[name] || other[name]) all[name] = points[name] ?? points.values;
  if (points.x || other.x) all.x = points.x ?? points.steps.map(() => null);
  return all;
}

function inOrder(together) {
  const last = new Map(together.steps.map((step, at) => [step, at]));
  const places = [...last.entries()].sort((a, b) => a[0] - b[0]).map(([, at]) => at);
  return Object.fromEntries(Object.entries(together).map(([name, list]) => [name, places.map((at) => list[at])]));
}
