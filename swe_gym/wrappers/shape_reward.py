"""`ShapeReward`: small rewards at every step."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from ..envs import ToolEnv
from ..errors import UsageError
from ..spaces import AnyEnv, AnyWrapper, Info, ResetResult, StepResult


class ShapeReward(AnyWrapper, RecordConstructorArgs):
    """Scales the environment's reward and adds a small one at each step.

    `info["reward_components"]["shaping"]` holds what was added. After an infrastructure failure nothing is added: such
    an episode has no reward.

    Args:
        env: A `SweEnv`, wrapped or not.
        per_turn: Reward of every step, such as -0.01.
        per_invalid: Reward of an invalid action, such as -0.05.
        scale: Factor of the environment's own reward.

    Raises:
        UsageError: A number is not finite, or the environment is not a `SweEnv`.

    Change logs:
        * v0: Initial version.
    """

    def __init__(self, env: AnyEnv, *, per_turn: float = 0.0, per_invalid: float = 0.0, scale: float = 1.0) -> None:
        RecordConstructorArgs.__init__(self, per_turn=per_turn, per_invalid=per_invalid, scale=scale)
        gymnasium.Wrapper.__init__(self, env)
        if not isinstance(env.unwrapped, ToolEnv):
            raise UsageError(f"ShapeReward needs a SweEnv, not {type(env.unwrapped).__name__}")
        if not all(map(math.isfinite, (per_turn, per_invalid, scale))):
            raise UsageError(f"rewards must be finite numbers: {per_turn=}, {per_invalid=}, {scale=}")
        self._per_turn, self._per_invalid, self._scale = per_turn, per_invalid, scale
        self._invalid = 0
        self._added = 0.0  # in the last step

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> ResetResult[Any]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._invalid, self._added = 0, 0.0
        return observation, self._add_to_info(info)

    def step(self, action: object) -> StepResult[Any]:
        """Take a step and add to its reward."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        invalid, self._invalid = info["invalid_actions"] - self._invalid, info["invalid_actions"]
        lost = info["outcome"] == "infra_failed"
        self._added = 0.0 if lost else self._per_turn + invalid * self._per_invalid
        reward = self._scale * float(reward) + self._added
        return observation, reward, terminated, truncated, self._add_to_info(info)

    def end(self, limit: str) -> StepResult[Any]:
        """End the episode as `SweEnv.end` does: the reward is scaled, and none is added to that of the last step."""
        observation, reward, terminated, truncated, info = self.env.get_wrapper_attr("end")(limit)
        return observation, self._scale * reward, terminated, truncated, self._add_to_info(info)

    def _add_to_info(self, info: Info) -> Info:
        components = {name: self._scale * value for name, value in info["reward_components"].items()}
        return {**info, "reward_components": {**components, "shaping": self._added}}
