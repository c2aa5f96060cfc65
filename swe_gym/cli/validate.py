"""`swe-gym validate`: is a task usable? Gold must score 1 and nothing 0, every time."""

import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..rollout.validate import TaskRecord
from ..rollout.validate import validate as validate_tasks
from .common import Backend, SandboxOptions, open_source, parse_options

STYLES = {"valid": "green", "invalid": "red", "skipped": "yellow", "error": "bold red"}


def validate(
    source: Annotated[str, typer.Argument(help="'toy', or a task file (.jsonl, .json, .parquet).")] = "toy",
    task: Annotated[list[str] | None, typer.Option("--task", "-t", help="Only this task; may be repeated.")] = None,
    times: Annotated[int, typer.Option("--times", "-k", min=1, help="Runs of gold and of empty.")] = 3,
    workers: Annotated[int, typer.Option("--workers", "-w", min=1, help="Tasks at once.")] = 2,
    record: Annotated[
        Path | None, typer.Option("--record", "-r", help="JSONL file of results; a second run goes on from it.")
    ] = None,
    backend: Backend = "local",
    sandbox_option: SandboxOptions = None,
) -> None:
    """Judge each task's gold patch and the untouched repository, several times each.

    A task is valid when gold is resolved and empty is not, in every run. What the record file already answers is
    not run again. Exit status 1 means that a task is invalid or could not be judged.
    """
    console = Console()
    tasks = open_source(source)
    ids = list(task) if task else list(tasks.ids())
    progress = Progress(
        TextColumn("validating"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    with progress:
        bar = progress.add_task("", total=len(ids))

        def show(result: TaskRecord) -> None:
            progress.print(_line(result), highlight=False)
            progress.advance(bar)

        records = validate_tasks(
            tasks,
            ids,
            backend=backend,
            sandbox_options=parse_options(sandbox_option),
            times=times,
            workers=workers,
            record=record,
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            on_record=show,
        )
    counts = {status: sum(result.status == status for result in records) for status in STYLES}
    console.print(", ".join(f"{number} {status}" for status, number in counts.items() if number) or "no task")
    if counts["invalid"] or counts["error"]:
        raise typer.Exit(1)


def _line(result: TaskRecord) -> str:
    seconds = f"{sum(result.seconds):6.1f} s" if result.seconds else " " * 8
    gold, empty = (f"{sum(runs)}/{len(runs)}" for runs in (result.gold, result.empty))
    style = STYLES[result.status]
    reason = result.reason.replace("[", "\\[")
    return f"[{style}]{result.status:8}[/] {seconds}  gold {gold}  empty {empty}  {result.task_id}  [dim]{reason}[/]"
