/** The first page: every run in a table, the worst first. What is chosen here is in the URL. */

import { ask } from "./api.js";
import { count, countedRuns, debounce, el, icon, painted } from "./dom.js";
import { readFilter } from "./home_filter.js";
import { createGrid } from "./home_grid.js";
import { createManager } from "./home_manage.js";
import { COLUMNS, FOLDER, NAME, columnOf, differing, inGroups, inOrder, settingColumn, tallyOf, usualColumns } from "./home_rows.js";
import { cell } from "./home_cells.js";
import { MOST_RUNS, address } from "./state.js";

const READING = 1500; // between two questions while states are being read
const CHECK_WIDTH = 34;
const [NAME_NARROW, STATE_NARROW] = [128, 124]; // of a phone: the verdict is on the run's own page

/**
 * @typedef {Object} HomeActions
 * @property {(tab: string, ids: string[]) => void} open runs on a tab
 * @property {() => void} theme the next theme
 * @property {() => void} help
 */

/**
 * @param {HTMLElement} host
 * @param {ReturnType<typeof import("./state.js").createStore>} store
 * @param {HomeActions} act
 */
export function createHome(host, store, act) {
  const rows = new Map();
  const folded = new Set();
  const narrow = matchMedia("(max-width: 700px)");
  let [cursor, shared, unread, known] = ["", {}, 0, null];
  let [visible, asking, timer, usual] = [[], null, 0, null];

  const option = (name) => store.state.options[name]?.[0] ?? "";
  const set = (name, value, how) => store.option(name, value || null, how);

  const find = el("input", {
    type: "search", id: "run-filter", placeholder: "Filter: text, lr>1e-4, state:broken, tag:baseline", "aria-label": "Filter runs",
    "aria-describedby": "filter-said", autocomplete: "off", spellcheck: "false",
    oninput: debounce(() => set("q", find.value, { replace: true }), 120),
  });
  const said = el("p", { class: "home-said", id: "filter-said", role: "status" });
  const group = el("select", { "aria-label": "Group by", onchange: () => set("group", group.value) });
  const chooser = el("details", { class: "menu home-columns" });
  const archived = el("button", { type: "button", title: "Show runs that were archived", onclick: () => set("archived", option("archived") ? "" : "1") }, "Archived");
  const theme = el("button", { type: "button", class: "quiet", onclick: act.theme, title: "Theme: auto, light or dark  (d)" }, "◐");
  const help = el("button", { type: "button", class: "quiet", onclick: act.help, "aria-label": "Keyboard shortcuts", title: "Keyboard shortcuts  (?)" }, "?");
  theme.setAttribute("aria-label", "Theme");
  const empty = el("div", { class: "home-empty" });
  const manager = createManager({ selection: chosen, row: (id) => rows.get(id), open: act.open, clear: () => store.set({ runs: [] }, { replace: true }), changed: () => refresh(true) });
  host.append(
    el("div", { class: "home-bar" }, el("label", { class: "home-find" }, icon("find"), find), el("label", { class: "home-group" }, el("span", { class: "tool-name" }, "Group by"), group), chooser, archived, el("span", { class: "home-last" }, theme, help)),
    el("div", { class: "home-line" }, said, manager.element),
    empty,
  );
  const grid = createGrid(host, "Runs");
  narrow.addEventListener("change", () => (usual = null, show()));
  document.addEventListener("click", (event) => chooser.open && !chooser.contains(event.target) && (chooser.open = false));
  chooser.addEventListener("keydown", (event) => event.key === "Escape" && ((chooser.open = false), chooser.querySelector("summary").focus()));

  function chosen() {
    return store.state.runs.filter((id) => rows.has(id));
  }

  const columns = () => {
    const asked = option("cols").split(",").filter((key) => key && columnOf(key, shared));
    usual ??= usualColumns([...rows.values()], narrow.matches);
    return asked.length ? asked : usual;
  };

  const filterOf = (all) =>
    readFilter(option("q"), new Set([...Object.keys(shared), ...all.flatMap((row) => Object.keys(row.settings))]), shared);

  /** Everything in its place, from what is known now. */
  function show() {
    if (find !== document.activeElement) find.value = option("q");
    const all = [...rows.values()];
    const filter = filterOf(all);
    const away = Boolean(option("archived")) || filter.archived;
    visible = inOrder(all.filter((row) => (away || !row.archived) && filter.test(row)), option("sort"), shared);
    const keys = columns();
    const width = (key) => (narrow.matches && key === "state" ? STATE_NARROW : columnOf(key, shared).width);
    grid.widths([CHECK_WIDTH, narrow.matches ? NAME_NARROW : NAME.width, ...keys.map(width)], 2 + keys.indexOf("state"));
    showHead(keys);
    grid.show(items(keys));
    showChoices(all, keys);
    showWords(all, filter);
    manager.show();
  }

  function items(keys) {
    const by = option("group");
    const look = keys.join();
    const selected = new Set(store.state.runs);
    const rowOf = (row) => ({ key: row.id, of: [row, look, selected.has(row.id), shared], make: () => runRow(row, keys, selected.has(row.id)) });
    if (!by) return visible.map(rowOf);
    return inGroups(visible, by, shared).flatMap((each) => {
      const open = !folded.has(each.key);
      const tally = tallyOf(each.rows);
      const title = { key: each.key, of: [open, each.label, tally, keys.length], make: () => groupRow(each, open, tally, keys.length) };
      return [title, ...(open ? each.rows.map(rowOf) : [])];
    });
  }

  function groupRow({ key, label, rows: inside }, open, tally, width) {
    const flip = () => (open ? folded.add(key) : folded.delete(key), show());
    const all = el("input", { type: "checkbox", "aria-label": `Choose the ${inside.length} runs of ${label}`, onchange: () => pick(inside.map((row) => row.id), all.checked), "data-part": "box" });
    return el("tr", { class: "group-row" },
      el("td", { class: "pick" }, all),
      el("td", { colspan: width + 1 }, el("button", { type: "button", class: "quiet group-title", "aria-expanded": String(open), onclick: flip, "data-part": "title" }, icon(open ? "down" : "next"), el("strong", {}, label), el("span", { class: "dim" }, `${countedRuns(inside.length)}: ${tally}`))));
  }

  function runRow(row, keys, picked) {
    const box = el("input", { type: "checkbox", checked: picked, "aria-label": `Choose ${row.id}`, onchange: () => pick([row.id], box.checked), "data-part": "box" });
    const there = address({ ...store.state, tab: "overview", runs: [row.id], options: {}, full: "" });
    const link = el("a", { href: there, class: "cut", title: row.id, "data-part": "link", onclick: (event) => follow(event, row.id) }, row.name);
    const cells = keys.map((key) => el("td", { class: columnOf(key, shared).right ? "right" : "", "data-column": key }, el("div", { class: "cell" }, cell(row, key, shared))));
    const place = row.id !== row.name && el("span", { class: "cut dim run-place" }, row.name === row.id.split("/").pop() ? row.folder : row.id);
    const name = el("th", { scope: "row" }, el("div", { class: "cell name" }, link, place, row.archived && el("span", { class: "tag" }, "archived")));
    return el("tr", { class: picked ? "picked" : "", "data-run-row": row.id, "data-state": row.state }, el("td", { class: "pick" }, box), name, cells);
  }

  function follow(event, id) {
    if (event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    act.open("overview", [id]);
  }

  function pick(ids, on) {
    const left = store.state.runs.filter((id) => !ids.includes(id));
    store.set({ runs: on ? [...left, ...ids] : left }, { replace: true });
  }

  function showHead(keys) {
    const sort = option("sort");
    const all = el("input", { type: "checkbox", "aria-label": "Choose every run that is shown", onchange: () => pick(visible.map((row) => row.id), all.checked) });
    all.checked = visible.length > 0 && visible.every((row) => store.state.runs.includes(row.id));
    const title = (key) => {
      const column = columnOf(key, shared);
      const way = sort.replace(/^-/, "") === key ? (sort.startsWith("-") ? "descending" : "ascending") : null;
      const button = el("button", { type: "button", class: "quiet", title: column.whole ?? null, onclick: () => set("sort", nextSort(key, sort, column.down)) }, el("span", { class: "cut" }, column.title), way && el("span", { "aria-hidden": "true" }, way === "ascending" ? " ▲" : " ▼"));
      return el("th", { scope: "col", class: column.right ? "right" : "", "aria-sort": way, "data-head": key }, button);
    };
    const held = grid.head.contains(document.activeElement) ? document.activeElement.closest("th")?.dataset.head : null;
    grid.head.replaceChildren(el("tr", {}, el("th", { class: "pick" }, all), title("name"), keys.map(title)));
    if (held) grid.head.querySelector(`[data-head="${held}"] button`)?.focus({ preventScroll: true });
  }

  /** What a column's title does next: its better direction, the other one, then worst first again. */
  function nextSort(key, sort, down) {
    const order = down ? [`-${key}`, key, ""] : [key, `-${key}`, ""];
    return order[(order.indexOf(sort) + 1) % order.length];
  }

  function showChoices(all, keys) {
    const found = differing(all);
    const several = found.filter((each) => each.count < all.length);
    const groups = [["", "nothing"], [FOLDER, "folder"], ...several.map((each) => [each.name, each.name])];
    const by = option("group");
    if (by && !groups.some(([value]) => value === by)) groups.push([by, by]);
    const now = JSON.stringify([groups, keys, found, Boolean(option("cols"))]);
    group.value = by;
    archived.setAttribute("aria-pressed", String(Boolean(option("archived"))));
    archived.hidden = !all.some((row) => row.archived);
    if (known === now) return;
    known = now;
    group.replaceChildren(...groups.map(([value, label]) => el("option", { value }, label)));
    group.value = by;
    const offered = [...Object.keys(COLUMNS), ...found.map((each) => settingColumn(each.name))];
    const box = (key) => {
      const { title, whole } = columnOf(key, shared);
      return el("label", { class: "check" }, el("input", { type: "checkbox", checked: keys.includes(key), onchange: (event) => choose(key, event.target.checked) }), whole ?? title);
    };
    const choose = (key, on) => set("cols", (on ? [...columns(), key] : columns().filter((each) => each !== key)).join(","));
    const left = offered.filter((key) => !keys.includes(key)).length;
    const held = chooser.contains(document.activeElement) ? [...chooser.querySelectorAll("input")].indexOf(document.activeElement) : -1;
    const scrolled = chooser.querySelector(".checks")?.scrollTop ?? 0;
    chooser.replaceChildren(
      el("summary", {}, left ? `Columns, +${left} more` : "Columns"),
      el("div", { class: "checks", role: "group", "aria-label": "Columns" }, el("p", {}, el("button", { type: "button", onclick: () => set("cols", "") }, "Usual ones")), offered.map(box)),
    );
    chooser.querySelector(".checks").scrollTop = scrolled;
    if (held >= 0) chooser.querySelectorAll("input")[held]?.focus();
  }

  function showWords(all, filter) {
    const away = all.filter((row) => row.archived).length;
    const shown = visible.length === all.length ? countedRuns(all.length) : `${count(visible.length)} of ${countedRuns(all.length)}`;
    const hidden = unread - visible.filter((row) => !row.state).length; // the others are in the tally
    const rest = [hidden > 0 ? `${count(hidden)} more still being read` : "", away && !option("archived") && !filter.archived ? `${away} archived` : ""].filter(Boolean);
    const text = `${[shown + (visible.length ? `: ${tallyOf(visible)}` : ""), ...rest].join(" · ")}${filter.problem ? ` · ${filter.problem}` : ""}`;
    if (said.textContent !== text) said.textContent = text;
    said.classList.toggle("trouble", Boolean(filter.problem));
    const nothing = !all.length ? ["No runs here yet", "The served folder contains no run.db and no readable log. Start a training with the meter, or try gradiometer demo; the page updates automatically."] : !visible.length ? ["No run matches", "Clear the filter to see them all."] : null;
    empty.replaceChildren(...(nothing ? [el("div", { class: "empty whole" }, el("h2", { class: "empty-title" }, nothing[0]), el("p", {}, nothing[1]))] : []));
    grid.box.hidden = Boolean(nothing);
  }

  /** Ask for what is new; `whole` for everything. @throws what `ask` throws */
  async function refresh(whole = false) {
    asking?.abort();
    const mine = (asking = new AbortController());
    clearTimeout(timer);
    let told = null;
    try {
      told = await ask(`/table.json${cursor && !whole ? `?after=${cursor}` : ""}`, mine.signal);
    } catch (error) {
      if (mine.signal.aborted) return; // a newer question stands in its place
      throw error;
    }
    asking = null;
    const before = rows.size;
    if (told.whole) (rows.clear(), (shared = told.shared));
    for (const row of told.rows) rows.set(row.id, row);
    cursor = told.cursor;
    unread = told.unread;
    manager.allow(told.write);
    if (told.whole || before !== rows.size || told.rows.length) usual = null;
    if (told.whole || told.rows.length) show();
    else showWords([...rows.values()], filterOf([...rows.values()]));
    if (unread && !host.hidden) timer = setTimeout(() => refresh().catch(() => {}), READING);
  }

  return {
    find,
    /** The first question, or the next. */
    async load() {
      await refresh();
      if (!performance.getEntriesByName("table").length) {
        await painted();
        performance.mark("table");
      }
    },
    tick: () => refresh(),
    show,
    /** Nobody looks any more. */
    leave() {
      clearTimeout(timer);
      asking?.abort();
    },
    get most() {
      return MOST_RUNS;
    },
  };
}
