"use strict";
// Addresses: which page, of which run.
//
//   #/                              the runs, or the table of the only run
//   #/compare/RUN,RUN               runs compared
//   #/compare/RUN,RUN/TASK/ATTEMPT  the same attempt of several runs side by side
//   #/RUN                           table of a run
//   #/RUN/plots                     its plots
//   #/RUN/compare/ID,ID             episodes of it side by side
//   #/RUN/TASK/ATTEMPT[/TURN]       an episode
//   #/plots, #/compare/ID,ID        of the run that is open

const decoded = (part) => decodeURIComponent(part);

/** An address of these parts. A run named like a page is encoded, so that it is not taken for one. */
const addressTo = (...parts) =>
  `#/${parts.map((part) => encodeURIComponent(part).replace(/^(compare|plots)$/, (name) => `%${name.charCodeAt(0).toString(16)}${name.slice(1)}`)).join("/")}`;

const tableAddress = () => (runs.many && run.folder ? addressTo(run.folder) : "#/");

const comparisonAddress = (names, ...more) =>
  `#/compare/${names.map(encodeURIComponent).join(",")}${more.map((part) => `/${encodeURIComponent(part)}`).join("")}`;

/** The page of an address, its run (undefined: the open one), and the arguments of its function. */
function placeOf(hash) {
  const [first, ...rest] = hash
    .replace(/^#?\/?/, "")
    .split("/")
    .filter(Boolean);
  if (first === undefined) return { page: runs.many ? "runs" : "", args: [] };
  if (first === "plots") return { page: "plots", args: [] };
  if (first === "compare") return comparedAt(rest);
  return { run: decoded(first), ...inRun(rest) };
}

const namesOf = (list = "") => list.split(",").map(decoded);

function comparedAt([list, ...rest]) {
  const names = namesOf(list);
  if (!runs.many || (run.folder && names.every((name) => run.byId.has(name)))) return { page: "compare", args: [names] };
  return rest.length ? { page: "beside", args: [names, ...rest.map(decoded)] } : { page: "comparison", args: [names] };
}

function inRun([task, attempt, turn]) {
  if (task === undefined) return { page: "", args: [] };
  if (attempt === undefined) return { page: "plots", args: [] };
  if (!/^\d/.test(attempt)) return { page: "compare", args: [namesOf(attempt)] };
  return { page: "attempt", args: [decoded(task), decoded(attempt), turn] };
}
