"""`swe-gym export` and `swe-gym import`: trajectories in the forms of other systems, and theirs as ours."""

import fnmatch
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from ..trajectories.exports import EXPORTERS, export_trajectories
from ..trajectories.imports import IMPORTERS, import_trajectories
from ..trajectories.run_folder import open_trajectories
from ..trajectories.trajectory import Trajectory
from .common import open_console

MatchTask = Annotated[str, typer.Option("--match", "-m", help="Only tasks whose id matches this glob pattern.")]
Attempt = Annotated[int | None, typer.Option(min=0, help="Only this attempt at each task; the first is 0.")]


def export(
    path: Annotated[Path, typer.Argument(help="A run folder, or a file of trajectories.")],
    output: Annotated[Path, typer.Argument(help="A .jsonl, .json or .parquet file.")],
    to: Annotated[str, typer.Option("--to", "-t", help=f"One of {', '.join(EXPORTERS)}.")] = "sft",
    match: MatchTask = "*",
    attempt: Attempt = None,
    resolved: Annotated[bool, typer.Option("--resolved", help="Only episodes that solved their task.")] = False,
    min_reward: Annotated[float | None, typer.Option(help="Only episodes that were worth this much.")] = None,
) -> None:
    """Write trajectories in another form. What names hidden tests is never passed on."""

    def wanted(one: Trajectory) -> bool:
        return (one.resolved or not resolved) and (
            min_reward is None or (one.reward_valid and one.reward >= min_reward)
        )

    count = export_trajectories(filter(wanted, chosen(path, match, attempt)), to, output)
    if not count:
        raise UsageError(f"nothing of {path} is of that kind, so {output} was not written")
    open_console().print(f"{count} rows in {output}")


def import_(
    path: Annotated[Path, typer.Argument(help="A .jsonl, .json or .parquet file; also with .gz or .xz behind.")],
    output: Annotated[Path, typer.Argument(help="The file of trajectories to add them to.")],
    form: Annotated[str, typer.Option("--from", "-f", help=f"auto, or one of {', '.join(IMPORTERS)}.")] = "auto",
) -> None:
    """Read trajectories of R2E-Gym, debug-gym or any chat dataset, and write them as ours.

    A row that is broken is named, and nothing is written.
    """
    trajectories = list(import_trajectories(path, form))
    for trajectory in trajectories:
        trajectory.append(output)
    open_console().print(f"{len(trajectories)} trajectories in {output}")


def chosen(path: Path, match: str, attempt: int | None) -> Iterator[Trajectory]:
    """The trajectories that a user named, one by one; there is at least one."""
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
