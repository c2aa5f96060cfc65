"""A real task from two states of a project: the older one is to be repaired, the newer one shows how.

The states are two releases of a package, or a commit and the one before it in a repository of your own. The newer
state's tests are the hidden tests, all else that differs is the gold patch. Which tests the change makes pass is not
read off anything: they run, before and after, in sandboxes, several times.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..commands import run_command, tail
from ..envs.group import SandboxGroup
from ..errors import TaskError, UsageError
from ..grading.diff import file_diff
from ..grading.patch import EXECUTABLE, LINK, REGULAR, apply_diff
from ..grading.reporter import STEADY_ENV
from ..grading.staging import put_tests_in
from ..grading.tests import find_statuses
from ..index import Sdist, find_sdists, normalised, version_order
from ..sandboxes.pythons import list_installed, prepare_python
from ..sandboxes.workspaces import git_program, prepare_workspace
from ..types import GitWorkspace, Oracle, PythonEnv, SdistWorkspace, Task, TestCommand, TestStatus
from .releases import TestLayout, changes_between, find_source_root, find_tests, list_files, test_requirements

PYTEST = "python -m pytest -p no:cacheprovider -o addopts= --continue-on-collection-errors"

STATEMENT = """\
The code is {package} {old}. Bring it to what release {new} does. Its changelog says:

{changes}

