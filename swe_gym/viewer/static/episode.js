"use strict";
// The page of one attempt, and attempts side by side.

// --- the end of an episode ------------------------------------------------------------------------------------

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
      ? el("details", { open: tests.length <= 5 }, el("summary", {}, plural(good.length, "passed test")), rows(good))
      : null,
  );
}

/** The number of counter-tests, and those that passed although a correct solution fails them. */
function counterTests(found) {
  if (!found?.runs) return "";
  const alarms = Object.keys(found.alarms);
  const counts = `${plural(Object.keys(found.kinds).length, "test")}, ${plural(found.runs, "run")}`;
  return alarms.length ? `${counts}; passed although a correct solution fails them: ${alarms.join(", ")}` : counts;
}

/** The exit code of the tests; counter-tests fail on purpose, so after them it says nothing. */
function exitCode(verdict) {
  if (verdict.timed_out) return "none: timed out";
  return counterTests(verdict.counter_tests) ? null : String(verdict.exit_code ?? "none");
}

function verdictView(verdict, passedOn) {
  if (!verdict) return passedOn ? null : el("p", { class: "dim" }, "This report does not include the verdict.");
  const line = (name, value) => (value ? [el("dt", {}, name), el("dd", {}, value)] : null);
  return partView(
    [
      "Verdict ",
      badge(verdict.resolved ? "resolved" : "unresolved"),
      el("span", { class: "dim" }, " Hidden tests (visible to the run's owner only)"),
    ],
    "verdict",
    el(
      "dl",
      {},
      line("reason", verdict.reason),
      line("judged by", verdict.judge.replaceAll("_", " ")),
      line("exit code", exitCode(verdict)),
      line("counter-tests", counterTests(verdict.counter_tests)),
      line("notes", verdict.notes.join(" ")),
      line("files restored by grading", verdict.dropped.join(", ")),
      line("test time", time(verdict.duration)),
    ),
    testsView("Fail-to-pass tests", verdict.fail_to_pass),
    testsView("Pass-to-pass tests", verdict.pass_to_pass),
    verdict.log ? el("details", {}, el("summary", {}, "Test output (end)"), longText(verdict.log)) : null,
  );
}

/** Failure, verdict and patch. */
function endView(episode) {
  const cut = episode.patch_bytes ? `Truncated: the whole patch has ${episode.patch_bytes} bytes.` : "";
  return el(
    "div",
    { class: "end" },
    episode.failure ? partView("Failure", "failure", longText(episode.failure)) : null,
    verdictView(episode.verdict, run.withVerdicts || !episode.reward_valid),
    episode.patch
      ? partView("Patch", "patch", cut ? el("p", { class: "dim" }, cut) : null, diffView(episode.patch, 40))
      : el("p", { class: "dim" }, "The patch is empty."),
  );
}

/** A part of the page that can be folded. */
const partView = (title, name, ...inside) =>
  el(
    "section",
    { class: name, "aria-label": [title].flat()[0].trim() },
    el("details", { open: true }, el("summary", {}, el("h3", {}, title)), inside),
  );

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
    ["turns", count(episode.outline.length)],
    ["policy", [episode.policy.name, episode.policy.model].filter(Boolean).join(" · ")],
    [
      "tokens",
      used.calls
        ? `${count(used.prompt_tokens)} read (${count(used.cached_tokens)} cached), ${count(used.completion_tokens)} written in ${plural(used.calls, "call")}`
        : "",
    ],
    ["answered as", used.answered_as.join(", ")],
    ["answers of unknown tokens", used.uncounted || ""],
    ["requests sent again", used.retries || ""],
    ["answers from the cache", used.cached_answers || ""],
    ["cost", costOf(used)],
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
    ["conversation shortened", used.shortened ? plural(used.shortened, "time") : ""],
    ["signs of cheating", episode.info.cheat_signs || ""],
    ["not proven", episode.info.unproven || ""],
    ["seed", episode.seed ?? ""],
    ["continues", parentView(episode)],
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
      .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value.nodeType ? value : String(value)))),
  );
}

