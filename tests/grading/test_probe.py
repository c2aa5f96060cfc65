"""What the judge learns from the untouched repository: the assertions that pass without work."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_tasks import OLD, RUNNERS, Small, assert_alarm, assert_resolved, f2, pytest_file, three, unittest_file

from swe_gym.grading import grade
from swe_gym.grading.judge import NO_WORK
from swe_gym.grading.patch import Patch

pytestmark = pytest.mark.sample(every=2)

KEPT = "\n\ndef g():\n    return 'some words'\n"
BODIES = {
    "pytest": pytest_file("assert m.g() == 'some words'\n    assert m.f(1) == 2\n    assert m.g() == 'some words'"),
    "unittest": unittest_file(
        "self.assertEqual(m.g(), 'some words')\n        self.assertEqual(m.f(1), 2)"
        "\n        self.assertEqual(m.g(), 'some words')"
    ),
}


@pytest.fixture(autouse=True)
def _forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other process or test knows anything about the tasks."""
    monkeypatch.setenv("SWE_GYM_CACHE", str(tmp_path / "cache"))


def unknown(runner: str = "pytest", tests: str = "", **fields: Any) -> Small:
    """A task without a record, of one test that must start passing. Two of its assertions pass without work."""
    command, _ = RUNNERS[runner]
    given = {"old": OLD + KEPT, "starting": ("test_a",), **fields}
    return Small(f2() + KEPT, tests or BODIES[runner], command=command, known=False, **given)


@pytest.mark.parametrize("runner", RUNNERS)
def test_the_judge_learns_what_passes_without_work(runner: str) -> None:
    small = unknown(runner)
    verdict = small.judge(small.gold)
    assert_resolved(verdict)
    found, (test,) = verdict.counter_tests, small.names
    first = next(number for number, line in enumerate(small.tests.splitlines(), 1) if "m.g" in line)
    assert found.passing == {test: (first, first + 2)}
    assert (found.texts, found.runs, len(small.opened)) == ({test: 8}, 2, 3)
    again = small.judge(f2("1 + x") + KEPT, seed=b"2").counter_tests
    assert (again.passing, again.runs, len(small.opened)) == (found.passing, 1, 4)


COUNTING = OLD + KEPT + "\n\nSTATE = []\n"


def test_tests_that_must_keep_passing_run_once() -> None:
    """What the first run proved of them stays proven."""
    tests = pytest_file("assert m.g() == 'some words'\n    assert m.f(1) == 2", "assert m.g() == 'some words'")
    small = unknown(tests=tests, keeping=("test_b",))
    verdict = small.judge(small.gold)
    assert_resolved(verdict)
    found = verdict.counter_tests
    assert (set(found.kinds), set(found.kept), found.runs) == ({small.name("test_a")}, {small.name("test_b")}, 2)
    first, second = verdict.log.split("run 2")
    assert ("2 passed" in first, "1 passed" in second) == (True, True), verdict.log


@pytest.mark.slow
def test_tests_that_fail_alone_run_among_the_others() -> None:
    """A test that needs another one before it is no reason to refuse right work."""
    tests = pytest_file(
        "m.STATE.append(1)\n    assert m.g() == 'some words'",
        "assert m.g() == 'some words'\n    assert m.STATE and m.f(1) == 2\n    assert m.f(2) == 3",
    )
    small = unknown(old=COUNTING, tests=tests, starting=("test_b",), keeping=("test_a",))
    small = replace(small, gold=small.gold + "\n\nSTATE = []\n")
    verdict = small.judge(small.gold)
    assert_resolved(verdict)
    assert verdict.counter_tests.runs == 3
    assert not small.judge(COUNTING.replace("None\n", "x and x + 2\n"), seed=b"2").resolved


@pytest.mark.parametrize("runner", RUNNERS)
def test_work_is_judged_once_where_nothing_passes_without_work(runner: str) -> None:
    small = three(runner, known=False)
    verdict = small.judge(small.gold)
    assert_resolved(verdict)
    assert verdict.counter_tests.passing == {small.name(test): () for test in small.starting}
    assert (verdict.counter_tests.runs, len(small.opened)) == (1, 2)
    small.judge(small.gold)
    assert len(small.opened) == 3


def test_what_the_untouched_repository_cannot_load_passes_nowhere() -> None:
    small = three(known=False)
    tests = small.tests.replace("import m", "import m\nfrom m import more")
    small = replace(small, tests=tests, gold=small.gold + "def more(): pass\n", starting=("test_a", "test_b", "test_c"))
    verdict = replace(small, keeping=()).judge(small.gold)
    assert_resolved(verdict)
    assert set(verdict.counter_tests.passing.values()) == {()}
    assert verdict.counter_tests.runs == 1


@pytest.mark.slow
def test_a_failure_before_any_assertion_hides_them_all() -> None:
    tests = pytest_file("x = m.new(1)\n    assert m.g() == 'some words'\n    assert x == 2")
    small = unknown(tests=tests)
    small = replace(small, gold=small.gold + "\n\ndef new(x):\n    return 2\n")
    verdict = small.judge(small.gold)
    assert_resolved(verdict)
    assert set(verdict.counter_tests.passing.values()) == {()}


