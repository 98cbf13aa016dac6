/** The state of the page is its URL: the path is the tab, the query the rest. Defaults are left out. */

export const TABS = ["overview", "wiring", "gradients", "terms", "estimators", "dynamics", "samples", "compare", "findings"];
/** The table of runs, which is no view of single runs. */
export const HOME = "runs";
export const AXES = { step: "Step", wall: "Wall time", relative: "Relative time", env_steps: "Env steps" };
export const MORE_AXES = { rollout: "Rollout", epoch: "Epoch" };
export const METRIC = "metric:";
export const MOST_RUNS = 200;

/**
 * @typedef {Object} State
 * @property {string} tab
 * @property {string[]} runs ids, the one in focus first; empty: the newest
 * @property {string} x
 * @property {?string} from first step @property {?string} to last step
 * @property {?number} xfrom zoom on an axis that is not the step @property {?number} xto
 * @property {"auto"|"log"|"linear"} y
 * @property {boolean} logx @property {number} smooth @property {boolean} raw @property {boolean} env
 * @property {"auto"|"light"|"dark"} theme
 * @property {string} full the chart at full size, by id
 * @property {Object<string, string[]>} options the view's own parameters
 */

const OURS = ["run", "x", "from", "to", "xfrom", "xto", "y", "logx", "smooth", "raw", "env", "theme", "full", "after", "token"];

/** @returns {State} */
export function read(address) {
  const query = new URLSearchParams(address.search);
  const path = address.pathname.replace(/^\/+|\/+$/g, "");
  const one = (name, allowed, otherwise) => (allowed.includes(query.get(name)) ? query.get(name) : otherwise);
  const number = (name) => (query.get(name) && Number.isFinite(Number(query.get(name))) ? Number(query.get(name)) : null);
  const options = {};
  for (const name of new Set(query.keys())) if (!OURS.includes(name)) options[name] = query.getAll(name);
  return {
    tab: TABS.includes(path) ? path : query.has("run") && path !== HOME ? TABS[0] : HOME,
    runs: [...new Set(query.getAll("run"))],
    x: query.get("x") || "step",
    from: query.get("from") || null,
    to: query.get("to") || null,
    xfrom: number("xfrom"),
    xto: number("xto"),
    y: one("y", ["log", "linear"], "auto"),
    logx: query.get("logx") === "1",
    smooth: Math.min(0.99, Math.max(0, number("smooth") ?? 0)),
    raw: query.get("raw") !== "0",
    env: query.get("env") !== "0",
    theme: one("theme", ["light", "dark"], "auto"),
    full: query.get("full") ?? "",
    options,
  };
}

/** The part of a state that the server answers to, as a query string; `runs` stand in where the state names none. Charts of
 * folded sections come with their numbers once they are opened. */
export function asked(state, runs = state.runs) {
  const pairs = (state.runs.length ? state.runs : runs).map((id) => ["run", id]);
  if (state.x !== "step") pairs.push(["x", state.x]);
  if (state.from !== null) pairs.push(["from", state.from]);
  if (state.to !== null) pairs.push(["to", state.to]);
  for (const [name, values] of Object.entries({ open: [""], ...state.options })) for (const value of values) pairs.push([name, value]);
  return written(pairs);
}

/** The address of a state. */
export function address(state) {
  const pairs = state.runs.map((id) => ["run", id]);
  const add = (name, value, otherwise) => value !== otherwise && value !== null && pairs.push([name, String(value)]);
  add("x", state.x, "step");
  for (const name of ["from", "to", "xfrom", "xto"]) add(name, state[name], null);
  add("y", state.y, "auto");
  add("logx", state.logx ? 1 : 0, 0);
  add("smooth", state.smooth, 0);
  add("raw", state.raw ? 1 : 0, 1);
  add("env", state.env ? 1 : 0, 1);
  add("theme", state.theme, "auto");
  for (const [name, values] of Object.entries(state.options)) for (const value of values) pairs.push([name, value]);
  add("full", state.full, "");
  const query = written(pairs);
  return `/${state.tab}${query ? `?${query}` : ""}`;
}

/** The parameters of a view that a refusal speaks of: those whose value it quotes first; all where a name is unknown and none is.
 * @param {{kind: string, message: string}} refusal @param {Object<string, string[]>} options @returns {string[]} names */
export function strangers(refusal, options) {
  const unknown = refusal.kind.startsWith("unknown-") && !["unknown-run", "unknown-view"].includes(refusal.kind);
  if (!unknown && refusal.kind !== "bad-request") return [];
  const said = /'([^']+)'/.exec(refusal.message)?.[1]; // what comes later in quotes is what would be right
  const quoted = Object.keys(options).filter((name) => options[name].includes(said));
  return quoted.length || !unknown ? quoted : Object.keys(options);
}

function written(pairs) {
  return new URLSearchParams(pairs).toString().replaceAll("%2F", "/").replaceAll("%3A", ":");
}

/**
 * The state, and who wants to know when it changes. Each tab's own parameters wait for the reader's return to it.
 * @param {(state: State, before: State) => void} changed
 */
export function createStore(changed) {
  let state = read(location);
  const left = new Map();

  function take(next, how) {
    const before = state;
    if (address(next) === address(before)) return;
    state = next;
    if (how === "replace") history.replaceState(null, "", address(next));
    if (how === "push") history.pushState(null, "", address(next));
    changed(state, before);
  }

  addEventListener("popstate", () => take(read(location), "leave"));

  return {
    get state() {
      return state;
    },
    /** Change parts of the state; `replace` for what changes many times a second. */
    set(patch, { replace = false } = {}) {
      take({ ...state, ...patch }, replace ? "replace" : "push");
    },
    /** Set one of the view's own parameters; null takes it out. */
    option(name, values, how) {
      const { [name]: _, ...rest } = state.options;
      this.set({ options: values === null ? rest : { ...rest, [name]: [values].flat() } }, how);
    },
    /** The state that a tab would have. */
    on(tab) {
      return tab === state.tab ? state : { ...state, tab, full: "", options: left.get(tab) ?? {} };
    },
    go(tab) {
      left.set(state.tab, state.options);
      take(this.on(tab), "push");
    },
  };
}
