"""Conflicts as text."""

OURS = "<<<<<<< "
BASE = "||||||| "
MIDDLE = "======="
THEIRS = ">>>>>>> "


def conflict_lines(conflict, labels, show_base):
    """A conflict with its markers, as a list of lines."""
    ours, base, theirs = labels
    lines = [OURS + ours + "\n", *_closed(conflict.ours)]
    if show_base:
        lines += [BASE + base + "\n", *_closed(conflict.base)]
    return [*lines, MIDDLE + "\n", *_closed(conflict.theirs), THEIRS + theirs + "\n"]


def _closed(lines):
    """The lines, of which the last ends with a newline too: a marker follows it."""
    return [line if line.endswith("\n") else line + "\n" for line in lines]
