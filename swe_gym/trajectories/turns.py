"""The turns of a record, found and read one at a time. A long record is never parsed as a whole."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ..errors import UsageError
from .trajectory import Trajectory, Turn

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
    outline: list[dict[str, Any]] = field(default_factory=list)

    def beginning(self) -> Trajectory:
        """Read the record without its turns."""
        return Trajectory.from_json(b"".join(span.read(self.path) for span in self.head).decode())

    def turn(self, number: int) -> Turn:
        """Read a turn.

        Args:
            number: Its number, from 1.

        Raises:
            UsageError: There is no such turn.
        """
        if not 0 < number <= len(self.turns):
            raise UsageError(f"turn {number} is unknown: the episode has {len(self.turns)}")
        return Turn.model_validate_json(self.turns[number - 1].read(self.path))

    def add(self, offset: int, text: bytes) -> dict[str, Any]:
        """Add a turn, and return its fields, perhaps without the observation.

        Raises:
            ValueError: The text is not a turn.
        """
        turn, size = brief(text)
        self.turns.append(Span(offset, len(text)))
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
            for offset, text in find(path, record):
                index.add(offset, text)
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


def _marked(path: Path, record: Span) -> Iterator[tuple[int, bytes]]:
    """Yield offset and content of what lies between the marks. Only parsing tells whether these are the turns."""
    with path.open("rb") as file:
        file.seek(record.offset)
        pieces = _split(file, record.length)
        head, mark, piece = next(pieces).partition(FIRST)
        if not mark:
            raise ValueError("no turns")
        if piece.startswith(b"]"):
            return
        offset = record.offset + len(head) + len(FIRST)
        for following in itertools.chain(pieces, [None]):
            if following is None:
                piece, mark, _ = piece.partition(LAST)
                if not mark:
                    raise ValueError("no end of the turns")
            yield offset, piece + CLOSE
            offset += len(piece) + len(NEXT) - len(OPEN)
            piece = OPEN + (following or b"")


def _split(file: BinaryIO, length: int) -> Iterator[bytes]:
    """Yield the texts between the marks of a range that starts here."""
    rest = b""
    while length > 0 and (block := file.read(min(BLOCK, length))):
        length -= len(block)
        *whole, rest = (rest + block).split(NEXT)
        yield from whole
    yield rest


def _parsed(path: Path, record: Span) -> Iterator[tuple[int, bytes]]:
    """Yield offset and content of the turns of any JSON object. A character of the text is a byte of the file."""
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
        yield record.offset + at, data[at:end]
        at = after_gap(end)


def brief(text: bytes) -> tuple[dict[str, Any], int]:
    """Return the fields of a turn, and the size of its observation. A long turn's observation is left empty.

    Raises:
        ValueError: The text is not a turn.
    """
    start, end = text.find(TEXT) + len(TEXT), text.rfind(AFTER_TEXT)
    if len(text) > LONG and len(TEXT) <= start <= end:
        try:
            turn = json.loads(text[:start] + text[end:])
        except ValueError:
            turn = {}  # the marks belong to something else
        if turn.keys() == Turn.model_fields.keys():
            return turn, end - start
    turn = Turn.model_validate_json(text).model_dump()
    return turn, len(turn["observation"])


def summary_of(turn: dict[str, Any], size: int) -> dict[str, Any]:
    """Return a line of the outline: the call in short and as a digest, numbers and times, without long texts."""
    info, usage = turn["info"], turn["usage"]
    values = (value if isinstance(value, str) else json.dumps(value) for value in turn["arguments"].values())
    call = json.dumps([turn["tool"], turn["arguments"] or turn["action"]])
    return {
        "tool": turn["tool"],
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
        "usage": usage,
    }
