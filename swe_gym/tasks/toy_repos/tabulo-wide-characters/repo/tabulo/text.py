"""Fitting text into a given number of terminal cells."""

ELLIPSIS = "…"


def truncate(text, limit):
    """`text` if it fits into `limit` cells, else as much of it as leaves room for an ellipsis."""
    if len(text) <= limit:
        return text
    return text[: limit - 1] + ELLIPSIS


def pad(text, size, align):
    """`text` filled up with blanks to `size` cells; `align` is "left", "right" or "center"."""
    blanks = size - len(text)
    before = {"left": 0, "center": blanks // 2, "right": blanks}[align]
    return " " * before + text + " " * (blanks - before)
