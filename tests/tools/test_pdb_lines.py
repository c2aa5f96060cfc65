import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_gym.tools.editing import moved_lines

OLD = ["def f(x):", "    y = x", "    z = y + 1", "    return z", "", "print(f(1))"]


def test_an_unchanged_text_keeps_every_line() -> None:
    assert moved_lines(OLD, OLD) == {line: line for line in range(1, 7)}


def test_lines_move_with_insertions_and_deletions_above() -> None:
    assert moved_lines(OLD, ["import os", "", *OLD])[3] == 5
    assert moved_lines(OLD, OLD[2:])[4] == 2


def test_a_deleted_line_has_no_place() -> None:
    assert 3 not in moved_lines(OLD, OLD[:2] + OLD[3:])
    assert moved_lines(OLD, []) == {}


def test_a_rewritten_line_keeps_its_place() -> None:
    assert moved_lines(OLD, [*OLD[:2], "    z = y - 1", *OLD[3:]])[3] == 3


def test_a_rewritten_line_among_new_ones_is_found_by_similarity() -> None:
    moved = moved_lines(OLD, [*OLD[:2], "    if not y:", "        return 0", "    z = y + 2", "    w = 0", *OLD[3:]])

    assert moved[3] == 5
    assert moved[4] == 7


def test_a_line_that_is_replaced_by_something_else_is_gone() -> None:
    assert 3 not in moved_lines(OLD, [*OLD[:2], "    for item in range(10):", "        pass", *OLD[3:]])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (range(20_000), [f"    {number}" for number in range(20_001)]),
        (["x = 1"] * 300_000, ["x = 2", *["x = 1"] * 300_000]),
    ],
    ids=["every line rewritten", "one line again and again"],
)
@pytest.mark.timeout(120)  # comparing all pairs of lines would take hours
def test_a_large_file_takes_linear_time(old: list[str], new: list[str]) -> None:
    assert len(moved_lines([str(line) for line in old], new)) <= len(old)


@given(
    st.lists(st.sampled_from(["a = 1", "b = 2", "", "    return"]), max_size=12),
    st.lists(st.sampled_from(["a = 1", "b = 2", "", "    return", "a = 2"]), max_size=12),
)
def test_places_exist_and_keep_their_order(old: list[str], new: list[str]) -> None:
    moved = moved_lines(old, new)

    assert all(1 <= line <= len(old) and 1 <= place <= len(new) for line, place in moved.items())
    places = [moved[line] for line in sorted(moved)]
    assert places == sorted(set(places))
