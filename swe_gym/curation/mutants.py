"""Tasks in any number from one state of a project, each with a bug that its tests find.

The policy starts from the project with the bug. The tests that fail by it are hidden: they are taken out of the state
that the policy sees. Nobody writes the issue: it says what a call gives, what it should give, and what is documented.
"""

import ast
import contextlib
import dataclasses
import hashlib
import json
import posixpath
import re
import shlex
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from packaging.utils import canonicalize_name

from ..envs import SandboxGroup
from ..errors import FileError, SandboxLost, TaskError, UsageError, quantify
from ..files import append_lines
from ..grading import STEADY_ENV, file_diff, parse_command, parse_id, read_state
from ..grading.counter import Source, TextEdit
from ..guests import bundle
from ..rollout import NODE_RETRIES, DriverLink, EpisodePool, OutcomeJob
from ..rollout.executors import open_executor
from ..sandboxes import Sandbox
from ..sandboxes.contents import prepare_workspace
from ..tasks import TaskRecord, digest, read_records
from ..types import GitWorkspace, JsonObject, Oracle, PythonEnv, Task, TestCommand, TestStatus
from .audit_variants import split_sections
from .mutation import (
    SELDOM_FOUND,
    Function,
    Mutation,
    draw_mutations,
    find_mutations,
    first_lines,
    mutate,
    spread_mutations,
)
from .new_task import (
    BUILD_TIMEOUT,
    DEFAULTS,
    PYTEST,
    BuildOptions,
    Statuses,
    find_release,
    open_repository,
    pin_environment,
    pin_release,
    read_project,
    refuse_copied,
    resolve_commit,
    run_tests,
)
from .releases import OUTSIDE, TestLayout, find_source_root, find_tests, list_files
from .validation import CheckSettings, MeteredGroup, TaskCheck, add_seconds

LEVELS = ("easy", "medium", "hard")
"""Difficulties. An easy issue names the function and quotes its documentation, a medium one shows code that goes wrong,
a hard one shows only what does not name the function. If no test shows the bug without itself, the issue is easy."""

MOST_BROKEN = 0.5
"""Share of the tests that a bug may break. Larger ones are found at once."""

UNTELLING = ("AssertionError", "Failed", "NotImplementedError")
"""Errors that say nothing of a bug without the code that raises them."""

TEMPORARY = re.compile(r"/tmp/(?:pytest-of-[^/\s]+/pytest-\d+/)?[^/\s'\":]+(/?)")
"""Temporary folder of a test, which `tempfile` or pytest names."""

WATCHED = 4
"""Failing tests that are asked for something to show."""

BATCH = 8
"""Bugs that are tried in one sandbox."""

TIMES_SLOWER, MORE_SECONDS = 4.0, 5.0
"""CPU time limit of the tests with a bug: this many times what they take without it, plus seconds."""

TIMES_LATER, LEAST_CLOCK = 10.0, 30.0
"""Time limit by the clock, for tests that wait for ever: this multiple of what they take without a bug, or seconds. A
busy machine lets them wait, and what a bug shows must not depend on it."""

TIMES_TRACED = 2.0
"""Time limit of the run that notes lines, as a multiple of the task's."""

ERRORS = {
    "many": "too many tests fail",
    "hung": "the tests do not end",
    "died": "the tests end their own process",
    "memory": "the tests allocate too much memory",
    "lost": "the tests lose the sandbox",
}
"""Error of `guests/observe.py` -> why no task is made of the bug."""


@dataclasses.dataclass(frozen=True)
class MutantOptions:
    """How tasks are made from a project; see `make_mutants`."""

    count: int = 100
    seed: int = 0
    times: int = 1
    workers: int = 2
    record: str = ""
    date: str = ""
    executor: str = "threads"


class Project(NamedTuple):
    """A project whose own tests pass.

    Attributes:
        name: Name, and the start of the ids of its tasks.
        version: Release or commit.
        tree: Its files.
        layout: Where its tests are.
        base: A task without a bug.
        files: Product code: path -> content.
        passing: Tests that pass in all runs.
        forkable: Those that pass in a fork of the test process too.
        lines: File -> line -> the forkable tests that run it or, where a function begins, call it. Empty: not known.
        seconds: CPU time limit of the tests with a bug.
        clock: Time limit by the clock of the tests with a bug.
        mentioned: Names that the test files read.
    """

    name: str
    version: str
    tree: Path
    layout: TestLayout
    base: Task
    files: Mapping[str, bytes]
    passing: tuple[str, ...]
    forkable: tuple[str, ...]
    lines: Mapping[str, Mapping[int, Collection[str]]]
    seconds: float
    clock: float
    mentioned: Collection[str] = ()

    def tests_at(self, path: str, lines: Iterable[int]) -> Collection[str]:
        """Return the tests that run one of the lines of a file, or call a function that begins there."""
        known = self.lines.get(path, {})
        return set[str]().union(*(known.get(line, ()) for line in lines)) if self.lines else self.forkable

    @property
    def most(self) -> int:
        """Number of tests that a bug may break."""
        return max(1, int(MOST_BROKEN * len(self.passing)))


