"""`swe-gym runs` and `swe-gym compare`: list runs, and compare runs over the same tasks."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ..errors import UsageError
from ..trajectories.comparison import Comparison, RunState, RunSummary, read_results, run_state
from ..trajectories.comparison import compare as compare_folders
from ..trajectories.run_folder import find_runs, read_progress
from ..types import JsonObject
from .common import (
    format_cost,
    format_p,
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
        left += ", stopped early" if run.stopped_early and state == "finished" else ""
        table.add_row(
            run.name,
            run.player,
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


MOST_TASKS = 50
"""Tasks that are printed. `--json` has all."""


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, for example runs/*.")],
    base: Annotated[
        str, typer.Option(metavar="RUN", help="Run that the others are compared with (default: the first).")
    ] = "",
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Compare runs over the same tasks: resolved, cost, differences to a base, and tasks on which the runs disagree.

    Only graded attempts count. The paired test takes tasks as the unit. Warnings name settings that make the runs hard
    to compare.
    """
    one_format(as_json=as_json, as_csv=as_csv)
    found, console = compare_folders(_base_first(runs, base) if base else runs), open_console()
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    if as_csv:
        print_csv(list(_lines(found)))
        return
    _print_runs(console, found)
    _print_trouble(console, found.runs)
    if found.pairs:
        _print_pairs(console, found)
    _print_tasks(console, found)
    for warning in found.warnings:
        console.print(Text(f"Warning: {warning}", style="yellow"))


def _base_first(runs: Sequence[Path], base: str) -> list[Path]:
    """Return the runs with the base in front: the one of this name or path, else the folder of this path."""
    named = [run for run in runs if base == run.resolve().name or Path(base).resolve() == run.resolve()]
    first = named[0] if len(named) == 1 else Path(base)
    return [first, *(run for run in runs if run.resolve() != first.resolve())]


def _lines(found: Comparison) -> Iterator[JsonObject]:
    """Yield a row per run: its numbers, and its difference to the base."""
    pairs = {pair.second: pair for pair in found.pairs}
    most = max((max(run.pass_at_k, default=1) for run in found.runs), default=1)
    for number, run in enumerate(found.runs):
        pair = pairs.get(run.name)
        yield {
            **run.model_dump(exclude={"pass_at_k", "servers", "answered_as"}),
            "servers": ", ".join(run.servers),
            "answered_as": ", ".join(run.answered_as),
            **{f"pass@{k}": run.pass_at_k.get(k) for k in range(1, most + 1)},
            "base": found.runs[0].name,
            "common_tasks": pair.tasks if pair else 0 if number else None,
            "difference": pair and pair.difference,
            "difference_low": pair and pair.low,
            "difference_high": pair and pair.high,
            "difference_p_value": pair and pair.p_value,
            "better": pair and pair.better,
            "worse": pair and pair.worse,
        }


def _print_runs(console: Console, found: Comparison) -> None:
    most = max((max(run.pass_at_k, default=1) for run in found.runs), default=1)
    passed = [f"pass@{most}"] if most > 1 else []
    asked = ["server"] if len({run.servers for run in found.runs}) > 1 else []
    table = make_table("run", "model", *asked, "graded", "resolved", "95 % interval", *passed, "tokens", "cost")
    for run in found.runs:
        table.add_row(
            run.name,
            run.model or run.policy,
            *([", ".join(run.servers) or "unknown" if run.model else ""] if asked else []),
            f"{run.graded}/{run.planned}",
            percent(run.resolved),
            _interval(run),
            *([percent(run.pass_at_k.get(most))] if passed else []),
            tokens_of(run),
            format_cost(run),
        )
    console.print(table)


def _print_trouble(console: Console, runs: tuple[RunSummary, ...]) -> None:
    """Print what may have kept runs from resolving more."""
    table = make_table("run", "turns", "invalid calls", "shortened", "retries", "failed tries")
    for run in runs:
        share = f" ({run.invalid_calls / run.all_turns:.0%})" if run.invalid_calls else ""
        table.add_row(
            run.name,
            f"{run.all_turns:,}",
            "unknown" if run.invalid_calls is None and run.all_turns else f"{run.invalid_calls or 0:,}{share}",
            f"{run.shortened:,}",
            f"{run.retries:,}",
            f"{run.failed_tries:,}",
        )
    console.print()
    console.print(table)


def _print_pairs(console: Console, found: Comparison) -> None:
    """Print the paired differences of the base and the other runs."""
    name = f"difference to {found.runs[0].name}"
    table = make_table(name, "tasks", "points", "95 % interval", "p", "better", "worse", "equal")
    for pair in found.pairs:
        table.add_row(
            pair.second,
            str(pair.tasks),
            f"{100 * pair.difference:+.1f}",
            f"{100 * pair.low:+.1f} to {100 * pair.high:+.1f}",
            format_p(pair.p_value),
            *(str(count) for count in (pair.better, pair.worse, pair.tasks - pair.better - pair.worse)),
        )
    console.print()
    console.print(table)


def _print_tasks(console: Console, found: Comparison) -> None:
    unequal = [task for task in found.tasks if task.spread or 0 in task.graded]
    console.print(f"\n{len(unequal)} of {len(found.tasks)} tasks differ or are missing in a run (resolved of graded):")
    table = make_table("task", *(run.name for run in found.runs))
    for task in unequal[:MOST_TASKS]:
        cells = zip(task.resolved, task.graded, strict=True)
        table.add_row(task.task_id, *("-" if good is None else f"{good}/{graded}" for good, graded in cells))
    if unequal:
        console.print(table)
    if len(unequal) > MOST_TASKS:
        console.print(f"... and {len(unequal) - MOST_TASKS} more; --json prints all.")


def _interval(run: RunSummary) -> str:
    return "" if run.resolved is None else f"{percent(run.low)} to {percent(run.high)}"
