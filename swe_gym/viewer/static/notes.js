"use strict";
// Notes and labels of the reader on attempts and turns.

/** The notes of the run of an episode. */
async function readNotes(id) {
  const all = await source.notes(id);
  return new Map(all.map((note) => [noteKey(note.task_id, note.attempt, note.turn), note]));
}

const noteKey = (task, attempt, turn) => `${task}\n${attempt}\n${turn}`;

/** The note on a turn, or on the attempt for turn 0, and its form. */
function noteView(episode, turn) {
  const { notes } = episode;
  const key = noteKey(episode.task_id, episode.attempt, turn);
  const box = el("div", { class: "note", "data-note": turn });
  const show = () => {
    const note = notes.get(key);
    box.replaceChildren();
    if (!note) return;
    box.append(
      el(
        "p",
        {},
        note.labels.map((label) => el("span", { class: "label" }, label)),
        ` ${note.text}`,
      ),
      ...(source.saveNote ? [button("Edit", () => box.edit())] : []),
    );
  };
  const save = async (labels, text) => {
    const note = { task_id: episode.task_id, attempt: episode.attempt, turn, text: text.trim() };
    note.labels = labels
      .split(",")
      .map((label) => label.trim())
      .filter(Boolean);
    await source.saveNote(episode.id, note);
    if (note.labels.length || note.text) notes.set(key, note);
    else notes.delete(key);
    show();
  };
  box.edit = () => {
    const note = notes.get(key) ?? { labels: [], text: "" };
    const labels = el("input", {
      value: note.labels.join(", "),
      placeholder: "labels, with commas",
      "aria-label": "Labels",
    });
    const text = el("textarea", { rows: 3, placeholder: "note", "aria-label": "Note" }, note.text);
    const onsubmit = (event) => {
      event.preventDefault();
      save(labels.value, text.value).catch((error) => notify(error.message, true));
    };
    box.replaceChildren(el("form", { onsubmit }, labels, text, el("button", {}, "Save"), button("Cancel", show)));
    text.focus();
  };
  show();
  return box;
}

/** The link of a turn, and the button for its note. */
function turnTools(episode, row, turn) {
  const note = noteView(episode, turn);
  const write = source.saveNote
    ? button("✎", () => note.edit(), { "aria-label": `Note on turn ${turn}`, title: "Note (n)" })
    : null;
  const link = el(
    "a",
    { href: addressOf(row, turn), "aria-label": `Link to turn ${turn}`, title: "Link to this turn" },
    "#",
  );
  return [el("span", { class: "links" }, write, link), note];
}
