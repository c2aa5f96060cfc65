"""verl's agent loop on real sandboxes: its data set and configuration, episodes at once, failures, cancel."""

import asyncio
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest

if "verl" not in os.environ.get("SWE_GYM_REQUIRE", "").split(","):
    pytest.importorskip("verl", reason="verl is tested in a separate environment")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about the library's own dependencies
    import datasets
    import hydra
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap
    from verl.trainer.ppo.metric_utils import process_validation_metrics
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
    from verl.utils.config import validate_config
    from verl.utils.dataset.rl_dataset import RLHFDataset
    from verl_parts import FORGETFUL, RandomClient, StandInClient, bash, make_tokenizer, solve

    from swe_gym.adapters.aio import RowAgent
    from swe_gym.adapters.verl import SweGymAgentLoop

from swe_gym.envs.swe_env import SweEnv
from swe_gym.errors import UsageError
from swe_gym.tasks import load_source
from swe_gym.tasks.exporters import write_verl
from swe_gym.tasks.file import write_tasks
from swe_gym.types import Oracle, Task

pytestmark = pytest.mark.filterwarnings("ignore")  # verl and its dependencies emit warnings

EXAMPLES = Path(__file__).parents[2] / "examples/verl"
(AGENT,) = OmegaConf.load(EXAMPLES / "agent.yaml")
FAULT = {"at": "start", "error": "SandboxStartError", "retryable": True}
LOST = {"sandbox_options": {"options": {"faults": [FAULT]}}, "backend": "fake"}


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Eight exported tasks as verl's own data set returns them."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    source = load_source("micro", difficulty=[1], count=8)
    file = tmp_path / "train.parquet"
    write_verl([source.get(name) for name in source.ids()], file, "micro", {"difficulty": [1], "count": 8})
    config = {"max_prompt_length": 2000, "cache_dir": str(tmp_path), "filter_overlong_prompts_workers": None}
    found = RLHFDataset(str(file), make_tokenizer(), OmegaConf.create(config))
    return [found[number] for number in range(len(found))]


def make_loop(client: Any, tokenizer: Any, *, estimator: str = "rloo", **settings: Any) -> SweGymAgentLoop:
    """Make the loop as verl's worker makes it: in a coroutine."""
    config = OmegaConf.create(
        {
            "actor_rollout_ref": {
                "rollout": {"prompt_length": 2000, "response_length": 6000, "calculate_log_probs": True}
            },
            "algorithm": {"adv_estimator": estimator},
            "trainer": {"use_v1": True},
            "data": {},
            "env_args": {"tools": ["bash"], "max_turns": 1},
            "agent_args": {"max_tokens": 200},
        }
    )
    config = OmegaConf.merge(config, settings)
    return hydra.utils.instantiate(
        AGENT,
        trainer_config=DictConfigWrap(config),
        server_manager=client,
        tokenizer=tokenizer,
        processor=None,
        dataset_cls=RLHFDataset,
        data_config=DictConfigWrap(config.data),
    )


def run(*work: Callable[[], Any]) -> list[Any]:
    async def together() -> list[Any]:
        async with asyncio.timeout(500):
            return await asyncio.gather(*(one() for one in work))

    return asyncio.run(together())


def test_eight_episodes_at_once_and_one_that_the_infrastructure_loses(rows: list[dict[str, Any]]) -> None:
    tokenizer = make_tokenizer()
    together = asyncio.Barrier(8)
    client = StandInClient(tokenizer, solve, together.wait)

    def episode(row: dict[str, Any], **settings: Any) -> Callable[[], Any]:
        assert row["agent_name"] == AGENT.name
        return lambda: make_loop(client, tokenizer, **settings).run({"temperature": 1.0}, **row)

    *outputs, lost = run(*(episode(row) for row in rows), episode(rows[0], env_args=LOST))
    assert [len(one) for one in outputs] == [1] * 8
    sampled = {tuple(prompt): ids for calls in client.calls.values() for prompt, ids in calls}
    for (output,) in outputs:
        assert (output.reward_score, output.extra_fields["reward_extra_info"]["resolved"]) == (1.0, 1.0)
        assert output.response_ids == sampled[tuple(output.prompt_ids)]
        assert set(output.response_mask) == {1}
        assert output.as_dict()["rm_scores"].sum() == 1.0
    assert lost == []
    worker = AgentLoopWorkerTQ.__ray_actor_class__
    put = worker._agent_loop_postprocess(None, lost, validate=False, uid="group", session_id=8)
    assert asyncio.run(put) is None  # verl writes nothing for it


