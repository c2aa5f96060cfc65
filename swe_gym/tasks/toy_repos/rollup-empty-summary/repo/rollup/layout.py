"""Columns of text."""

from decimal import Decimal

CENT = Decimal("0.01")


def columns(rows):
    """Rows as lines, in which the columns stand below each other; numbers go to the right.

    Args:
        rows: Lists of texts and numbers; the first is the head and follows the second.
    """
    if not rows:
        return []
    cells = [[_text(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells)]
    to_the_right = [isinstance(value, (int, Decimal)) for value in rows[-1]]
    return ["  ".join(map(_pad, row, widths, to_the_right)).rstrip() for row in cells]


def _text(value):
    return str(value.quantize(CENT)) if isinstance(value, Decimal) else str(value)


def _pad(text, width, to_the_right):
    return text.rjust(width) if to_the_right else text.ljust(width)
