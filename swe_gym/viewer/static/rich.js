"use strict";
// Texts: Markdown, colours of code, diffs, and long texts in pieces. Data never becomes markup: of what the libraries
// return, only known elements are copied.

const MOST_COLOURED = 50_000; // characters
const LONG_WORD = /\w{400}/; // takes highlight.js time that grows with the square of its length
const MOST_MARKDOWN = 50_000;
const KEPT = new Set(
  "P H1 H2 H3 H4 H5 H6 UL OL LI PRE CODE EM STRONG S BR HR BLOCKQUOTE TABLE THEAD TBODY TR TH TD".split(" "),
);

/** The nodes of a library's markup: known elements, coloured spans, links to the web, and text. */
function inert(markup) {
  const copy = (node) => {
    if (node.nodeType === Node.TEXT_NODE) return node.data;
    const inside = [...node.childNodes].map(copy);
    if (node.tagName === "SPAN") return el("span", { class: node.className }, inside);
    if (node.tagName === "A" && /^https?:\/\//i.test(node.getAttribute("href")))
      return el("a", { href: node.getAttribute("href"), rel: "noopener noreferrer", target: "_blank" }, inside);
    const language = /^language-(\w+)/.exec(node.className)?.[1]; // of a block of code
    return KEPT.has(node.tagName) ? el(node.tagName, { "data-language": language }, inside) : inside;
  };
  return copy(new DOMParser().parseFromString(`<div>${markup}</div>`, "text/html").body);
}

/** Code with colours, or the code itself if its language is unknown. */
function coloured(code, language) {
  if (!language || code.length > MOST_COLOURED || LONG_WORD.test(code) || !hljs.getLanguage(language)) return code;
  return inert(hljs.highlight(code, { language, ignoreIllegals: true }).value);
}

const languageOf = (path) => /\.(\w+)$/.exec(path ?? "")?.[1].toLowerCase();

const markdownReader = markdownit({ html: false, breaks: true }).disable("image"); // nothing is fetched

function markdown(text) {
  const box = el("div", { class: "markdown" });
  try {
    if (text.length > MOST_MARKDOWN) throw new RangeError("too long");
    box.append(...inert(markdownReader.render(text)).flat(Infinity));
  } catch {
    return el("pre", {}, text); // too long, or nested too deeply
  }
  for (const code of box.querySelectorAll("pre > code")) {
    code.replaceChildren(...[coloured(code.textContent, code.dataset.language)].flat(Infinity));
  }
  return box;
}

const plain = (part) => el("pre", {}, part);

/**
 * The beginning of a text, with a button for more of it.
 *
 * @param source The text, or `{text, of, have, fetch}`: its beginning, the characters in all and here, and a function
 *   that returns those from one number to another.
 * @param lines Lines that are shown at first.
 * @param make Makes the element of a text.
 */
function longText(source, lines = 24, make = plain) {
  const whole = typeof source === "string" ? { text: source, of: source.length, have: source.length } : source;
  const all = whole.text.split("\n");
  const beginning = all
    .slice(0, lines)
    .join("\n")
    .slice(0, 250 * lines);
  const isShort =
    beginning.length >= whole.text.length || (all.length <= lines + 4 && beginning.length > whole.text.length - 400);
  if (isShort && whole.have >= whole.of) return make(whole.text);
  let open = false;
  const box = el("div", { class: "long" }, make(beginning));
  const draw = () => {
    box.firstChild.replaceWith(make(open ? whole.text : beginning));
    const rest = `${bytes(open ? whole.have : beginning.length)} of ${bytes(whole.of)}`;
    more.textContent = open && whole.have >= whole.of ? "Show less" : `Show more (${rest})`;
    more.classList.toggle("cut", !open || whole.have < whole.of);
    more.setAttribute("aria-expanded", open);
  };
  const fetchTo = async (end) => {
    whole.text += await whole.fetch(whole.have, end);
    whole.have = Math.min(end, whole.of);
  };
  const step = async () => {
    if (open && whole.have < whole.of) await fetchTo(4 * whole.have);
    else open = !open;
    draw();
  };
  const more = button("", () => step().catch((error) => notify(error.message)), { class: "more" });
  box.append(more);
  box.reach = async (at = beginning.length) => {
    if (at < beginning.length) return;
    if (at >= whole.have) await fetchTo(at + 4000);
    open = true;
    draw();
  };
  draw();
  return box;
}

const HEAD = /^(diff |index |--- |\+\+\+ |new file|deleted file|old mode|new mode|similarity|rename |Binary )/;

function diffLine(line, inHunk) {
  if (line.startsWith("@@")) return "hunk";
  if (!inHunk) return HEAD.test(line) ? "file" : "same";
  return line.startsWith("+") ? "add" : line.startsWith("-") ? "del" : "same";
}

const hasDiff = (text) => /^@@ -\d/m.test(text);

/** Lines of code, each as nodes with colours. */
function colouredLines(code, language) {
  const lines = [[]];
  const add = (node, name) => {
    if (node.childNodes?.length) return node.childNodes.forEach((child) => add(child, node.className || name));
    for (const [i, text] of (node.data ?? node).split("\n").entries()) {
      if (i) lines.push([]);
      lines.at(-1).push(name ? el("span", { class: name }, text) : text);
    }
  };
  for (const node of [coloured(code, language)].flat(Infinity)) add(node, "");
  return lines;
}

/** The lines of a diff, each with its class. The lines of a hunk are coloured as the code before and the code after. */
function diffLines(text, language = "", inHunk = false) {
  const lines = text.split("\n").map((line) => {
    if (line.startsWith("diff ")) [inHunk, language] = [false, languageOf(line)];
    const kind = diffLine(line, inHunk);
    if (kind === "hunk") inHunk = true;
    return { line, kind, isCode: inHunk && kind !== "hunk", language };
  });
  for (let start = 0; start < lines.length; start++) {
    if (!lines[start].isCode) continue;
    let end = start;
    while (lines[end]?.isCode) end++;
    for (const gone of ["add", "del"]) {
      const side = lines.slice(start, end).filter(({ kind }) => kind !== gone);
      const code = colouredLines(side.map(({ line }) => line.slice(1)).join("\n"), lines[start].language);
      side.forEach((one, i) => (one.code = code[i]));
    }
    start = end;
  }
  return lines.map(({ line, kind, code }) => el("span", { class: kind }, code ? [line.slice(0, 1), code] : line, "\n"));
}

const diffView = (source, lines = 80) =>
  longText(source, lines, (part) => el("pre", { class: "diff" }, diffLines(part)));
