"""Trajectories in the formats of other programs: one module per format, which writes, reads, or both.

Every exporter is a pure function. None passes on `Trajectory.verdict` or `Trajectory.failure`, which only the owner of
a run may see. What another system did not record stays empty. `env` is empty, so imported trajectories cannot be
replayed.
"""

import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from ...errors import UsageError, wrong_fields
from ...files import SUFFIXES, scan_table, whole_lines, write_table
from ...registry import Registry
from ...registry import load as _load
from ...types import JsonObject
from ..trajectory import Trajectory, kind_of, parse_line
from .atif import with_files
from .atif_export import write_documents
from .rows import encodable, row_schema

if TYPE_CHECKING:  # read by `registry`: a name is imported when it is first used
    from .chat import text_of as text_of

else:

    def __getattr__(name: str) -> object:
        return _load(__name__, name)


__all__ = [
    "EXPORTERS",
    "IMPORTERS",
    "Exporter",
    "Importer",
    "export_trajectories",
    "import_trajectories",
    "text_of",
]

Exporter = Callable[[Iterable[Trajectory]], Iterator[JsonObject]]
"""Turns trajectories into rows of JSON data."""

EXPORTERS = Registry[Exporter](
    "export format",
    {
        "swe-gym": "swe_gym.trajectories.formats.rows:as_they_are",
        "rows": "swe_gym.trajectories.formats.rows:to_rows",
        "r2e": "swe_gym.trajectories.formats.r2e:to_r2e",
        "atif": "swe_gym.trajectories.formats.atif_export:to_atif",
        "sft": "swe_gym.trajectories.formats.chat:to_sft",
        "preferences": "swe_gym.trajectories.formats.chat:to_preferences",
        "swebench": "swe_gym.trajectories.formats.rows:to_predictions",
    },
    group="swe_gym.exporters",
)


def export_trajectories(trajectories: Iterable[Trajectory], to: str, path: str | os.PathLike[str]) -> int:
    """Write trajectories to a file in another format.

    Args:
        trajectories: The trajectories; they are read once, one by one.
        to: A name of `EXPORTERS`, or "module:function".
        path: A `.jsonl` or `.json` file; for the format "rows", or any other with flat rows, also `.parquet`. For
            "atif", a `.json` file may be one document, and a name without a suffix is a folder of such files.

    Returns:
        The number of rows. If it is 0 or an error is raised, an existing file stays as it was.

    Raises:
        UsageError: The format or the suffix is unknown.
        MissingDependency: A parquet file needs the extra "parquet".
    """
    exporter = EXPORTERS.load(to)
    target = Path(path)
    if to == "atif" and target.suffix != ".jsonl":
        return write_documents(exporter(trajectories), target)
    if target.suffix not in SUFFIXES:
        raise UsageError(f"{target}: the file name must end in {', '.join(SUFFIXES)}")
    rows = iter(exporter(trajectories))
    first = next(rows, None)
    if first is None:
        return 0
    rows = itertools.chain([first], rows)
    if target.suffix != ".parquet":
        return write_table(rows, target)
    return write_table(map(encodable, rows), target, schema=row_schema() if "turns" in first else None)


MOST_CHARS = 300
"""Characters of an error that are shown: some errors repeat the whole row."""

Importer = Callable[[JsonObject, str], Trajectory]
"""Turns a row into a trajectory. The text is the task id for rows that name no task."""

IMPORTERS = Registry[Importer](
    "import format",
    {
        "swe-gym": "swe_gym.trajectories.formats.rows:from_swe_gym",
        "r2e": "swe_gym.trajectories.formats.r2e:from_r2e",
        "atif": "swe_gym.trajectories.formats.atif_import:from_atif",
        "debug-gym": "swe_gym.trajectories.formats.debug_gym:from_debug_gym",
        "messages": "swe_gym.trajectories.formats.chat:from_messages",
    },
    group="swe_gym.importers",
)

_FIELDS = {
    "turns": "swe-gym",
    "trajectory_steps": "r2e",
    "log": "debug-gym",
    "messages": "messages",
    "schema_version": "atif",
}
"""Field -> the format that has it."""


def import_trajectories(path: str | os.PathLike[str], form: str = "auto") -> Iterator[Trajectory]:
    """Read the trajectories of a file that another system wrote, one by one.

    Args:
        path: `.jsonl`, `.json` (one trajectory, or a list) or `.parquet`; the first two also with `.gz` or `.xz`. Or a
            folder of Harbor's trials, each with an `agent/trajectory.json`.
        form: A name of `IMPORTERS`, or "module:function"; "auto" detects the format from the fields of each row.

    Raises:
        UsageError: The file is missing, the format unknown, or a row broken; the message names the row. Or the folder
            holds no trial, or a link.
        MissingDependency: A parquet file needs the extra "parquet".
    """
    if form != "auto":
        IMPORTERS.load(form)
    source = Path(path)
    if source.is_dir():
        for file in _find_documents(source):
            yield from _import_file(file, form, file.parent.parent.name)
    elif form in ("auto", "swe-gym") and _holds_records(source):
        yield from Trajectory.read(source)
    else:
        yield from _import_file(source, form, source.name.partition(".")[0])


def _find_documents(folder: Path) -> list[Path]:
    found = sorted(folder.glob("*/agent/trajectory.json"))
    if not found:
        raise UsageError(f"{folder}: no folder in it has an agent/trajectory.json. Name a file, or a job of Harbor")
    for file in found:
        if file.resolve() != folder.resolve() / file.relative_to(folder):
            raise UsageError(f"{file}: a link, or in one. Name the file itself")
    return found


def _import_file(source: Path, form: str, name: str) -> Iterator[Trajectory]:
    for number, (place, row) in enumerate(scan_table(source), 1):
        try:
            if isinstance(row, ValueError):
                raise row
            if not isinstance(row, dict):
                raise ValueError("not an object")
            found = _form(row) if form == "auto" else form
            whole = with_files(row, source) if found == "atif" else row
            yield _with_finite_rewards(IMPORTERS.load(found)(whole, f"{name}-{number}"))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise UsageError(f"{source}, {place}: {_problem(error)}") from error


def _with_finite_rewards(one: Trajectory) -> Trajectory:
    if not all(map(math.isfinite, (one.reward, *(turn.reward for turn in one.turns)))):
        raise ValueError("reward: not a finite number")
    return one


def _holds_records(path: Path) -> bool:
    """Return whether a file is a trajectory file already."""
    lines = whole_lines(path) if path.suffix == ".jsonl" and path.is_file() else ()
    return any(kind_of(parse_line(line)) == "header" for _, line in itertools.islice(lines, 1))


def _problem(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return wrong_fields(error)
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return f"missing field {error}" if isinstance(error, KeyError) else str(error)[:MOST_CHARS]


def _form(row: JsonObject) -> str:
    for field, form in _FIELDS.items():
        if field in row:
            return form
    raise ValueError(f"unknown format: it has none of the fields {', '.join(_FIELDS)}")