# --- the project --------------------------------------------------------------------------------------------------


def open_release(package: str, version: str, options: BuildOptions) -> Project:
    """Prepare a release of a package, and run its tests.

    Raises:
        TaskError: The release is missing or has no tests, none of them passes, or pip brings a copy of the package.
        MissingInterpreter: That version of Python is not installed.
        SandboxError: The index or a sandbox failed.
    """
    refuse_copied(package)
    options.progress(f"looking for the source release of {package} {version}")
    workspace = find_release(package, version)
    tree = prepare_workspace(workspace, timeout=BUILD_TIMEOUT)
    layout = find_tests(list_files(tree))
    options.progress("installing the requirements of the code and its tests")
    python = _without(package, pin_release(package, version, tree, options))
    name = canonicalize_name(package)
    draft = _draft(name, version, tree, layout, f"{PYTEST} {shlex.join(layout.targets)}", options)
    return _measure(
        name, version, tree, layout, draft.model_copy(update={"workspace": workspace, "python": python}), options
    )


def open_commit(repository: str, tests: str, commit: str, options: BuildOptions) -> Project:
    """Prepare a commit of a local repository, and run its tests.

    Args:
        repository: A git repository on this machine.
        tests: Command that runs the tests. It calls `python -m pytest` or `python -m unittest` once.
        commit: The commit.
        options: How the tests run.

    Raises:
        UsageError: The repository does not exist.
        TaskError: The commit is missing or has no tests, none of them passes, or pip brings a copy of the package.
        MissingInterpreter: That version of Python is not installed.
        SandboxError: The index or a sandbox failed.
    """
    folder = open_repository(repository)
    commit = resolve_commit(folder, commit)
    workspace = GitWorkspace(url=str(folder), ref=commit)
    tree = prepare_workspace(workspace, timeout=BUILD_TIMEOUT)
    layout = find_tests(list_files(tree))
    package = read_project(tree).get("name", folder.name)
    refuse_copied(package)
    options.progress("installing the requirements of the code and its tests")
    python = _without(package, pin_environment(tree, tests, options))
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name).lstrip("._-") or "repository"
    draft = _draft(name, commit[:12], tree, layout, tests, options)
    return _measure(
        name, commit[:12], tree, layout, draft.model_copy(update={"workspace": workspace, "python": python}), options
    )


def _without(package: str, python: PythonEnv) -> PythonEnv:
    """Leave out the package itself: a policy would find the code without the bug there."""
    name = canonicalize_name(package)
    kept = [line for line in python.requirements if canonicalize_name(re.split(r"[=\s@;\[]", line)[0]) != name]
    return python.model_copy(update={"requirements": tuple(kept)})


def _draft(name: str, version: str, tree: Path, layout: TestLayout, tests: str, options: BuildOptions) -> Task:
    root = find_source_root(tree, name)
    return Task(
        task_id=f"{name}-{version}",
        problem_statement="",
        repo=name,
        env={**STEADY_ENV, "PYTHONPATH": f"{{workdir}}/{root}".rstrip("/")},
        eval_cmd=tests,
        eval_timeout=options.test_timeout,
        tags=("mutant",),
        oracle=Oracle(test_paths=layout.patterns, evaluation=TestCommand(test_cmd=tests), timeout=options.test_timeout),
    )


def _measure(name: str, version: str, tree: Path, layout: TestLayout, base: Task, options: BuildOptions) -> Project:
    """Run the tests of a project without a bug: which pass always, how long it takes, and what each runs."""
    if parse_command(base.eval_cmd) is None:
        raise TaskError(f"the command {base.eval_cmd!r} must call `python -m pytest` or `python -m unittest` once")
    files = {
        path: (tree / path).read_bytes()
        for path in list_files(tree)
        if path.endswith(".py") and path not in layout and path not in OUTSIDE and not (tree / path).is_symlink()
    }
    if not files:
        raise TaskError(f"{name} {version} holds no Python file beside its tests, documentation and tools")
    runs: list[Statuses] = []
    with SandboxGroup(base, options.backend, {}) as group:
        for number in range(1, options.runs + 1):
            options.progress(f"running the tests of {name} {version}, {number} of {options.runs}")
            runs.append(run_tests(group, ""))
        passing = [test for test in runs[0] if all(run.get(test) is TestStatus.PASSED for run in runs)]
        if not passing:
            raise TaskError(
                f"no test of {name} {version} passes in each of {options.runs} runs, of {len(runs[0])} tests. "
                "The package itself is not installed: code that looks up its own version fails"
            )
        options.progress("looking for the lines that each test runs")
        path = min(files)
        whole = Trial(path, files[path].decode("latin-1"), tuple(passing))
        limit = base.oracle.timeout
        (found,) = run_trials(group, TrialOrder((whole,), limit, 2 * limit, len(passing)))
        if found.error:
            raise TaskError(f"the tests of {name} {version} do not run in a fork of the test process: {found.error}")
        forkable = tuple(test for test in passing if test not in found.failing)
        options.progress("noting which tests run which line")
        lines = _find_lines(group, forkable)
    limits = TIMES_SLOWER * found.seconds + MORE_SECONDS, max(TIMES_LATER * found.clock, LEAST_CLOCK)
    mentioned = _find_mentioned(tree, layout)
    return Project(name, version, tree, layout, base, files, tuple(passing), forkable, lines, *limits, mentioned)


