"""An episode for a page: its outline first, then turns, texts and matches as the page asks for them.

Turns are found and read one at a time: a long record is never parsed as a whole.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ..errors import UsageError
from ..trajectories import Trajectory, Turn, Usage, join_record, parse_line, split_record
from ..trajectories.formats import text_of
from ..types import JsonObject

TEXT, AFTER_TEXT = b'"observation": "', b'", "reward": '
"""The bytes around an observation."""

BLOCK = 4 << 20
LONG = 64 << 10
"""Bytes of a turn beyond which its summary is made without its observation."""

WORDS = 160
"""Characters of a call in its summary."""

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


# --- the turns of a record -----------------------------------------------------------------------------------


class Span(NamedTuple):
    """A range of a file in bytes."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        """Offset of the first byte after it."""
        return self.offset + self.length


@dataclass
class TurnIndex:
    """The places of the turns of a record, and a summary of each.

    Attributes:
        open: Opens the file.
        head: Places of the header, and of the result if the episode has ended.
        turns: Places of the turns.
        outline: Summaries of the turns, as plain JSON (see `summary_of`).
    """

    open: Callable[[], BinaryIO]
    head: tuple[Span, ...] = ()
    turns: list[Span] = field(default_factory=list)
    outline: list[JsonObject] = field(default_factory=list)

    def read(self, span: Span) -> bytes:
        """Return the bytes of a range."""
        with self.open() as file:
            file.seek(span.offset)
            return file.read(span.length)

    def beginning(self) -> Trajectory:
        """Read the record without its turns."""
        return Trajectory.from_lines([parse_line(self.read(span)) for span in self.head])

    def turn(self, number: int) -> Turn:
        """Read a turn.

        Args:
            number: Its number, from 1.

        Raises:
            UsageError: The turn does not exist.
        """
        if not 0 < number <= len(self.turns):
            raise UsageError(f"turn {number} is unknown: the episode has {len(self.turns)}")
        return Turn.model_validate(parse_line(self.read(self.turns[number - 1])))

    def add(self, place: Span, line: bytes) -> JsonObject:
        """Add a turn, and return its fields, perhaps without the observation.

        Args:
            place: Its place in the file.
            line: Its line.

        Raises:
            ValueError: The line is not a turn.
        """
        turn, size = brief(line)
        self.turns.append(place)
        self.outline.append(summary_of(turn, size))
        return turn


def find_turns(path: Path, record: Span) -> TurnIndex:
    """Find the turns of a record.

    Raises:
        UsageError: The range is not a record.
    """
    try:
        index = _index(lambda: path.open("rb"), record)
        index.beginning()
    except ValueError as error:
        raise UsageError(f"{path}, byte {record.offset}: not a trajectory of version 1: {error}") from error
    return index


def _index(open_file: Callable[[], BinaryIO], record: Span) -> TurnIndex:
    index = TurnIndex(open_file)
    with open_file() as file:
        for place, line in _lines(file, record):
            if place == record:
                return _index_whole(line)
            if record.offset == place.offset or record.end == place.end:
                index.head = (*index.head, place)
            else:
                index.add(place, line)
    return index


def _index_whole(line: bytes) -> TurnIndex:
    """Find the turns of a record that is one object, in the lines that it is today."""
    data = b"".join(json.dumps(one).encode() + b"\n" for one in split_record(join_record([parse_line(line)])))
    return _index(lambda: io.BytesIO(data), Span(0, len(data)))


def _lines(file: BinaryIO, record: Span) -> Iterator[tuple[Span, bytes]]:
    """Yield place and content of the lines of a range. Iterating over the file is slow if they are long."""
    offset, left = file.seek(record.offset), record.length
    parts: list[bytes] = []
    while left > 0 and (block := file.read(min(BLOCK, left))):
        left -= len(block)
        *ends, rest = block.split(b"\n")
        for end in ends:
            line = b"".join((*parts, end))
            place = Span(offset, len(line) + 1)
            yield place, line
            offset, parts = place.end, []
        parts.append(rest)


def brief(line: bytes) -> tuple[JsonObject, int]:
    """Return the fields of a turn, and the size of its observation. A long turn's observation is left empty.

    Raises:
        ValueError: The line is not a turn.
    """
    start, end = line.find(TEXT) + len(TEXT), line.rfind(AFTER_TEXT)
    if len(line) > LONG and start <= end:
        short = parse_line(line[:start] + line[end:])
        if isinstance(short, dict) and short.keys() == Turn.model_fields.keys():  # or the marks are not its own
            return {**short, "usage": Usage.model_validate(short["usage"]).model_dump()}, end - start
    turn = Turn.model_validate(parse_line(line))
    return turn.model_dump(), len(turn.observation)


def summary_of(turn: JsonObject, size: int) -> JsonObject:
    """Return a line of the outline: the call in short and as a digest, numbers and times, without long texts."""
    info, usage = turn["info"], turn["usage"]
    answer = not turn["tool"] and "call" in info  # an agent's model may answer without a tool
    said = [turn["action"]] if answer else turn["arguments"].values()
    values = (value if isinstance(value, str) else json.dumps(value) for value in said)
    call = json.dumps([turn["tool"], turn["arguments"] or turn["action"]])
    return {
        "tool": turn["tool"],
        "answer": answer,
        "words": " ".join(" ".join(value[:WORDS] for value in values).split())[:WORDS],
        "call": hashlib.sha256(call.encode()).hexdigest()[:16],
        "size": size,
        "exit_code": info.get("exit_code"),
        "failed": bool(turn["tool"]) and info.get("tool_ok") is False and info.get("outcome") == "running",
        "cheat_signs": info.get("cheat_signs", 0),
        "reward": turn["reward"],
        "ended": turn["terminated"] or turn["truncated"],
        "seconds": turn["seconds"],
        "policy_seconds": turn["policy_seconds"],
        "parent": turn.get("parent"),
        "segment": info.get("segment", ""),
        "usage": usage,
    }


# --- what a page asks for -----------------------------------------------------------------------------------


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
