"""The adapter for Ray RLlib: registered environments, and action masks for its PPO.

    register_env("menu", make_env)
    config = (
        PPOConfig()
        .environment("menu")
        .env_runners(
            num_envs_per_env_runner=8,
            gym_env_vectorize_mode="vector_entry_point",
            env_to_module_connector=MaskedObservations.make,
        )
        .rl_module(rl_module_spec=RLModuleSpec(module_class=MaskedPPOModule))
        .callbacks(LeaveOutFailures)
    )

RLlib supports neither text nor tool calls: wrap the environments in `ToolMenu` and `HashedText`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Text
from gymnasium.utils import RecordConstructorArgs

from ..envs import WORLD_ERRORS
from ..errors import MissingDependency, SweGymError, UsageError
from ..types import JsonMapping
from ..vector import SweVectorEnv

try:
    import torch
    from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
    from ray.rllib.callbacks.callbacks import RLlibCallback
    from ray.rllib.connectors.env_to_module.observation_preprocessor import SingleAgentObservationPreprocessor
    from ray.rllib.core.columns import Columns
    from ray.rllib.utils.torch_utils import FLOAT_MIN
    from ray.tune.registry import register_env as _register
except ImportError as error:
    raise MissingDependency(f"this adapter needs RLlib and torch: pip install 'swe-gym[rllib]' ({error})") from error

Env = gymnasium.Env[Any, Any]
Record = dict[str, Any]

OBSERVATIONS, ACTION_MASK = "observations", "action_mask"
"""The keys of a module's observation, as in RLlib's examples of action masking."""

FAILURES = 3
"""Failures in a row of one environment before training stops."""


def register_env(name: str, make_env: Callable[..., Env]) -> None:
    """Register an environment with RLlib, on every machine of its cluster.

    `config.environment(name, env_config={...})` then uses `make_env(**env_config)`. With
    `gym_env_vectorize_mode="vector_entry_point"`, the environments of an env runner are the slots of one
    `SweVectorEnv`, each on its own thread. Each environment is wrapped in `RLlibEpisodes`.
    """
    _register(name, partial(_make, make_env))


def _make(make_env: Callable[..., Env], context: JsonMapping) -> Any:
    """Make one environment, or a vector environment if RLlib sets `num_envs`."""
    arguments = dict(context)
    count = arguments.pop("num_envs", None)

    def make_one() -> Env:
        return RLlibEpisodes(make_env(**arguments))

    return make_one() if count is None else SweVectorEnv([make_one] * count)


class RLlibEpisodes(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """A wrapper that gives terminations and truncations the meaning that RLlib expects.

    RLlib bootstraps the state after a truncation. A budget of the environment (`max_turns`) becomes a termination,
    because the work was graded. An external limit (`max_episode_steps`) stays a truncation, and so does an
    infrastructure failure, which `LeaveOutFailures` keeps out of training. A failed reset is retried.

    Raises:
        SweGymError: `FAILURES` episodes in a row failed. RLlib stops, or recreates the environments of the env runner
            with `fault_tolerance(restart_failed_sub_environments=True)`.
    """

    def __init__(self, env: Env) -> None:
        RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, env)
        self._failures: list[str] = []

    def reset(self, *, seed: int | None = None, options: Record | None = None) -> tuple[Any, Record]:
        """Reset, with retries after infrastructure failures."""
        failures = list(self._failures)
        while len(failures) < FAILURES:
            try:
                return self.env.reset(seed=seed, options=options)
            except WORLD_ERRORS as error:
                failures.append(f"{type(error).__name__}: {error}")
        raise SweGymError(
            f"{FAILURES} episodes in a row failed: fix the cause, then resume training. Failures: {'; '.join(failures)}"
        )

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Record]:
        """Take a step; a graded truncation becomes a termination."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if _has_failed(info):
            self._failures.append(str(info.get("failure", "")))
        elif terminated or truncated:
            self._failures.clear()
        judged = bool(truncated and info.get("reward_valid", False))
        return observation, float(reward), bool(terminated or judged), bool(truncated and not judged), info