def _find_lines(group: SandboxGroup, tests: Collection[str]) -> dict[str, dict[int, Collection[str]]]:
    """Return which of some tests run which line: file -> line -> tests. Empty if none does.

    Raises:
        TaskError: It takes too long. Without the lines, equal seeds would make other tasks.
    """
    limit = TIMES_TRACED * group.task.oracle.timeout
    with group.fresh() as sandbox:
        found = _observe(sandbox, group.task.eval_cmd, {}, limit)
    if not found:
        raise TaskError(
            f"the tests of {group.task.task_id} did not end in {limit:.0f} s while each line that they run was noted: "
            "try again on an idle machine, or choose a project whose tests are faster"
        )
    if not {*found[0]["tests"]} & {*tests}:
        return {}
    names = [test if test in tests else "" for test in found[0]["tests"]]
    sets = [frozenset(names[one] for one in numbers) - {""} for numbers in found[0]["sets"]]
    return {
        path: {int(line): sets[number] for line, number in lines.items()} for path, lines in found[0]["lines"].items()
    }


def _observe(sandbox: Sandbox, command: str, order: JsonObject, timeout: float) -> list[Any]:
    """Run `guests/observe.py` in place of a command's test runner, and return what it writes, line by line.

    Raises:
        SandboxError: The sandbox failed.
    """
    call = parse_command(command)
    assert call is not None  # see `_measure`
    folder = sandbox.exec(["mktemp", "-d"]).text.strip()
    sandbox.write_file(f"{folder}/observe.py", bundle("observe").encode())
    sandbox.write_file(
        f"{folder}/order.json", json.dumps({"runner": call.module, "folder": sandbox.workdir, **order}).encode()
    )
    options = ["--continue-on-collection-errors"] if call.module == "pytest" else []
    sandbox.exec(call.text(f"{folder}/observe.py", options), timeout=timeout)
    with contextlib.suppress(FileError):
        lines = sandbox.read_file(f"{folder}/found.json").decode().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]
    return []


# --- a bug --------------------------------------------------------------------------------------------------------


class Bug(NamedTuple):
    """A bug in a project.

    Attributes:
        mutation: The change.
        task: The project with the bug, and all its tests to see.
        trial: The tests that may find it.
    """

    mutation: Mutation
    task: Task
    trial: "Trial"


class Trial(NamedTuple):
    """Tests to run with a change.

    Attributes:
        path: The changed file.
        text: Its content; each character is a byte.
        tests: The tests.
    """

    path: str
    text: str
    tests: tuple[str, ...]


class TrialOrder(NamedTuple):
    """Trials to make in one sandbox, each in a fork of the test process.

    Attributes:
        trials: The trials.
        seconds: CPU time limit of each.
        clock: Time limit of each by the clock.
        most: Number of tests that may fail.
    """

    trials: tuple[Trial, ...]
    seconds: float
    clock: float
    most: int


class TrialResult(NamedTuple):
    """What the tests say of a bug.

    Attributes:
        failing: Tests that fail because of it.
        error: Why they say nothing.
        observed: Failing test -> what it shows; see `guests/observe.py`.
        seconds: CPU time of the tests.
        clock: Time by the clock.
        cost: CPU time of the tests, with an equal part of what else the sandboxes took; None if they do not tell.
    """

    failing: tuple[str, ...] = ()
    error: str = ""
    observed: Mapping[str, Mapping[str, str]] = {}
    seconds: float = 0.0
    clock: float = 0.0
    cost: float | None = None


