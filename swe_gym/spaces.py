"""`Unicode`: the space of all texts up to a length, which Gymnasium's vector environments handle correctly.

Gymnasium's own `Text` checks every character against a set, and stock `AsyncVectorEnv` reads it from shared memory only
once, before the first write, so that every observation is constant. The functions below `Unicode` batch, copy and share
it correctly; the table at the end registers them with Gymnasium.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from copy import deepcopy
from ctypes import c_uint8
from typing import Any, NoReturn, TypeVar

import gymnasium.spaces.utils
import gymnasium.vector.utils
import gymnasium.wrappers.utils
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Text, Tuple

from .errors import UsageError

Obs = TypeVar("Obs")
Info = dict[str, Any]
Array = npt.NDArray[Any]
AnyEnv = gymnasium.Env[Any, Any]
AnyWrapper = gymnasium.Wrapper[Any, Any, Any, Any]
ResetResult = tuple[Obs, Info]
StepResult = tuple[Obs, float, bool, bool, Info]


class Unicode(Text):
    """Any `str` of at most `max_length` code points, including control characters, emoji and lone surrogates.

    `contains` checks type and length only. Two spaces are equal if their `max_length` is equal.

    Args:
        max_length: Maximum number of code points.
        examples: Texts that `sample` draws from; a random text would be a useless action.
        seed: Seed of `sample`.

    Raises:
        UsageError: There are no examples, or one is outside the space.
    """

    def __init__(
        self,
        max_length: int,
        *,
        examples: Sequence[str] = ("",),
        seed: int | np.random.Generator | None = None,
    ) -> None:
        super().__init__(max_length, min_length=0, charset="", seed=seed)
        self.examples: tuple[str, ...] = tuple(examples)
        outside = [example for example in self.examples if not self.contains(example)]
        if not self.examples or outside:
            what = "there are none" if not outside else f"{str(outside[0])[:60]!r} is not"
            raise UsageError(
                f"the examples of a Unicode space must be texts of at most {max_length} characters: {what}"
            )

    def contains(self, x: object) -> bool:
        """Return whether `x` is a `str` of at most `max_length` code points."""
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: object = None, probability: object = None) -> str:
        """Return one of the examples.

        Raises:
            UsageError: A mask or probabilities were given.
        """
        if mask is not None or probability is not None:
            raise UsageError("Unicode.sample draws from its examples and takes neither mask nor probability")
        return self.examples[int(self.np_random.integers(len(self.examples)))]

    def __repr__(self) -> str:
        return f"Unicode({self.max_length})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unicode) and self.max_length == other.max_length

    @property
    def is_np_flattenable(self) -> bool:
        """Always False: texts of any length do not fit an array."""
        return False


# --- shared memory --------------------------------------------------------------------------------------
#
# Each environment has a record: the length of its text in bytes, then the text as UTF-8. "surrogatepass" keeps lone
# surrogates.

_HEADER = 8
_BYTES_PER_CODE_POINT = 4


def _write_shared(space: Unicode, index: int, value: str, shared_memory: Any) -> None:
    if not space.contains(value):
        shown = f"a text of {len(value)} characters" if isinstance(value, str) else type(value).__name__
        raise UsageError(f"an observation of {space} cannot be {shown}")
    data = value.encode("utf-8", "surrogatepass")
    record = _record(space, index, shared_memory)
    record[_HEADER : _HEADER + len(data)] = np.frombuffer(data, np.uint8)
    record[:_HEADER] = np.frombuffer(len(data).to_bytes(_HEADER, "little"), np.uint8)


def _record_size(space: Unicode) -> int:
    return _HEADER + _BYTES_PER_CODE_POINT * space.max_length


def _record(space: Unicode, index: int, shared_memory: Any) -> npt.NDArray[np.uint8]:
    size = _record_size(space)
    return np.frombuffer(shared_memory.get_obj(), np.uint8)[index * size : (index + 1) * size]


class SharedTexts(tuple[str, ...]):
    """The current texts in shared memory, read at every use as the arrays of other spaces are.

    `AsyncVectorEnv` reads shared memory once, when it is made, and returns deep copies of the result. A deep copy of
    this object is a plain tuple of the current texts. With `copy=False` callers get this object itself.
    """

    _space: Unicode
    _memory: Any
    _n: int

    @classmethod
    def of(cls, space: Unicode, memory: Any, n: int) -> SharedTexts:
        """Return the texts of `n` environments in the memory made by `create_shared_memory`."""
        self = cls()
        self._space, self._memory, self._n = space, memory, n
        return self

    def now(self) -> tuple[str, ...]:
        """Return the current texts as a plain tuple."""
        return tuple(self._text(index) for index in range(self._n))

    def _text(self, index: int) -> str:
        record = _record(self._space, index, self._memory)
        length = int.from_bytes(record[:_HEADER].tobytes(), "little")
        return record[_HEADER : _HEADER + length].tobytes().decode("utf-8", "surrogatepass")

    def __deepcopy__(self, memo: object) -> tuple[str, ...]:
        return self.now()

    def __copy__(self) -> tuple[str, ...]:
        return self.now()

    def __reduce__(self) -> tuple[object, ...]:
        return tuple, (list(self.now()),)


def _of_now(name: str) -> Callable[..., object]:
    def method(self: SharedTexts, *arguments: object) -> object:
        plain = [one.now() if isinstance(one, SharedTexts) else one for one in arguments]
        return getattr(self.now(), name)(*plain)

    return method


# A tuple's own methods would see the empty tuple underneath.
for _name in set(vars(tuple)) - {"__new__", "__doc__", "__getattribute__", "__getnewargs__", "__class_getitem__"}:
    setattr(SharedTexts, _name, _of_now(_name))


# --- what Gymnasium calls -------------------------------------------------------------------------------


def _flatdim(space: Unicode) -> NoReturn:
    raise ValueError(f"{space} cannot be flattened to an array: its texts have no fixed length")


_REGISTRATIONS: tuple[tuple[Any, Callable[..., object]], ...] = (
    (
        gymnasium.vector.utils.batch_differing_spaces,
        lambda spaces: Tuple([deepcopy(space) for space in spaces], seed=deepcopy(spaces[0].np_random)),
    ),
    (gymnasium.vector.utils.create_empty_array, lambda _space, n=1, *_fn, **_kwargs: ("",) * n),
    (gymnasium.wrappers.utils.create_zero_array, lambda _space: ""),
    (
        gymnasium.vector.utils.create_shared_memory,
        lambda space, n=1, ctx=multiprocessing: ctx.Array(c_uint8, n * _record_size(space)),
    ),
    (gymnasium.vector.utils.write_to_shared_memory, _write_shared),
    (
        gymnasium.vector.utils.read_from_shared_memory,
        lambda space, shared_memory, n=1: SharedTexts.of(space, shared_memory, n),
    ),
    (gymnasium.spaces.utils.flatdim, _flatdim),
    (gymnasium.spaces.utils.flatten, lambda _space, x: x),
    (gymnasium.spaces.utils.unflatten, lambda _space, x: x),
    (gymnasium.spaces.utils.flatten_space, deepcopy),
)
"""Functions that replace those of `Text`; `batch_space` and `concatenate` treat a `Unicode` as a `Text`."""

for _dispatcher, _function in _REGISTRATIONS:
    _dispatcher.register(Unicode, _function)
