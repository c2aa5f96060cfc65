"use strict";
// One episode as a conversation, and several side by side.

const FIRST_LINES = { observation: 24, issue: 30, argument: 24 };

function partsOf(turn, episode, last) {
  const grading =
    last && (turn.terminated || turn.truncated) ? Math.min(turn.seconds, episode.seconds.grading ?? 0) : 0;
  return [
    ["model", turn.policy_seconds],
    ["tools", turn.seconds - grading],
    ["grading", grading],
  ];
}

const secondsOf = (turn) => turn.policy_seconds + turn.seconds;

function headlineOf(turn) {
  if (!turn.tool) return "no valid call";
  const values = Object.values(turn.arguments).map((value) =>
    typeof value === "string" ? value : JSON.stringify(value),
  );
  return `${turn.tool} ${values.join(" ").replace(/\s+/g, " ").slice(0, 160)}`.trim();
}

/** The names of the arguments with the text before and after, for tools that replace text. */
function replacement(args) {
  for (const [before, after] of [
    ["old_str", "new_str"],
    ["old", "new"],
    ["search", "replace"],
    ["old_string", "new_string"],
  ]) {
    if (typeof args[before] === "string" && typeof args[after] === "string") return [before, after];
  }
  return null;
}

const signed = (sign, text) =>
  text
    ? text
        .replace(/\n$/, "")
        .split("\n")
        .map((line) => sign + line)
        .join("\n") + "\n"
    : "";

function callView(turn) {
  const box = el("div", { class: "call", role: "group", "aria-label": "Tool call" });
  if (!turn.tool) {
    box.append(el("p", { class: "invalid" }, "No valid tool call"), longText(turn.action || "(empty)"));
    return box;
  }
  const args = { ...turn.arguments };
  const command = ["command", "cmd"].find((name) => typeof args[name] === "string");
  if (command) {
    const text = `$ ${args[command]}`;
    delete args[command];
    const plain = (part) => el("pre", { class: "command" }, part);
    box.append(hasDiff(text) ? diffView(text, 40) : longText(text, FIRST_LINES.argument, plain));
  }
  const pair = replacement(args);
  const list = el("dl", {});
  for (const [name, value] of Object.entries(args)) {
    if (pair?.includes(name)) continue;
    const text = typeof value === "string" ? value : JSON.stringify(value);
    list.append(
      el("dt", {}, name),
      el("dd", {}, text.includes("\n") ? longText(text, FIRST_LINES.argument) : el("code", {}, text)),
    );
  }
  if (list.children.length) box.append(list);
  if (pair) {
    const [before, after] = pair;
    const kinds = (part) =>
      el(
        "pre",
        { class: "diff" },
        part.split("\n").map((line) => el("span", { class: line.startsWith("-") ? "del" : "add" }, `${line}\n`)),
      );
    box.append(longText((signed("-", args[before]) + signed("+", args[after])).replace(/\n$/, ""), 40, kinds));
  }
  return box.hasChildNodes() ? box : null;
}

function marksOf(turn, before) {
  const info = turn.info,
    marks = [];
  if (info.exit_code > 0) marks.push(["warn", `exit code ${info.exit_code}`]);
  else if (turn.tool && info.tool_ok === false && info.outcome === "running") marks.push(["warn", "tool error"]);
  if ((info.cheat_signs ?? 0) > (before?.info.cheat_signs ?? 0)) marks.push(["bad", "⚑ sign of cheating"]);
  if (turn.reward) marks.push(["good", `reward ${turn.reward.toFixed(2)}`]);
  return marks.map(([kind, words]) => el("span", { class: `mark ${kind}` }, words));
}

function observationView(text) {
  if (!text) return el("p", { class: "dim" }, "(empty)");
  return hasDiff(text)
    ? diffView(text)
    : longText(text, FIRST_LINES.observation, (part) => el("pre", { class: "observation" }, part));
}

