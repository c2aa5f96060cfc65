"""Tasks in any number from one state of a project, each with a bug that its tests find.

The policy starts from the project with the bug. The tests that fail by it are hidden: they are taken out of the state
that the policy sees. Nobody writes the issue: it says what a call gives, what it should give, and what is documented.
"""

import ast
import contextlib
import dataclasses
import hashlib
import json
import math
import posixpath
import re
import shlex
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from packaging.utils import canonicalize_name

from ..envs import SandboxGroup
from ..errors import FileError, GradingError, SandboxLost, TaskError, UsageError, quantify
from ..files import append_lines
from ..grading import STEADY_ENV, file_diff, find_statuses, parse_id, read_state
from ..grading.counter import Source, TextEdit
from ..guests import bundle
from ..rollout import DriverLink, EpisodePool, Job
from ..rollout.executors import open_executor
from ..sandboxes import Sandbox
from ..sandboxes.contents import prepare_workspace
from ..tasks import TaskRecord, digest, read_records
from ..types import GitWorkspace, JsonObject, Oracle, PythonEnv, Task, TestCommand, TestStatus
from .mutation import Function, Mutation, draw_mutations, find_mutations, mutate
from .new_task import (
    BUILD_TIMEOUT,
    DEFAULTS,
    PYTEST,
    BuildOptions,
    Statuses,
    find_release,
    pin_environment,
    pin_release,
    read_project,
    refuse_copied,
    resolve_commit,
    run_tests,
)
from .releases import OUTSIDE, TestLayout, find_source_root, find_tests, list_files
from .validation import NODE_RETRIES, validate

LEVELS = ("easy", "medium", "hard")
"""Difficulties. An easy issue names the function and quotes its documentation, a medium one shows code that goes wrong,
a hard one shows only what does not name the function. If no test shows the bug without itself, the issue is easy."""

MOST_BROKEN = 0.5
"""Share of the tests that a bug may break. Larger ones are found at once."""

UNTELLING = ("AssertionError", "Failed", "NotImplementedError")
"""Errors that say nothing of a bug without the code that raises them."""

WATCHED = 4
"""Failing tests that are asked for something to show."""

