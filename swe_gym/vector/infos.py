"""Batches the infos of many environments in stable types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..spaces import Array, Info

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
