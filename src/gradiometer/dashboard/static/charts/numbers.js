/** Numbers as the server speaks them: missing is null, NaN and the infinities are words. */

/** @typedef {number | string | null} Spoken */

const WORDS = { NaN: NaN, Infinity: Infinity, "-Infinity": -Infinity };

/** One number; null stays null. @param {Spoken | undefined} value @returns {number | null} */
export function number(value) {
  if (typeof value === "number") return value;
  return value === null || value === undefined ? null : Object.hasOwn(WORDS, value) ? WORDS[value] : null;
}

/** Many; the same array where there is nothing to translate. @param {Spoken[]} values @returns {(number | null)[]} */
export function numbers(values) {
  return values.some((value) => typeof value === "string") ? values.map(number) : values;
}

/** @param {unknown} value @returns {value is number} */
export function finite(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/** A number that is there and is NaN or an infinity. @param {number | null} value */
export function broken(value) {
  return typeof value === "number" && !Number.isFinite(value);
}

/** The smallest and largest finite number of several lists; null where there is none.
 * @param {Iterable<(number | null)[]>} lists @param {boolean} positive only those above zero
 * @returns {[number, number] | null} */
export function extent(lists, positive = false) {
  let [low, high] = [Infinity, -Infinity];
  for (const list of lists)
    for (const value of list) {
      if (value === null || !Number.isFinite(value) || (positive && value <= 0)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  return low <= high ? [low, high] : null;
}

/** Where in ascending numbers the one nearest to `wanted` is; -1 of none. @param {ArrayLike<number>} sorted */
export function nearest(sorted, wanted) {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  if (low === 0) return sorted.length ? 0 : -1;
  if (low === sorted.length) return low - 1;
  return wanted - sorted[low - 1] <= sorted[low] - wanted ? low - 1 : low;
}

/** Whether numbers only grow. @param {(number | null)[]} values */
export function ascending(values) {
  for (let at = 0; at < values.length; at++)
    if (!finite(values[at]) || (at > 0 && values[at] <= values[at - 1])) return false;
  return true;
}
