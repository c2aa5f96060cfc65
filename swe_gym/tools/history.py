"""The changes of an episode, for undo."""

import collections
import dataclasses
import hashlib

from ..errors import ToolError

MAX_STEPS = 50
"""Maximum number of changes of one file that can be undone."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One change of a file, reduced to what undo needs.

    Attributes:
        start: Start of the change in bytes.
        removed: Old bytes; None if the file did not exist.
        added: Number of new bytes.
        digest: SHA-256 of the file after the change.
    """

    start: int
    removed: bytes | None
    added: int
    digest: bytes


class EditHistory:
    """The last changes of each file."""

    def __init__(self) -> None:
        self._steps: dict[str, collections.deque[Step]] = {}

    def record(self, path: str, before: bytes | None, after: bytes) -> None:
        """Record a change of the file from `before` to `after`."""
        steps = self._steps.setdefault(path, collections.deque(maxlen=MAX_STEPS))
        steps.append(step_between(before, after))

    def before_last(self, path: str, current: bytes | None) -> bytes | None:
        """Return the file before its last change; None if it did not exist.

        Raises:
            ToolError: There is nothing to undo, or something else has changed the file since.
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
        """Forget the last change of a file after it is undone."""
        self._steps[path].pop()

    def clear(self) -> None:
        """Forget everything."""
        self._steps.clear()


def step_between(before: bytes | None, after: bytes) -> Step:
    """Return the smallest step from `before` to `after`."""
    if before is None:
        return Step(0, None, len(after), _digest(after))
    start = _common_prefix(before, after)
    end = _common_prefix(before[start:][::-1], after[start:][::-1])
    return Step(start, before[start : len(before) - end], len(after) - start - end, _digest(after))


def _common_prefix(one: bytes, other: bytes) -> int:
    """Return the length of the common prefix, found by bisection: fast for long files."""
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
