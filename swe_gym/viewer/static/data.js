"use strict";
// The data of the page: rows and episodes, from a server or from the file itself.

const embedded = document.getElementById("news"); // in a report only

/** Ask the server about the open run. The id of an episode of another run is RUN/ID, with RUN encoded. */
async function ask(name, query = {}, options = {}) {
  const [, other, id] = /^(?:(.*)\/)?(.*)$/.exec(query.id ?? "");
  const whole = { ...query, run: other === undefined ? run.folder : decodeURIComponent(other), ...(id ? { id } : {}) };
  const signal = AbortSignal.timeout(60_000);
  const reply = await fetch(`api/${name}?${new URLSearchParams(whole)}`, { signal, ...options });
  const said = await reply.json();
  if (!reply.ok) throw new Error(said.error);
  return said;
}

const unpacked = new Map(); // the episodes of a report that were read last

async function unpack(id) {
  if (unpacked.has(id)) return unpacked.get(id);
  const block = document.getElementById(`episode-${id}`);
  if (!block) throw new Error("This episode is not in the file. Write the report with a larger --most-episodes.");
  const packed = Uint8Array.from(atob(block.textContent), (letter) => letter.charCodeAt(0));
  const episode = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  if (unpacked.size === MOST_COMPARED) unpacked.delete(unpacked.keys().next().value);
  unpacked.set(id, episode);
  return episode;
}

async function unpackTurns(id, numbers) {
  const { turns } = await unpack(id);
  const lengths = (parts) => Object.fromEntries(Object.entries(parts).map(([name, text]) => [name, text.length]));
  return numbers.map((number) => ({
    number,
    parts: turns[number - 1],
    of: lengths(turns[number - 1]),
    sent: Infinity,
  }));
}

/** Search an episode of a report as the server searches one of a run. */
async function searchUnpacked(id, words) {
  const { turns, outline } = await unpack(id);
  const pattern = new RegExp(words.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&"), "gi");
  const matches = turns.flatMap((parts, i) =>
    Object.entries(parts)
      .filter(([part]) => part !== "action" || !outline[i].tool)
      .flatMap(([part, text]) =>
        [...text.matchAll(pattern)].slice(0, 5).map((found) => matchIn(text, found, i + 1, part)),
      ),
  );
  return { matches: matches.slice(0, 500), next: 0 };
}

function matchIn(text, found, turn, part) {
  const at = found.index,
    end = at + found[0].length;
  return { turn, part, at, text: [text.slice(Math.max(0, at - 60), at), found[0], text.slice(end, end + 60)] };
}

const source = embedded
  ? {
      live: false,
      runs: async () => ({ many: false, runs: [] }),
      news: async () => JSON.parse(embedded.textContent),
      stats: async () => JSON.parse(document.getElementById("stats").textContent),
      episode: unpack,
      turns: unpackTurns,
      search: searchUnpacked,
      notes: async () => [],
    }
  : {
      live: true,
      runs: () => ask("runs"),
      compareRuns: (names) => ask("compare", { runs: JSON.stringify(names) }),
      news: (generation, known) => ask("rows", { generation, known }),
      stats: () => ask("stats"),
      episode: (id, turns = 0) => ask("episode", { id, turns }),
      turns: (id, numbers) => ask("turns", { id, numbers }),
      text: (id, turn, part, start, end) => ask("text", { id, turn, part, start, end }),
      search: (id, words, turn) => ask("search", { id, words, turn }),
      notes: (id) => ask("notes", { id }),
      saveNote: (id, note) => ask("notes", { id }, { method: "POST", body: JSON.stringify(note) }),
    };

const run = {
  name: "",
  folder: "",
  generation: "",
  rows: [],
  live: [],
  byId: new Map(),
  main: new Map(),
  progress: {},
  active: false,
};

/** Make a run the open one, if it is not. */
async function openRun(name) {
  if (name === run.folder) return;
  if (runs.many && !runs.byName.has(name)) await updateRuns();
  if (runs.many ? !runs.byName.has(name) : run.folder) throw new Error(`Run ${name} not found.`);
  const empty = { folder: name, name, generation: "", rows: [], live: [], byId: new Map(), main: new Map(), progress: {}, active: false };
  Object.assign(run, empty, { problems: [], unreadable: 0, withVerdicts: true });
  Object.assign(table, { words: "", state: "", repo: "", reason: "", sort: "", view: [], cursor: "", marked: new Set(), top: 0 });
  opened.id = "";
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
