"""The choice of the functions that get counter-tests, and of their texts."""

import ast
from collections.abc import Collection
from random import Random
from typing import Any

import pytest

from swe_gym.errors import UsageError
from swe_gym.grading.counter.finding import Finder, FunctionPlace
from swe_gym.grading.counter.plan import (
    MOST_TEXTS,
    NO_CHANGE,
    NOT_FOUND,
    CounterGroup,
    CounterOptions,
    CounterPlan,
    plan_counters,
)
from swe_gym.sandboxes.fake import FakeSandbox
from swe_gym.types import Oracle

TEXT = "from __future__ import annotations\n\n"
TEXT += "".join(f"def test_{index}(x=1):\n    assert f({index}) == {index}\n\n" for index in range(60))
TEXT += """
class T:
    def test_0(self):
        assert f() == 4

    def test_1(self):
        assert f() == 5

class U(T): pass

class V(T):
    def test_1(self):
        super().test_1()
        assert g() == 6

def test_line(): assert f() == 3
def test_odd(): f()

def test_caller():
    test_line()
"""


def plan(
    starting: list[str], keeping: Collection[str] = (), *, text: str = TEXT, seed: int = 1, **options: Any
) -> CounterPlan:
    sandbox = FakeSandbox(files={"t.py": text}, replies=[{"match": "find", "stdout": "./t.py\n"}])
    sandbox.start()
    ids = [[f"t.py::{name}" for name in names] for names in (starting, keeping)]
    finder = Finder(Oracle(test_files={"t.py": text}), sandbox)
    return plan_counters(finder, ids[0], ids[1], Random(seed), CounterOptions(**options))


def names_of(*groups: CounterGroup) -> list[str]:
    return [test.removeprefix("t.py::") for group in groups for test in group.tests]


def numbers(count: int, first: int = 0) -> list[str]:
    return [f"test_{index}" for index in range(first, first + count)]


def test_tests_of_one_function_share_its_texts() -> None:
    found = plan(["test_0[a]", "test_0[b]", "T::test_0", "U::test_0", "test_line"])
    assert sorted(map(names_of, found.groups)) == [
        ["T::test_0", "U::test_0"],
        ["test_0[a]", "test_0[b]"],
        ["test_line"],
    ]


def test_functions_that_call_each_other_by_super_are_changed_together() -> None:
    (group,) = plan(["T::test_1", "V::test_1"]).groups
    assert {place.names for place in group.places} == {("T", "test_1"), ("V", "test_1")}
    assert all(len(row.edits) == 2 for row in group.rows)
    assert all(all(row.edits) for row in group.rows if row.kinds)
    assert group.effective == 1, "work that is right in one of them knows its texts"
    assert len(plan(["T::test_0", "V::test_1"]).groups) == 2


def test_tests_without_a_counter_test_are_named() -> None:
    assert plan(["test_none", "test_odd", "test_1"]).uncovered == {
        "t.py::test_none": NOT_FOUND,
        "t.py::test_odd": NO_CHANGE,
    }


@pytest.mark.parametrize(("functions", "texts"), [(1, 8), (3, 8), (6, 4), (40, 3)])
def test_few_functions_have_many_texts(functions: int, texts: int) -> None:
    groups = plan(numbers(functions)).groups
    assert len(groups) == functions
    assert {len(group.rows) for group in groups} == {texts}
    assert {group.effective for group in groups} == {texts}


def test_the_original_has_any_place_among_the_texts() -> None:
    places = [plan(["test_7"], seed=seed).groups[0].passing[0] for seed in range(400)]
    assert {place: places.count(place) > 25 for place in range(MOST_TEXTS)} == dict.fromkeys(range(MOST_TEXTS), True)


def test_only_the_original_has_no_kinds() -> None:
    for group in plan(numbers(5)).groups:
        assert [row for row in group.rows if not row.kinds] == [group.original]
        assert group.cover.kinds
        assert all(group.changed(Random(seed)).kinds for seed in range(9))


def test_few_starting_tests_are_joined_by_a_few_keeping_ones() -> None:
    keeping = numbers(19, 1)
    assert [group.starts for group in plan(["test_0"], keeping).groups] == [True, False, False, False]
    assert len(plan(keeping[:4], keeping[4:]).groups) == 4
    assert len(plan(["test_0"], keeping, counter="all").groups) == 20


