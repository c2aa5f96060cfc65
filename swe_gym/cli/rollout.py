"""`swe-gym rollout`: a policy over many tasks, in many sandboxes, watched, stopped and gone on with."""

import contextlib
import random
import textwrap
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..envs.sources import shared_source
from ..errors import UsageError
from ..grading import REWARDS
from ..rollout.budget import Budget
from ..rollout.engine import RolloutOptions, RolloutStopped
from ..rollout.engine import rollout as play_plan
from ..rollout.plan import Plan
from ..rollout.progress import Progress
from ..tasks import TaskSource
from ..tools import TOOLSETS
from .common import (
    SOURCE_HELP,
    TASK_FILES,
    Backend,
    Counters,
    CounterScope,
    Match,
    SandboxOptions,
    SourceOptions,
    matching,
    open_console,
    parse_pairs,
    plain_table,
    source_of,
)
from .common import sandbox_options as parse_sandbox_options

LINE_EVERY = 10.0
"""Seconds between two lines where there is no terminal."""

Pairs = list[str] | None


def rollout(
    source: Annotated[str, typer.Argument(help=SOURCE_HELP)] = "toy",
    # which episodes
    split: Annotated[str | None, typer.Option(help="Split of the dataset.")] = None,
    source_option: SourceOptions = None,
    match: Match = "*",
    repo: Annotated[str, typer.Option(help="Only tasks of this repository.")] = "",
    difficulty: Annotated[str, typer.Option(help="Only tasks of this difficulty.")] = "",
    tag: Annotated[Pairs, typer.Option(help="Only tasks with this tag; may be repeated.")] = None,
    shuffle: Annotated[int | None, typer.Option(metavar="SEED", help="In random order, before --slice.")] = None,
    slice_: Annotated[str, typer.Option("--slice", metavar="START:STOP", help="Only these, as in Python.")] = "",
    attempts: Annotated[int, typer.Option("--attempts", "-k", min=1, help="Episodes of each task.")] = 1,
    seed: Annotated[int, typer.Option(help="Every attempt's seed is made from this one.")] = 0,
    # who plays
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            "-p",
            help="llm where --model or --base-url is given, else baseline; or gold, random, ...",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model's name on its server.")] = None,
    base_url: Annotated[str | None, typer.Option(help="Its server, as in http://localhost/v1.")] = None,
    temperature: Annotated[float | None, typer.Option(help="At which it samples.")] = None,
    policy_option: Annotated[Pairs, typer.Option(metavar="NAME=VALUE", help="Argument of the policy.")] = None,
    # in what
    backend: Backend = "local",
    sandbox_option: SandboxOptions = None,
    tools: Annotated[
        str, typer.Option(help=f"Preset of tools ({', '.join(TOOLSETS)}), or names with commas.")
    ] = "default",
    action_format: Annotated[str, typer.Option("--format", help="How tool calls are written.")] = "auto",
    reward: Annotated[str, typer.Option(help=f"From verdict to reward: {', '.join(REWARDS)}.")] = "binary",
    counter: Counters = CounterScope.few,
    max_turns: Annotated[int, typer.Option(min=1, help="Steps of an episode.")] = 50,
    time_limit: Annotated[float, typer.Option(help="Seconds of an episode, without grading.")] = 1800.0,
    env_option: Annotated[Pairs, typer.Option(metavar="NAME=VALUE", help="Any other argument of SweEnv.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of an episode, read and written.")] = None,
    max_cost: Annotated[float | None, typer.Option(help="US dollars of an episode.")] = None,
    # how
    workers: Annotated[int, typer.Option("--workers", "-w", min=1, help="Episodes at once.")] = 4,
    retries: Annotated[int, typer.Option(min=0, help="Of an episode whose infrastructure failed.")] = 2,
    run_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of the run; then none is started.")] = None,
    run_cost: Annotated[float | None, typer.Option(help="US dollars of the run; then none is started.")] = None,
    run_seconds: Annotated[float | None, typer.Option(help="Seconds of this call; then none is started.")] = None,
    max_failure_rate: Annotated[float, typer.Option(min=0, max=1, help="Share of tries that may fail.")] = 0.25,
    wall_clock: Annotated[float | None, typer.Option(help="Seconds after which a try is cancelled.")] = None,
    cancel_last: Annotated[float, typer.Option(min=0, max=0.99, help="Share of last episodes to cancel.")] = 0.0,
    # where
    name: Annotated[
        str | None, typer.Option("--name", "-n", help="Of the run; by default made of source and policy.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where run folders are.")] = Path("runs"),
) -> None:
    """Play a policy over tasks, and write every episode down. The same command goes on where it was stopped.

    Ctrl-C lets the running episodes end; a second one stops them. Exit status 1 means that episodes are left that
    could not be judged.
    """
    console = open_console()
    policy_options = parse_pairs("--policy-option", policy_option)
    given = {"model": model, "base_url": base_url, "temperature": temperature}
    policy_options |= {option: value for option, value in given.items() if value is not None}
    kind, options = source_of(source, source_option)
    options |= {} if split is None else {"split": split}
    tasks = shared_source(kind, options)  # kept until the end, so that it is read once
    plan = Plan(
        source=kind,
        source_options=options,
        tasks=tuple(_sliced(_chosen(tasks, match, repo, difficulty, tag or []), shuffle, slice_)),
        attempts=attempts,
        env={
            "backend": backend,
            "sandbox_options": parse_sandbox_options(backend, sandbox_option),
            "tools": tools.split(",") if "," in tools else tools,
            "action_format": action_format,
            "reward": reward,
            "counter": counter.value,
            "max_turns": max_turns,
            "time_limit": time_limit,
            **parse_pairs("--env-option", env_option),
        },
        policy=policy or ("llm" if model or base_url else "baseline"),
        policy_options=policy_options,
        budget=Budget(tokens=max_tokens, cost=max_cost),
        seed=seed,
    )
    how = RolloutOptions(
        workers=workers,
        retries=retries,
        budget=Budget(tokens=run_tokens, cost=run_cost, seconds=run_seconds),
        max_failure_rate=max_failure_rate,
        wall_clock=wall_clock,
        cancel_last=cancel_last,
    )
    _play(console, plan, output / (name or _name(source, policy or model or "baseline")), how)


