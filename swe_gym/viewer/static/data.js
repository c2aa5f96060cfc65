"use strict";
// The data of the page: rows and episodes, from a server, from the file itself, or from files beside it.

const hasRuns = Boolean(document.getElementById("runs")); // a report of several runs
const isReport = hasRuns || Boolean(document.getElementById("news"));

/** Ask the server about the open run. The id of an episode of another run is RUN/ID, with RUN encoded. */
async function ask(name, query = {}, options = {}) {
  const [folder, id] = placeOfId(query.id);
  const whole = { ...query, run: folder, ...(id ? { id } : {}) };
  const signal = AbortSignal.timeout(60_000);
  const reply = await fetch(`api/${name}?${new URLSearchParams(whole)}`, { signal, ...options });
  const said = await reply.json();
  if (!reply.ok) throw new Error(said.error);
  return said;
}

/** Split the id of an episode: the name of its run, if it is not the open one, and its id there. */
const placeOfId = (id = "") => {
  const [, other, own] = /^(?:(.*)\/)?(.*)$/.exec(id);
  return [other === undefined ? run.folder : decodeURIComponent(other), own];
};

const unpacked = new Map(); // the episodes of a report that were read last

let arrived; // the function that the script of a data file calls with its text
let lastLoad = Promise.resolve();

/** Load a data file of a report, one after the other. It is a script: a page opened from disk may load nothing else. */
function load(name, missing) {
  const one = () =>
    new Promise((done, fail) => {
      arrived = done;
      const onerror = () => fail(new Error(missing));
      document.head.append(el("script", { src: `data/${name}.js`, onload: (event) => event.target.remove(), onerror }));
    });
  return (lastLoad = lastLoad.then(one, one));
}

/** A block of a report: JSON in the page, else packed, in the page or in a file. */
async function block(name, folder, missing = `The file of ${name} is missing. Copy the whole folder.`) {
  const inside = document.getElementById(name)?.textContent;
  if (inside?.startsWith("{")) return JSON.parse(inside);
  const file = folder === undefined ? name : `${runs.list.findIndex((one) => one.name === folder)}/${name}`;
  const text = inside ?? (hasRuns ? await load(file, missing) : undefined);
  if (text === undefined) throw new Error(missing);
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

async function unpack(id) {
  const [folder, own] = placeOfId(id);
  const key = `${folder}/${own}`;
  if (unpacked.has(key)) return unpacked.get(key);
  const missing = "This episode is not in the report. Write it with a larger --most-episodes.";
  const episode = await block(`episode-${own}`, folder, missing);
  if (unpacked.size === MOST_COMPARED) unpacked.delete(unpacked.keys().next().value);
  unpacked.set(key, episode);
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

const source = isReport
  ? {
      live: false,
      runs: async () => (hasRuns ? block("runs") : { many: false, runs: [] }),
      compareRuns: async (names) => comparisonOf(await block("comparison"), names),
      news: () => block("news", run.folder),
      stats: () => block("stats", run.folder),
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

/** The comparison of some runs, the first of which is the base, from that of all. */
function comparisonOf(all, names) {
  const places = names.map((name) => all.names?.indexOf(name) ?? -1);
  if (names.length < 2 || places.includes(-1)) throw new Error("Choose two or more runs of this report to compare.");
  const found = names.slice(1).map((name) => {
    const { pair, warnings } = all.pairs.find((one) => one.names.includes(name) && one.names.includes(names[0]));
    return { pair: pair && (pair.first === names[0] ? pair : mirrored(pair)), warnings };
  });
  const picked = (values) => places.map((place) => values[place]);
  const rate = (task, i) => task.resolved[i] / task.graded[i];
  const tasks = all.tasks
    .map((task) => ({ ...task, resolved: picked(task.resolved), graded: picked(task.graded) }))
    .filter((task) => task.graded.some(Boolean))
    .map((task) => {
      const rates = names.map((_, i) => i).filter((i) => task.graded[i]).map((i) => rate(task, i));
      return { ...task, spread: Math.max(...rates) - Math.min(...rates) };
    });
  const lacks = (task) => (task.graded.includes(0) ? 0 : 1);
  tasks.sort((a, b) => b.spread - a.spread || lacks(a) - lacks(b) || (a.task_id < b.task_id ? -1 : 1));
  const entries = (object, fits) => Object.fromEntries(Object.entries(object).map(([key, values]) => [key, picked(values)]).filter(([, values]) => fits(values)));
  return {
    pairs: found.map(({ pair }) => pair).filter(Boolean),
    warnings: [...new Set(found.flatMap(({ warnings }) => warnings))],
    tasks,
    settings: entries(all.settings, (values) => values.some((value) => JSON.stringify(value) !== JSON.stringify(values[0]))),
    attempts: entries(all.attempts, (values) => values.some((tries) => tries.length)),
  };
}

/** A paired difference, seen from the other run. */
const mirrored = (pair) => ({
  ...pair,
  first: pair.second,
  second: pair.first,
  difference: -pair.difference,
  low: -pair.high,
  high: -pair.low,
  better: pair.worse,
  worse: pair.better,
});

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