Only the behaviour of the code counts: version numbers, documentation and the changelog need not follow.
"""

_BUILD_TIMEOUT = 1800.0
_GIT_TIMEOUT = 60.0

Statuses = Mapping[str, TestStatus]
"""What one test run found: full test id -> how it ended."""


@dataclass(frozen=True)
class TestLists:
    """The tests that judge a task: those that a solution makes pass, and those that must not break."""

    __test__ = False  # not a test class, whatever pytest makes of the name

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    dropped: Mapping[str, str] = field(default_factory=dict)
    """Tests that ran and judge nothing -> the reason, in words."""


def build_release_task(
    package: str,
    old: str,
    new: str,
    *,
    statement: str = "",
    python: str = "",
    requirements: Sequence[str] = (),
    runs: int = 3,
    test_timeout: float = 300.0,
    backend: str = "local",
    progress: Callable[[str], None] = lambda _: None,
    on_lists: Callable[[TestLists], None] = lambda _: None,
) -> Task:
    """Make a task of a package's release `old`, solved by what changed up to release `new`.

    Args:
        package: The project's name on the package index.
        old: The version to start from.
        new: The version whose tests judge the work.
        statement: The problem statement; by default, what the changelog of `new` says.
        python: Version of Python, as in "3.9"; empty is the one that runs swe_gym.
        requirements: What the tests need beyond what the release itself says.
        runs: How often the tests run in each state; a test that does not always end alike judges nothing.
        test_timeout: Seconds that a test run may take.
        backend: Where the tests run.
        progress: Called with one line of text as each step begins.
        on_lists: Called with the measured lists. The task does not hold which tests were dropped: its `metadata` may
            be known to the policy.

    Returns:
        A task that needs the package index to be set up, and nothing else. Validate it before use.

    Raises:
        UsageError: `old` is not older than `new`.
        TaskError: No such release, no tests in it, no changelog, or no test that the change makes pass.
        MissingInterpreter: That version of Python is not installed here.
        SandboxError: The index or a sandbox failed.
    """
    if runs < 1:
        raise UsageError(f"runs must be at least 1: {runs}")
    _require_older(package, old, new)
    progress(f"looking for the source releases of {package} {old} and {new}")
    before, after = _workspaces(package, old, new)
    old_tree = prepare_workspace(before, timeout=_BUILD_TIMEOUT)
    new_tree = prepare_workspace(after, timeout=_BUILD_TIMEOUT)
    layout = find_tests(list_files(new_tree))
    gold_patch, test_patch = split_difference(old_tree, new_tree, layout)
    if not gold_patch:
        raise TaskError(f"{package} {old} and {new} differ in nothing but their tests")
    statement = statement or _statement(package, old, new, new_tree)
    progress("installing what the code and its tests need")
    environment = _environment(package, old, new_tree, python, requirements)
    root = find_source_root(new_tree, package)
    draft = Task(
        task_id=f"pypi__{normalised(package)}-{new}",
        problem_statement=statement,
        repo=normalised(package),
        workspace=before,
        python=environment,
        env={**STEADY_ENV, "PYTHONPATH": f"{{workdir}}/{root}".rstrip("/")},
        eval_cmd=_visible_tests(old_tree),
        eval_timeout=test_timeout,
        tags=("pypi",),
        metadata={"package": package, "old": old, "new": new},
        oracle=Oracle(
            gold_patch=gold_patch,
            test_patch=test_patch,
            test_paths=layout.patterns,
            evaluation=TestCommand(test_cmd=f"{PYTEST} {shlex.join(layout.targets)}"),
            timeout=test_timeout,
        ),
    )
    return _with_measured_lists(draft, runs, backend, progress, on_lists)


def build_commit_task(
    repository: str,
    tests: str,
    *,
    commit: str = "HEAD",
    statement: str = "",
    python: str = "",
    requirements: Sequence[str] = (),
    runs: int = 3,
    test_timeout: float = 300.0,
    backend: str = "local",
    progress: Callable[[str], None] = lambda _: None,
    on_lists: Callable[[TestLists], None] = lambda _: None,
) -> Task:
    """Make a task of what a commit did: the state before it is to be repaired, the tests that it changed are hidden.

    Args:
        repository: A git repository on this machine.
        tests: The command that runs the tests: it calls `python -m pytest` or `python -m unittest`, once.
        commit: The commit that shows how; it changes tests and something else.
        statement: The problem statement; by default, the commit's message.
        python: Version of Python, as in "3.9"; empty is the one that runs swe_gym.
        requirements: What the tests need beyond what the project itself says.
        runs: How often the tests run in each state; a test that does not always end alike judges nothing.
        test_timeout: Seconds that a test run may take.
        backend: Where the tests run.
        progress: Called with one line of text as each step begins.
        on_lists: Called with the measured lists. The task does not hold which tests were dropped: its `metadata` may
            be known to the policy.

    Returns:
        A task whose workspace is that repository at the commit before. Validate it before use.

    Raises:
        UsageError: There is no such repository.
        TaskError: No such commit, nothing before it, no changed tests, or no test that the change makes pass.
        MissingInterpreter: That version of Python is not installed here.
        SandboxError: The index or a sandbox failed.
    """
    if runs < 1:
        raise UsageError(f"runs must be at least 1: {runs}")
    folder = Path(repository).expanduser().absolute()
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}: clone the repository first")
    progress("looking at the commit and the one before it")
    new, old = _ask_git(folder, "rev-parse", commit), _ask_git(folder, "rev-parse", f"{commit}^")
    before, after = GitWorkspace(url=str(folder), ref=old), GitWorkspace(url=str(folder), ref=new)
    old_tree, new_tree = (prepare_workspace(side, timeout=_BUILD_TIMEOUT) for side in (before, after))
    layout = find_tests(list_files(new_tree))
    gold_patch, test_patch = split_difference(old_tree, new_tree, layout)
    if not gold_patch or not test_patch:
        what = "no tests" if gold_patch else "nothing but tests"
        raise TaskError(f"commit {new} of {folder} changes {what}: name another commit")
    progress("installing what the code and its tests need")
    root = find_source_root(new_tree, folder.name)
    draft = Task(
        task_id=f"{re.sub(r'[^A-Za-z0-9._-]+', '-', folder.name).lstrip('._-') or 'repository'}-{new[:12]}",
        problem_statement=statement or _ask_git(folder, "log", "-1", "--format=%B", new),
        repo=folder.name,
        workspace=before,
        python=_own_environment(new_tree, tests, python, requirements),
        env={**STEADY_ENV, "PYTHONPATH": f"{{workdir}}/{root}".rstrip("/")},
        eval_cmd=tests,
        eval_timeout=test_timeout,
        tags=("git",),
        metadata={"commit": old},
        oracle=Oracle(
            gold_patch=gold_patch,
            test_patch=test_patch,
            test_paths=layout.patterns,
            evaluation=TestCommand(test_cmd=tests),
            timeout=test_timeout,
        ),
    )
    return _with_measured_lists(draft, runs, backend, progress, on_lists)


def _with_measured_lists(
    draft: Task,
    runs: int,
    backend: str,
    progress: Callable[[str], None],
    on_lists: Callable[[TestLists], None],
) -> Task:
    lists = compare_runs(*run_both(draft, runs=runs, backend=backend, progress=progress))
    on_lists(lists)
    progress(f"{len(lists.fail_to_pass)} tests to make pass, {len(lists.pass_to_pass)} to keep passing")
    return with_lists(draft, lists)


# --- the parts of a task ----------------------------------------------------------------------------------


def _require_older(package: str, old: str, new: str) -> None:
    """Stop where the gold patch would be a downgrade or nothing at all. Versions out of PEP 440 pass."""
    first, second = version_order(old), version_order(new)
    if first is None or second is None:
        return
    if first == second:
        raise UsageError(f"{package} {old} and {new} are the same release: name an older and a newer one")
    if first > second:
        raise UsageError(
            f"{package} {old} is newer than {new}, so the gold patch would be a downgrade: "
            f"name the older release first: {package} {new} {old}"
        )


def _workspaces(package: str, old: str, new: str) -> tuple[SdistWorkspace, SdistWorkspace]:
    found = find_sdists(package, timeout=_BUILD_TIMEOUT)
    return _workspace(package, old, found), _workspace(package, new, found)


def _workspace(package: str, version: str, sdists: Sequence[Sdist]) -> SdistWorkspace:
    for sdist in sdists:
        if sdist.version == version and sdist.sha256:
            return SdistWorkspace(name=package, version=version, filename=sdist.filename, sha256=sdist.sha256)
    known = ", ".join(dict.fromkeys(sdist.version for sdist in sdists[-15:])) or "none"
    raise TaskError(f"{package} has no source release {version}; it has, newest last: {known}")


def split_difference(old: Path, new: Path, tests: TestLayout) -> tuple[str, str]:
    """What turns one release into another, as two git diffs: everything but the tests, and the tests.

    Files that packaging tools generate are in neither.

    Args:
        old: The older release's folder.
        new: The newer one's.
        tests: What belongs to the tests.
    """
    gold: list[str] = []
    hidden: list[str] = []
    for path in sorted({*list_files(old), *list_files(new)}):
        (old_mode, old_data), (new_mode, new_data) = _read(old / path), _read(new / path)
        if (old_mode, old_data) != (new_mode, new_data):
            (hidden if path in tests else gold).append(file_diff(path, old_data, new_data, old_mode, new_mode))
    return "".join(gold), "".join(hidden)


def _read(path: Path) -> tuple[int | None, bytes | None]:
    """The mode, as git has it, and the content of a file or link; None and None where there is none."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None, None
    if stat.S_ISLNK(mode):
        return LINK, os.readlink(path).encode()
    if stat.S_ISDIR(mode):
        return None, None
    return EXECUTABLE if mode & stat.S_IXUSR else REGULAR, path.read_bytes()


