"""Records as lines: cut anywhere, they are the whole episodes before the cut. Those of former versions are read too."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_gym.errors import UsageError
from swe_gym.files import whole_lines
from swe_gym.trajectories.run_folder import read_live_file
from swe_gym.trajectories.trajectory import (
    Trajectory,
    Turn,
    end_of_records,
    find_records,
    join_record,
    parse_line,
    split_record,
)

TEXTS = st.text(st.characters(), max_size=12) | st.sampled_from(
    ['"turns": [', '}}, {"action": "', "\n", '"outcome"', "\udfff\ud800"]
)
PLAIN = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | TEXTS
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2))
NAMES = st.sampled_from(["turns", "task_id", "action", "outcome", "observation"]) | TEXTS
TURNS = st.builds(
    Turn,
    action=TEXTS,
    thought=TEXTS,
    arguments=st.dictionaries(NAMES, VALUES, max_size=2),
    observation=TEXTS,
    info=st.dictionaries(NAMES, VALUES, max_size=2),
    reward=st.floats(allow_nan=False, allow_infinity=False),
)


def record(*turns: Turn, **changes: Any) -> Trajectory:
    fields = {"task_id": "a", "observation": "o", "outcome": "submitted", "reward_valid": True, "resolved": False}
    return Trajectory.model_validate({**fields, "reward": 0.0, "turns": turns, **changes})


EPISODES = st.lists(
    st.builds(
        lambda turns, observation, env: record(*turns, observation=observation, env=env),
        st.lists(TURNS, max_size=3),
        TEXTS,
        st.dictionaries(NAMES, VALUES, max_size=2),
    ),
    max_size=3,
)


@given(episodes=EPISODES, part=st.floats(0, 1))
def test_a_cut_leaves_the_whole_episodes_before_it(
    episodes: list[Trajectory], part: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("cut") / "records.jsonl"
    ends = [0]
    for one in episodes:
        one.append(path)
        ends.append(path.stat().st_size)
    cut = int(part * ends[-1])
    path.write_bytes((path.read_bytes() if episodes else b"")[:cut])
    whole = sum(end <= cut for end in ends) - 1
    found = list(find_records(whole_lines(path)))
    assert [Trajectory.from_lines(one.lines) for one in found] == episodes[:whole]
    assert [(one.place, one.place + one.length) for one in found] == list(itertools.pairwise(ends))[:whole]
    with path.open("rb") as file:
        assert end_of_records(file) == ends[whole]
    path.write_bytes(path.read_bytes()[: ends[whole + 1] - 2] if cut < ends[-1] else path.read_bytes())
    assert list(Trajectory.read(path)) == episodes[:whole]
    record(task_id="next").append(path)
    assert list(Trajectory.read(path)) == [*episodes[:whole], record(task_id="next")]


@given(episodes=EPISODES)
def test_a_record_of_one_line_is_read_as_its_lines_are(
    episodes: list[Trajectory], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("whole") / "records.jsonl"
    path.write_text("".join(json.dumps(one.model_dump()) + "\n" for one in episodes))
    assert list(Trajectory.read(path)) == episodes
    for one in episodes:
        whole = json.loads(json.dumps(one.model_dump()))
        assert join_record(split_record(whole)) == whole
        one.append(path)
    assert list(Trajectory.read(path)) == episodes * 2


def test_every_field_is_on_one_line() -> None:
    header, turn, result = (json.loads(line) for line in record(Turn(action="a", observation="o")).to_lines())
    assert {*header, *result} == Trajectory.model_fields.keys() - {"turns"}
    assert not header.keys() & result.keys()
    assert turn.keys() == Turn.model_fields.keys()
    assert "observation" in header
    assert "outcome" in result


def lines(*episodes: Trajectory) -> list[str]:
    return [line for one in episodes for line in one.to_lines()]


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda found: found[:2] + found[3:], 1),  # no result, before another header
        (lambda found: found[1:], 1),  # no header
        (lambda found: [found[0], "no JSON", *found[2:]], 1),
        (lambda found: [found[0], "5", *found[2:]], 1),
        (lambda found: found[:3] + found[4:], 4),
        (lambda found: [*found[:3], "{}", *found[3:]], 4),
    ],
)
def test_an_invalid_record_is_named_and_the_others_are_read(tmp_path: Path, change: Any, place: int) -> None:
    path = tmp_path / "records.jsonl"
    turn = Turn(action="a", observation="o")
    written = change(lines(record(turn, task_id="one"), record(turn, task_id="two")))
    path.write_text("".join(line + "\n" for line in written))
    with pytest.raises(UsageError, match=f"records.jsonl, line {place}: not a trajectory of version 1"):
        list(Trajectory.read(path))
    good = []
    for found in find_records(whole_lines(path)):
        try:
            good.append(Trajectory.from_lines(found.lines).task_id)
        except UsageError:
            continue
    assert good in (["one"], ["two"], ["one", "two"])


@pytest.mark.parametrize("header", ["today's", "former"])
def test_a_running_episode_is_its_lines_so_far(tmp_path: Path, header: str) -> None:
    path, turn = tmp_path / "a.0.jsonl", Turn(action="\ud800", observation="o", seconds=2.0)
    beginning = record(outcome="running", reward_valid=False)
    data = beginning.model_dump(exclude={"turns"} if header == "today's" else set())
    path.write_text("".join(json.dumps(line) + "\n" for line in (data, turn.model_dump())) + '{"action": "')
    found = read_live_file(path)
    assert found is not None
    assert (found.turns, found.outcome, found.seconds["tools"]) == ((turn,), "running", 2.0)


def test_numbers_and_surrogates_are_what_was_written() -> None:
    value = {"a": "\ud800", "b": 5e-324, "c": 2**70, "d": [1e308, -0.0], "é": float("inf")}
    assert parse_line(json.dumps(value)) == value
    assert parse_line(json.dumps({**value, "a": ""})) == {**value, "a": ""}
    for line in (b"[]", b"\xff", b'{"a": 1', b""):
        assert isinstance(parse_line(line), ValueError)