def test_validation_logs_how_episodes_ended(rows: list[dict[str, Any]], caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = make_tokenizer()
    made: list[str] = []

    def make(**arguments: Any) -> SweEnv:
        made.append("")  # the first one is for the check of the tasks, the second for the first try
        return SweEnv("micro", {"difficulty": [1]}, **{**arguments, **(LOST if len(made) == 2 else {})})

    def episode(**settings: Any) -> Callable[[], Any]:
        client = StandInClient(tokenizer, solve)
        return lambda: make_loop(client, tokenizer, **settings).run({"temperature": 1.0}, **rows[0])

    gymnasium.register("SWE/LostOnce-v0", make)
    try:
        (ended,), (retried,), lost = run(episode(), episode(env_id="SWE/LostOnce-v0"), episode(env_args=LOST))
    finally:
        del gymnasium.registry["SWE/LostOnce-v0"]
    info = ended.extra_fields["reward_extra_info"]
    assert [info[name] for name in ("outcome", "limit", "turn", "agent_limit", "lost_tries")] == [
        "agent_limit",
        "turns",
        1.0,
        1.0,
        0.0,
    ]
    infos = [info, retried.extra_fields["reward_extra_info"]]
    assert infos[1]["lost_tries"] == 1.0
    names = {name for one in infos for name in one}
    columns = {name: [one.get(name) for one in infos] for name in names}
    (logged,) = process_validation_metrics(["micro"] * 2, ["a", "a"], columns).values()
    assert (logged["agent_limit"]["mean@2"], logged["lost_tries"]["mean@2"]) == (1.0, 0.5)
    assert "outcome" not in logged  # texts are for the dump of the generations
    assert lost == []
    assert f"task {rows[0]['extra_info']['task_id']} is left out: SandboxStartError" in caplog.text


def answer(_prompt: str, turn: int) -> str:
    return f"<think>thought {turn}</think>\n{bash(f'echo {turn}')}" if turn < 3 else bash("echo" * 60)


@pytest.mark.parametrize(("estimator", "count"), [("grpo", 4), ("rloo", 1)])
def test_every_sampled_token_is_trained_on_once(rows: list[dict[str, Any]], estimator: str, count: int) -> None:
    tokenizer = make_tokenizer(FORGETFUL)
    client = StandInClient(tokenizer, answer)
    settings = {"estimator": estimator, "env_args": {"max_turns": 4}}
    (outputs,) = run(lambda: make_loop(client, tokenizer, **settings).run({"temperature": 1.0}, **rows[0]))
    assert len(outputs) == count
    (calls,) = client.calls.values()  # one request id
    trained = [
        (token, logprob)
        for output in outputs
        for token, mask, logprob in zip(
            output.response_ids, output.response_mask, output.response_logprobs, strict=True
        )
        if mask
    ]
    assert trained == [(token, -0.5) for _, ids in calls for token in ids]
    whole = [output.prompt_ids + output.response_ids for output in outputs]
    for prompt, ids in calls:  # the model saw exactly what is trained on
        assert any(ids_of[: len(prompt) + len(ids)] == prompt + ids for ids_of in whole)
    assert {output.reward_score for output in outputs} == {0.0}
    assert outputs[0].extra_fields["min_global_steps"] == 4
    assert outputs[-1].extra_fields["max_global_steps"] == 7


def test_tokens_of_a_thousand_random_episodes(tmp_path: Path) -> None:
    oracle = Oracle(test_cmd="true", grader="exit_code")
    write_tasks([Task(task_id="any", problem_statement="Do it.", oracle=oracle)], tmp_path / "tasks.jsonl")
    row = {"task_id": "any", "source": "file", "source_options": json.dumps({"path": str(tmp_path / "tasks.jsonl")})}
    tokenizer = make_tokenizer(FORGETFUL)
    client = RandomClient(tokenizer, seed=0)
    settings = {"env_args": {"backend": "fake", "max_turns": 3}, "agent_args": {"max_tokens": 60}}

    async def play() -> list[Any]:
        loop = make_loop(client, tokenizer, estimator="grpo", **settings)
        some = [
            await asyncio.gather(*(loop.run({"temperature": 1.0}, extra_info=row) for _ in range(50)))
            for _ in range(20)
        ]
        return [outputs for batch in some for outputs in batch]

    (episodes,) = run(play)
    sampled = sorted([token for _, ids in calls for token in ids] for calls in client.calls.values())
    trained = [
        [token for one in outputs for token, mask in zip(one.response_ids, one.response_mask, strict=True) if mask]
        for outputs in episodes
    ]
    assert sorted(trained) == sampled
    assert (len(trained), sum(len(outputs) > 1 for outputs in episodes) > 500) == (1000, True)


def test_a_full_conversation_ends_the_episode(rows: list[dict[str, Any]]) -> None:
    tokenizer = make_tokenizer()
    client = StandInClient(tokenizer, lambda *_: bash("printf x%.0s {1..900}"))
    settings = {"actor_rollout_ref": {"rollout": {"response_length": 1000}}, "env_args": {"max_turns": 20}}
    (outputs,) = run(lambda: make_loop(client, tokenizer, **settings).run({"temperature": 0}, **rows[0]))
    assert len(outputs[0].prompt_ids + outputs[0].response_ids) <= 3000
    assert outputs[0].reward_score == 0.0


def test_cancel_closes_the_sandbox(rows: list[dict[str, Any]]) -> None:
    made: list[SweEnv] = []

    def make(**arguments: Any) -> SweEnv:
        made.append(SweEnv("micro", {"difficulty": [1]}, **arguments))
        return made[0]

    gymnasium.register("SWE/Watched-v0", make)
    asked = asyncio.Event()

    async def never() -> None:
        asked.set()
        await asyncio.Event().wait()

    tokenizer = make_tokenizer()

    async def cancelled() -> str:
        loop = make_loop(StandInClient(tokenizer, solve, never), tokenizer, env_id="SWE/Watched-v0")
        task = asyncio.create_task(loop.run({"temperature": 1.0}, **rows[0]))
        await asked.wait()
        sandbox = made[0].sandbox
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return str(sandbox.closed)

    try:
        assert run(cancelled) == ["True"]
    finally:
        del gymnasium.registry["SWE/Watched-v0"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"agent_args": {"max_token": 5}}, "max_token: Extra inputs"),
        ({"trainer": {"use_v1": False}}, "set trainer.use_v1=True"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], said: str) -> None:
    async def make() -> None:
        make_loop(None, make_tokenizer(), **settings)

    with pytest.raises(Exception, match=said) as raised:  # Hydra's, caused by ours
        run(make)
    assert isinstance(raised.value.__cause__, UsageError)


@pytest.mark.parametrize("columns", [{}, {"extra_info": None}, {"extra_info": {"index": 0}}])
def test_rows_of_another_data_set_are_named(columns: dict[str, Any]) -> None:
    tokenizer = make_tokenizer()
    with pytest.raises(UsageError, match="the row names no task"):
        run(lambda: make_loop(StandInClient(tokenizer, solve), tokenizer).run({"temperature": 1.0}, **columns))


@pytest.mark.parametrize("name", ["ags", "small"])
def test_verl_accepts_the_example(name: str) -> None:
    with hydra.initialize_config_dir(str(EXAMPLES), version_base=None):
        config = hydra.compose(name, overrides=["env_args.backend=local"])
    validate_config(config, need_reference_policy(config), need_critic(config))
    rollout = config.actor_rollout_ref.rollout
    assert (config.algorithm.adv_estimator, config.env_args.backend, rollout.n) == ("rloo", "local", 4)
    assert (EXAMPLES.parents[1] / rollout.agent.agent_loop_config_path).is_file()
    env_args = OmegaConf.to_container(config.env_args)
    RowAgent.make({**config.agent_args, "env_args": env_args}).make_env({"source": "toy"}).close()