/** The episode and turn from which this one continues, as a link if its run is open; empty if it began at the task. */
function parentView(episode) {
  if (!episode.parent) return "";
  const [, name, task, attempt, turn] = /^([^/]+)\/(.+)\/(\d+):(\d+)$/.exec(episode.parent) ?? [];
  if (name === undefined) return `a checkpoint after turn ${episode.branch_turn} (${episode.parent.slice(0, 8)})`;
  const words = `${task}, attempt ${attempt} of ${name}, after turn ${turn}`;
  const known = runs.many ? runs.byName.has(name) : name === run.folder;
  return known ? el("a", { href: addressTo(name, task, attempt, turn) }, words) : words;
}

// --- one attempt --------------------------------------------------------------------------------------------------

const rowFor = (id) => run.byId.get(id) ?? { id, state: "left", reason: "", task: "", attempt: 0 };

/** A running episode with the sums of its turns, which its record does not have yet. */
function withSums(episode) {
  if (episode.outcome !== "running" || !episode.outline.length) return episode;
  const sum = (of) => episode.outline.reduce((total, line) => total + of(line), 0);
  const costs = episode.outline.map((line) => line.usage).filter((one) => one.cost !== null || one.calls);
  const usage = {
    ...Object.fromEntries(Object.keys(episode.usage).map((name) => [name, sum((line) => line.usage[name] ?? 0)])),
    cost: costs.length && costs.every((one) => one.cost !== null) ? sum((line) => line.usage.cost) : null,
    answered_as: [...new Set(episode.outline.flatMap((line) => line.usage.answered_as ?? []))],
  };
  const seconds = {
    start: episode.seconds.start,
    policy: sum((line) => line.policy_seconds),
    tools: sum((line) => line.seconds),
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

/** The task as Markdown, or as it was written. */
function issueView(episode) {
  const text = episode.observation;
  const views = [markdown(text), plain(text)];
  const box = el("div", { class: "clamped" }, views[0]);
  const toggle = (words, other, change) => {
    const one = button(words, () => {
      one.textContent = one.textContent === words ? other : words;
      change();
    });
    return one;
  };
  const whole = toggle("Show all", "Show less", () => box.classList.toggle("clamped"));
  const kind = toggle("Plain text", "Markdown", () => box.replaceChildren(views[box.firstChild === views[0] ? 1 : 0]));
  const isLong = text.length > 1500 || text.split("\n").length > 24;
  if (!isLong) box.classList.remove("clamped");
  return partView("Task", "issue", box, el("p", { class: "buttons" }, isLong ? whole : null, kind));
}

/**
 * Render one attempt into an element, which the page may hold several of: facts, notes, verdict, patch, task, turns.
 *
 * @param box The element.
 * @param id Id of the row.
 * @param folded Whether its turns are folded at first.
 * @returns Its `id`, `episode`, `row`, `list` of turns, and `follow(more)` for a running episode.
 */
async function renderAttempt(box, id, { folded = false } = {}) {
  const [episode, notes] = await Promise.all([source.episode(id), readNotes(id)]);
  Object.assign(episode, { id, notes });
  const row = rowFor(id);
  const list = turnList(id, episode, row, folded);
  const system = episode.system.join("\n\n");
  let head = headView(episode, row);
  box.append(
    head,
    noteView(episode, 0),
    episode.outcome === "running" ? "" : endView(episode),
    system ? el("details", { class: "raw" }, el("summary", {}, "System prompt"), longText(system)) : "",
    issueView(episode),
    list.box,
  );
  const follow = (more) => {
    episode.outline.push(...more.outline);
    list.add();
    const changed = headView(episode, rowFor(id));
    head.replaceWith(changed);
    head = changed;
  };
  return { id, episode, row, list, follow };
}

// --- the outline: search, and a link to each turn -----------------------------------------------------------------

function outlineView(attempt) {
  const { episode, row, list } = attempt;
  const links = el("ol", { class: "lines" });
  const add = () => {
    for (let number = links.children.length + 1; number <= episode.outline.length; number++) {
      const line = episode.outline[number - 1];
      const failed = line.exit_code > 0 || line.failed || !(line.tool || line.answer);
      const inside = [el("b", {}, number), ` ${toolOf(line)} `, el("span", {}, line.words)];
      const noted = episode.notes.has(noteKey(episode.task_id, episode.attempt, number));
      const size = el("i", {}, noted ? "✎ " : "", failed ? "✗ " : "", line.size > 999 ? bytes(line.size) : "");
      const link = el(
        "a",
        { href: addressOf(row, number), "data-line": number, class: failed ? "bad" : "" },
        inside,
        size,
      );
      link.style.setProperty("--depth", depthOf(episode.outline, number));
      links.append(el("li", {}, link));
    }
  };
  add();
  const wide = matchMedia("(min-width: 1100px)").matches;
  const fold = (shut) => () => list.fold(shut);
  const box = el(
    "details",
    { open: wide, class: "outline" },
    el("summary", {}, "Outline and search"),
    el(
      "p",
      { class: "buttons" },
      button("Collapse all", fold(true)),
      button("Expand all", fold(false)),
      button("Print", printEpisode),
    ),
    searchView(attempt),
    el("nav", { "aria-label": "Turns" }, links),
  );
  let at = 0;
  const mark = () => {
    if (!box.isConnected) return at && removeEventListener("scroll", later);
    const number = currentTurn(list.box);
    if (number === at) return;
    at = number;
    links.querySelector("[aria-current]")?.removeAttribute("aria-current");
    const link = links.children[at - 1]?.firstChild;
    link?.setAttribute("aria-current", "location");
    if (link && wide) links.scrollTop = link.offsetTop - links.offsetTop - links.clientHeight / 2;
  };
  const later = () => requestAnimationFrame(mark);
  addEventListener("scroll", later, { passive: true });
  later();
  return Object.assign(box, { add });
}

/** The number of the first turn that ends below the top of the window; 0 without turns. */
function currentTurn(box) {
  let [low, high] = [0, box.children.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (box.children[middle].getBoundingClientRect().bottom > 60) high = middle;
    else low = middle + 1;
  }
  return box.children.length ? low + 1 : 0;
}

function searchView({ id, row, list }) {
  const words = el("input", {
    type: "search",
    id: "find",
    placeholder: "Search all turns  ( / )",
    "aria-label": "Search all turns",
  });
  const status = el("p", { class: "dim", role: "status" });
  const found = el("ol", { class: "found" });
  const part = (name) => name.replace("=", "");
  const reveal = async (match) => {
    const body = await list.show(match.turn);
    await reach(body, match);
    history.replaceState(null, "", addressOf(row, match.turn));
  };
  const link = (match) => {
    const onclick = (event) => {
      event.preventDefault();
      reveal(match).catch((error) => notify(error.message));
    };
    const [before, middle, after] = match.text;
    const where = el("b", {}, `${match.turn} ${part(match.part)} `);
    return el(
      "li",
      {},
      el("a", { href: addressOf(row, match.turn), onclick }, where, before, el("mark", {}, middle), after),
    );
  };
  const search = async (turn) => {
    const asked = words.value;
    status.textContent = "Searching …";
    const { matches, next } = await source.search(id, asked, turn);
    found.append(...matches.map(link));
    status.textContent = `${plural(found.children.length, "match").replace("matchs", "matches")}${next ? ` before turn ${next} ` : ""}`;
    if (next) status.append(button("Continue", () => search(next)));
  };
  const onsubmit = (event) => {
    event.preventDefault();
    found.replaceChildren();
    if (!words.value) status.textContent = "";
    else search(1).catch((error) => (status.textContent = error.message));
  };
  return el("form", { role: "search", onsubmit }, words, status, found);
}

/** Open the text of a match, mark it, and scroll to it. */
async function reach(body, { part, at, text: [, words] }) {
  const boxes = { observation: ".seen", thought: ".thought", action: ".call" };
  const box = body.querySelector(boxes[part] ?? ".call");
  for (const long of box?.querySelectorAll(".long") ?? []) await long.reach(at);
  const texts = document.createTreeWalker(box ?? body, NodeFilter.SHOW_TEXT);
  const nodes = [];
  while (texts.nextNode()) nodes.push(texts.currentNode);
  const whole = nodes.map((node) => node.data).join("");
  const places = [...whole.matchAll(new RegExp(words.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&"), "g"))].map(
    (one) => one.index,
  );
  const start = places.sort((a, b) => Math.abs(a - at) - Math.abs(b - at))[0];
  if (start === undefined) return;
  const place = (offset) => {
    for (const node of nodes) {
      if (offset <= node.length) return [node, offset];
      offset -= node.length;
    }
  };
  const range = document.createRange();
  range.setStart(...place(start));
  range.setEnd(...place(start + words.length));
  if (globalThis.Highlight) CSS.highlights.set("found", new Highlight(range));
  const { top } = range.getBoundingClientRect();
  scrollBy(0, top - innerHeight / 3);
}

/** Load and open everything but raw actions, print, and let go of it. */
async function printEpisode() {
  notify("Loading all turns …", true);
  await opened.list.all();
  for (const long of main.querySelectorAll(".long")) await long.reach();
  const shut = [...main.querySelectorAll(".episode details:not([open], .raw)")];
  for (const one of shut) one.open = true;
  notify("");
  print();
  for (const one of shut) one.open = false;
  opened.list.release();
}

// --- the page of an attempt ---------------------------------------------------------------------------------------

const opened = { id: "" };

/** The attempts of all tasks: tasks in the order of the table, attempts in order. */
function attemptsInOrder() {
  const tasks = new Set((table.view.length ? table.view : everyRow()).map((row) => row.task));
  const byTask = new Map([...tasks].map((task) => [task, []]));
  for (const row of everyRow()) byTask.get(row.task)?.push(row);
  return [...byTask.values()].map((rows) => rows.sort((a, b) => a.attempt - b.attempt || a.tries - b.tries));
}

/** Links to the attempts at this task, to those beside it, and to the tasks beside it. */
function attemptsView(row) {
  const tasks = attemptsInOrder();
  const at = tasks.findIndex((rows) => rows.includes(row));
  if (at < 0) return null;
  const mine = tasks[at],
    i = mine.indexOf(row);
  const step = (words, other, key) =>
    el(
      "a",
      {
        class: "step",
        href: other && addressOf(other),
        "aria-disabled": other ? null : "true",
        title: key,
        rel: key === "]" ? "next" : null,
      },
      words,
    );
  const link = (other) => {
    const current = other === row ? "page" : null;
    const title = `${stateWords[other.state]}, ${plural(other.turns, "turn")}`;
    const words = `${stateSigns[other.state]} ${other.attempt}`;
    return el("a", { href: addressOf(other), class: `badge ${other.state}`, "aria-current": current, title }, words);
  };
  const from = Math.max(0, Math.min(i - 20, mine.length - 40));
  return el(
    "nav",
    { class: "attempts", "aria-label": "Attempts and tasks" },
    el("span", {}, "Attempts: "),
    step("‹", mine[i - 1], "["),
    mine.slice(from, from + 40).map(link),
    step("›", mine[i + 1], "]"),
    mine.length > 1 ? button("Side by side (c)", compareAttempts) : null,
    el(
      "span",
      { class: "steps" },
      step("‹ previous task", tasks[at - 1]?.[0], "{"),
      step("next task ›", tasks[at + 1]?.[0], "}"),
    ),
  );
}

const topView = (...right) => el("div", { class: "top" }, el("a", { href: "#/", class: "back" }, "← Episodes"), right);

/** The page of an episode, at one of its turns; null if it is shown already and only scrolls. */
async function episodePage(id, turn) {
  const row = rowFor(id);
  if (opened.id === id && shown === "episode" && turn) {
    await opened.list.show(turn);
    return null;
  }
  const content = el("div", { class: "attempt" });
  const attempt = await renderAttempt(content, id);
  const { episode } = attempt;
  const outline = outlineView(attempt);
  const write = source.saveNote ? button("Note (n)", () => content.querySelector("[data-note='0']").edit()) : null;
  const page = el(
    "section",
    { class: "episode", "aria-label": "Episode" },
    topView(),
    el(
      "h2",
      {},
      episode.task_id,
      el("span", { class: "dim" }, ` attempt\u00a0${episode.attempt}`),
      " ",
      badge(row.state),
      " ",
      write,
    ),
    episode.repo ? el("p", { class: "dim" }, episode.repo) : null,
    attemptsView(row),
    el("div", { class: "columns" }, outline, content),
  );
  if (row.state === "running")
    content.append(
      el("p", { class: "dim waiting", role: "status" }, "The episode is running. Its next turn will appear here."),
    );
  page.opened = { ...attempt, outline };
  if (turn) page.ready = () => attempt.list.show(turn);
  table.cursor = row.id;
  return page;
}

/** Add new turns of a running episode. After its end, show its record. */
async function followEpisode() {
  const { id, episode, follow, outline } = opened;
  if (!id.startsWith("live-")) return;
  const main = run.main.get(`${episode.task_id}\n${episode.attempt}`);
  if (!run.byId.has(id) || rowFor(id).started !== episode.started) {
    opened.id = "";
    return void (main && show()); // it ended, or another try replaced it
  }
  const had = episode.outline.length;
  if (rowFor(id).turns <= had) return;
  const more = await source.episode(id, had);
  if (opened.id !== id || episode.outline.length !== had || more.started !== episode.started) return;
  follow(more);
  outline.add();
}

function moveTurn(by) {
  const kind = shown === "compare" ? "details.cell > summary" : "article.turn > details > summary";
  const turns = [...document.querySelectorAll(kind)];
  if (!turns.length) return;
  const at = turns.indexOf(document.activeElement.closest(kind));
  const next =
    at < 0
      ? (turns.find((turn) => turn.getBoundingClientRect().top >= 0) ?? turns[0])
      : turns[Math.min(turns.length - 1, Math.max(0, at + by))];
  next.focus({ preventScroll: true });
  next.scrollIntoView({ block: shown === "compare" ? "nearest" : "start" });
  const number = next.closest("article")?.dataset.turn;
  if (number) history.replaceState(null, "", addressOf(opened.row, number));
}

function noteHere() {
  const turn = document.activeElement.closest("article.turn")?.dataset.turn ?? 0;
  if (source.saveNote) main.querySelector(`[data-note='${turn}']`).edit();
}

/** Open the next or previous attempt, or the first one of the next or previous task. */
function stepEpisode(by, task = false) {
  const tasks = attemptsInOrder();
  const at = tasks.findIndex((rows) => rows.some((row) => row.id === opened.id));
  const all = tasks.flat();
  const next = task ? tasks[at + by]?.[0] : all[all.findIndex((row) => row.id === opened.id) + by];
  if (at < 0 || !next) return notify("No more attempts in this direction.");
  go(addressOf(next));
}

function compareAttempts() {
  const ids = attemptsAt(opened.episode.task_id).map((row) => row.id);
  if (ids.length < 2) return notify("This task has only one attempt.");
  const around = Math.min(Math.max(0, ids.indexOf(opened.id) - 1), Math.max(0, ids.length - MOST_COMPARED));
  go(
    `#/compare/${ids
      .slice(around, around + MOST_COMPARED)
      .map(encodeURIComponent)
      .join(",")}`,
  );
}

// --- side by side ----------------------------------------------------------------------------------------------

const sameCall = (lines) => lines.every((line) => line && line.call === lines[0].call);

async function comparePage(ids) {
  const episodes = await Promise.all(ids.map((id) => source.episode(id)));
  const most = Math.max(...episodes.map((episode) => episode.outline.length));
  const slowest = Math.max(...episodes.map((episode) => clockOf(episode)[1]));
  const longest = Math.max(0.001, ...episodes.map(longestOf));
  let same = 0;
  while (same < most && sameCall(episodes.map((episode) => episode.outline[same]))) same++;
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
          el("a", { href: addressOf(rowFor(ids[i])) }, episode.task_id),
          el("span", { class: "dim" }, ` attempt\u00a0${episode.attempt}`),
        ),
        badge(rowFor(ids[i]).state),
        el(
          "p",
          { class: "dim" },
          [
            rowFor(ids[i]).reason,
            plural(episode.outline.length, "turn"),
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
    for (const [i, episode] of episodes.entries()) {
      if (!episode.outline[number - 1]) {
        grid.append(el("div", { class: "cell none" }));
        continue;
      }
      const summary = el("summary", { class: "headline" }, headlineOf(episode, number, longest));
      const details = el("details", { class: "cell turn", "data-turn": number }, summary);
      details.addEventListener("toggle", async () => {
        if (!details.open || details.children.length > 1) return;
        const [page] = await source.turns(ids[i], [number]);
        details.replaceChildren(summary, ...bodyOf(ids[i], episode.outline[number - 1], page));
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
