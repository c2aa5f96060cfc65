"use strict";
// Addresses: which page, of which run.
//
//   #/                              the runs, or the table of the only run
//   #/compare/RUN,RUN               runs compared
//   #/compare/RUN,RUN/TASK/ATTEMPT  the same attempt of several runs side by side
//   #/RUN                           table of a run
//   #/RUN/plots                     its plots
//   #/RUN/attempts/ID,ID            episodes of it side by side
//   #/RUN/TASK/ATTEMPT[/TURN]       an episode
//   #/plots, #/attempts/ID,ID       of the run that is open

const decoded = (part) => decodeURIComponent(part);

/** An address of these parts. A run named like a page is encoded, so that it is not taken for one. */
const addressTo = (...parts) =>
  `#/${parts.map((part) => encodeURIComponent(part).replace(/^(attempts|compare|plots)$/, (name) => `%${name.charCodeAt(0).toString(16)}${name.slice(1)}`)).join("/")}`;

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
  if (first === "attempts") return { page: "attempts", args: [namesOf(rest[0])] };
  if (first !== "compare") return { run: decoded(first), ...inRun(decoded(first), rest) };
  const names = namesOf(rest[0]);
  return rest.length > 1 ? { page: "beside", args: [names, ...rest.slice(1).map(decoded)] } : { page: "comparison", args: [names] };
}

const namesOf = (list = "") => list.split(",").map(decoded);

function inRun(name, [task, attempt, turn]) {
  if (task === undefined) return { page: "", args: [] };
  if (attempt === undefined) return { page: "plots", args: [] };
  if (!/^\d/.test(attempt)) return { page: "attempts", args: [namesOf(attempt)] };
  return { page: "episode", args: [name, decoded(task), decoded(attempt), turn] };
}
