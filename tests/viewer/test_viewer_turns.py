"""The places of turns in records, also where texts look like the marks around them."""

import json
from pathlib import Path
from typing import Any

import pytest

from swe_gym.errors import UsageError
from swe_gym.trajectories.trajectory import Trajectory, Turn
from swe_gym.viewer import episode
from swe_gym.viewer.episode import LONG, Span, find_turns

INNER = [{"x": {"cost": 1}}, {"action": "x", "observation": "y", "reward": 2}]
"""An argument that has the marks of turns inside."""


def record(*played: Turn) -> Trajectory:
    return Trajectory(
        task_id="a", observation="o", turns=played, outcome="submitted", reward_valid=True, resolved=False, reward=0.0
    )


def as_lines(one: Trajectory) -> str:
    return "\n".join(one.to_lines())


def as_one_object(one: Trajectory) -> str:
    return json.dumps(one.model_dump())


def compact(one: Trajectory) -> str:
    found = map(json.loads, one.to_lines())
    return "\n".join(json.dumps(line, separators=(",", ":"), ensure_ascii=False) for line in found)


RECORDS = {
    "none": record(),
    "one": record(Turn(action="é", observation='}}, {"action": "')),
    "long": record(*(Turn(action=str(n), observation=f"{n}\n" * LONG) for n in range(3))),
    "marks": record(Turn(action="a", arguments={"k": INNER}, observation="z" * LONG), Turn(action="b", observation="")),
    "fields": record(
        Turn(
            action="a",
            arguments={"observation": "in"},
            observation="z" * LONG,
            info={"a": "b", "reward": 1},
        )
    ),
}


@pytest.mark.parametrize("write", [as_lines, compact, as_one_object])
@pytest.mark.parametrize("name", RECORDS)
def test_turns_are_found_where_they_are(tmp_path: Path, name: str, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode, "BLOCK", 1000)
    before, line = b"another line\n", write(RECORDS[name]).encode() + b"\n"
    path = tmp_path / "records.jsonl"
    path.write_bytes(before + line)
    index = find_turns(path, Span(len(before), len(line)))
    assert tuple(index.turn(number + 1) for number in range(len(index.turns))) == RECORDS[name].turns
    assert index.beginning() == RECORDS[name].model_copy(update={"turns": ()})
    assert all(
        one["size"] >= len(turn.observation) for one, turn in zip(index.outline, RECORDS[name].turns, strict=True)
    )


def test_what_is_no_record_and_unknown_turns_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    for invalid in ('{"turns": [{"action": "x"', "{}\n{}\n{}\n", "[]", as_lines(RECORDS["one"])[:-9], ""):
        path.write_text(invalid)
        with pytest.raises(UsageError, match="byte 0: not a trajectory"):
            find_turns(path, Span(0, path.stat().st_size))
    path.write_text(as_lines(record()) + "\n")
    with pytest.raises(UsageError, match="turn 1 is unknown"):
        find_turns(path, Span(0, path.stat().st_size)).turn(1)
