"use strict";
// The turns of an episode: a headline of each, and its texts while it is near the part of the page that is seen.

const MOST_ASKED = 10; // turns of one request
const NEAR = "150% 0px"; // texts of turns further away are dropped

function partsOf(line, episode, last) {
  const grading = last && line.ended ? Math.min(line.seconds, episode.seconds.grading ?? 0) : 0;
  return [
    ["model", line.policy_seconds],
    ["tools", line.seconds - grading],
    ["grading", grading],
  ];
}

const secondsOf = (line) => line.policy_seconds + line.seconds;
const longestOf = (episode) => Math.max(0.001, ...episode.outline.map(secondsOf));

const toolOf = (line) => line.tool || (line.answer ? "answer" : "no valid call");

/** The depth of a turn among branches: 0 for the main conversation, 1 for its subagents and side conversations. */
function depthOf(outline, number) {
  const line = outline[number - 1];
  const from = line.parent ?? number - 2;
  const beside = line.segment === "subagent" || (from < 0 && number > 1);
  line.depth ??= (from < 0 ? 0 : depthOf(outline, from + 1)) + (beside ? 1 : 0);
  return line.depth;
}

/** What a turn starts, or the turn that it continues if that is not the one before. */
function branchOf(line) {
  const from = line.parent === null || line.parent < 0 ? "" : ` of turn ${line.parent + 1}`;
  if (line.segment) return line.segment.replaceAll("_", " ") + (line.segment === "subagent" ? from : "");
  return from && `continues turn ${line.parent + 1}`;
}

function marksOf(line, before) {
  const marks = [];
  if (branchOf(line)) marks.push(["", branchOf(line)]);
  if (line.exit_code > 0) marks.push(["warn", `exit code ${line.exit_code}`]);
  else if (line.failed) marks.push(["warn", "tool error"]);
  if (line.cheat_signs > (before?.cheat_signs ?? 0)) marks.push(["bad", "⚑ sign of cheating"]);
  if (line.reward) marks.push(["good", `reward ${line.reward.toFixed(2)}`]);
  if (line.ended) marks.push(["", "end"]);
  return marks.map(([kind, words]) => el("span", { class: `mark ${kind}` }, words));
}

/** The headline of a turn: number, tool, call in short, marks, times, tokens and size. */
function headlineOf(episode, number, longest) {
  const line = episode.outline[number - 1];
  const spent = partsOf(line, episode, number === episode.outline.length);
  const facts = spent.filter(([, seconds]) => seconds > 0.0005).map(([name, seconds]) => `${name} ${time(seconds)}`);
  if (line.usage.calls)
    facts.push(`${count(line.usage.prompt_tokens)} → ${count(line.usage.completion_tokens)} tokens`);
  facts.push(money(line.usage.cost), bytes(line.size));
  return [
    el("span", { class: "number" }, String(number)),
    el("span", { class: "what" }, toolOf(line)),
    el("code", { class: "words" }, line.words),
    marksOf(line, episode.outline[number - 2]),
    el("span", { class: "dim facts" }, facts.filter(Boolean).join(" · ")),
    timeBar(spent, longest),
  ];
}

// --- the texts of a turn ------------------------------------------------------------------------------------------

/** The names of the arguments with the text before and after, for tools that replace text. */
function replacement(parts) {
  for (const pair of [
    ["=old_str", "=new_str"],
    ["=old", "=new"],
    ["=search", "=replace"],
    ["=old_string", "=new_string"],
  ])
    if (pair.every((name) => name in parts)) return pair;
  return [];
}

const signed = (sign, text) => text && text.replace(/\n$/, "").replace(/^/gm, sign) + "\n";

/** The language of the file that a call is about, from its arguments or its command. */
function languageIn(parts) {
  const path = ["=path", "=file_path", "=filename", "=file"].map((name) => parts[name]).find(Boolean);
  const command = (parts["=command"] ?? parts["=cmd"] ?? "").slice(-300);
  const shown = /(?:^|&&|;)\s*(?:cat|head|tail|sed|nl)\b[^|;&>]*?(\S+\.\w+)\s*$/.exec(command);
  return languageOf(path ?? shown?.[1]);
}

function callView(line, parts, text) {
  const box = el("div", { class: "call", role: "group", "aria-label": "Tool call" });
  if (line.answer) {
    box.append(longText(text("action")));
    return box;
  }
  if (!line.tool) {
    box.append(el("p", { class: "invalid" }, "No valid tool call"), longText(text("action")));
    return box;
  }
  const command = (part) => el("pre", { class: "command" }, "$ ", coloured(part, "bash"));
  const code = (part) => el("pre", {}, coloured(part, languageIn(parts)));
  const shell = ["=command", "=cmd"].find((name) => name in parts);
  const pair = replacement(parts).filter((name, i, both) => both.every((one) => text(one).have >= text(one).of));
  const list = el("dl", {});
  for (const name of Object.keys(parts).filter((name) => name.startsWith("="))) {
    if (pair.includes(name)) continue;
    if (name === shell && hasDiff(parts[name])) box.append(diffView(text(name), 40));
    else if (name === shell) box.append(longText(text(name), 24, command));
    else {
      const several = parts[name].includes("\n") || parts[name].length > 500;
      const value = several ? longText(text(name), 24, code) : el("code", {}, parts[name]);
      list.append(el("dt", {}, name.slice(1)), el("dd", {}, value));
    }
  }
  if (list.children.length) box.append(list);
  if (pair.length) {
    const change = signed("-", parts[pair[0]]) + signed("+", parts[pair[1]]);
    const draw = (part) => el("pre", { class: "diff" }, diffLines(part, languageIn(parts), true));
    box.append(longText(change.replace(/\n$/, ""), 40, draw));
  }
  return box.hasChildNodes() ? box : null;
}

