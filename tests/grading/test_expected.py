"""R2E-Gym's way to judge: every test ends as a map says, failures too."""

from collections.abc import Callable

import pytest

from swe_gym.errors import GradingError
from swe_gym.grading import grade
from swe_gym.grading.graders import difference
from swe_gym.grading.patch import Patch, take_patch
from swe_gym.sandboxes import Sandbox
from swe_gym.types import Oracle, Task, TestStatus, Verdict

OpenBox = Callable[[Task], Sandbox]
P, F, E = TestStatus.PASSED, TestStatus.FAILED, TestStatus.ERROR
TESTS = """\
import pytest

from words import cases


class TestCases:
    def test_title(self):
        assert cases.title("ab cd") == "Ab Cd"

    @pytest.mark.parametrize("given", ["a b", "c"])
    def test_lower(self, given):
        assert cases.lower(given) == given


def test_never_right():
    assert cases.lower("A") == "A"


@pytest.fixture
def broken():
    raise RuntimeError("reason - with a dash")


def test_broken(broken):
    pass


@pytest.mark.skip
def test_skipped():
    pass


@pytest.mark.xfail
def test_known():
    assert 0
"""
EXPECTED = {
    "TestCases.test_title": P,
    "TestCases.test_lower[a b]": P,
    "TestCases.test_lower[c]": P,
    "test_never_right": F,
    "test_broken": E,
}
RUN_TESTS = "python -W ignore -m pytest -rA r2e_tests\n"
SCRIPT = "#!/bin/bash\ncd {workdir} || exit 1\nexport PYTHONPATH=$PWD\nbash run_tests.sh\n"


@pytest.fixture
def r2e_task(words_task: Task) -> Task:
    """The task `words` in R2E-Gym's form."""
    oracle = Oracle(
        grader="expected",
        gold_patch=words_task.oracle.gold_patch,
        test_files={"r2e_tests/test_1.py": TESTS, "run_tests.sh": RUN_TESTS},
        test_paths=("r2e_tests", "run_tests.sh"),
        eval_script=SCRIPT,
        log_parser="r2e",
        expected=EXPECTED,
        timeout=60,
    )
    return words_task.model_copy(update={"oracle": oracle})


def verdict_on(task: Task, open_box: OpenBox, *changes: tuple[str, str]) -> Verdict:
    """The verdict on `words/cases.py` with these words replaced."""
    with open_box(task) as box, open_box(task) as fresh:
        text = box.read_file("words/cases.py").decode()
        for old, new in changes:
            text = text.replace(old, new)
        box.write_file("words/cases.py", text.encode())
        box.write_file("run_tests.sh", b"echo forged")
        return grade(task, take_patch(box, fresh), fresh, lambda: open_box(task))


def with_oracle(task: Task, **fields: object) -> Task:
    return task.model_copy(update={"oracle": task.oracle.model_copy(update=fields)})


@pytest.mark.slow
def test_the_script_that_the_image_brings_is_read_from_the_reporter(r2e_task: Task, open_box: OpenBox) -> None:
    gold = verdict_on(r2e_task, open_box, ("upper", "title"))
    assert (gold.resolved, gold.judge, gold.exit_code) == (True, "reporter", 1), "expected failures fail"
    assert gold.pass_to_pass == dict.fromkeys(EXPECTED, P)
    assert "run_tests.sh" in gold.dropped
    empty = verdict_on(r2e_task, open_box)
    assert not empty.resolved
    assert empty.reason == "1 of 5 tests did not end as expected"
    assert empty.pass_to_pass["TestCases.test_title"] is F


@pytest.mark.slow
def test_a_script_that_calls_pytest_otherwise_is_read_from_the_log(r2e_task: Task, open_box: OpenBox) -> None:
    files = {**r2e_task.oracle.test_files, "run_tests.sh": "module=pytest\npython -m $module -rA r2e_tests\n"}
    task = with_oracle(r2e_task, test_files=files)
    gold = verdict_on(task, open_box, ("upper", "title"))
    assert (gold.resolved, gold.judge) == (True, "log")
    assert not verdict_on(task, open_box).resolved


def test_failures_that_are_expected_must_stay(r2e_task: Task, open_box: OpenBox) -> None:
    work = (("upper", "title"), ("text.lower()", "text.lower() if text != 'A' else 'A'"))
    verdict = verdict_on(r2e_task, open_box, *work)
    assert not verdict.resolved
    assert verdict.pass_to_pass["test_never_right"] is TestStatus.XPASSED


@pytest.mark.slow
def test_missing_and_extra_tests_are_reported(r2e_task: Task, open_box: OpenBox) -> None:
    expected = {name: status for name, status in EXPECTED.items() if name != "test_broken"} | {"test_gone": P}
    verdict = verdict_on(with_oracle(r2e_task, expected=expected), open_box, ("upper", "title"))
    assert not verdict.resolved
    assert verdict.reason == "1 of 5 expected tests are missing; 1 unexpected tests ran"
    assert verdict.notes == ("1 expected tests are missing: test_gone", "1 tests are not expected: test_broken")
    assert verdict.pass_to_pass["test_gone"] is TestStatus.MISSING


@pytest.mark.sample(every=3)
@pytest.mark.parametrize("work", ["import os\nos._exit(1)\n", "def (\n", "print('= short test summary info =')\n1/0\n"])
def test_work_that_breaks_the_run(r2e_task: Task, open_box: OpenBox, work: str) -> None:
    verdict = verdict_on(r2e_task, open_box, ("def title", f"{work}def title"))
    assert not verdict.resolved
    assert verdict.reason


def test_a_task_that_expects_nothing(r2e_task: Task, open_box: OpenBox) -> None:
    with open_box(r2e_task) as fresh, pytest.raises(GradingError, match="expects no test"):
        grade(with_oracle(r2e_task, expected={}), Patch(), fresh, lambda: open_box(r2e_task))


def test_differences_in_numbers() -> None:
    assert difference({"a": P, "b": F}, {"a": P, "b": F}) == ""
    assert difference({"a": P, "b": F}, {"a": F}) == (
        "1 of 2 tests did not end as expected; 1 of 2 expected tests are missing"
    )
