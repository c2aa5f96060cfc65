"""Rollouts with a model whose server fails."""

import itertools
import json
import random
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from swe_gym.cli.common import open_console
from swe_gym.cli.rollout_display import print_results, progress_line
from swe_gym.errors import UsageError
from swe_gym.rollout.engine import RolloutOptions, RolloutStopped, rollout
from swe_gym.rollout.plan import Plan
from swe_gym.rollout.progress import Progress, RolloutBudget
from swe_gym.tasks.file import write_tasks
from swe_gym.testing.loopback import HttpAnswer
from swe_gym.testing.openai_server import CHAT, ModelReply, OpenAIServer, error_body
from swe_gym.trajectories.comparison import compare
from swe_gym.trajectories.run_folder import FAILED, read_index
from swe_gym.trajectories.trajectory import Trajectory
from swe_gym.types import Task
from swe_gym.viewer.results import write_results
from swe_gym_command import main

pytest.importorskip("openai")

REPAIR = ("bash", json.dumps({"command": "sed -i 's/a - b/a + b/' calc.py"}))
NONSENSE = [
    ModelReply(content="I think about it."),
    ModelReply(tool_calls=[("bash", '{"command": "ls')]),
    ModelReply(tool_calls=[("sing", "{}")]),
    ModelReply(content="<tool_call>{"),
]


def player(request: dict[str, Any]) -> ModelReply:
    """A model that says nonsense, then repairs the task, then submits."""
    said = [message for message in request["messages"] if message["role"] == "assistant"]
    if len(said) < 2:
        return NONSENSE[len(str(request)) % len(NONSENSE)]
    return ModelReply(tool_calls=[REPAIR if len(said) == 2 else ("submit", "{}")])


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


