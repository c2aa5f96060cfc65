"""Cheats against evaluation scripts. If the reporter signs the results, each scores as with the grader "tests"."""

from collections.abc import Callable

import pytest
from _pytest.mark import ParameterSet

from swe_gym.grading import grade
from swe_gym.grading.patch import take_patch
from swe_gym.sandboxes import Sandbox
from swe_gym.testing.cheats import CHEATS, HONEST, Cheat, play_cheat
from swe_gym.types import Task, TestStatus

pytestmark = pytest.mark.slow

SCRIPT = "cd {workdir}\n: '>>>>> Start Test Output'\n%s\n: '>>>>> End Test Output'\n"
AGAINST_RUNS = (
    *("nothing", "conftest", "conftest-elsewhere", "pyproject", "skip", "exit", "hard-exit", "exit-later"),
    *("printed-passes", "forged-report", "patch-pytest", "register-plugin", "empty-tests", "plugin-shadow"),
    *("reads-tests", "trace", "profile", "shadow-builtin", "result-subclasses", "forged-module"),
    *("one-call", "signed-report"),
)

BELOW = "cd tests && PYTHONPATH=.. python -m pytest -rA ."
CHOSEN = [cheat for cheat in CHEATS if cheat.name in AGAINST_RUNS]
HONEST_WORK = [cheat for cheat in HONEST if cheat.name in ("gold", "own-tests", "own-configuration")]


def played(always: set[str]) -> list[ParameterSet]:
    """These cheats and honest work; the other cheats, which the grader "tests" meets at each run, are thorough."""
    return [
        pytest.param(cheat, id=cheat.name, marks=() if cheat.resolved or cheat.name in always else pytest.mark.thorough)
        for cheat in (*CHOSEN, *HONEST_WORK)
    ]


def evaluated(task: Task, command: str) -> Task:
    oracle = task.oracle.model_copy(
        update={"grader": "log", "test_cmd": "", "eval_script": SCRIPT % command, "log_parser": "pytest"}
    )
    return task.model_copy(update={"oracle": oracle})


@pytest.mark.parametrize("cheat", played({"conftest", "hard-exit", "forged-report", "reads-tests", "one-call"}))
def test_scripts_that_call_pytest(cheat: Cheat, words_task: Task, open_box: Callable[[Task], Sandbox]) -> None:
    result = play_cheat(cheat, evaluated(words_task, "python -m pytest -rA tests"), open_box)
    assert result.verdict.resolved is cheat.resolved, (result.verdict, result.verdict.log)
    assert result.verdict.judge == "reporter"


@pytest.mark.parametrize("cheat", played({"nothing", "skip", "exit-later", "printed-passes", "signed-report"}))
def test_scripts_that_are_read_from_the_log(
    cheat: Cheat, words_task: Task, open_box: Callable[[Task], Sandbox]
) -> None:
    result = play_cheat(cheat, evaluated(words_task, "module=pytest; python -m $module -rA tests"), open_box)
    assert result.verdict.resolved is cheat.resolved, (result.verdict, result.verdict.log)
    assert result.verdict.judge == "log"


@pytest.fixture
def mapped(words_task: Task) -> Task:
    """The task with a map of what each test must be."""
    tests = ("test_title", "test_titles[a b]", "test_titles[[x]]", "test_titles[\\xe9 \\n.]", "test_lower")
    task = evaluated(words_task, "python -m pytest -rA tests")
    fields = {"grader": "expected", "log_parser": "r2e", "expected": dict.fromkeys(tests, TestStatus.PASSED)}
    return task.model_copy(update={"oracle": task.oracle.model_copy(update=fields)})


def is_resolved(name: str, task: Task, open_box: Callable[[Task], Sandbox]) -> bool:
    cheat = next(cheat for cheat in (*CHEATS, *HONEST) if cheat.name == name)
    return play_cheat(cheat, task, open_box).verdict.resolved


@pytest.mark.parametrize(
    "name",
    [
        *("printed-passes", "hard-exit", "signed-report"),
        *(pytest.param(name, marks=pytest.mark.thorough) for name in ("nothing", "exit-later", "patch-pytest")),
        *(pytest.param(name, marks=pytest.mark.thorough) for name in ("profile", "one-call")),
    ],
)
def test_expected_maps(name: str, mapped: Task, open_box: Callable[[Task], Sandbox]) -> None:
    assert not is_resolved(name, mapped, open_box)


@pytest.mark.parametrize("name", ["runner-shadow", "plugin-shadow", "folder-shadow"])
def test_modules_in_a_folder_that_the_command_changes_into(
    name: str, words_task: Task, open_box: Callable[[Task], Sandbox]
) -> None:
    assert not is_resolved(name, evaluated(words_task, BELOW), open_box)


def test_honest_work_on_such_tasks_is_resolved(
    mapped: Task, words_task: Task, open_box: Callable[[Task], Sandbox]
) -> None:
    for task in (mapped, evaluated(words_task, BELOW)):
        assert is_resolved(HONEST[0].name, task, open_box)


FORGED = """
import os, shutil
root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
os.unlink(root + "/tests/test_cases.py")
try:
    open("/usr/local/bin/git", "w").write("#!/bin/sh\\n")
    os.chmod("/usr/local/bin/git", 0o755)
except OSError:  # of some sandboxes only the workspace can be written to
    shutil.rmtree(root + "/.git")
for test in {tests}:
    print("PASSED", test)
raise ImportError
"""


@pytest.mark.parametrize(
    "command", ["python -m pytest -rA tests/test_cases.py", "cd tests && PYTHONPATH=.. python -m pytest -rA ."]
)
def test_deleted_tests_cannot_be_printed(command: str, words_task: Task, open_box: Callable[[Task], Sandbox]) -> None:
    """Where the repository no longer has them when the log is read."""
    task = evaluated(words_task, command)
    tests = [*task.oracle.fail_to_pass, *task.oracle.pass_to_pass]
    if command.startswith("cd"):
        tests = [test.removeprefix("tests/") for test in tests]
        lists = {"fail_to_pass": tuple(tests[:2]), "pass_to_pass": tuple(tests[2:])}
        task = task.model_copy(update={"oracle": task.oracle.model_copy(update=lists)})
    with open_box(task) as box, open_box(task) as fresh:
        box.write_file("words/cases.py", FORGED.format(tests=tests).encode())
        verdict = grade(task, take_patch(box, fresh), fresh, lambda: open_box(task))
    assert "PASSED" in verdict.log
    assert (verdict.resolved, verdict.judge) == (False, "reporter")
