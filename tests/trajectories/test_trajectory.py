"""Trajectories: token rows, usage, and files that are still being written."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from swe_gym.errors import UsageError
from swe_gym.trajectories.trajectory import Prices, Segment, Trajectory, Usage, why_ended

ROW: dict[str, Any] = {
    "token_ids": (5, 6, 7),
    "loss_mask": (0, 1, 1),
    "logprobs": (0.0, -0.25, -1.5),
    "versions": (-1, 3, 4),
}


def trajectory(**fields: Any) -> Trajectory:
    facts = {"observation": "", "turns": (), "outcome": "running", "reward_valid": False, "resolved": False}
    return Trajectory(**{"task_id": "a", "reward": 0.0, **facts, **fields})


def test_a_segment_comes_back_to_the_bit() -> None:
    one = trajectory(segments=(Segment(**ROW, temperature=0.7),))
    assert Trajectory.from_lines([json.loads(line) for line in one.to_lines()]) == one


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token_ids": (5, 6)}, "the same length"),
        ({"loss_mask": (0, 1, 2)}, "must be 0 or 1"),
        ({"logprobs": (0.0, float("nan"), -1.0)}, "logprobs finite"),
        ({"logprobs": (-0.1, -0.25, -1.5)}, "must have logprob 0.0"),
        ({"versions": (0, 3, 4)}, "version -1"),
    ],
)
def test_inconsistent_token_rows_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Segment(**(ROW | change))


def test_usage_adds_up() -> None:
    one = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=2, calls=1, cost=0.5)
    both = one + Usage(prompt_tokens=1, calls=1, retries=3, cost=0.25)
    assert both == Usage(prompt_tokens=11, cached_tokens=4, completion_tokens=2, calls=2, retries=3, cost=0.75)
    assert both.tokens == 13


def test_a_sum_with_an_unknown_cost_is_unknown() -> None:
    paid, unknown = Usage(prompt_tokens=10, calls=1, cost=0.5), Usage(prompt_tokens=1, calls=1)
    assert (paid + unknown).cost is (unknown + paid).cost is (Usage() + unknown).cost is Usage().cost is None
    assert (Usage() + paid + Usage(retries=2)).cost == 0.5
    assert unknown.priced(Prices()).cost == 0.0
    assert Usage(calls=1).priced(Prices(input=1.0)).cost is None  # the server told no tokens
    assert Usage(calls=2, prompt_tokens=9, uncounted=1, cost=0.5).priced(Prices(input=1.0)).cost is None
    assert Usage(retries=2).priced(Prices(input=1.0)).cost is None  # none was answered
    assert Usage(cached_answers=2).priced(Prices(input=1.0)).cost == 0.0


def test_an_unknown_cost_of_the_first_version_is_unknown() -> None:
    old = {"prompt_tokens": 7, "cached_tokens": 0, "completion_tokens": 1, "calls": 1, "cost": 0.0}
    assert Usage.model_validate(old).cost is None
    assert Usage.model_validate({**old, "cost": 0.5}).cost == 0.5
    assert Usage.model_validate({**old, "retries": 0}).cost == 0.0


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        ({"outcome": "submitted", "limit": "", "failure": ""}, "submit"),
        ({"outcome": "agent_limit", "limit": "turns", "failure": ""}, "turns"),
        (
            {"outcome": "infra_failed", "limit": "", "failure": "SandboxLost (oom): it is gone: 137"},
            "SandboxLost (oom)",
        ),
        ({"outcome": "running", "limit": "", "failure": ""}, ""),
    ],
)
def test_the_stop_reason_is_short(info: dict[str, Any], reason: str) -> None:
    assert why_ended(info) == reason


def test_an_incomplete_last_line_is_skipped_and_an_invalid_one_is_not(tmp_path: Path) -> None:
    line = "\n".join(trajectory().to_lines())
    path = tmp_path / "run.jsonl"
    path.write_text(f"{line}\n{line[:-20]}")
    assert len(list(Trajectory.read(path))) == 1
    path.write_text(f"{line}\n{line}")  # somebody's editor dropped the last newline
    assert len(list(Trajectory.read(path))) == 2
    path.write_text(f"{line[:-20]}\n{line}\n")
    with pytest.raises(UsageError, match="line 1"):
        list(Trajectory.read(path))


@pytest.mark.parametrize(("left", "found"), [("", 2), ("half", 2), ("whole", 3)])
def test_appending_repairs_the_file_of_a_killed_writer(tmp_path: Path, left: str, found: int) -> None:
    path = tmp_path / "run.jsonl"
    trajectory(task_id="first").append(path)
    line = "\n".join(trajectory(task_id="left", observation="x" * 100_000).to_lines())
    with path.open("a") as file:
        file.write({"": "", "half": line[:-20], "whole": line}[left])
    trajectory(task_id="last").append(path)
    tasks = [one.task_id for one in Trajectory.read(path)]
    assert (tasks[0], tasks[-1], len(tasks)) == ("first", "last", found)


def test_without_oracle_removes_verdict_and_failure() -> None:
    one = trajectory(failure="tests/test_hidden.py is missing", reason="GradingError")
    assert one.without_oracle().failure == ""
    assert one.without_oracle().reason == "GradingError"
