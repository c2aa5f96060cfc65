"use strict";
// The list of runs, their comparison, and the same attempt of several runs side by side.

const runs = {
  many: false,
  name: "",
  list: [],
  byName: new Map(),
  problems: {},
  behind: false,
  news: "",
  words: "",
  sort: "created",
  down: -1,
  ticked: new Set(),
  rows: new Map(), // name -> the row that is drawn, and the text of its data
};
const comparison = { names: [], data: null, of: "", words: "", kind: "", most: 0, draw: null };
const MOST_ROWS = 200; // tasks that are drawn at first
const MOST_TRIES = 12; // attempts of a cell

/** Whether the page is about all runs, not about an open one. */
const ofRuns = () => runs.many && (!run.folder || ["runs", "comparison"].includes(shown));

/** Fetch the runs. Returns whether they changed. */
async function updateRuns() {
  const news = await source.runs();
  const [before, now] = [runs.news, JSON.stringify(news)];
  Object.assign(runs, { news: now, many: news.many, name: news.name, list: news.runs, problems: news.problems ?? {} });
  for (const one of runs.list) {
    one.k = Math.max(1, ...Object.keys(one.pass_at_k).map(Number));
    one.pass = one.k > 1 ? one.pass_at_k[one.k] : null;
    one.player = `${one.agent ? `${one.agent} with ` : ""}${one.model || one.policy}`;
    one.tokens = one.prompt_tokens + one.completion_tokens;
    one.changes = changesOf(one, runs.list);
    one.text = `${one.name} ${one.player} ${one.state} ${one.source} ${settingsText(one)}`.toLowerCase();
  }
  runs.byName = new Map(runs.list.map((one) => [one.name, one]));
  runs.behind = runs.list.some((one) => one.behind);
  for (const name of runs.ticked) if (!runs.byName.has(name)) runs.ticked.delete(name);
  return before !== now;
}

const IN_COLUMNS = ["policy", "policy_options.model", "agent"]; // settings with a column of their own

/** The settings of a run that most runs do not share. Fields that it lacks are in the comparison only. */
function changesOf(one, all) {
  const same = (name, value) => all.filter((other) => JSON.stringify(other.settings[name]) === JSON.stringify(value)).length;
  return Object.entries(one.settings)
    .filter(([name, value]) => value !== null && value !== "" && !IN_COLUMNS.includes(name))
    .filter(([name, value]) => !(name.startsWith("server.model.") && value === one.model))
    .filter(([name, value]) => 2 * same(name, value) <= all.length);
}

const settingsText = (one) => Object.entries(one.settings).flat().join(" ");

async function redrawRuns() {
  if (shown === "runs") drawRuns();
  if (shown !== "comparison" || comparison.of === comparedState()) return;
  const names = comparison.names;
  comparison.of = comparedState();
  const data = await source.compareRuns(names);
  if (shown !== "comparison" || comparison.names !== names) return;
  comparison.data = data;
  comparison.draw();
}

/** The results of the compared runs as text, to see whether they changed. */
const comparedState = () =>
  JSON.stringify(comparison.names.map((name) => runs.byName.get(name)).map((one) => one && [one.graded, one.failed_tries, one.state]));

function showRunCounts() {
  const sum = (key) => runs.list.reduce((total, one) => total + one[key], 0);
  const active = runs.list.filter((one) => one.active).length;
  const words = [
    plural(runs.list.length, "run"),
    `${count(sum("graded"))} graded attempts`,
    active ? `${count(active)} running` : "",
    runs.behind ? "reading …" : "",
  ];
  const counts = document.getElementById("counts");
  counts.textContent = words.filter(Boolean).join(" · ");
  counts.title = "";
  counts.classList.toggle("active", active > 0);
  document.getElementById("name").textContent = runs.name;
  document.title = `${runs.name} · swe-gym`;
}

// --- cells -----------------------------------------------------------------------------------------------------

