/** What can be done with the chosen runs: open, compare, and where the server allows it name, tag, archive and delete. */

import { el } from "./dom.js";
import { MOST_RUNS } from "./state.js";

/**
 * @typedef {Object} ManagerActions
 * @property {() => string[]} selection ids
 * @property {(id: string) => object} row
 * @property {(tab: string, ids: string[]) => void} open
 * @property {() => void} clear
 * @property {() => Promise<void>} changed
 */

/** @param {ManagerActions} act */
export function createManager(act) {
  let allowed = false;
  const said = el("span", { class: "chosen-said" });
  const button = (text, does, props = {}) => el("button", { type: "button", onclick: does, ...props }, text);
  const open = button("Open", () => act.open("overview", few()));
  const compare = button("Compare", () => act.open("compare", few()), { class: "main-action" });
  const clear = button("Clear", act.clear, { class: "quiet" });
  const element = el("div", { class: "chosen", role: "group", "aria-label": "Chosen runs", hidden: true }, said, open, compare, clear);
  const few = () => act.selection().slice(0, MOST_RUNS);

  return {
    element,
    allow(write) {
      allowed = write;
    },
    show() {
      const ids = act.selection();
      element.hidden = !ids.length;
      compare.disabled = ids.length < 2;
      said.textContent = ids.length > MOST_RUNS ? `${ids.length} chosen; the first ${MOST_RUNS} are opened` : `${ids.length} chosen`;
      return allowed;
    },
  };
}
