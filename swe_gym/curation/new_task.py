"""New tasks from two states of a project. The older state is to be changed; the newer one shows how.

The states are two releases of a package, or a commit and its parent in a local repository. The tests of the newer state
are the hidden tests, and the rest of the difference is the gold patch. Which tests the change makes pass is measured:
they run before and after it, in sandboxes, several times.
"""

import functools
import hashlib
import itertools
import json
import re
import shlex
import sys
import time
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ..commands import git_environment, git_program, run_command, tail
from ..envs import SandboxGroup
from ..errors import GradingError, MissingInterpreter, TaskError, UsageError
from ..files import append_lines
from ..grading import STEADY_ENV, apply_diff, file_diff, find_statuses, put_tests_in, read_state
from ..index import Sdist, find_sdists
from ..sandboxes.contents import list_installed, prepare_python, prepare_workspace
from ..tasks import TaskRecord, read_records
from ..types import GitWorkspace, Json, JsonObject, Oracle, PythonEnv, SdistWorkspace, Task, TestCommand, TestStatus
from .releases import TestLayout, changes_between, find_source_root, find_tests, list_files, test_requirements
from .validation import OneTask, validate

PYTEST = "python -m pytest -p no:cacheprovider -o addopts= --continue-on-collection-errors"

STATEMENT = """\
The code is {package} {old}. Bring it to what release {new} does. Its changelog says:

{changes}

Only the behaviour of the code counts: version numbers, documentation and the changelog need not follow.
"""

RUNS = 3
"""Test runs in each state, and validations of each patch."""

BUILD_TIMEOUT = 1800.0
"""Seconds that a download, or the installation of requirements, may take."""

_GIT_TIMEOUT = 60.0

IN_EVERY_ENVIRONMENT = (
    "cachecontrol certifi chardet colorama dependency-groups distlib distro idna msgpack packaging pip pkg-resources "
    "platformdirs pygments pyparsing pyproject-hooks requests resolvelib rich setuptools six tenacity tomli tomli-w "
    "truststore typing-extensions urllib3 webencodings"
).split()
"""Packages of which pip brings a copy."""

Statuses = Mapping[str, TestStatus]
"""Result of one test run: full test id -> status."""


@dataclass(frozen=True)
class TestLists:
    """The tests that judge a task.

    Attributes:
        fail_to_pass: Tests that a solution makes pass.
        pass_to_pass: Tests that must keep passing.
        dropped: Test that ran but judges nothing -> the reason.
    """

    __test__ = False  # keeps pytest from collecting it

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    dropped: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BuildOptions:
    """How a task is built.

    Attributes:
        statement: Problem statement; by default the changelog's or the commit's text.
        python: Python version, such as "3.9"; empty is the Python that runs swe_gym.
        requirements: Requirements of the tests that the project itself does not name.
        runs: Test runs in each state. A test that ends differently in two runs is dropped.
        test_timeout: Time limit of a test run in seconds.
        backend: Sandbox backend of the test runs.
        progress: Called with one line of text as each step starts.
        on_lists: Called with the measured lists. The task does not hold the dropped tests: a policy may know its
            `metadata`.

    Raises:
        UsageError: `runs` is less than 1.
    """

    statement: str = ""
    python: str = ""
    requirements: Sequence[str] = ()
    runs: int = RUNS
    test_timeout: float = 300.0
    backend: str = "local"
    progress: Callable[[str], None] = lambda _: None
    on_lists: Callable[[TestLists], None] = lambda _: None

    def __post_init__(self) -> None:
        if self.runs < 1:
            raise UsageError(f"runs must be at least 1: {self.runs}")


DEFAULTS = BuildOptions()


class _NoTask(TaskError):
    """A change makes no task, however often it is tried. Other errors may be those of this machine or of the user."""


@dataclass(frozen=True)
class _Change:
    """The difference between two states, and where they lie on disk."""

    before: SdistWorkspace | GitWorkspace
    old_tree: Path
    new_tree: Path
    layout: TestLayout
    gold_patch: str
    test_patch: str