class MaskedObservations(SingleAgentObservationPreprocessor):
    """An env-to-module connector that turns observations into `{"observations": ..., "action_mask": ...}`.

    The mask is stored in the episode, so the loss uses the mask of the rollout. It is float32 of shape (actions,), with
    1 for valid actions, from `info["action_mask"]` of `ToolMenu`. Without a mask all actions are valid.

    Raises:
        UsageError: Observations are texts, or actions are not discrete.
    """

    @classmethod
    def make(cls, *_: Any, **__: Any) -> MaskedObservations:
        """Make a connector for `env_runners(env_to_module_connector=...)`. RLlib sets its spaces later."""
        return cls()

    def recompute_output_observation_space(
        self, input_observation_space: gymnasium.Space[Any], input_action_space: gymnasium.Space[Any]
    ) -> gymnasium.Space[Any]:
        """Return the output space."""
        if isinstance(input_observation_space, Text):
            raise UsageError("RLlib does not support text: wrap each environment in swe_gym.wrappers.HashedText")
        if not isinstance(input_action_space, Discrete):
            raise UsageError("RLlib does not support text: wrap each environment in swe_gym.wrappers.ToolMenu")
        mask = Box(0.0, 1.0, (int(input_action_space.n),), np.float32)
        return Dict({ACTION_MASK: mask, OBSERVATIONS: input_observation_space})

    def preprocess(self, observation: Any, episode: Any) -> Record:
        """Return the last observation of an episode with its mask."""
        mask = episode.get_infos(-1).get(ACTION_MASK)
        if mask is None:  # a failed slot: no action follows
            mask = np.ones(self.observation_space[ACTION_MASK].shape)
        return {ACTION_MASK: np.asarray(mask, dtype=np.float32), OBSERVATIONS: observation}


class MaskedPPOModule(DefaultPPOTorchRLModule):
    """PPO's default networks with action masks: masked actions have probability 0 in rollouts and in the loss."""

    def __init__(self, *, observation_space: Dict, **kwargs: Any) -> None:
        super().__init__(observation_space=observation_space[OBSERVATIONS], **kwargs)
        self.observation_space = observation_space  # for copies of this module

    def _forward(self, batch: Record, **kwargs: Any) -> Record:
        return _mask_logits(super()._forward(_take_observations(batch), **kwargs), batch)

    def _forward_train(self, batch: Record, **kwargs: Any) -> Record:
        return _mask_logits(super()._forward_train(_take_observations(batch), **kwargs), batch)

    def compute_values(self, batch: Record, embeddings: Any = None) -> Any:
        """Return the values of states, shape (batch,)."""
        return super().compute_values(_take_observations(batch), embeddings)


class LeaveOutFailures(RLlibCallback):
    """A callback that drops episodes ended by the infrastructure.

    The metric `env_runners/infra_failed` counts them. RLlib's mean return still includes them as 0.
    """

    def on_sample_end(self, *, metrics_logger: Any, samples: list[Any], **_: Any) -> None:
        """Drop them from the learner's samples."""
        valid = [episode for episode in samples if not _has_failed(episode.get_infos(-1))]
        metrics_logger.log_value("infra_failed", len(samples) - len(valid), reduce="sum")
        samples[:] = valid


def _has_failed(info: JsonMapping) -> bool:
    return info.get("outcome") == "infra_failed"


def _take_observations(batch: Record) -> Record:
    """Return the batch as PPO's default networks expect it."""
    return {**batch, Columns.OBS: batch[Columns.OBS][OBSERVATIONS]}


def _mask_logits(output: Record, batch: Record) -> Record:
    mask = batch[Columns.OBS][ACTION_MASK]
    logits = output[Columns.ACTION_DIST_INPUTS]
    return {**output, Columns.ACTION_DIST_INPUTS: torch.where(mask > 0, logits, FLOAT_MIN)}