def _statement(package: str, old: str, new: str, tree: Path) -> str:
    changes = changes_between(tree, list_files(tree), old, new)
    if not changes:
        raise TaskError(
            f"{package} {new} has no changelog that says what changed: give the problem statement (--statement)"
        )
    return STATEMENT.format(package=package, old=old, new=new, changes=changes)


def _environment(package: str, old: str, tree: Path, python: str, requirements: Sequence[str]) -> PythonEnv:
    """What the tests need, pinned. The old release is part of it: its metadata count, the workspace hides its code."""
    extras, lines = test_requirements(tree, package)
    itself = f"{package}[{','.join(extras)}]=={old}" if extras else f"{package}=={old}"
    return _pinned(PythonEnv(version=python, requirements=(itself, "pytest", *lines, *requirements), no_deps=False))


def _pinned(wanted: PythonEnv) -> PythonEnv:
    """The environment that pip makes of what is wanted, with all that it installs named by its version."""
    prepared = prepare_python(wanted, timeout=_BUILD_TIMEOUT)
    minor = ".".join(prepared.version.split(".")[:2])
    return PythonEnv(version=minor, requirements=list_installed(prepared, timeout=_BUILD_TIMEOUT))


def _ask_git(folder: Path, *arguments: str) -> str:
    """What git says of a repository of the user's."""
    deadline = time.monotonic() + _GIT_TIMEOUT
    try:
        result = run_command([git_program(), "-C", folder, *arguments], deadline=deadline)
    except TimeoutError as error:
        raise TaskError(f"git {arguments[0]} in {folder} did not answer in {_GIT_TIMEOUT:g} s") from error
    if result.returncode:
        raise TaskError(f"git {shlex.join(arguments)} in {folder}: {tail(result)}")
    return result.stdout.decode("utf-8", "replace").strip()


