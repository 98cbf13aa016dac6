/** What a view lets the reader choose. Each control sets a parameter of the URL, and the view is asked anew. */

import { debounce, el, iconButton } from "./dom.js";

const MANY = 12;

/**
 * @param {HTMLElement} host
 * @param {(name: string, values: string|string[]|null, how?: {replace: boolean}) => void} choose
 */
export function createControls(host, choose) {
  /** @type {Map<string, {control: object, shape: string, element: HTMLElement, set: (control: object) => void}>} */
  let built = new Map();
  /** Values that the server gave without being told: choosing one of them again takes the parameter out. */
  const defaults = new Map();

  function pick(control, values, how) {
    const usual = control.kind !== "slider" && defaults.get(control.name) === String(values);
    choose(control.name, usual ? null : values, how);
  }

  return {
    /**
     * Show these controls; those that are there keep their element, the focus and what is being typed.
     * @param {object[]} controls
     * @param {Object<string, string[]>} options the parameters in the URL
     */
    show(controls, options) {
      const next = new Map();
      for (const control of controls) {
        if (!(control.name in options)) defaults.set(control.name, control.value);
        const shape = JSON.stringify([control.kind, control.label, control.options, control.hint]);
        const had = built.get(control.name);
        const kept = had?.shape === shape ? had : { shape, ...BUILD[control.kind](control, pick) };
        kept.set(control);
        next.set(control.name, kept);
      }
      const focused = document.activeElement?.closest?.("[data-control]")?.dataset.control;
      built = next;
      const elements = [...next.values()].map((each) => each.element);
      if (elements.length !== host.children.length || elements.some((each, place) => host.children[place] !== each)) {
        host.replaceChildren(...elements);
        const again = host.querySelector(`[data-control="${CSS.escape(focused ?? "")}"] :is(input, select, button)`);
        again?.focus({ preventScroll: true });
      }
      host.hidden = elements.length === 0;
    },
    /** Other runs, another tab: what was usual is no longer known. */
    forget() {
      defaults.clear();
    },
  };
}

function labelled(control, ...parts) {
  return el(
    "div",
    { class: `control ${control.kind}`, dataset: { control: control.name }, title: control.hint || null },
    el("label", { for: `control-${control.name}` }, control.label),
    ...parts,
    control.hint && el("span", { class: "hint", id: `hint-${control.name}` }, control.hint),
  );
}

const common = (control) => ({
  id: `control-${control.name}`,
  name: control.name,
  "aria-describedby": control.hint ? `hint-${control.name}` : null,
});

const BUILD = {
  choice(control, pick) {
    const select = el(
      "select",
      { ...common(control), onchange: () => pick(control, select.value) },
      control.options.map((option) => el("option", { value: option.value }, option.label)),
    );
    return { element: labelled(control, select), set: ({ value }) => (select.value = value) };
  },

  slider(control, pick) {
    const last = control.options.length - 1;
    const settle = debounce(() => pick(control, control.options[range.value].value, { replace: true }), 160);
    const say = () => {
      const label = control.options[range.value]?.label ?? "";
      output.textContent = label;
      range.setAttribute("aria-valuetext", label);
      before.disabled = Number(range.value) <= 0;
      next.disabled = Number(range.value) >= last;
    };
    const move = (by) => {
      range.value = Number(range.value) + by;
      say();
      settle();
    };
    const range = el("input", {
      ...common(control),
      type: "range",
      min: 0,
      max: Math.max(last, 0),
      step: 1,
      disabled: last < 1,
      oninput: () => (say(), settle()),
    });
    const output = el("output", { for: `control-${control.name}` });
    const before = iconButton("before", `Previous ${control.label.toLowerCase()}`, () => move(-1));
    const next = iconButton("next", `Next ${control.label.toLowerCase()}`, () => move(1));
    const set = ({ value }) => {
      if (document.activeElement === range && range.matches(":active")) return;
      range.value = Math.max(0, control.options.findIndex((option) => option.value === value));
      say();
    };
    return { element: labelled(control, el("span", { class: "slide" }, before, range, next, output)), set };
  },

  many(control, pick) {
    const boxes = control.options.map((option) => el("input", { type: "checkbox", name: control.name, value: option.value, onchange: () => tell() }));
    const tell = () => {
      const values = boxes.filter((box) => box.checked).map((box) => box.value);
      pick(control, values.length ? values : [""]);
      say();
    };
    const all = (checked) => {
      boxes.forEach((box, place) => labels[place].hidden || (box.checked = checked));
      tell();
    };
    const summary = el("summary", { ...common(control), "aria-label": control.label });
    const say = () => {
      const chosen = boxes.filter((box) => box.checked).length;
      summary.textContent = chosen === boxes.length ? "all" : chosen ? `${chosen} of ${boxes.length}` : "none";
      summary.setAttribute("aria-label", `${control.label}: ${summary.textContent}`);
    };
    const find = el("input", { type: "search", placeholder: "Search", "aria-label": `Search ${control.label.toLowerCase()}`, oninput: () => narrow() });
    const labels = control.options.map((option, place) => el("label", { class: "check" }, boxes[place], option.label));
    const narrow = () => labels.forEach((label) => (label.hidden = !label.textContent.toLowerCase().includes(find.value.toLowerCase())));
    const list = el(
      "div",
      { class: "checks", role: "group", "aria-label": control.label },
      el("p", {}, el("button", { type: "button", onclick: () => all(true) }, "All"), el("button", { type: "button", onclick: () => all(false) }, "None")),
      boxes.length > MANY && find,
      labels,
    );
    const element = labelled(control, el("details", { class: "menu" }, summary, list));
    element.querySelector("label").removeAttribute("for");
    const set = ({ value }) => {
      const chosen = new Set(value.split(",").map((each) => each.trim()));
      boxes.forEach((box) => (box.checked = chosen.has(box.value) || box.value === value));
      say();
    };
    return { element, set };
  },

  text(control, pick) {
    // What is a good pattern is for the server to say: its regular expressions are Python's.
    const settle = debounce(() => pick(control, input.value, { replace: true }), 350);
    const input = el("input", {
      ...common(control),
      type: "search",
      autocomplete: "off",
      spellcheck: "false",
      list: control.options.length ? `list-${control.name}` : null,
      oninput: settle,
      onchange: () => settle.now(),
    });
    const list = control.options.length
      ? el("datalist", { id: `list-${control.name}` }, control.options.map((option) => el("option", { value: option.value }, option.label)))
      : null;
    const set = ({ value }) => {
      if (document.activeElement !== input) input.value = value;
    };
    return { element: labelled(control, input, list), set };
  },
};
