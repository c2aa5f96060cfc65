"use strict";
// The table of episodes: filters, sorting, and only the visible rows in the page.

const ROW = 34; // pixels, as in the style sheet
const MOST_COMPARED = 4;

const columns = [
  { key: "state", title: "State", show: (row) => badge(row.state) },
  {
    key: "task",
    title: "Task",
    kind: "name",
    show: (row) => el("a", { href: addressOf(row), tabindex: "-1" }, row.task),
  },
  { key: "repo", title: "Repository", kind: "name wide" },
  { key: "attempt", title: "Attempt", kind: "number" },
  { key: "reason", title: "Stop reason", kind: "name", show: (row) => `${row.reason}${row.signs ? " ⚑" : ""}` },
  {
    key: "reward",
    title: "Reward",
    kind: "number wide",
    show: (row) => (row.state === "resolved" || row.state === "unresolved" ? row.reward.toFixed(2) : ""),
  },
  { key: "turns", title: "Turns", kind: "number", first: -1 },
  {
    key: "tokens",
    title: "Tokens",
    kind: "number wide",
    first: -1,
    show: (row) => (row.tokens ? count(row.tokens) : ""),
  },
  { key: "cost", title: "Cost", kind: "number wide", first: -1, show: (row) => costOf({ cost: row.cost, calls: row.tokens }) },
  { key: "total", title: "Time", kind: "number", first: -1, show: (row) => time(row.total) },
  {
    key: "started",
    title: "Started",
    kind: "number wide",
    first: -1,
    show: (row) => row.started.slice(5, 19).replace("T", " "),
  },
];

const table = {
  words: "",
  state: "",
  repo: "",
  reason: "",
  sort: "",
  down: 1,
  view: [],
  cursor: "",
  marked: new Set(),
  top: 0,
  searchNext: false, // the table was opened with /
  body: null, // the tbody, while the table is shown
};

function chosenRows() {
  const words = table.words.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (row) =>
    (!table.state || row.state === table.state) &&
    (!table.repo || row.repo === table.repo) &&
    (!table.reason || row.reason === table.reason) &&
    words.every((word) => row.text.includes(word));
  const rows = everyRow().filter(fits);
  if (!table.sort) return rows;
  const key = table.sort;
  const compare = (a, b) => (a[key] < b[key] ? -1 : a[key] > b[key] ? 1 : 0);
  return rows.sort(
    (a, b) => table.down * compare(a, b) || (a.task < b.task ? -1 : a.task > b.task ? 1 : a.attempt - b.attempt),
  );
}

function tablePage() {
  const search = el("input", {
    type: "search",
    id: "search",
    placeholder: "Search tasks, repositories, stop reasons  ( / )",
    "aria-label": "Search",
    value: table.words,
    oninput: () => {
      table.words = search.value;
      changeView();
    },
  });
  const pick = (name, label, words = (value) => value) => {
    const values = [...new Set(everyRow().map((row) => row[name]))].filter(Boolean).sort();
    if (table[name] && !values.includes(table[name])) values.unshift(table[name]);
    const box = el(
      "select",
      {
        "aria-label": label,
        onchange: () => {
          table[name] = box.value;
          changeView();
        },
      },
      el("option", { value: "" }, label),
      values.map((value) => el("option", { value, selected: value === table[name] }, words(value))),
    );
    return box;
  };
  const heads = columns.map((column) =>
    el(
      "th",
      { scope: "col", class: column.kind, "data-key": column.key },
      button(column.title, () => sortBy(column)),
      el("span", { class: "arrow", "aria-hidden": "true" }),
    ),
  );
  table.body = el("tbody", {});
  table.grid = el(
    "table",
    { role: "grid", "aria-label": "Episodes" },
    el(
      "thead",
      {},
      el(
        "tr",
        { "aria-rowindex": "1" },
        el("th", { class: "pick" }, el("span", { class: "unseen" }, "Compare")),
        heads,
      ),
    ),
    table.body,
  );
  table.scroll = el(
    "div",
    {
      class: "scroll",
      onscroll: () => {
        table.top = table.scroll.scrollTop;
        drawRows();
      },
    },
    table.grid,
  );
  table.found = el("span", { id: "found", role: "status" });
  table.compare = button("", compareMarked, { id: "compare", hidden: true });
  const bar = el(
    "div",
    { class: "tools", role: "search" },
    search,
    pick("state", "State", (value) => stateWords[value]),
    pick("repo", "Repository"),
    pick("reason", "Stop reason"),
    table.compare,
    table.found,
  );
  requestAnimationFrame(() => {
    table.scroll.scrollTop = table.top;
    drawRows();
  });
  const page = el("section", { class: "table", "aria-label": "Episodes" }, bar, table.scroll);
  changeView(false);
  return page;
}

function sortBy(column) {
  if (table.sort !== column.key) [table.sort, table.down] = [column.key, column.first ?? 1];
  else if (table.down === (column.first ?? 1)) table.down = -table.down;
  else table.sort = "";
  changeView();
}

