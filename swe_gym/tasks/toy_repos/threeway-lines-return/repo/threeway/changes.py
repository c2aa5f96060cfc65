"""What one side has changed."""

from difflib import SequenceMatcher
from typing import NamedTuple, Tuple


class Change(NamedTuple):
    """Lines `start` to `end` of the base (the end is not included) were replaced by `lines`.

    Where start and end are equal, lines were inserted in front of that line.
    """

    start: int
    end: int
    lines: Tuple[str, ...]


def find_changes(base, side):
    """The changes that make the list of lines `side` out of `base`, in order. They do not touch each other."""
    matcher = SequenceMatcher(None, base, side, autojunk=False)
    return [
        Change(base_start, base_end, tuple(side[start:end]))
        for tag, base_start, base_end, start, end in matcher.get_opcodes()
        if tag != "equal"
    ]


def apply_changes(base, start, end, changes):
    """The lines that one side has instead of the lines `start` to `end` of the base.

    Args:
        base: All lines of the base.
        start: Where to begin.
        end: Where to stop, not included.
        changes: The side's changes between the two, in order.
    """
    lines = []
    position = start
    for change in changes:
        lines.extend(base[position : change.start])
        lines.extend(change.lines)
        position = change.end
    lines.extend(base[position:end])
    return lines
