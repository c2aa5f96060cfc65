"""RLlib on real sandboxes: ends of episodes, action masks, and dropped failures."""

import gc
import os
import secrets
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

if "rllib" not in os.environ.get("SWE_GYM_REQUIRE", "").split(","):
    pytest.importorskip("ray", reason="RLlib is tested in a separate environment")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about the library's own dependencies
    import ray
    import torch
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.columns import Columns
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.core.rl_module.rl_module import RLModule, RLModuleSpec
    from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

    from swe_gym.adapters.rllib import (
        LeaveOutFailures,
        MaskedObservations,
        MaskedPPOModule,
        RLlibEpisodes,
        register_env,
    )

from swe_gym.errors import SandboxStartError, SweGymError, UsageError
from swe_gym.wrappers import HashedText, ToolMenu

pytestmark = pytest.mark.filterwarnings("ignore")  # RLlib and its dependencies emit warnings

FAKE = {
    "backend": "fake",
    "sandbox_options": {"options": {"faults": [{"at": "exec", "match": "lose", "error": "SandboxLost"}]}},
}


def bash(command: str, once: bool = False) -> dict[str, Any]:
    return {"name": "bash", "arguments": {"command": command}, "once": once}


def make_env(once: bool = False, steps: int | None = None, **arguments: Any) -> gymnasium.Env[Any, Any]:
    """Make an environment with two commands and an external step limit."""
    env = gymnasium.make("SWE/Micro-v0", task_id="micro-1-0", disable_env_checker=True, **arguments)
    env = HashedText(ToolMenu(env, [bash("echo one", once), bash("echo two", once)]), size=32)
    return env if steps is None else gymnasium.wrappers.TimeLimit(env, steps)


def make_config(make: Callable[..., gymnasium.Env[Any, Any]] = make_env, **arguments: Any) -> PPOConfig:
    register_env("micro", make)
    return (
        PPOConfig()
        .environment("micro", env_config=arguments)
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=2,
            rollout_fragment_length=4,
            gym_env_vectorize_mode="vector_entry_point",
            env_to_module_connector=MaskedObservations.make,
        )
        .learners(num_learners=0)
        .rl_module(
            rl_module_spec=RLModuleSpec(
                module_class=MaskedPPOModule, model_config=DefaultModelConfig(fcnet_hiddens=[8], vf_share_layers=False)
            )
        )
        .callbacks(LeaveOutFailures)
        .training(train_batch_size_per_learner=8, minibatch_size=None, num_epochs=1, use_kl_loss=True)
        .debugging(seed=0, log_level="ERROR")
    )


Sampler = Callable[..., SingleAgentEnvRunner]


@pytest.fixture
def make_runner() -> Iterator[Sampler]:
    """Make RLlib's env runner without a cluster."""
    made = []

    def make(*args: Any, **arguments: Any) -> SingleAgentEnvRunner:
        made.append(SingleAgentEnvRunner(config=make_config(*args, **arguments)))
        return made[-1]

    yield make
    for runner in made:
        runner.stop()


def test_episodes_equal_those_of_gymnasium(make_runner: Sampler) -> None:
    runner = make_runner(max_turns=3)
    chunks = [chunk for _ in range(2) for chunk in runner.sample(num_timesteps=7)]
    whole = {chunk.id_ for chunk in chunks if chunk.is_done}
    assert len(whole) == 4
    env = make_env(max_turns=3)
    for name in whole:
        parts = [chunk for chunk in chunks if chunk.id_ == name]
        actions = np.concatenate([part.get_actions() for part in parts])
        assert len(actions) == 3
        seen = [part.get_observations()["observations"][1:] for part in parts]
        first = parts[0].get_observations(0)["observations"]
        played = [env.reset()[0], *(env.step(action)[0] for action in actions)]
        np.testing.assert_array_equal(np.concatenate([[first], *seen]), played)
    env.close()


def test_a_graded_budget_is_a_termination(make_runner: Sampler) -> None:
    episodes = make_runner(max_turns=2).sample(num_episodes=2)
    assert [(len(episode), episode.is_terminated, episode.is_truncated) for episode in episodes] == [
        (2, True, False)
    ] * 2
    assert [episode.get_infos(-1)["limit"] for episode in episodes] == ["turns", "turns"]


def test_an_external_limit_is_a_truncation(make_runner: Sampler) -> None:
    episodes = make_runner(steps=2, **FAKE).sample(num_episodes=4)
    assert [(len(episode), episode.is_terminated, episode.is_truncated) for episode in episodes] == [
        (2, False, True)
    ] * 4


