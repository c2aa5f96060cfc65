"""The episode loop."""

from __future__ import annotations

from typing import Any

import gymnasium

from ..wrappers.record_trajectory import RecordTrajectory
from .policy import Policy
from .trajectory import Trajectory


def play(
    env: gymnasium.Env[str, str],
    policy: Policy,
    *,
    seed: int | None = None,
    options: dict[str, Any] | None = None,
) -> Trajectory:
    """Play one episode to its end. The caller closes `env`.

    Args:
        env: A `SweEnv`, wrapped or not.
        policy: Who plays.
        seed: For `reset`.
        options: For `reset`, such as `{"task_id": ...}`.

    Returns:
        The record of it. An infrastructure failure is a record too: look at `reward_valid`.

    Raises:
        SandboxError: The sandbox did not come up.
        TaskError: The task is broken.
    """
    recorder = RecordTrajectory(env)
    observation, info = recorder.reset(seed=seed, options=options)
    policy.reset(info)
    over = False
    while not over:
        observation, _, terminated, truncated, _ = recorder.step(policy.act(observation))
        over = terminated or truncated
    return recorder.trajectory