def make_bug(project: Project, mutation: Mutation) -> Bug:
    """Return a bug as the draft of a task.

    Raises:
        ValueError: The file is not Python with the bug in it.
    """
    before = project.files[mutation.path]
    after = mutate(before, mutation)
    put, take = _both_ways(project.tree, mutation.path, after)
    number = hashlib.sha256(f"{project.name} {project.version}\n{put}".encode()).hexdigest()[:10]
    oracle = project.base.oracle.model_copy(update={"start_patch": put, "gold_patch": take})
    task_id = f"mutant__{project.name}-{project.version}-{number}"
    fields = {"task_id": task_id, "difficulty": LEVELS[int(number, 16) % len(LEVELS)], "oracle": oracle}
    tests = project.tests_at(mutation.path, mutation.lines)
    trial = Trial(mutation.path, after.decode("latin-1"), tuple(test for test in project.passing if test in tests))
    return Bug(mutation, project.base.model_copy(update=fields), trial)


def run_trials(group: SandboxGroup, order: TrialOrder) -> list[TrialResult]:
    """Run the tests of each trial in a sandbox without a change. After one that loses or changes it comes a fresh one.

    Raises:
        SandboxError: A sandbox failed twice.
    """
    found: list[TrialResult] = []
    size = len(order.trials)
    while len(found) < len(order.trials):
        part = order.trials[len(found) : len(found) + size]
        try:
            with group.fresh() as sandbox:
                fields = [trial._asdict() for trial in part]
                limits = {"seconds": order.seconds, "clock": order.clock, "most": order.most, "show": WATCHED}
                told = {"bugs": fields, **limits}
                timeout = BUILD_TIMEOUT + len(part) * 2 * order.clock  # each has its own limit
                lines = _observe(sandbox, group.task.eval_cmd, told, timeout)
        except SandboxLost:
            lines = []
        if not lines and size == 1:
            lines = [{"error": "lost"}]
        found += [_read_result(trial, line) for trial, line in zip(part, lines, strict=False)]
        size = size if lines else 1
    return found


def _read_result(trial: Trial, line: Mapping[str, Any]) -> TrialResult:
    failing = {*line.get("failing", ())}
    ordered = tuple(test for test in trial.tests if test in failing)
    times = line.get("seconds", 0.0), line.get("clock", 0.0)
    return TrialResult(ordered, ERRORS.get(line.get("error", ""), ""), line.get("shown", {}), *times)


class _TrialWork(NamedTuple):
    """Trials as data."""

    base: Task
    order: TrialOrder
    backend: str

    def make(self, link: DriverLink) -> "_Trials":  # noqa: ARG002  it sends only its result
        """Make the trials on a node."""
        return _Trials(self, 0, 1)


class _Trials(OutcomeJob[int | str, Sequence[TrialResult]]):
    """The trials of some bugs, with their costs."""

    def __init__(self, work: _TrialWork, key: int | str, number: int) -> None:
        super().__init__(key, number)
        self._work = work
        self._open = self._group = MeteredGroup(work.base, work.backend, {})

    def run(self) -> None:
        """Run the tests."""
        with self._group as group:
            found = run_trials(group, self._work.order)
        used = self._group.used
        rest = None if used is None else max(0.0, used - sum(one.seconds for one in found)) / len(found)
        self.outcome = [one._replace(cost=add_seconds(one.seconds, rest)) for one in found]

    def work(self) -> _TrialWork:
        """Return the trials as data."""
        return self._work


# --- the task -----------------------------------------------------------------------------------------------------


def make_task(project: Project, bug: Bug, found: TrialResult) -> Task:
    """Return the task of a bug: without the tests that find it, and with an issue.

    Raises:
        TaskError: A test that fails cannot be taken out.
    """
    oracle = bug.task.oracle
    hide, show = _hide(project, found.failing)
    broken = set(found.failing)
    issue = write_issue(project, bug.mutation, found, bug.task.difficulty)
    return bug.task.model_copy(
        update={
            "problem_statement": issue,
            "difficulty": "easy" if issue.startswith("The bug is in") else bug.task.difficulty,
            "metadata": {"project": project.name, "version": project.version},
            "oracle": oracle.model_copy(
                update={
                    "start_patch": oracle.start_patch + hide,
                    "test_patch": show,
                    "fail_to_pass": found.failing,
                    "pass_to_pass": tuple(test for test in project.passing if test not in broken),
                }
            ),
        }
    )


def _hide(project: Project, tests: Iterable[str]) -> tuple[str, str]:
    """Return two diffs: one takes the functions of tests out of their files, the other puts them back."""
    hide, show = "", ""
    for path, after in hide_tests(project, tests).items():
        there, back = _both_ways(project.tree, path, after)
        hide, show = hide + there, show + back
    return hide, show


