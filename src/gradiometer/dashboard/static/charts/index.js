/** The charts of the page: `mount` draws one into an element and answers with a handle to it. */
import { BARS, MARKS } from "./discrete.js";
import { Drawing } from "./drawing.js";
import { LINES } from "./lines.js";
import { MAP } from "./map.js";
import { MATRIX } from "./matrix.js";
import { ParallelPlot } from "./parallel.js";
import { Plot } from "./plot.js";
import { Table } from "./table.js";

export { inks, runColour, runDash, severityColour } from "./palette.js";

/**
 * @typedef {Object} Look
 * @property {number} smooth 0 (off) to 0.99 @property {boolean} raw the raw line faint behind a smoothed one
 * @property {boolean} envelope @property {"auto" | "log" | "linear"} y @property {boolean} logx
 * @property {string} x step, wall, relative, env_steps, rollout, epoch or metric:NAME
 *
 * @typedef {Object} Context
 * @property {Map<string, any>} runs run cards by id @property {boolean} many @property {"light" | "dark"} theme
 * @property {Look} look
 * @property {(id: string, x: number | null) => void} [onHover] x in the units of the axis: steps, or seconds for times
 * @property {(from: number | null, to: number | null) => void} [onZoom] in the same units
 * @property {(param: string, key: string) => void} [onPick]
 * @property {(id: string, hidden: string[]) => void} [onLegend]
 *
 * @typedef {Object} Handle
 * @property {string} id @property {string} kind
 * @property {(chart: any, context?: Context) => void} update a whole new chart @property {(chart: any) => void} append a delta
 * @property {(context: Context) => void} look @property {() => void} resize @property {() => void} destroy
 * @property {() => string} csv @property {() => Promise<Blob>} png @property {() => Promise<Blob>} svg
 * @property {(x: number | null) => void} hover @property {(from: number | null, to: number | null) => void} zoom
 * @property {Promise<void>} drawn resolves when everything that was asked for is on the screen
 */

const KINDS = { lines: LINES, map: MAP, bars: BARS, marks: MARKS, matrix: MATRIX };

/** The container should be free to grow: a chart asks for the height it needs and fills what it is given beyond that.
 * @param {HTMLElement} container @param {any} chart @param {Context} context @returns {Handle} */
export function mount(container, chart, context) {
  if (chart.kind === "drawing") return new Drawing(container, chart, context);
  if (chart.kind === "parallel") return new ParallelPlot(container, chart, context);
  if (chart.kind === "table") return new Table(container, chart, context);
  return new Plot(container, chart, context, KINDS[chart.kind]);
}