def build_release_task(package: str, old: str, new: str, options: BuildOptions = DEFAULTS) -> Task:
    """Make a task from two releases of a package. Release `old` is the start; the changes up to `new` solve it.

    Args:
        package: Name of the project on the package index.
        old: Version to start from.
        new: Version whose tests judge the work.
        options: How the task is built.

    Returns:
        A task that needs only the package index. Validate it before use.

    Raises:
        UsageError: `old` is not older than `new`.
        TaskError: A release is missing, it has no tests or no changelog, the change makes no test pass, or pip brings
            a copy of the package.
        MissingInterpreter: That version of Python is not installed.
        SandboxError: The index or a sandbox failed.
    """
    _require_older(package, old, new)
    refuse_copied(package)
    options.progress(f"looking for the source releases of {package} {old} and {new}")
    sdists = find_sdists(package, timeout=BUILD_TIMEOUT)
    return _build_release(package, _workspace(package, old, sdists), _workspace(package, new, sdists), options)


def _build_release(package: str, before: SdistWorkspace, after: SdistWorkspace, options: BuildOptions) -> Task:
    change, old, new = _compare(before, after), before.version, after.version
    if not change.gold_patch:
        raise _NoTask(f"{package} {old} and {new} differ only in their tests: choose other releases")
    statement = options.statement or _statement(package, old, new, change.new_tree)
    options.progress("installing the requirements of the code and its tests")
    return _measure(
        change,
        options,
        package=package,
        task_id=_release_id(package, new),
        problem_statement=statement,
        repo=canonicalize_name(package),
        python=pin_release(package, old, change.new_tree, options),
        test_cmd=f"{PYTEST} {shlex.join(change.layout.targets)}",
        eval_cmd=_visible_tests(change.old_tree),
        tags=("pypi",),
        metadata={"package": package, "old": old, "new": new},
    )


def build_commit_task(repository: str, tests: str, commit: str = "HEAD", options: BuildOptions = DEFAULTS) -> Task:
    """Make a task from a commit. Its parent is the start, and the tests that it changes are hidden.

    Args:
        repository: A git repository on this machine.
        tests: Command that runs the tests. It calls `python -m pytest` or `python -m unittest` once.
        commit: A commit that changes tests and other files.
        options: How the task is built.

    Returns:
        A task whose workspace is the repository at the parent commit. Validate it before use.

    Raises:
        UsageError: The repository does not exist.
        TaskError: The commit is missing, has no parent, changes no tests or only tests, makes no test pass, or pip
            brings a copy of the package.
        MissingInterpreter: That version of Python is not installed.
        SandboxError: The index or a sandbox failed.
    """
    folder = open_repository(repository)
    options.progress("comparing the commit with its parent")
    new, old = _commit_and_parent(folder, commit)
    change = _compare(GitWorkspace(url=str(folder), ref=old), GitWorkspace(url=str(folder), ref=new))
    refuse_copied(read_project(change.new_tree).get("name", folder.name))
    if not change.gold_patch or not change.test_patch:
        what = "no tests" if change.gold_patch else "nothing but tests"
        raise _NoTask(f"commit {new} of {folder} changes {what}: choose another commit")
    options.progress("installing the requirements of the code and its tests")
    return _measure(
        change,
        options,
        package=folder.name,
        task_id=_commit_id(folder, new),
        problem_statement=options.statement or _ask_git(folder, "log", "-1", "--format=%B", new),
        repo=folder.name,
        python=pin_environment(change.new_tree, tests, options),
        test_cmd=tests,
        eval_cmd=tests,
        tags=("git",),
        metadata={"commit": old},
    )


class Changes(NamedTuple):
    """Changes of a project that may make a task each.

    Attributes:
        tests: Command that runs the tests; empty for pytest.
        builds: Id of a task -> what builds it.
    """

    tests: str
    builds: Mapping[str, Callable[[BuildOptions], Task]]


def find_commits(repository: str, tests: str, commits: str) -> Changes:
    """Return the commits of a range, oldest first, without merges.

    Args:
        repository: A git repository on this machine.
        tests: Command that runs the tests; see `build_commit_task`.
        commits: The range, as git takes it, such as "v1.0..HEAD".

    Raises:
        UsageError: The repository does not exist.
        TaskError: A commit of the range is missing, or the range is empty.
    """
    folder = open_repository(repository)
    found = _ask_git(folder, "rev-list", "--reverse", "--no-merges", "--end-of-options", commits, "--").split()
    if not found:
        raise TaskError(f"there is no commit in {commits} of {folder}")

    def build(commit: str, options: BuildOptions) -> Task:
        _check_files(folder, commit)
        return build_commit_task(repository, tests, commit, options)

    return Changes(tests, {_commit_id(folder, commit): functools.partial(build, commit) for commit in found})


