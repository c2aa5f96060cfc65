"use strict";
// The page of training runs: tables and charts of the data that the file holds.

const { runs, plots, parts, differences, beside } = JSON.parse(document.getElementById("training").textContent);
const MOST_ROWS = 40;
const INKS = 8;
const DOUBLE_CLICK = 300; // milliseconds

const short = (value, digits = 3) => value.toLocaleString("en", { maximumSignificantDigits: digits });
const exact = (value, digits) => (value && Math.abs(value) < 1e-3 ? value.toExponential(2) : short(value, digits));
const shownAs = (plot) => (value) => {
  if (value == null) return "–";
  return plot.share ? `${short(100 * value)} %` : exact(value, plot.from_zero ? 3 : 5);
};
const ink = (run) => `run-${run % INKS}`;
const key = (name) => el("i", { class: `key ${name}` });
const interval = (words, low, high) => (low == null ? "" : ` (${words(low)} to ${words(high)})`);
const wide = (...table) => el("div", { class: "wide" }, dataTable(...table));
const section = (id, title, about, ...content) =>
  el("section", { class: "plots", id }, el("h2", {}, title), about && el("p", { class: "dim" }, about), content);

function runsTable() {
  const two = (value) => value.toFixed(2);
  const evaluated = (point) => (point ? two(point[0]) + interval(two, point[1], point[2]) : "");
  return wide(
    ["Run", "Advantage", "Updates", "Wall clock", "Held-out reward, first", "last", "Gain", "Largest logprob_diff", "Trainer overhead"],
    runs.map((run, i) => [
      [key(ink(i)), run.name],
      run.advantage,
      count(run.updates),
      time(60 * run.minutes),
      evaluated(run.first),
      evaluated(run.last),
      run.first && run.last ? (run.last[0] - run.first[0]).toFixed(3) : "",
      run.logprob_diff == null ? "" : exact(run.logprob_diff),
      run.overhead == null ? "" : `${short(100 * run.overhead, 2)} %`,
    ]),
  );
}

// --- curves ----------------------------------------------------------------------------------------------------

function yRange(plot, low, high) {
  if (low == null) return [0, 1];
  if (!plot.from_zero) return [low - Math.max(high - low, 1e-3) / 2, high + Math.max(high - low, 1e-3) / 2];
  if (plot.share && high > 0.4) return [0, 1];
  const bottom = Math.min(0, low);
  const top = Math.max(0, high);
  return top > bottom ? [bottom, top + 0.04 * (top - bottom)] : [bottom, bottom + 1];
}

/** Curves of all runs over updates or minutes; runs have points at different x. */
function curveChart(plot, axis) {
  const tables = [];
  const series = [];
  const bands = [];
  const words = shownAs(plot);
  for (const [i, line] of plot.lines.entries()) {
    if (!line.value.length) continue;
    const run = { run: i, label: runs[i].name, stroke: () => colour(ink(i)), dash: i < INKS ? [] : [6, 4], width: 2 };
    const value = (_, y, s, index) => (index == null ? "–" : words(y));
    const columns = [line[axis], line.mean ?? line.value];
    series.push({ ...run, value, points: plot.dotted ? { show: true, size: 7, fill: () => colour(ink(i)) } : {} });
    if (line.mean) {
      columns.push(line.value);
      series.push({ ...run, class: "extra", width: 1, alpha: 0.35, points: { show: false } });
    }
    if (line.low) {
      columns.push(line.low, line.high);
      for (const end of [1, 2]) series.push({ ...run, class: "extra", width: 0, points: { show: false }, end });
      bands.push({ series: [series.length, series.length - 1], fill: () => `${colour(ink(i))}30` });
    }
    tables.push(columns);
  }
  return chart(`${plot.title} over ${axis === "update" ? "updates" : "minutes"}`, {
    data: uPlot.join(tables),
    series,
    bands,
    x: {
      label: axis === "update" ? "updates" : "minutes",
      range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high : 1],
      words: axis === "update" ? count : (minutes) => minutes.toFixed(1),
      splits: axis === "update" ? (_, __, low, high) => wholeTicks(low, high) : undefined,
    },
    y: { values: words, range: (_, low, high) => yRange(plot, low, high) },
  });
}

/** The run and the update of the point nearest to the pointer. */
function pointedAt({ cursor, series, data, valToPos }) {
  const points = series.flatMap((one, i) => {
    const value = i && one.show && one.class !== "extra" ? data[i][cursor.idxs[i]] : null;
    return value == null ? [] : [{ run: one.run, x: data[0][cursor.idxs[i]], away: Math.abs(valToPos(value, "y") - cursor.top) }];
  });
  return points.sort((a, b) => a.away - b.away)[0];
}

const eventOf = (plot) => (plot.dotted ? "evaluation" : "update");