def hide_tests(project: Project, tests: Iterable[str]) -> dict[str, bytes]:
    """Return the files of tests without the functions of these tests: path -> content.

    Raises:
        TaskError: One cannot be taken out.
    """
    files = _list_regular(project.tree)
    functions: dict[str, set[tuple[str, ...]]] = {}
    for test in tests:
        path, names = _find_function(files, test)
        if not path:
            raise TaskError(f"the file of the test {test} is not known, so that it cannot be hidden")
        if names[-1] in project.mentioned:
            raise TaskError(f"other tests use {names[-1]}, so that it cannot be hidden")
        functions.setdefault(path, set()).add(names)
    return {
        path: take_out(path, (project.tree / path).read_bytes(), hidden) for path, hidden in sorted(functions.items())
    }


def _list_regular(tree: Path) -> list[str]:
    return [path for path in list_files(tree) if not (tree / path).is_symlink()]


def _find_function(files: Iterable[str], test: str) -> tuple[str, tuple[str, ...]]:
    """Return the file of a test and the names of its function there; no file if it is not known."""
    found = parse_id(test)
    paths = [path for path in files if found.path and f"/{path}".endswith(f"/{found.path}")]
    return (paths[0] if len(paths) == 1 and found.names else ""), found.names


def _both_ways(tree: Path, path: str, after: bytes) -> tuple[str, str]:
    """Return the diff from a file of a project to another content, and the one back."""
    mode, before = read_state(tree / path)
    return file_diff(path, before, after, mode, mode), file_diff(path, after, before, mode, mode)


def take_out(path: str, data: bytes, hidden: Iterable[tuple[str, ...]]) -> bytes:
    """Return a test file without some functions.

    Raises:
        TaskError: One is not a function of the file alone on its lines, or there are two of its name.
    """
    source = read_source(path, data)
    blocks = [block for node in source.walk(source.tree) if isinstance(block := getattr(node, "body", None), list)]
    places = {names: source.find(names) for names in hidden}
    if lost := ["::".join(names) for names, place in places.items() if place is None]:
        raise TaskError(f"{path} does not hold {', '.join(lost)} as functions, so that they cannot be hidden")
    gone = {place: source.function(place) for place in places.values() if place}
    named = [node.name for node in source.walk(source.tree) if isinstance(node, Function)]
    edits: list[TextEdit] = []
    for place, function in gone.items():
        if named.count(place[-1]) > sum(one[-1] == place[-1] for one in source.functions):
            raise TaskError(f"{path} defines {place[-1]} twice, so that it cannot be hidden")
        first = min((function, *function.decorator_list), key=lambda node: node.lineno)
        pad, start = source.before(first), source.span(first)[0]
        if pad.strip(" \t@") or source.after(function).strip()[:1] not in ("", "#"):
            raise TaskError(f"{path}: {place[-1]} is not alone on its lines, so that it cannot be hidden")
        (block,) = (block for block in blocks if function in block)
        empty = all(node in gone.values() for node in block)
        begin = start - len(pad.encode())
        text = f"{pad.rstrip('@ ')}pass\n" if empty and function is block[0] else ""
        edits.append(TextEdit(begin, source.span(function)[1] + len(source.after(function).encode()), text))
    return source.apply_edits(edits)


def read_source(path: str, data: bytes) -> Source:
    """Parse a file of a project.

    Raises:
        TaskError: It is not Python.
    """
    try:
        return Source(data)
    except ValueError as error:
        raise TaskError(f"{path} cannot be read: {error}") from error


def _find_mentioned(tree: Path, layout: TestLayout) -> set[str]:
    """Return the names that test files read: as variables, as attributes, and in imports."""
    found: set[str] = set()
    for path in list_files(tree):
        if path in layout and path.endswith(".py") and not (tree / path).is_symlink():
            with contextlib.suppress(TaskError):
                for node in ast.walk(read_source(path, (tree / path).read_bytes()).tree):
                    names = [getattr(node, "id", ""), getattr(node, "attr", "")]
                    found.update(names, (one.name for one in getattr(node, "names", ()) if isinstance(one, ast.alias)))
    return found


# --- the issue ----------------------------------------------------------------------------------------------------


def write_issue(project: Project, mutation: Mutation, found: TrialResult, level: str) -> str:
    """Return the issue of a bug. It names no file, line or test; a hard one does not name the function either."""
    tests = [parse_id(test) for test in found.failing]
    secrets = {posixpath.basename(path) for path in (mutation.path, *(test.path for test in tests))}
    secrets |= {name for test in tests for name in test.names}
    if level == "hard":
        secrets.add(mutation.names[-1])
    parts = [_symptom(project, found, secrets)]
    if level == "easy" or not parts[0]:
        parts.append(_document(project, mutation, secrets))
    hidden = (
        f"{quantify(len(found.failing), 'hidden test')} {'fails' if len(found.failing) == 1 else 'fail'} because of it."
    )
    return "\n\n".join([*filter(None, parts), f"Fix the bug: {hidden} The tests that you can see are correct."]) + "\n"


