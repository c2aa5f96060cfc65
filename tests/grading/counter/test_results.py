"""Expected values that differ from the result of wrong work as the right one does."""

import ast
from difflib import SequenceMatcher
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_gym.grading.counter.language import Language
from swe_gym.grading.counter.results import are_alike, other_results, written
from swe_gym.grading.counter.source import Source

FILE = b"""
def test():
    assert f("cash wages") == "rent and wages"
    assert f("2 ** (3 ** 2)") == "2 ** 3 ** 2"
    assert f("2024-02-01") == ["rotor", "month", "ledger", "station", "deep", "number"]
"""
SOURCE = Source(FILE)
LANGUAGE = Language(SOURCE.function(("test",)), SOURCE)
COUNT = 7

PAIRS = {
    "brackets": ("(2 ** 3) ** 2", "2 ** 3 ** 2"),
    "days": (["2024-02-29", "2024-03-31"], ["2024-02-28", "2024-03-28"]),
    "one more": (["cash", "wages", "rent"], ["cash", "wages", "rent", "gifts"]),
    "one less": (["cash", "wages", "rent", "gifts"], ["cash", "rent", "gifts"]),
    "repeated": ("{'lines': ['a', 'b', 'c']}", "{'lines': ['a', 'b', 'c', 'b', 'c']}"),
    "next number": (12, 13),
    "fraction": (3.5, 3.25),
    "ticks": ([True, True, False, False], [False, False, False, False]),
    "rows": ([(429, "45"), (429, "30"), (429, "15")], [(429, "60"), (429, "60"), (429, "60")]),
    "item": ({"cash": "-900.00", "rent": "0.00"}, {"cash": "-900.00", "rent": "850.00"}),
    "digits": ("000000010000000100000001", "000000000000000000000000"),
    "bytes": (b"[a]\r\nx = 1\r\ny = 2\r\n", b"[a]\nx = 1\ny = 2\n"),
    "case": ("Green Tea", "green Tea"),
}


def nearness(value: Any, wrong: Any) -> float:
    if isinstance(value, int | float):
        return -abs(value - wrong)
    return SequenceMatcher(None, repr(value), repr(wrong), False).ratio()


def drawn(right: Any, wrong: Any, seed: int = 0) -> list[Any]:
    return other_results(right, wrong, LANGUAGE, Random(seed), COUNT)


@pytest.mark.parametrize(("right", "wrong"), PAIRS.values(), ids=PAIRS)
def test_values_are_neither_right_nor_wrong(right: Any, wrong: Any) -> None:
    for seed in range(20):
        values = drawn(right, wrong, seed)
        assert 0 < len(values) <= COUNT
        assert right not in values
        assert wrong not in values
        assert len({repr(value) for value in values}) == len(values)
        assert {type(value) for value in values} == {type(right)}


CROWDED = [name for name in PAIRS if name not in ("repeated", "one less", "item", "case", "bytes", "one more")]
"""Pairs that leave enough other values on both sides."""


@pytest.mark.parametrize("name", CROWDED)
def test_the_value_nearest_to_the_wrong_one_is_seldom_right(name: str) -> None:
    right, wrong = PAIRS[name]
    won = 0.0
    for seed in range(100):
        scores = [nearness(value, wrong) for value in (right, *drawn(right, wrong, seed))]
        best = [score == max(scores) for score in scores]
        won += best[0] / sum(best)  # a guess among equal ones
    assert won <= 50


def test_what_both_values_share_stays() -> None:
    for seed in range(20):
        assert all(value.startswith("2024-02-") for value in drawn("2024-02-29", "2024-02-28", seed))


def test_brackets_nest_if_those_of_the_right_value_do() -> None:
    for seed in range(20):
        for value in drawn(*PAIRS["brackets"], seed):
            assert value.count("(") == value.count(")")
            assert value.find("(") < value.rfind(")")


@pytest.mark.parametrize(
    ("right", "wrong"), [("12", None), (2, None), (True, False), ("error", "120"), (1, 1), ([], ())]
)
def test_values_that_have_nothing_in_common_are_left_alone(right: Any, wrong: Any) -> None:
    assert not are_alike(right, wrong)
    assert drawn(right, wrong) == []


def test_large_values() -> None:
    lines = [f"| {number} | station {number % 7} |" for number in range(200)]
    right, wrong = "\n".join(lines), "\n".join([*lines[:20], *lines[25:]])
    assert drawn(right, wrong) == []
    assert drawn(right[:900], right[:450] + right[455:900])
    assert drawn(10**4000, 3) == drawn(3, 10**4000) == []


class CountingRandom(Random):
    """Counts how often it is asked for bits."""

    asked = 0

    def getrandbits(self, k: int, /) -> int:
        self.asked += 1
        return super().getrandbits(k)


def test_a_superscript_in_the_place_of_a_number_is_not_read_as_one() -> None:
    assert all(value.startswith("area ") for value in drawn("area 2 m", "area ² m"))
    assert not drawn("area ² m", "area 2 m")


def test_nested_values_take_few_draws() -> None:
    days = ["2024-02-29", "2024-03-31", "2024-04-30"]
    right: Any = {"days": [[days, days[:2]], [days[1:], days]]}
    rng = CountingRandom(0)
    wrong = ast.literal_eval(repr(right).replace("30", "28").replace("31", "29"))
    assert other_results(right, wrong, LANGUAGE, rng, COUNT)
    assert rng.asked < 20_000


VALUES = st.recursive(
    st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary()
    | st.none()
    | st.booleans(),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(VALUES, VALUES, st.integers(0, 9))
def test_any_two_values(right: Any, wrong: Any, seed: int) -> None:
    values = drawn(right, wrong, seed)
    assert right not in values
    assert wrong not in values


@settings(deadline=None)
@given(VALUES)
def test_what_is_written_is_the_value(value: Any) -> None:
    for quote in "'\"":
        assert repr(ast.literal_eval(written(value, quote))) == repr(value)
