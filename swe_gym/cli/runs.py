"""`swe-gym runs`: list runs."""

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from ..trajectories.comparison import RunState, RunSummary, read_results, run_state
from ..trajectories.run_folder import find_runs, read_progress
from ..types import JsonObject
from .common import (
    format_cost,
    make_table,
    one_format,
    open_console,
    percent,
    print_csv,
    print_json,
    tokens_of,
)
from .options import AsCsv, AsJson
from .rollout_display import duration


def runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of run folders.")] = Path("runs"),
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """List runs, the newest first: what was played, resolved with its 95 % interval, time, tokens, cost and state.

    A run is finished if each attempt was graded, or if its last process tried all of them. The same command resumes an
    interrupted run.
    """
    one_format(as_json=as_json, as_csv=as_csv)
    found = sorted(_read(folder), key=lambda row: row[0].created, reverse=True)
    if as_csv or as_json:
        rows = [_row(run, state) for run, state in found]
        print_csv(rows) if as_csv else print_json(rows)
        return
    table = make_table(
        *("run", "policy or model", "source", "tasks", "resolved", "95 % interval", "time", "tokens", "cost"),
        *("state", "started"),
    )
    for run, state in found:
        left = f" {run.graded:,}/{run.planned:,}" if run.graded < run.planned else ""
        table.add_row(
            run.name,
            f"{run.agent} with {run.model or run.policy}" if run.agent else run.model or run.policy,
            run.source,
            f"{run.planned_tasks:,} x {run.attempts}",
            percent(run.resolved),
            "" if run.resolved is None else f"{percent(run.low)} to {percent(run.high)}",
            duration(run.duration),
            tokens_of(run),
            format_cost(run),
            state + left,
            run.created[:16].replace("T", " "),
        )
    open_console().print(table)


def _read(folder: Path) -> list[tuple[RunSummary, RunState]]:
    """Return the runs and their states. Folders that cannot be read are named on standard error and left out."""
    found = []
    for path in find_runs(folder):
        try:
            run = read_results(path).summary
        except (UsageError, OSError) as error:
            typer.echo(f"skipped: {error}", err=True)
            continue
        progress, running = read_progress(path)
        found.append((run, run_state(run, progress, running=running)))
    return found


def _row(run: RunSummary, state: RunState) -> JsonObject:
    """Return a run as a row of plain values."""
    numbers = run.model_dump(exclude={"pass_at_k", "servers", "answered_as"})
    names = {"servers": ", ".join(run.servers), "answered_as": ", ".join(run.answered_as)}
    return {**numbers, **names, "state": state}