const dollars = (cost, used) => (cost === null ? (used ? "unknown" : "") : cost < 0.1 ? money(cost) || "$0" : `$${cost.toFixed(2)}`);
const share = (value) => (value === null ? "–" : `${(100 * value).toFixed(1)} %`);
const points = (value) => `${value < 0 ? "−" : "+"}${(100 * Math.abs(value)).toFixed(1)}`;
const settingText = (value) => (value === null ? "not set" : typeof value === "string" ? value : JSON.stringify(value));
const shortName = (name) => (name === "server.url" ? "server" : name.split(".").at(-1));
const shortSetting = (name, value) => (name === "server.url" ? settingText(value).replace(/^https?:\/\//, "").replace(/\/v1$/, "") : settingText(value).slice(0, 40));

/** A value with its interval on an axis. */
function intervalBar(low, value, high, from = 0, to = 1) {
  const place = (number) => `${(100 * (number - from)) / (to - from)}%`;
  const range = el("span", { class: "range" }),
    dot = el("span", { class: "dot" });
  range.style.left = place(low);
  range.style.width = `${(100 * (high - low)) / (to - from)}%`;
  dot.style.left = place(value);
  const bar = el("span", { class: from < 0 ? "interval around" : "interval", "aria-hidden": "true" }, range, dot);
  return bar;
}

const resolvedCell = (one) =>
  one.resolved === null
    ? "–"
    : [
        el("b", {}, share(one.resolved)),
        el("span", { class: "dim" }, ` ${(100 * one.low).toFixed(1)}–${share(one.high)}`),
        intervalBar(one.low, one.resolved, one.high),
      ];

const runBadge = (one) =>
  one.state === "finished"
    ? null
    : el("span", { class: `badge ${one.active ? "running" : "failed"}` }, el("span", { "aria-hidden": "true" }, one.active ? "▶" : "◌"), ` ${one.state}`);

const changesCell = (one) =>
  one.changes.length > 0 &&
  el(
    "ul",
    { class: "changes" },
    one.changes.map(([name, value]) =>
      el("li", { title: `${name}: ${settingText(value)}` }, `${shortName(name)} `, el("code", {}, shortSetting(name, value))),
    ),
  );

/** Number of tasks and attempts; if some are not graded, how many are. */
const tasksCell = (one) => [
  `${count(one.planned_tasks)} × ${one.attempts} `,
  one.graded < one.planned
    ? el("span", { class: "dim left" }, `${count(one.graded)}/${count(one.planned)} graded${one.stopped_early ? ", stops early" : ""}`)
    : null,
];

const tokensCell = (one) =>
  one.uncounted
    ? `${one.tokens ? `${shortCount(one.tokens)} + ` : ""}unknown`
    : one.tokens
      ? shortCount(one.tokens)
      : "";

const some = (number) => (number ? count(number) : "");

// `rare`: left out if no run has one
const runColumns = [
  { key: "name", title: "Run", show: (one) => [el("a", { href: addressTo(one.name), "data-row": one.name }, one.name), " ", runBadge(one)] },
  { key: "player", title: "Model or policy" },
  { key: "changes", title: "Differs in", kind: "most", show: changesCell, sorts: false, rare: (one) => one.changes.length },
  { key: "resolved", title: "Resolved", first: -1, kind: "resolved", show: resolvedCell },
  { key: "pass", title: "pass@k", first: -1, kind: "number some", rare: (one) => one.pass, show: (one) => (one.pass === null ? "" : `${share(one.pass)} @${one.k}`) },
  { key: "planned", title: "Tasks", first: -1, kind: "number", show: tasksCell, about: "Tasks × attempts" },
  { key: "duration", title: "Time", first: -1, kind: "number", show: (one) => (one.duration ? time(one.duration) : ""), about: "Time in which an episode ran" },
  { key: "tokens", title: "Tokens", first: -1, kind: "number", rare: (one) => one.tokens || one.uncounted, show: tokensCell, tip: (one) => `${count(one.prompt_tokens)} prompt, ${count(one.completion_tokens)} completion` },
  { key: "cost", title: "Cost", first: 1, kind: "number", rare: (one) => one.tokens || one.uncounted || one.cached_answers, show: (one) => dollars(one.cost, one.tokens || one.uncounted) },
  { key: "failed_tries", title: "Failed tries", first: -1, kind: "number wide", rare: (one) => one.failed_tries, show: (one) => some(one.failed_tries) },
  { key: "invalid_calls", title: "Invalid calls", first: -1, kind: "number wide", rare: (one) => one.invalid_calls, show: (one) => (one.invalid_calls ? percent(one.invalid_calls / one.all_turns) : "") },
  { key: "shortened", title: "Shortened", first: -1, kind: "number wide", rare: (one) => one.shortened, show: (one) => some(one.shortened) },
  { key: "retries", title: "Retries", first: -1, kind: "number wide", rare: (one) => one.retries, show: (one) => some(one.retries) },
  { key: "cached_answers", title: "From cache", first: -1, kind: "number wide", rare: (one) => one.cached_answers, show: (one) => some(one.cached_answers), about: "Answers from the cache, not billed" },
  { key: "created", title: "Started", first: -1, kind: "number some", show: (one) => one.created.slice(5, 16).replace("T", " "), tip: (one) => one.created },
];

const cellsOf = (one, columns) =>
  columns.map(({ key, kind, title, show, tip }) =>
    el("td", { class: kind, "data-key": key, "data-label": title, title: tip?.(one) }, (show ? show(one) : String(one[key] ?? "")) || ""),
  );

const plainHeads = (columns) => columns.map(({ key, kind, title, about }) => el("th", { scope: "col", class: kind, "data-key": key, title: about }, title));

/** The columns in which a run has something. */
const columnsFor = (list) => runColumns.filter(({ rare }) => !rare || list.some(rare));

// --- the list --------------------------------------------------------------------------------------------------

function runsPage() {
  const search = el("input", {
    type: "search",
    id: "search",
    placeholder: "Search runs, models, settings  ( / )",
    "aria-label": "Search",
    value: runs.words,
    oninput: () => {
      runs.words = search.value;
      drawRuns();
    },
  });
  const heads = runColumns.map(({ key, kind, title, about, first = 1, sorts = true }) =>
    el(
      "th",
      { scope: "col", class: kind, "data-key": key, title: about },
      sorts ? [button(title, () => sortRuns(key, first)), el("span", { class: "arrow", "aria-hidden": "true" })] : title,
    ),
  );
  runs.body = el("tbody", {});
  runs.table = el(
    "table",
    { class: "listing stacked", "aria-label": "Runs" },
    el("thead", {}, el("tr", {}, el("th", { class: "pick" }, el("span", { class: "unseen" }, "Compare")), heads)),
    runs.body,
  );
  runs.compare = button("", compareTicked, { id: "compare" });
  runs.hint = el("span", { class: "dim" }, "Select runs to compare them.");
  runs.found = el("span", { id: "found", role: "status" });
  drawRuns();
  return el(
    "section",
    { class: "runs", "aria-label": "Runs" },
    el("div", { class: "tools", role: "search" }, search, runs.hint, runs.compare, runs.found),
    el("div", { class: "sideways" }, runs.table),
    Object.entries(runs.problems).map(([, problem]) => el("p", { class: "problem" }, problem)),
  );
}

function sortRuns(key, first) {
  if (runs.sort !== key) [runs.sort, runs.down] = [key, first];
  else runs.down = -runs.down;
  drawRuns();
}

function shownRuns() {
  const words = runs.words.toLowerCase().split(/\s+/).filter(Boolean);
  const found = runs.list.filter((one) => words.every((word) => one.text.includes(word)));
  const missing = (value) => value === null || value === undefined;
  const order = (a, b) => (missing(a) || missing(b) ? missing(a) - missing(b) : runs.down * (a < b ? -1 : a > b ? 1 : 0));
  return found.sort((a, b) => order(a[runs.sort], b[runs.sort]) || (a.name < b.name ? -1 : 1));
}

/** Draw the rows that changed, so that a click on another one is not lost. */
function drawRuns() {
  const list = shownRuns();
  const rows = list.map(listRow);
  if (!list.length) rows.push(el("tr", {}, el("td", { class: "empty", colspan: 4 }, "No run matches.")));
  keepFocus(runs.body, () => {
    for (const old of [...runs.body.children]) if (!rows.includes(old)) old.remove();
    rows.forEach((row, i) => runs.body.children[i] !== row && runs.body.insertBefore(row, runs.body.children[i] ?? null));
  });
  const columns = columnsFor(runs.list).map(({ key }) => key);
  for (const cell of runs.table.querySelectorAll("[data-key]")) cell.hidden = !columns.includes(cell.dataset.key);
  for (const head of runs.table.querySelectorAll("th[data-key]")) {
    const mine = head.dataset.key === runs.sort;
    if (head.querySelector("button")) head.setAttribute("aria-sort", mine ? (runs.down > 0 ? "ascending" : "descending") : "none");
    const arrow = head.querySelector(".arrow");
    if (arrow) arrow.textContent = mine ? (runs.down > 0 ? " ▲" : " ▼") : "";
  }
  runs.found.textContent = list.length === runs.list.length ? "" : `${count(list.length)} of ${count(runs.list.length)}`;
  showTicked();
}

function listRow(one) {
  const { text, row } = runs.rows.get(one.name) ?? {};
  const now = JSON.stringify(one);
  if (text === now) return row;
  const made = el("tr", {}, el("td", { class: "pick" }, tickBox(one)), cellsOf(one, runColumns));
  runs.rows.set(one.name, { text: now, row: made });
  return made;
}

function tickBox(one) {
  const box = el("input", {
    type: "checkbox",
    "data-row": `tick ${one.name}`,
    "aria-label": `Compare ${one.name}`,
    onchange: () => {
      if (!runs.ticked.delete(one.name)) runs.ticked.add(one.name);
      showTicked();
    },
  });
  box.checked = runs.ticked.has(one.name);
  return box;
}

function showTicked() {
  runs.compare.hidden = runs.ticked.size < 2;
  runs.hint.hidden = !runs.compare.hidden || runs.list.length < 2;
  runs.compare.textContent = `Compare ${runs.ticked.size} (c)`;
}

function tickRun() {
  document.activeElement.closest(".listing tr")?.querySelector("input")?.click();
}

function compareTicked() {
  if (runs.ticked.size < 2) return notify("Select two or more runs with x.");
  const inOrder = runs.list.filter((one) => runs.ticked.has(one.name)).sort((a, b) => (a.created < b.created ? -1 : 1));
  go(comparisonAddress(inOrder.map((one) => one.name)));
}

/** Move the focus to the link of another row. */
function moveRow(by) {
  const links = [...document.querySelectorAll("tbody a[data-row]")];
  const row = document.activeElement.closest("tr");
  const at = links.findIndex((link) => link.closest("tr") === row);
  links[at < 0 ? 0 : Math.min(links.length - 1, Math.max(0, at + by))]?.focus();
}

/** Draw again, and put the focus back on the same element. */
function keepFocus(box, draw) {
  const had = box.contains(document.activeElement) && document.activeElement.dataset.row;
  draw();
  if (had && !box.contains(document.activeElement)) [...box.querySelectorAll("[data-row]")].find((one) => one.dataset.row === had)?.focus({ preventScroll: true });
}

// --- the comparison --------------------------------------------------------------------------------------------

async function comparisonPage(names) {
  await loadComparison(names);
  const box = el("div", {});
  comparison.most = MOST_ROWS;
  comparison.draw = () => keepFocus(box, () => box.replaceChildren(...comparisonParts()));
  comparison.draw();
  const page = el(
    "section",
    { class: "comparison", "aria-label": "Comparison" },
    el("div", { class: "top" }, el("a", { href: "#/", class: "back" }, "← Runs")),
    el("h2", {}, `Comparison of ${plural(comparison.names.length, "run")}`),
    box,
    tasksPart(),
  );
  return page;
}

async function loadComparison(names) {
  if (JSON.stringify(names) === JSON.stringify(comparison.names) && comparison.of === comparedState()) return;
  const data = await source.compareRuns(names);
  Object.assign(comparison, { names, data, words: "", kind: "" });
  comparison.of = comparedState();
}

function comparisonParts() {
  const { data, names } = comparison;
  const compared = names.map((name) => runs.byName.get(name)).filter(Boolean);
  const columns = columnsFor(compared).filter(({ key }) => key !== "changes");
  comparison.tasks?.();
  return [
    data.warnings.length
      ? el("div", { class: "warnings" }, el("h3", {}, "These runs differ in more than the policy, or are incomplete"), el("ul", {}, data.warnings.map((one) => el("li", {}, one))))
      : "",
    tableOf("Runs", plainHeads(columns), compared.map((one) => cellsOf(one, columns))),
    pairsTable(data.pairs, names),
    settingsTable(data.settings, names),
  ].filter(Boolean);
}

const tableOf = (title, heads, rows, note) =>
  el(
    "section",
    {},
    el("h3", {}, title),
    note ? el("p", { class: "dim" }, note) : null,
    el(
      "div",
      { class: "sideways", tabindex: "0", role: "region", "aria-label": [title].flat()[0] },
      el("table", { class: "listing stacked" }, el("thead", {}, el("tr", {}, heads)), el("tbody", {}, rows.map((cells) => el("tr", {}, cells)))),
    ),
  );

function pairsTable(pairs, names) {
  const far = Math.max(0.05, ...pairs.flatMap(({ low, high }) => [-low, high]));
  const cell = (text, i) => el("td", { class: "number", "data-label": heads[i] }, text);
  const heads = ["Run", "Points", "95 % interval", "p", "Better on", "Worse on", "Equal on"];
  return tableOf(
    ["Differences to ", baseChoice(names)],
    heads.map((title, i) => el("th", { scope: "col", class: i === 0 || i === 2 ? "" : "number" }, title)),
    pairs.map((pair) => [
      el("th", { scope: "row" }, pair.second),
      cell(el("b", {}, points(pair.difference)), 1),
      el("td", { class: "resolved", "data-label": heads[2] }, el("span", { class: "dim" }, `${points(pair.low)} to ${points(pair.high)}`), intervalBar(pair.low, pair.difference, pair.high, -far, far)),
      cell(pair.p_value < 0.001 ? "< 0.001" : pair.p_value.toFixed(3), 3),
      cell(count(pair.better), 4),
      cell(count(pair.worse), 5),
      cell(count(pair.tasks - pair.better - pair.worse), 6),
    ]),
    "Percentage points of the share of resolved attempts, over the tasks that both runs have graded. p: exact sign-flip test with tasks as the unit, not corrected for the number of runs.",
  );
}

/** The run that the others are compared with. */
const baseChoice = (names) =>
  el(
    "select",
    {
      "aria-label": "Run that the others are compared with",
      "data-row": "base",
      onchange: (event) => go(comparisonAddress([event.target.value, ...names.filter((name) => name !== event.target.value)])),
    },
    names.map((name) => el("option", { value: name }, name)),
  );

function settingsTable(settings, names) {
  const rows = Object.entries(settings);
  if (!rows.length) return null;
  return tableOf(
    "Settings that differ",
    [el("th", { scope: "col" }, "Setting"), names.map((name) => el("th", { scope: "col" }, name))],
    rows.map(([name, values]) => [
      el("th", { scope: "row" }, el("code", {}, name)),
      values.map((value, i) => el("td", { class: "setting", "data-label": names[i] }, el("code", {}, settingText(value)))),
    ]),
  );
}

// --- its tasks -------------------------------------------------------------------------------------------------

const taskKinds = {
  "": ["All tasks", () => true],
  differ: ["Disagreements", (task) => task.spread > 0],
  missing: ["Missing in a run", (task) => task.graded.includes(0)],
  never: ["Resolved by no run", (task) => !task.resolved.some(Boolean)],
};

function tasksPart() {
  const search = el("input", {
    type: "search",
    id: "search",
    placeholder: "Search tasks  ( / )",
    "aria-label": "Search",
    value: comparison.words,
    oninput: () => {
      comparison.words = search.value;
      draw();
    },
  });
  const kind = el(
    "select",
    {
      "aria-label": "Tasks",
      onchange: () => {
        comparison.kind = kind.value;
        draw();
      },
    },
    Object.entries(taskKinds).map(([value, [title]]) => el("option", { value, selected: value === comparison.kind }, title)),
  );
  const body = el("tbody", {}),
    found = el("span", { id: "found", role: "status" }),
    more = button("", () => {
      comparison.most = Infinity;
      draw();
    });
  const draw = () => {
    const tasks = shownTasks();
    const drawn = tasks.slice(0, comparison.most);
    keepFocus(body, () => body.replaceChildren(...drawn.map(taskRow)));
    found.textContent = `${count(tasks.length)} of ${plural(comparison.data.tasks.length, "task")}`;
    more.hidden = drawn.length === tasks.length;
    more.textContent = `Show all of ${count(tasks.length)} tasks`;
  };
  comparison.tasks = draw;
  draw();
  return el(
    "section",
    { "aria-label": "Tasks" },
    el("h3", {}, "Tasks"),
    el("div", { class: "tools", role: "search" }, search, kind, found),
    el(
      "div",
      { class: "sideways" },
      el(
        "table",
        { class: "listing stacked tasks" },
        el(
          "thead",
          {},
          el("tr", {}, el("th", { scope: "col" }, "Task"), comparison.names.map((name) => el("th", { scope: "col" }, name))),
        ),
        body,
      ),
    ),
    more,
  );
}

function shownTasks() {
  const words = comparison.words.toLowerCase().split(/\s+/).filter(Boolean);
  const [, fits] = taskKinds[comparison.kind];
  return comparison.data.tasks.filter((task) => fits(task) && words.every((word) => task.task_id.toLowerCase().includes(word)));
}

function taskRow(task) {
  const attempts = comparison.data.attempts[task.task_id];
  const numbers = attempts.flat().map(([number]) => number);
  const common = numbers.filter((one) => attempts.every((tries) => tries.some(([number]) => number === one)));
  const first = Math.min(...(common.length ? common : numbers));
  return el(
    "tr",
    { class: task.spread > 0 ? "differs" : "" },
    el("th", { scope: "row" }, el("a", { href: comparisonAddress(comparison.names, task.task_id, first), "data-row": task.task_id, title: "Side by side" }, task.task_id)),
    attempts.map((tries, i) => el("td", { "data-label": comparison.names[i] }, taskCell(task, tries, i))),
  );
}

function taskCell(task, tries, i) {
  if (!tries.length) return el("span", { class: "dim" }, "not run");
  const name = comparison.names[i];
  const rate = task.graded[i] > 1 ? el("span", { class: "rate" }, `${task.resolved[i]}/${task.graded[i]}`) : null;
  const links = tries.slice(0, MOST_TRIES).map(([number, state]) =>
    el(
      "a",
      {
        href: addressTo(name, task.task_id, number),
        class: `badge ${state}`,
        title: `${name}, attempt ${number}: ${stateWords[state]}`,
        "aria-label": `${name}, attempt ${number}: ${stateWords[state]}`,
      },
      stateSigns[state],
    ),
  );
  const more = tries.length > MOST_TRIES ? el("span", { class: "dim" }, ` and ${tries.length - MOST_TRIES} more`) : null;
  return el("span", { class: "tries" }, rate, links, more);
}

// --- side by side ----------------------------------------------------------------------------------------------

async function besidePage(names, task, attempt) {
  await loadComparison(names);
  const all = comparison.data.attempts[task];
  if (!all) throw new Error(`None of these runs has an attempt at the task ${task}.`);
  const number = Number(attempt);
  const found = all
    .map((tries, i) => [names[i], tries.find(([one]) => one === number) ?? tries[0]])
    .filter(([, one]) => one)
    .slice(0, MOST_COMPARED);
  const ids = found.map(([name, [attempt, state, id, reason]]) => {
    const whole = `${encodeURIComponent(name)}/${id}`;
    run.byId.set(whole, { id: whole, folder: name, state, reason, task, attempt, turns: 0, started: "" });
    return whole;
  });
  const page = await comparePage(ids);
  page.querySelectorAll(".cell.head").forEach((head, i) => head.prepend(el("p", { class: "of" }, found[i][0])));
  page.up = comparisonAddress(names);
  page.querySelector("a.back")?.replaceChildren("← Comparison");
  const note = [
    ...found.filter(([, [one]]) => one !== number).map(([name, [one]]) => `${name} has no attempt ${number}; its attempt ${one} is shown. `),
    ...names.filter((_, i) => !all[i].length).map((name) => `${name} has no attempt at this task. `),
    names.length > MOST_COMPARED ? `At most ${MOST_COMPARED} runs are shown.` : "",
  ].join("");
  if (found.length === 1) page.querySelector(".top .dim")?.remove(); // no calls to compare
  page.querySelector(".top")?.after(besideNavigation(names, task, number, all), note && el("p", { class: "dim" }, note));
  return page;
}

/** Links to the other attempts at the task, and to the tasks around it. */
function besideNavigation(names, task, number, all) {
  const numbers = [...new Set(all.flat().map(([one]) => one))].sort((a, b) => a - b);
  const tasks = shownTasks().map((one) => one.task_id);
  const step = (by, words) => {
    const other = tasks[tasks.indexOf(task) + by];
    return other === undefined || !tasks.includes(task) ? null : el("a", { href: comparisonAddress(names, other, 0) }, words);
  };
  return el(
    "nav",
    { class: "attempts", "aria-label": "Attempts and tasks" },
    el("b", {}, task),
    numbers.map((one) =>
      el("a", { href: comparisonAddress(names, task, one), class: "badge", "aria-current": one === number ? "page" : null }, `attempt ${one}`),
    ),
    step(-1, "‹ previous task"),
    step(1, "next task ›"),
  );
}
