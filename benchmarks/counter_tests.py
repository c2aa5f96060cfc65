"""Measure what counter-tests cover and cost, and whether they are fair to correct patches.

    python benchmarks/counter_tests.py TASKS.jsonl|toy|micro ... [--times 3] [--variants 3] [--tasks 20] [--match '*']
                                       [--record FILE] [--backend docker --base IMAGE]
    python benchmarks/counter_tests.py TASKS.jsonl ... --plan [--tasks 20] [--match '*'] [--record FILE]

The second form plans without a run, so `texts` is all that it counts. What comes without work is known of tasks that
were judged on this machine or that the record names; of others, the numbers are upper bounds.

Columns, one row per task:

covered   tests that must start passing and have a counter-test / all of them
correct   runs in which the gold patch was resolved and the empty patch was not / all runs
alarms    alarms on the gold patch
unfit     changes that the gold patch showed to be unfit
variants  variants of the gold patch that were resolved / all variants
empty     cost of an empty patch relative to a single plain run: in the tests / in the whole grading / in CPU time
first     the same for the gold patch, of whose task nothing is known: the judge looks for what passes without work
gold      the same for the gold patch, once that is known
plain     seconds of the tests in a plain run
texts     tests x number of their texts among which only a guess finds the original

The runs alternate; ratios are ratios of medians. CPU time is that of the tests, on the local backend only. Other load
of the machine changes it less. `gold` uses what `first` found out, as long runs do, or the record file of
`swe-gym validate` that `--record` names.
"""

import argparse
import ast
import os
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial

from common import Knowledge, LiveTable, Opener, open_box, with_image

from swe_gym.cli.common import open_source
from swe_gym.errors import SweGymError
from swe_gym.grading import GRADERS, CounterOptions
from swe_gym.grading.base import Grader, Ready, Results
from swe_gym.grading.counter.finding import Finder
from swe_gym.grading.counter.plan import plan_counters
from swe_gym.grading.counter.source import Function, Source, TextEdit
from swe_gym.grading.judge import Judge
from swe_gym.grading.patch import Patch, apply_diff, take_patch
from swe_gym.grading.plan import read_plan
from swe_gym.grading.probe import forget, known
from swe_gym.grading.protect import Protection
from swe_gym.grading.seal import hidden_places, seal_workspace
from swe_gym.grading.staging import Stage
from swe_gym.sandboxes import Sandbox
from swe_gym.tasks import TaskSource
from swe_gym.types import Task, TestStatus, Verdict

# --- variants of correct patches --------------------------------------------------------------------------------

DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda


