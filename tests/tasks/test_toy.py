"""The bundled tasks, checked by plain subprocesses: sandbox and grader have their own tests."""

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from swe_gym.errors import TaskError, UsageError
from swe_gym.tasks import TaskSource, load_source
from swe_gym.tasks.toy import ToySource, read_task
from swe_gym.types import FolderWorkspace, Task

SOURCE = ToySource()

# Runs the tests of the current folder and writes {id: passed} to the standard output.
REPORTER = """
import json, sys, unittest
output, sys.stdout = sys.stdout, sys.stderr
sys.path.insert(0, ".")
class Result(unittest.TestResult):
    def startTest(self, test):
        super().startTest(test)
        self.before = len(self.errors) + len(self.failures) + len(self.skipped)
    def stopTest(self, test):
        passed[test.id()] = len(self.errors) + len(self.failures) + len(self.skipped) == self.before
passed = {}
unittest.defaultTestLoader.discover("tests", top_level_dir=".").run(Result())
json.dump(passed, output)
"""

# Takes the place of a package: everything in it is one object that is equal to all, and does all that it is asked.
YES_MAN = """
import importlib.machinery, sys, types
class Yes:
    __eq__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __hash__ = lambda self: 0
    __call__ = __getattr__ = __getitem__ = lambda self, *args, **kwargs: self
    __enter__ = lambda self: self
    __exit__ = lambda self, *error: True
    __contains__ = lambda self, item: True
    __iter__ = lambda self: iter([self])
    __str__ = __repr__ = lambda self: "yes"
class Module(types.ModuleType):
    __getattr__ = lambda self, name: Yes()
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(__name__ + "."):
            return importlib.machinery.ModuleSpec(name, self)
    def create_module(self, spec):
        return Module(spec.name)
    def exec_module(self, module):
        pass
sys.meta_path.insert(0, Finder())
sys.modules[__name__].__class__ = Module
"""


