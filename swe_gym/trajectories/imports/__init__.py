"""Import of trajectories of other systems: to read, compare and train on.

What the other system did not record stays empty. `env` is empty, so imported trajectories cannot be replayed.
"""

import itertools
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from ...errors import UsageError, wrong_fields
from ...files import whole_lines
from ...registry import Registry
from ...registry import load as _load
from ...tables import scan_table
from ...types import JsonObject
from ..atif import with_files
from ..records import kind_of, parse_line
from ..trajectory import Trajectory

if TYPE_CHECKING:  # read by `registry`: a name is imported when it is first used
    from .chat import text_of as text_of

else:

    def __getattr__(name: str) -> object:
        return _load(__name__, name)


__all__ = ["IMPORTERS", "Importer", "import_trajectories", "text_of"]

MOST_CHARS = 300
"""Characters of an error that are shown: some errors repeat the whole row."""

Importer = Callable[[JsonObject, str], Trajectory]
"""Turns a row into a trajectory. The text is the task id for rows that name no task."""

IMPORTERS = Registry[Importer](
    "import format",
    {
        "swe-gym": "swe_gym.trajectories.imports:from_swe_gym",
        "r2e": "swe_gym.trajectories.imports.r2e:from_r2e",
        "atif": "swe_gym.trajectories.imports.atif:from_atif",
        "debug-gym": "swe_gym.trajectories.imports.debug_gym:from_debug_gym",
        "messages": "swe_gym.trajectories.imports.chat:from_messages",
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


def from_swe_gym(row: JsonObject, name: str) -> Trajectory:  # noqa: ARG001  the row names its task
    """Return the trajectory of a row in swe_gym's own format."""
    return Trajectory.from_lines([row])


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
