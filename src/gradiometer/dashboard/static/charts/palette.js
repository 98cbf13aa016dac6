/** Colours that colour-blind readers can tell apart (Okabe and Ito's), tuned for a light and for a dark page. */

/** @typedef {"light" | "dark"} Theme @typedef {{colour: string, dash: string, width: number, faint?: boolean, mean?: boolean}} Pen */

const RUNS = {
  light: ["#0072B2", "#DD8A00", "#009E73", "#D1491B", "#B0568F", "#3D9FD6", "#94830B", "#555C66"],
  dark: ["#4AA8EA", "#F2B134", "#2CC79A", "#FF7F50", "#E699C8", "#9AD5F8", "#E8DC4A", "#BFC6D1"],
};
export const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];

const INKS = {
  light: { text: "#1F2630", muted: "#667180", grid: "#E8EBEF", line: "#C3CAD3", paper: "#FFFFFF", none: "#F1F3F6" },
  dark: { text: "#E4E8EE", muted: "#98A3B3", grid: "#2A313B", line: "#465060", paper: "#161B22", none: "#222932" },
};

const SEVERITIES = {
  light: { critical: "#B3261E", warn: "#B26A00", info: "#0072B2", fine: "#00805E", unknown: "#667180" },
  dark: { critical: "#FF7B6B", warn: "#F2B134", info: "#6DB9F2", fine: "#3CCBA0", unknown: "#98A3B3" },
};

// The three shades are for top, bottom and middle, as in plots/curves.py; a dark page lifts what it would swallow.
const TIERS = ["top", "bottom", "middle"];
const CLEAN = { light: ["#9ECAE1", "#3182BD", "#08306B"], dark: ["#CFE8F7", "#62B0E8", "#2E78C7"] };
const WARM = {
  light: [
    ["#FC9272", "#DE2D26", "#67000D"],
    ["#FDBE85", "#F5840C", "#8A3B04"],
    ["#F7B6D2", "#E0559C", "#7A1450"],
  ],
  dark: [
    ["#FDBFA9", "#FA5F52", "#C22F38"],
    ["#FDD9B4", "#F89327", "#B86A1E"],
    ["#FBD3E4", "#EB78B2", "#B8498A"],
  ],
};

/** Roles that always look the same; numbers are places among the runs' colours. */
const ROLES = {
  raw: 0, clipped: 1, update: 2,
  "term:policy": 0, "term:value": 1, "term:entropy": 2, "term:kl": 4, "term:task": 5, "term:total": 7, mean: 7,
};
const WIDTHS = { raw: 2.8, clipped: 1.4 }; // where nothing is clipped one lies upon the other, and both are seen
const OTHERS = [0, 1, 2, 4, 3, 5, 6, 7]; // for roles without a fixed colour, as far as the chart has not taken them

// What is only there to compare with (a null, a control) is grey, whatever else has a colour.
const GREY = /^(null$|control:|kind:null)/;
const GREYS = { light: ["#667180", "#A9B2BD", "#3F4854"], dark: ["#98A3B3", "#5C6776", "#D3D9E2"] };

const SCALES = {
  sequential: {
    light: ["#440154", "#46327E", "#365C8D", "#277F8E", "#1FA187", "#4AC16D", "#A0DA39", "#FDE725"],
    dark: ["#4B1D6B", "#4A3A8C", "#3A649A", "#2B869A", "#25A98F", "#55C874", "#A9DF45", "#FDEB4A"],
  },
  diverging: {
    light: ["#1F5FA8", "#6AA5D3", "#C6DDEC", "#F6F6F4", "#FAD3B4", "#E38A54", "#B3401A"],
    dark: ["#6DB9F2", "#3F7FB8", "#2C4A68", "#2B313A", "#69412B", "#BF6A35", "#FF9A5C"],
  },
  health: {
    light: ["#B3261E", "#E2703A", "#F3C269", "#DCE3C0", "#8CC3BE", "#3C91AE", "#1B6A94"],
    dark: ["#FF6A57", "#F08A48", "#D9AE55", "#8C9A86", "#4F8F97", "#33789A", "#27608C"],
  },
};

const chosen = new Map();

/** Give the chosen runs places in the palette: those that have one keep it, the others take the first that are free.
 * @param {string[]} ids @returns {boolean} whether a place is another than before */
export function choosePlaces(ids) {
  const before = [...chosen];
  for (const id of [...chosen.keys()]) if (!ids.includes(id)) chosen.delete(id);
  for (const id of ids) {
    if (chosen.has(id)) continue;
    const taken = new Set(chosen.values());
    let place = 0;
    while (taken.has(place)) place += 1;
    chosen.set(id, place);
  }
  return String(before) !== String([...chosen]);
}

function placeOf(card) {
  return chosen.get(card?.id) ?? card?.colour ?? 0;
}

/** The colour of a run: it keeps it while others come and go. @param {{id: string, colour: number}} card @param {Theme} theme */
export function runColour(card, theme) {
  return RUNS[theme][placeOf(card) % RUNS[theme].length];
}

/** Beyond eight runs colours come again with another dash. @param {{colour: number}} card */
export function runDash(card) {
  return DASHES[Math.floor(placeOf(card) / RUNS.light.length) % DASHES.length];
}

/** @param {"fine" | "info" | "warn" | "critical" | "unknown"} severity @param {Theme} theme */
export function severityColour(severity, theme) {
  return SEVERITIES[theme][severity] ?? SEVERITIES[theme].unknown;
}

