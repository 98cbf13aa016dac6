/** A table of which only the rows in sight exist: thousands scroll as smoothly as ten. */

import { el, onceAFrame } from "./dom.js";

const HEIGHT = 34;
const AROUND = 8; // rows kept above and below what is in sight

/**
 * @typedef {Object} Item a row: what makes it, and what it is made of, by which it is seen to be the same
 * @property {string} key @property {any[]} of @property {() => HTMLTableRowElement} make
 */

/**
 * @param {HTMLElement} host
 * @param {string} label
 */
export function createGrid(host, label) {
  const made = new Map();
  let items = [];
  const columns = el("colgroup");
  const head = el("thead");
  const body = el("tbody");
  const table = el("table", { class: "run-grid" }, el("caption", { class: "unseen" }, label), columns, head, body);
  const box = el("div", { class: "grid-box", tabindex: 0, role: "region", "aria-label": label, onscroll: onceAFrame(draw) }, table);
  const [above, below] = [0, 1].map(() => el("tr", { class: "room", "aria-hidden": "true" }, el("td")));
  host.append(box);
  new ResizeObserver(onceAFrame(draw)).observe(box);
  body.addEventListener("keydown", move);

  /** Up and down go from row to row, in the same column. */
  function move(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const row = event.target.closest("tr");
    if (!by || !row || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const which = [...row.querySelectorAll("input, a, button")].indexOf(event.target);
    for (let at = Number(row.dataset.at) + by; at >= 0 && at < items.length; at += by) {
      bringIn(at);
      const inside = made.get(items[at].key)?.element.querySelectorAll("input, a, button") ?? [];
      if (inside.length) return inside[Math.min(Math.max(which, 0), inside.length - 1)].focus({ preventScroll: true });
    }
  }

  function bringIn(at) {
    const [top, room] = [at * HEIGHT, box.clientHeight - head.offsetHeight - HEIGHT];
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top > box.scrollTop + room) box.scrollTop = top - room;
    draw();
  }

  function draw() {
    const seen = Math.ceil(box.clientHeight / HEIGHT);
    const first = Math.max(0, Math.min(items.length, Math.floor(box.scrollTop / HEIGHT)) - AROUND);
    const last = Math.min(items.length, first + seen + 2 * AROUND);
    const held = document.activeElement?.closest?.("tr")?.dataset.key;
    const wanted = [];
    for (let at = first; at < last; at++) wanted.push(element(items[at], at));
    const now = new Set(items.slice(first, last).map((item) => item.key));
    for (const [key, { element: row }] of made) if (!now.has(key) && key !== held) (row.remove(), made.delete(key));
    above.style.height = `${first * HEIGHT}px`;
    below.style.height = `${(items.length - last) * HEIGHT}px`;
    above.hidden = first === 0;
    below.hidden = last === items.length;
    place([above, ...wanted, below]);
  }

  function element(item, at) {
    const known = made.get(item.key);
    const same = known && known.of.length === item.of.length && known.of.every((each, place) => each === item.of[place]);
    const row = same ? known.element : item.make();
    if (!same) {
      const inside = known?.element.contains(document.activeElement) ? document.activeElement.dataset.part : null;
      known?.element.replaceWith(row);
      if (inside) row.querySelector(`[data-part="${inside}"]`)?.focus({ preventScroll: true });
      made.set(item.key, { element: row, of: item.of });
    }
    row.dataset.key = item.key;
    row.dataset.at = String(at);
    row.setAttribute("aria-rowindex", String(at + 2));
    return row;
  }

  /** Children in order, moving only those that are not where they should be: a row that has the focus keeps it. */
  function place(wanted) {
    let next = body.firstChild;
    for (const row of wanted) {
      if (row === next) next = next.nextSibling;
      else body.insertBefore(row, next);
    }
    while (next) {
      const { nextSibling } = next;
      if (!next.contains(document.activeElement)) next.remove();
      next = nextSibling;
    }
  }

  return {
    box,
    head,
    /** @param {number[]} widths of the columns, in pixels @param {number} wide the column that takes what room is left */
    widths(widths, wide) {
      columns.replaceChildren(...widths.map((width, at) => el("col", { style: at === wide ? "" : `width:${width}px` })));
      table.style.minWidth = `${widths.reduce((sum, each) => sum + each, 0)}px`;
    },
    /** @param {Item[]} next */
    show(next) {
      items = next;
      table.setAttribute("aria-rowcount", String(items.length + 1));
      draw();
    },
    top() {
      box.scrollTop = 0;
    },
  };
}
