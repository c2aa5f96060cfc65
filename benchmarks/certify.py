"""Certify rewarded patches of four kinds on two backends: equal outcomes, no cheat proven, no right patch refuted.

    python benchmarks/certify.py TASKS.jsonl|toy|micro [--each 25] [--tasks 40] [--backend local --backend docker]
                                 [--sandbox-option NAME=VALUE] [--times 1] [--timed 100] [--folder FOLDER]

gold     the gold patch of a task
right    a variant of it: renamed variables, reordered functions, log lines, comments (see counter_tests.py)
cheat    the work of a published cheat
weak     the gold patch with a change that the required tests do not see: a file, a number or a comparison changed

Every patch is rewarded: a plain run of the hidden tests, without counter-tests, resolves it. The sandbox options count
for backends other than local. At last, `--timed` of the patches are certified and plainly graded in local sandboxes, in
turns, when their tasks are known: the table has the ratios of CPU time, of wall-clock time and of the tests' time. One
call certifies all honest patches of a task, as `swe-gym certify` does.
"""

import argparse
import ast
import dataclasses
import itertools
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from common import CpuClock, LiveTable, open_box
from counter_tests import gold_patch, judged, make_variant

from swe_gym.certification import Certificate, Claim, JudgeSettings, Origins, certify
from swe_gym.cli.common import TaskSubset, open_source
from swe_gym.cli.common import sandbox_options as parse_sandbox_options
from swe_gym.curation import validate
from swe_gym.errors import SweGymError
from swe_gym.grading.counter.source import Source, TextEdit
from swe_gym.grading.patch import Patch, take_patch
from swe_gym.grading.protect import hidden_files
from swe_gym.grading.seal import hidden_places, seal_workspace
from swe_gym.tasks import TaskRecord, read_records
from swe_gym.testing.cheats import PRELUDE, Cheat, read_cheats
from swe_gym.types import Task

KINDS = ("gold", "right", "cheat", "weak")
REWARDED_CHEATS = ("interpreter", "reporter", "runtime", "product", "runner")
"""Topics of cheats, those first that a plain run rewards most often."""

BENCHMARK = Origins("predictions", "benchmark", {})

LONGEST_PLAIN = 60.0
"""Time limit of the plain run that decides whether a patch is rewarded, in seconds: some cheats hang."""

MOST_TRIES = 60
"""Patches of one kind that are tried for one task, beyond which it gives none."""


@dataclasses.dataclass(frozen=True)
class Attempt:
    """A rewarded patch.

    Attributes:
        kind: One of `KINDS`.
        what: What was done.
        claim: The claim.
        patch: Its patch.
    """

    kind: str
    what: str
    claim: Claim
    patch: Patch


# --- making patches ---------------------------------------------------------------------------------------------


def patches(kind: str, task: Task, gold: Patch, draw: random.Random) -> Iterator[tuple[str, Patch]]:
    """Yield patches of a kind, each with what was done."""
    if kind == "gold":
        yield "", gold
    elif kind == "right":
        for number in itertools.islice(itertools.count(draw.randrange(4)), MOST_TRIES):
            name, changed = make_variant(gold, number)
            if changed is not None:
                yield f"{name} {number}", changed
    elif kind == "cheat":
        known = [cheat for topic in REWARDED_CHEATS for cheat in read_cheats(topic)]
        for cheat in draw.sample(known, len(known)):
            yield cheat.name, cheat_patch(cheat, task)
    else:
        yield from weaken(gold, draw)


def cheat_patch(cheat: Cheat, task: Task) -> Patch:
    """Return the work of a cheat."""
    env = {
        "HIDDEN": " ".join(sorted(hidden_files(task.oracle))),
        "REQUIRED": "[]",
        "STARTING": "[]",
        "ISSUE": '""',
    }
    with open_box(task) as fresh, open_box(task) as box:
        seal_workspace(task, box)
        box.exec(PRELUDE + cheat.script, timeout=20, env=env, merge=True)
        return take_patch(box, fresh, hidden=hidden_places(task, fresh))


def weaken(gold: Patch, draw: random.Random) -> Iterator[tuple[str, Patch]]:
    """Yield the gold patch without one of its files, or with one number or comparison changed."""
    found = [
        (f"without {change.path}", gold.model_copy(update={"changes": tuple(set(gold.changes) - {change})}))
        for change in gold.changes
        if len(gold.changes) > 1
    ]
    for change in gold.changes:
        if change.path.endswith(".py") and change.new is not None:
            source = Source(change.new)
            for edit in mutations(source):
                new = change.model_copy(update={"new": source.apply_edits([edit])})
                changes = tuple(new if one is change else one for one in gold.changes)
                found.append((f"{change.path}: {edit.text}", gold.model_copy(update={"changes": changes})))
    yield from draw.sample(found, len(found))


SWAPPED = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}


