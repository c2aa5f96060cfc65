"""An episode for a page: its outline first, then turns, texts and matches as the page asks for them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence

from ..errors import UsageError
from ..trajectories.imports.chat import text_of
from ..trajectories.trajectory import Trajectory, Turn
from ..trajectories.turns import TurnIndex
from ..types import JsonObject

PIECE = 16_000
"""Characters of each text of a turn that are sent with the turn."""

MOST_TURNS = 20
"""Turns of one answer."""

MOST_PIECE = 1_000_000
"""Characters of one answer of `text_at`."""

MOST_MATCHES = 100
MOST_IN_TEXT = 5
"""Matches of one answer, and of one text."""

AROUND = 60
"""Characters shown on each side of a match."""

SEARCH_SECONDS = 3.0

ARGUMENT = "="
"""First character of the name of a part that is an argument."""


def as_page(trajectory: Trajectory) -> JsonObject:
    """Return a trajectory as plain JSON, without turns, with the number of tokens, and with the system prompt only."""
    shown = trajectory.model_dump(exclude={"segments", "messages", "turns", "tools", "env"})
    shown["tools"] = [tool.name for tool in trajectory.tools]
    shown["system"] = [text_of(message) for message in trajectory.messages if message.get("role") == "system"]
    shown["segments"] = [
        {"tokens": len(segment.token_ids), "sampled": sum(segment.loss_mask)} for segment in trajectory.segments
    ]
    return shown


def episode_page(turns: TurnIndex, first_turn: int = 0) -> JsonObject:
    """Return an episode with an outline in place of its turns.

    Args:
        turns: Its turns.
        first_turn: Index of the first turn of the outline.
    """
    return {**as_page(turns.beginning()), "first_turn": first_turn, "outline": turns.outline[first_turn:]}


def parts_of(turn: Turn) -> dict[str, str]:
    """Return the texts of a turn by part: "thought", "action", "observation", and "=NAME" for an argument."""
    texts = {"thought": turn.thought, "action": turn.action, "observation": turn.observation}
    for name, value in turn.arguments.items():
        texts[ARGUMENT + name] = value if isinstance(value, str) else json.dumps(value)
    return texts


def turns_page(turns: TurnIndex, numbers: Sequence[int]) -> list[JsonObject]:
    """Return the texts of some turns: the beginning of each text, and its whole length.

    Raises:
        UsageError: The turn does not exist.
    """
    pages = []
    for number in numbers[:MOST_TURNS]:
        parts = parts_of(turns.turn(number))
        lengths = {name: len(text) for name, text in parts.items()}
        beginnings = {name: text[:PIECE] for name, text in parts.items()}
        pages.append({"number": number, "parts": beginnings, "of": lengths, "sent": PIECE})
    return pages


def text_at(turns: TurnIndex, number: int, part: str, start: int, end: int) -> str:
    """Return the characters of a part of a turn from `start` to `end`, at most `MOST_PIECE`.

    Raises:
        UsageError: The turn does not exist, or has no such part.
    """
    parts = parts_of(turns.turn(number))
    if part not in parts:
        raise UsageError(f"turn {number} has no {part!r}")
    return parts[part][start : min(end, start + MOST_PIECE)]


def search(turns: TurnIndex, words: str, first: int = 1, seconds: float = SEARCH_SECONDS) -> JsonObject:
    """Search the texts of the turns. The case of letters does not matter.

    Args:
        turns: The turns.
        words: Text to find.
        first: Number of the first turn.
        seconds: Deadline. At least one turn is searched.

    Returns:
        `matches`, and `next`: the turn to continue at, 0 at the end.
    """
    deadline = time.monotonic() + seconds
    pattern = re.compile(re.escape(words), re.IGNORECASE)
    raw = words.lower().encode() if json.dumps(words) == f'"{words}"' else b""  # unless JSON writes it otherwise
    matches: list[JsonObject] = []
    for number in range(max(1, first), len(turns.turns) + 1):
        if number > first and (time.monotonic() > deadline or len(matches) >= MOST_MATCHES):
            return {"matches": matches, "next": number}
        if raw in turns.read(turns.turns[number - 1]).lower():  # saves parsing most turns
            matches += _matches(pattern, turns.turn(number), number)
    return {"matches": matches, "next": 0}


def _matches(pattern: re.Pattern[str], turn: Turn, number: int) -> Iterator[JsonObject]:
    for part, text in parts_of(turn).items():
        if part == "action" and turn.tool:
            continue  # thought and arguments say the same
        for count, found in enumerate(pattern.finditer(text)):
            if count == MOST_IN_TEXT:
                break
            start, end = found.span()
            around = [text[max(0, start - AROUND) : start], found[0], text[end : end + AROUND]]
            yield {"turn": number, "part": part, "at": start, "text": around}
