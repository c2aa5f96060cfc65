"""Spaces of a batch, and batches of actions and observations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gymnasium import Space
from gymnasium.error import CustomSpaceError
from gymnasium.spaces import Text
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector.utils import (
    batch_differing_spaces,
    batch_space,
    concatenate,
    create_empty_array,
    iterate,
)

from ..errors import UsageError
from ..spaces import AnyEnv

AnySpace = Space[Any]
ObservationMode = str | tuple[AnySpace, AnySpace]
"""As in `gymnasium.vector.SyncVectorEnv`: "same", "different", or (batched space, single space)."""


def observation_spaces(envs: Sequence[AnyEnv], mode: ObservationMode) -> tuple[AnySpace, AnySpace]:
    """Return the batched and the single observation space. The messages are Gymnasium's.

    Raises:
        ValueError: The mode is unknown.
        TypeError: The mode is a tuple of something else than spaces.
        RuntimeError: The environments' spaces are incompatible.
    """
    single = envs[0].observation_space
    if isinstance(mode, tuple) and len(mode) == 2:
        if not all(isinstance(space, Space) for space in mode):
            raise TypeError(
                f"Expected both elements of observation_mode to be Spaces, got {type(mode[0])} and {type(mode[1])}"
            )
        batched, single = mode
    elif mode == "same":
        batched = batch_space(single, len(envs))
    elif mode == "different":
        batched = batch_differing_spaces([env.observation_space for env in envs])
    else:
        raise ValueError(
            "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and batch observation "
            f"space, actual got {mode}"
        )
    for index, env in enumerate(envs):
        space = env.observation_space
        if mode == "same" and space != single:
            raise RuntimeError(
                "SweVectorEnv(..., observation_mode='same') however the sub-environments observation spaces are not "
                f"equivalent. single_observation_space={single}, that of slot {index} is {space}. If this is "
                "intentional, use `observation_mode='different'` instead."
            )
        if mode != "same" and not is_space_dtype_shape_equiv(space, single):
            raise RuntimeError(
                "SweVectorEnv(..., observation_mode='different' or custom space) however the sub-environments "
                f"observation spaces do not share a common shape and dtype, single_observation_space={single}, that "
                f"of slot {index} is {space}"
            )
    return batched, single


def common_action_space(envs: Sequence[AnyEnv]) -> AnySpace:
    """Return the action space that all environments share.

    Raises:
        RuntimeError: The action spaces differ.
    """
    single = envs[0].action_space
    for index, env in enumerate(envs):
        if env.action_space != single:
            raise RuntimeError(
                f"the action space of slot 0 is {single}, but that of slot {index} is {env.action_space}"
            )
    return single


def split_actions(space: AnySpace, single: AnySpace, actions: object, count: int) -> list[Any]:
    """Split a batch into one action per slot. All are checked before any slot gets one.

    Raises:
        UsageError: The number or the type of the actions is wrong.
        TypeError: `actions` is not a batch.
    """
    if isinstance(actions, str | bytes):
        raise TypeError(f"actions must be one per slot, not a single {type(actions).__name__}")
    try:
        parts = list(iterate(space, actions))
    except CustomSpaceError as error:
        raise TypeError(f"actions must be one per slot, not a single {type(actions).__name__}") from error
    if len(parts) != count:
        raise UsageError(f"expected {count} actions, one per slot, but got {len(parts)}")
    if isinstance(single, Text):
        for place, action in enumerate(parts):
            if not isinstance(action, str):
                raise UsageError(f"actions must be texts, but action {place} is {type(action).__name__}")
    return parts


def join_observations(single: AnySpace, observations: Sequence[object]) -> Any:
    """Return a new batch of observations."""
    empty: Any = create_empty_array(single, n=len(observations))  # None if Gymnasium does not know the space
    return concatenate(single, observations, empty)
