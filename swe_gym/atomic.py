"""Atomic writing: a file is replaced whole, or stays as it was."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`. If the block succeeds, the file there replaces `path`."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)  # left by a killed process that had the same id
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, atomically."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")
