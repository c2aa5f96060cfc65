"""`swe-gym replay`: replay trajectories and report the first byte that differs."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from ..rollout import replay_trajectory
from ..types import JsonObject
from .common import open_console, print_json
from .common import sandbox_options as parse_sandbox_options
from .export import Attempt, select_trajectories
from .options import BACKEND, AsJson, Match, SandboxOptions


def replay(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder or trajectory file.")],
    match: Match = "*",
    attempt: Attempt = None,
    backend: Annotated[str | None, BACKEND] = None,
    sandbox_option: SandboxOptions = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(help=r"Ignore text that matches this regular expression, for example `in \d+\.\d+s`. Repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replay recorded actions in new sandboxes of the recorded backend and compare every byte of the results.

    Commands that print times or random numbers differ from run to run; exclude such text with --ignore. The exit
    status is 1 if anything differs.
    """
    console = open_console()
    options = parse_sandbox_options(backend, sandbox_option) if backend else None
    compared: list[JsonObject] = []
    for trajectory in select_trajectories(path, match, attempt):
        difference = replay_trajectory(trajectory, backend=backend, sandbox_options=options, ignore=ignore or ())
        compared.append(
            {"task_id": trajectory.task_id, "attempt": trajectory.attempt, "difference": difference and str(difference)}
        )
        if as_json:
            continue
        name = f"{trajectory.task_id}, attempt {trajectory.attempt}"
        if difference is None:
            console.print(Text.assemble(("same    ", "green"), f" {name}: {len(trajectory.turns)} turns"))
        else:
            console.print(Text.assemble(("differs ", "bold red"), f" {name}: {difference}"))
    if as_json:
        print_json(compared)
    if any(one["difference"] for one in compared):
        raise typer.Exit(1)