function turnView(turn, number, episode, longest, last) {
  const before = episode.turns[number - 2];
  const spent = partsOf(turn, episode, last);
  const tokens = turn.usage.prompt_tokens + turn.usage.completion_tokens;
  const times = spent
    .filter(([, seconds]) => seconds > 0.0005)
    .map(([name, seconds]) => `${name} ${time(seconds)}`)
    .join(" · ");
  const head = el(
    "h3",
    {},
    el("span", { class: "number" }, `${number}`),
    el("span", { class: "what" }, turn.tool || "no valid call"),
    marksOf(turn, before),
    el(
      "span",
      { class: "dim facts" },
      [
        times,
        tokens ? `${count(turn.usage.prompt_tokens)} → ${count(turn.usage.completion_tokens)} tokens` : "",
        money(turn.usage.cost),
      ]
        .filter(Boolean)
        .join(" · "),
    ),
  );
  return el(
    "article",
    {
      class: "turn",
      tabindex: "-1",
      "data-turn": number,
      "aria-label": `Turn ${number}: ${turn.tool || "no valid call"}`,
    },
    head,
    timeBar(spent, longest),
    turn.thought
      ? el(
          "div",
          { class: "thought", role: "group", "aria-label": "Thought" },
          longText(turn.thought, 16, (part) => el("p", {}, part)),
        )
      : null,
    callView(turn),
    el("div", { role: "group", "aria-label": "Observation" }, observationView(turn.observation)),
    turn.tool && turn.action
      ? el("details", { class: "raw" }, el("summary", {}, "Raw action"), el("pre", {}, turn.action))
      : null,
  );
}

// --- the end of an episode --------------------------------------------------------------------------------------

const passed = (status) => status === "passed";

function testsView(title, statuses) {
  const tests = Object.entries(statuses);
  if (!tests.length) return null;
  const good = tests.filter(([, status]) => passed(status));
  const rows = (some) =>
    el(
      "ul",
      { class: "tests" },
      some
        .slice(0, 500)
        .map(([name, status]) =>
          el(
            "li",
            {},
            el(
              "span",
              { class: `badge ${passed(status) ? "resolved" : "unresolved"}` },
              `${passed(status) ? "✓" : "✗"} ${status.replaceAll("_", " ")}`,
            ),
            el("code", {}, name),
          ),
        ),
      some.length > 500 ? el("li", { class: "dim" }, `and ${count(some.length - 500)} more`) : null,
    );
  const bad = tests.filter(([, status]) => !passed(status));
  return el(
    "div",
    {},
    el("h4", {}, `${title}: ${good.length} of ${tests.length} passed`),
    bad.length ? rows(bad) : null,
    good.length
      ? el("details", { open: tests.length <= 20 }, el("summary", {}, plural(good.length, "passed test")), rows(good))
      : null,
  );
}

/** The number of counter-tests, and those that passed although a correct solution fails them. */
function counterTests(found) {
  if (!found?.runs) return "";
  const alarms = Object.keys(found.alarms);
  const counts = `${Object.keys(found.kinds).length} tests, ${found.runs} runs`;
  return alarms.length ? `${counts}; passed although a correct solution fails them: ${alarms.join(", ")}` : counts;
}

function verdictView(verdict, passedOn) {
  if (!verdict)
    return passedOn ? null : el("p", { class: "dim" }, "This file does not include the verdict.");
  const line = (name, value) => (value ? [el("dt", {}, name), el("dd", {}, value)] : null);
  return el(
    "section",
    { class: "verdict", "aria-label": "Verdict" },
    el(
      "h3",
      {},
      "Verdict ",
      badge(verdict.resolved ? "resolved" : "unresolved"),
      el("span", { class: "dim" }, " Hidden tests (visible to the run's owner only)"),
    ),
    el(
      "dl",
      {},
      line("reason", verdict.reason),
      line("judged by", verdict.judge.replaceAll("_", " ")),
      line("exit code", verdict.timed_out ? "none: timed out" : String(verdict.exit_code ?? "none")),
      line("counter-tests", counterTests(verdict.counter_tests)),
      line("notes", verdict.notes.join(" ")),
      line("files restored by grading", verdict.dropped.join(", ")),
      line("test time", time(verdict.duration)),
    ),
    testsView("Fail-to-pass tests", verdict.fail_to_pass),
    testsView("Pass-to-pass tests", verdict.pass_to_pass),
    verdict.log ? el("details", {}, el("summary", {}, "Test output (end)"), el("pre", {}, verdict.log)) : null,
  );
}