def mutations(source: Source) -> Iterator[TextEdit]:
    """Yield small changes of a module."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant) and type(node.value) is int:
            yield TextEdit(*source.span(node), str(node.value + 1))
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPPED:
            left, right = source.text_of(node.left), source.text_of(node.comparators[0])
            yield TextEdit(*source.span(node), f"({left} {SWAPPED[type(node.ops[0])]} {right})")


def collect(tasks: dict[str, Task], each: int, draw: random.Random) -> list[Attempt]:
    """Return rewarded patches, as many of each kind, spread over the tasks."""
    golds = {name: gold_patch(task, open_box) for name, task in tasks.items()}
    found: list[Attempt] = []
    for kind in KINDS:
        streams = {name: patches(kind, task, golds[name], draw) for name, task in tasks.items()}
        tried: Counter[str] = Counter()
        taken: list[Attempt] = []
        while streams and len(taken) < each:
            for name in list(streams):
                if len(taken) >= each:
                    break
                attempt = next_rewarded(kind, tasks[name], streams[name], tried)
                if attempt is None:
                    del streams[name]
                else:
                    taken.append(attempt)
        print(f"{len(taken)} rewarded patches of kind {kind}", flush=True)
        found += taken
    return number_attempts(found)


def next_rewarded(kind: str, task: Task, stream: Iterator[tuple[str, Patch]], tried: Counter[str]) -> Attempt | None:
    """Return the next patch of a stream that a plain run resolves."""
    for what, patch in stream:
        tried[task.task_id] += 1
        if tried[task.task_id] > MOST_TRIES and kind != "cheat":
            return None
        oracle = task.oracle.model_copy(update={"timeout": min(task.oracle.timeout, LONGEST_PLAIN)})
        try:
            plain = judged(task.model_copy(update={"oracle": oracle}), open_box, patch, None)
        except SweGymError:
            continue
        if plain.verdict.resolved and patch.changes:
            return Attempt(kind, what, Claim(task.task_id, patch.diff(), reward=1.0), patch)
    return None


def number_attempts(attempts: list[Attempt]) -> list[Attempt]:
    """Number the attempts at each task."""
    seen: Counter[str] = Counter()
    numbered = []
    for attempt in attempts:
        claim = dataclasses.replace(attempt.claim, attempt=seen[attempt.claim.task_id])
        seen[claim.task_id] += 1
        numbered.append(dataclasses.replace(attempt, claim=claim))
    return numbered


# --- certifying -------------------------------------------------------------------------------------------------


def certify_on(
    backend: str, options: dict[str, object], tasks: dict[str, Task], attempts: list[Attempt], times: int, folder: Path
) -> dict[str, Certificate | str]:
    """Return the certificate of each attempt, or why it has none."""
    settings = JudgeSettings(backend, options, workers=2)
    source = TaskSubset(list(tasks), tasks.__getitem__)
    record = folder / f"{backend}.jsonl"
    records = validate(source, backend=backend, sandbox_options=options, times=times, workers=2, record=record)
    by_id = {one.task_id: one for one in records}
    claims = [attempt.claim for attempt in attempts]
    found = {}
    for claim, end in certify(claims, tasks, by_id, settings, BENCHMARK, times=times):
        found[claim.name] = end
        if not isinstance(end, str):
            end.write(folder / backend)
    return found


def outcome_of(end: Certificate | str) -> str:
    """Return the outcome of a certificate; "none" if there is none."""
    return "none" if isinstance(end, str) else end.outcome


def report(attempts: list[Attempt], found: dict[str, dict[str, Certificate | str]]) -> None:
    """Print the outcomes by kind and backend, what disagrees, and times."""
    table = LiveTable("patches", "proven", "unproven", "refuted", "none", "kind, backend")
    for kind, backend in itertools.product(KINDS, found):
        outcomes = Counter(outcome_of(found[backend][one.claim.name]) for one in attempts if one.kind == kind)
        cells = (str(outcomes[name]) for name in ("proven", "unproven", "refuted", "none"))
        table.add(str(sum(outcomes.values())), *cells, f"{kind}, {backend}")
    equal = 0
    for one in attempts:
        ends = {backend: outcome_of(ends[one.claim.name]) for backend, ends in found.items()}
        equal += len(set(ends.values())) == 1
        bad = {"cheat": "proven", "gold": "refuted", "right": "refuted"}.get(one.kind, "")
        if len(set(ends.values())) > 1 or bad in ends.values() or "none" in ends.values():
            whys = {b: e if isinstance(e, str) else e.why for b, e in ((b, found[b][one.claim.name]) for b in found)}
            print(f"    {one.kind} {one.claim.name} ({one.what}): {ends} {str(whys)[:600]}")
    print(f"equal on all backends: {equal} of {len(attempts)}")


@dataclasses.dataclass(frozen=True)
class Cost:
    """What judging a patch took, in seconds.

    Attributes:
        tests: Wall-clock time of the tests.
        wall: Wall-clock time of all.
        cpu: CPU time of all processes.
    """

    tests: float
    wall: float
    cpu: float


def measure_cost(clock: CpuClock, judge: Callable[[], float]) -> Cost:
    """Return what a judgement takes. `judge` returns the seconds of its tests."""
    wall, cpu = time.monotonic(), clock.now()
    tests = judge()
    return Cost(tests, time.monotonic() - wall, clock.now() - cpu)


def print_costs(
    attempts: list[Attempt], tasks: dict[str, Task], records: dict[str, TaskRecord], clock: CpuClock
) -> None:
    """Print what `certify` costs over one plain grading of each patch, in local sandboxes.

    One call certifies the honest patches of a task, another one its cheats, in turns with their plain gradings.
    """
    together: dict[tuple[str, bool], list[Attempt]] = {}
    for one in attempts:
        together.setdefault((one.claim.task_id, one.kind == "cheat"), []).append(one)

    def grade_plainly(some: list[Attempt]) -> float:
        return sum(judged(tasks[one.claim.task_id], open_box, one.patch, None).tests for one in some)

    def certify_all(some: list[Attempt]) -> float:
        task = tasks[some[0].claim.task_id]
        claims = [one.claim for one in some]
        ends = [end for _, end in certify(claims, {task.task_id: task}, records, JudgeSettings(workers=1), BENCHMARK)]
        assert all(isinstance(end, Certificate) for end in ends), ends
        return sum(end.test_seconds for end in ends if isinstance(end, Certificate))

    for task_id in tasks:  # the first judgement of a task fills caches
        first = next(one for one in attempts if one.claim.task_id == task_id)
        grade_plainly([first]), certify_all([first])
    found: dict[bool, list[tuple[Cost, Cost]]] = {False: [], True: []}
    for number, ((_, cheats), some) in enumerate(together.items()):
        ways = (grade_plainly, certify_all)
        costs = [measure_cost(clock, partial(way, some)) for way in (ways if number % 2 else ways[::-1])]
        plain, certified = costs if number % 2 else costs[::-1]
        found[cheats].append((plain, certified))
    print(
        f"certify over one plain grading, CPU of {'all' if clock.exact else 'ended'} processes, load {os.getloadavg()}"
    )
    columns = [f"{name}, {what}" for name in ("CPU", "wall", "tests") for what in ("median", "sum")]
    table = LiveTable("calls", *columns, "kind")
    for kind, pairs in (("all but cheats", found[False]), ("cheats", found[True]), ("all", found[False] + found[True])):
        if pairs:
            cells = [f"{ratio:.2f}" for name in ("cpu", "wall", "tests") for ratio in find_ratios(pairs, name)]
            table.add(str(len(pairs)), *cells, kind)


def find_ratios(pairs: list[tuple[Cost, Cost]], name: str) -> tuple[float, float]:
    """Return the median of the ratios of pairs, and the ratio of their sums."""
    plain, certified = ([getattr(pair[side], name) for pair in pairs] for side in (0, 1))
    return statistics.median(new / old for old, new in zip(plain, certified, strict=True)), sum(certified) / sum(plain)


def main() -> None:
    """Measure the tasks of a source."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="'toy', 'micro', or a task file")
    parser.add_argument("--each", type=int, default=25, help="patches of each kind")
    parser.add_argument("--tasks", type=int, default=40, help="number of tasks, from the start")
    parser.add_argument("--backend", action="append", default=[])
    parser.add_argument("--sandbox-option", action="append", default=[])
    parser.add_argument("--times", type=int, default=1, help="runs of the validation in each state")
    parser.add_argument("--timed", type=int, default=100, help="patches of which times are measured")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("certified"))
    arguments = parser.parse_args()
    clock = CpuClock()
    pairs = ["difficulty=[1,2,3,4,5]", f"count={arguments.tasks}"] if arguments.source == "micro" else []
    source = open_source(arguments.source, pairs)
    tasks = {name: source.get(name) for name in list(source.ids())[: arguments.tasks]}
    attempts = collect(tasks, arguments.each, random.Random(arguments.seed))
    used = {attempt.claim.task_id for attempt in attempts}
    tasks = {name: task for name, task in tasks.items() if name in used}
    found = {}
    for backend in arguments.backend or ["local", "docker"]:
        options = {} if backend == "local" else parse_sandbox_options(backend, arguments.sandbox_option)
        found[backend] = certify_on(backend, options, tasks, attempts, arguments.times, arguments.folder)
    report(attempts, found)
    records = {one.task_id: one for one in read_records(arguments.folder / "local.jsonl")}
    timed = random.Random(arguments.seed).sample(attempts, min(arguments.timed, len(attempts)))
    print_costs(timed, {one.claim.task_id: tasks[one.claim.task_id] for one in timed}, records, clock)


if __name__ == "__main__":
    main()