function observationView(source, parts) {
  if (!source.of) return el("p", { class: "dim" }, "(empty)");
  if (hasDiff(source.text)) return diffView(source);
  const language = languageIn(parts);
  return longText(source, 24, (part) => el("pre", { class: "observation" }, coloured(part, language)));
}

/** The elements of a turn's texts, as the source sends them. */
function bodyOf(id, line, { number, parts, of, sent }) {
  const text = (part) => ({
    text: parts[part],
    of: of[part],
    have: Math.min(of[part], sent),
    fetch: (start, end) => source.text(id, number, part, start, end),
  });
  const thought = () => longText(text("thought"), 16, (part) => el("p", {}, part));
  const part = (label, name, ...inside) => el("div", { class: name, role: "group", "aria-label": label }, inside);
  return [
    parts.thought ? part("Thought", "thought", thought()) : null,
    callView(line, parts, text),
    part("Observation", "seen", observationView(text("observation"), parts)),
    line.tool && parts.action
      ? el("details", { class: "raw" }, el("summary", {}, "Raw action"), longText(text("action")))
      : null,
  ].filter(Boolean);
}

// --- the list of turns --------------------------------------------------------------------------------------------

/**
 * The list of an episode's turns.
 *
 * @returns `box`, its element; `add()`, which shows new lines of the outline; `show(number)`, which loads a turn and
 *   scrolls to it; `fold(shut)`, for all turns; `all()`, which loads, opens and keeps all turns until `release()`.
 */
function turnList(id, episode, row, folded) {
  const box = el("div", { class: "turns" });
  const turns = [];
  const wanted = new Set();
  let keep = false,
    busy = false,
    longest;

  const fill = (turn, page) => {
    turn.body.replaceChildren(...bodyOf(id, episode.outline[turn.number - 1], page));
    turn.body.style.minHeight = "";
    turn.full = true;
  };
  const load = async (numbers) => {
    for (const page of await source.turns(id, numbers)) fill(turns[page.number - 1], page);
  };
  const loadWanted = async () => {
    if (busy) return;
    busy = true;
    try {
      while (wanted.size) {
        const numbers = [...wanted].slice(0, MOST_ASKED);
        for (const number of numbers) wanted.delete(number);
        await load(numbers);
        for (const number of numbers) settle(turns[number - 1]); // it may be far away by now
      }
    } catch (error) {
      wanted.clear();
      notify(error.message);
    } finally {
      busy = false;
    }
  };
  const settle = (turn) => {
    const needed = keep || (turn.near && turn.details.open);
    if (needed && !turn.full) wanted.add(turn.number);
    if (!needed) wanted.delete(turn.number);
    if (!needed && turn.full && !turn.body.contains(document.activeElement)) {
      turn.body.style.minHeight = `${turn.height}px`;
      turn.body.replaceChildren();
      turn.full = false;
    }
  };
  const observer = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        const turn = turns[Number(entry.target.dataset.turn) - 1];
        turn.near = entry.isIntersecting;
        if (turn.near) draw(turn);
        if (turn.full) turn.height = turn.body.offsetHeight;
      }
      for (const entry of entries) settle(turns[Number(entry.target.dataset.turn) - 1]);
      loadWanted();
    },
    { rootMargin: NEAR },
  );
  const draw = (turn) => {
    if (turn.drawn) return;
    turn.drawn = true;
    turn.details.firstChild.append(...headlineOf(episode, turn.number, longest).flat());
    turn.article.append(...turnTools(episode, row, turn.number));
  };
  const add = () => {
    longest = longestOf(episode);
    for (let number = turns.length + 1; number <= episode.outline.length; number++) {
      const body = el("div", { class: "body" });
      const details = el("details", { open: !folded }, el("summary", { class: "headline" }), body);
      const article = el("article", { class: "turn", "data-turn": number, "aria-label": `Turn ${number}` }, details);
      article.style.setProperty("--depth", depthOf(episode.outline, number));
      const turn = { number, article, details, body, drawn: false, near: false, full: false, height: 0 };
      details.addEventListener("toggle", () => {
        settle(turn);
        loadWanted();
      });
      turns.push(turn);
      box.append(article);
      observer.observe(article);
    }
  };
  const show = async (number) => {
    const turn = turns[number - 1];
    if (!turn) throw new Error(`The episode has ${plural(turns.length, "turn")}; there is no turn ${number}.`);
    turn.details.open = true;
    turn.near = true;
    draw(turn);
    if (!turn.full) await load([number]);
    turn.article.scrollIntoView({ block: "start" });
    turn.details.firstChild.focus({ preventScroll: true });
    return turn.body;
  };
  const fold = (shut) => {
    folded = shut;
    for (const turn of turns) turn.details.open = !shut;
  };
  const all = async () => {
    keep = true;
    fold(false);
    turns.forEach(draw);
    turns.forEach(settle);
    while (busy || wanted.size) {
      await loadWanted();
      if (busy) await new Promise((done) => setTimeout(done, 20));
    }
  };
  const release = () => {
    keep = false;
    turns.forEach(settle);
  };
  add();
  return { box, add, show, fold, all, release };
}