def _symptom(project: Project, found: TrialResult, secrets: Collection[str]) -> str:
    """Return what goes wrong, as code and its result, or as the error alone; empty if no test shows it."""
    for notes in found.observed.values():
        shown = notes.get("given", "") + notes.get(
            "expected", ""
        )  # a result with another name in each run shows nothing
        if "code" in notes and not TEMPORARY.search(shown) and not _tells(notes, secrets):
            return _show(project.name, notes)
    for notes in found.observed.values():
        said = strip_temporary(notes.get("message", ""))
        if notes.get("error", "Failed") not in UNTELLING and " at 0x" not in said and not _tells(notes, secrets):
            text = f"{notes['error']}: {said}" if said else notes["error"]
            return f"Something in {project.name} that used to work fails:\n\n```\n{text}\n```"
    return ""


def strip_temporary(message: str) -> str:
    """Return a message with paths relative to a test's temporary folder, whose name is another one in each run."""
    return TEMPORARY.sub(lambda found: "" if found[1] else "/tmp", message)


def _tells(notes: Mapping[str, str], secrets: Collection[str]) -> bool:
    text = "\n".join(notes.values())
    return any(re.search(rf"(?<!\w){re.escape(secret)}(?!\w)", text) for secret in secrets)


def _show(name: str, notes: Mapping[str, str]) -> str:
    parts = [f"{name} has a bug. This code", f"```python\n{notes['code']}\n```"]
    if "expected" not in notes:
        return "\n\n".join([*parts, "fails with", f"```\n{notes['given']}\n```"])
    parts += ["gives", f"```\n{notes['given']}\n```"]
    if notes["expected"].startswith("a "):
        return "\n\n".join([*parts, f"It should give {notes['expected']}."])
    return "\n\n".join([*parts, "It should give", f"```\n{notes['expected']}\n```"])


def _document(project: Project, mutation: Mutation, secrets: Collection[str]) -> str:
    """Return which function the bug is in, and what its documentation says."""
    function = Source(project.files[mutation.path]).function(mutation.names)
    text = f"The bug is in `{'.'.join(mutation.names)}` of {project.name}."
    first = (ast.get_docstring(function) or "").split("\n\n")[0]
    return f"{text} Its documentation says:\n\n> {first}" if first and not _tells({"": first}, secrets) else text


# --- many ---------------------------------------------------------------------------------------------------------


def make_mutants(
    name: str,
    version: str,
    *,
    tests: str = "",
    count: int = 100,
    seed: int = 0,
    times: int = 1,
    workers: int = 2,
    record: str = "",
    date: str = "",
    executor: str = "threads",
    known: Iterable[Task] = (),
    build: BuildOptions = DEFAULTS,
) -> Iterator[Task]:
    """Yield validated tasks of a project, those known first. No two have the same function and the same failing tests.

    Args:
        name: Package on the index or, with `tests`, a git repository on this machine.
        version: Release, or commit.
        tests: Command that runs a repository's tests. It calls `python -m pytest` or `python -m unittest` once.
        count: Number of tasks.
        seed: Equal seeds make equal tasks.
        times: Validations of each task.
        workers: Tasks at once.
        record: JSONL file of the validations. Bugs that it knows to be unfit are not tried again.
        date: Date for the records.
        executor: Where the sandboxes are, as in `validate`.
        known: Tasks of an earlier call with the same seed. They are neither made nor validated again.
        build: Python, requirements, time limit, progress of the project's own tests, and their runs without a bug.

    Raises:
        UsageError: The repository does not exist, or a number is less than 1.
        TaskError: The release or commit is missing or has no tests, or none of them passes.
        MissingInterpreter: That version of Python is not installed.
        SandboxError: The index failed, or sandboxes do not start.
    """
    if min(count, times, workers) < 1:
        raise UsageError(f"count, times and workers must be at least 1: {count=}, {times=}, {workers=}")
    project = open_commit(name, tests, version, build) if tests else open_release(name, version, build)
    return make_tasks(project, MutantOptions(count, seed, times, workers, record, date, executor), known, build)


def make_tasks(
    project: Project, options: MutantOptions, known: Iterable[Task] = (), build: BuildOptions = DEFAULTS
) -> Iterator[Task]:
    """Yield validated tasks of a project; see `make_mutants`."""
    line = _Line(project, options, {task.task_id: task for task in known}, build)
    with (
        open_executor(options.executor, workers=options.workers) as place,
        EpisodePool(line.make_job, workers=options.workers, retries=NODE_RETRIES, executor=place) as pool,
    ):
        jobs = pool.run(())
        while True:
            pool.add(line.draw_work())
            yield from line.take_ready()
            if line.is_done:
                return
            job = next(jobs)
            if job.lost is None:
                line.take(job)
            elif not pool.retry(job):
                raise job.lost


