"""What is known of a model: its row in a server's list, and its public prices."""

from __future__ import annotations

import functools
import re
import tomllib
import urllib.parse
from collections.abc import Sequence
from importlib import resources

from ...trajectories import Prices
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


TABLE = "prices.toml"
"""Data file beside this module."""


def known_prices(model: str, server: str) -> Prices | None:
    """Return the public prices of a model, None if the table does not have them.

    Args:
        model: Model name; a dated name such as "gpt-4.1-2025-04-14" has the prices of its model.
        server: URL of the server. The same model costs something else at another provider.
    """
    host = _table().get(urllib.parse.urlsplit(server).hostname or "", {})
    prices = host.get("models", {}).get(re.sub(r"-(\d{4}-\d{2}-\d{2}|\d{8})$", "", model))
    return Prices(**prices, date=str(host["checked"])) if prices else None


@functools.cache
def _table() -> JsonObject:
    return tomllib.loads(resources.files(__package__).joinpath(TABLE).read_text(encoding="utf-8"))
