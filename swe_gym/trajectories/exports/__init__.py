"""Trajectories in the forms that other programs read. Every exporter is a pure function of trajectories.

None of them passes on what only the owner of a run may see: `Trajectory.verdict` and `Trajectory.failure`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...registry import Registry
from ..trajectory import Trajectory

__all__ = ["EXPORTERS", "Exporter", "export_trajectories"]

Exporter = Callable[[Iterable[Trajectory]], Iterator[dict[str, Any]]]
"""Turns trajectories into rows of plain JSON."""

EXPORTERS = Registry(
    "export format",
    {
        "swe-gym": "swe_gym.trajectories.exports.rows:as_they_are",
        "rows": "swe_gym.trajectories.exports.rows:to_rows",
        "r2e": "swe_gym.trajectories.exports.r2e:to_r2e",
        "sft": "swe_gym.trajectories.exports.chat:to_sft",
        "preferences": "swe_gym.trajectories.exports.chat:to_preferences",
        "swebench": "swe_gym.trajectories.exports.predictions:to_predictions",
    },
    group="swe_gym.exporters",
)


def export_trajectories(trajectories: Iterable[Trajectory], to: str, path: str | os.PathLike[str]) -> int:
    """Write trajectories to a file in another form.

    Args:
        trajectories: They are read once, one by one.
        to: A name of `EXPORTERS`, or "module:function".
        path: A `.jsonl` or `.json` file; with the form "rows", or any other whose rows are flat, `.parquet` too.

    Returns:
        How many rows were written. Where there is none, or an error is raised, a file that was there stays as it was.

    Raises:
        UsageError: No such form, or no file of that kind.
        MissingDependency: A Parquet file needs the extra "parquet".
    """
    exporter: Exporter = EXPORTERS.load(to)
    rows = exporter(trajectories)
    target = Path(path)
    writers = {".jsonl": _write_lines, ".json": _write_list, ".parquet": _write_parquet}
    if target.suffix not in writers:
        raise UsageError(f"{target}: exports end with {', '.join(writers)}")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        count = writers[target.suffix](rows, partial)
        if count:
            partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return count


def _write_lines(rows: Iterable[dict[str, Any]], path: Path) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
            count += 1
    return count


def _write_list(rows: Iterable[dict[str, Any]], path: Path) -> int:
    listed = list(rows)
    path.write_text(json.dumps(listed) + "\n", encoding="utf-8")
    return len(listed)


def _write_parquet(rows: Iterable[dict[str, Any]], path: Path) -> int:
    from .parquet import write_parquet  # pyarrow is an extra

    return write_parquet(rows, path)