def find_releases(package: str, first: str) -> Changes:
    """Return the pairs of neighbouring releases of a package, oldest first.

    Args:
        package: Name of the project on the package index.
        first: Version from which on releases count. Yanked ones, and versions before a final one, such as 1.2.0rc1, do
            not.

    Raises:
        UsageError: `first` is not a version.
        TaskError: The index has no two such releases, or pip brings a copy of the package.
        SandboxError: The index failed.
    """
    refuse_copied(package)
    least = _read_version(package, first)
    sdists = [one for one in find_sdists(package, timeout=BUILD_TIMEOUT) if one.sha256 and not one.yanked]
    versions = [one for one in dict.fromkeys(one.version for one in sdists) if one >= least and not one.is_prerelease]
    if len(versions) < 2:
        raise TaskError(f"the index has no two source releases of {package} from {first} on: name an older one")
    releases = [_workspace(package, str(version), sdists) for version in versions]
    builds = {
        _release_id(package, new.version): functools.partial(_build_release, package, old, new)
        for old, new in itertools.pairwise(releases)
    }
    return Changes("", builds)


def make_change_tasks(
    changes: Changes,
    record: str,
    options: BuildOptions = DEFAULTS,
    *,
    times: int = RUNS,
    date: str = "",
    known: Collection[str] = (),
    on_record: Callable[[TaskRecord], None] = lambda _: None,
) -> Iterator[Task]:
    """Yield a validated task of each change that makes one.

    Args:
        changes: The changes, of `find_commits` or `find_releases`.
        record: JSONL file of the validations, and of the reasons why other changes make no task. Changes with the
            status "invalid" are not tried again with the same tests, Python, requirements and numbers of runs. The
            digest of such a record is that of these.
        options: How each task is built.
        times: Validations of each task.
        date: Date for the records.
        known: Ids of tasks that an earlier call has made.
        on_record: Called with the record of each change that is not known, old ones too.

    Raises:
        MissingInterpreter: That version of Python is not installed.
        SandboxError: The index or a sandbox failed.
    """
    asked = _digest(changes.tests, options, times)
    done = {one.task_id: one for one in read_records(record) if one.status == "invalid" and one.digest == asked}
    for number, (task_id, build) in enumerate(changes.builds.items(), 1):
        if task_id in known:
            continue
        options.progress(f"{number} of {len(changes.builds)}: {task_id}")
        result, task = done.get(task_id), None
        if result is None:
            try:
                task = build(options)
            except MissingInterpreter:
                raise
            except (TaskError, GradingError) as error:
                result = TaskRecord(
                    task_id=task_id,
                    status="invalid" if isinstance(error, _NoTask) else "error",
                    reason=str(error),
                    backend=options.backend,
                    digest=asked,
                    date=date,
                )
                append_lines(record, json.dumps(result.model_dump(mode="json")))
            else:
                (result,) = validate(OneTask(task, None), times=times, workers=1, record=record, date=date)
                if result.status == "invalid":
                    result = result.model_copy(update={"digest": asked})
                    append_lines(record, json.dumps(result.model_dump(mode="json")))
        on_record(result)
        if task is not None and result.status == "valid":
            yield task


def _digest(tests: str, options: BuildOptions, times: int) -> str:
    """Return a digest of what decides, beside a commit, whether it makes a task."""
    python = options.python or "{}.{}.{}".format(*sys.version_info)
    asked = (tests, python, *options.requirements, options.runs, times, options.test_timeout, options.backend)
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


def _check_files(folder: Path, commit: str) -> None:
    """Reject a commit by the names of its files, before anything is checked out and installed."""
    names = _ask_git(folder, "ls-tree", "-r", "-z", "--name-only", commit).split("\0")
    changed = _ask_git(folder, "show", "-z", "--name-only", "--format=", commit).split("\0")
    layout = _find_tests([*filter(None, names)])
    tests = [name for name in changed if name in layout]
    code = [name for name in changed if name.endswith(".py") and name not in layout]
    if not tests or not code:
        raise _NoTask(f"commit {commit} of {folder} changes no {'Python code' if tests else 'tests'}")


