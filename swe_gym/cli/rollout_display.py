"""How `swe-gym rollout` and `swe-gym eval` show their progress and their results."""

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
from ..trajectories import ModelServer, Usage
from ..types import JsonObject
from ..viewer import RESULTS
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
    """Say so if earlier calls had graded every episode, or all that can change the votes."""
    if progress is None or progress.done_before < progress.total:
        return
    if progress.settled:
        console.print(
            f"Nothing to run: {progress.total} episodes are graded, and the other {progress.settled} cannot change "
            "which patch has most votes. To run them, omit run.early_stop."
        )
    else:
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
        + (f" {_tell_settled(progress.settled)}." if progress.settled else "")
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


def _tell_settled(count: int) -> str:
    """Return that a run stopped early, where its rates are read."""
    return (
        f"{quantify(count, 'episode')} left out by run.early_stop=votes, so the rates are biased: pass@k for large k "
        "counts only tasks on which attempts disagree"
    )


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


MOST_REPOSITORIES = 25


def print_results(console: Console, found: JsonObject) -> None:
    """Print the results of a run, as `write_results` returns them."""
    console.print()
    for name, said in _lines(found).items():
        if said:
            console.print(Text.assemble((f"{name:14}", "bold"), said))
    if len(found["repositories"]) > 1:
        console.print()
        console.print(_repositories(found["repositories"]))


def print_next(console: Console, found: list[JsonObject]) -> None:
    """Print a line per model if there are several, and the next commands."""
    folders = [one["folder"] for one in found]
    if len(found) > 1:
        table = make_table("model", "resolved", "interval", "cost")
        for one in found:
            low, high = one["interval"] or (0.0, 1.0)
            rate = "" if one["resolved_rate"] is None else f"{one['resolved_rate']:.1%}"
            table.add_row(Text(one["model"]), rate, f"{low:.1%} to {high:.1%}", dollars(one["cost"], one["uncounted"]))
        console.print()
        console.print(table)
    other = folders[1] if len(folders) > 1 else "ANOTHER_RUN"
    console.print(f"\nResults: {', '.join(f'{folder}/{RESULTS}' for folder in folders)}. Next:")
    console.print(f"  swe-gym view {folders[0]}")
    console.print(f"  swe-gym compare {folders[0]} {other}")
    console.print(f"  swe-gym export {folders[0]} sft.jsonl --to sft --resolved")


def _lines(found: JsonObject) -> dict[str, str]:
    graded, episodes = found["graded"], found["episodes"]
    open_ = episodes - graded - found["settled"]
    left = f", {open_} left: run the same command" if open_ > 0 else ""
    if found["omitted"]:
        left += f"; {found['omitted']} more of earlier commands are in the folder and not counted"
    read, cached, written = found["prompt_tokens"], found["cached_tokens"], found["completion_tokens"]
    tokens = f"{read:,} prompt ({cached / read:.0%} cached), {written:,} completion" if read else ""
    asked = found["requests"] + found["retries"]
    return {
        "run": f"{found['agent'] and found['agent'] + ' with '}{found['model']} on {found['source']}",
        "server": ", ".join(str(ModelServer.model_validate(one)) for one in found["servers"]),
        "answered as": ", ".join(f"{name} in {count} tries" for name, count in found["answered_as"].items()),
        "resolved": _format_resolved(found),
        "pass@k": ", ".join(_format_pass_at_k(found)),
        "episodes": f"{graded} of {episodes} graded ({found['tasks']} tasks x {found['attempts']}){left}",
        "stopped early": _tell_settled(found["settled"]) if found["settled"] else "",
        "cost": _cost(found) if found["requests"] or found["cached_answers"] else "",
        "tokens": tokens + _uncounted(found),
        "cache": _format_cached(found) if found["cached_answers"] else "",
        "requests": f"{found['requests']:,} answered, {found['retries']:,} failed and sent again" if asked else "",
        "time": _time(found) if graded else "",
        "invalid calls": _format_invalid(found) if graded else "",
        "shortened": f"the conversations of {quantify(found['shortened'], 'episode')}, to fit the model's context"
        if found["shortened"]
        else "",
        "not proven": f"{quantify(found['unproven'], 'resolved episode')}: no counter-test"
        if found["unproven"]
        else "",
        "not resolved": _counts(found["unresolved"]),
        "failed tries": _counts(found["failed_tries"]),
        "cheat signs": f"in {quantify(found['cheat_signs'], 'episode')}: look at them" if found["cheat_signs"] else "",
        "predictions": " to ".join(dict.fromkeys([*found["predictions"][:1], *found["predictions"][-1:]])),
    }


def _format_pass_at_k(found: JsonObject) -> Iterator[str]:
    """Yield pass@k for each k; with the number of tasks if some of them have fewer graded attempts."""
    tasks = found["pass_at_k_tasks"]
    for k, value in found["pass_at_k"].items():
        yield f"pass@{k} {value:.1%}" + (f" ({tasks[k]} of {tasks['1']} tasks)" if tasks[k] < tasks["1"] else "")


def _format_resolved(found: JsonObject) -> str:
    if found["interval"] is None:
        return "no episode was graded"
    low, high = found["interval"]
    return (
        f"{found['resolved_rate']:.1%} ({found['resolved']} of {found['graded']}), {low:.1%} to {high:.1%} "
        f"({found['interval_method']})"
    )


def _cost(found: JsonObject) -> str:
    if found["cost"] is None:
        hint = "" if found["uncounted"] else ": set policy.prices.input and policy.prices.output"
        return dollars(None, found["uncounted"]) + hint
    each = f" (${found['cost'] / found['graded']:,.4f} an episode)" if found["graded"] else ""
    cached = (
        ". Cached prompt tokens are billed in full: set policy.prices.cached" if found["cached_at_full_price"] else ""
    )
    return dollars(found["cost"]) + each + cached


def _uncounted(found: JsonObject) -> str:
    if not found["uncounted"]:
        return ""
    besides = "; besides, " if found["prompt_tokens"] else ""
    return f"{besides}those of {found['uncounted']:,} answers, which the server did not tell"


def _format_cached(found: JsonObject) -> str:
    known = found["cached_answers"]
    return f"{known:,} of {known + found['requests']:,} answers came from the cache: not billed, and in no other number"


def _format_invalid(found: JsonObject) -> str:
    invalid, turns = found["invalid_calls"], found["all_turns"]
    if invalid is None:
        return "not counted"
    return f"{invalid:,} of {turns:,} turns" + (f" ({invalid / turns:.0%})" if invalid else "")


def _time(found: JsonObject) -> str:
    return f"{duration(found['seconds'])}, an episode {found['episode_seconds']:.1f} s and {found['turns']:.1f} turns"


def _counts(causes: dict[str, int]) -> str:
    return ", ".join(f"{count} {cause}" for cause, count in causes.items())


def _repositories(rows: list[JsonObject]) -> Table:
    table = make_table("repository", "resolved", "episodes", "rate")
    for row in rows[:MOST_REPOSITORIES]:
        table.add_row(
            Text(row["repository"]), str(row["resolved"]), str(row["graded"]), f"{row['resolved'] / row['graded']:.0%}"
        )
    if len(rows) > MOST_REPOSITORIES:
        table.add_row(f"{len(rows) - MOST_REPOSITORIES} more in {RESULTS}", "", "", "")
    return table
