"""SkyRL-gym's environments on real sandboxes, and rows for SkyRL's trainer.

The trainer needs a GPU, so a stand-in client plays its inference engine, and the contract of its generator's output is
checked as `validate_generator_output` of SkyRL 0.3.0 checks it.
"""

import asyncio
import os
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from core_parts import END, LS, SUBMIT, Tokens, bash

if "skyrl" not in os.environ.get("SWE_GYM_REQUIRE", "").split(","):
    pytest.importorskip("skyrl_gym", reason="SkyRL-gym is tested in a separate environment")

import skyrl_gym
from skyrl_gym.envs.registration import deregister

from swe_gym.adapters.skyrl import SweGenerator
from swe_gym.errors import UsageError

MICRO = {"env_id": "SWE/Micro-v0", "options": {"difficulty": [1], "max_turns": 3}}
BROKEN = {"options": {"faults": [{"at": "start", "error": "SandboxStartError"}]}}
PROMPT = [{"role": "system", "content": "Be quick."}, {"role": "user", "content": "The issue."}]


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    """Register two environments, as a training script does."""
    broken = {**MICRO["options"], "backend": "fake", "sandbox_options": BROKEN}
    for name, kwargs in {"swe_gym": MICRO, "broken": {**MICRO, "options": broken}}.items():
        skyrl_gym.register(name, entry_point="swe_gym.adapters.skyrl_gym:SweTextEnv", kwargs=kwargs)
    yield
    deregister("swe_gym")
    deregister("broken")


def solution(text: str) -> str:
    """Return the call that solves a task of difficulty 1."""
    found = re.search(r"file `(.+?)` with this one word in it: (\w+)", text)
    assert found
    return bash(f"printf %s {found[2]} > {found[1]}")


@pytest.fixture
def env() -> Iterator[Any]:
    made = skyrl_gym.make("swe_gym", env_config={}, extras={"extra_info": {"task_id": "micro-1-0"}, "max_turns": 1})
    yield made
    made.close()


def test_an_episode(env: Any) -> None:
    messages, metadata = env.init(PROMPT)
    assert [one["role"] for one in messages] == ["system", "user"]
    assert (messages[0]["content"], metadata["task_id"]) == ("Be quick.", "micro-1-0")
    first = env.step(solution(messages[1]["content"]))
    assert (first["done"], first["reward"], first["observations"][0]["role"]) == (False, 0.0, "user")
    last = env.step(SUBMIT)
    assert (last["done"], last["reward"], last["observations"]) == (True, 1.0, [])
    assert (last["metadata"]["outcome"], last["metadata"]["reward_valid"]) == ("submitted", True)
    assert type(env).aggregate_metrics([env.get_metrics()]) == {"resolved": 1.0, "infra_failed": 0.0}


def test_a_lost_sandbox_is_replaced_by_one_in_the_same_state(env: Any) -> None:
    messages, _ = env.init([])
    assert "bash(command" in messages[0]["content"]
    env.step(solution(messages[1]["content"]))
    env._env.unwrapped.sandbox.close()
    assert env.step(LS)["metadata"]["outcome"] == "running"
    assert env.step(SUBMIT)["reward"] == 1.0


def test_a_failure_is_not_raised() -> None:
    env = skyrl_gym.make("broken", extras={"task_id": "micro-1-0"})
    messages, metadata = env.init(PROMPT)
    assert (len(messages), metadata["reward_valid"]) == (2, False)
    step = env.step(LS)
    assert (step["done"], step["metadata"]["outcome"], step["metadata"]["reward_valid"]) == (
        True,
        "infra_failed",
        False,
    )
    assert env.get_metrics() == {"infra_failed": 1.0}
    env.close()


def test_mistakes_are_raised() -> None:
    with pytest.raises(UsageError, match="names no task"):
        skyrl_gym.make("swe_gym", extras={})
    with pytest.raises(UsageError, match="unknown micro task"):
        skyrl_gym.make("swe_gym", extras={"task_id": "micro-x"})
    with pytest.raises(UsageError, match=r"sampling_params\.logprobs=1"):
        SweGenerator(config(logprobs=None), None, None, Tokens())


# --- rows ---------------------------------------------------------------------------------------------------------


def config(logprobs: int | None = 1) -> Any:
    sampling = SimpleNamespace(max_generate_length=200, logprobs=logprobs)
    return SimpleNamespace(max_turns=3, max_input_length=4000, sampling_params=sampling)