def _find_tests(files: Sequence[str]) -> TestLayout:
    try:
        return find_tests(files)
    except TaskError as error:
        raise _NoTask(str(error)) from error


def open_repository(path: str) -> Path:
    """Return the folder of a repository.

    Raises:
        UsageError: It does not exist, or is a folder within a repository.
        TaskError: It is no repository.
    """
    folder = Path(path).expanduser().absolute()
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}: clone the repository first")
    if inner := _ask_git(folder, "rev-parse", "--show-prefix"):
        raise UsageError(f"{folder} is the folder {inner} of a repository: pass the folder that holds the whole of it")
    return folder


def _release_id(package: str, new: str) -> str:
    return f"pypi__{canonicalize_name(package)}-{Version(new)}"


def _commit_id(folder: Path, commit: str) -> str:
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', folder.name).lstrip('._-') or 'repository'}-{commit[:12]}"


def _compare(before: SdistWorkspace | GitWorkspace, after: SdistWorkspace | GitWorkspace) -> _Change:
    old_tree, new_tree = (prepare_workspace(side, timeout=BUILD_TIMEOUT) for side in (before, after))
    layout = _find_tests(list_files(new_tree))
    return _Change(before, old_tree, new_tree, layout, *split_difference(old_tree, new_tree, layout))


def _measure(change: _Change, options: BuildOptions, *, package: str, test_cmd: str, **fields: Json) -> Task:
    """Return the task of a change, with its tests measured."""
    root = find_source_root(change.new_tree, package)
    draft = Task(
        workspace=change.before,
        env={**STEADY_ENV, "PYTHONPATH": f"{{workdir}}/{root}".rstrip("/")},
        eval_timeout=options.test_timeout,
        oracle=Oracle(
            gold_patch=change.gold_patch,
            test_patch=change.test_patch,
            test_paths=change.layout.patterns,
            evaluation=TestCommand(test_cmd=test_cmd),
            timeout=options.test_timeout,
        ),
        **fields,
    )
    runs = run_both(draft, runs=options.runs, backend=options.backend, progress=options.progress)
    lists = compare_runs(*runs)
    options.on_lists(lists)
    options.progress(f"{len(lists.fail_to_pass)} tests to make pass, {len(lists.pass_to_pass)} to keep passing")
    return with_lists(draft, lists)


# --- the parts of a task ----------------------------------------------------------------------------------


def _require_older(package: str, old: str, new: str) -> None:
    """Reject a downgrade, two spellings of one release, and what is not a version (PEP 440)."""
    first, second = _read_version(package, old), _read_version(package, new)
    if first == second:
        raise UsageError(f"{package} {old} and {new} are the same release: name an older and a newer one")
    if first > second:
        raise UsageError(
            f"{package} {old} is newer than {new}, so the gold patch would be a downgrade: "
            f"name the older release first: {package} {new} {old}"
        )