function endView(episode) {
  return el(
    "div",
    { class: "end" },
    episode.failure
      ? el(
          "section",
          { class: "failure", "aria-label": "Failure" },
          el("h3", {}, "Failure"),
          longText(episode.failure),
        )
      : null,
    episode.patch
      ? el(
          "section",
          { "aria-label": "Patch" },
          el("h3", {}, "Patch"),
          episode.patch_bytes
            ? el("p", { class: "dim" }, `Truncated: the whole patch has ${episode.patch_bytes} bytes.`)
            : null,
          diffView(episode.patch),
        )
      : episode.outcome !== "running"
        ? el("p", { class: "dim" }, "The patch is empty.")
        : null,
    verdictView(episode.verdict, run.withVerdicts || !episode.reward_valid),
  );
}

function clockOf(episode) {
  const parts = clockParts.map(([key, name]) => [name, episode.seconds[key] ?? 0]);
  const known = parts.reduce((sum, [, seconds]) => sum + seconds, 0);
  const total = Math.max(known, episode.seconds.total ?? 0);
  return [[...parts, ["other", total - known]], total];
}

function factsView(episode, row) {
  const used = episode.usage,
    reward = Object.entries(episode.info.reward_components ?? {})
      .map(([name, value]) => `${name} ${value.toFixed(2)}`)
      .join(", ");
  const facts = [
    ["stop reason", row.reason || (row.state === "running" ? "still running" : "")],
    [
      "reward",
      row.state === "failed" || row.reason === "" ? "" : `${episode.reward.toFixed(2)}${reward ? ` (${reward})` : ""}`,
    ],
    ["turns", count(episode.turns.length)],
    ["policy", [episode.policy.name, episode.policy.model].filter(Boolean).join(" · ")],
    [
      "tokens",
      used.calls
        ? `${count(used.prompt_tokens)} read (${count(used.cached_tokens)} cached), ${count(used.completion_tokens)} written in ${plural(used.calls, "call")}`
        : "",
    ],
    ["cost", money(used.cost)],
    [
      "sandbox",
      Object.entries(episode.sandbox)
        .filter(([, value]) => typeof value === "string" && value)
        .map(([, value]) => value)
        .slice(0, 2)
        .join(" · "),
    ],
    ["tools", episode.tools.join(", ")],
    ["tries", episode.tries > 1 ? episode.tries : ""],
    ["invalid calls", episode.info.invalid_actions || ""],
    ["signs of cheating", episode.info.cheat_signs || ""],
    ["seed", episode.seed ?? ""],
    ["started", episode.started.slice(0, 19).replace("T", " ")],
    [
      "token segments",
      episode.segments.length
        ? episode.segments.map((one) => `${count(one.tokens)} tokens, ${count(one.sampled)} sampled`).join("; ")
        : "",
    ],
  ];
  return el(
    "dl",
    { class: "facts" },
    facts
      .filter(([, value]) => value !== "")
      .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value)))),
  );
}

// --- the page of one episode ------------------------------------------------------------------------------------

const opened = { id: "", episode: null, draw: null, head: null };

const rowFor = (id) => run.byId.get(id) ?? { id, state: "left", reason: "", task: "", attempt: 0 };

/** Links to the attempts at a task, if there are several. */
function attemptsView(episode, id) {
  const attempts = attemptsAt(episode.task_id);
  if (attempts.length < 2) return null;
  const link = (other) => {
    const current = other.id === id ? "page" : null;
    const title = `${stateWords[other.state]}, ${plural(other.turns, "turn")}`;
    const words = `${stateSigns[other.state]} ${other.attempt}`;
    return el(
      "a",
      { href: `#/episode/${other.id}`, class: `badge ${other.state}`, "aria-current": current, title },
      words,
    );
  };
  return el(
    "nav",
    { class: "attempts", "aria-label": "Attempts at this task" },
    el("span", {}, "Attempts: "),
    attempts.slice(0, 40).map(link),
    button("Compare attempts (c)", compareAttempts),
  );
}