def environment() -> dict[str, str]:
    """`python` is the interpreter of these tests, without byte code."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {"PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def unpack(task: Task, folder: Path) -> Path:
    assert isinstance(task.workspace, FolderWorkspace)
    shutil.copytree(task.workspace.path, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def apply_patch(patch: str, folder: Path) -> None:
    # The ceiling keeps git from taking a repository around the temporary folder for the one to patch.
    env = {**environment(), "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    command = ["git", "apply", "--whitespace=nowarn", "-"]
    subprocess.run(command, cwd=folder, input=patch.encode(), env=env, check=True, timeout=20)


def run_hidden_tests(task: Task, folder: Path) -> dict[str, bool]:
    for name, content in task.oracle.test_files.items():
        (folder / name).write_bytes(content.encode())
    command = [sys.executable, "-S", "-c", REPORTER]  # -S: starts faster, and the tests need no packages
    done = subprocess.run(command, cwd=folder, env=environment(), check=True, capture_output=True, timeout=60)
    passed: dict[str, bool] = json.loads(done.stdout)
    return passed


def package_of(folder: Path) -> Path:
    (package,) = (path.parent for path in folder.glob("*/__init__.py") if path.parent.name != "tests")
    return package


@pytest.fixture(params=SOURCE.ids())
def task(request: pytest.FixtureRequest) -> Iterator[Task]:
    return SOURCE.get(request.param)


class TestJudging:
    def test_the_bug_fails_the_right_tests(self, task: Task, tmp_path: Path) -> None:
        passed = run_hidden_tests(task, unpack(task, tmp_path / "repo"))
        assert [test for test in task.oracle.fail_to_pass if passed.get(test)] == []
        assert [test for test in task.oracle.pass_to_pass if not passed.get(test)] == []

    def test_the_gold_patch_passes_all(self, task: Task, tmp_path: Path) -> None:
        folder = unpack(task, tmp_path / "repo")
        apply_patch(task.oracle.gold_patch, folder)
        passed = run_hidden_tests(task, folder)
        assert [test for test in passed if not passed[test]] == []
        assert set(passed) == {*task.oracle.fail_to_pass, *task.oracle.pass_to_pass}

    def test_an_object_that_equals_everything_does_not_pass(self, task: Task, tmp_path: Path) -> None:
        folder = unpack(task, tmp_path / "repo")
        (package_of(folder) / "__init__.py").write_text(YES_MAN)
        passed = run_hidden_tests(task, folder)
        assert not all(passed.get(test) for test in task.oracle.fail_to_pass)

    def test_the_visible_tests_run(self, task: Task, tmp_path: Path) -> None:
        folder = unpack(task, tmp_path / "repo")
        done = subprocess.run(
            task.eval_cmd, shell=True, cwd=folder, env=environment(), capture_output=True, text=True, timeout=60
        )
        assert "Error" not in done.stderr.replace("AssertionError", "")
        if done.returncode:
            assert "FAILED (failures=1)" in done.stderr  # a visible test may show a part of the bug
        else:
            assert "OK" in done.stderr


class TestCheats:
    def test_a_number_that_equals_everything(self, tmp_path: Path) -> None:
        task = SOURCE.get("calcline-power-precedence")
        folder = unpack(task, tmp_path / "repo")
        cheat = "\n\nclass Any(int):\n    __eq__ = lambda self, other: True\n\n\nevaluate = lambda *args: Any()\n"
        package = folder / "calcline" / "__init__.py"
        package.write_text(package.read_text() + cheat)
        passed = run_hidden_tests(task, folder)
        assert not passed["tests.test_powers.PowerValueTest.test_towers_are_read_from_the_top"]

    def test_a_text_that_equals_everything(self, tmp_path: Path) -> None:
        task = SOURCE.get("threeway-lines-return")
        folder = unpack(task, tmp_path / "repo")
        merging = folder / "threeway" / "merging.py"
        honest, cheating = 'return Merged("".join(out), conflicts)', "return Merged(Any(), [])"
        assert honest in merging.read_text()
        cheat = "\n\nclass Any(str):\n    __eq__ = lambda self, other: True\n    __hash__ = str.__hash__\n"
        merging.write_text(merging.read_text().replace(honest, cheating) + cheat)
        passed = run_hidden_tests(task, folder)
        assert not passed["tests.test_rewritten_parts.FavorTest.test_ours_is_rewritten"]


class TestContent:
    def test_round_trip_through_json(self, task: Task) -> None:
        assert Task.model_validate_json(task.model_dump_json()) == task

    def test_the_oracle_does_not_show(self, task: Task) -> None:
        assert "oracle" not in repr(task)
        assert task.oracle.gold_patch not in f"{task!r}{task}"
        assert str(task.oracle) == "Oracle(hidden)"

    def test_the_issue_does_not_give_the_solution_away(self, task: Task) -> None:
        lines = task.oracle.gold_patch.splitlines()
        added = [line[1:].strip() for line in lines if line.startswith("+") and not line.startswith("+++")]
        # Signatures do not count: an issue may ask for them.
        telling = [line for line in added if len(line) > 12 and not line.startswith("def ")]
        assert [line for line in telling if line in task.problem_statement] == []

    def test_the_repository_does_not_hold_the_hidden_tests(self, task: Task, tmp_path: Path) -> None:
        folder = unpack(task, tmp_path / "repo")
        for name, content in task.oracle.test_files.items():
            visible = folder / name
            assert not visible.exists() or visible.read_text(encoding="utf-8") != content

    def test_the_sources_are_valid_python_3_8(self, task: Task, tmp_path: Path) -> None:
        folder = unpack(task, tmp_path / "repo")
        apply_patch(task.oracle.gold_patch, folder)
        for path in folder.rglob("*.py"):
            tree = ast.parse(path.read_bytes(), str(path), feature_version=(3, 8))
            assert path.parent.name == "tests" or ast.get_docstring(tree)
        assert (folder / "README.md").is_file()

    def test_fields(self, task: Task) -> None:
        assert task.problem_statement.startswith("# ")
        assert task.difficulty in ("easy", "medium", "hard")
        assert task.repo.startswith("toy/")
        assert task.oracle.fail_to_pass
        assert task.oracle.pass_to_pass
        assert all(name.startswith("tests/test_") for name in task.oracle.test_files)


class TestSource:
    def test_there_are_enough_tasks_of_every_kind(self) -> None:
        tasks = [SOURCE.get(task_id) for task_id in SOURCE.ids()]
        assert len(tasks) >= 12
        assert sum("debugger" in task.tags for task in tasks) >= 4
        assert {task.difficulty for task in tasks} == {"easy", "medium", "hard"}
        assert {"new-file", "two-files", "crlf", "tabs", "unicode"} <= {tag for task in tasks for tag in task.tags}

    def test_is_a_source(self) -> None:
        source = load_source("toy")
        assert isinstance(source, TaskSource)
        assert list(source.ids()) == sorted(set(source.ids()))

    def test_unknown_task(self) -> None:
        with pytest.raises(UsageError, match="Did you mean 'rota-month-end'"):
            SOURCE.get("rota-month")

    def test_crlf_survives(self) -> None:
        task = SOURCE.get("inikeep-line-endings")
        assert isinstance(task.workspace, FolderWorkspace)
        assert b"\r\n" in Path(task.workspace.path, "inikeep", "document.py").read_bytes()
        assert "\r\n" in task.oracle.gold_patch

    def test_the_package_carries_the_files(self) -> None:
        root = files("swe_gym").joinpath("tasks/toy_repos")
        for task_id in SOURCE.ids():
            for name in ("issue.md", "task.toml", "gold.patch", "hidden", "repo/README.md", "repo/tests/__init__.py"):
                assert root.joinpath(task_id, name).is_file() or name == "hidden"

    def test_nothing_in_them_is_ignored_by_git_or_the_build(self) -> None:
        ignored = {"build", "dist", "site", "runs", "htmlcov"}  # the folders of .gitignore, which the build obeys
        root = Path(str(files("swe_gym").joinpath("tasks/toy_repos")))
        assert [path for path in root.rglob("*") if path.name in ignored] == []

    @pytest.mark.parametrize(
        ("name", "content"),
        [("task.toml", b"difficulty = 1\n"), ("task.toml", b"="), ("issue.md", b"\xff"), ("issue.md", None)],
    )
    def test_damaged_task(self, tmp_path: Path, name: str, content: bytes | None) -> None:
        task = SOURCE.get("larder-overwrite-evicts")
        assert isinstance(task.workspace, FolderWorkspace)
        folder = tmp_path / "larder"
        shutil.copytree(Path(task.workspace.path).parent, folder)
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(content)
        with pytest.raises(TaskError, match=r"cannot read the task in .*larder"):
            read_task(folder)
