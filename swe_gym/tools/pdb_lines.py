"""Maps line numbers across an edit."""

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence

ALIKE = 0.6
"""Minimum `difflib` ratio for a line to count as a rewritten version of another."""


MAX_EQUAL_PAIRS = 5_000_000
"""Maximum number of pairs of equal old and new lines, each of which `difflib` visits."""

MAX_COMPARED = 10_000
"""Maximum number of pairs of lines that are compared for similarity."""


def moved_lines(old: Sequence[str], new: Sequence[str]) -> dict[int, int]:
    """Map line numbers before an edit to those after it, both counted from 1. Deleted lines have no entry.

    A rewritten line keeps its place: equal numbers of replaced lines match one by one, others by similarity.
    """
    moved: dict[int, int] = {}
    for kind, i1, i2, j1, j2 in _opcodes(old, new):
        if kind == "equal" or (kind == "replace" and i2 - i1 == j2 - j1):
            moved.update(zip(range(i1 + 1, i2 + 1), range(j1 + 1, j2 + 1), strict=True))
        elif kind == "replace":
            moved.update(_most_alike(old, new, range(i1, i2), range(j1, j2)))
    return moved


def _opcodes(old: Sequence[str], new: Sequence[str]) -> Iterable[tuple[str, int, int, int, int]]:
    """Return the opcodes of difflib. Texts with too many equal pairs become one replacement."""
    counts = Counter(new)
    if sum(counts[line] for line in old) > MAX_EQUAL_PAIRS:
        return [("replace", 0, len(old), 0, len(new))]
    return difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()


def _most_alike(old: Sequence[str], new: Sequence[str], gone: range, come: range) -> dict[int, int]:
    """Match similar replaced lines in order, each new line once; match nothing if there are too many."""
    pairs: dict[int, int] = {}
    if len(gone) * len(come) > MAX_COMPARED:
        return pairs
    start = come.start
    for i in gone:
        ratios = [(_ratio(old[i], new[j]), -j) for j in range(start, come.stop)]
        ratio, position = max(ratios, default=(0.0, 0))
        if ratio >= ALIKE:
            pairs[i + 1] = 1 - position
            start = 1 - position
    return pairs


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one.strip(), other.strip()).ratio() if one.strip() else 0.0