class _Batch(NamedTuple):
    """Bugs that are tried in one sandbox.

    Attributes:
        bugs: The bugs, also those that are known.
        new: Those that are tried.
    """

    bugs: Sequence[Bug]
    new: Sequence[Bug]


class _Line:
    """The bugs of a project on their way to tasks: tried, then validated as any task is.

    Bugs are drawn, and tasks come out, in one order, whatever ends first.
    """

    def __init__(self, project: Project, options: MutantOptions, old: Mapping[str, Task], build: BuildOptions) -> None:
        self._project, self._options, self._build, self._old = project, options, build, old
        self._drawn = draw_bugs(project, options.seed)
        self._records = {one.task_id: one for one in read_records(options.record)} if options.record else {}
        self._batches: list[_Batch] = []
        self._results: dict[int, Sequence[TrialResult]] = {}
        self._judged = 0
        self._places = {place for task in old.values() for place in find_places(project, task)}
        self._tasks: dict[str, Task] = {}
        self._waiting: dict[str, bool | None] = {}  # id of a task that has not come out -> whether it is valid
        self._checks: deque[str] = deque()
        self._costs: dict[str, float | None] = {}  # id of a task -> CPU time of its trial
        self._running = self._made = 0
        self._settings = CheckSettings(_Drafts(self._tasks), build.backend, {}, options.times, options.date, "few")

    @property
    def is_done(self) -> bool:
        """Whether no more tasks come out."""
        return self._made == self._options.count or not self._running

    @property
    def _hoped(self) -> int:
        """Number of tasks that have not come out, and may be valid."""
        return sum(valid is not False for valid in self._waiting.values())

    def make_job(self, key: int | str, number: int) -> "_Trials | TaskCheck":
        """Make the job for the number of a batch, or for the id of a task."""
        if isinstance(key, str):
            return TaskCheck(self._settings, key, number)
        trials = tuple(bug.trial for bug in self._batches[key].new)
        order = TrialOrder(trials, self._project.seconds, self._project.clock, self._project.most)
        return _Trials(_TrialWork(self._project.base, order, self._build.backend), key, number)

    def draw_work(self) -> Iterator[int | str]:
        """Yield keys of jobs until twice as many are under way as there are workers; tasks before bugs."""
        while self._running < 2 * self._options.workers:
            if self._checks:
                self._running += 1
                yield self._checks.popleft()
            elif self._made + self._hoped >= self._options.count or not self._draw_batch():
                return
            elif self._batches[-1].new:
                self._running += 1
                yield len(self._batches) - 1
            else:
                self._results[len(self._batches) - 1] = ()
                self._judge_batches()

    def take(self, job: "_Trials | TaskCheck") -> None:
        """Take what a job has found."""
        self._running -= 1
        if isinstance(job, TaskCheck):
            self._settle(job.key, job.outcome)
        else:
            self._results[int(job.key)] = job.outcome
            self._judge_batches()
        self._build.progress(f"{self._made} of {self._options.count} tasks, {self._judged * BATCH} bugs tried")

    def take_ready(self) -> Iterator[Task]:
        """Yield the valid tasks before which no other is undecided."""
        while self._waiting and self._made < self._options.count:
            task_id, valid = next(iter(self._waiting.items()))
            if valid is None:
                return
            del self._waiting[task_id]
            if valid:
                self._made += 1
                yield self._tasks[task_id]

    def _draw_batch(self) -> bool:
        """Draw the bugs of the next batch. Return False if there are none left."""
        bugs = [*islice(self._drawn, BATCH)]
        new = [bug for bug in bugs if bug.task.task_id not in self._old and not self._is_unfit(bug)]
        self._batches.append(_Batch(bugs, new))
        return bool(bugs)

    def _is_unfit(self, bug: Bug) -> bool:
        record = self._records.get(bug.task.task_id)
        return record is not None and record.status == "invalid" and record.digest == digest(bug.task)

    def _judge_batches(self) -> None:
        """Make tasks of the bugs whose trials have ended, in order."""
        while self._judged in self._results:
            batch = self._batches[self._judged]
            found = {bug.task.task_id: one for bug, one in zip(batch.new, self._results[self._judged], strict=True)}
            self._judged += 1
            self._costs |= {task_id: one.cost for task_id, one in found.items()}
            for bug in batch.bugs:
                task_id = bug.task.task_id
                task = self._old.get(task_id) or (self._make(bug, found[task_id]) if task_id in found else None)
                if task is not None:
                    self._places.add((bug.mutation.path, bug.mutation.names, task.oracle.fail_to_pass))
                    self._tasks[task_id] = task
                    self._begin(task_id)

    def _make(self, bug: Bug, found: TrialResult) -> Task | None:
        """Return the task of a bug. None if it is unfit, which is recorded."""
        try:
            if found.error or not found.failing:
                raise TaskError(found.error or "no test finds the bug")
            if (bug.mutation.path, bug.mutation.names, found.failing) in self._places:
                raise TaskError("the same tests find another bug of the same function")
            return make_task(self._project, bug, found)
        except TaskError as error:
            self._record(self._record_of(bug.task, str(error)))
        return None

    def _begin(self, task_id: str) -> None:
        """Have a task validated, unless it is known."""
        self._waiting[task_id] = None
        record = self._records.get(task_id)
        if task_id in self._old:
            self._waiting[task_id] = True
        elif record is not None and self._settings.still_holds(record):
            self._waiting[task_id] = record.status == "valid" and not why_unfit(record)
        else:
            self._checks.append(task_id)

    def _settle(self, task_id: str, record: TaskRecord) -> None:
        """Take the validation of a task."""
        if record.status == "valid" and (reason := why_unfit(record)):
            record = record.model_copy(update={"status": "invalid", "reason": reason})
        self._record(record)
        self._waiting[task_id] = record.status == "valid"

    def _record_of(self, task: Task, reason: str) -> TaskRecord:
        return TaskRecord(
            task_id=task.task_id,
            status="invalid",
            reason=reason,
            **self._settings.facts,
            digest=digest(task),
            date=self._options.date,
            cpu_seconds=0.0,
        )

    def _record(self, record: TaskRecord) -> None:
        used = add_seconds(record.cpu_seconds, self._costs.get(record.task_id, 0.0))
        record = record.model_copy(update={"cpu_seconds": used})
        if self._options.record:
            append_lines(self._options.record, json.dumps(record.model_dump(mode="json")))