class Client:
    """An inference engine that solves the tasks of difficulty 1; `fails` of its sessions fail, each as `fault` says."""

    weight_version = 5

    def __init__(self, fails: int, fault: str = "raises") -> None:
        self.fails, self.fault = fails, fault
        self.sampled: dict[str, list[tuple[list[int], list[int]]]] = {}
        self.finished: list[str] = []

    async def generate(self, batch: dict[str, Any], model: str | None) -> dict[str, Any]:
        assert (model, batch["sampling_params"]["top_p"]) == ("policy", 0.9)
        ((prompt,), (session,)) = batch["prompt_token_ids"], batch["session_ids"]
        text = Tokens().decode(prompt, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        calls = self.sampled.setdefault(session, [])
        if session in list(self.sampled)[: self.fails]:
            if self.fault == "raises":
                raise OSError("the engine is gone")
            ids = Tokens().encode("half an ans", add_special_tokens=False) if self.fault == "aborts" else []
            return {"response_ids": [ids], "response_logprobs": [[-0.25] * len(ids)], "stop_reasons": ["abort"]}
        said = f"<think>x</think>{SUBMIT if calls else solution(text)}"
        ids = [*Tokens().encode(said, add_special_tokens=False), END]
        assert len(ids) <= batch["sampling_params"]["max_tokens"] <= 150
        calls.append((prompt, ids))
        return {"response_ids": [ids], "response_logprobs": [[-0.25] * len(ids)], "stop_reasons": ["stop"]}

    async def finish_session(self, session: str) -> None:
        self.finished.append(session)


def generated(client: Client, env_classes: list[str]) -> dict[str, Any]:
    """Play episodes in groups of 4."""
    generator = SweGenerator(config(), SimpleNamespace(max_env_workers=4), client, Tokens("forgetful"), "policy")
    count = len(env_classes)
    batch = {
        "prompts": [PROMPT] * count,
        "env_classes": env_classes,
        "env_extras": [{"task_id": f"micro-1-{index // 4}"} for index in range(count)],
        "sampling_params": {"top_p": 0.9, "temperature": 1.0, "max_tokens": 150},
        "trajectory_ids": [SimpleNamespace(instance_id=str(index // 4), repetition_id=index % 4) for index in range(8)],
        "batch_metadata": None,
    }
    return asyncio.run(generator.generate(batch))


def check_contract(output: dict[str, Any], count: int) -> None:
    """Check what SkyRL 0.3.0 checks, and that no column is missing."""
    lists = ("prompt_token_ids", "response_ids", "loss_masks", "rewards", "rollout_logprobs", "stop_reasons")
    assert {len(output[name]) for name in (*lists, "trajectory_ids", "env_metrics")} == {count}
    columns = zip(output["response_ids"], output["loss_masks"], output["rollout_logprobs"], strict=True)
    assert all(len(ids) == len(mask) == len(logprobs) > 0 for ids, mask, logprobs in columns)
    assert {type(reward) for reward in output["rewards"]} == {float}
    assert all(output["prompt_token_ids"])


@pytest.mark.parametrize("fault", ["raises", "aborts", "is silent"])
def test_rows_are_what_was_sampled(fault: str) -> None:
    client = Client(fails=1, fault=fault)
    output = generated(client, ["swe_gym"] * 8)
    check_contract(output, 8)
    assert sorted(client.finished) == sorted(client.sampled)
    whole = []
    for prompt, ids, mask in zip(output["prompt_token_ids"], output["response_ids"], output["loss_masks"], strict=True):
        if any(mask):
            sampled = [token for token, one in zip(ids, mask, strict=True) if one]
            whole.append((sampled, prompt + ids))
    expected = [([*calls[0][1], *calls[1][1]], calls[1][0] + calls[1][1]) for calls in client.sampled.values() if calls]
    assert sorted(whole) == sorted(expected)
    assert len(whole) == 7
    lost = output["stop_reasons"].index("infra_failed")
    assert not any(output["loss_masks"][lost])
    assert output["rewards"] == [1.0] * 8  # no 0 for the lost one: the mean of its group
    assert output["rollout_metrics"] == {"environment/resolved": 1.0, "environment/infra_failed": 1 / 8}


def test_a_group_that_is_lost_is_masked() -> None:
    output = generated(Client(fails=0), ["broken"] * 4 + ["swe_gym"] * 4)
    check_contract(output, 8)
    assert [any(mask) for mask in output["loss_masks"]] == [False] * 4 + [True] * 4
    assert output["rewards"] == [1.0] * 8
    assert [one["infra_failed"] for one in output["env_metrics"]] == [1.0] * 4 + [0.0] * 4