def _play(console: Console, plan: Plan, folder: Path, how: RolloutOptions) -> None:
    latest: Progress | None = None
    with _display(console) as show:

        def follow(progress: Progress) -> None:
            nonlocal latest
            latest = progress
            show(progress)

        try:
            play_plan(plan, folder, how, on_progress=follow)
            interrupted = False
        except KeyboardInterrupt:
            interrupted = True
        except RolloutStopped:
            if latest is not None:
                show(latest)
            raise
    if latest is not None:
        _report(console, latest, folder)
    if interrupted:
        console.print("Interrupted. The same command goes on from here.")
        raise typer.Exit(130)
    if latest is not None and latest.done < latest.total:
        raise typer.Exit(1)


# --- what a user names --------------------------------------------------------------------------------------


def _chosen(source: TaskSource, match: str, repo: str, difficulty: str, tags: list[str]) -> list[str]:
    ids = matching(source, match)
    if not (repo or difficulty or tags):
        return ids
    chosen = [
        task.task_id
        for task in map(source.get, ids)
        if repo in ("", task.repo) and difficulty in ("", task.difficulty) and set(tags) <= set(task.tags)
    ]
    if not chosen:
        raise UsageError("no task is of that repository and difficulty and has all of these tags")
    return chosen


def _sliced(ids: list[str], seed: int | None, text: str) -> list[str]:
    if seed is not None:
        random.Random(seed).shuffle(ids)
    if not text:
        return ids
    try:
        bounds = [int(part) if part else None for part in text.split(":")]
    except ValueError:
        bounds = []
    if len(bounds) not in (2, 3) or bounds[2:] == [0]:
        raise UsageError(f"--slice {text!r} is not START:STOP")
    if not (chosen := ids[slice(*bounds)]):
        raise UsageError(f"--slice {text} leaves none of the {len(ids)} tasks")
    return chosen


