"use strict";
// The plots of a run. Each has its numbers as a table.

function figure(title, note, drawing, heads, rows) {
  return el(
    "figure",
    {},
    el("figcaption", {}, el("h2", {}, title), note && el("p", {}, note)),
    rows.length ? drawing() : el("p", { class: "empty" }, "No episodes yet."),
    rows.length
      ? el("details", {}, el("summary", {}, "Numbers"), dataTable(heads, rows.map((row) => row.map(String))))
      : null,
  );
}

/** Horizontal bars: name, share of the width, value as text. */
const bars = (items, kind) =>
  el(
    "div",
    { class: "bars", "aria-hidden": "true" },
    items.map(([name, share, words]) => {
      const piece = el("span", { class: `fill ${kind}` });
      piece.style.width = `${100 * share}%`;
      return [
        el("span", { class: "what", title: name }, name),
        el("span", { class: "track" }, piece),
        el("span", { class: "words" }, words),
      ];
    }),
  );

function passPlot(points, early) {
  const few = points.some(([, , tasks]) => tasks !== points[0][2]);
  const drawing = () =>
    chart("pass at k", {
      data: [points.map(([k]) => k), points.map(([, value]) => value)],
      series: [
        {
          label: "pass@k",
          stroke: () => colour("model"),
          width: 2,
          points: { show: true, size: 7, fill: () => colour("model") },
          value: (_, value) => (value == null ? "–" : percent(value)),
        },
      ],
      x: { label: "attempts (k)", range: [0.5, points.length + 0.5], splits: (_, __, low, high) => wholeTicks(low, high) },
      y: { values: percent, range: [0, 1] },
    });
  return figure(
    "pass@k",
    `Unbiased estimate over tasks.${few ? " Each k uses only the tasks with at least k attempts." : ""}${early ? " The run stops early: large k count only tasks on which attempts disagree." : ""}`,
    drawing,
    ["k", "pass@k", "tasks"],
    points.map(([k, value, tasks]) => [k, percent(value), tasks]),
  );
}

function turnsPlot(bins) {
  const names = bins.map(([low, high]) => (low === high ? `${low}` : `${low}–${high}`));
  const drawing = () =>
    stackedBars(
      "episodes by turns",
      bins.map((_, i) => i),
      [
        ["resolved", "tools", bins.map(([, , good]) => good)],
        ["not resolved", "other", bins.map(([, , , bad]) => bad)],
      ],
      {
        words: count,
        x: {
          label: "turns",
          range: [-0.5, bins.length - 0.5],
          splits: (_, __, low, high) => wholeTicks(low, high),
          values: (i) => names[i],
          words: (i) => names[i],
        },
        y: { values: count, range: (_, low, high) => [0, high || 1], splits: (_, __, low, high) => wholeTicks(low, high) },
      },
    );
  return figure(
    "Turns",
    "Number of episodes by number of turns.",
    drawing,
    ["turns", "resolved", "not resolved"],
    bins.map(([, , good, bad], i) => [names[i], good, bad]),
  );
}

function clockPlot(spent, judged) {
  const parts = Object.entries(spent);
  const whole = parts.reduce((sum, [, seconds]) => sum + seconds, 0);
  const rows = parts
    .filter(([, seconds]) => seconds > 0)
    .map(([name, seconds]) => [
      name,
      time(seconds),
      percent(seconds / whole),
      name === "failed tries" || !judged ? "" : time(seconds / judged),
    ]);
  return figure(
    "Wall-clock time",
    `${time(whole)}, summed over episodes that ran in parallel.`,
    () =>
      el(
        "div",
        {},
        timeBar(parts, whole),
        legend(parts.filter(([, seconds]) => seconds > 0).map(([name, seconds]) => [name, percent(seconds / whole)])),
      ),
    ["part", "time", "share", "per episode"],
    rows,
  );
}

async function plotsPage() {
  const stats = await source.stats();
  const most = (items) => Math.max(1, ...items.map(([, number]) => number));
  const counted = (title, note, items, kind) =>
    figure(
      title,
      note,
      () =>
        bars(
          items.map(([name, number]) => [name || "unknown", number / most(items), count(number)]),
          kind,
        ),
      ["reason", "count"],
      items,
    );
  const tile = (value, words) => el("li", {}, el("b", {}, value), ` ${words}`);
  return el(
    "section",
    { class: "plots", "aria-label": "Plots" },
    el(
      "ul",
      { class: "tiles" },
      tile(
        stats.judged ? percent(stats.resolved / stats.judged) : "–",
        `${count(stats.resolved)} of ${count(stats.judged)} resolved`,
      ),
      tile(count(stats.tasks), stats.tasks === 1 ? "task" : "tasks"),
      tile(stats.judged ? (stats.turns / stats.judged).toFixed(1) : "–", "turns on average"),
      stats.read + stats.written
        ? tile(count(stats.read + stats.written), `tokens, ${count(stats.written)} written`)
        : null,
      stats.uncounted ? tile(count(stats.uncounted), "answers of unknown tokens") : null,
      stats.requests || stats.cached_answers ? tile(costOf({ cost: stats.cost, calls: stats.requests }), "cost") : null,
      stats.invalid_calls
        ? tile(count(stats.invalid_calls), `of ${count(stats.turns)} turns had no valid call`)
        : null,
      stats.shortened ? tile(count(stats.shortened), "conversations shortened") : null,
      stats.retries ? tile(count(stats.retries), `of ${count(stats.requests + stats.retries)} requests sent again`) : null,
      stats.cached_answers
        ? tile(count(stats.cached_answers), `of ${count(stats.requests + stats.cached_answers)} answers from the cache`)
        : null,
      tile(count(stats.failed), stats.failed === 1 ? "failed try" : "failed tries"),
    ),
    el(
      "div",
      { class: "figures" },
      figure(
        "Resolved by repository",
        "",
        () =>
          bars(
            stats.repositories.map(([name, good, all]) => [
              name,
              good / all,
              `${good} of ${all}, ${percent(good / all)}`,
            ]),
            "good",
          ),
        ["repository", "resolved", "episodes", "share"],
        stats.repositories.map(([name, good, all]) => [name, good, all, percent(good / all)]),
      ),
      passPlot(stats.pass_at_k, stats.stopped_early),
      turnsPlot(stats.turn_bins),
      clockPlot(stats.wall_clock, stats.judged),
      counted(
        "Stop reasons",
        "Judged episodes: submitted, or the limit that was reached.",
        stats.reasons,
        "neutral",
      ),
      stats.failures.length ? counted("Failures", "Failed attempts, which are retried and do not count.", stats.failures, "warn") : null,
    ),
    el(
      "details",
      { class: "raw" },
      el("summary", {}, "Configuration"),
      el("pre", {}, JSON.stringify(run.about, null, 2)),
    ),
  );
}