def _own_environment(tree: Path, tests: str, python: str, requirements: Sequence[str]) -> PythonEnv:
    """What a project that is on no index says that it and its tests need, pinned."""
    project = _project_table(tree)
    extras, lines = test_requirements(tree, str(project.get("name", "")))
    optional = project.get("optional-dependencies", {})
    more = [line for extra in extras for line in optional.get(extra, [])]
    runner = ["pytest"] if "pytest" in tests else []
    wanted = (*project.get("dependencies", []), *lines, *more, *runner, *requirements)
    if not wanted:
        return PythonEnv(version=python)
    return _pinned(PythonEnv(version=python, requirements=tuple(dict.fromkeys(wanted)), no_deps=False))


def _project_table(tree: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8")).get("project", {})
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TaskError(f"pyproject.toml cannot be read: {error}") from error
    return table if isinstance(table, dict) else {}


def _visible_tests(tree: Path) -> str:
    """The command that runs the tests which the policy can see; empty where there are none."""
    try:
        return f"{PYTEST} -q {shlex.join(find_tests(list_files(tree)).targets)}"
    except TaskError:
        return ""


# --- running ----------------------------------------------------------------------------------------------


def run_both(
    task: Task, *, runs: int, backend: str = "local", progress: Callable[[str], None] = lambda _: None
) -> tuple[list[Statuses], list[Statuses]]:
    """Run a task's hidden tests on the original and on the repaired workspace, each in sandboxes of its own.

    Raises:
        TaskError: A patch does not apply, or the tests do not end in time.
        SandboxError: A sandbox failed.
        GradingError: The tests ran, and nothing can be said of them.
    """
    before: list[Statuses] = []
    after: list[Statuses] = []
    with SandboxGroup(task, backend, {}) as group:
        for number in range(1, runs + 1):
            progress(f"running the tests before and after the change, {number} of {runs}")
            before.append(_run(group, ""))
            after.append(_run(group, task.oracle.gold_patch))
    return before, after


def _run(group: SandboxGroup, diff: str) -> Statuses:
    with group.fresh() as sandbox:
        put_tests_in(group.task, sandbox)
        apply_diff(sandbox, diff, what="the gold patch")
        return find_statuses(group.task, sandbox)


def compare_runs(before: Sequence[Statuses], after: Sequence[Statuses]) -> TestLists:
    """Which tests judge the task: those that always end alike, and pass with the change. The others are dropped.

    Raises:
        TaskError: The change makes no test pass.
    """
    always = [test for test in after[0] if all(run.get(test) is TestStatus.PASSED for run in after)]
    passed = {test: sum(run.get(test) is TestStatus.PASSED for run in before) for test in always}
    fail_to_pass = tuple(test for test in always if passed[test] == 0)
    if not fail_to_pass:
        raise TaskError(
            f"no test fails before the change and passes after it: of {len(after[0])} tests, {len(always)} pass "
            f"after it, and {sum(passed[test] == len(before) for test in always)} of these before it too"
        )
    pass_to_pass = tuple(test for test in always if passed[test] == len(before))
    judging = {*fail_to_pass, *pass_to_pass}
    seen = dict.fromkeys(test for run in (*after, *before) for test in run)
    dropped = {test: _why_dropped(test, before, after) for test in seen if test not in judging}
    return TestLists(fail_to_pass, pass_to_pass, dropped)


def _why_dropped(test: str, before: Sequence[Statuses], after: Sequence[Statuses]) -> str:
    """Why a test judges nothing."""
    runs, where = after, "with the gold patch"
    if all(run.get(test) is TestStatus.PASSED for run in after):
        runs, where = before, "without the gold patch"
    ends = [run.get(test, TestStatus.MISSING).value for run in runs]
    return f"flaky: {', '.join(ends)} {where}" if len(set(ends)) > 1 else f"{ends[0]} {where}"


def with_lists(task: Task, lists: TestLists) -> Task:
    """The task, judged by these tests."""
    changes = {"fail_to_pass": lists.fail_to_pass, "pass_to_pass": lists.pass_to_pass}
    return task.model_copy(update={"oracle": task.oracle.model_copy(update=changes)})
