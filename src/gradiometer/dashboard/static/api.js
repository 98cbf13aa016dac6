/** Asking the server: JSON, or a refusal that says why. */

/** The server said no: `kind` and `message` are those of its Problem. */
export class Refusal extends Error {
  constructor(status, kind, message) {
    super(message);
    this.status = status;
    this.kind = kind;
  }
}

/** The server is not there. */
export class Gone extends Error {}

/**
 * @param {string} path
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 * @throws {Refusal|Gone|DOMException}
 */
export const ask = (path, signal) => request(path, { signal, headers: { Accept: "application/json" } });

/** Have something changed: a POST, which the server takes only with our header. @throws {Refusal|Gone} */
export function tell(path, content) {
  const headers = { Accept: "application/json", "Content-Type": "application/json", "X-Gradiometer": "1" };
  return request(path, { method: "POST", headers, body: JSON.stringify(content) });
}

async function request(path, how) {
  let answer;
  let text;
  try {
    answer = await fetch(path, how);
    text = await answer.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Gone(String(error.message));
  }
  let content;
  try {
    content = JSON.parse(text);
  } catch {
    throw new Refusal(answer.status, "fault", `${path} answered with something that is not JSON (status ${answer.status}).`);
  }
  if (!answer.ok) throw new Refusal(answer.status, content.error ?? "fault", content.message ?? answer.statusText);
  return content;
}

/** A view; with `after` only what came since. */
export function askView(tab, query, after, signal) {
  const both = [query, after ? `after=${encodeURIComponent(after)}` : ""].filter(Boolean).join("&");
  return ask(`/${tab}.json${both ? `?${both}` : ""}`, signal);
}
