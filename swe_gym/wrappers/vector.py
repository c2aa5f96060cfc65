"""Wrappers for `SweVectorEnv`: each puts the wrapper of the same name around every environment.

They work in every autoreset mode, with `step` and with `send` and `recv`; each environment has its own state. Apply
them before the first `reset`. For other vector environments, wrap each environment:
`gymnasium.make_vec(..., vectorization_mode="sync", wrappers=[...])`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import VectorEnv, VectorWrapper

from ..errors import UsageError
from ..spaces import AnyWrapper, Array, Info, ResetResult
from ..vector import Seeds, SweVectorEnv
from . import budget, record_trajectory, transform
from . import task_curriculum as curriculum_

__all__ = [
    "Budget",
    "ChatMessages",
    "HashedText",
    "RecordTrajectory",
    "ShapeReward",
    "StateSignature",
    "TaskCurriculum",
    "ToolMenu",
    "TruncateObservation",
]


class WrapEach(VectorWrapper, RecordConstructorArgs):  # old Gymnasiums take no parameters here
    """Puts `wrapper` around every environment. It takes the wrapper's arguments.

    Raises:
        UsageError: The vector environment is not a `SweVectorEnv`, or an episode has started.
    """

    wrapper: ClassVar[type[AnyWrapper]]

    def __init__(self, env: VectorEnv[Any, Any, Any], *args: object, **kwargs: object) -> None:
        given = inspect.signature(self.wrapper).bind(None, *args, **kwargs)
        given.apply_defaults()
        arguments = dict(list(given.arguments.items())[1:])
        RecordConstructorArgs.__init__(self, **arguments)
        if not isinstance(env.unwrapped, SweVectorEnv):
            raise UsageError(
                f"this {type(self).__name__} is for SweVectorEnv, not {type(env.unwrapped).__name__}: "
                "wrap each environment, as with make_vec(..., wrappers=[...])"
            )
        self._wrap(env.unwrapped, arguments)
        VectorWrapper.__init__(self, env)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fork(self, slot: int, into: Sequence[int] | Array) -> ResetResult[Any]:
        """See `SweVectorEnv.fork`."""
        result: ResetResult[Any] = self.env.unwrapped.fork(slot, into)  # type: ignore[attr-defined]
        return result

    def _wrap(self, envs: SweVectorEnv, arguments: dict[str, Any]) -> None:
        envs.wrap(lambda env: self.wrapper(env, **arguments))


class ChatMessages(WrapEach):
    """Applies `swe_gym.wrappers.ChatMessages` to each environment."""

    wrapper = transform.ChatMessages


class Budget(WrapEach):
    """Applies `swe_gym.wrappers.Budget` to each environment."""

    wrapper = budget.Budget


class TruncateObservation(WrapEach):
    """Applies `swe_gym.wrappers.TruncateObservation` to each environment."""

    wrapper = transform.TruncateObservation


class RecordTrajectory(WrapEach):
    """Applies `swe_gym.wrappers.RecordTrajectory` to each environment, with one file for all."""

    wrapper = record_trajectory.RecordTrajectory


class ShapeReward(WrapEach):
    """Applies `swe_gym.wrappers.ShapeReward` to each environment."""

    wrapper = transform.ShapeReward


class StateSignature(WrapEach):
    """Applies `swe_gym.wrappers.StateSignature` to each environment."""

    wrapper = transform.StateSignature


class ToolMenu(WrapEach):
    """Applies `swe_gym.wrappers.ToolMenu` to each environment."""

    wrapper = transform.ToolMenu

    def action_masks(self) -> Array:
        """Return the masks of valid actions: bool, shape (num_envs, number of calls)."""
        masks: Array = np.stack(self.env.unwrapped.call("action_masks"))  # type: ignore[attr-defined]
        return masks


class HashedText(WrapEach):
    """Applies `swe_gym.wrappers.HashedText` to each environment."""

    wrapper = transform.HashedText


class TaskCurriculum(WrapEach):
    """Applies `swe_gym.wrappers.TaskCurriculum` to each environment, with one `Curriculum` for all.

    With the order "shuffled", no task is played twice before all were, and `reset(seed=N)` gives the slots the same
    tasks each time.

    Attributes:
        curriculum: The shared curriculum.
    """

    wrapper = curriculum_.TaskCurriculum

    def _wrap(self, envs: SweVectorEnv, arguments: dict[str, Any]) -> None:
        shared = arguments["curriculum"] or curriculum_.make_curriculum(
            envs.envs[0], arguments["order"], arguments["task_ids"]
        )
        self.curriculum: curriculum_.Curriculum = shared
        self._deals = arguments["curriculum"] is None and arguments["order"] == "shuffled"
        super()._wrap(envs, {**arguments, "curriculum": shared})

    def reset(self, *, seed: Seeds = None, options: Info | None = None) -> ResetResult[Any]:
        """Reset the environments. A seed restarts the order "shuffled", whose next tasks go to the slots in order."""
        if self._deals and isinstance(seed, int) and {"task_ids", "checkpoint"}.isdisjoint(options or {}):
            self.curriculum.restart()
            rng = np.random.default_rng(seed)
            mask = (options or {}).get("reset_mask")
            slots = self.num_envs if mask is None else int(np.sum(mask))
            options = {**(options or {}), "task_ids": [self.curriculum.next(rng) for _ in range(slots)]}
        result: ResetResult[Any] = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]
        return result