/** The colours of text, grid and ground. @param {Theme} theme */
export function inks(theme) {
  return INKS[theme];
}

/** NaN and Inf, and zero on a log scale: colours that no scale has. @param {Theme} theme */
export function oddColours(theme) {
  return theme === "dark" ? { broken: "#FF4FD8", none: "#7C8796" } : { broken: "#D6007F", none: "#9AA3AF" };
}

/** A scale as Plotly takes it. @param {"sequential" | "diverging" | "health"} name @param {Theme} theme */
export function colourScale(name, theme) {
  const stops = SCALES[name]?.[theme] ?? SCALES.sequential[theme];
  return stops.map((colour, at) => [at / (stops.length - 1), colour]);
}

/** A colour with an opacity. @param {string} hex "#RRGGBB" @param {number} alpha */
export function faint(hex, alpha) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return `rgba(${red},${green},${blue},${alpha})`;
}

/** How to draw each of several things that have a role and perhaps a run. Several runs: the colour is the run's and the
 * dash the role's. One run: the colour is the role's. No two of a chart look the same as long as there are colours. Seeds of
 * a group are faint and have the colour of their mean.
 * @param {{role: string, run?: string, key?: string}[]} items @param {Map<string, any>} runs @param {Theme} theme @returns {Pen[]} */
export function pens(items, runs, theme) {
  const several = new Set(items.map((item) => item.run ?? "")).size > 1;
  const roles = [...new Set(items.map((item) => item.role ?? ""))];
  const groups = [...new Set(items.filter(grouped).map((item) => item.key))];
  if (groups.length) return items.map((item) => (grouped(item) ? ofGroup(item, groups, theme) : byRun(item, [""], runs, theme)));
  if (several) return items.map((item) => byRun(item, roles, runs, theme));
  const own = roles.includes("") ? placeOf(runs.get(items[0].run)) % RUNS.light.length : -1;
  const free = OTHERS.filter((place) => place !== own && !roles.some((role) => ROLES[role] === place));
  const given = new Map();
  for (const role of roles) if (!(role in ROLES) && role && role !== "whole" && !role.startsWith("expert:") && !GREY.test(role)) given.set(role, given.size);
  roles.filter((role) => GREY.test(role)).forEach((role, place) => given.set(role, place));
  const used = new Map();
  return items.map((item) => {
    const pen = byRole(item, given, free, runs, theme);
    const before = used.get(item.role) ?? 0;
    used.set(item.role, before + 1);
    return before ? another(pen, before, theme) : pen;
  });
}

/** Whether it is the mean of a group of runs, or one of them. */
function grouped(item) {
  return Boolean(item.key) && (item.role === "mean" || item.role === "faint");
}

function ofGroup(item, groups, theme) {
  const colour = RUNS[theme][groups.indexOf(item.key) % RUNS[theme].length];
  const dash = DASHES[Math.floor(groups.indexOf(item.key) / RUNS[theme].length) % DASHES.length];
  return item.role === "mean" ? { colour, dash, width: 2.4, mean: true } : { colour, dash: "solid", width: 1, faint: true };
}

function byRun(item, roles, runs, theme) {
  const card = runs.get(item.run);
  const dash = roles.length > 1 ? DASHES[roles.indexOf(item.role ?? "") % DASHES.length] : runDash(card);
  return { colour: runColour(card, theme), dash, width: 1.6 };
}

function byRole(item, given, free, runs, theme) {
  const [kind, expert, tier] = (item.role ?? "").split(":");
  if (item.role === "whole") return { colour: INKS[theme].text, dash: "solid", width: 2.2 };
  if (kind === "ink") return { colour: RUNS[theme][Number(expert)], dash: "solid", width: 1.9 };
  if (kind === "expert") return ofExpert(expert, tier, theme);
  if (GREY.test(item.role ?? "")) return { colour: GREYS[theme][given.get(item.role) % GREYS[theme].length], dash: "dot", width: 1.3 };
  if (!item.role) return { colour: runColour(runs.get(item.run), theme), dash: "solid", width: 1.7 };
  if (item.role in ROLES) return { colour: RUNS[theme][ROLES[item.role]], dash: "solid", width: WIDTHS[item.role] ?? 1.7 };
  const places = free.length ? free : OTHERS;
  const place = given.get(item.role);
  const dash = DASHES[Math.floor(place / places.length) % DASHES.length];
  return { colour: RUNS[theme][places[place % places.length]], dash, width: 1.7 };
}

function ofExpert(expert, tier, theme) {
  const index = Number.parseInt(expert, 10) || 0;
  const place = TIERS.includes(tier) ? TIERS.indexOf(tier) : 1; // no tier: the medium shade
  if (index === 0) return { colour: CLEAN[theme][place], dash: "solid", width: 2.4 };
  const look = (index - 1) % WARM[theme].length;
  return { colour: WARM[theme][look][place], dash: DASHES[(index - 1) % DASHES.length], width: 1.6 };
}

function another(pen, times, theme) {
  const all = RUNS[theme];
  const place = all.indexOf(pen.colour);
  if (place < 0) return { ...pen, dash: DASHES[times % DASHES.length] };
  return { ...pen, colour: all[(place + times) % all.length], dash: DASHES[Math.floor(times / all.length) % DASHES.length] };
}
