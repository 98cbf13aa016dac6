/** The run picker: search, choose, focus. Rows are made once per run and changed in place, so hundreds stay quick. */

import { ago, count, countedRuns, debounce, el, iconButton } from "./dom.js";
import { MOST_RUNS } from "./state.js";
import { swatch } from "./words.js";

/**
 * @typedef {Object} PickerActions
 * @property {(ids: string[]) => void} choose these runs, the first in focus; none: the newest
 * @property {() => void} close the drawer
 */

/**
 * @param {HTMLElement} host
 * @param {PickerActions} act
 */
export function createPicker(host, act) {
  const rows = new Map();
  let order = [];
  let shown = [];
  let matching = [];
  let theme = "light";

  const search = el("input", {
    type: "search",
    id: "run-search",
    placeholder: "Search runs  (regex)",
    "aria-label": "Search runs by regular expression",
    autocomplete: "off",
    spellcheck: "false",
    oninput: debounce(filter, 60),
    onkeydown: (event) => event.key === "Escape" && ((search.value = ""), filter()),
  });
  const said = el("p", { class: "picker-said", role: "status" });
  const list = el("ul", { class: "runs", "aria-label": "Runs" });
  const all = el("button", { type: "button", onclick: chooseMatching, title: "Show every run that matches the search" }, "All matching");
  const none = el("button", { type: "button", onclick: () => act.choose([]), title: "Clear the choice: the newest run is shown" }, "None");
  host.append(
    el("div", { class: "picker-head" }, el("h2", { class: "section-name" }, "Runs"), iconButton("close", "Close the runs panel", act.close, { class: "drawer-only" })),
    el("div", { class: "picker-find" }, search, el("div", { class: "picker-bulk" }, all, none, said)),
    list,
  );

  list.addEventListener("change", (event) => {
    const id = event.target.closest("[data-run]").dataset.run;
    const left = shown.filter((other) => other !== id);
    act.choose(event.target.checked ? [...left, id] : left);
    if (!event.target.checked && !left.length) sync();
  });
  list.addEventListener("click", (event) => {
    const row = event.target.closest("[data-run]");
    const button = event.target.closest("button");
    if (!row || !button) return;
    const { run } = row.dataset;
    act.choose(button.classList.contains("only") ? [run] : [run, ...shown.filter((other) => other !== run)]);
  });
  setInterval(() => document.hidden || order.forEach((card) => sayMeta(rows.get(card.id), card)), 20_000);

  function filter() {
    let test = () => true;
    try {
      const pattern = new RegExp(search.value, "i");
      test = (card) => pattern.test(card.id);
      search.removeAttribute("aria-invalid");
    } catch {
      search.setAttribute("aria-invalid", "true"); // half typed: look for it as it stands
      test = (card) => card.id.toLowerCase().includes(search.value.toLowerCase());
    }
    matching = order.filter(test);
    const kept = new Set(matching.map((card) => card.id));
    for (const [id, row] of rows) row.element.hidden = !kept.has(id);
    say();
  }

  function say() {
    const chosen = shown.length;
    const found = search.value ? `${matching.length} of ${order.length} match` : countedRuns(order.length);
    said.textContent = `${found}, ${chosen} shown`;
  }

  function chooseMatching() {
    const readable = matching.filter((card) => card.state !== "unreadable").map((card) => card.id);
    const kept = readable.includes(shown[0]) ? [shown[0], ...readable.filter((id) => id !== shown[0])] : readable;
    if (kept.length) act.choose(kept.slice(0, MOST_RUNS));
    if (kept.length > MOST_RUNS) said.textContent = `the newest ${MOST_RUNS} of ${kept.length}: more at once cannot be shown`;
  }

  function makeRow(card) {
    const cut = card.id.length - card.name.length;
    const box = el("input", { type: "checkbox", "aria-label": `Show ${card.id}` });
    const meta = el("span", { class: "run-meta" });
    const mark = swatch(card, theme);
    const name = el(
      "button",
      { type: "button", class: "run-pick", title: card.id, "aria-label": `Put ${card.id} in focus` },
      el("span", { class: "run-path" }, cut > 0 ? card.id.slice(0, cut) : ""),
      el("span", { class: "run-last" }, cut > 0 ? card.id.slice(cut) : card.id),
    );
    const only = el("button", { type: "button", class: "only", "aria-label": `Only ${card.id}` }, "only");
    const element = el("li", { class: "run", dataset: { run: card.id } }, box, mark, name, only, meta);
    return { element, box, meta, mark, said: "" };
  }

  function sayMeta(row, card) {
    if (!row) return;
    const step = card.newest_step === null ? "" : `step ${count(card.newest_step)}`;
    const kind = card.kind && card.kind !== "run" ? card.kind : "";
    const parts = card.state === "unreadable" ? ["cannot be read"] : [card.state === "live" ? "live" : "", step, card.changed ? ago(card.changed) : "", kind];
    const text = parts.filter(Boolean).join(" · ");
    if (row.said !== text) row.meta.textContent = row.said = text;
    row.element.dataset.state = card.state;
    row.element.title = card.problem;
    row.box.disabled = card.state === "unreadable";
    row.element.querySelectorAll("button").forEach((button) => (button.disabled = card.state === "unreadable"));
  }

  function sync() {
    const chosen = new Set(shown);
    for (const [id, row] of rows) {
      row.box.checked = chosen.has(id);
      row.element.classList.toggle("shown", chosen.has(id));
      const focus = id === shown[0];
      row.element.classList.toggle("focus", focus);
      row.element.toggleAttribute("aria-current", focus);
    }
    say();
  }

  return {
    /** Every run there is, the newest first. */
    fill(cards) {
      order = cards;
      const there = new Set(cards.map((card) => card.id));
      for (const [id, row] of rows) if (!there.has(id)) (row.element.remove(), rows.delete(id));
      for (const card of cards) {
        if (!rows.has(card.id)) rows.set(card.id, makeRow(card));
        sayMeta(rows.get(card.id), card);
      }
      const elements = cards.map((card) => rows.get(card.id).element);
      if (elements.some((each, place) => list.children[place] !== each)) list.replaceChildren(...elements);
      filter();
      sync();
    },
    /** One run changed. */
    touch(card) {
      sayMeta(rows.get(card.id), card);
    },
    /** These are on show, the first in focus. */
    show(ids) {
      shown = ids;
      sync();
    },
    /** The run after (or before) the one in focus, in the order of the list: among those on show when there are several. */
    beside(by) {
      const open = matching.filter((card) => card.state !== "unreadable" && (shown.length < 2 || shown.includes(card.id)));
      if (!open.length) return null;
      const place = open.findIndex((card) => card.id === shown[0]);
      return open[(place + by + open.length) % open.length].id;
    },
    recolour(next) {
      theme = next;
      for (const card of order) {
        const row = rows.get(card.id);
        const mark = swatch(card, theme);
        row.mark.replaceWith(mark);
        row.mark = mark;
      }
    },
    search,
  };
}