def test_a_server_that_fails_two_of_five_requests_shows_in_the_run(
    adder: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers, seen = itertools.count(), []
    waits = threading.Event()

    def reply(request: dict[str, Any]) -> ModelReply:
        if next(numbers) % 5 in (1, 3):
            raise HttpAnswer(500, error_body(500, "busy"), {"Retry-After": "0.01"})
        said = sum(message["role"] == "assistant" for message in request["messages"])
        if said == 3:
            assert waits.wait(60)  # the retries are seen while the episode runs
        return ModelReply(tool_calls=[("submit", "{}") if said == 4 else ("bash", '{"command": "true"}')])

    def follow(progress: Progress) -> None:
        seen.append(progress)
        if progress.usage.retries:
            waits.set()

    with OpenAIServer(reply) as server:
        plan = plan_for(server, adder, tmp_path, attempts=1, retries=5, deadline=60.0, timeout=60.0)
        rollout(plan, tmp_path / "run", on_progress=follow)
    assert any(one.usage.retries and one.running for one in seen)
    last = seen[-1]
    assert (last.failed_tries, last.usage.calls, last.usage.retries) == (0, 5, 3)
    assert ", 3 of 8 requests sent again, " in progress_line(last)
    (entry,) = read_index(tmp_path / "run")
    assert entry.usage.retries == 3
    found = write_results(tmp_path / "run")
    assert (found["requests"], found["retries"]) == (5, 3)
    print_results(open_console(), {**found, "folder": ""})
    assert "requests      5 answered, 3 failed and sent again" in capsys.readouterr().out


def test_a_limited_cost_needs_prices_before_anything_starts(adder: Task, tmp_path: Path) -> None:
    cost = RolloutBudget(cost=1.0)
    with OpenAIServer(player) as server:
        plan = plan_for(server, adder, tmp_path, attempts=1, prices=None)
        with pytest.raises(UsageError, match="the price of the model is unknown"):
            rollout(plan.model_copy(update={"budget": cost}), tmp_path / "run")
        rollout(plan, tmp_path / "run")
        priced = plan_for(server, adder, tmp_path, attempts=2)
        again = rollout(priced, tmp_path / "run", RolloutOptions(budget=cost))
    assert again.progress.usage.cost is not None  # the price counts for what was spent before


def test_cached_tokens_without_a_price_are_billed_in_full_and_the_results_say_so(
    adder: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def reply(request: dict[str, Any]) -> ModelReply:  # noqa: ARG001  whatever it is asked
        return ModelReply(tool_calls=[("submit", "{}")], cached_tokens=100)

    said = "Cached prompt tokens are billed in full: set policy.prices.cached"
    with OpenAIServer(reply) as server:
        costs = []
        for prices in ({"input": 1e6, "output": 0.0}, {"input": 1e6, "cached": 1e5, "output": 0.0}):
            rollout(plan_for(server, adder, tmp_path, attempts=1, prices=prices), tmp_path / "run")
            found = write_results(tmp_path / "run")
            costs.append(found["cost"])
            print_results(open_console(), {**found, "folder": ""})
            assert (said in capsys.readouterr().out) == found["cached_at_full_price"] == ("cached" not in prices)
            copy = shutil.copytree(tmp_path / "run", tmp_path / f"copy{len(costs)}")
            warnings = compare([tmp_path / "run", copy]).warnings
            assert any("billed at the full price" in warning for warning in warnings) == ("cached" not in prices)
    assert costs[0] - costs[1] == pytest.approx(90.0)


def forgetful(request: dict[str, Any]) -> ModelReply:
    """A server that tells no tokens of its second answer."""
    said = sum(message["role"] == "assistant" for message in request["messages"])
    if said == 1:
        call = {"id": "1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "true"}'}}
        raise HttpAnswer(200, {"choices": [{"message": {"content": None, "tool_calls": [call]}}]})
    return ModelReply(tool_calls=[("submit", "{}") if said == 3 else ("bash", '{"command": "true"}')])


def test_tokens_that_the_server_does_not_tell_are_counted_and_make_the_cost_unknown(
    adder: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Progress] = []
    with OpenAIServer(forgetful) as server:
        rollout(plan_for(server, adder, tmp_path, attempts=1), tmp_path / "run", on_progress=seen.append)
    found = write_results(tmp_path / "run")
    assert (found["requests"], found["uncounted"], found["cost"]) == (4, 1, None)
    assert progress_line(seen[-1]).endswith("unknown tokens of 1 answers")
    print_results(open_console(), {**found, "folder": ""})
    told = capsys.readouterr().out
    assert "cost          unknown tokens of 1 answers\n" in told
    assert "completion; besides, those of 1 answers, which the server did not tell" in told
    (one,) = compare([tmp_path / "run", shutil.copytree(tmp_path / "run", tmp_path / "copy")]).warnings[:1]
    assert one == "run: the server did not tell the tokens of 1 of 4 answers, which its tokens leave out"


@pytest.mark.parametrize("limit", [{"tokens": 10**6}, {"cost": 100.0}], ids=["tokens", "cost"])
def test_a_budget_that_cannot_be_counted_is_reached(adder: Task, tmp_path: Path, limit: dict[str, Any]) -> None:
    with OpenAIServer(forgetful) as server:
        plan = plan_for(server, adder, tmp_path, attempts=9)
        how = RolloutOptions(workers=1, budget=RolloutBudget(**limit))
        result = rollout(plan, tmp_path / "run", how)
        (name,) = limit
        told = f"the run's budget is used up: {name} (the server did not tell those of 1 answers)"
        assert (result.progress.done, result.progress.stopping) == (1, told)
        with pytest.raises(UsageError, match="holds 1 answers whose tokens the server did not tell"):
            rollout(plan, tmp_path / "run", how)
        episode = plan.model_copy(update={"attempts": 1, "budget": RolloutBudget(**limit)})
        rollout(episode, tmp_path / "episode")
    (entry,) = read_index(tmp_path / "episode")
    assert (entry.outcome, entry.reason, entry.turns) == ("agent_limit", name, 2)


def test_requests_are_told_also_if_none_is_answered(
    adder: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with OpenAIServer(player) as server:
        server.inject(CHAT, status=503, times=None, headers={"Retry-After": "0.01"})
        rollout(plan_for(server, adder, tmp_path, attempts=1), tmp_path / "run", RolloutOptions(retries=0))
    print_results(open_console(), {**write_results(tmp_path / "run"), "folder": ""})
    assert "requests      0 answered, 1 failed and sent again" in capsys.readouterr().out


def test_invalid_calls_and_shortened_conversations_are_totalled(
    adder: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def malformed(request: dict[str, Any]) -> ModelReply:
        said = sum(message["role"] == "assistant" for message in request["messages"])
        return ModelReply(tool_calls=[("submit", "{}") if said == 4 else ("bash", '{"command": "yes')])

    def long(request: dict[str, Any]) -> ModelReply:  # noqa: ARG001  whatever it is asked
        return ModelReply(tool_calls=[("bash", json.dumps({"command": "yes | head -c 9000"}))])

    for name, reply, limit in (("malformed", malformed, None), ("long", long, 15_000)):
        with OpenAIServer(reply, context_length=limit) as server:
            plan = plan_for(server, adder, tmp_path, attempts=1, context=limit, max_tokens=500)
            rollout(plan.model_copy(update={"env": {"max_turns": 6}}), tmp_path / name)
        print_results(open_console(), {**write_results(tmp_path / name), "folder": ""})
    told = capsys.readouterr().out
    assert "invalid calls 4 of 5 turns (80%)" in told
    assert "shortened     the conversations of 1 episode, to fit the model's context" in told
    malformed_run, long_run = compare([tmp_path / "malformed", tmp_path / "long"]).runs
    assert (malformed_run.invalid_calls, malformed_run.all_turns, malformed_run.shortened) == (4, 5, 0)
    assert (long_run.invalid_calls, long_run.shortened) == (0, 1)
    with pytest.raises(SystemExit):
        main(["compare", str(tmp_path / "malformed"), str(tmp_path / "long")])
    assert "malformed 5 4 (80%) 0 0 0".split() in [line.split() for line in capsys.readouterr().out.splitlines()]


def test_a_server_that_is_down_stops_the_run(adder: Task, tmp_path: Path) -> None:
    with OpenAIServer(player) as server:
        plan = plan_for(server, adder, tmp_path, attempts=200, retries=0)
    with pytest.raises(RolloutStopped, match=r"x PolicyError \(connection\) in policy"):
        rollout(plan, tmp_path / "run", RolloutOptions(workers=4, retries=0))
    assert not read_index(tmp_path / "run")


def test_a_conversation_that_grows_too_long_is_graded_or_shortened(adder: Task, tmp_path: Path) -> None:
    long = ("bash", json.dumps({"command": "yes | head -c 12000"}))
    with OpenAIServer(lambda request: ModelReply(tool_calls=[long]), context_length=9_000) as server:  # noqa: ARG005
        plan = plan_for(server, adder, tmp_path, attempts=2, max_tokens=500)
        result = rollout(plan.model_copy(update={"env": {"max_turns": 6}}), tmp_path / "run")
    assert result.progress.done == 2
    assert set(result.progress.outcomes) <= {"turns", "context"}
