"""rLLM's workflow on real sandboxes, over stand-ins for rLLM's classes (`rllm_stand_in`)."""

import asyncio
import importlib
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import rllm_stand_in
from rllm_stand_in import Engine, TerminationReason, join

from swe_gym.errors import UsageError
from swe_gym.tasks import load_source
from swe_gym.tasks.exporters import rllm_row

SOURCE = {"difficulty": [1], "count": 4}
LOST = {"backend": "fake", "sandbox_options": {"options": {"faults": [{"at": "start", "error": "SandboxStartError"}]}}}


@pytest.fixture
def adapter() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        rllm_stand_in.install(patch)
        yield importlib.import_module("swe_gym.adapters.rllm")
        sys.modules.pop("swe_gym.adapters.rllm")


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    source = load_source("micro", **SOURCE)
    return [rllm_row(source.get(name), number, "micro", SOURCE) for number, name in enumerate(source.ids())]


def bash(command: str) -> str:
    return json.dumps({"name": "bash", "arguments": {"command": command}})


def look_then_solve(prompt: str, turn: int) -> str:
    found = re.search(r"file `(.+?)` with this one word in it: (\w+)", prompt)
    assert found
    return bash(f"printf %s {found[2]} > {found[1]}" if turn else "ls")


def play(adapter: Any, engine: Any, *tasks: Any, **env_args: Any) -> list[Any]:
    agent = {"env_args": {"tools": ["bash"], "max_turns": 2, **env_args}}

    async def together() -> list[Any]:
        workflow = adapter.SweGymWorkflow(rollout_engine=engine, executor=None, agent=agent)
        async with asyncio.timeout(500):
            return await asyncio.gather(*(workflow.run(task, f"{task['task_id']}:0") for task in tasks))

    return asyncio.run(together())


def test_steps_are_the_engines_tokens(adapter: Any, rows: list[dict[str, Any]]) -> None:
    engine = Engine(look_then_solve)
    episodes = play(adapter, engine, *rows)
    assert [episode.is_correct for episode in episodes] == [True] * 4
    for episode in episodes:
        (trajectory,) = episode.trajectories
        calls = engine.calls[episode.id]
        assert [(one.model_output.prompt_ids, one.model_output.completion_ids) for one in trajectory.steps] == calls
        ((ids, mask),) = join(trajectory.steps)  # one row
        assert [token for token, sampled in zip(ids, mask, strict=True) if sampled] == calls[0][1] + calls[1][1]
        assert (trajectory.reward, trajectory.steps[0].model_output.weight_version) == (1.0, 7)
        assert episode.termination_reason == TerminationReason.MAX_TURNS_EXCEEDED


def test_an_episode_that_the_infrastructure_lost_has_no_trajectory(adapter: Any, rows: list[dict[str, Any]]) -> None:
    (episode,) = play(adapter, Engine(look_then_solve), rows[0], **LOST)
    assert (episode.trajectories, episode.is_correct, episode.metrics) == ([], False, {"infra_failed": 1.0})
    assert episode.termination_reason == TerminationReason.UNKNOWN
    assert "SandboxStartError" in episode.metadata["failure"]


def test_mistakes_are_named(adapter: Any) -> None:
    engine = Engine(look_then_solve)
    with pytest.raises(UsageError, match="max_token: Extra inputs"):
        adapter.SweGymWorkflow(rollout_engine=engine, executor=None, agent={"max_token": 5})
    engine.supports_token_in_token_out = False
    with pytest.raises(UsageError, match="use rLLM's backend verl"):
        adapter.SweGymWorkflow(rollout_engine=engine, executor=None)