BATCH = 4
"""Bugs for each worker that are tried before their tasks are validated."""


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
        called: File -> lines where functions begin that the tests call. None: not known.
        mentioned: Names that the test files read.
    """

    name: str
    version: str
    tree: Path
    layout: TestLayout
    base: Task
    files: Mapping[str, bytes]
    passing: tuple[str, ...]
    called: Mapping[str, Sequence[int]] | None
    mentioned: Collection[str] = ()

    def is_tested(self, path: str, function: Function) -> bool:
        """Whether the tests call a function of a file."""
        if self.called is None:
            return True
        first = min(node.lineno for node in (function, *function.decorator_list))
        return not {first, function.lineno}.isdisjoint(self.called.get(path, ()))


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
    folder = Path(repository).expanduser().absolute()
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}: clone the repository first")
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
    """Run the tests of a project without a bug: which pass always, how long it takes, and what they call."""
    runs: list[Statuses] = []
    started, called = time.monotonic(), None
    with SandboxGroup(base, options.backend, {}) as group:
        for number in range(1, options.runs + 1):
            options.progress(f"running the tests of {name} {version}, {number} of {options.runs}")
            runs.append(run_tests(group, ""))
        seconds = (time.monotonic() - started) / options.runs
        passing = [test for test in runs[0] if all(run.get(test) is TestStatus.PASSED for run in runs)]
        if not passing:
            raise TaskError(
                f"no test of {name} {version} passes in each of {options.runs} runs, of {len(runs[0])} tests. "
                "The package itself is not installed: code that looks up its own version fails"
            )
        options.progress("looking for the functions that the tests call")
        with group.fresh() as sandbox:
            called = _observe(sandbox, "functions", base.eval_cmd, None, options.test_timeout)
        if not called:
            options.progress("it is not known which functions the tests call: trying all")
    limit = min(options.test_timeout, 20.0 * 2 ** max(0, math.ceil(math.log2(seconds / 2))))  # a bug may never end
    oracle = base.oracle.model_copy(update={"timeout": limit})
    files = {
        path: (tree / path).read_bytes()
        for path in list_files(tree)
        if path.endswith(".py") and path not in layout and path not in OUTSIDE
    }
    base = base.model_copy(update={"oracle": oracle})
    mentioned = _find_mentioned(tree, layout)
    return Project(name, version, tree, layout, base, files, tuple(passing), called, mentioned)


def _observe(
    sandbox: Sandbox, what: str, command: str, tests: Sequence[str] | None, timeout: float
) -> JsonObject | None:
    """Run tests in a sandbox, and return what they do; see `guests/observe.py`.

    Args:
        sandbox: The sandbox.
        what: "functions" or "failures".
        command: Command that runs the tests of the project.
        tests: Ids of the tests to run; None runs all.
        timeout: Time limit in seconds.

    Returns:
        None if the command does not only call a test runner, or that fails.
    """
    call = re.fullmatch(r"python3? -m (pytest|unittest)\b(.*)", command.strip(), re.DOTALL)
    if call is None:
        return None
    quiet = ["-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts="] if call[1] == "pytest" else []
    path = f"/tmp/swe-gym-observed-{what}.json"
    words = [*quiet, *(shlex.split(call[2]) if tests is None else tests)]
    try:
        sandbox.exec(["python", "-c", bundle("observe"), what, call[1], path, *words], timeout=timeout)
        found = json.loads(sandbox.read_file(path))
    except (FileError, ValueError):
        return None
    return found if isinstance(found, dict) and found else None


# --- a bug --------------------------------------------------------------------------------------------------------


class Bug(NamedTuple):
    """A bug in a project.

    Attributes:
        mutation: The change.
        task: The project with the bug, and all its tests to see.
    """

    mutation: Mutation
    task: Task


class TrialResult(NamedTuple):
    """What the tests say of a bug.

    Attributes:
        failing: Tests that fail because of it; none if it is unfit.
        reason: Why it is unfit; empty if it is not.
        observed: Failing test -> what it shows; see `guests/observe.py`.
    """

    failing: tuple[str, ...] = ()
    reason: str = ""
    observed: Mapping[str, Mapping[str, str]] = {}


def make_bug(project: Project, mutation: Mutation) -> Bug:
    """Return a bug as the draft of a task.

    Raises:
        ValueError: The file is not Python with the bug in it.
    """
    after = mutate(project.files[mutation.path], mutation)
    put, take = _both_ways(project.tree, mutation.path, after)
    number = hashlib.sha256(f"{project.name} {project.version}\n{put}".encode()).hexdigest()[:10]
    oracle = project.base.oracle.model_copy(update={"start_patch": put, "gold_patch": take})
    task_id = f"mutant__{project.name}-{project.version}-{number}"
    fields = {"task_id": task_id, "difficulty": LEVELS[int(number, 16) % len(LEVELS)], "oracle": oracle}
    return Bug(mutation, project.base.model_copy(update=fields))


def try_bug(task: Task, passing: Collection[str], group: SandboxGroup) -> TrialResult:
    """Run the tests with a bug.

    Raises:
        SandboxError: A sandbox failed.
    """
    with group.fresh() as sandbox:
        try:
            statuses = find_statuses(task, sandbox)
        except GradingError as error:
            return TrialResult(reason=f"the run of the tests does not count: {str(error)[:200]}")
        failing = [test for test in passing if statuses.get(test) is not TestStatus.PASSED]
        if not failing:
            return TrialResult(reason="no test finds the bug")
        if len(failing) > MOST_BROKEN * len(passing):
            return TrialResult(reason=f"{len(failing)} of {len(passing)} tests fail")
        observed = _observe(sandbox, "failures", task.eval_cmd, failing[:WATCHED], 60.0) or {}
    return TrialResult(tuple(failing), "", observed)


class _TrialWork(NamedTuple):
    """The trial of a bug as data."""

    task: Task
    passing: tuple[str, ...]
    backend: str

    def make(self, link: DriverLink) -> "_Trial":  # noqa: ARG002  it sends only its result
        """Make the trial on a node."""
        return _Trial(self, 0)


class _Trial(Job[int]):
    """The trial of a bug.

    Attributes:
        found: The result, once `run` has returned.
    """

    found: TrialResult

    def __init__(self, work: _TrialWork, key: int) -> None:
        super().__init__(key)
        self._work = work
        self._group = SandboxGroup(work.task, work.backend, {})

    @property
    def name(self) -> str:
        """Id of the task."""
        return self._work.task.task_id

    def run(self) -> None:
        """Run the tests. A bug is unfit if its tests lose the sandbox twice; other failures of sandboxes are raised."""
        with self._group as group:
            for _ in range(2):
                try:
                    self.found = try_bug(self._work.task, self._work.passing, group)
                    return
                except SandboxLost as error:
                    self.found = TrialResult(reason=f"its tests lose the sandbox: {error}")

    def work(self) -> _TrialWork:
        """Return the trial as data."""
        return self._work

    def result(self) -> TrialResult:
        """Return what the tests say."""
        return self.found

    def take(self, result: TrialResult) -> None:
        """Store what the tests say."""
        self.found = result

    def close(self) -> None:
        """Close the sandbox."""
        self._group.close()


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
    functions: dict[str, set[tuple[str, ...]]] = {}
    for test in tests:
        found = parse_id(test)
        paths = [path for path in list_files(project.tree) if found.path and f"/{path}".endswith(f"/{found.path}")]
        if len(paths) != 1 or not found.names:
            raise TaskError(f"the file of the test {test} is not known, so that it cannot be hidden")
        if found.names[-1] in project.mentioned:
            raise TaskError(f"other tests use {found.names[-1]}, so that it cannot be hidden")
        functions.setdefault(paths[0], set()).add(found.names)
    hide, show = "", ""
    for path, hidden in sorted(functions.items()):
        after = take_out(path, (project.tree / path).read_bytes(), hidden)
        there, back = _both_ways(project.tree, path, after)
        hide, show = hide + there, show + back
    return hide, show


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
        if path in layout and path.endswith(".py"):
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
        if "code" in notes and not _tells(notes, secrets):
            return _show(project.name, notes)
    for notes in found.observed.values():
        said = notes.get("message", "")
        if notes.get("error", "Failed") not in UNTELLING and " at 0x" not in said and not _tells(notes, secrets):
            return f"Something in {project.name} that used to work fails:\n\n```\n{notes['error']}: {said}\n```"
    return ""


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
    """Yield validated tasks of a project, those known first. No two have the same file and the same failing tests.

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
    old = {task.task_id: task for task in known}
    unfit = {one.digest for one in read_records(options.record) if one.status == "invalid"} if options.record else set()
    drawn = _draw_bugs(project, options.seed)
    seen: set[tuple[str, tuple[str, ...]]] = set()
    made = 0
    while made < options.count and (batch := list(islice(drawn, BATCH * options.workers))):
        bugs = [bug for bug in batch if bug.task.task_id in old or digest(bug.task) not in unfit]
        build.progress(f"{made} of {options.count} tasks")
        fresh = _try(project, [bug for bug in bugs if bug.task.task_id not in old], options, build)
        tasks = {task.task_id: task for task in fresh}
        valid = _validate(tasks, options, build)
        for bug in bugs:
            task = old.get(bug.task.task_id) or tasks.get(bug.task.task_id)
            if task is None or not (task.task_id in old or task.task_id in valid) or made == options.count:
                continue
            place = (bug.mutation.path, task.oracle.fail_to_pass)
            if place not in seen:
                seen.add(place)
                made += 1
                yield task


