"""Parses JSON that an agent or a model wrote, within limits on its size and depth."""

import json
import math
import re

from ..types import Json, JsonMapping, JsonObject

MOST_NODES = 100_000
"""Values of a JSON text. A value takes up to a hundred times the memory of its text."""

MOST_LEVELS = 64
"""Nesting of a JSON text. Servers and templates fail on deeper ones."""


def arguments_of(call: JsonMapping) -> JsonObject:
    """Return the arguments of a tool call; those that are not a JSON object as {"arguments": text}."""
    value = object_of(call)
    return {"arguments": call["function"]["arguments"]} if value is None else value


def object_of(call: JsonMapping) -> JsonObject | None:
    """Return the arguments of a tool call; None if they are not a JSON object."""
    try:
        value = parse_json(call["function"]["arguments"] or "{}")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def parse_json(text: str) -> Json:
    """Parse JSON. Halves of surrogate pairs, which are no text, become question marks.

    Raises:
        ValueError: It is not JSON, is too large or too deep, or holds NaN or an infinite number, which other parsers
            do not read.
    """
    _check_size(text)
    value = json.loads(text, parse_constant=_read_finite, parse_float=_read_finite)
    if _SURROGATE.search(text):
        value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return value


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


def _read_finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is no number of JSON")
    return value


def too_deep(text: str) -> bool:
    """Return whether a text, JSON or not, is nested deeper than JSON may be."""
    try:
        _check_size(text)
    except ValueError:
        return True
    return False


_MARKS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{,]|[\]}]', re.DOTALL)
"""A string, also one without its end; what starts a value; what ends one."""


def _check_size(text: str) -> None:
    """Raise ValueError if a text has too many values or levels. It need not be JSON."""
    nodes = level = 0
    for match in _MARKS.finditer(text):
        mark = text[match.start()]
        nodes += mark in "[{,"
        level += (mark in "[{") - (mark in "]}")
        if nodes > MOST_NODES:
            raise ValueError(f"more than {MOST_NODES} values")
        if level > MOST_LEVELS:
            raise ValueError(f"nested deeper than {MOST_LEVELS} levels")
