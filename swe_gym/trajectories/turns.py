"""The turns of a record, found and read one at a time. A long record is never parsed as a whole."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ..errors import UsageError
from ..types import JsonObject
from .records import join, parse_line, split
from .trajectory import Trajectory, Turn, Usage

TEXT, AFTER_TEXT = b'"observation": "', b'", "reward": '
"""The bytes around an observation."""

BLOCK = 4 << 20
LONG = 64 << 10
"""Bytes of a turn beyond which its summary is made without its observation."""

WORDS = 160
"""Characters of a call in its summary."""


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
    data = b"".join(json.dumps(one).encode() + b"\n" for one in split(join([parse_line(line)])))
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
