"""Logging: every record of the logger "swe_gym" can name the episode and the sandbox that it is about."""

from __future__ import annotations

import contextlib
import contextvars
import logging
from collections.abc import Iterator

_episode: contextvars.ContextVar[str] = contextvars.ContextVar("swe_gym_episode", default="-")
_sandbox: contextvars.ContextVar[str] = contextvars.ContextVar("swe_gym_sandbox", default="-")

FORMAT = "%(asctime)s %(levelname)-7s %(name)s episode=%(episode)s sandbox=%(sandbox)s %(message)s"
"""A format that shows both ids."""


@contextlib.contextmanager
def log_as(*, episode: str | None = None, sandbox: str | None = None) -> Iterator[None]:
    """Set the ids of the records that this thread logs in the block."""
    tokens = [(one, one.set(value)) for one, value in ((_episode, episode), (_sandbox, sandbox)) if value is not None]
    try:
        yield
    finally:
        for one, token in tokens:
            one.reset(token)


class AddIds(logging.Filter):
    """A filter for handlers that adds the attributes `episode` and `sandbox` to each record, "-" if there is none."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add what the record does not have; keep every record."""
        for name, value in (("episode", _episode), ("sandbox", _sandbox)):
            if not hasattr(record, name):
                setattr(record, name, value.get())
        return True
