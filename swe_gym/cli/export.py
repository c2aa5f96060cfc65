"""`swe-gym export` and `swe-gym import`: convert trajectories to and from the formats of other systems."""

import fnmatch
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from ..trajectories import Trajectory
from ..trajectories.exports import EXPORTERS, export_trajectories
from ..trajectories.imports import IMPORTERS, import_trajectories
from ..trajectories.run_folder import open_trajectories
from .common import open_console
from .options import Match

Attempt = Annotated[int | None, typer.Option(min=0, help="Only this attempt at each task, counted from 0.")]


def export(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder or trajectory file.")],
    output: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Output file: .jsonl, .json or .parquet; for atif, also a new folder."),
    ],
    to: Annotated[str, typer.Option("--to", "-t", help=f"Format: {', '.join(EXPORTERS)}.")] = "sft",
    match: Match = "*",
    attempt: Attempt = None,
    resolved: Annotated[bool, typer.Option("--resolved", help="Only resolved episodes.")] = False,
    min_reward: Annotated[float | None, typer.Option(help="Minimum reward of an episode.")] = None,
) -> None:
    """Write trajectories in the format of another system. Hidden tests are never exported."""

    def wanted(one: Trajectory) -> bool:
        return (one.resolved or not resolved) and (
            min_reward is None or (one.reward_valid and one.reward >= min_reward)
        )

    count = export_trajectories(filter(wanted, select_trajectories(path, match, attempt)), to, output)
    if not count:
        pairs = ", or no task has attempts with different rewards" if to == "preferences" else ""
        raise UsageError(f"{path}: no trajectory matches the filters{pairs}; {output} was not written")
    open_console().print(f"{count} rows in {output}")


def import_(
    path: Annotated[
        Path, typer.Argument(metavar="INPUT", help="Input file: .jsonl, .json (also .gz, .xz) or .parquet.")
    ],
    output: Annotated[Path, typer.Argument(metavar="FILE", help="Trajectory file to append to.")],
    form: Annotated[str, typer.Option("--from", "-f", help=f"Format: auto, {', '.join(IMPORTERS)}.")] = "auto",
) -> None:
    """Convert trajectories of Harbor (ATIF), R2E-Gym, debug-gym or a chat dataset to swe_gym's format.

    If a row is broken, the error names it and nothing is written.
    """
    trajectories = list(import_trajectories(path, form))
    for trajectory in trajectories:
        trajectory.append(output)
    open_console().print(f"{len(trajectories)} trajectories in {output}")


def select_trajectories(path: Path, match: str, attempt: int | None) -> Iterator[Trajectory]:
    """Yield the trajectories of the matching tasks and attempt; at least one."""
    found = False
    for trajectory in open_trajectories(path):
        if fnmatch.fnmatchcase(trajectory.task_id, match) and attempt in (None, trajectory.attempt):
            found = True
            yield trajectory
    if not found:
        raise UsageError(
            f"{path} holds no trajectory of a task that matches {match!r}"
            + (f", attempt {attempt}" if attempt is not None else "")
        )
