"""What was changed in an episode, so that it can be taken back."""

from __future__ import annotations

import collections
import dataclasses
import hashlib

from ..errors import ToolError

MAX_STEPS = 50
"""Changes of one file that can be taken back."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One change of a file, as little of it as taking it back needs.

    Attributes:
        start: Where in the file the change begins, in bytes.
        removed: What stood there; None where the file did not exist.
        added: How many bytes stand there now.
        digest: Of the file after the change.
    """

    start: int
    removed: bytes | None
    added: int
    digest: bytes


class History:
    """The last changes of each file."""

    def __init__(self) -> None:
        self._steps: dict[str, collections.deque[Step]] = {}

    def record(self, path: str, before: bytes | None, after: bytes) -> None:
        """Note that the file went from `before` to `after`."""
        steps = self._steps.setdefault(path, collections.deque(maxlen=MAX_STEPS))
        steps.append(step_between(before, after))

    def before_last(self, path: str, current: bytes | None) -> bytes | None:
        """What the file was before its last change; None where it did not exist.

        Raises:
            ToolError: Nothing is left to take back, or the file is not what the last change made of it.
        """
        steps = self._steps.get(path)
        if not steps:
            raise ToolError("There is nothing to undo: this tool made no change of the file that is not undone yet.")
        step = steps[-1]
        if current is None or _digest(current) != step.digest:
            raise ToolError("The file was changed by something else after the last edit: undo would lose that change.")
        if step.removed is None:
            return None
        return current[: step.start] + step.removed + current[step.start + step.added :]

    def drop_last(self, path: str) -> None:
        """Forget the last change of a file, now that it is taken back."""
        self._steps[path].pop()

    def clear(self) -> None:
        """Forget everything."""
        self._steps.clear()


def step_between(before: bytes | None, after: bytes) -> Step:
    """The smallest replaced part that makes `before` from `after`."""
    if before is None:
        return Step(0, None, len(after), _digest(after))
    start = _common_prefix(before, after)
    end = _common_prefix(before[start:][::-1], after[start:][::-1])
    return Step(start, before[start : len(before) - end], len(after) - start - end, _digest(after))


def _common_prefix(one: bytes, other: bytes) -> int:
    """How many bytes at the beginning are the same, found by halving so that long files cost little."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
