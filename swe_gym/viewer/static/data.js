"use strict";
// The data of the page: rows and episodes, from a server or from the file itself.

const embedded = document.getElementById("news"); // in a report only

/** Ask the server about the open run. The id of an episode of another run is RUN/ID, with RUN encoded. */
async function ask(name, query = {}) {
  const [, other, id] = /^(?:(.*)\/)?(.*)$/.exec(query.id ?? "");
  const whole = { ...query, run: other === undefined ? run.folder : decodeURIComponent(other), ...(id ? { id } : {}) };
  const reply = await fetch(`api/${name}?${new URLSearchParams(whole)}`, { signal: AbortSignal.timeout(60_000) });
  const said = await reply.json();
  if (!reply.ok) throw new Error(said.error);
  return said;
}

async function unpack(id) {
  const block = document.getElementById(`episode-${id}`);
  if (!block) throw new Error("This episode is not in the file. Write the report with a larger --most-episodes.");
  const packed = Uint8Array.from(atob(block.textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

const source = embedded
  ? {
      live: false,
      runs: async () => ({ many: false, runs: [] }),
      news: async () => JSON.parse(embedded.textContent),
      stats: async () => JSON.parse(document.getElementById("stats").textContent),
      episode: unpack,
    }
  : {
      live: true,
      runs: () => ask("runs"),
      compareRuns: (names) => ask("compare", { runs: JSON.stringify(names) }),
      news: (generation, known) => ask("rows", { generation, known }),
      stats: () => ask("stats"),
      episode: (id, turns = 0) => ask("episode", { id, turns }),
    };

const run = { name: "", folder: "", generation: "", rows: [], live: [], byId: new Map(), main: new Map(), progress: {}, active: false, about: {} };

/** Make a run the open one, if it is not. */
async function openRun(name) {
  if (name === run.folder) return;
  if (runs.many && !runs.byName.has(name)) await updateRuns();
  if (runs.many ? !runs.byName.has(name) : run.folder) throw new Error(`There is no run ${name} here.`);
  const empty = { folder: name, name, generation: "", rows: [], live: [], byId: new Map(), main: new Map(), progress: {}, active: false };
  Object.assign(run, empty, { problems: [], unreadable: 0, withVerdicts: true });
  Object.assign(table, { words: "", state: "", repo: "", reason: "", sort: "", view: [], cursor: "", marked: new Set(), top: 0 });
  await update();
}

function rowFrom(columns, values) {
  const row = Object.fromEntries(columns.map((column, i) => [column, values[i]]));
  row.tokens = row.read + row.written;
  row.text = `${row.task} ${row.repo} ${row.reason} ${stateWords[row.state]}`.toLowerCase();
  return row;
}

/** Fetch new rows. Returns whether the table changed. */
async function update() {
  const before = run.generation;
  const had = JSON.stringify(run.live);
  const known = run.rows;
  const [folder, length] = [run.folder, known.length];
  const news = await source.news(run.generation, length);
  if (run.folder !== folder || run.rows !== known || known.length !== length) return false; // another call was faster
  if (news.start === 0) {
    run.rows = [];
    run.byId = new Map();
  }
  const fresh = news.rows.map((values) => rowFrom(news.columns, values));
  for (const row of run.live) run.byId.delete(row.id);
  run.rows.push(...fresh);
  run.live = news.live.map((values) => rowFrom(news.columns, values));
  for (const row of [...fresh, ...run.live]) run.byId.set(row.id, row);
  Object.assign(run, {
    name: news.name,
    folder: news.folder,
    generation: news.generation,
    progress: news.progress,
    active: news.active,
    behind: news.behind,
    about: news.run,
    problems: news.problems,
    unreadable: news.unreadable,
    withVerdicts: news.with_verdicts ?? true,
  });
  const changed = fresh.length > 0 || before !== run.generation || had !== JSON.stringify(run.live);
  if (changed) run.main = mainRows();
  return changed;
}

/** The record of each attempt: a judged one, else one that runs, else the last failed try. */
function mainRows() {
  const rank = (row) => ({ failed: 0, left: 1, running: 1 })[row.state] ?? 2;
  const main = new Map();
  for (const row of everyRow().reverse()) {
    const key = `${row.task}\n${row.attempt}`;
    if (!main.has(key) || rank(row) > rank(main.get(key))) main.set(key, row);
  }
  return main;
}

/** The address of an attempt, or of one of its turns. Tries that failed have their id behind the attempt's number. */
function addressOf(row, turn) {
  const isMain = row.folder || run.main.get(`${row.task}\n${row.attempt}`) === row;
  const parts = [row.folder || run.folder, row.task, isMain ? row.attempt : `${row.attempt}.${row.id}`];
  return addressTo(...parts, ...(turn ? [turn] : []));
}

/** The row of an address. */
function rowAt(task, attempt) {
  const [number, ...id] = attempt.split(".");
  return id.length ? run.byId.get(id.join(".")) : run.main.get(`${task}\n${number}`);
}

const everyRow = () => [...run.live, ...run.rows];

/** The attempts at a task, in order. */
const attemptsAt = (task) =>
  everyRow()
    .filter((row) => row.task === task)
    .sort((a, b) => a.attempt - b.attempt || a.tries - b.tries);

// --- words -----------------------------------------------------------------------------------------------------

const stateWords = {
  resolved: "resolved",
  unresolved: "not resolved",
  failed: "failed",
  running: "running",
  left: "interrupted",
};
const stateSigns = { resolved: "✓", unresolved: "✗", failed: "!", running: "▶", left: "◌" };
const badge = (state) =>
  el(
    "span",
    { class: `badge ${state}` },
    el("span", { "aria-hidden": "true" }, stateSigns[state]),
    ` ${stateWords[state]}`,
  );

const clockParts = [
  ["start", "reset"],
  ["policy", "model"],
  ["tools", "tools"],
  ["grading", "grading"],
];

/** A bar of stacked times, whose full width is `whole` seconds. */
function timeBar(parts, whole) {
  const spent = parts.filter(([, seconds]) => seconds > 0);
  const words = spent.map(([name, seconds]) => `${name} ${time(seconds)}`).join(", ");
  const bar = el("div", { class: "bar", role: "img", "aria-label": words, title: words });
  for (const [name, seconds] of spent) {
    const piece = el("span", { class: `time-${name.replace(" ", "-")}` });
    piece.style.width = `${(100 * seconds) / (whole || 1)}%`;
    bar.append(piece);
  }
  return bar;
}

const legend = (parts) =>
  el(
    "ul",
    { class: "legend" },
    parts.map(([name, value]) =>
      el("li", {}, el("i", { class: `time-${name.replace(" ", "-")}` }), `${name} ${value}`),
    ),
  );

/** The beginning of a text, with a button for the rest. */
function longText(text, lines = 24, make = (part) => el("pre", {}, part)) {
  const all = text.split("\n");
  let shown = all.slice(0, lines).join("\n");
  if (shown.length > 250 * lines) shown = shown.slice(0, 250 * lines);
  if (shown.length >= text.length || (all.length <= lines + 4 && shown.length > text.length - 400)) return make(text);
  const box = el("div", { class: "long" }, make(shown));
  let open = false;
  const words = () => (open ? "Show less" : `Show all of ${plural(all.length, "line")}`);
  const more = button(
    words(),
    () => {
      open = !open;
      box.firstChild.replaceWith(make(open ? text : shown));
      more.textContent = words();
      more.setAttribute("aria-expanded", open);
    },
    { class: "more", "aria-expanded": "false" },
  );
  box.append(more);
  return box;
}

const HEAD = /^(diff |index |--- |\+\+\+ |new file|deleted file|old mode|new mode|similarity|rename |Binary )/;

function diffLine(line, inHunk) {
  if (line.startsWith("@@")) return "hunk";
  if (!inHunk) return HEAD.test(line) ? "file" : "same";
  return line.startsWith("+") ? "add" : line.startsWith("-") ? "del" : "same";
}

const hasDiff = (text) => /^@@ -\d/m.test(text);

/** A diff with a class for each line. */
function diffView(text, lines = 80) {
  return longText(text.replace(/\n$/, ""), lines, (part) => {
    let inHunk = false;
    return el(
      "pre",
      { class: "diff" },
      part.split("\n").map((line) => {
        if (line.startsWith("diff ")) inHunk = false;
        const kind = diffLine(line, inHunk);
        if (kind === "hunk") inHunk = true;
        return el("span", { class: kind }, `${line}\n`);
      }),
    );
  });
}
