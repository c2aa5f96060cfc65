"""Rows for SkyRL's trainer, from real sandboxes.

The trainer needs a GPU, so a stand-in client plays its inference engine, and the contract of its generator's output is
checked as `validate_generator_output` of SkyRL 0.3.0 checks it.
"""

import asyncio
import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from core_parts import END, SUBMIT, Tokens, bash

from swe_gym.adapters.skyrl import SweGenerator
from swe_gym.errors import UsageError

pytestmark = pytest.mark.sample(every=3)

MICRO = {"source": "micro", "source_options": json.dumps({"difficulty": [1]})}
EPISODES, GROUP = 4, 2
PROMPT = [{"role": "system", "content": "Be quick."}, {"role": "user", "content": "The issue."}]


def solution(text: str) -> str:
    """Return the call that solves a task of difficulty 1."""
    found = re.search(r"file `(.+?)` with this one word in it: (\w+)", text)
    assert found
    return bash(f"printf %s {found[2]} > {found[1]}")


def config(*, logprobs: int | None = 1, **settings: Any) -> Any:
    sampling = SimpleNamespace(max_generate_length=200, logprobs=logprobs)
    return SimpleNamespace(**{"max_turns": 3, "max_input_length": 4000, "sampling_params": sampling, **settings})


class Client:
    """An inference engine that solves the tasks of difficulty 1; `fails` of its sessions fail, each as `fault` says."""

    weight_version: int | None = 5

    def __init__(self, fails: int, fault: str = "raises") -> None:
        self.fails, self.fault = fails, fault
        self.sampled: dict[str, list[tuple[list[int], list[int]]]] = {}
        self.salts: set[str | None] = set()
        self.finished: list[str] = []

    async def generate(self, batch: dict[str, Any], model: str | None) -> dict[str, Any]:
        assert model
        assert batch["sampling_params"]["top_p"] == 0.9
        ((prompt,), (session,)) = batch["prompt_token_ids"], batch["session_ids"]
        self.salts.add(batch.get("cache_salt"))
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
        cut = self.fault == "is cut" and calls
        ids = ids[:-5] if cut else ids
        calls.append((prompt, ids))
        if self.weight_version is not None:
            self.weight_version += 1  # weights arrive while the episodes run
        reason = "length" if cut else "stop"
        return {"response_ids": [ids], "response_logprobs": [[-0.25] * len(ids)], "stop_reasons": [reason]}

    async def finish_session(self, session: str) -> None:
        self.finished.append(session)


