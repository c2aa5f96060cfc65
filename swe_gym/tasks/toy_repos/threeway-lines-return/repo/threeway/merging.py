"""The merge itself."""

from typing import List, NamedTuple, Tuple

from .changes import apply_changes, find_changes
from .markers import conflict_lines
from .regions import find_regions


class Conflict(NamedTuple):
    """Lines that both sides have changed, each in its own way."""

    ours: Tuple[str, ...]
    base: Tuple[str, ...]
    theirs: Tuple[str, ...]


class Merged(NamedTuple):
    """The outcome of a merge."""

    text: str
    conflicts: List[Conflict]


def merge(base, ours, theirs, favor=None, labels=("ours", "base", "theirs"), show_base=False):
    """Merge two versions of `base`.

    Args:
        base: The text that both sides started from.
        ours: Our version.
        theirs: Their version.
        favor: "ours" or "theirs": who wins where both have changed the same lines. Without it, that is a conflict.
        labels: What the markers call our version, the base and their version.
        show_base: Whether a conflict also shows the lines of the base.
    """
    if favor not in (None, "ours", "theirs"):
        raise ValueError("favor must be 'ours' or 'theirs', not {!r}".format(favor))
    base_lines, our_lines, their_lines = (text.splitlines(keepends=True) for text in (base, ours, theirs))
    out = []
    conflicts = []
    position = 0
    regions = find_regions(find_changes(base_lines, our_lines), find_changes(base_lines, their_lines))
    for region in regions:
        out.extend(base_lines[position : region.start])
        position = region.end
        lines, conflict = _resolve(base_lines, region, favor)
        if conflict is not None:
            conflicts.append(conflict)
            lines = conflict_lines(conflict, labels, show_base)
        out.extend(lines)
    out.extend(base_lines[position:])
    return Merged("".join(out), conflicts)


def _resolve(base, region, favor):
    """The lines for a region and None, or None and a conflict."""
    ours = apply_changes(base, region.start, region.end, region.ours)
    theirs = apply_changes(base, region.start, region.end, region.theirs)
    if ours == theirs or not region.theirs:
        return ours, None
    if not region.ours:
        return theirs, None
    if favor is not None:
        return (ours if favor == "ours" else theirs), None
    return None, Conflict(tuple(ours), tuple(base[region.start : region.end]), tuple(theirs))