def _read_version(package: str, text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion as error:
        raise UsageError(f"{error}. A release of {package} has a version of PEP 440, such as 1.2.0rc1") from None


def find_release(package: str, version: str) -> SdistWorkspace:
    """Return the source release of a package.

    Raises:
        UsageError: That is not a version.
        TaskError: There is none of this version.
    """
    _read_version(package, version)
    return _workspace(package, version, find_sdists(package, timeout=BUILD_TIMEOUT))


def _workspace(package: str, version: str, sdists: Sequence[Sdist]) -> SdistWorkspace:
    for sdist in sdists:
        if sdist.version == Version(version) and sdist.sha256:
            return SdistWorkspace(name=package, version=version, filename=sdist.filename, sha256=sdist.sha256)
    known = ", ".join(dict.fromkeys(str(sdist.version) for sdist in sdists[-15:])) or "none"
    raise TaskError(f"{package} has no source release {version}. Releases, newest last: {known}")


def refuse_copied(package: str) -> None:
    """Refuse a package whose later or whole code lies in every environment, where a policy would find it.

    Raises:
        TaskError: pip brings a copy of it.
    """
    if canonicalize_name(package) in IN_EVERY_ENVIRONMENT:
        raise _NoTask(
            f"pip brings a copy of {package} into every environment, where a policy would find the code that it is to "
            "write: choose another package"
        )


def split_difference(old: Path, new: Path, tests: TestLayout) -> tuple[str, str]:
    """Return the changes between two folders as two git diffs: one without the tests, one of the tests.

    Neither holds files that packaging tools generate.

    Args:
        old: Folder of the older state.
        new: Folder of the newer state.
        tests: Where the tests are.
    """
    gold: list[str] = []
    hidden: list[str] = []
    for path in sorted({*list_files(old), *list_files(new)}):
        (old_mode, old_data), (new_mode, new_data) = read_state(old / path), read_state(new / path)
        if (old_mode, old_data) != (new_mode, new_data):
            (hidden if path in tests else gold).append(file_diff(path, old_data, new_data, old_mode, new_mode))
    return "".join(gold), "".join(hidden)


def _statement(package: str, old: str, new: str, tree: Path) -> str:
    changes = changes_between(tree, list_files(tree), old, new)
    if not changes:
        raise _NoTask(
            f"{package} {new} has no changelog of these changes: write the problem statement yourself, for {old} and "
            f"{new} alone (--statement)"
        )
    return STATEMENT.format(package=package, old=old, new=new, changes=changes)


def pin_release(package: str, old: str, tree: Path, options: BuildOptions) -> PythonEnv:
    """Return the pinned requirements of a release's tests.

    They include the release itself: tests read its metadata. The workspace comes first on the path and hides its code.
    """
    extras, lines = test_requirements(tree, package)
    itself = f"{package}[{','.join(extras)}]=={old}" if extras else f"{package}=={old}"
    return _pin(options.python, (itself, "pytest", *lines, *options.requirements))


def _pin(python: str, requirements: Sequence[str]) -> PythonEnv:
    """Let pip resolve the requirements, and return them with exact versions."""
    wanted = PythonEnv(version=python, requirements=tuple(requirements), no_deps=False)
    prepared = prepare_python(wanted, timeout=BUILD_TIMEOUT)
    minor = ".".join(prepared.version.split(".")[:2])
    return PythonEnv(version=minor, requirements=list_installed(prepared, timeout=BUILD_TIMEOUT))


def _commit_and_parent(folder: Path, commit: str) -> tuple[str, str]:
    """Return the hashes of a commit and of its first parent.

    Raises:
        TaskError: The commit is missing, or has no parent.
    """
    new, *parents = _ask_git(folder, "rev-list", "--parents", "--max-count=1", commit, "--").split()
    if not parents:
        shallow = _ask_git(folder, "rev-parse", "--is-shallow-repository") != "false"
        raise (TaskError if shallow else _NoTask)(
            f"commit {new} of {folder} has no parent, from which the policy would start: choose a later commit, "
            "or fetch the history of a shallow clone (git fetch --unshallow)"
        )
    return new, parents[0]


def resolve_commit(folder: Path, commit: str) -> str:
    """Return the hash of a commit of a repository.

    Raises:
        TaskError: The commit is missing.
    """
    return _ask_git(folder, "rev-parse", "--verify", "--end-of-options", f"{commit}^{{commit}}")


def _ask_git(folder: Path, *arguments: str) -> str:
    """Return the output of a git command in a repository of the user."""
    deadline = time.monotonic() + _GIT_TIMEOUT
    try:
        result = run_command(
            [git_program(), "-C", folder, "-c", "log.showSignature=false", *arguments],
            deadline=deadline,
            env=git_environment(),
        )
    except TimeoutError as error:
        raise TaskError(f"git {arguments[0]} in {folder} timed out after {_GIT_TIMEOUT:g} s") from error
    if result.returncode:
        raise TaskError(f"git {shlex.join(arguments)} failed in {folder}: {tail(result)}")
    return result.stdout.decode("utf-8", "replace").strip()


def pin_environment(tree: Path, tests: str, options: BuildOptions) -> PythonEnv:
    """Return the pinned requirements of a project, and of its tests, that is on no index."""
    project = read_project(tree)
    extras, lines = test_requirements(tree, str(project.get("name", "")))
    optional = project.get("optional-dependencies", {})
    more = [line for extra in extras for line in optional.get(extra, [])]
    runner = ["pytest"] if "pytest" in tests else []
    wanted = (*project.get("dependencies", []), *lines, *more, *runner, *options.requirements)
    return _pin(options.python, list(dict.fromkeys(wanted))) if wanted else PythonEnv(version=options.python)


def read_project(tree: Path) -> JsonObject:
    """Return the table `project` of a tree's `pyproject.toml`; an empty one if there is none."""
    try:
        table = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8")).get("project", {})
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TaskError(f"cannot read pyproject.toml: {error}") from error
    return table if isinstance(table, dict) else {}


def _visible_tests(tree: Path) -> str:
    """Return the command that runs the tests which the policy can see. It is empty if there are none."""
    try:
        return f"{PYTEST} -q {shlex.join(find_tests(list_files(tree)).targets)}"
    except TaskError:
        return ""


# --- running ----------------------------------------------------------------------------------------------


def run_both(
    task: Task, *, runs: int, backend: str = "local", progress: Callable[[str], None] = lambda _: None
) -> tuple[list[Statuses], list[Statuses]]:
    """Run the hidden tests of a task without and with the gold patch, each time in a fresh sandbox.

    Returns:
        The results without the gold patch, and with it, run by run.

    Raises:
        TaskError: A patch does not apply.
        SandboxError: A sandbox failed.
        GradingError: The tests timed out, or their results cannot be read.
    """
    before: list[Statuses] = []
    after: list[Statuses] = []
    with SandboxGroup(task, backend, {}) as group:
        for number in range(1, runs + 1):
            progress(f"running the tests before and after the change, {number} of {runs}")
            before.append(run_tests(group, ""))
            after.append(run_tests(group, task.oracle.gold_patch))
    return before, after


def run_tests(group: SandboxGroup, diff: str) -> Statuses:
    """Run the tests of a task in a fresh sandbox, with a diff in it; see `run_both`."""
    with group.fresh() as sandbox:
        put_tests_in(group.task, sandbox)
        apply_diff(sandbox, diff, what="the gold patch")
        return find_statuses(group.task, sandbox)


def compare_runs(before: Sequence[Statuses], after: Sequence[Statuses]) -> TestLists:
    """Return the tests that judge the task: they always end alike, and pass with the change. Others are dropped.

    Raises:
        TaskError: The change makes no test pass.
    """
    always = [test for test in after[0] if all(run.get(test) is TestStatus.PASSED for run in after)]
    passed = {test: sum(run.get(test) is TestStatus.PASSED for run in before) for test in always}
    fail_to_pass = tuple(test for test in always if passed[test] == 0)
    if not fail_to_pass:
        raise _NoTask(
            f"no test fails before the change and passes after it: of {len(after[0])} tests, {len(always)} pass "
            f"after it, and {sum(passed[test] == len(before) for test in always)} of these before it too"
        )
    pass_to_pass = tuple(test for test in always if passed[test] == len(before))
    judging = {*fail_to_pass, *pass_to_pass}
    seen = dict.fromkeys(test for run in (*after, *before) for test in run)
    dropped = {test: _why_dropped(test, before, after) for test in seen if test not in judging}
    return TestLists(fail_to_pass, pass_to_pass, dropped)


def _why_dropped(test: str, before: Sequence[Statuses], after: Sequence[Statuses]) -> str:
    """Return why a test judges nothing."""
    runs, where = after, "with the gold patch"
    if all(run.get(test) is TestStatus.PASSED for run in after):
        runs, where = before, "without the gold patch"
    ends = [run.get(test, TestStatus.MISSING).value for run in runs]
    return f"flaky: {', '.join(ends)} {where}" if len(set(ends)) > 1 else f"{ends[0]} {where}"


def with_lists(task: Task, lists: TestLists) -> Task:
    """Return the task with these tests in its oracle."""
    changes = {"fail_to_pass": lists.fail_to_pass, "pass_to_pass": lists.pass_to_pass}
    return task.model_copy(update={"oracle": task.oracle.model_copy(update=changes)})
