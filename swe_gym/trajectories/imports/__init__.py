"""Trajectories of other systems, as ours: to read, compare and train on.

What the other system did not write down stays empty; nothing is made up. `env` is empty, so they cannot be replayed.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from ...errors import MissingDependency, UsageError, unknown_name, wrong_fields
from ..trajectory import Trajectory
from .chat import from_messages
from .debug_gym import from_debug_gym
from .r2e import from_r2e

__all__ = ["IMPORTERS", "from_debug_gym", "from_messages", "from_r2e", "import_trajectories"]

COMPRESSED: dict[str, Callable[..., IO[str]]] = {".gz": gzip.open, ".xz": lzma.open}
"""How a compressed file is opened, by its suffix."""

MOST_CHARS = 300
"""Of what is said against a row: some errors repeat it."""

Importer = Callable[[dict[str, Any], str], Trajectory]
"""Turns a row into a trajectory; the text names the row where it says nothing of its task."""

IMPORTERS: dict[str, Importer] = {
    "swe-gym": lambda row, name: Trajectory.from_json(json.dumps(row)),  # noqa: ARG005  ours name their task
    "r2e": from_r2e,
    "debug-gym": from_debug_gym,
    "messages": from_messages,
}
"""Form -> importer. A row's form is told from its fields."""

_FIELDS = {"turns": "swe-gym", "trajectory_steps": "r2e", "log": "debug-gym", "messages": "messages"}


def import_trajectories(path: str | os.PathLike[str], form: str = "auto") -> Iterator[Trajectory]:
    """Read the trajectories of a file that another system wrote, one by one.

    Args:
        path: `.jsonl`, `.json` (one trajectory, or a list) or `.parquet`; the first two also with `.gz` or `.xz`.
        form: A name of `IMPORTERS`; "auto" tells it from the fields of each row.

    Raises:
        UsageError: No such file or form; or a row is broken: the message says which, and what is wrong with it.
        MissingDependency: A Parquet file needs the extra "parquet".
    """
    if form != "auto" and form not in IMPORTERS:
        raise unknown_name("import form", form, ["auto", *IMPORTERS])
    source = Path(path)
    for number, row in enumerate(_rows(source), 1):
        try:
            if not isinstance(row, dict):
                raise ValueError("it is no object")
            yield IMPORTERS[_form(row) if form == "auto" else form](row, f"{source.name.partition('.')[0]}-{number}")
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise UsageError(f"{source}, row {number}: {_what_is_wrong(error)}") from error


def _what_is_wrong(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return wrong_fields(error)
    return f"there is no {error}" if isinstance(error, KeyError) else str(error)[:MOST_CHARS]


def _form(row: dict[str, Any]) -> str:
    for field, form in _FIELDS.items():
        if field in row:
            return form
    raise ValueError(f"it has none of the fields {', '.join(_FIELDS)}: no known form of trajectory")


def _rows(path: Path) -> Iterator[Any]:
    suffix = path.with_suffix("").suffix if path.suffix in COMPRESSED else path.suffix
    if suffix == ".jsonl":
        yield from _lines(path)
    elif suffix == ".json":
        with _open(path) as file:
            content = _decode(path, 1, file.read())
        yield from content if isinstance(content, list) else [content]
    elif path.suffix == ".parquet":
        yield from _parquet(path)
    else:
        raise UsageError(f"{path}: trajectories are read from .jsonl, .json and .parquet files")


def _lines(path: Path) -> Iterator[Any]:
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _decode(path, number, line)


@contextlib.contextmanager
def _open(path: Path) -> Iterator[Any]:
    try:
        with COMPRESSED.get(path.suffix, open)(path, "rt", encoding="utf-8") as file:
            yield file
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}") from None
    except (lzma.LZMAError, zlib.error, OSError, UnicodeDecodeError, EOFError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def _decode(path: Path, number: int, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}, row {number}: {error}") from error


def _parquet(path: Path) -> Iterator[Any]:
    try:
        import pyarrow  # type: ignore[import-untyped]  # it has no stubs
        import pyarrow.parquet  # type: ignore[import-untyped]  # it has no stubs
    except ImportError as error:
        raise MissingDependency("parquet files need pyarrow: pip install 'swe-gym[parquet]'") from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=50):
                yield from batch.to_pylist()
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}") from None
    except (pyarrow.ArrowException, OSError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