def test_the_few_are_none_that_cost_much() -> None:
    text = TEXT.replace("def test_2(", "@given(integers())\ndef test_2(")
    keeping = numbers(5, 1)
    for seed in range(9):
        groups = plan(["test_0"], keeping, text=text, seed=seed, unforkable=["t.py::test_1"]).groups
        assert sorted(map(names_of, groups)) == [["test_0"], ["test_3"], ["test_4"], ["test_5"]]
    assert len(plan(["test_0"], keeping, text=text, unforkable=["t.py::test_1"], counter="all").groups) == 6


def test_function_in_both_lists_has_one_group() -> None:
    found = plan(["test_0[a]"], ["test_0[b]", "test_1"])
    assert sorted(map(names_of, found.groups)) == [["test_0[a]", "test_0[b]"], ["test_1"]]
    assert all(group.starts is ("test_0[a]" in names_of(group)) for group in found.groups)


def test_unfit_kinds_are_left_out() -> None:
    near = set(plan(["test_0"]).groups[0].kind.split("+"))
    known = {"t.py::test_0": sorted(near)}
    assert not near & set(plan(["test_0"], unfit=known).groups[0].kind.split("+"))
    assert plan(["test_1"], unfit=known).groups[0].kind == plan(["test_1"]).groups[0].kind


def test_nested_functions_and_known_tests_are_not_forked() -> None:
    found = plan(["test_0", "test_1"], unforkable=["t.py::test_1"])
    assert [(names_of(group), group.forks) for group in found.groups] == [(["test_0"], True), (["test_1"], False)]
    assert [group.forks for group in found.unforked([0]).groups] == [False, False]
    text = "def add(name):\n    def run(self):\n        assert f() == 3\n    setattr(T, name, run)\n"
    (group,) = plan(["T::test_0"], text=text + "class T: pass\n").groups
    assert (group.places[0].names, group.forks) == (("add", "run"), False)


def test_callers_are_the_functions_that_mention_a_function() -> None:
    found = plan(["test_line", "test_0"])
    by_name = {names_of(group)[0]: found.callers(number) for number, group in enumerate(found.groups)}
    assert by_name == {"test_line": (FunctionPlace("t.py", ("test_caller",)),), "test_0": ()}


def test_files_differ_only_in_changed_functions() -> None:
    found = plan(numbers(6))
    rows = {number: found.groups[number].changed(Random(3)) for number in (0, 2, 4)}
    files = found.files(rows)
    assert list(files) == ["t.py"]
    plain = found.files({})["t.py"]
    before, after = (ast.parse(text).body for text in (plain, files["t.py"]))
    changed = [node.name for node, other in zip(before, after, strict=True) if ast.dump(node) != ast.dump(other)]  # type: ignore[attr-defined]
    assert sorted(changed) == sorted(name for number in rows for name in names_of(found.groups[number]))


def test_originals_have_edits_without_effect() -> None:
    """A text cannot be told from the published one by its differences alone."""
    found = plan(numbers(6))
    files = found.files({})
    assert files["t.py"] != TEXT.encode()
    names: dict[str, Any] = {"f": lambda x: x}
    exec(compile(files["t.py"], "t.py", "exec"), names)
    for index in range(6):
        names[f"test_{index}"]()


def test_snippets_compile_alone_on_the_lines_of_the_file() -> None:
    found = plan(["test_0", "T::test_0", "V::test_1", "T::test_1", "test_line"])
    lines = TEXT.splitlines()
    for number, group in enumerate(found.groups):
        for snippets in found.snippets(number, group.rows):
            for place, snippet in zip(group.places, snippets, strict=True):
                tree = ast.parse(snippet)
                compile(tree, "t.py", "exec")
                (function,) = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
                assert function.name == place.names[-1]
                assert lines[function.lineno - 1].strip().startswith(f"def {function.name}")


def test_an_empty_plan_changes_nothing() -> None:
    found = CounterPlan()
    assert found.files({}) == {}
    assert found.unforked([]) == found


@pytest.mark.parametrize("options", [{"counter": "most"}, {"runs": 0}, {"runs": 1}, {"runs": True}, {"runs": 2.0}])
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"counter|judge_runs must be an integer of at least 2"):
        CounterOptions(**options)
