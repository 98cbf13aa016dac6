/** The filter of the table of runs: `lr>1e-4 state:broken tag:baseline -name:old "two words"`. */

/**
 * @typedef {Object} RunRow what the server says of a run, see RunRow of run_table.py
 * @typedef {(row: RunRow) => boolean} Test
 */

const NUMBERS = {
  step: (row) => row.newest_step,
  steps: (row) => row.newest_step,
  best: (row) => row.outcome?.best ?? null,
  last: (row) => row.outcome?.last ?? null,
  duration: (row) => row.seconds,
};
const WORDS = {
  state: (row) => [row.state || "reading"],
  status: (row) => [row.status],
  tag: (row) => row.tags,
  finding: (row) => row.findings,
  name: (row) => [row.name, row.id],
  folder: (row) => [row.folder],
  note: (row) => [row.note],
  verdict: (row) => [row.verdict],
  outcome: (row) => [row.outcome?.series ?? ""],
  kind: (row) => [row.kind],
  is: (row) => [row.archived ? "archived" : "", row.status, row.state],
};
/** Words of a fixed few are met whole, so that `state:concern` is no search in texts. */
const WHOLE = new Set(["state", "status", "tag", "is", "kind"]);
const UNITS = { s: 1, min: 60, m: 60, h: 3600, d: 86400, k: 1e3, K: 1e3, M: 1e6, "%": 0.01 };

/** A number as people write it: 1e-4, 20k, 3h. @returns {number} NaN when it is none */
export function numberOf(text) {
  const found = /^([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)(s|min|m|h|d|k|K|M|%)?$/i.exec(String(text).trim());
  return found ? Number(found[1]) * (UNITS[found[2]] ?? 1) : NaN;
}

/** The full names of the settings a name stands for: itself, or all that end in it. */
export function settingsNamed(name, known) {
  if (known.has(name)) return [name];
  return [...known].filter((each) => each.endsWith(`.${name}`));
}

/** What a run has under a setting; what all runs have alike is kept apart. */
export const settingOf = (row, name, shared) => row.settings[name] ?? shared[name];

/**
 * @param {string} text
 * @param {Set<string>} known names of settings
 * @param {Object<string, string>} shared settings that are the same in all runs
 * @returns {{test: Test, problem: string, archived: boolean}} `archived`: whether it asks for runs that are put away
 */
export function readFilter(text, known, shared) {
  const problems = [];
  const tests = [];
  let archived = false;
  for (const token of text.match(/(?:[^\s"]|"[^"]*"?)+/g) ?? []) {
    const not = token.length > 1 && token.startsWith("-");
    const { test, problem } = readToken((not ? token.slice(1) : token).replaceAll('"', ""), known, shared);
    archived ||= /^is:archived$/i.test(token);
    if (problem) problems.push(problem);
    tests.push(not ? (row) => !test(row) : test);
  }
  return { test: (row) => tests.every((each) => each(row)), problem: problems.join(" "), archived };
}

function readToken(token, known, shared) {
  const found = /^([^:<>=!]+)(>=|<=|!=|=|>|<|:)(.*)$/.exec(token);
  if (!found) return { test: anywhere(token) };
  const [, name, sign, value] = found;
  if (!value) return { test: () => true }; // half typed
  const key = name.toLowerCase();
  if (key in WORDS && [":", "=", "!="].includes(sign)) return { test: turned(sign, words(key, value)) };
  if (key in NUMBERS) return compared(name, sign, value, NUMBERS[key]);
  const settings = settingsNamed(name, known);
  if (settings.length) return ofSettings(settings, name, sign, value, shared);
  if (sign === ":") return { test: anywhere(token) };
  return { test: () => true, problem: `No setting is called ${name}.` };
}

const turned = (sign, test) => (sign === "!=" ? (row) => !test(row) : test);

function anywhere(text) {
  const wanted = text.toLowerCase();
  return (row) => [row.id, row.name, row.verdict, row.note, ...row.tags].some((each) => each.toLowerCase().includes(wanted));
}

function words(key, value) {
  const wanted = value.toLowerCase().split(",").filter(Boolean);
  const same = WHOLE.has(key) ? (has, want) => has === want : (has, want) => has.includes(want);
  return (row) => WORDS[key](row).some((has) => wanted.some((want) => same(has.toLowerCase(), want)));
}

function ofSettings(settings, name, sign, value, shared) {
  if (Number.isNaN(numberOf(value))) {
    if (!["=", ":", "!="].includes(sign)) return { test: () => true, problem: `${name}${sign} needs a number.` };
    const wanted = value.toLowerCase();
    const same = (row) => settings.some((each) => String(settingOf(row, each, shared) ?? "").toLowerCase() === wanted);
    return { test: turned(sign, same) };
  }
  const both = settings.map((each) => compared(name, sign, value, (row) => settingOf(row, each, shared) ?? null).test);
  return { test: sign === "!=" ? (row) => both.every((test) => test(row)) : (row) => both.some((test) => test(row)) };
}

function compared(name, sign, value, of) {
  const wanted = numberOf(value);
  if (Number.isNaN(wanted)) return { test: () => true, problem: `${name}${sign} needs a number.` };
  const ways = {
    ">": (has) => has > wanted, "<": (has) => has < wanted, ">=": (has) => has >= wanted, "<=": (has) => has <= wanted,
    "=": (has) => has === wanted, ":": (has) => has === wanted, "!=": (has) => has !== wanted,
  };
  return {
    test(row) {
      const has = of(row);
      const number = has === null || has === undefined || has === "" ? NaN : typeof has === "number" ? has : numberOf(has);
      return Number.isNaN(number) ? sign === "!=" : ways[sign](number);
    },
  };
}