@pytest.mark.slow
def test_functions_of_which_nothing_is_learned_run_once() -> None:
    tests = pytest_file("assert m.g() == 'some words'\n    assert m.f(1) == 2", "assert m.f(2) == 3")
    small = unknown(tests=tests, starting=("test_a", "test_b"))
    verdict = small.judge(small.gold)
    assert_resolved(verdict)
    found = verdict.counter_tests
    assert (set(found.kinds), found.texts.keys(), found.runs) == (small.names, small.names, 2)
    first, second = verdict.log.split("run 2")
    assert ("2 passed" in first, "1 passed" in second) == (True, True), verdict.log
    wrong = small.judge(f2("2 if x == 1 else x") + KEPT)
    assert (wrong.resolved, wrong.fail_to_pass[small.name("test_a")]) == (False, "passed")


def test_no_work_needs_no_proof() -> None:
    """Nothing is there that could change results."""
    small = unknown()
    with small.open() as fresh:
        verdict = grade(small.task, Patch(), fresh, small.open)
    assert not verdict.resolved
    found, (test,) = verdict.counter_tests, small.names
    assert (found.texts, found.uncovered, len(small.opened)) == ({}, {test: NO_WORK}, 1)


def test_unresolved_work_teaches_nothing() -> None:
    small = unknown()
    verdict = small.judge(OLD + KEPT)
    assert not verdict.resolved
    assert (verdict.counter_tests.passing, len(small.opened)) == ({}, 1)


def test_a_record_saves_the_run() -> None:
    small = replace(unknown(), known=True)
    assert_resolved(small.judge(small.gold))
    assert len(small.opened) == 1


@pytest.mark.slow
def test_what_passes_without_work_stays_proven() -> None:
    """The rest of the work is right."""
    small = unknown()
    forgiving = "\n\nclass Yes:\n    def __eq__(self, other): return True\n\n\ndef g():\n    return Yes()\n"
    for seed in (b"1", b"2", b"3"):
        assert_alarm(small.judge(f2() + forgiving, seed=seed), small)


@pytest.mark.slow
def test_a_test_that_passes_without_work_gives_nothing_away() -> None:
    small = unknown(
        tests=pytest_file("assert m.f(1) == 2", "assert m.g() == 'some words'"), starting=("test_a", "test_b")
    )
    verdict = small.judge(small.gold)
    assert_resolved(verdict)
    assert set(verdict.counter_tests.passing.values()) == {()}
    assert verdict.counter_tests.runs == 1


@pytest.mark.slow
def test_parameters_that_pass_without_work_count_for_their_function() -> None:
    tests = "import pytest\n\nimport m\n\n\n@pytest.mark.parametrize('x', [1, 0])\ndef test_a(x):\n"
    tests += "    assert m.f(x) == x + 1 or not x\n    assert m.g() == 'some words'\n"
    small = unknown(tests=tests, starting=("test_a[1]",), keeping=("test_a[0]",))
    verdict = small.judge(small.gold)
    assert_resolved(verdict)
    assert verdict.counter_tests.passing == {test: (8, 9) for test in small.names}


NEARLY = "\n\ndef h():\n    return '2024-02-28 and 3'\n"
NEARLY_RIGHT = "\n\ndef h():\n    return '2024-02-29 and 3'\n"


@pytest.mark.sample(every=2)
@pytest.mark.parametrize(
    ("runner", "tests"),
    [
        ("pytest", pytest_file("assert m.f() is None\n    assert m.h() == '2024-02-29 and 3'")),
        ("unittest", unittest_file("self.assertEqual(m.h(), '2024-02-29 and 3')")),
        (
            "unittest",
            unittest_file("self.check('2024-02-29 and 3')")
            + "\n    def check(self, expected):\n        self.assertEqual(m.h(), expected)\n",
        ),
        ("pytest", pytest_file("assert m.h() == DAY").replace("import m", "import m\n\nDAY = '2024-02-29 and 3'")),
    ],
)
def test_the_judge_learns_what_comes_instead(runner: str, tests: str) -> None:
    """Texts then differ where the wrong result does: code that compares them with it learns nothing."""
    command, _ = RUNNERS[runner]
    small = Small(OLD + NEARLY_RIGHT, tests, ("test_a",), command=command, old=OLD + NEARLY, known=False)
    verdict = small.judge(small.gold)
    assert_resolved(verdict)
    found, (test,) = verdict.counter_tests, small.names
    (values,) = found.returned[test].values()
    assert values == ("'2024-02-29 and 3'", "'2024-02-28 and 3'")
    assert "near-result" in found.kinds[test]
    told = "DAY" in tests  # who reads the constant's definition knows the original
    assert (found.texts, found.runs) == ({test: 1 if told else 8}, 2)
    again = small.judge(small.gold, seed=b"2").counter_tests
    assert (again.returned, again.runs) == (found.returned, 1)


def test_results_that_have_nothing_in_common_are_not_kept() -> None:
    small = three(known=False)
    verdict = small.judge(small.gold)
    assert_resolved(verdict)
    assert (verdict.counter_tests.returned, verdict.counter_tests.runs) == ({}, 1)
