"""Tests of the keeper of a test run: what code of the work may learn from it, and what it records."""

import json
from pathlib import Path
from typing import Any

import pytest

from swe_gym.guests.keeper import Keeper

TEXTS = [["zero"], ["one"], ["two"]]


@pytest.fixture
def keeper(tmp_path: Path) -> Keeper:
    groups = [{"texts": TEXTS, "plain": TEXTS[1], "passing": [1], "required": []} for _ in range(2)]
    return Keeper({"key": "00", "report": str(tmp_path / "report"), "groups": groups, "stops": True})


def lines(tmp_path: Path) -> list[dict[str, Any]]:
    report = tmp_path / "report"
    text = report.read_text("utf-8") if report.exists() else ""
    return [json.loads(line.partition(" ")[2]) for line in text.splitlines()]


def test_a_text_is_given_after_the_answer_to_the_one_before(keeper: Keeper) -> None:
    assert keeper.answer({"text": 0}) == TEXTS[0]
    assert keeper.answer({"text": 0}) is None
    keeper._take_played(0, {}, "")
    assert keeper.answer({"text": 0}) == TEXTS[1]


def test_nothing_is_left_to_prove_once_a_text_failed_that_right_work_passes(tmp_path: Path) -> None:
    group = {"texts": ["a", "b", "c"], "plain": "p", "passing": [0, 1], "required": []}
    keeper = Keeper({"key": "00", "report": str(tmp_path / "report"), "groups": [group], "stops": True})
    for ends in ({"t": "passed"}, {"t": "failed"}):
        assert keeper.answer({"text": 0})
        keeper._take_played(0, ends, "")
    assert (keeper.answer({"text": 0}), keeper.answer({"settle": 0})) == (None, "p")


@pytest.mark.parametrize("number", [-1, -2, True, 1.0, "1", None])
@pytest.mark.parametrize("request_", ["begin", "text", "settle"])
def test_a_group_has_one_number(keeper: Keeper, request_: str, number: object) -> None:
    """An answer under a second number would count for no group, and an error in it would reveal all originals."""
    with pytest.raises((ValueError, TypeError)):
        keeper.answer({request_: number})


def test_an_answer_under_another_number_is_refused(keeper: Keeper, tmp_path: Path) -> None:
    keeper.answer({"text": 1})
    with pytest.raises(ValueError, match="number"):
        keeper._take_played(-1, {}, "lost")
    assert lines(tmp_path) == []
    assert keeper.answer({"settle": 0}) is None


def test_the_original_is_given_when_all_texts_are_answered(keeper: Keeper) -> None:
    for _ in TEXTS:
        assert keeper.answer({"settle": 0}) is None
        keeper.answer({"text": 0})
        keeper._take_played(0, {"test": "passed"}, "")
    assert keeper.answer({"settle": 0}) == TEXTS[1]


def test_whoever_learns_the_original_of_a_group_early_gets_no_text_of_it(keeper: Keeper, tmp_path: Path) -> None:
    keeper.answer({"text": 0})
    keeper._take_played(0, {}, "hung")
    assert keeper.answer({"settle": 1}) == TEXTS[1]
    assert keeper.answer({"text": 1}) is None
    keeper._take_played(1, {"test": "passed"}, "")
    assert [line["group"] for line in lines(tmp_path)] == [0]


def test_a_group_that_has_begun_is_not_given_away_when_another_one_is_lost(keeper: Keeper) -> None:
    keeper.answer({"text": 1})
    keeper.answer({"text": 0})
    keeper._take_played(0, {}, "hung")
    assert keeper.answer({"settle": 1}) is None


def test_a_runner_that_has_started_is_not_absent(keeper: Keeper, tmp_path: Path) -> None:
    for event in ("started", "absent", "end"):
        keeper._take_event({"event": event})
    assert [line["event"] for line in lines(tmp_path)] == ["started", "end"]