/** A running episode with the sums of its turns, which its record does not have yet. */
function withSums(episode) {
  if (episode.outcome !== "running" || !episode.turns.length) return episode;
  const sum = (of) => episode.turns.reduce((total, turn) => total + of(turn), 0);
  const usage = Object.fromEntries(Object.keys(episode.usage).map((name) => [name, sum((turn) => turn.usage[name])]));
  const seconds = {
    start: episode.seconds.start,
    policy: sum((turn) => turn.policy_seconds),
    tools: sum((turn) => turn.seconds),
  };
  return { ...episode, usage, seconds };
}

function headView(episode, row) {
  const summed = withSums(episode);
  const [parts, total] = clockOf(summed);
  const shown = parts.filter(([, seconds]) => seconds > 0.05).map(([name, seconds]) => [name, time(seconds)]);
  const clock = el("div", { class: "clock" }, timeBar(parts, total), legend(shown));
  return el("div", {}, factsView(summed, row), clock);
}

function topView(...right) {
  return el("div", { class: "top" }, el("a", { href: "#/", class: "back" }, "← Episodes"), right);
}

async function episodePage(id) {
  const episode = await source.episode(id);
  const row = rowFor(id);
  const turns = el("div", { class: "turns" });
  const draw = (from) => {
    const longest = Math.max(0.001, ...episode.turns.map(secondsOf));
    const over = episode.outcome === "running" ? 0 : episode.turns.length;
    for (let number = from + 1; number <= episode.turns.length; number++) {
      turns.append(turnView(episode.turns[number - 1], number, episode, longest, number === over));
    }
  };
  draw(0);
  const head = headView(episode, row);
  const steps = [
    button("‹ previous", () => stepEpisode(-1), { title: "[" }),
    button("next ›", () => stepEpisode(1), { title: "]" }),
  ];
  const system = episode.system.join("\n\n");
  const page = el(
    "section",
    { class: "episode", "aria-label": "Episode" },
    topView(el("span", { class: "steps" }, steps)),
    el(
      "h2",
      {},
      episode.task_id,
      el("span", { class: "dim" }, ` attempt\u00a0${episode.attempt}`),
      " ",
      badge(row.state),
    ),
    episode.repo ? el("p", { class: "dim" }, episode.repo) : null,
    attemptsView(episode, id),
    head,
    system
      ? el("details", { class: "raw" }, el("summary", {}, "System prompt"), el("pre", {}, system))
      : null,
    el(
      "section",
      { class: "issue", "aria-label": "First observation" },
      el("h3", {}, "Task"),
      longText(episode.observation, FIRST_LINES.issue),
    ),
    turns,
    row.state === "running"
      ? el("p", { class: "dim waiting", role: "status" }, "The episode is running. Its next turn will appear here.")
      : endView(episode),
  );
  page.opened = { id, episode, draw, head };
  return page;
}

/** Add new turns of a running episode. After its end, open its record. */
async function followEpisode() {
  const { id, episode } = opened;
  if (!id.startsWith("live-")) return;
  if (!run.byId.has(id)) {
    const ended = attemptsAt(episode.task_id).filter(
      (row) => row.attempt === episode.attempt && !row.id.startsWith("live-"),
    );
    const same = ended.find((row) => row.started === episode.started) ?? ended.at(-1);
    if (same && opened.id === id) location.replace(`#/episode/${same.id}`);
    return;
  }
  const row = rowFor(id);
  if (row.started !== episode.started) return void show(); // another attempt replaced it
  const had = episode.turns.length;
  if (row.turns <= had) return;
  const more = await source.episode(id, had);
  if (opened.id !== id || episode.turns.length !== had || more.started !== episode.started) return;
  episode.turns.push(...more.turns);
  opened.draw(had);
  const head = headView(episode, row);
  opened.head.replaceWith(head);
  opened.head = head;
}

