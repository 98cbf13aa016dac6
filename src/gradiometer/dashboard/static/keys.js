/** Keyboard shortcuts, and the dialog that lists them: one table makes both. */

import { el, iconButton } from "./dom.js";
import { TABS } from "./state.js";

/**
 * @param {Object<string, [string, () => void]>} bindings key to what it does, in words and in deed
 * @returns {{help: () => void}}
 */
export function bindKeys(bindings) {
  const rows = [
    [`1 – ${TABS.length}`, "go to a tab"],
    ...Object.entries(bindings).filter(([key]) => !/^\d$/.test(key)).map(([key, [words]]) => [key, words]),
    ["Esc", "close what is open"],
  ];
  const dialog = el(
    "dialog",
    { class: "help", "aria-labelledby": "help-title" },
    el("header", {}, el("h2", { id: "help-title" }, "Keyboard"), iconButton("close", "Close", () => dialog.close())),
    el("dl", {}, rows.map(([key, words]) => el("div", {}, el("dt", {}, el("kbd", {}, key)), el("dd", {}, words)))),
    el("p", { class: "dim" }, "Drag over a chart to zoom all of them, double-click to go back. Double-click a legend entry to show only that line."),
  );
  document.body.append(dialog);

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || typing(event.target)) return;
    const bound = bindings[event.key];
    if (!bound || (document.querySelector("dialog[open]") && event.key !== "?")) return;
    event.preventDefault();
    bound[1]();
  });
  return { help: () => (dialog.open ? dialog.close() : dialog.showModal()) };
}

function typing(target) {
  if (!(target instanceof Element)) return false;
  if (target.closest("textarea, select, [contenteditable]")) return true;
  const input = target.closest("input");
  return Boolean(input) && !["checkbox", "radio", "range", "button"].includes(input.type);
}
