"use strict";
// Routing, keys, and updates while the run continues.

const main = document.getElementById("main");
const EVERY = 1000; // milliseconds between requests to the server, while the page is visible

let shown = "";
let up = "#/"; // the address one level up

const go = (hash) => {
  location.hash = hash;
};

function notify(text, stays = false) {
  const notice = document.getElementById("notice");
  notice.textContent = text;
  notice.hidden = !text;
  clearTimeout(notify.timer);
  if (text && !stays) notify.timer = setTimeout(() => notify(""), 4000);
}

const pages = {
  "": tablePage,
  plots: plotsPage,
  attempt: attemptPage,
  compare: (ids) => comparePage(ids.slice(0, MOST_COMPARED)),
  runs: runsPage,
  comparison: comparisonPage,
  beside: besidePage,
};

/** The episode of an attempt, once its row has been read. */
async function attemptPage(task, attempt, turn) {
  while (!rowAt(task, attempt) && run.behind) await update();
  const row = rowAt(task, attempt);
  if (!row) throw new Error(`There is no attempt ${attempt} at the task ${task}.`);
  return episodePage(row.id, Number(turn));
}

async function show() {
  const hash = location.hash;
  let name = "",
    page;
  try {
    const place = placeOf(hash);
    name = place.page;
    if (place.run !== undefined) await openRun(place.run);
    page = await pages[name](...place.args);
  } catch (error) {
    page = el(
      "section",
      { class: "problem" },
      el("h2", {}, "Cannot show this page"),
      el("p", {}, error instanceof URIError ? "The address is incomplete." : error.message),
      el("a", { href: "#/" }, runs.many ? "← Runs" : "← Episodes"),
    );
  }
  if (location.hash !== hash || !page) return; // the reader has left, or the page only scrolled
  shown = { attempt: "episode", beside: "compare" }[name] ?? name;
  up = page.up ?? (["", "runs", "comparison"].includes(shown) ? "#/" : tableAddress());
  Object.assign(opened, page.opened ?? { id: "" });
  main.dataset.page = shown || "table";
  dropCharts(main);
  main.replaceChildren(page);
  if (name === "compare") history.replaceState(null, "", addressTo(run.folder) + hash.slice(hash.indexOf("/compare/"))); // to share
  showNavigation(page);
  const place = shown === "" && (table.searchNext ? "#search" : "tr.current");
  ((place && page.querySelector(place)) || main).focus({ preventScroll: true });
  table.searchNext = false;
  if (shown !== "") window.scrollTo(0, 0);
  showCounts();
  await page.ready?.().catch((error) => notify(error.message));
}

