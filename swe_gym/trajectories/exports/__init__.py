"""Export of trajectories to the formats of other programs. Every exporter is a pure function.

No exporter passes on `Trajectory.verdict` or `Trajectory.failure`, which only the owner of a run may see.
"""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ...errors import UsageError
from ...registry import Registry
from ...tables import SUFFIXES, write_table
from ...types import JsonObject
from ..trajectory import Trajectory
from .documents import write_documents
from .rows import encodable, row_schema

__all__ = ["EXPORTERS", "Exporter", "export_trajectories"]

Exporter = Callable[[Iterable[Trajectory]], Iterator[JsonObject]]
"""Turns trajectories into rows of JSON data."""

EXPORTERS = Registry[Exporter](
    "export format",
    {
        "swe-gym": "swe_gym.trajectories.exports.rows:as_they_are",
        "rows": "swe_gym.trajectories.exports.rows:to_rows",
        "r2e": "swe_gym.trajectories.exports.r2e:to_r2e",
        "atif": "swe_gym.trajectories.exports.atif:to_atif",
        "sft": "swe_gym.trajectories.exports.chat:to_sft",
        "preferences": "swe_gym.trajectories.exports.chat:to_preferences",
        "swebench": "swe_gym.trajectories.exports.rows:to_predictions",
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