def _name(source: str, player: str) -> str:
    """A name for the run that can be a folder."""
    words = (Path(source).stem if source.endswith(TASK_FILES) else source, player.rpartition("/")[2])
    return "-".join(words).replace(":", "-")


# --- what is shown ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _display(console: Console) -> Iterator[Callable[[Progress], None]]:
    """Something that shows a count: in a terminal in place, elsewhere as a line now and then."""
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
                console.print(f"{datetime.now():%H:%M:%S} the first {name}: {_said(progress, name)}")
        last = shown[-1] if shown else None
        over = progress.running == 0
        if last is None or over or progress.seconds - last.seconds >= LINE_EVERY or progress.stopping != last.stopping:
            shown[:] = [progress]
            console.print(f"{datetime.now():%H:%M:%S} {progress_line(progress)}")

    yield print_line


def progress_line(progress: Progress) -> str:
    """A count in one line."""
    parts = [
        f"{progress.done}/{progress.total} done",
        f"{progress.resolved} resolved ({progress.resolved_rate:.0%})",
        f"{progress.mean_turns:.1f} turns",
        f"{progress.running} running ({progress.sandboxes} sandboxes)",
        f"{progress.per_hour:,.0f}/h",
        f"ETA {_duration(progress.eta)}",
        f"{progress.failed_tries} failed tries",
    ]
    if progress.usage.calls:
        parts.append(f"{progress.tokens_per_second:,.0f} tokens/s, ${progress.usage.cost:,.2f}")
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
        Text(f"ETA {_duration(progress.eta)}", style="dim"),
    )
    facts = Text.assemble(
        (f"{progress.resolved} resolved", "green"),
        f" ({progress.resolved_rate:.0%}) · {progress.mean_turns:.1f} turns · {progress.per_hour:,.0f}/h · ",
        f"{progress.running} running in {progress.sandboxes} sandboxes" + (f" ({waiting})" if waiting else ""),
    )
    if progress.usage.calls:
        facts.append(f" · {progress.tokens_per_second:,.0f} tokens/s · ${progress.usage.cost:,.2f}")
    lines: list[RenderableType] = [bar, facts]
    if progress.failures:
        kinds = ", ".join(f"{count} {name}" for name, count in list(progress.failures.items())[:4])
        lines.append(Text(f"failed tries: {kinds}", style="yellow"))
        lines += [Text(_said(progress, name), style="dim") for name in list(progress.failures)[:1]]
    if progress.stopping:
        again = " Ctrl-C again stops them." if progress.stopping == "interrupted" and progress.running else ""
        lines.append(Text(f"{progress.stopping}: no more are started.{again}", style="bold yellow"))
    return Group(*lines)


def _report(console: Console, progress: Progress, folder: Path) -> None:
    """How it went, and where it stands."""
    table = plain_table("what ended an episode", "episodes", "")
    for reason, count in progress.outcomes.items():
        table.add_row(reason, str(count), "")
    for name, count in progress.failures.items():
        said = f"tries that do not count: {_said(progress, name)}"
        table.add_row(Text(name, style="yellow"), str(count), Text(said, style="dim"))
    console.print(table)
    left = progress.total - progress.done
    console.print(
        f"\n{progress.resolved} of {progress.done} resolved ({progress.resolved_rate:.1%}), "
        f"{progress.mean_turns:.1f} turns on average, in {_duration(progress.seconds)}."
        + (f" {left} episodes are left: the same command tries them." if left else "")
    )
    if progress.usage.calls:
        used = progress.usage
        console.print(f"{used.prompt_tokens:,} tokens read, {used.completion_tokens:,} written, ${used.cost:,.2f}.")
    console.print(f"Run folder: {folder}")


def _said(progress: Progress, name: str) -> str:
    """What the first failure of a kind said, in a line."""
    return textwrap.shorten(progress.first_failures.get(name, ""), 300, placeholder=" ...")


def _duration(seconds: float | None) -> str:
    return "unknown" if seconds is None else str(timedelta(seconds=round(seconds)))
