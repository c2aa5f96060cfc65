"""Texts in which only one assertion can fail a test."""

import ast
from typing import Any

import pytest
from test_texts import source_of

from swe_gym.grading.probe import find_singles

BODIES = [
    """assert f(1) == 1
assert f(2) == 2
self.assertEqual(f(3), 3)
assert f(4) == 4""",
    """assert f(1) == 1
self.assertEqual(
    f(3), 3,
)  # words
assert f(4) == (
    4)
assert f(6) == 6""",
    """assert f(1) == 1
with self.subTest(1):
    assert f(3) == 3
assert f(4) == 4""",
    """for x in (1, 1):
    assert f(1) == x
    assert f(3) == 3
assert f(4) == 4""",
    """if f(0):
    assert f(0) == 9
assert f(3) == 3
f(-1)
assert f(5) == 5
for _ in f.some:
    assert f(0) == 9""",
]


class Product:
    """Gives the right number, except to some lines, and fails calls with -1."""

    some = (1,)

    def __init__(self, wrong: set[int]) -> None:
        self._wrong = wrong

    def __call__(self, number: int) -> int:
        if number < 0:
            raise ValueError
        return 0 if number in self._wrong else number


def passes(text: str, **names: Any) -> bool:
    import unittest

    exec(compile(text, "t.py", "exec"), names)
    try:
        names["test"](unittest.TestCase())
    except Exception:  # noqa: BLE001  every end but a pass is a failure
        return False
    return True


@pytest.mark.parametrize("body", BODIES)
def test_each_assertion_fails_alone(body: str) -> None:
    source = source_of(body)
    found = list(find_singles(source.function(("test",)), source))
    numbers = {node.value for node in ast.walk(source.tree) if isinstance(node, ast.Constant) and node.value}
    for wrong in numbers:
        ends = {line: passes(source.apply_edits(edits).decode(), f=Product({wrong})) for line, edits in found}
        lines = [node.lineno for node in ast.walk(source.tree) if is_about(node, wrong)]
        assert {line for line, passed in ends.items() if not passed} <= set(lines)
        assert not any(ends.get(line) for line in lines)


def is_about(node: ast.AST, number: int) -> bool:
    """Whether a node is an assertion about a number."""
    if not isinstance(node, ast.Assert | ast.Expr):
        return False
    calls = [part for part in ast.walk(node) if isinstance(part, ast.Call) and isinstance(part.func, ast.Name)]
    return any(isinstance(part, ast.Constant) and part.value == number for call in calls for part in call.args)


def test_what_an_assertion_waits_for_is_not_dropped() -> None:
    source = source_of("with self.assertRaises(ValueError):\n    f(-1)\nassert f(1) == 1")
    found = dict(find_singles(source.function(("test",)), source))
    assert sorted(found) == [2, 4]
    assert passes(source.apply_edits(found[2]).decode(), f=Product({1}))
    assert not passes(source.apply_edits(found[2]).decode(), f=abs)
    assert passes(source.apply_edits(found[4]).decode(), f=abs)


def test_statements_that_share_a_line_stay() -> None:
    source = source_of("assert f(1) == 1; assert f(2) == 2\nassert f(3) == 3")
    found = list(find_singles(source.function(("test",)), source))
    assert [line for line, _ in found] == [2, 2, 3]
    assert not passes(source.apply_edits(found[2][1]).decode(), f=Product({1}))
    assert passes(source.apply_edits(found[0][1]).decode(), f=Product({3}))
