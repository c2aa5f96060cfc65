"""Renders turns as text and as an image of a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..errors import MissingDependency
from ..spaces import Info
from .episode import ShownTurn

WIDTH, HEIGHT = 960, 640
"""Size of the image in pixels."""

_MARGIN = 12
_CELL = (6, 12)  # a character of Pillow's built-in bitmap font is 6 x 11 pixels
_COLUMNS = (WIDTH - 2 * _MARGIN) // _CELL[0]
_ROWS = (HEIGHT - 2 * _MARGIN) // _CELL[1]
_BACKGROUND, _TEXT, _ACTION = (24, 26, 31), (204, 208, 216), (126, 200, 140)
_LONGEST = 2000  # maximum characters of an action or an observation


def format_turn(turn: ShownTurn) -> str:
    """Return one turn as text: the action after a prompt, then the observation."""
    return "\n".join(text for text, _ in _lines(turn))


def format_turns(turns: Sequence[ShownTurn]) -> str:
    """Return turns as text, oldest first."""
    return "\n\n".join(format_turn(turn) for turn in turns)


def format_end(info: Info, reward: float) -> str:
    """Return how an episode ended, as text."""
    if not info["reward_valid"]:
        return f"\nThe episode ended without a reward: {info['failure']}"
    by = {"": "submit"}.get(info["limit"], f"limit {info['limit']!r}")
    said = f"\nThe episode ended by {by} with reward {reward:g}: {'' if info['resolved'] else 'not '}resolved."
    for kind, what in (("fail_to_pass", "must start passing pass"), ("pass_to_pass", "must keep passing still pass")):
        if (passed := info[f"{kind}_passed"]) >= 0 < info[f"{kind}_total"]:
            said += f"\n{passed} of {info[f'{kind}_total']} tests that {what}."
    return said


def draw_turns(turns: Sequence[ShownTurn]) -> npt.NDArray[np.uint8]:
    """Draw the end of the turns as a terminal shows it.

    Returns:
        An image of shape (640, 960, 3).

    Raises:
        MissingDependency: Pillow is not installed.
    """
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise MissingDependency("render mode 'rgb_array' needs Pillow: pip install 'swe-gym[render]'") from error
    picture = Image.new("RGB", (WIDTH, HEIGHT), _BACKGROUND)
    draw = ImageDraw.Draw(picture)
    font = ImageFont.load_default_imagefont()
    lines = [wrapped for turn in turns for line in [*_lines(turn), ("", _TEXT)] for wrapped in _wrap(*line)]
    for row, (text, colour) in enumerate(lines[-_ROWS:]):
        # the built-in font knows Latin-1 only
        drawable = text.encode("latin-1", "replace").decode("latin-1")
        draw.text((_MARGIN, _MARGIN + row * _CELL[1]), drawable, fill=colour, font=font)
    return np.asarray(picture, dtype=np.uint8).copy()


def _lines(turn: ShownTurn) -> list[tuple[str, tuple[int, int, int]]]:
    """Return the lines of a turn and their colours."""
    action = [(f"[{turn.number}] > {_clean(turn.action)}", _ACTION)] if turn.number else []
    return [
        (line, colour)
        for text, colour in [*action, (_clean(turn.observation), _TEXT)]
        for line in (text.splitlines() or [""])
    ]


def _clean(text: str) -> str:
    """Return shortened text without control characters."""
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]}\n[...]\n{text[-_LONGEST // 2 :]}"
    return "".join(c if c == "\n" or c.isprintable() else " " if c == "\t" else "?" for c in text.expandtabs(4))


def _wrap(text: str, colour: tuple[int, int, int]) -> list[tuple[str, tuple[int, int, int]]]:
    parts = textwrap.wrap(text, _COLUMNS, drop_whitespace=False, replace_whitespace=False) or [""]
    return [(part, colour) for part in parts]