/** Filter and sort again, and scroll to the top unless only new rows arrived. */
function changeView(fromTop = true) {
  table.view = chosenRows();
  for (const head of table.grid.querySelectorAll("th[data-key]")) {
    const mine = head.dataset.key === table.sort;
    head.setAttribute("aria-sort", mine ? (table.down > 0 ? "ascending" : "descending") : "none");
    head.lastChild.textContent = mine ? (table.down > 0 ? " ▲" : " ▼") : "";
  }
  const all = run.rows.length + run.live.length;
  table.found.textContent =
    table.view.length === all ? plural(all, "episode") : `${count(table.view.length)} of ${count(all)}`;
  table.grid.setAttribute("aria-rowcount", table.view.length + 1);
  for (const key of ["tokens", "cost"]) table.grid.classList.toggle(`no-${key}`, !everyRow().some((row) => row[key]));
  if (fromTop) table.scroll.scrollTop = table.top = 0;
  drawRows(true);
  showMarked();
}

const cursorIndex = () => table.view.findIndex((row) => row.id === table.cursor);

function drawRows(anew = false) {
  const room = table.scroll.clientHeight || 800;
  const first = Math.max(0, Math.floor(table.scroll.scrollTop / ROW) - 10);
  const last = Math.min(table.view.length, first + Math.ceil(room / ROW) + 20);
  const range = `${first}-${last}`;
  if (!anew && table.body.dataset.range === range) return;
  table.body.dataset.range = range;
  const hadFocus = table.body.contains(document.activeElement);
  const reached = cursorIndex();
  const space = () => el("tr", { class: "space", "aria-hidden": "true" }, el("td"));
  const above = space(),
    below = space();
  above.style.height = `${first * ROW}px`;
  below.style.height = `${(table.view.length - last) * ROW}px`;
  const rows = table.view
    .slice(first, last)
    .map((row, i) => drawRow(row, first + i, reached < 0 ? first + i === 0 : first + i === reached));
  table.body.replaceChildren(above, ...rows, below);
  if (!table.view.length)
    table.body.append(
      el("tr", {}, el("td", { colspan: 4, class: "empty" }, run.rows.length ? "No episode matches." : "No episodes yet.")),
    );
  if (hadFocus) table.body.querySelector("[tabindex='0']")?.focus({ preventScroll: true });
}

function drawRow(row, index, current) {
  const mark = el("input", {
    type: "checkbox",
    tabindex: "-1",
    "aria-label": `Compare ${row.task}, attempt ${row.attempt}`,
    onclick: (event) => {
      event.stopPropagation();
      toggleMark(row.id);
    },
  });
  mark.checked = table.marked.has(row.id);
  return el(
    "tr",
    {
      "data-id": row.id,
      "aria-rowindex": index + 2,
      tabindex: current ? "0" : "-1",
      class: `${row.id === table.cursor ? "current" : ""}`,
      onclick: (event) => {
        if (!event.target.closest("a,input")) go(addressOf(row));
      },
      onfocus: () => {
        table.cursor = row.id;
      },
    },
    el("td", { class: "pick" }, mark),
    columns.map((column) => {
      const shown = column.show ? column.show(row) : String(row[column.key]);
      return el(
        "td",
        {
          class: column.kind,
          "data-key": column.key,
          title: column.key === "state" ? null : String(row[column.key]),
        },
        shown,
      );
    }),
  );
}

function moveCursor(by) {
  if (!table.view.length) return;
  const index = Math.min(
    table.view.length - 1,
    Math.max(0, table.cursor && cursorIndex() >= 0 ? cursorIndex() + by : 0),
  );
  table.cursor = table.view[index].id;
  const top = index * ROW,
    head = table.grid.tHead.offsetHeight,
    room = table.scroll.clientHeight - head;
  if (top < table.scroll.scrollTop) table.scroll.scrollTop = top;
  else if (top + ROW > table.scroll.scrollTop + room) table.scroll.scrollTop = top + ROW - room;
  table.top = table.scroll.scrollTop;
  drawRows(true);
  table.body.querySelector("tr.current")?.focus({ preventScroll: true });
}

function toggleMark(id) {
  if (!run.byId.has(id)) return;
  if (!table.marked.delete(id)) {
    if (table.marked.size === MOST_COMPARED) return notify(`At most ${MOST_COMPARED} episodes can be compared.`);
    table.marked.add(id);
  }
  if (shown !== "") return notify(`${plural(table.marked.size, "episode")} selected for comparison.`);
  drawRows(true);
  showMarked();
}

function showMarked() {
  for (const id of table.marked) if (!run.byId.has(id)) table.marked.delete(id);
  table.compare.hidden = table.marked.size < 2;
  table.compare.textContent = `Compare ${table.marked.size} (c)`;
}

function compareMarked() {
  if (table.marked.size > 1) go(`#/compare/${[...table.marked].map(encodeURIComponent).join(",")}`);
  else notify("Select two or more episodes with x.");
}