function moveTurn(by) {
  const kind = shown === "compare" ? "details.cell > summary" : "article.turn";
  const turns = [...document.querySelectorAll(kind)];
  if (!turns.length) return;
  const at = turns.indexOf(document.activeElement.closest(kind));
  const next =
    at < 0
      ? (turns.find((turn) => turn.getBoundingClientRect().top >= 0) ?? turns[0])
      : turns[Math.min(turns.length - 1, Math.max(0, at + by))];
  next.focus({ preventScroll: true });
  next.scrollIntoView({ block: shown === "compare" ? "nearest" : "start" });
}

function stepEpisode(by) {
  const rows = table.view.length ? table.view : everyRow();
  const at = rows.findIndex((row) => row.id === opened.id);
  const next = rows[at + by];
  if (at < 0 || !next) return notify("No more episodes in this direction.");
  table.cursor = next.id;
  go(`#/episode/${next.id}`);
}

function compareAttempts() {
  const ids = attemptsAt(opened.episode.task_id).map((row) => row.id);
  if (ids.length < 2) return notify("This task has only one attempt.");
  const around = Math.min(Math.max(0, ids.indexOf(opened.id) - 1), Math.max(0, ids.length - MOST_COMPARED));
  go(`#/compare/${ids.slice(around, around + MOST_COMPARED).join(",")}`);
}

// --- side by side ----------------------------------------------------------------------------------------------

const sameAction = (turns) =>
  turns.every(
    (turn) =>
      turn && turn.tool === turns[0].tool && JSON.stringify(turn.arguments) === JSON.stringify(turns[0].arguments),
  );

async function comparePage(ids) {
  const episodes = await Promise.all(ids.map((id) => source.episode(id)));
  const most = Math.max(...episodes.map((episode) => episode.turns.length));
  const slowest = Math.max(...episodes.map((episode) => clockOf(episode)[1]));
  const longest = Math.max(0.001, ...episodes.flatMap((episode) => episode.turns.map(secondsOf)));
  let same = 0;
  while (same < most && sameAction(episodes.map((episode) => episode.turns[same]))) same++;
  const words =
    same === most
      ? "All calls are equal."
      : same
        ? `The calls of the first ${plural(same, "turn")} are equal.`
        : "The calls differ from the first turn.";
  const grid = el(
    "div",
    { class: "grid" },
    episodes.map((episode, i) =>
      el(
        "div",
        { class: "cell head" },
        el(
          "h3",
          {},
          el("a", { href: `#/episode/${ids[i]}` }, episode.task_id),
          el("span", { class: "dim" }, ` attempt\u00a0${episode.attempt}`),
        ),
        badge(rowFor(ids[i]).state),
        el(
          "p",
          { class: "dim" },
          [
            rowFor(ids[i]).reason,
            plural(episode.turns.length, "turn"),
            time(clockOf(episode)[1]),
            episode.usage.calls ? `${count(episode.usage.prompt_tokens + episode.usage.completion_tokens)} tokens` : "",
            money(episode.usage.cost),
          ]
            .filter(Boolean)
            .join(" · "),
        ),
        timeBar(clockOf(episode)[0], slowest),
      ),
    ),
  );
  for (let number = 1; number <= most; number++) {
    for (const episode of episodes) {
      const turn = episode.turns[number - 1];
      if (!turn) {
        grid.append(el("div", { class: "cell none" }));
        continue;
      }
      const details = el(
        "details",
        { class: "cell turn", "data-turn": number },
        el(
          "summary",
          {},
          el("span", { class: "number" }, String(number)),
          el("code", {}, headlineOf(turn)),
          marksOf(turn, episode.turns[number - 2]),
          timeBar(partsOf(turn, episode, number === episode.turns.length), longest),
        ),
      );
      details.addEventListener("toggle", () => {
        if (details.open && details.children.length === 1)
          details.append(turnView(turn, number, episode, longest, number === episode.turns.length));
      });
      grid.append(details);
    }
    if (number === same && same < most) grid.append(el("p", { class: "parting" }, "The calls differ from here."));
  }
  for (const episode of episodes) grid.append(el("div", { class: "cell" }, endView(episode)));
  grid.style.setProperty("--columns", ids.length);
  return el(
    "section",
    { class: "compare", "aria-label": "Comparison" },
    topView(el("span", { class: "dim" }, words)),
    el("div", { class: "sideways" }, grid),
  );
}
