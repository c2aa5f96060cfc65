"""The turns of a record, found and read one at a time. A long record is never parsed as a whole."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ..errors import UsageError
from ..types import JsonObject
from .trajectory import Trajectory, Turn, Usage

OPEN, CLOSE = b'{"action": "', b"}}"
FIRST, NEXT, LAST = b'"turns": [', CLOSE + b", " + OPEN, CLOSE + b'], "segments": ['
"""The bytes around turns, as `Trajectory.to_json` writes them."""

TEXT, AFTER_TEXT = b'"observation": "', b'", "reward": '
"""The bytes around an observation."""

BLOCK = 4 << 20
LONG = 64 << 10
"""Bytes of a turn beyond which its summary is made without its observation."""

WORDS = 160
"""Characters of a call in its summary."""

_GAP = re.compile(r"\s*[{\[,:]?\s*")


class Span(NamedTuple):
    """A range of a file in bytes."""

    offset: int
    length: int

    def read(self, path: Path) -> bytes:
        """Return the bytes."""
        with path.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.length)


class _Found(NamedTuple):
    """A range of a file, perhaps a turn, and the same range of bytes that were read from it."""

    offset: int
    data: bytes
    start: int
    end: int


@dataclass
class TurnIndex:
    """The places of the turns of a record, and a summary of each.

    Attributes:
        path: The file.
        head: Parts of the file that together are the record without turns.
        turns: Places of the turns.
        outline: Summaries of the turns, as plain JSON (see `summary_of`).
    """

    path: Path
    head: tuple[Span, ...] = ()
    turns: list[Span] = field(default_factory=list)
    outline: list[JsonObject] = field(default_factory=list)

    def beginning(self) -> Trajectory:
        """Read the record without its turns."""
        return Trajectory.from_json(b"".join(span.read(self.path) for span in self.head).decode())

    def turn(self, number: int) -> Turn:
        """Read a turn.

        Args:
            number: Its number, from 1.

        Raises:
            UsageError: The turn does not exist.
        """
        if not 0 < number <= len(self.turns):
            raise UsageError(f"turn {number} is unknown: the episode has {len(self.turns)}")
        return Turn.model_validate_json(self.turns[number - 1].read(self.path))

    def add(self, offset: int, data: bytes, start: int = 0, end: int | None = None) -> JsonObject:
        """Add a turn, and return its fields, perhaps without the observation.

        Args:
            offset: Its offset in the file.
            data: Bytes that contain it.
            start: Where it starts there.
            end: Where it ends there.

        Raises:
            ValueError: These bytes are not a turn.
        """
        end = len(data) if end is None else end
        turn, size = brief(data, start, end)
        self.turns.append(Span(offset, end - start))
        self.outline.append(summary_of(turn, size))
        return turn


def find_turns(path: Path, record: Span) -> TurnIndex:
    """Find the turns of a record.

    Raises:
        ValueError: The range is not a record.
    """
    for find in (_marked, _parsed):  # `_parsed` is slower, and reads any JSON
        index = TurnIndex(path)
        try:
            for offset, data, start, end in find(path, record):
                index.add(offset, data, start, end)
            index.head = _around(record, index.turns)
            index.beginning()
        except ValueError:
            continue
        return index
    raise UsageError(f"{path}, byte {record.offset}: not a trajectory of version 1")


def _around(record: Span, turns: list[Span]) -> tuple[Span, ...]:
    """Return the parts of a record before and after its turns."""
    if not turns:
        return (record,)
    end = turns[-1].offset + turns[-1].length
    return (
        Span(record.offset, turns[0].offset - record.offset),
        Span(end, record.offset + record.length - end),
    )


def _marked(path: Path, record: Span) -> Iterator[_Found]:
    """Yield what lies between the marks. Only parsing tells whether these are the turns."""
    with path.open("rb") as file:
        file.seek(record.offset)
        data, left = b"", record.length
        at = -1  # start of the next turn in the data
        while left > 0 and (block := file.read(min(BLOCK, left))):
            left -= len(block)
            searched = max(0, len(data) - len(NEXT))
            data += block
            if at < 0 and (first := data.find(FIRST)) >= 0:
                at = first + len(FIRST)
            while at >= 0 and (end := data.find(NEXT, max(at, searched))) >= 0:
                yield _Found(file.tell() - len(data) + at, data, at, end + len(CLOSE))
                at = end + len(NEXT) - len(OPEN)
            if at > 0:
                data, at = data[at:], 0
        if at < 0 or (end := data.find(LAST, at)) < 0:
            if data[at : at + 1] == b"]":
                return
            raise ValueError("no turns, or no end of them")
        yield _Found(file.tell() - len(data) + at, data, at, end + len(CLOSE))


def _parsed(path: Path, record: Span) -> Iterator[_Found]:
    """Yield the turns of any JSON object. A character of the text is a byte of the file."""
    data = record.read(path)
    text, decode = data.decode("latin-1"), json.JSONDecoder().raw_decode

    def after_gap(at: int) -> int:
        found = _GAP.match(text, at)
        return found.end() if found else at

    key, at = decode(text, after_gap(0))
    while key != "turns":
        _, at = decode(text, after_gap(at))
        key, at = decode(text, after_gap(at))
    at = after_gap(after_gap(at))  # the colon, then the bracket
    while text[at : at + 1] != "]":
        _, end = decode(text, at)
        yield _Found(record.offset + at, data, at, end)
        at = after_gap(end)


def brief(data: bytes, first: int, last: int) -> tuple[JsonObject, int]:
    """Return the fields of a turn, and the size of its observation. A long turn's observation is left empty.

    Args:
        data: Bytes that contain the turn, which are not copied: most of them are the observation.
        first: Where it starts.
        last: Where it ends.

    Raises:
        ValueError: These bytes are not a turn.
    """
    start, end = data.find(TEXT, first, last) + len(TEXT), data.rfind(AFTER_TEXT, first, last)
    if last - first > LONG and first < start <= end:
        try:
            turn = json.loads(data[first:start] + data[end:last])
        except ValueError:
            turn = {}  # the marks belong to something else
        if turn.keys() == Turn.model_fields.keys():
            return {**turn, "usage": Usage.model_validate(turn["usage"]).model_dump()}, end - start
    turn = Turn.model_validate_json(data[first:last]).model_dump()
    return turn, len(turn["observation"])


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
