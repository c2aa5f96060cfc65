"""Batches of many environments: spaces, actions, observations and infos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.error import CustomSpaceError
from gymnasium.spaces import Text
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector.utils import batch_differing_spaces, batch_space, concatenate, create_empty_array, iterate

from ..errors import UsageError
from ..spaces import AnyEnv, Array, Info

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


_DICT, _OBJECT = "dict", "object"
DType = np.dtype[Any]
_Kind = str | DType | tuple[tuple[int, ...], DType]
"""How a key's values are batched: as one dtype, arrays of one shape and dtype, dicts key by key, or objects."""


class InfoBatcher:
    """Batches infos as Gymnasium does, and remembers each key's type.

    Each key has a mask `_key` of the rows that hold it. Unlike in Gymnasium, the type does not depend on the first row:
    integers become floats if there is a float among them, incompatible values become objects, and a key keeps its type.
    """

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, ...], _Kind] = {}

    def batch(self, infos: Sequence[Mapping[str, object]]) -> Info:
        """Return one dict of arrays, each as long as `infos`. Nested dicts are batched key by key."""
        return self._batch(dict(enumerate(infos)), len(infos), ())

    def _batch(self, infos: Mapping[int, Mapping[str, object]], rows: int, path: tuple[str, ...]) -> Info:
        columns: dict[str, dict[int, Any]] = {}
        for row, info in infos.items():
            for key, value in info.items():
                columns.setdefault(key, {})[row] = value
        batched: Info = {}
        for key, column in columns.items():
            batched[key] = self._column(column, rows, (*path, key))
            mask = np.zeros(rows, dtype=np.bool_)
            mask[list(column)] = True
            batched[f"_{key}"] = mask
        return batched

    def _column(self, column: Mapping[int, Any], rows: int, path: tuple[str, ...]) -> Info | Array:
        kind = self._kind(column, path)
        if kind == _DICT:
            return self._batch(column, rows, path)
        if isinstance(kind, tuple):
            array = np.zeros((rows, *kind[0]), dtype=kind[1])
        elif isinstance(kind, np.dtype):
            array = np.zeros(rows, dtype=kind)
        else:
            array = np.full(rows, None, dtype=object)
        for row, value in column.items():
            array[row] = value
        return array

    def _kind(self, column: Mapping[int, object], path: tuple[str, ...]) -> _Kind:
        if path == ("final_obs",):
            return _OBJECT
        kind = self._kinds.get(path)
        for value in column.values():
            kind = _kind_of(value) if kind is None else _merge(kind, _kind_of(value))
        assert kind is not None
        self._kinds[path] = kind
        return kind


def _kind_of(value: object) -> _Kind:
    if isinstance(value, dict):
        return _DICT
    if type(value) is int and not -(2**63) <= value < 2**63:
        return _OBJECT
    if type(value) in (bool, int, float) or isinstance(value, np.number):
        return np.dtype(type(value))
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype
    return _OBJECT


def _merge(one: _Kind, other: _Kind) -> _Kind:
    if one == other:
        return one
    if isinstance(one, np.dtype) and isinstance(other, np.dtype):
        return _common(one, other)
    if isinstance(one, tuple) and isinstance(other, tuple) and one[0] == other[0]:
        dtype = _common(one[1], other[1])
        return (one[0], dtype) if isinstance(dtype, np.dtype) else _OBJECT
    return _OBJECT


def _common(one: DType, other: DType) -> DType | str:
    """Return the dtype that holds the numbers of both; booleans are not numbers."""
    if all(np.issubdtype(dtype, np.number) for dtype in (one, other)):
        return np.result_type(one, other)
    return _OBJECT
