"""A record as lines of JSON: a header, one line per turn, and the result.

    {"version": 1, "task_id": ..., "observation": ...}     header: what is known when the episode starts
    {"action": ..., "observation": ..., "reward": ...}     turn
    {"outcome": ..., "reward": ..., "verdict": ...}        result

An episode counts once the newline of its result is on disk. A killed writer may leave lines without a result at the end
of a file: readers skip them, and the next writer removes them. A record that is one object with a list of turns is read
too: former versions wrote one per line, and `swe-gym export` does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, Literal, NamedTuple, cast

from pydantic_core import from_json

from ..files import end_of_lines
from ..types import JsonObject

Value = JsonObject | ValueError
"""A parsed line: an object, or why it is none."""


class RecordLines(NamedTuple):
    """Consecutive lines of a file that are a record, or one line that belongs to none.

    Attributes:
        place: Offset in bytes, or number, of the first line.
        length: Length in bytes.
        lines: The parsed lines.
    """

    place: int
    length: int
    lines: list[Value]


def split_record(whole: JsonObject) -> list[JsonObject]:
    """Return the lines of a record that is one object: the turns, and the fields before and behind them."""
    fields = list(whole.items())
    at = list(whole).index("turns")
    return [dict(fields[:at]), *whole["turns"], dict(fields[at + 1 :])]


def join_record(lines: Sequence[Value]) -> JsonObject:
    """Return a record as one object. Its result may be missing: the episode runs.

    Raises:
        ValueError: A line is not a JSON object.
    """
    for line in lines:
        if isinstance(line, ValueError):
            raise line
    header, *turns = cast("Sequence[JsonObject]", lines) or [{}]
    result = turns.pop() if turns and kind_of(turns[-1]) != "turn" else {}
    return {**header, **result, "turns": turns or header.get("turns", [])}


def find_records(lines: Iterable[tuple[int, bytes]]) -> Iterator[RecordLines]:
    """Yield the records of a file's lines and their places. Lines without a result at the end are omitted.

    Invalid records are yielded too: lines without a result before another header, and lines that belong to no record.
    """
    first, length = 0, 0
    held: list[Value] = []
    for place, line in lines:
        value = parse_line(line)
        kind = kind_of(value)
        if held and kind in ("header", "whole"):
            yield RecordLines(first, length, held)
            held = []
        if not held:
            first, length = place, 0
        held.append(value)
        length += len(line)
        if kind in ("result", "whole") or (len(held) == 1 and kind != "header"):
            yield RecordLines(first, length, held)
            held = []


def end_of_records(file: BinaryIO) -> int:
    """Return the offset behind the last line that is not part of an incomplete record at the end of a file."""
    end = start = end_of_lines(file)
    while start > 0:
        stop, start = start, end_of_lines(file, start - 1)
        file.seek(start)
        kind = kind_of(parse_line(file.read(stop - start)))
        if kind != "turn":
            return start if kind == "header" else end
    return end


def parse_line(line: str | bytes) -> Value:
    """Parse a line."""
    try:
        value = from_json(line)
    except ValueError:  # a lone surrogate, which models may sample, is an error for this parser, which is the fastest
        try:
            value = json.loads(line)
        except ValueError as error:
            return error
    return value if isinstance(value, dict) else ValueError("not a JSON object")


def kind_of(value: Value) -> Literal["header", "turn", "result", "whole", ""]:
    """Return what a line is; "" for anything else."""
    if isinstance(value, ValueError):
        return ""
    if "action" in value:
        return "turn"
    if "turns" in value:
        return "whole"
    if "task_id" in value and "observation" in value:
        return "header"
    return "result" if "outcome" in value else ""
