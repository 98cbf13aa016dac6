/** Who draws next. Charts on the screen draw with the next frames, the others when the page has nothing else to do; however
 * often a chart asks, it draws once. */

/** @typedef {{visible: boolean, prepare: () => void, draw: () => void}} Drawer */

const FRAME_MS = 100; // a few charts at once: each frame between them costs a painting of the page
const PATIENCE_MS = 1500;
/** @type {Set<Drawer>} */
const waiting = new Set();
let [framed, idle] = [false, false];

/** @param {Drawer} drawer */
export function ask(drawer) {
  waiting.add(drawer);
  plan();
}

/** @param {Drawer} drawer */
export function forget(drawer) {
  waiting.delete(drawer);
}

function plan() {
  const seen = [...waiting].some((drawer) => drawer.visible);
  if (seen && !framed) {
    framed = true;
    requestAnimationFrame(frame);
  } else if (!seen && waiting.size && !idle) {
    idle = true;
    if (globalThis.requestIdleCallback) requestIdleCallback(later, { timeout: PATIENCE_MS });
    else setTimeout(later, 50);
  }
}

function frame() {
  framed = false;
  const until = performance.now() + FRAME_MS;
  const seen = [...waiting].filter((each) => each.visible);
  for (const drawer of seen) drawer.prepare();
  for (const drawer of seen) {
    run(drawer);
    if (performance.now() > until) break;
  }
  plan();
}

function later() {
  idle = false;
  const [drawer] = waiting;
  if (drawer) run(drawer);
  plan();
}

function run(drawer) {
  waiting.delete(drawer);
  drawer.draw();
}
