/** A view is asked for while the pointer rests on its tab: the answer is on its way when it clicks. */

import { askView } from "./api.js";

const HOVER = 60; // the pointer stays so long on a tab that it means it
const FRESH = 2000; // an older answer is asked for again

/**
 * @param {HTMLElement} tabs the links, each with `data-tab`
 * @param {(tab: string) => ?string} queryOf what would be asked on a tab; null where nothing is
 */
export function createForesight(tabs, queryOf) {
  let coming = null;
  let hovering = 0;

  function ask(tab) {
    const query = queryOf(tab);
    if (query === null || (coming?.tab === tab && coming.query === query)) return;
    coming?.gone.abort();
    const gone = new AbortController();
    const mine = { tab, query, gone, since: performance.now(), view: askView(tab, query, "", gone.signal) };
    mine.view.catch(() => coming === mine && (coming = null));
    coming = mine;
  }

  tabs.addEventListener("pointerover", (event) => {
    clearTimeout(hovering);
    const tab = event.target.closest("a[data-tab]")?.dataset.tab;
    if (tab && event.pointerType === "mouse") hovering = setTimeout(() => ask(tab), HOVER);
  });
  tabs.addEventListener("pointerleave", () => clearTimeout(hovering));

  return {
    /** The view of a tab: the one that is coming, if it is the same question and not old, or a fresh answer. */
    view(tab, query, signal) {
      const found = coming;
      coming = null;
      const same = found && found.tab === tab && found.query === query && performance.now() - found.since < FRESH;
      return same ? found.view : askView(tab, query, "", signal);
    },
  };
}
