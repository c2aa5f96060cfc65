"""The choice of counter-tests, and of the run in which each takes place."""

import ast
from random import Random
from typing import Any

import pytest

from swe_gym.errors import UsageError
from swe_gym.grading.counter.finding import Finder
from swe_gym.grading.counter.plan import NO_CHANGE, NOT_FOUND, CounterOptions, CounterPlan, plan_counters
from swe_gym.sandboxes.fake import FakeSandbox
from swe_gym.types import Oracle

TEXT = "".join(f"def test_{index}(x=1):\n    assert f({index}) == {index}\n\n" for index in range(20))
TEXT += """
class T:
    def test_0(self):
        assert f()

class U(T): pass

def test_line(): assert f()
def test_odd(): f()
"""


def plan(
    starting: list[str], keeping: list[str] | None = None, *, counter: str = "few", unfit: object = None
) -> CounterPlan:
    sandbox = FakeSandbox(files={"t.py": TEXT}, replies=[{"match": "find", "stdout": "./t.py\n"}])
    sandbox.start()
    ids = [[f"t.py::{name}" for name in names] for names in (starting, keeping or [])]
    finder = Finder(Oracle(test_files={"t.py": TEXT}), sandbox)
    return plan_counters(finder, *ids, Random(1), counter=counter, unfit=unfit)  # type: ignore[arg-type]


def names_of(counters: list[object]) -> list[str]:
    return [test.removeprefix("t.py::") for counter in counters for test in counter.tests]  # type: ignore[attr-defined]


def test_tests_of_one_function_share_a_counter_test() -> None:
    found = plan(["test_0[a]", "test_0[b]", "T::test_0", "U::test_0", "test_line"])
    assert sorted(map(names_of, ([counter] for counter in found.counters))) == [
        ["T::test_0", "U::test_0"],
        ["test_0[a]", "test_0[b]"],
        ["test_line"],
    ]


def test_tests_without_a_counter_test_are_named() -> None:
    assert plan(["test_none", "test_odd", "test_1"]).uncovered == {
        "t.py::test_none": NOT_FOUND,
        "t.py::test_odd": NO_CHANGE,
    }


@pytest.mark.parametrize(("count", "first"), [(1, 0), (2, 1), (5, 2), (8, 4)])
def test_every_test_is_changed_in_one_half(count: int, first: int) -> None:
    found = plan([f"test_{index}" for index in range(count)])
    halves = found.split(Random(1))
    assert len(halves[0]) == first
    assert sorted(names_of([*halves[0], *halves[1]])) == sorted(f"test_{index}" for index in range(count))
    assert count == 1 or any(found.split(Random(seed)) != halves for seed in range(20))


def test_few_starting_tests_are_joined_by_a_few_keeping_ones() -> None:
    keeping = [f"test_{index}" for index in range(1, 20)]
    found = plan(["test_0"], keeping)
    assert [counter.starts for counter in found.counters] == [True, False, False, False]
    first, second = found.split(Random(1))
    assert [counter.starts for counter in first] == [False, False]
    assert sorted(counter.starts for counter in second) == [False, True]
    assert len(plan(keeping[:4], keeping[4:]).counters) == 4
    assert len(plan(["test_0"], keeping, counter="all").counters) == 20


def test_function_in_both_lists_has_one_counter_test() -> None:
    found = plan(["test_0[a]"], ["test_0[b]", "test_1"])
    assert names_of(list(found.counters)) == ["test_0[a]", "test_1"]
    ran = ["t.py::test_0[a]", "t.py::test_0[b]", "t.py::test_0[c]", "t.py::T::test_0", "t.py::test_1"]
    assert found.changed_tests(found.counters[:1], ran) == set(ran[:3])


def test_unfit_kinds_are_skipped() -> None:
    assert plan(["test_0"]).counters[0].change.kind == "literal"
    assert plan(["test_0"], unfit={"t.py::test_0": ["literal"]}).counters[0].change.kind == "number"
    assert plan(["test_0"], unfit={"t.py::test_1": ["literal"]}).counters[0].change.kind == "literal"


def test_files_differ_only_in_changed_functions() -> None:
    found = plan([f"test_{index}" for index in range(6)])
    half = found.split(Random(1))[0]
    files = found.edited_files(half, Random(3))
    assert list(files) == ["t.py"]
    before, after = (ast.parse(text).body for text in (TEXT, files["t.py"]))
    changed = [node.name for node, other in zip(before, after, strict=True) if ast.dump(node) != ast.dump(other)]  # type: ignore[attr-defined]
    assert sorted(changed) == sorted(names_of(list(half)))
    assert found.edited_files(half, Random(3)) == files != found.edited_files(half, Random(4))
    assert found.edited_files((), Random(3)) == {"t.py": TEXT.encode()}, (
        "when a file was written must not tell whether it changed"
    )


def test_an_empty_plan_changes_nothing() -> None:
    found = CounterPlan()
    assert found.split(Random(1)) == ([], [])
    assert found.edited_files((), Random(1)) == {}
    assert found.changed_tests((), ["a"]) == set()


@pytest.mark.parametrize("options", [{"counter": "most"}, {"runs": 0}, {"runs": 3}, {"runs": True}, {"runs": 2.0}])
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"counter|judge_runs must be an even number of at least 2"):
        CounterOptions(**options)
