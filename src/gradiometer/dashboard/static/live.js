/** Staying live: the server's events, polling where there are none, rest while nobody looks. */

import { Gone } from "./api.js";

const POLL = 3000;
const PACE = 1000;

/**
 * @typedef {Object} LiveActions
 * @property {() => Promise<void>} tick ask what is new; throws Gone when the server is not there
 * @property {() => Promise<void>} runs ask which runs there are
 * @property {(news: {run: string, step: ?number, state: string}) => boolean} changed a run changed; whether it is on show
 * @property {(status: "live"|"polling"|"offline") => void} status
 */

/**
 * @param {LiveActions} act
 * @param {string} [address]
 */
export function createLive(act, address = "/live") {
  let source = null;
  let poller = 0;
  let opened = false;
  const tick = paced(guarded(act.tick), PACE);
  const runs = paced(guarded(act.runs), PACE);

  /** Run an action; a server that is gone is a status, and polling finds out when it is back. */
  function guarded(action) {
    return async () => {
      try {
        await action();
        if (poller) act.status("polling");
      } catch (error) {
        if (!(error instanceof Gone)) throw error;
        lost();
      }
    };
  }

  function open() {
    source?.close();
    if (typeof EventSource === "undefined") return poll();
    source = new EventSource(address);
    source.addEventListener("open", () => {
      clearInterval(poller);
      poller = 0;
      act.status("live");
      if (opened) runs();
      opened = true;
      tick();
    });
    source.addEventListener("changed", (event) => act.changed(JSON.parse(event.data)) && tick());
    source.addEventListener("runs", () => runs());
    source.addEventListener("error", poll);
  }

  function poll() {
    if (poller || document.hidden) return;
    let round = 0;
    const look = () => {
      // A stream that was refused does not come back by itself.
      if (++round % 5 === 0 && source?.readyState === EventSource.CLOSED) open();
      runs();
      tick();
    };
    poller = setInterval(look, POLL);
    look();
  }

  function lost() {
    act.status("offline");
    poll();
  }

  function rest() {
    source?.close();
    source = null;
    clearInterval(poller);
    poller = 0;
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? rest() : open()));
  addEventListener("pagehide", rest);
  addEventListener("pageshow", (event) => event.persisted && open());
  if (!document.hidden) open();
  return { lost, tick };
}

/** Call at most once in `gap` milliseconds and never twice at once; what is asked meanwhile comes after. */
export function paced(action, gap) {
  let running = false;
  let again = false;
  let timer = 0;
  let last = -Infinity;
  async function go() {
    timer = 0;
    running = true;
    last = performance.now();
    try {
      await action();
    } finally {
      running = false;
      if (again) ask();
    }
  }
  function ask() {
    again = running;
    if (running || timer) return;
    timer = setTimeout(go, Math.max(0, last + gap - performance.now()));
  }
  return ask;
}
