/** What can be done with the chosen runs: open, compare, and where the server allows it name, tag, archive and delete. */

import { Refusal, tell } from "./api.js";
import { countedRuns, el, iconButton } from "./dom.js";
import { MOST_RUNS } from "./state.js";

const SHOWN = 8; // names in the question before deleting

/**
 * @typedef {Object} ManagerActions
 * @property {() => string[]} selection ids
 * @property {(id: string) => object} row
 * @property {(tab: string, ids: string[]) => void} open
 * @property {() => void} clear
 * @property {() => Promise<void>} changed
 */

/** @param {ManagerActions} act */
export function createManager(act) {
  let allowed = false;
  const said = el("span", { class: "chosen-said" });
  const button = (text, does, props = {}) => el("button", { type: "button", onclick: does, ...props }, text);
  const few = () => act.selection().slice(0, MOST_RUNS);
  const open = button("Open", () => act.open("overview", few()));
  const compare = button("Compare", () => act.open("compare", few()), { class: "main-action" });
  const clear = button("Clear", act.clear, { class: "quiet" });
  const edit = button("Edit…", () => editDialog());
  const archive = button("Archive", () => archiveAll());
  const remove = button("Delete…", () => deleteDialog(), { class: "danger" });
  const told = el("span", { class: "told", role: "status" });
  const chosen = el("div", { class: "chosen-bar", role: "group", "aria-label": "Chosen runs" }, said, open, compare, edit, archive, remove, clear);
  const element = el("div", { class: "chosen" }, told, chosen);

  const rows = () => act.selection().map(act.row).filter(Boolean);
  const everyArchived = () => rows().length > 0 && rows().every((row) => row.archived);

  /** Have it done, and show what came of it. @returns {Promise<object|null>} null when it was refused */
  async function done(content, words) {
    try {
      const answer = await tell("/manage.json", content);
      say(words);
      await act.changed();
      return answer;
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      say(error.message, true);
      return null;
    }
  }

  function say(words, trouble = false, more = null) {
    told.replaceChildren(...[words, more].filter(Boolean));
    told.classList.toggle("trouble", trouble);
  }

  function archiveAll() {
    const archived = !everyArchived();
    done({ action: "edit", runs: act.selection(), archived }, `${countedRuns(act.selection().length)} ${archived ? "archived" : "back from the archive"}.`);
  }

  function dialogOf(title, content, act_) {
    const dialog = el("dialog", { class: "manage", "aria-labelledby": "manage-title", onclose: () => dialog.remove() });
    const form = el("form", { method: "dialog", onsubmit: (event) => (event.preventDefault(), dialog.close(), act_.does()) }, content,
      el("p", { class: "ways" }, button("Cancel", () => dialog.close()), el("button", { type: "submit", class: act_.class ?? "main-action" }, act_.text)));
    dialog.append(el("header", {}, el("h2", { id: "manage-title" }, title), iconButton("close", "Close", () => dialog.close())), form);
    document.body.append(dialog);
    dialog.showModal();
    return dialog;
  }

  function editDialog() {
    const ids = act.selection();
    const all = rows();
    const one = all.length === 1 ? all[0] : null;
    const shared = all[0].tags.filter((tag) => all.every((row) => row.tags.includes(tag)));
    const given = one && one.name !== one.id.split("/").pop() ? one.name : "";
    const name = one && el("input", { type: "text", id: "manage-name", value: given, maxlength: 120, autocomplete: "off", placeholder: one.id.split("/").pop() });
    const tags = el("input", { type: "text", id: "manage-tags", value: shared.join(" "), autocomplete: "off", placeholder: "baseline seed-study" });
    const note = one && el("textarea", { id: "manage-note", rows: 5, maxlength: 4000 });
    if (note) note.value = one.note;
    const field = (label, input) => input && el("label", { class: "field", for: input.id }, label, input);
    const save = () => {
      const wanted = tags.value.split(/[\s,]+/).filter(Boolean);
      const change = { add_tags: wanted.filter((tag) => !shared.includes(tag)), remove_tags: shared.filter((tag) => !wanted.includes(tag)) };
      if (one) Object.assign(change, { name: name.value, note: note.value });
      done({ action: "edit", runs: ids, ...change }, "Saved.");
    };
    dialogOf(one ? `Edit ${one.name}` : `Edit ${countedRuns(all.length)}`, [field("Name", name), field(one ? "Tags, with spaces between" : "Tags that all selected runs share, separated by spaces", tags), field("Note", note)], { text: "Save", does: save });
  }

  function deleteDialog() {
    const ids = act.selection();
    const names = el("ul", { class: "manage-names" }, ids.slice(0, SHOWN).map((id) => el("li", {}, id)), ids.length > SHOWN && el("li", { class: "dim" }, `+${ids.length - SHOWN} more`));
    const content = [el("p", {}, "Everything in their folders moves to .gradiometer-bin in the served folder, checkpoints too. It can be undone."), names];
    dialogOf(`Delete ${countedRuns(ids.length)}?`, content, { text: `Delete ${countedRuns(ids.length)}`, class: "danger", does: () => deleteAll(ids) });
  }

  async function deleteAll(ids) {
    const answer = await done({ action: "delete", runs: ids }, "");
    if (!answer) return;
    const undo = button("Undo", () => done({ action: "undo", ticket: answer.ticket }, `${countedRuns(ids.length)} back from the bin.`));
    act.clear();
    say(`${countedRuns(ids.length)} moved to the bin. `, false, undo);
  }

  return {
    element,
    allow(write) {
      allowed = write;
    },
    show() {
      const ids = act.selection();
      chosen.hidden = !ids.length;
      for (const each of [edit, archive, remove]) each.hidden = !allowed;
      compare.disabled = ids.length < 2;
      archive.textContent = everyArchived() ? "Unarchive" : "Archive";
      said.textContent = ids.length > MOST_RUNS ? `${ids.length} chosen; the first ${MOST_RUNS} are opened` : `${ids.length} chosen`;
    },
  };
}
