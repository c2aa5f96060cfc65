"""`swe-gym compare`: compare runs over the same tasks."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ..trajectories.comparison import Comparison, PairedDifference, RunSummary
from ..trajectories.comparison import compare as compare_folders
from .common import AsJson, open_console, plain_table, print_json

MOST_TASKS = 50
"""Tasks that are printed. `--json` has all."""


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="Run folders, for example runs/first.")],
    as_json: AsJson = False,
) -> None:
    """Compare runs over the same tasks: resolved, cost, paired differences, and the tasks on which they disagree.

    Only graded attempts count. The paired test takes tasks as the unit. Warnings name settings that make the runs hard
    to compare.
    """
    found, console = compare_folders(runs), open_console()
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    _print_runs(console, found)
    _print_trouble(console, found.runs)
    _print_pairs(console, found.pairs)
    _print_tasks(console, found)
    for warning in found.warnings:
        console.print(Text(f"Warning: {warning}", style="yellow"))


def _print_runs(console: Console, found: Comparison) -> None:
    most = max((max(run.pass_at_k, default=1) for run in found.runs), default=1)
    passed = [f"pass@{most}"] if most > 1 else []
    asked = ["server"] if len({run.servers for run in found.runs}) > 1 else []
    table = plain_table("run", "model", *asked, "graded", "resolved", "95 % interval", *passed, "tokens", "cost")
    for run in found.runs:
        table.add_row(
            run.name,
            run.model or run.policy,
            *([", ".join(run.servers) or "unknown" if run.model else ""] if asked else []),
            f"{run.graded}/{run.planned}",
            _percent(run.resolved),
            _interval(run),
            *([_percent(run.pass_at_k.get(most))] if passed else []),
            f"{run.prompt_tokens + run.completion_tokens:,}",
            "unknown" if run.cost is None else f"${run.cost:,.2f}",
        )
    console.print(table)


def _print_trouble(console: Console, runs: tuple[RunSummary, ...]) -> None:
    """Print what may have kept runs from resolving more."""
    table = plain_table("run", "turns", "invalid calls", "shortened", "retries", "failed tries")
    for run in runs:
        share = f" ({run.invalid_calls / run.all_turns:.0%})" if run.invalid_calls else ""
        table.add_row(
            run.name,
            f"{run.all_turns:,}",
            "unknown" if run.invalid_calls is None else f"{run.invalid_calls:,}{share}",
            f"{run.shortened:,}",
            f"{run.retries:,}",
            f"{run.failed_tries:,}",
        )
    console.print()
    console.print(table)


def _print_pairs(console: Console, pairs: tuple[PairedDifference, ...]) -> None:
    table = plain_table("paired difference", "tasks", "points", "95 % interval", "p", "better", "worse", "equal")
    for pair in pairs:
        table.add_row(
            f"{pair.second} - {pair.first}",
            str(pair.tasks),
            "" if pair.difference is None else f"{100 * pair.difference:+.1f}",
            f"{100 * pair.low:+.1f} to {100 * pair.high:+.1f}",
            f"{pair.p_value:.3f}" if pair.p_value >= 0.001 else f"{pair.p_value:.1e}",
            *(str(count) for count in (pair.better, pair.worse, pair.tasks - pair.better - pair.worse)),
        )
    console.print()
    console.print(table)


def _print_tasks(console: Console, found: Comparison) -> None:
    unequal = [task for task in found.tasks if task.spread or 0 in task.graded]
    console.print(f"\n{len(unequal)} of {len(found.tasks)} tasks differ or are missing in a run (resolved of graded):")
    table = plain_table("task", *(run.name for run in found.runs))
    for task in unequal[:MOST_TASKS]:
        cells = zip(task.resolved, task.graded, strict=True)
        table.add_row(task.task_id, *("-" if good is None else f"{good}/{graded}" for good, graded in cells))
    if unequal:
        console.print(table)
    if len(unequal) > MOST_TASKS:
        console.print(f"... and {len(unequal) - MOST_TASKS} more; --json prints all.")


def _interval(run: RunSummary) -> str:
    return "" if run.resolved is None else f"{_percent(run.low)} to {_percent(run.high)}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"