def _draw_bugs(project: Project, seed: int) -> Iterator[Bug]:
    seen: set[str] = set()
    for mutation in draw_mutations(find_mutations(project.files, project.is_tested), seed):
        try:
            bug = make_bug(project, mutation)
        except ValueError:
            continue
        if bug.task.task_id not in seen:
            seen.add(bug.task.task_id)
            yield bug


def _try(project: Project, bugs: Sequence[Bug], options: MutantOptions, build: BuildOptions) -> Iterator[Task]:
    """Yield the tasks of those bugs that tests find, in order. The others are recorded as unfit."""
    found: dict[int, Task | None] = {}

    def start(key: int, _: int) -> _Trial:
        return _Trial(_TrialWork(bugs[key].task, project.passing, build.backend), key)

    with (
        open_executor(options.executor, workers=options.workers) as place,
        EpisodePool(start, workers=options.workers, retries=NODE_RETRIES, executor=place) as pool,
    ):
        for trial in pool.run(range(len(bugs))):
            if trial.lost is None:
                found[trial.key] = _judge_trial(project, bugs[trial.key], trial.found, options, build)
            elif not pool.retry(trial):
                raise trial.lost
    yield from (task for number in range(len(bugs)) if (task := found[number]) is not None)


def _judge_trial(
    project: Project, bug: Bug, found: TrialResult, options: MutantOptions, build: BuildOptions
) -> Task | None:
    """Return the task of a bug. None if it is unfit, which is recorded."""
    reason = found.reason
    if not reason:
        try:
            return make_task(project, bug, found)
        except TaskError as error:
            reason = str(error)
    if options.record:
        record = TaskRecord(
            task_id=bug.task.task_id,
            status="invalid",
            reason=reason,
            backend=build.backend,
            digest=digest(bug.task),
            date=options.date,
        )
        append_lines(options.record, json.dumps(record.model_dump(mode="json")))
    return None


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


def _validate(tasks: Mapping[str, Task], options: MutantOptions, build: BuildOptions) -> set[str]:
    """Return the ids of the valid ones of some tasks."""
    records = validate(
        _Drafts(tasks),
        backend=build.backend,
        times=options.times,
        workers=options.workers,
        record=options.record or None,
        date=options.date,
        executor=options.executor,
    )
    return {record.task_id for record in records if record.status == "valid"}
