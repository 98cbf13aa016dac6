/** Tabs that have nothing to show of the chosen runs are grey, and say what would fill them. */

/** @param {HTMLElement} host the tabs @param {Object<string, string>} bare by tab, what would fill it */
export function greyTabs(host, bare = {}) {
  for (const link of host.querySelectorAll("a[data-tab]")) {
    const words = bare[link.dataset.tab];
    link.classList.toggle("bare", Boolean(words));
    if (words) link.title = words;
    else link.removeAttribute("title");
  }
}
