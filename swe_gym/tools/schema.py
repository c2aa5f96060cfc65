"""Short ways to write the JSON schemas of tools, in the small part of JSON Schema that every LLM API takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def parameters(required: Sequence[str] = (), **properties: dict[str, Any]) -> dict[str, Any]:
    """The schema of a tool's arguments: an object with these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def string(description: str, choices: Sequence[str] = ()) -> dict[str, Any]:
    """A string, perhaps one of `choices`."""
    return {"type": "string", "description": description, **({"enum": list(choices)} if choices else {})}


def integer(description: str) -> dict[str, Any]:
    """A whole number."""
    return {"type": "integer", "description": description}


def number(description: str) -> dict[str, Any]:
    """Any number."""
    return {"type": "number", "description": description}


def boolean(description: str) -> dict[str, Any]:
    """True or false."""
    return {"type": "boolean", "description": description}


def integers(description: str) -> dict[str, Any]:
    """A list of whole numbers."""
    return {"type": "array", "items": {"type": "integer"}, "description": description}
