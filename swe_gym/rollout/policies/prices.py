"""A dated table of public prices."""

from __future__ import annotations

import functools
import re
import tomllib
import urllib.parse
from importlib import resources

from ...trajectories.trajectory import Prices
from ...types import JsonObject

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
