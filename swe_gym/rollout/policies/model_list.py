"""The list of models of an OpenAI-compatible server."""

from __future__ import annotations

from collections.abc import Sequence

from ...types import Json, JsonObject

SECONDS = 4.0
"""Deadline of the list."""

IDENTITY = ("id", "root", "parent")
"""Fields that identify a model. vLLM and SGLang tell the checkpoint as `root`; other fields may change in between."""


def rows_of(said: Json) -> list[JsonObject] | None:
    """Return the rows of a list of models; None if the answer is not one."""
    rows = said.get("data") if isinstance(said, dict) else None
    return [row for row in rows if isinstance(row, dict) and "id" in row] if isinstance(rows, list) else None


def identity_of(rows: Sequence[JsonObject], model: str) -> JsonObject:
    """Return what a list tells about a model, as short texts; empty if it does not list it."""
    row = next((row for row in rows if row["id"] == model), {})
    return {name: str(row[name])[:500] for name in IDENTITY if row.get(name)}
