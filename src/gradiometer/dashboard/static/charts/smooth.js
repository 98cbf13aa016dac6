/** Smoothing and what it hides: pure functions of a series. */

/** The exponential moving average without its pull towards zero at the beginning.
 *
 *  m_t = w m_(t-1) + (1 - w) v_t,  smoothed_t = m_t / (1 - w^n),  n = how many finite values there were.
 *
 * A value that is missing, NaN or infinite leaves a gap and moves nothing.
 * @param {(number | null)[]} values @param {number} weight 0 (nothing) to 0.99 @returns {number[]} */
export function smoothed(values, weight) {
  let [mean, rest] = [0, 1];
  return values.map((value) => {
    if (value === null || !Number.isFinite(value)) return NaN;
    mean = weight * mean + (1 - weight) * value;
    rest *= weight;
    return mean / (1 - rest);
  });
}

/** How many values an average of this weight is about: 1 / (1 - w). @param {number} weight */
export function windowOf(weight) {
  return Math.max(1, Math.round(1 / (1 - weight)));
}

/** The smallest (`sign` 1) or largest (-1) of the last `width` values at each place; NaN where the place has no value.
 * @param {(number | null)[]} values @param {number} width @param {1 | -1} sign @returns {number[]} */
export function rolling(values, width, sign) {
  const queue = new Int32Array(values.length); // places of candidates, the best first
  let [head, tail] = [0, 0];
  return values.map((value, at) => {
    while (head < tail && queue[head] <= at - width) head++;
    if (value === null || !Number.isFinite(value)) return NaN;
    while (head < tail && sign * values[queue[tail - 1]] >= sign * value) tail--;
    queue[tail++] = at;
    return values[queue[head]];
  });
}

/** The band behind a line: extremes of buckets where it was thinned, and over the smoothing window. Null: no band.
 * @param {(number | null)[]} values @param {(number | null)[] | null} low @param {(number | null)[] | null} high
 * @param {number} weight @returns {{low: (number | null)[], high: (number | null)[]} | null} */
export function envelope(values, low, high, weight) {
  const width = windowOf(weight);
  if (width === 1) return low && high ? { low, high } : null;
  return { low: rolling(low ?? values, width, 1), high: rolling(high ?? values, width, -1) };
}

/** A band in no more than so many places: of neighbours the lowest low and the highest high, so that no spike is lost.
 * @param {unknown[]} x @param {(number | null)[]} low @param {(number | null)[]} high @param {number} most */
export function coarser(x, low, high, most) {
  const size = Math.ceil(x.length / Math.max(2, most));
  if (size <= 1) return { x, low, high };
  const made = { x: [], low: [], high: [] };
  for (let from = 0; from < x.length; from += size) {
    let [least, largest] = [Infinity, -Infinity];
    for (let at = from; at < Math.min(from + size, x.length); at++) {
      if (low[at] !== null && low[at] < least) least = low[at];
      if (high[at] !== null && high[at] > largest) largest = high[at];
    }
    const last = from + size >= x.length;
    made.x.push(x[from === 0 ? 0 : last ? x.length - 1 : from + (size >> 1)]);
    made.low.push(least <= largest ? least : NaN);
    made.high.push(least <= largest ? largest : NaN);
  }
  return made;
}

/** A line in fewer points: of neighbours only the smallest and the largest, in their order.
 * @param {unknown[]} x @param {(number | null)[]} y @param {number} most */
export function sparser(x, y, most) {
  const size = Math.ceil((2 * x.length) / Math.max(2, most));
  if (size <= 2) return { x, y };
  const made = { x: [], y: [] };
  for (let from = 0; from < x.length; from += size) {
    let [least, largest] = [from, from];
    for (let at = from; at < Math.min(from + size, x.length); at++) {
      if (!(y[least] <= y[at])) least = at;
      if (!(y[largest] >= y[at])) largest = at;
    }
    for (const at of [Math.min(least, largest), Math.max(least, largest)]) made.x.push(x[at]), made.y.push(y[at]);
  }
  return made;
}

/** The outline of a band, a closed shape for each stretch without a gap: to the right along the top, back along the bottom.
 * @param {unknown[]} x @param {(number | null)[]} low @param {(number | null)[]} high @param {number} floor nothing is
 * below it (a log axis has an end) */
export function outline(x, low, high, floor = -Infinity) {
  const [xs, ys] = [[], []];
  const close = (from, to) => {
    if (to - from < 2) return;
    if (xs.length) xs.push(null), ys.push(null);
    for (let at = from; at < to; at++) xs.push(x[at]), ys.push(Math.max(high[at], floor));
    for (let at = to - 1; at >= from; at--) xs.push(x[at]), ys.push(Math.max(low[at], floor));
  };
  let from = 0;
  for (let at = 0; at <= x.length; at++) {
    if (at < x.length && Number.isFinite(low[at] ?? NaN) && Number.isFinite(high[at] ?? NaN)) continue;
    close(from, at);
    from = at + 1;
  }
  return { x: xs, y: ys };
}
