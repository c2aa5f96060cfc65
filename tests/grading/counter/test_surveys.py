"""Texts in which no assertion fails a test, and each says whether it passes."""

import ast
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from test_texts import source_of

from swe_gym.grading.counter.changes import asserting
from swe_gym.grading.probe import survey_ends, survey_values

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


def survey(body: str, tmp_path: Path, values: bool = False, **names: Any) -> list[Any]:
    """What a survey writes down."""
    source, path = source_of(body), tmp_path / f"notes-{len(list(tmp_path.iterdir()))}"
    edits = (survey_values if values else survey_ends)(source.function(("test",)), source, str(path))
    exec(compile(source.apply_edits(edits).decode(), "t.py", "exec"), names)
    names["test"](unittest.TestCase())
    return [ast.literal_eval(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("body", BODIES)
def test_each_assertion_says_whether_it_passes(body: str, tmp_path: Path) -> None:
    source = source_of(body)
    found = {statement.lineno for statement in asserting(source.function(("test",)), source)}
    for wrong in (*range(1, 7), 99):
        passed = {line for (line,) in survey(body, tmp_path, f=Product({wrong}))}
        statements = (node for node in ast.walk(source.tree) if isinstance(node, ast.Assert | ast.Expr))
        assert passed == found - {node.lineno for node in statements if is_about(node, wrong)}


def is_about(node: ast.stmt, number: int) -> bool:
    """Whether a statement is about a number."""
    calls = [part for part in ast.walk(node) if isinstance(part, ast.Call) and isinstance(part.func, ast.Name)]
    return any(isinstance(part, ast.Constant) and part.value == number for call in calls for part in call.args)


def test_what_an_assertion_waits_for_is_not_dropped(tmp_path: Path) -> None:
    body = "with self.assertRaises(ValueError):\n    f(-1)\nassert f(1) == 1"
    assert survey(body, tmp_path, f=Product({1})) == [(2,)]
    assert survey(body, tmp_path, f=abs) == [(4,)]


def test_statements_that_share_a_line_stay(tmp_path: Path) -> None:
    body = "assert f(1) == 1; assert f(2) == 2\nassert f(3) == 3"
    assert survey(body, tmp_path, f=Product({3})) == []
    assert survey(body, tmp_path, f=Product(set())) == [(3,)]
    with pytest.raises(AssertionError):
        survey(body, tmp_path, f=Product({1}))


@pytest.mark.parametrize("values", [False, True])
def test_a_test_that_replaces_open_is_surveyed_too(values: bool, tmp_path: Path) -> None:
    with mock.patch("builtins.open", side_effect=OSError):
        source, path = source_of("assert f(1) == 1\nassert f(2) == 2"), tmp_path / "notes"
        edits = (survey_values if values else survey_ends)(source.function(("test",)), source, str(path))
        names: dict[str, Any] = {"f": Product({2})}
        exec(compile(source.apply_edits(edits).decode(), "t.py", "exec"), names)
        names["test"](None)
    assert path.read_text() == ("(3, '2', '0')\n" if values else "(2,)\n")


def test_values_are_written_down_where_they_differ(tmp_path: Path) -> None:
    body = "assert f(1) == 1\nself.assertEqual(f(2), 2)\nassert f(3) == 3"
    assert survey(body, tmp_path, values=True, f=Product({1, 2})) == [(2, "1", "0"), (3, "2", "0")]
