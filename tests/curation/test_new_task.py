"""Tasks from releases and commits: the difference, the runs, the lists, and a real package."""

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from swe_gym.curation.new_task import (
    BuildOptions,
    TestLists,
    build_commit_task,
    build_release_task,
    compare_runs,
    find_commits,
    find_release,
    find_releases,
    make_change_tasks,
    run_both,
    split_difference,
    with_lists,
)
from swe_gym.curation.releases import TestLayout
from swe_gym.curation.validation import validate
from swe_gym.errors import GradingError, MissingInterpreter, SandboxError, TaskError, UsageError
from swe_gym.index import find_sdists
from swe_gym.tasks import TaskRecord
from swe_gym.tasks.file import FileSource, write_tasks
from swe_gym.types import Task, TestStatus

PASSED, FAILED, SKIPPED, ERROR = TestStatus.PASSED, TestStatus.FAILED, TestStatus.SKIPPED, TestStatus.ERROR


def apply(folder: Path, diff: str) -> None:
    command = ["git", "apply", "--whitespace=nowarn", "-"]
    env = {**os.environ, "GIT_DIR": "/nonexistent"}
    done = subprocess.run(command, cwd=folder, env=env, input=diff.encode(), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def snapshot(folder: Path) -> dict[str, tuple[str, int]]:
    """Return relative path -> content or target, and mode."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or path.is_file():
            content = os.readlink(path) if path.is_symlink() else path.read_bytes().hex()
            found[str(path.relative_to(folder))] = content, path.lstat().st_mode
    return found


@pytest.fixture
def releases(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders that differ in every way that releases can."""
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        (folder / "pkg").mkdir(parents=True)
        (folder / "tests" / "data").mkdir(parents=True)
        (folder / "PKG-INFO").write_text(f"Version: {folder.name}\n")
        (folder / "pkg" / "same.py").write_text("same\n")
        (folder / "pkg" / "code.py").write_bytes(folder.name.encode() + b"\r\nno newline at the end")
        (folder / "pkg" / "latin.txt").write_bytes(b"\xe9 " + folder.name.encode())
        (folder / "pkg" / "script").write_text("#!/bin/sh\n")
        (folder / "tests" / "data" / "binary").write_bytes(b"\0" + folder.name.encode())
        (folder / "tests" / "test_it.py").write_text(f"{folder.name}\n")
    (old / "pkg" / "gone.py").write_text("gone\n")
    (old / "pkg" / "becomes").write_text("a file\n")
    (new / "pkg" / "becomes").symlink_to("code.py")
    (new / "pkg" / "script").chmod(0o755)
    (new / "pkg" / "n\u00e9w name.py").write_text("")
    (new / "tests" / "test_new.py").write_text("new\n")
    return old, new


def test_the_two_patches_together_make_the_newer_release(releases: tuple[Path, Path]) -> None:
    old, new = releases
    gold, tests = split_difference(old, new, TestLayout(("tests/*",), ("tests",)))
    assert "pkg/code.py" in gold
    assert "tests/" not in gold
    assert "pkg/" not in tests
    apply(old, tests)
    apply(old, gold)
    shutil.copy(new / "PKG-INFO", old / "PKG-INFO")  # packaging tools write it, so it is in neither
    assert snapshot(old) == snapshot(new)


def test_equal_releases_have_no_difference(releases: tuple[Path, Path]) -> None:
    assert split_difference(releases[0], releases[0], TestLayout((), ())) == ("", "")


def test_flaky_tests_are_dropped() -> None:
    steady = {"kept": PASSED, "broken": PASSED}
    before = [
        {"fixed": FAILED, "flaky before": PASSED, "flaky after": FAILED, **steady},
        {"fixed": ERROR, "flaky before": FAILED, "flaky after": FAILED, **steady},
    ]
    steady = {"new": PASSED, "fixed": PASSED, "kept": PASSED, "broken": FAILED, "flaky before": PASSED}
    after = [{"flaky after": PASSED, **steady}, {"flaky after": SKIPPED, **steady}]
    lists = compare_runs(before, after)
    assert lists.fail_to_pass == ("new", "fixed")
    assert lists.pass_to_pass == ("kept",)
    assert lists.dropped == {
        "broken": "failed with the gold patch",
        "flaky before": "flaky: passed, failed without the gold patch",
        "flaky after": "flaky: passed, skipped with the gold patch",
    }


def test_every_test_that_ran_is_listed_or_dropped_with_its_reason() -> None:
    before = [{"fixed": FAILED, "gone": PASSED, "skipped": SKIPPED}, {"fixed": FAILED, "gone": PASSED, "odd": FAILED}]
    after = [{"fixed": PASSED, "skipped": SKIPPED}, {"fixed": PASSED, "skipped": SKIPPED, "odd": PASSED}]
    lists = compare_runs(before, after)
    assert (lists.fail_to_pass, lists.pass_to_pass) == (("fixed",), ())
    assert lists.dropped == {
        "gone": "missing with the gold patch",
        "skipped": "skipped with the gold patch",
        "odd": "flaky: missing, passed with the gold patch",
    }


def test_a_change_that_makes_no_test_pass_is_rejected() -> None:
    with pytest.raises(TaskError, match="of 2 tests, 1 pass after it, and 1 of these before it too"):
        compare_runs([{"a": PASSED, "b": FAILED}], [{"a": PASSED, "b": FAILED}])


def test_lists_come_from_runs_in_sandboxes(adder: Task) -> None:
    oracle = adder.oracle.model_copy(update={"fail_to_pass": (), "pass_to_pass": ()})
    bare = adder.model_copy(update={"oracle": oracle})
    steps: list[str] = []
    lists = compare_runs(*run_both(bare, runs=1, progress=steps.append))
    assert lists.fail_to_pass == adder.oracle.fail_to_pass
    assert lists.pass_to_pass == adder.oracle.pass_to_pass
    assert with_lists(bare, lists) == adder
    assert steps == ["running the tests before and after the change, 1 of 1"]


def test_tests_that_time_out_give_no_lists(adder: Task) -> None:
    endless = adder.oracle.model_copy(
        update={"timeout": 1.0, "test_files": {"tests/test_add.py": "while True: pass\n"}}
    )
    with pytest.raises(GradingError, match="timeout"):
        run_both(adder.model_copy(update={"oracle": endless}), runs=1)


def test_patches_that_do_not_apply_give_no_lists(adder: Task) -> None:
    for patch in ({"gold_patch": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"}, {"test_patch": "nonsense"}):
        changed = adder.oracle.model_copy(update=patch)
        with pytest.raises(TaskError, match="patch does not apply"):
            run_both(adder.model_copy(update={"oracle": changed}), runs=1)


def test_arguments_are_checked_before_anything_is_fetched() -> None:
    with pytest.raises(UsageError, match="runs"):
        build_release_task("toolz", "1.0.0", "1.1.0", BuildOptions(runs=0))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0.5.2", "0.5.1", "sqlparse 0.5.2 is newer than 0.5.1.* name the older release first: sqlparse 0.5.1 0.5.2"),
        ("1.0", "1.0rc1", "sqlparse 1.0 is newer than 1.0rc1"),
        ("0.5.1", "0.5.1", "sqlparse 0.5.1 and 0.5.1 are the same release"),
        ("0.5", "0.5.0", "sqlparse 0.5 and 0.5.0 are the same release"),
        ("0.5", "0.6-final", r"Invalid version: '0.6-final'\. A release of sqlparse has a version of PEP 440"),
    ],
)
def test_mistakes_about_versions_are_named_before_anything_is_fetched(
    old: str, new: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://localhost:9/simple")  # asking it would be a SandboxStartError
    with pytest.raises(UsageError, match=message):
        build_release_task("sqlparse", old, new)


@pytest.fixture
def _package_index() -> None:
    try:
        find_sdists("pathspec", timeout=60)
    except SandboxError as error:
        if "network" in os.environ.get("SWE_GYM_REQUIRE", ""):
            raise
        pytest.skip(f"the package index cannot be reached: {error}")


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.usefixtures("_package_index")
def test_a_package_that_pip_brings_along_is_refused(repository: Path) -> None:
    with pytest.raises(TaskError, match="pip brings a copy of Packaging into every environment"):
        build_release_task("Packaging", "24.0", "24.1")
    (repository / "pyproject.toml").write_text('[project]\nname = "idna"\n')
    (repository / "tests/test_more.py").write_text(ADD_TEST)
    commit_all(repository, "It is idna")
    with pytest.raises(TaskError, match="pip brings a copy of idna into every environment"):
        build_commit_task(str(repository), "python -m unittest")


@pytest.mark.slow
def test_mistakes_about_releases_are_named() -> None:
    with pytest.raises(TaskError, match=r"pathspec has no source release 99\.0\. Releases, newest last: .*1\.1\.0"):
        build_release_task("pathspec", "0.12.0", "99.0")
    with pytest.raises(TaskError, match=r"toolz 1\.2\.0 has no changelog"):
        build_release_task("toolz", "1.1.0", "1.2.0")


def add_release(root: Path, version: str, files: dict[str, str], more: str = "") -> None:
    """Add a source release to a local index of the project `calc`, with more attributes of its link."""
    page, name = root / "simple" / "calc" / "index.html", f"calc-{version}.tar.gz"
    page.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(root / name, "w:gz") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(f"calc-{version}/{path}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    number = hashlib.sha256((root / name).read_bytes()).hexdigest()
    with page.open("a") as file:
        file.write(f"<a href='../../{name}#sha256={number}' {more}>{name}</a>\n")


@pytest.mark.slow
def test_each_pair_of_neighbouring_releases_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"PKG-INFO": "Name: calc\n", "calc.py": "def add(a, b):\n    return a - b\n", "tests/test_old.py": OLD_TEST}
    add_release(tmp_path, "0.9", {"calc.py": ""})
    add_release(tmp_path, "1.0", files)
    add_release(tmp_path, "1.1", files | {"tests/test_add.py": ADD_TEST})
    add_release(tmp_path, "1.2rc1", {"calc.py": ""})
    add_release(tmp_path, "1.1.1", {"calc.py": ""}, "data-yanked='it is broken'")
    add_release(tmp_path, "1.02", files | {"calc.py": "def add(a, b):\n    return a + b\n"})
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
    record, ends = tmp_path / "records.jsonl", list[TaskRecord]()
    for _ in range(2):
        ends.clear()
        releases = find_releases("calc", "1.0")
        assert not [*make_change_tasks(releases, str(record), BuildOptions(runs=1), on_record=ends.append)]
        assert len(record.read_text().splitlines()) == 2
        assert [(one.task_id, one.status) for one in ends] == [
            ("pypi__calc-1.1", "invalid"),
            ("pypi__calc-1.2", "invalid"),  # in the index as 1.02
        ]
        assert "differ only in their tests" in ends[0].reason
        assert "has no changelog" in ends[1].reason
    with pytest.raises(UsageError, match="Invalid version: 'old'"):
        find_releases("calc", "old")
    with pytest.raises(UsageError, match="Invalid version: 'HEAD'"):
        find_release("calc", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a commit that fixes something and tests it."""
    folder = tmp_path / "calc of mine"
    states = (
        {"calc.py": "def add(a, b):\n    return a - b\n", "tests/__init__.py": "", "tests/test_old.py": OLD_TEST},
        {"calc.py": "def add(a, b):\n    return a + b\n", "tests/test_add.py": ADD_TEST},
        {"tests/test_more.py": OLD_TEST},
    )
    for number, files in enumerate(states):
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        commit_all(folder, f"State {number}\n\nWhy it is so.")
    return folder


def commit_all(folder: Path, message: str) -> None:
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", message]):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@localhost", *arguments]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)


OLD_TEST = (
    "import unittest\n\nimport calc\n\n\nclass TestZero(unittest.TestCase):\n"
    "    def test_zero(self):\n        self.assertEqual(calc.add(0, 0), 0)\n"
)
ADD_TEST = OLD_TEST.replace("Zero", "Add").replace("zero", "add").replace("(0, 0), 0", "(1, 2), 3")


def test_a_commit_becomes_a_valid_task(repository: Path, tmp_path: Path) -> None:
    steps: list[str] = []
    lists: list[TestLists] = []
    options = BuildOptions(runs=1, test_timeout=90.0, progress=steps.append, on_lists=lists.append)
    task = build_commit_task(str(repository), "python -m unittest discover -s tests -t .", "HEAD~1", options)
    assert len(steps) == len(set(steps)) > 1
    assert [found.fail_to_pass for found in lists] == [task.oracle.fail_to_pass]
    assert task.task_id.startswith("calc-of-mine-")
    assert (task.eval_timeout, task.oracle.timeout) == (90.0, 90.0)
    assert task.problem_statement == "State 1\n\nWhy it is so."
    assert task.oracle.fail_to_pass == ("tests.test_add.TestAdd.test_add",)
    assert task.oracle.pass_to_pass == ("tests.test_old.TestZero.test_zero",)
    assert "tests/" not in task.oracle.gold_patch
    write_tasks([task], tmp_path / "tasks.jsonl")
    (record,) = validate(FileSource(str(tmp_path / "tasks.jsonl")), times=1)
    assert (record.status, record.reason) == ("valid", "")


def test_mistakes_about_commits_are_named(repository: Path, tmp_path: Path) -> None:
    tests = "python -m unittest"
    with pytest.raises(TaskError, match="changes nothing but tests"):
        build_commit_task(str(repository), tests)
    with pytest.raises(TaskError, match="has no parent, from which the policy would start: choose a later commit"):
        build_commit_task(str(repository), tests, "HEAD~2")
    with pytest.raises(TaskError, match=r"git rev-list .*HEAD~7"):
        build_commit_task(str(repository), tests, "HEAD~7")
    with pytest.raises(UsageError, match="clone the repository first"):
        build_commit_task(str(tmp_path / "nothing"), tests)
    with pytest.raises(UsageError, match="is the folder tests/ of a repository"):
        build_commit_task(str(repository / "tests"), tests)
    with pytest.raises(UsageError, match="runs"):
        build_commit_task(str(repository), tests, options=BuildOptions(runs=0))


def test_what_the_user_can_mend_does_not_refuse_a_commit_for_ever(repository: Path, tmp_path: Path) -> None:
    record, ends = tmp_path / "records.jsonl", []

    def try_commits(tests: str, commits: str, **options: Any) -> list[str]:
        ends.clear()
        build = BuildOptions(runs=1, **options)
        changes = find_commits(str(repository), tests, commits)
        assert [*make_change_tasks(changes, str(record), build, times=1, on_record=ends.append)] == []
        return [one.status for one in ends]

    with pytest.raises(MissingInterpreter):
        try_commits("python -m unittest", "HEAD~2..HEAD~1", python="3.99")
    assert not record.exists()
    assert try_commits("true", "HEAD~2..HEAD") == ["error", "invalid"]
    lines = record.read_text().splitlines()
    for tests, number in (("true", 2), ("false", 3)):  # equal and other tests for the commit that changes only tests
        assert try_commits(tests, "HEAD~1..HEAD") == ["invalid"]
        assert len(record.read_text().splitlines()) == number
    assert len(lines) == 2
