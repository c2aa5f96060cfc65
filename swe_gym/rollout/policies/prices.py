"""Prices of models, and a dated table of public prices."""

from __future__ import annotations

import functools
import re
import tomllib
import urllib.parse
from importlib import resources
from typing import Any

from pydantic import Field

from ...trajectories.trajectory import Usage
from ...types import Frozen

TABLE = "prices.toml"
"""Data file beside this module."""


class Prices(Frozen):
    """Prices in US dollars per million tokens.

    Attributes:
        input: Price of prompt tokens.
        cached: Price of cached prompt tokens; None is the price of `input`.
        output: Price of completion tokens.
        date: Date (ISO 8601) on which the prices were checked; empty for prices of your own.
    """

    input: float = Field(default=0.0, ge=0)
    cached: float | None = Field(default=None, ge=0)
    output: float = Field(default=0.0, ge=0)
    date: str = ""

    def cost(self, usage: Usage) -> float:
        """Return the cost in US dollars."""
        cached = self.input if self.cached is None else self.cached
        read = (usage.prompt_tokens - usage.cached_tokens) * self.input + usage.cached_tokens * cached
        return (read + usage.completion_tokens * self.output) / 1e6


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
def _table() -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath(TABLE).read_text(encoding="utf-8"))
