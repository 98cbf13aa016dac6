/** Text for Plotly, which reads a little HTML, and for people, who want it short. */

/** Text as it is, wherever Plotly would see a tag or an entity. @param {unknown} text @returns {string} */
export function escaped(text) {
  return String(text ?? "").replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

/** Both ends of a name that is too long: they tell more than its middle. @param {string} text @param {number} most */
export function shortened(text, most) {
  const letters = [...text];
  if (letters.length <= most) return text;
  const tail = Math.max(1, Math.floor((most - 1) * 0.6));
  return letters.slice(0, Math.max(1, most - 1 - tail)).join("") + "…" + letters.slice(-tail).join("");
}

/** A number with so many significant digits, without a tail of zeros. @param {number} value @param {number} digits */
export function written(value, digits = 4) {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return String(value).replace("-", "−");
  if (size >= 1e6 || size < 1e-4) {
    const [front, power] = value.toExponential(digits - 1).split("e");
    return `${bare(front)}e${Number(power)}`.replaceAll("-", "−");
  }
  return bare(value.toPrecision(digits)).replace("-", "−");
}

function bare(number) {
  const plain = number.includes("e") ? String(Number(number)) : number;
  return plain.includes(".") ? plain.replace(/\.?0+$/, "") : plain;
}

/** A length of time in seconds, in its two largest units. @param {number} seconds */
export function duration(seconds) {
  const sign = seconds < 0 ? "−" : "";
  const all = Math.abs(seconds);
  if (all < 60) return `${sign}${Number(all.toPrecision(3))}s`;
  const whole = Math.round(all);
  const [days, hours] = [Math.floor(whole / 86400), Math.floor((whole % 86400) / 3600)];
  const [minutes, rest] = [Math.floor((whole % 3600) / 60), whole % 60];
  const parts = [[days, "d"], [hours, "h"], [minutes, "m"], [rest, "s"]];
  const from = parts.findIndex(([count]) => count > 0);
  const shown = parts.slice(from, from + 2).filter(([count]) => count > 0);
  return sign + shown.map(([count, unit]) => `${count}${unit}`).join(" ");
}