def test_a_masked_action_is_never_sampled(make_runner: Sampler) -> None:
    episodes = make_runner(once=True, steps=2, **FAKE).sample(num_episodes=10)
    for episode in episodes:
        first, second = episode.get_actions()
        masks = episode.get_observations()["action_mask"]
        assert second == 1 - first
        assert masks.tolist() == [[1, 1], [second == 0, second == 1], [0, 0]]
        assert episode.get_extra_model_outputs(Columns.ACTION_LOGP)[1] == pytest.approx(0.0)
    assert {int(episode.get_actions(0)) for episode in episodes} == {0, 1}


class Unlucky(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Every first reset fails, and every third episode loses its sandbox."""

    resets = 0

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        self.resets += 1
        if self.resets % 2:
            raise SandboxStartError("no room", reason="capacity")
        return self.env.reset(**arguments)

    def step(self, _: Any) -> Any:
        return self.env.step(1 if self.resets % 6 == 0 else 0)


def make_unlucky() -> gymnasium.Env[Any, Any]:
    env = gymnasium.make("SWE/Micro-v0", disable_env_checker=True, **FAKE)
    env = Unlucky(ToolMenu(env, [bash("true"), bash("lose it")]))
    return gymnasium.wrappers.TimeLimit(HashedText(env, size=32), 2)


def test_infrastructure_failures_are_dropped(make_runner: Sampler) -> None:
    runner = make_runner(make_unlucky)
    episodes = runner.sample(num_timesteps=20)
    assert len(episodes) == 8
    assert [episode.get_infos(-1)["outcome"] for episode in episodes] == ["running"] * 8
    assert [len(episode) for episode in episodes] == [2] * 8
    assert all(episode.get_observations(0)["observations"].any() for episode in episodes)
    assert runner.get_metrics()["infra_failed"].peek() == 4


def test_persistent_failures_stop_training(make_runner: Sampler) -> None:
    broken = {**FAKE, "sandbox_options": {"options": {"faults": [{"at": "start", "error": "SandboxStartError"}]}}}
    env = RLlibEpisodes(make_env(**broken))
    with pytest.raises(SweGymError, match=r"3 episodes in a row failed.*a scripted fault"):
        env.reset()
    env.close()
    with pytest.raises(SweGymError, match="in a row"):
        make_runner(**broken).sample(num_timesteps=2)


def test_texts_are_refused(make_runner: Sampler) -> None:
    def text(**arguments: Any) -> gymnasium.Env[Any, Any]:
        return gymnasium.make("SWE/Micro-v0", **arguments)

    with pytest.raises(UsageError, match="HashedText"):
        make_runner(text)
    with pytest.raises(UsageError, match="ToolMenu"):
        make_runner(lambda: HashedText(text()))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start a minimal Ray that cleans up after itself."""
    with tempfile.TemporaryDirectory(prefix="ray") as folder:  # its sockets need a short path
        monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))  # Ray would write one into the home folder
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, _temp_dir=folder)
        yield
        ray.shutdown()
        popens = [found for found in gc.get_objects() if issubclass(type(found), subprocess.Popen)]
        for process in popens:
            if "/ray/" in str(process.args):
                process.wait(10)  # Ray ends them and does not wait, of which Python would warn at some later time


@pytest.mark.usefixtures("cluster")
def test_ppo_learns_with_the_masks_of_the_rollout(tmp_path: Path) -> None:
    algorithm = make_config(once=True, steps=2, **FAKE).build_algo()
    try:
        before = algorithm.get_module().get_state()
        learned = algorithm.train()["learners"]["default_policy"]
        after = algorithm.get_module().get_state()
        algorithm.save_to_path(tmp_path / "saved")
    finally:
        algorithm.stop()
    assert learned["mean_kl_loss"] == pytest.approx(
        0.0, abs=1e-6
    )  # before the first step, the policy is that of the rollout
    assert 0.0 < learned["entropy"] < 0.5 * np.log(2) + 1e-3  # 0 in every second step
    assert any(not np.array_equal(before[name], after[name]) for name in before)

    parts = ("learner_group", "learner", "rl_module", "default_policy")
    module = RLModule.from_checkpoint(tmp_path.joinpath("saved", *parts))
    observed = {
        "observations": torch.zeros(3, 32),
        "action_mask": torch.tensor([[1.0, 1.0], [0.0, 1.0], [1.0, 0.0]]),
    }
    for forward in (module.forward_inference, module.forward_exploration, module.forward_train):
        chances = torch.softmax(forward({Columns.OBS: observed})[Columns.ACTION_DIST_INPUTS], dim=-1)
        assert chances[1:].tolist() == [[0.0, 1.0], [1.0, 0.0]]
        assert 0.0 < chances[0, 0] < 1.0
