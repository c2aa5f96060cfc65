"use strict";
// Elements and numbers as text. Data never becomes markup.

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== undefined && value !== null) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

const button = (text, onclick, attributes = {}) => el("button", { type: "button", onclick, ...attributes }, text);

const grouped = new Intl.NumberFormat("en");
const count = (number) => grouped.format(number);
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const shortCount = (number) => (number < 10_000 ? count(number) : compact.format(number).replace(/(?=[KMBT]$)/, "\u00a0").replace("K", "k"));
const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
const money = (dollars) => (dollars ? `$${dollars.toFixed(dollars < 0.1 ? 4 : 2)}` : "");
const costOf = (used) => (used.cost !== null ? money(used.cost) || "$0" : used.calls ? "unknown" : "");
const bytes = (number) =>
  number < 1000 ? `${number} B` : number < 999_500 ? `${Math.round(number / 1000)} kB` : `${(number / 1e6).toFixed(1)} MB`;
const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

function time(seconds) {
  if (seconds < 9.95) return `${seconds.toFixed(seconds < 0.0995 && seconds > 0 ? 2 : 1)} s`;
  if (seconds < 59.5) return `${seconds.toFixed(0)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${count(Math.floor(whole / 3600))} h ${Math.floor((whole % 3600) / 60)} min`;
}
