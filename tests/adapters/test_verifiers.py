"""Verifiers plays episodes on real sandboxes: by its own command, and in this process."""

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swe_gym.testing.openai_server import ModelReply, OpenAIServer
from swe_gym.types import JsonObject

if "verifiers" not in os.environ.get("SWE_GYM_REQUIRE", "").split(","):
    pytest.importorskip("verifiers", reason="verifiers is tested in a separate environment")

import verifiers.v1 as vf

from swe_gym.adapters.verifiers import KEY, SweTaskset, SweTasksetConfig

HERE = Path(__file__).parent
OPTIONS = {"difficulty": [1], "count": 3, "max_turns": 4}
BROKEN = {
    "backend": "fake",
    "sandbox_options": {"options": {"faults": [{"at": "start", "error": "SandboxStartError"}]}},
}


def answer(request: JsonObject) -> ModelReply:
    """Solve a task of difficulty 1 by native tool calls."""
    messages = [one["content"] for one in request["messages"]]
    texts = [one if isinstance(one, str) else "".join(part["text"] for part in one or []) for one in messages]
    found = re.search(r"file `(.+?)` with this one word in it: (\w+)", " ".join(texts))
    assert found
    if any(one["role"] == "assistant" for one in request["messages"]):
        return ModelReply(tool_calls=[("submit", "{}")])
    return ModelReply("ok", tool_calls=[("bash", json.dumps({"command": f"printf %s {found[2]} > {found[1]}"}))])


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    with OpenAIServer(answer, model="m") as server:
        monkeypatch.setenv("SCRIPTED_KEY", server.api_key)
        yield server


def test_its_own_command(server: OpenAIServer, tmp_path: Path) -> None:
    given = {"env-id": "SWE/Micro-v0", "options": json.dumps(OPTIONS)}
    client = {"base-url": server.base_url, "api-key-var": "SCRIPTED_KEY"}
    options = [word for name, value in given.items() for word in (f"--env.taskset.{name}", value)]
    options += [word for name, value in client.items() for word in (f"--client.{name}", value)]
    command = [Path(sys.executable).with_name("vf-eval"), "swe_for_verifiers", "-m", "m", "-n", "2", "-r", "2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [*command, "--no-push", *options], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = tmp_path.rglob("traces.jsonl")
    traces = [json.loads(line)["traces"][0] for line in file.read_text().splitlines()]
    assert sorted(one["task"]["key"] for one in traces) == [f"SWE/Micro-v0/micro-1-{n}" for n in (0, 0, 1, 1)]
    for one in traces:
        assert (one["ok"], one["errors"], one["rewards"]["reward"]["score"]) == (True, [], 1.0)
        assert (one["info"][KEY]["outcome"], one["metrics"]["resolved"]) == ("submitted", 1.0)
        assert [call.get("error") for call in one["calls"]] == [None, None]


def played(server: OpenAIServer, agent: JsonObject | None = None, **options: Any) -> list[Any]:
    """Play three tasks at once, and return the traces."""
    taskset = {"id": "swe_for_verifiers", "env_id": "SWE/Micro-v0", "options": {**OPTIONS, **options}}
    client = vf.EvalClientConfig(base_url=server.base_url, api_key_var="SCRIPTED_KEY")

    async def main() -> list[Any]:
        env = vf.load_environment(vf.resolve_env_config({"taskset": taskset, "agent": agent or {}}))
        async with env.serving():
            context = vf.ModelContext(model="m", client=client)
            episodes = await asyncio.gather(*(env.run_episode(task, context) for task in env.taskset))
        return [episode.traces[0] for episode in episodes]

    return asyncio.run(main())


def test_a_failure_is_an_error_and_not_a_reward(server: OpenAIServer) -> None:
    for trace in played(server, **BROKEN):
        assert ([error.type for error in trace.errors], trace.ok) == (["HarnessError"], False)
        assert "SandboxStartError" in trace.errors[0].message
        assert not any(trace.rewards.values())
        assert trace.calls == []  # a second try would enter the same trace


def test_a_model_that_fails_is_an_error_of_the_provider(server: OpenAIServer) -> None:
    def refuse(request: JsonObject) -> ModelReply:  # noqa: ARG001  refuses all
        raise server.refuse(403, "no")

    server.reply = refuse
    for trace in played(server):
        assert [error.type for error in trace.errors] == ["ProviderError"]
        assert not any(trace.rewards.values())


def test_the_work_is_graded_if_verifiers_ends_the_conversation(server: OpenAIServer) -> None:
    for trace in played(server, {"max_turns": 1}):
        assert (trace.stop_condition, trace.errors, trace.num_turns) == ("max_turns", [], 1)
        assert (trace.reward, trace.info[KEY]["outcome"]) == (1.0, "agent_limit")


def test_a_deadline_closes_the_sandbox(server: OpenAIServer) -> None:
    asked, release = threading.Event(), threading.Event()

    def hang(request: JsonObject) -> ModelReply:
        asked.set()
        release.wait(60)
        return answer(request)

    server.reply = hang
    traces = played(server, {"timeout": {"rollout": 5}})
    release.set()
    assert asked.is_set()
    for thread in threading.enumerate():
        if thread.name in ("episode", "cancel", "sandbox-group"):
            thread.join(60)
            assert not thread.is_alive(), thread.name
    for trace in traces:
        assert (trace.is_timeout, [error.type for error in trace.errors]) == (True, ["TaskError"])
        assert "no reward" in trace.errors[0].message
        assert not any(trace.rewards.values())


def test_tasks_hold_nothing_of_the_oracle() -> None:
    taskset = SweTaskset(SweTasksetConfig(env_id="SWE/Micro-v0", options=OPTIONS))
    (first, *others) = list(taskset)
    assert len(others) == 2
    assert set(first.data.model_dump(exclude_unset=True)) == {"id", "idx", "name", "prompt", "env_id", "options"}
    assert "with this one word" in first.data.prompt