def generated(
    client: Client,
    *,
    model: str = "policy",
    row: dict[str, Any] = MICRO,
    env_args: dict[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Play groups of episodes, whose rows have these columns."""
    workers = SimpleNamespace(max_env_workers=GROUP)
    generator = SweGenerator(config(**settings), workers, client, Tokens("forgetful"), model, env_args=env_args)
    batch = {
        "prompts": [PROMPT] * EPISODES,
        "env_classes": ["swe_gym"] * EPISODES,
        "env_extras": [{"extra_info": {"task_id": f"micro-1-{index // GROUP}", **row}} for index in range(EPISODES)],
        "sampling_params": {"top_p": 0.9, "temperature": 1.0, "max_tokens": 150},
        "trajectory_ids": [
            SimpleNamespace(instance_id=str(index // GROUP), repetition_id=index % GROUP) for index in range(EPISODES)
        ],
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
    output = generated(client)
    check_contract(output, EPISODES)
    assert sorted(client.finished) == sorted(client.sampled)
    whole = []
    for prompt, ids, mask in zip(output["prompt_token_ids"], output["response_ids"], output["loss_masks"], strict=True):
        if any(mask):
            sampled = [token for token, one in zip(ids, mask, strict=True) if one]
            whole.append((sampled, prompt + ids))
    expected = [([*calls[0][1], *calls[1][1]], calls[1][0] + calls[1][1]) for calls in client.sampled.values() if calls]
    assert sorted(whole) == sorted(expected)
    assert len(whole) == EPISODES - 1
    lost = output["stop_reasons"].index("infra_failed")
    assert not any(output["loss_masks"][lost])
    assert output["rewards"] == [1.0] * EPISODES  # no 0 for the lost one: the mean of its group
    assert output["rollout_metrics"] == {
        "environment/resolved": 1.0,
        "environment/turn": 2.0,
        "environment/agent_limit": 0.0,
        "environment/infra_failed": 1 / EPISODES,
    }


def test_a_group_that_is_lost_is_masked() -> None:
    output = generated(Client(fails=GROUP))
    check_contract(output, EPISODES)
    assert [any(mask) for mask in output["loss_masks"]] == [False] * GROUP + [True] * GROUP
    assert output["rewards"] == [1.0] * EPISODES
    assert [one["infra_failed"] for one in output["env_metrics"]] == [1.0] * GROUP + [0.0] * GROUP


def test_an_episode_without_a_sandbox_is_masked() -> None:
    faults = {"faults": [{"at": "start", "error": "SandboxStartError"}]}
    output = generated(Client(fails=0), env_args={"backend": "fake", "sandbox_options": {"options": faults}})
    check_contract(output, EPISODES)
    assert (output["stop_reasons"], any(map(any, output["loss_masks"]))) == (["infra_failed"] * EPISODES, False)


def test_mistakes_are_raised() -> None:
    for row, said in (
        ({**MICRO, "task_id": ""}, "names no task:"),
        ({**MICRO, "task_id": "micro-x"}, "unknown micro task"),
        ({}, "names no task source"),
    ):
        with pytest.raises(UsageError, match=said):
            generated(Client(fails=0), row=row)
    with pytest.raises(UsageError, match=r"sampling_params\.logprobs=1"):
        SweGenerator(config(logprobs=None), None, None, Tokens())


@pytest.mark.slow
@pytest.mark.parametrize("model", ["policy", "org/a model@v1" + "x" * 200])
def test_all_requests_of_a_batch_have_the_salt_of_its_first_weights(model: str) -> None:
    client = Client(fails=0)
    generated(client, model=model)
    assert client.weight_version
    assert client.weight_version > 5
    (first,) = client.salts
    assert first is not None
    assert re.fullmatch(r"[A-Za-z0-9_.:-]{1,128}", first)  # vLLM refuses longer ones, and some characters
    generated(client, model=model)
    assert len(client.salts) == 2  # no prefix of the old weights is used
    another = Client(fails=0)
    generated(another, model=model + "2")
    assert another.salts != {first}


@pytest.mark.slow
def test_no_salt_is_sent_if_it_is_disabled_or_the_client_counts_no_weights() -> None:
    disabled, uncounted = Client(fails=0), Client(fails=0)
    uncounted.weight_version = None
    generated(disabled, use_cache_salt=False)
    generated(uncounted)
    assert disabled.salts == uncounted.salts == {None}


@pytest.mark.slow
def test_answers_that_the_engine_cut_get_no_reward_and_no_loss_if_asked() -> None:
    settings = {"zero_reward_on_non_stop": True, "apply_overlong_filtering": True}
    plain = generated(Client(fails=0, fault="is cut"))
    assert plain["stop_reasons"] == ["length"] * EPISODES  # the work is graded all the same
    assert (plain["rewards"], all(map(any, plain["loss_masks"]))) == ([1.0] * EPISODES, True)
    asked = generated(Client(fails=0, fault="is cut"), **settings)
    assert (asked["rewards"], any(map(any, asked["loss_masks"]))) == ([0.0] * EPISODES, False)
    whole = generated(Client(fails=1), **settings)
    assert sorted(whole["stop_reasons"]) == ["infra_failed"] + ["stop"] * (EPISODES - 1)
    assert whole["rewards"] == [1.0] * EPISODES  # that of the lost episode is still the mean of its group
    assert [any(mask) for mask in whole["loss_masks"]].count(False) == 1


@pytest.mark.slow
def test_an_episode_that_ends_at_its_turns_has_stopped_and_a_full_conversation_has_not() -> None:
    settings = {"zero_reward_on_non_stop": True, "apply_overlong_filtering": True}
    turns = generated(Client(fails=0), env_args={"max_turns": 1}, **settings)
    assert turns["stop_reasons"] == ["stop"] * EPISODES
    assert (turns["rewards"], all(map(any, turns["loss_masks"]))) == ([1.0] * EPISODES, True)
    assert turns["rollout_metrics"]["environment/agent_limit"] == 1.0
    full = generated(Client(fails=0), max_input_length=460, **settings)
    assert full["stop_reasons"] == ["length"] * EPISODES
    assert (full["rewards"], any(map(any, full["loss_masks"]))) == ([0.0] * EPISODES, False)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("step_wise_trajectories", True),
        ("merge_stepwise_output", True),
        ("batched", True),
        ("vision_language_generator", True),
        ("use_conversation_multi_turn", False),
        ("chat_template_kwargs", {"enable_thinking": False}),
        ("chat_template", SimpleNamespace(source="name", name_or_path="qwen3_with_thinking")),
        ("inference_engine", SimpleNamespace(enable_return_routed_experts=True)),
        ("inference_engine", SimpleNamespace(enable_return_sample_support_set=True)),
    ],
)
def test_a_setting_that_it_cannot_follow_is_refused_by_name(setting: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"SweGenerator cannot follow generator\.{setting}"):
        SweGenerator(config(**{setting: value}), None, None, Tokens())
