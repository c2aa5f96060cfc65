"""Logging: every record of the logger "swe_gym" can name the episode and the sandbox that it is about."""

import contextlib
import contextvars
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

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


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is now: a progress display may have replaced it."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, stream: TextIO) -> None:
        pass


@contextlib.contextmanager
def logging_to(path: Path | None, level: str) -> Iterator[None]:
    """Write the records of "swe_gym" to a file, or to standard error if `path` is None.

    Raises:
        OSError: The file cannot be opened.
    """
    handler = _Stderr() if path is None else logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter(FORMAT))
    handler.addFilter(AddIds())
    logger = logging.getLogger("swe_gym")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        handler.close()