/** The episodes of an update or evaluation of a run, those first on which sampler and trainer differ most. */
function episodesTable(run, event, update) {
  const { lost, rows } = run.episodes[event][update];
  const page = `${event}-${update}`;
  const address = [beside, ...run.name.split("/"), `${page}.html`].map(encodeURIComponent).join("/");
  const hasPage = run.readable.includes(page);
  const named = ({ task, attempt }) =>
    hasPage ? el("a", { href: `${address}#/${[`${page}.jsonl`, task, attempt].map(encodeURIComponent).join("/")}` }, task) : task;
  const differ = (row) => (typeof row.logprob_diff === "number" ? row.logprob_diff : -1);
  const about = `${event === "update" ? "Update" : "Evaluation after update"} ${count(update)} of ${run.name}: ${plural(rows.length, "episode")}`;
  return el(
    "div",
    { class: "episodes", role: "region", "aria-label": about },
    el("h4", { tabindex: "-1" }, about + (lost ? `, ${count(lost)} lost` : "")),
    wide(
      ["Task", "Attempt", "Reward", "Stop reason", "Turns", "Tokens", "logprob_diff"],
      [...rows]
        .sort((a, b) => differ(b) - differ(a))
        .map((row) => [
          named(row),
          count(row.attempt),
          short(row.reward),
          row.reason,
          count(row.turns) + (row.prefix ? ` after ${row.prefix} given` : ""),
          count(row.tokens),
          row.logprob_diff == null ? "" : typeof row.logprob_diff === "number" ? exact(row.logprob_diff) : row.logprob_diff,
        ]),
    ),
    hasPage ? null : el("p", { class: "dim" }, "These episodes were not kept: run.keep_episodes has the last updates only."),
  );
}

/** The numbers of a plot: a row per update, a column per run. */
function numbersTable(plot, show) {
  const words = shownAs(plot);
  const columns = plot.lines.map((line) => new Map(line.update.map((update, i) => [update, i])));
  const updates = [...new Set(plot.lines.flatMap((line) => line.update))].sort((a, b) => a - b);
  const every = Math.ceil(updates.length / MOST_ROWS);
  const cell = (line, i) =>
    i === undefined ? "" : words(line.value[i]) + (line.low ? interval(words, line.low[i], line.high[i]) : "");
  const rows = updates
    .filter((_, i) => i % every === 0 || i === updates.length - 1)
    .map((update) => [opener(plot, update, show), ...plot.lines.map((line, run) => cell(line, columns[run].get(update)))]);
  const summary = every === 1 ? "Numbers" : `Numbers, every ${every} updates`;
  return el("details", {}, el("summary", {}, summary), wide(["update", ...runs.map((run) => run.name)], rows));
}

/** The number of an update; a button for each run whose episodes are known. */
function opener(plot, update, show) {
  const known = runs.flatMap((run, i) => (run.episodes[eventOf(plot)][update] ? [i] : []));
  if (!known.length) return count(update);
  return [count(update), ...known.map((i) => [" ", button("episodes", () => show(i, update), { "aria-label": `episodes of ${runs[i].name} at ${update}` })])];
}

function curves() {
  const boxes = plots.map(() => el("div", { class: "drawing" }));
  const lists = plots.map(() => el("div", {}));
  const show = (i) => (run, update) => {
    if (!runs[run].episodes[eventOf(plots[i])][update]) return;
    lists[i].replaceChildren(episodesTable(runs[run], eventOf(plots[i]), update));
    lists[i].querySelector("h4").focus({ preventScroll: true }); // a second click meets the same chart
  };
  const openAt = (i, point) => {
    const line = plots[i].lines[point.run];
    const axis = document.querySelector("input[name=axis]:checked").value;
    show(i)(point.run, line.update[line[axis].indexOf(point.x)]);
  };
  const listen = (i, plot) => {
    let begun = 0;
    let opening = 0;
    plot.over.addEventListener("mousedown", (event) => (begun = event.clientX));
    plot.over.addEventListener("click", (event) => {
      const point = Math.abs(event.clientX - begun) < 4 && pointedAt(plot); // not a zoom
      clearTimeout(opening);
      if (point && event.detail < 2) opening = setTimeout(() => openAt(i, point), DOUBLE_CLICK);
    });
    plot.over.addEventListener("dblclick", () => clearTimeout(opening));
  };
  const draw = () => {
    const axis = document.querySelector("input[name=axis]:checked").value;
    for (const [i, plot] of plots.entries()) {
      dropCharts(boxes[i]);
      boxes[i].replaceChildren(curveChart(plot, axis));
      listen(i, boxes[i].firstChild.plot);
    }
    showRuns();
  };
  const showRuns = () => {
    for (const { firstChild } of boxes)
      firstChild.plot.batch((plot) => {
        for (const [i, one] of plot.series.entries())
          if (i) plot.setSeries(i, { show: document.getElementById(`show-${one.run}`).checked });
      });
  };
  const figures = plots.map((plot, i) =>
    el("figure", {}, el("figcaption", {}, el("h3", {}, plot.title), el("p", {}, plot.about)), boxes[i], lists[i], numbersTable(plot, show(i))),
  );
  const smoothed = plots.some((plot) => plot.lines.some((line) => line.mean));
  const about = smoothed ? "Thin lines are single updates; thick lines are running means over a twentieth of the run. " : "";
  const known = runs.some((run) => Object.keys(run.episodes.update).length);
  const help = `Drag over a chart to zoom in, double-click to zoom out.${known ? " Click a point for its episodes." : ""}`;
  return {
    node: section(
      "curves",
      "Curves",
      plots.length ? about + help : "No updates yet.",
      el("div", { class: "figures" }, figures),
    ),
    draw,
    showRuns,
  };
}

