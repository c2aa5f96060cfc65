"""Rollouts with a model whose server fails."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from swe_gym.rollout.engine import RolloutOptions, RolloutStopped, rollout
from swe_gym.rollout.plan import Plan
from swe_gym.tasks.file import write_tasks
from swe_gym.testing.openai_server import CHAT, OpenAIServer, Reply
from swe_gym.trajectories.run_folder import FAILED, read_index
from swe_gym.trajectories.trajectory import Trajectory
from swe_gym.types import Task

pytest.importorskip("openai")

REPAIR = ("bash", json.dumps({"command": "sed -i 's/a - b/a + b/' calc.py"}))
NONSENSE = [
    Reply(content="I think about it."),
    Reply(tool_calls=[("bash", '{"command": "ls')]),
    Reply(tool_calls=[("sing", "{}")]),
    Reply(content="<tool_call>{"),
]


def player(request: dict[str, Any]) -> Reply:
    """A model that says nonsense, then repairs the task, then submits."""
    said = [message for message in request["messages"] if message["role"] == "assistant"]
    if len(said) < 2:
        return NONSENSE[len(str(request)) % len(NONSENSE)]
    return Reply(tool_calls=[REPAIR if len(said) == 2 else ("submit", "{}")])


def plan_for(server: OpenAIServer, task: Task, folder: Path, attempts: int, **options: Any) -> Plan:
    path = folder / "tasks.jsonl"
    write_tasks([task], path)
    connection = {"model": server.model, "base_url": server.base_url, "api_key": server.api_key}
    quick = {"timeout": 0.5, "deadline": 3.0, "retries": 1, "prices": {"input": 1.0, "output": 2.0}}
    return Plan(
        source="file",
        source_options={"path": str(path)},
        policy="llm",
        policy_options={**connection, **quick, **options},
        attempts=attempts,
    )


def test_a_run_survives_a_server_that_fails_in_every_way(adder: Task, tmp_path: Path) -> None:
    chance = random.Random(3)
    faults: list[dict[str, Any]] = [
        {"status": 429, "headers": {"Retry-After": "0.05"}, "times": 3},
        {"status": 500, "times": 3},
        {"hang": True, "times": 3},
        {"cut_after": 20, "times": 3},
        {"lose_reply": True, "times": 3},
        {"status": 200, "body": b"<html>", "times": 2},
    ]
    with OpenAIServer(player) as server:
        for fault in faults:
            server.inject(CHAT, skip=chance.randrange(20), **fault)
        plan = plan_for(server, adder, tmp_path, attempts=12)
        how = RolloutOptions(workers=8, retries=3, max_failure_rate=1.0)
        result = rollout(plan, tmp_path / "run", how)
        while result.progress.done < 12:  # what was given up is tried by the next call
            result = rollout(plan, tmp_path / "run", how)
    entries = read_index(tmp_path / "run")
    assert sorted(entry.attempt for entry in entries) == list(range(12))
    assert all(entry.resolved and entry.reason == "submit" for entry in entries)
    reasons = {one.reason for one in Trajectory.read(tmp_path / "run" / FAILED)}
    assert "PolicyError (bad_reply)" in reasons  # no try of the SDK's own hides this one
    assert reasons <= {
        f"PolicyError ({reason})" for reason in ("rate_limit", "server", "timeout", "connection", "bad_reply")
    }
    one = next(result.trajectories())
    assert (one.policy.name, one.policy.model) == ("llm", "scripted")
    assert one.usage.calls == len(one.turns) == 4
    assert one.usage.cost > 0
    assert one.messages[0]["role"] == "system"
    assert one.messages[-1]["role"] == "assistant"
    folder_text = "".join(path.read_text() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert "sk-loopback" not in folder_text


def test_a_server_that_is_down_stops_the_run(adder: Task, tmp_path: Path) -> None:
    with OpenAIServer(player) as server:
        plan = plan_for(server, adder, tmp_path, attempts=200, retries=0)
    with pytest.raises(RolloutStopped, match=r"x PolicyError \(connection\) in policy"):
        rollout(plan, tmp_path / "run", RolloutOptions(workers=4, retries=0))
    assert not read_index(tmp_path / "run")


def test_a_conversation_that_grows_too_long_is_graded_or_shortened(adder: Task, tmp_path: Path) -> None:
    long = ("bash", json.dumps({"command": "yes | head -c 12000"}))
    with OpenAIServer(lambda request: Reply(tool_calls=[long]), context_length=9_000) as server:  # noqa: ARG005
        plan = plan_for(server, adder, tmp_path, attempts=2, max_tokens=500)
        result = rollout(plan.model_copy(update={"env": {"max_turns": 6}}), tmp_path / "run")
    assert result.progress.done == 2
    assert set(result.progress.outcomes) <= {"turns", "context"}