/** Point the links to the open run, and mark the one that is shown. */
function showNavigation(page) {
  const addresses = { runs: "#/", table: tableAddress(), plots: runs.many ? addressTo(run.folder) + "/plots" : "#/plots" };
  for (const link of document.querySelectorAll("nav [data-page]")) {
    const name = link.dataset.page;
    link.href = addresses[name];
    link.hidden = name === "runs" ? !runs.many : runs.many && !run.folder;
    if (name === (shown || "table")) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  for (const back of page.querySelectorAll("a.back")) back.href = up;
}

function showCounts() {
  if (ofRuns()) return showRunCounts();
  const judged = run.rows.filter((row) => row.state === "resolved" || row.state === "unresolved");
  const resolved = judged.filter((row) => row.state === "resolved").length;
  const failed = run.rows.length - judged.length,
    total = run.progress.total;
  const words = [
    `${count(judged.length)}${total ? `/${count(total)}` : ""} done`,
    `${count(resolved)} resolved${judged.length ? ` (${percent(resolved / judged.length)})` : ""}`,
    failed ? plural(failed, "failed try").replace("trys", "tries") : "",
    run.active ? `${run.progress.running} running` : "",
    run.active && run.progress.eta ? `ETA ${time(run.progress.eta)}` : "",
    run.progress.stopping && run.active ? `stopping: ${run.progress.stopping}` : "",
    run.behind ? "reading …" : "",
    run.unreadable ? `${plural(run.unreadable, "unreadable line")}` : "",
  ];
  const counts = document.getElementById("counts");
  counts.textContent = words.filter(Boolean).join(" · ");
  counts.title = (run.problems ?? []).join("\n");
  counts.classList.toggle("active", Boolean(run.active));
  const name = runs.many ? run.folder : run.name;
  document.getElementById("name").textContent = name;
  document.title = `${name} · swe-gym`;
}

async function follow() {
  let pause = EVERY;
  if (!document.hidden) {
    try {
      const changed = await (ofRuns() ? updateRuns() : update());
      if (changed && ofRuns()) await redrawRuns();
      if (changed && shown === "") changeView(false);
      if (shown === "episode" && opened.id) await followEpisode();
      if (changed && shown === "plots" && Date.now() - (follow.plots ?? 0) > 5000) {
        follow.plots = Date.now();
        const open = [...main.querySelectorAll("details")].map((one) => one.open);
        const page = await plotsPage();
        dropCharts(shown === "plots" ? main : page);
        if (shown === "plots") main.replaceChildren(page);
        [...main.querySelectorAll("details")].forEach((one, i) => {
          one.open = open[i] ?? false;
        });
      }
      if (follow.lost) notify("");
      follow.lost = false;
      showCounts();
      if (ofRuns() ? runs.behind : run.behind) pause = 0;
    } catch (error) {
      follow.lost = true;
      notify(error instanceof TypeError ? "The server does not answer. Check that swe-gym view is running." : error.message, true);
    }
  }
  setTimeout(follow, pause);
}

const keys = {
  "/": () => {
    if (shown === "episode") {
      opened.outline.open = true;
      return void document.getElementById("find").select();
    }
    if (document.getElementById("search")) return void document.getElementById("search").select();
    table.searchNext = true;
    go(tableAddress());
  },
  j: () => move(1),
  k: () => move(-1),
  ArrowDown: () => shown === "" && moveCursor(1),
  ArrowUp: () => shown === "" && moveCursor(-1),
  Enter: () => shown === "" && table.cursor && go(addressOf(run.byId.get(table.cursor))),
  x: () => (shown === "runs" ? tickRun() : ["", "episode"].includes(shown) && toggleMark(shown === "" ? table.cursor : opened.id)),
  c: () => (shown === "runs" ? compareTicked() : shown === "episode" ? compareAttempts() : compareMarked()),
  "]": () => shown === "episode" && stepEpisode(1),
  "[": () => shown === "episode" && stepEpisode(-1),
  "}": () => shown === "episode" && stepEpisode(1, true),
  "{": () => shown === "episode" && stepEpisode(-1, true),
  e: () => shown === "episode" && opened.list.fold(false),
  f: () => shown === "episode" && opened.list.fold(true),
  n: () => shown === "episode" && noteHere(),
  p: () => !(runs.many && !run.folder) && go(document.querySelector("[data-page=plots]").hash),
  Escape: () => go(up),
  "?": () => document.getElementById("keys").showModal(),
};

function move(by) {
  if (ofRuns()) moveRow(by);
  else if (shown === "") moveCursor(by);
  else moveTurn(by);
}

document.addEventListener("keydown", (event) => {
  const { target, key } = event;
  if (event.ctrlKey || event.metaKey || event.altKey || document.getElementById("keys").open) return;
  if (target.matches("input:not([type=checkbox]), select, textarea")) {
    if (key === "Escape" || (key === "Enter" && target.id === "search")) {
      event.preventDefault();
      target.blur();
      if (shown === "") moveCursor(0);
    }
    return;
  }
  if (key === "Enter" && target.closest("a, button, summary, input")) return;
  if (keys[key]?.() !== false && key in keys) event.preventDefault();
});

document.getElementById("show-keys").addEventListener("click", keys["?"]);
addEventListener("hashchange", show);
addEventListener("resize", () => shown === "" && table.body && drawRows(true));

(async () => {
  try {
    await updateRuns();
    if (!runs.many) await update();
  } catch (error) {
    notify(error.message, true);
  }
  await show();
  if (source.live) setTimeout(follow, run.behind || runs.behind ? 0 : EVERY);
})();
