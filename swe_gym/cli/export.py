"""`swe-gym export`, `swe-gym import` and `swe-gym replay`: commands on recorded trajectories."""

import fnmatch
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from ..errors import UsageError, quantify
from ..toml import parse_pairs
from ..trajectories import Trajectory
from ..trajectories.formats import EXPORTERS, IMPORTERS, export_trajectories, import_trajectories
from ..trajectories.run_folder import open_trajectories
from ..types import JsonObject
from .common import open_console, print_json, trusted_env
from .options import BACKEND, AsJson, Ignore, Match, SandboxOptions

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
    open_console().print(f"{quantify(count, 'row')} in {output}")


def import_(
    path: Annotated[
        Path,
        typer.Argument(metavar="INPUT", help="Input file: .jsonl, .json (also .gz, .xz) or .parquet; or a Harbor job."),
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
    open_console().print(f"{quantify(len(trajectories), 'trajectory', 'trajectories')} in {output}")


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


def replay(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder or trajectory file.")],
    match: Match = "*",
    attempt: Attempt = None,
    backend: Annotated[str | None, BACKEND] = None,
    sandbox_option: SandboxOptions = None,
    ignore: Ignore = None,
    as_json: AsJson = False,
) -> None:
    """Replay recorded actions in new sandboxes of the recorded backend and compare every byte of the results.

    Commands that print times or random numbers differ from run to run; exclude such text with --ignore. The exit
    status is 1 if anything differs.
    """
    from ..rollout import replay_trajectory  # with environments, which the other commands do not need

    console = open_console()
    changes = {"backend": backend, "sandbox_options": parse_pairs("--sandbox-option", sandbox_option)}
    compared: list[JsonObject] = []
    for trajectory in select_trajectories(path, match, attempt):
        trusted = trajectory.model_copy(update={"env": trajectory.env and trusted_env(trajectory, changes)})
        difference = replay_trajectory(trusted, ignore=ignore or ())
        compared.append(
            {"task_id": trajectory.task_id, "attempt": trajectory.attempt, "difference": difference and str(difference)}
        )
        if as_json:
            continue
        name = f"{trajectory.task_id}, attempt {trajectory.attempt}"
        if difference is None:
            console.print(Text.assemble(("same    ", "green"), f" {name}: {quantify(len(trajectory.turns), 'turn')}"))
        else:
            console.print(Text.assemble(("differs ", "bold red"), f" {name}: {difference}"))
    if as_json:
        print_json(compared)
    if any(one["difference"] for one in compared):
        raise typer.Exit(1)
