/** Building the page: elements, icons and the few timing helpers. Text always goes in as text, never as markup. */

/**
 * An element. `class`, attributes, `dataset`, and `on<event>` functions come in `props`; null and false are left out.
 * @param {string} tag
 * @param {Object<string, any>} [props]
 * @param {...(Node|string|number|null|false|undefined|Array)} children
 * @returns {HTMLElement}
 */
export function el(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(made.dataset, value);
    else if (name === "value" || name === "checked" || name === "selected") made[name] = value;
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";
const ICONS = {
  critical: ["M8.2 2h7.6L22 8.2v7.6L15.8 22H8.2L2 15.8V8.2z", "M8.8 8.8l6.4 6.4m0-6.4l-6.4 6.4"],
  warn: ["M12 3L22.3 21H1.7z", "M12 9.5v5.2m0 2.6v.4"],
  info: ["M12 2a10 10 0 1 0 .01 0z", "M12 11v6m0-10.2v.4"],
  fine: ["M12 2a10 10 0 1 0 .01 0z", "M7.4 12.4l3.2 3.2 6-6.6"],
  unknown: ["M12 2a10 10 0 1 0 .01 0z", "M9.3 9.3c.2-3.2 5.6-3.2 5.6.1 0 2.2-2.9 2.4-2.9 4.8m0 2.9v.4"],
};
const STROKES = {
  about: ["M12 2.8a9.2 9.2 0 1 0 .01 0z", "M12 11v6m0-10v.4"],
  picture: ["M3.5 5h17v14h-17z", "M3.5 16l5-5 4 4 3-3 5 4.6", "M15.6 8.6v.2"],
  vector: ["M5 19C5 10 10 5 19 5", "M3 17h4v4H3z", "M17 3h4v4h-4z"],
  sheet: ["M12 3.5v11m-4.5-4L12 15l4.5-4.5", "M4 16v4.5h16V16"],
  full: ["M4 9V4h5m6 0h5v5m0 6v5h-5m-6 0H4v-5"],
  close: ["M5 5l14 14M19 5L5 19"],
  copy: ["M9 9h11v11H9z", "M5 15H4V4h11v1"],
  menu: ["M3.5 6.5h17m-17 5.5h17m-17 5.5h17"],
  before: ["M15 4.5L7.5 12l7.5 7.5"],
  next: ["M9 4.5l7.5 7.5L9 19.5"],
  down: ["M4.5 9l7.5 7.5L19.5 9"],
  find: ["M10.5 4a6.5 6.5 0 1 0 .01 0z", "M15.3 15.3L21 21"],
  dials: ["M4 7h9m5 0h2M4 17h3m5 0h8", "M15.5 4.8a2.2 2.2 0 1 0 .01 0z", "M9.5 14.8a2.2 2.2 0 1 0 .01 0z"],
};

/**
 * A small drawing beside a text or inside a named button; screen readers skip it.
 * @param {string} name
 * @returns {SVGElement}
 */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const paths = ICONS[name] ?? STROKES[name];
  for (const [key, value] of Object.entries({ viewBox: "0 0 24 24", "aria-hidden": "true", class: "glyph" }))
    svg.setAttribute(key, value);
  paths.forEach((line, place) => {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", line);
    path.setAttribute("class", ICONS[name] && place === 0 ? "body" : ICONS[name] ? "sign" : "stroke");
    svg.append(path);
  });
  return svg;
}

/**
 * A button with a drawing and a spoken name.
 * @param {string} name the drawing
 * @param {string} label
 * @param {(event: Event) => void} act
 * @param {Object<string, any>} [props]
 */
export function iconButton(name, label, act, props = {}) {
  const { class: more, ...rest } = props;
  const shape = { type: "button", class: `quiet icon ${more ?? ""}`.trim(), "aria-label": label, title: label };
  return el("button", { ...shape, onclick: act, ...rest }, icon(name));
}

/**
 * Put children in the place of what is there, unless the content they stand for is the same as last time: so folds
 * stay open, texts stay selected and the focus stays where it is.
 * @param {HTMLElement} host
 * @param {any} content
 * @param {() => (Node|string|null|false|Array)} build
 * @returns {boolean} whether it was built anew
 */
export function refresh(host, content, build) {
  const now = JSON.stringify(content);
  if (host.shown === now) return false;
  host.shown = now;
  host.replaceChildren(...[build()].flat(Infinity).filter(Boolean));
  return true;
}

/** Call `act` once things have been quiet for `wait` milliseconds; `.now()` calls at once what is waiting. */
export function debounce(act, wait) {
  let timer = 0;
  let waiting = null;
  const late = (...given) => {
    clearTimeout(timer);
    waiting = given;
    timer = setTimeout(late.now, wait);
  };
  late.now = () => {
    clearTimeout(timer);
    const given = waiting;
    waiting = null;
    if (given) act(...given);
  };
  late.cancel = () => {
    clearTimeout(timer);
    waiting = null;
  };
  return late;
}

/** Call `act` at most once a frame, with the newest arguments. */
export function onceAFrame(act) {
  let waiting = null;
  return (...given) => {
    const idle = waiting === null;
    waiting = given;
    if (!idle) return;
    requestAnimationFrame(() => {
      const newest = waiting;
      waiting = null;
      act(...newest);
    });
  };
}

/** Wait until the browser has painted what is there now (or a moment, where nothing is painted). */
export function painted() {
  return new Promise((done) => {
    const late = setTimeout(done, 120);
    requestAnimationFrame(() => setTimeout(() => (clearTimeout(late), done()), 0));
  });
}

/** Lines of code with a button that copies them. */
export function codeBlock(code) {
  const said = el("span", { class: "said", role: "status" });
  const copy = iconButton("copy", "Copy", async () => {
    try {
      await navigator.clipboard.writeText(code);
      said.textContent = "copied";
    } catch {
      getSelection()?.selectAllChildren(lines);
      said.textContent = "selected: press Ctrl+C";
    }
    setTimeout(() => (said.textContent = ""), 2500);
  });
  const lines = el("code", {}, code);
  return el("div", { class: "code" }, el("pre", {}, lines), el("div", { class: "copy" }, said, copy));
}

/** Hand the reader a file. */
export function download(blob, name) {
  const address = URL.createObjectURL(blob);
  const link = el("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** "3 min ago" of a time in seconds since the epoch. */
export function ago(seconds, now = Date.now() / 1000) {
  const past = Math.max(0, now - seconds);
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]])
    if (past >= length) return `${Math.floor(past / length)} ${unit} ago`;
  return past < 10 ? "now" : `${Math.floor(past)} s ago`;
}

/** A whole number with thin spaces between the thousands. */
export function count(number) {
  return number === null || number === undefined ? "" : String(number).replace(/\B(?=(\d{3})+(?!\d))/g, "\u2009");
}

/** `1 run`, `2 000 runs`. @param {number} number */
export function countedRuns(number) {
  return `${count(number)} ${number === 1 ? "run" : "runs"}`;
}