// --- time ------------------------------------------------------------------------------------------------------

function timeFigure(run) {
  const { first_updates: xs, parts: seconds } = run.bars;
  const present = Object.keys(parts).filter((part) => run.seconds[part] > 0);
  const whole = present.reduce((sum, part) => sum + run.seconds[part], 0) || 1;
  const name = (part) => part.replaceAll(" ", "-");
  const bars = stackedBars(
    `seconds per update of ${run.name}`,
    xs.map((_, i) => i),
    present.map((part) => [part, `part-${name(part)}`, seconds[part]]),
    {
      words: time,
      x: {
        label: "update",
        range: [-0.5, xs.length - 0.5],
        splits: (_, __, low, high) => xs.map((_, i) => i).filter((i) => i % Math.max(1, Math.ceil(xs.length / 10)) === 0),
        values: (i) => count(xs[i] ?? 0),
        words: (i) => count(xs[i]),
      },
      y: { values: (seconds) => `${short(seconds)} s`, range: (_, low, high) => [0, high || 1] },
    },
  );
  const rows = present
    .map((part) => [
      [key(`part-${name(part)}`), part],
      time(run.seconds[part] / run.updates),
      `${((100 * run.seconds[part]) / whole).toFixed(1)} %`,
      parts[part],
    ])
    .reverse();
  const outside = Math.max(0, 60 * run.minutes - whole - run.evaluating);
  rows.push([
    "all",
    time(whole / run.updates),
    "100 %",
    `of ${time(60 * run.minutes)}: updates ${time(whole)}, evaluations ${time(run.evaluating)}, loading and SFT ${time(outside)}`,
  ]);
  const table = wide(["part", "per update", "share", "description"], rows);
  const about = `Seconds per update. The trainer's overhead is ${short(100 * (run.overhead ?? 0), 2)} %.`;
  return el(
    "figure",
    {},
    el("figcaption", {}, el("h3", {}, run.name), el("p", {}, about)),
    el("div", { class: "beside" }, el("div", { class: "drawing" }, bars), table),
  );
}

// --- configuration ---------------------------------------------------------------------------------------------

function configuration() {
  const plain = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  const rows = Object.entries(differences).map(([name, values]) => [name, ...values.map(plain)]);
  return section(
    "configuration",
    "Configuration",
    "",
    runs.length > 1 ? wide(["differs in", ...runs.map((run) => run.name)], rows) : null,
    runs.map((run) =>
      el("details", { class: "raw" }, el("summary", {}, run.name), el("pre", {}, JSON.stringify(run.config, null, 2))),
    ),
  );
}

// --- the page --------------------------------------------------------------------------------------------------

const updates = runs.reduce((sum, run) => sum + run.updates, 0);
document.title = `${runs.map((run) => run.name).join(", ")} · swe-gym`;
if (runs.length === 1) document.querySelector("h1").textContent = runs[0].name;
document.getElementById("counts").textContent = `${plural(runs.length, "training run")} · ${plural(updates, "update")}`;
const drawn = curves();
const boxes = runs.map((run, i) =>
  el("label", {}, el("input", { type: "checkbox", id: `show-${i}`, checked: true, onchange: drawn.showRuns }), key(ink(i)), run.name),
);
document.getElementById("shown").append(...boxes);
document.getElementById("shown").hidden = runs.length === 1;
for (const input of document.querySelectorAll("input[name=axis]")) input.addEventListener("change", drawn.draw);
document.getElementById("main").append(
  section(
    "runs",
    "Runs",
    "Held-out reward: mean with 95 % interval. Largest logprob_diff: over all updates and weight syncs. Trainer overhead: " +
      "share of the updates' wall clock outside model and sandboxes, checkpoints included.",
    runsTable(),
  ),
  drawn.node,
  section(
    "time",
    "Wall-clock time of updates",
    "Episodes run in parallel: the time that an update waited for them is split in proportion to the summed times of their " +
      "threads. With async_rollout, only the time that the trainer waited counts.",
    runs.filter((run) => run.updates).map(timeFigure),
  ),
  configuration(),
);
drawn.draw();
