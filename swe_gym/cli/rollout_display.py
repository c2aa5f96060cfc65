"""How `swe-gym rollout` shows its progress and its results."""

import contextlib
import textwrap
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..errors import quantify
from ..rollout import Progress
from ..trajectories import Usage
from .common import make_table

LINE_EVERY = 10.0
"""Seconds between two lines if there is no terminal."""


@contextlib.contextmanager
def display(console: Console) -> Iterator[Callable[[Progress], None]]:
    """Yield a function that shows a count: in place in a terminal, else as a line every `LINE_EVERY` seconds."""
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda progress: live.update(_panel(progress), refresh=True)
        return
    shown: list[Progress] = []
    told: set[str] = set()

    def print_line(progress: Progress) -> None:
        for name in progress.failures:
            if name not in told:
                told.add(name)
                console.print(f"{datetime.now():%H:%M:%S} first {name}: {_summarize_failure(progress, name)}")
        last = shown[-1] if shown else None
        over = progress.running == 0
        if last is None or over or progress.seconds - last.seconds >= LINE_EVERY or progress.stopping != last.stopping:
            shown[:] = [progress]
            console.print(f"{datetime.now():%H:%M:%S} {progress_line(progress)}")

    yield print_line


def progress_line(progress: Progress) -> str:
    """Return a count as one line."""
    parts = [
        f"{progress.done}/{progress.total} done",
        f"{progress.resolved} resolved ({progress.resolved_rate:.0%})",
        f"{progress.mean_turns:.1f} turns",
        f"{progress.running} running ({progress.sandboxes} sandboxes)",
        f"{progress.per_hour:,.0f}/h",
        f"ETA {duration(progress.eta)}",
        f"{progress.failed_tries} failed tries",
    ]
    if progress.usage.retries:
        parts.append(count_retried(progress.usage))
    if progress.usage.cached_answers:
        parts.append(from_cache(progress.usage))
    if progress.usage.calls:
        parts.append(
            f"{progress.tokens_per_second:,.0f} tokens/s, {dollars(progress.usage.cost, progress.usage.uncounted)}"
        )
    if progress.stopping:
        parts.append(f"stopping: {progress.stopping}")
    return ", ".join(parts)


def _panel(progress: Progress) -> Group:
    waiting = ", ".join(f"{count} {what}" for what, count in progress.waiting.items() if count)
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        Text(progress.experiment, style="bold"),
        ProgressBar(total=progress.total, completed=progress.done, width=40),
        f"{progress.done}/{progress.total}",
        Text(f"ETA {duration(progress.eta)}", style="dim"),
    )
    facts = Text.assemble(
        (f"{progress.resolved} resolved", "green"),
        f" ({progress.resolved_rate:.0%}) · {progress.mean_turns:.1f} turns · {progress.per_hour:,.0f}/h · ",
        f"{progress.running} running in {progress.sandboxes} sandboxes" + (f" ({waiting})" if waiting else ""),
    )
    if progress.usage.calls:
        facts.append(
            f" · {progress.tokens_per_second:,.0f} tokens/s · {dollars(progress.usage.cost, progress.usage.uncounted)}"
        )
    lines: list[RenderableType] = [bar, facts]
    if progress.failures:
        kinds = ", ".join(f"{count} {name}" for name, count in list(progress.failures.items())[:4])
        lines.append(Text(f"failed tries: {kinds}", style="yellow"))
        lines += [Text(_summarize_failure(progress, name), style="dim") for name in list(progress.failures)[:1]]
    if progress.usage.retries:
        lines.append(Text(count_retried(progress.usage), style="yellow"))
    if progress.usage.cached_answers:
        lines.append(Text(from_cache(progress.usage)))
    if progress.stopping:
        again = (
            " Press Ctrl-C again to cancel those that run."
            if progress.stopping == "interrupted" and progress.running
            else ""
        )
        lines.append(Text(f"Stopping ({progress.stopping}): no new episodes start.{again}", style="bold yellow"))
    return Group(*lines)


def tell_if_nothing_ran(console: Console, progress: Progress | None) -> None:
    """Say so if earlier calls had graded every episode."""
    if progress is not None and progress.done_before == progress.total:
        console.print(
            f"Nothing to run: earlier calls graded all {progress.total} episodes. For more, raise --attempts."
        )


def print_report(console: Console, progress: Progress, folder: Path) -> None:
    """Print the results and where they are."""
    tell_if_nothing_ran(console, progress)
    table = make_table("stop reason", "episodes", "")
    for reason, count in progress.outcomes.items():
        table.add_row(reason, str(count), "")
    for name, count in progress.failures.items():
        said = f"failed tries: {_summarize_failure(progress, name)}"
        table.add_row(Text(name, style="yellow"), str(count), Text(said, style="dim"))
    console.print(table)
    left = progress.total - progress.done
    console.print(
        f"\n{progress.resolved} of {progress.done} resolved ({progress.resolved_rate:.1%}), "
        f"{progress.mean_turns:.1f} turns on average, in {duration(progress.seconds)}."
        + (f" {quantify(left, 'episode')} left; run the same command to run the rest." if left else "")
    )
    if progress.usage.calls:
        used = progress.usage
        console.print(
            f"{used.prompt_tokens:,} prompt tokens, {used.completion_tokens:,} completion tokens, "
            f"{dollars(used.cost, used.uncounted)}." + (f" {count_retried(used)}." if used.retries else "")
        )
    if progress.usage.cached_answers:
        console.print(f"{from_cache(progress.usage)}, which are not billed.")
    console.print(f"Run folder: {folder}")


def _summarize_failure(progress: Progress, name: str) -> str:
    """Return the message of the first failure of a kind, as one line."""
    return textwrap.shorten(progress.first_failures.get(name, ""), 300, placeholder=" ...")


def count_retried(used: Usage) -> str:
    """Return how many requests failed and were sent again."""
    return f"{used.retries:,} of {used.calls + used.retries:,} requests sent again"


def from_cache(used: Usage) -> str:
    """Return how many answers came from the cache of answers."""
    return f"{used.cached_answers:,} of {used.calls + used.cached_answers:,} answers from the cache"


def dollars(cost: float | None, uncounted: int = 0) -> str:
    """Return a cost as text; None is unknown, since the price or the tokens of some answers are."""
    if cost is None:
        return f"unknown tokens of {uncounted:,} answers" if uncounted else "unknown price"
    return f"${cost:,.2f}"


def duration(seconds: float | None) -> str:
    """Return a time as text; None is unknown."""
    return "unknown" if seconds is None else str(timedelta(seconds=round(seconds)))
