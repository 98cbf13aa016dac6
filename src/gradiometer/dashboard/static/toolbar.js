/** The toolbar: how every chart of the page is looked at. All of it is in the URL. */

import { el, icon } from "./dom.js";
import { AXES, METRIC, MORE_AXES } from "./state.js";

const USUAL_SMOOTHING = 0.6;

/**
 * @typedef {Object} ToolbarActions
 * @property {(patch: object, how?: {replace: boolean}) => void} set change the state
 * @property {() => void} unzoom
 * @property {() => void} help
 */

/**
 * @param {HTMLElement} host
 * @param {ToolbarActions} act
 */
export function createToolbar(host, act) {
  let state = null;
  let strength = USUAL_SMOOTHING;

  const group = (name, ...parts) => el("div", { class: "tool", role: "group", "aria-label": name }, el("span", { class: "tool-name", "aria-hidden": "true" }, name), ...parts);
  const toggle = (text, name, title, flip) => el("button", { type: "button", class: "toggle", dataset: { tool: name }, title, onclick: flip }, text);

  const axis = el("select", { "aria-label": "x axis", dataset: { tool: "x" }, onchange: chooseAxis });
  const metric = el("input", {
    type: "search",
    class: "metric",
    hidden: true,
    list: "metric-names",
    placeholder: "metric name",
    "aria-label": "Metric on the x axis",
    autocomplete: "off",
    spellcheck: "false",
    dataset: { tool: "metric" },
    onchange: () => metric.value.trim() && setAxis(METRIC + metric.value.trim()),
    onkeydown: (event) => event.key === "Escape" && ((metric.hidden = true), paint()),
  });
  const names = el("datalist", { id: "metric-names" });
  const logx = toggle("log x", "logx", "Logarithmic x axis", () => act.set({ logx: !state.logx }));
  const scales = ["auto", "log", "linear"].map((value) => toggle(value, `y-${value}`, `y axis: ${value}`, () => act.set({ y: value })));
  const off = toggle("off", "smooth-off", "No smoothing  (s)", flipSmoothing);
  const slider = el("input", {
    type: "range",
    min: 0,
    max: 0.99,
    step: 0.01,
    "aria-label": "Smoothing",
    dataset: { tool: "smooth" },
    oninput: () => act.set({ smooth: Number(slider.value) }, { replace: true }),
  });
  const amount = el("output", { class: "amount" });
  const raw = toggle("raw", "raw", "The raw line behind the smoothed one", () => act.set({ raw: !state.raw }));
  const envelope = toggle("envelope", "env", "Lowest and highest values of each point  (e)", () => act.set({ env: !state.env }));
  const unzoom = el("button", { type: "button", dataset: { tool: "reset" }, title: "Show the whole axis  (r)", onclick: act.unzoom }, "Reset zoom");
  const theme = el("button", { type: "button", dataset: { tool: "theme" }, onclick: nextTheme });
  const help = el("button", { type: "button", dataset: { tool: "help" }, "aria-label": "Keyboard shortcuts", title: "Keyboard shortcuts  (?)", onclick: act.help }, "?");
  const fold = el(
    "button",
    { type: "button", class: "tools-fold", "aria-expanded": "false", "aria-controls": "tools", onclick: unfold },
    icon("dials"),
    "Display",
  );
  const tools = el(
    "div",
    { class: "tools", id: "tools" },
    group("x", axis, metric, names, logx),
    group("y", el("span", { class: "segments" }, scales)),
    group("smooth", el("span", { class: "segments" }, off), slider, amount),
    el("div", { class: "tool segments", role: "group", "aria-label": "Lines" }, raw, envelope),
    el("div", { class: "tool last" }, unzoom, theme, help),
  );
  host.append(fold, tools);

  function unfold() {
    const open = host.classList.toggle("open");
    fold.setAttribute("aria-expanded", String(open));
  }

  function chooseAxis() {
    if (axis.value !== METRIC) return setAxis(axis.value);
    metric.hidden = false;
    metric.focus();
  }

  function setAxis(x) {
    metric.hidden = true;
    act.set({ x, xfrom: null, xto: null });
  }

  function flipSmoothing() {
    act.set({ smooth: state.smooth ? 0 : strength });
  }

  function nextTheme() {
    const order = ["auto", "light", "dark"];
    act.set({ theme: order[(order.indexOf(state.theme) + 1) % order.length] });
  }

  function paint() {
    const named = { ...AXES, ...MORE_AXES };
    const own = state.x in named ? {} : { [state.x]: state.x.startsWith(METRIC) ? state.x.slice(METRIC.length) : state.x };
    const options = Object.entries({ ...named, ...own, [METRIC]: "Metric…" });
    axis.replaceChildren(...options.map(([value, label]) => el("option", { value }, label)));
    axis.value = state.x;
    const press = (button, on) => button.setAttribute("aria-pressed", String(on));
    press(logx, state.logx);
    scales.forEach((button) => press(button, button.dataset.tool === `y-${state.y}`));
    press(off, state.smooth === 0);
    press(raw, state.raw);
    press(envelope, state.env);
    slider.value = state.smooth;
    amount.textContent = state.smooth ? state.smooth.toFixed(2) : "";
    unzoom.disabled = [state.from, state.to, state.xfrom, state.xto].every((end) => end === null);
    theme.textContent = `◐ ${state.theme}`;
    theme.setAttribute("aria-label", `Theme: ${state.theme}`);
    theme.title = "Theme: auto, light or dark  (d)";
  }

  return {
    /** Show a state. */
    show(next) {
      state = next;
      if (state.smooth) strength = state.smooth;
      paint();
    },
    /** The series that can be an axis; whether the view has curves, without which most of this does nothing; and charts at all. */
    offer(series, curves, charts) {
      host.classList.toggle("bare", !charts);
      names.replaceChildren(...series.map((name) => el("option", { value: name })));
      for (const each of [axis, logx, off, slider, raw, envelope]) each.disabled = !curves;
    },
    flipSmoothing,
    nextTheme,
    nextAxis() {
      const order = Object.keys(AXES);
      setAxis(order[(order.indexOf(state.x) + 1) % order.length]);
    },
  };
}