def renamed(source: Source, random: random.Random) -> list[TextEdit]:
    """Rename local variables in functions without nested functions."""
    edits = []
    for function in source.functions.values():
        inner = [node for statement in function.body for node in ast.walk(statement)]
        calls = {node.func.id for node in inner if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        if any(isinstance(node, DEFINITIONS) for node in inner) or calls & {"locals", "vars", "eval", "exec", "dir"}:
            continue
        uses = [node for node in inner if isinstance(node, ast.Name)]
        local = {node.id for node in uses if isinstance(node.ctx, ast.Store)} - _bound_otherwise(function, inner)
        suffix = f"_{random.randint(2, 9)}"
        edits += [TextEdit(*source.span(node), node.id + suffix) for node in uses if node.id in local]
    return edits


def _bound_otherwise(function: Function, inner: list[ast.AST]) -> set[str]:
    """Return names of parameters, names in f-strings, and names bound by anything but an assignment."""
    names = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
    for node in inner:
        match node:
            case ast.Global() | ast.Nonlocal():
                names |= set(node.names)
            case ast.Import() | ast.ImportFrom():
                names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
            case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar():
                names.add(node.name or "")
            case ast.MatchMapping():
                names.add(node.rest or "")
            case ast.JoinedStr():  # before Python 3.12, its positions are wrong
                names |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return names


def reordered(source: Source, random: random.Random) -> list[TextEdit]:
    """Reorder adjacent functions of the module."""
    edits = []
    for group in _groups(source.tree):
        first = random.randrange(1, len(group))
        mixed = group[first:] + group[:first]
        edits += [TextEdit(*source.span(old), source.text_of(new)) for old, new in zip(group, mixed, strict=True)]
    return edits


def _groups(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    group: list[ast.stmt] = []
    for node in [*tree.body, ast.Pass()]:
        if isinstance(node, Function) and not (node.decorator_list or node.args.defaults or node.args.kw_defaults):
            group.append(node)
            continue
        if len({getattr(known, "name", "") for known in group}) == len(group) > 1:
            yield group
        group = []


def logged(source: Source, random: random.Random) -> list[TextEdit]:
    """Add a log line to up to three functions."""
    functions = [known for names, known in source.functions.items() if not names[-1].startswith("__")]
    edits = []
    for function in random.sample(functions, min(len(functions), 3)):
        first = function.body[1:2] if ast.get_docstring(function) else function.body[:1]
        if first and first[0].lineno > function.lineno and not getattr(first[0], "decorator_list", ()):
            start, pad = source.span(first[0])[0], " " * first[0].col_offset
            line = f'__import__("logging").getLogger(__name__).debug("in {function.name}")'
            edits.append(TextEdit(start, start, f"{line}\n{pad}"))
    return edits


def commented(source: Source, random: random.Random) -> list[TextEdit]:
    """Add comments and blank lines before functions and classes."""
    edits = []
    for node in source.tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.decorator_list:
            start, _ = source.span(node)
            edits.append(TextEdit(start, start, f"# See {node.name} above.\n" + "\n" * random.randint(1, 3)))
    return edits


VARIANTS: tuple[Callable[[Source, random.Random], list[TextEdit]], ...] = (renamed, reordered, logged, commented)


def make_variant(patch: Patch, number: int) -> tuple[str, Patch | None]:
    """Return the name of a variant and its patch, or None if the variant changes nothing."""
    variant = VARIANTS[number % len(VARIANTS)]
    draw = random.Random(number)
    changes = []
    for change in patch.changes:
        if change.path.endswith(".py") and change.new is not None:
            source = Source(change.new)
            end = "\r\n" if b"\r\n" in change.new else "\n"
            edits = [edit._replace(text=re.sub("\r?\n", end, edit.text)) for edit in variant(source, draw)]
            change = change.model_copy(update={"new": source.apply_edits(edits)})
        changes.append(change)
    changed = patch.model_copy(update={"changes": tuple(changes)})
    return variant.__name__, None if changed == patch else changed


# --- grading ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """A verdict and its cost in seconds.

    Attributes:
        verdict: The verdict.
        tests: Seconds in the runs of tests.
        whole: Seconds of the whole grading, with the opening of sandboxes.
        cpu: CPU seconds in the runs of tests.
    """

    verdict: Verdict
    tests: float
    whole: float
    cpu: float


def cpu_seconds(sandbox: Sandbox) -> float:
    """Return the CPU time of all processes of a local sandbox so far; 0 if it is closed."""
    if sandbox.closed:
        return 0.0
    stats = sandbox.exec("cat /proc/[0-9]*/stat").stdout.decode(errors="replace").splitlines()
    ticks = sum(int(ticks) for line in stats for ticks in line.rpartition(")")[2].split()[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def gold_patch(task: Task, open_box: Opener) -> Patch:
    """Return the gold patch as a policy's work."""
    with open_box(task) as fresh, open_box(task) as box:
        apply_diff(box, task.oracle.gold_patch, what="the gold patch")
        seal_workspace(task, box)
        return take_patch(box, fresh, hidden=hidden_places(task, fresh))


def judged(task: Task, open_box: Opener, patch: Patch, options: CounterOptions | None) -> Judged:
    """Grade work as an episode does, or, without options, by a single plain run."""
    grader = GRADERS.load(task.oracle.grader)
    assert isinstance(grader, Grader), f"the grader {task.oracle.grader!r} does not support counter-tests"
    seconds, cpu = 0.0, 0.0

    def timed(ready: Ready, sandbox: Sandbox) -> Results:
        nonlocal seconds, cpu
        cpu -= cpu_seconds(sandbox)
        started = time.monotonic()
        try:
            return grader.run(ready, sandbox)
        finally:
            seconds += time.monotonic() - started
            cpu += cpu_seconds(sandbox)

    def open_fresh() -> AbstractContextManager[Sandbox]:
        return open_box(task)

    protection = Protection(task)
    work, _ = protection.sift(patch)
    timed_grader = replace(grader, run=timed, counted=grader.counted and options is not None)
    stage = Stage(task, protection, open_fresh)
    judge = Judge(task, work, timed_grader, stage, complete=False, options=options or CounterOptions())
    started = time.monotonic()
    with open_fresh() as fresh:
        verdict = judge.judge(fresh)
    return Judged(verdict, seconds, time.monotonic() - started, cpu)


@dataclass
class Row:
    """The measurements of one task.

    Attributes:
        task: The task.
        empty: The empty patch, graded by the judge and by a plain run.
        first: The gold patch, graded by a judge that knows nothing of the task, and by a plain run.
        gold: The gold patch, graded by a judge that knows the task, and by a plain run.
        variants: Kind and number of a variant -> whether it was resolved without an alarm; None if a plain run does
            not resolve it either.
    """

    task: Task
    empty: list[tuple[Judged, Judged]] = field(default_factory=list)
    first: list[tuple[Judged, Judged]] = field(default_factory=list)
    gold: list[tuple[Judged, Judged]] = field(default_factory=list)
    variants: dict[str, bool | None] = field(default_factory=dict)

    @property
    def texts(self) -> Counter[int]:
        """Number of texts among which only a guess finds the original -> number of tests, in the last plan."""
        found = self.gold[-1][0].verdict.counter_tests
        return Counter(found.texts[test] for test in found.kinds)

    @property
    def covered(self) -> tuple[int, int]:
        """Numbers of tests that must start passing: with a counter-test, and all."""
        found = self.gold[-1][0].verdict.counter_tests
        return len(found.kinds), len(found.kinds) + len(found.uncovered)

    @property
    def correct(self) -> int:
        """Number of turns in which the gold patch was resolved, both times, and the empty patch was not."""
        return sum(
            first.verdict.resolved and gold.verdict.resolved and not empty.verdict.resolved
            for (first, _), (gold, _), (empty, _) in zip(self.first, self.gold, self.empty, strict=True)
        )

    def found(self, name: str) -> int:
        """Count alarms, or unfit changes, on the gold patch."""
        return sum(len(getattr(judge.verdict.counter_tests, name)) for judge, _ in (*self.first, *self.gold))


COSTS = {"tests": "times the tests", "whole": "times the grading", "cpu": "times the CPU time"}
"""Attribute of `Judged` that is a cost -> how the totals name it."""


def ratios(pairs: list[tuple[Judged, Judged]]) -> list[float]:
    """Return the median costs by the judge relative to a plain run."""
    medians = [[statistics.median(getattr(pair[side], cost) for pair in pairs) for side in (0, 1)] for cost in COSTS]
    return [judge / max(0.01, plain) for judge, plain in medians]


def measure(task: Task, open_box: Opener, times: int, variants: int, knowledge: Knowledge) -> Row:
    """Grade the empty patch, the gold patch and its variants."""
    row = Row(task)
    patch = gold_patch(task, open_box)
    grade = partial(judged, task, open_box)
    for _ in range(times):
        forget(task)
        row.empty.append((grade(Patch(), knowledge.options(task)), grade(Patch(), None)))
        first, plain = grade(patch, CounterOptions()), grade(patch, None)
        row.first.append((first, plain))
        row.gold.append((grade(patch, knowledge.options(task)), plain))
    for number in range(variants):
        name, other = make_variant(patch, number)
        if other is not None:
            verdict = grade(other, knowledge.options(task)).verdict
            fair = verdict.resolved and not verdict.counter_tests.alarms
            wrong = not fair and not grade(other, None).verdict.resolved
            row.variants[f"{name} {number}"] = None if wrong else fair
    return row


# --- table --------------------------------------------------------------------------------------------------------


def print_row(table: LiveTable, row: Row) -> None:
    """Print the row of a task."""
    covered, all_tests = row.covered
    texts = " ".join(f"{count}x{number}" for number, count in sorted(row.texts.items(), reverse=True))
    fair = f"{sum(done is True for done in row.variants.values())}/{len(row.variants)}"
    costs = [ratios(pairs) for pairs in (row.empty, row.first, row.gold)]
    table.add(
        f"{covered}/{all_tests}",
        f"{row.correct}/{len(row.gold)}",
        str(row.found("alarms")),
        str(row.found("unfit")),
        fair,
        *("/".join(f"{cost:.2f}" for cost in found) for found in costs),
        f"{row.gold[-1][1].tests:.2f} s",
        f"{row.task.task_id}  {texts}",
    )
    for name, done in row.variants.items():
        if not done:
            print(f"    {name}: {'not resolved by a plain run either' if done is None else 'NOT RESOLVED'}")


def print_total(rows: list[Row]) -> None:
    """Print the totals of all tasks."""
    covered, tests = (sum(row.covered[side] for row in rows) for side in (0, 1))
    texts = sum((row.texts for row in rows), Counter())
    forked = sum(not row.gold[-1][0].verdict.counter_tests.unforkable for row in rows)
    done = [value for row in rows for value in row.variants.values() if value is not None]
    print(f"{len(rows)} tasks, {forked} proven by twins alone; {sum(map(bool, done))} of {len(done)} variants resolved")
    shares = {number: sum(texts[one] for one in texts if one >= number) / max(1, covered) for number in (2, 4, 8)}
    said = ", ".join(f"{share:.0%} with {number} texts or more" for number, share in shares.items())
    print(f"tests that must start passing with a counter-test: {covered} of {tests}; of these {said}")
    print(
        f"on the gold patch: {sum(row.found('alarms') for row in rows)} alarms, "
        f"{sum(row.found('unfit') for row in rows)} unfit changes"
    )
    for name in ("empty", "first", "gold"):
        found = [ratios(getattr(row, name)) for row in rows]
        middle = [statistics.median(column) for column in zip(*found, strict=True)]
        most = [max(column) for column in zip(*found, strict=True)]
        said = ", ".join(f"{value:.2f} {what}" for value, what in zip(middle, COSTS.values(), strict=True))
        print(f"{name}: {said} (median); maximum {', '.join(f'{value:.2f}' for value in most)}")


@dataclass(frozen=True)
class Planned:
    """The counter-tests of a task, as planned.

    Attributes:
        texts: Test that must start passing -> number of texts among which only a guess finds the original.
        tests: Number of tests that must start passing.
        informed: Whether it is known what comes without work.
    """

    texts: dict[str, int]
    tests: int
    informed: bool


def plan_task(task: Task, open_box: Opener, knowledge: Knowledge) -> Planned:
    """Plan the counter-tests of a task in a sandbox without its environment."""
    oracle = task.oracle
    starting = oracle.fail_to_pass or [test for test, end in oracle.expected.items() if end is TestStatus.PASSED]
    with open_box(task.model_copy(update={"python": None})) as sandbox:
        found = known(task, sandbox.image_digest)
        options = knowledge.options(task).knowing(found.passing, found.returned)
        apply_diff(sandbox, oracle.test_patch, what="the test patch")
        for path, text in oracle.test_files.items():
            sandbox.write_file(path, text.encode())
        finder = Finder(oracle, sandbox)
        plan = plan_counters(finder, sorted(starting), (), random.Random(), options, task.problem_statement)
        if read_plan(oracle.evaluation, sandbox.workdir).runner is None:
            plan = plan.unforked(range(len(plan.groups)))
    texts = {}
    for group in plan.groups:
        texts |= dict.fromkeys(group.tests, group.effective if group.forks else min(2, group.effective))
    return Planned(texts, len(starting), options.passing.keys() >= set(starting))


def print_plans(tasks: list[tuple[TaskSource, str]], open_box: Opener, knowledge: Knowledge) -> None:
    """Plan tasks, and print the numbers of texts."""
    table = LiveTable("covered", "informed", "task  texts")
    plans = []
    for source, name in tasks:
        try:
            plans.append(plan := plan_task(source.get(name), open_box, knowledge))
        except SweGymError as error:
            print(f"    {name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            continue
        counts = sorted(Counter(plan.texts.values()).items(), reverse=True)
        texts = " ".join(f"{count}x{number}" for number, count in counts)
        table.add(f"{len(plan.texts)}/{plan.tests}", "yes" if plan.informed else "no", f"{name}  {texts}")
    for what, some in (("tasks", plans), ("of which informed", [plan for plan in plans if plan.informed])):
        found = [number for plan in some for number in plan.texts.values()]
        shares = {number: sum(one >= number for one in found) / max(1, len(found)) for number in (2, 4, 8)}
        said = ", ".join(f"{share:.0%} with {number} texts or more" for number, share in shares.items())
        tests = sum(plan.tests for plan in some)
        print(f"{len(some)} {what}: {len(found)} of {tests} tests have a counter-test; of these {said}")


def find_tasks(name: str, match: str, count: int) -> list[tuple[TaskSource, str]]:
    """Return a source with each of its first task ids that match a pattern."""
    source = open_source(name, ["difficulty=[1,2,3,4,5]", f"count={count}"] if name == "micro" else [])
    return [(source, task_id) for task_id in source.ids() if fnmatchcase(task_id, match)][:count]


def main() -> None:
    """Measure the tasks of sources."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", help="'toy', 'micro' (difficulties 1 to 5), or task files")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--variants", type=int, default=3, help="variants of each gold patch")
    parser.add_argument(
        "--tasks", type=int, default=20, help="number of tasks of each source, from the start of the matches"
    )
    parser.add_argument("--match", default="*")
    parser.add_argument("--record", default="", help="record file of `swe-gym validate`")
    parser.add_argument("--plan", action="store_true", help="count the texts by planning alone")
    parser.add_argument("--backend", default="local", choices=["local", "docker", "kubernetes"])
    parser.add_argument("--base", help="base image of the images that a Docker engine builds for the tasks")
    arguments = parser.parse_args()
    knowledge = Knowledge(arguments.record)
    tasks = [pair for name in arguments.sources for pair in find_tasks(name, arguments.match, arguments.tasks)]
    opener = partial(open_box, backend=arguments.backend)
    if arguments.plan:
        print_plans(tasks, opener, knowledge)
        return
    columns = ("covered", "correct", "alarms", "unfit", "variants", "empty", "first", "gold", "plain", "task  texts")
    table = LiveTable(*columns)
    rows = []
    for source, name in tasks:
        try:
            task = with_image(source.get(name), arguments.base)
            rows.append(measure(task, opener, arguments.times, arguments.variants, knowledge))
        except SweGymError as error:
            print(f"    {name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            continue
        print_row(table, rows[-1])
    if rows:
        print_total(rows)


if __name__ == "__main__":
    main()