def why_unfit(record: TaskRecord) -> str:
    """Return why a valid task of a bug is none; empty if it is one.

    Hidden tests must fail with the bug, or they have nothing to do with it; others must pass: a policy could see it.
    """
    if record.broken:
        return f"{record.broken[0]} fails too, and is not hidden; in all, {quantify(len(record.broken), 'such test')}"
    return next((f"{test} is hidden and passes with the bug" for test in record.wrong), "")


Place: TypeAlias = tuple[str, tuple[str, ...], tuple[str, ...]]
"""File and function of a bug, and the tests that find it."""


def find_places(project: Project, task: Task) -> Iterator[Place]:
    """Yield the file and function of a task's bug with its hidden tests. Nothing if it is of another project."""
    if task.metadata != {"project": project.name, "version": project.version}:
        return
    for section in split_sections(task.oracle.gold_patch):
        if (data := project.files.get(section.path)) is not None:
            lines = section.added_lines()
            for names, node in Source(data).functions.items():
                if lines & {*range(node.lineno, (node.end_lineno or 0) + 1)}:
                    yield section.path, names, task.oracle.fail_to_pass


def draw_bugs(project: Project, seed: int) -> Iterator[Bug]:
    """Yield bugs that tests may find, first those for which all these tests can be hidden and are not too many."""
    some, many = list[Mutation](), list[Mutation]()
    shown = _find_shown(project)
    for mutation in find_mutations(project.files, lambda path, one: bool(project.tests_at(path, first_lines(one)))):
        if tests := project.tests_at(mutation.path, mutation.lines):
            (many if len(tests) > project.most or not shown.isdisjoint(tests) else some).append(mutation)
    seen: set[str] = set()
    drawn = (draw_mutations(found, seed, seldom=SELDOM_FOUND) for found in (some, many))
    for mutation in chain.from_iterable(map(spread_mutations, drawn)):
        try:
            bug = make_bug(project, mutation)
        except ValueError:
            continue
        if bug.task.task_id not in seen:
            seen.add(bug.task.task_id)
            yield bug


def _find_shown(project: Project) -> set[str]:
    """Return the tests that cannot be hidden: not functions of their own files, or named elsewhere."""
    files, shown = _list_regular(project.tree), set[str]()
    sources: dict[str, Source | None] = {"": None}
    for test in project.forkable:
        path, names = _find_function(files, test)
        if path not in sources:
            with contextlib.suppress(TaskError):
                sources[path] = read_source(path, (project.tree / path).read_bytes())
        source = sources.setdefault(path, None)
        if source is None or source.find(names) is None or names[-1] in project.mentioned:
            shown.add(test)
    return shown


class _Drafts(NamedTuple):
    """Tasks that are not validated, as a source."""

    tasks: Mapping[str, Task]

    def ids(self) -> Sequence[str]:
        """Return the ids of the tasks."""
        return list(self.tasks)

    def get(self, task_id: str) -> Task:
        """Return a task."""
        if task_id not in self.tasks:  # the record file knows others
            raise UsageError(f"unknown task {task_id}")
        return self.tasks[task_id]
