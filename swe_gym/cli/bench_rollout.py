"""`swe-gym bench rollout`: how many episodes an hour, what they cost, and where the time goes."""

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.table import Table

from ..errors import UsageError
from ..rollout.engine import RolloutOptions, RolloutResult
from ..rollout.engine import rollout as play_plan
from ..rollout.plan import Plan
from ..tasks import load_source
from ..trajectories.run_folder import read_index
from .common import Backend, SandboxOptions, open_console, plain_table
from .common import sandbox_options as parse_sandbox_options

PARTS = ("start", "tools", "grading", "policy")
"""What an episode's wall-clock time is made of."""


class Cpu(NamedTuple):
    """Processor time so far, in seconds: of this process with its threads, and of everything."""

    client: float
    all: float


class Level(NamedTuple):
    """What was measured with one number of workers."""

    workers: int
    episodes: int
    seconds: float
    cpu: Cpu
    shares: dict[str, float]


def rollout(
    workers: Annotated[str, typer.Option("--workers", "-w", help="Numbers of workers.")] = "1,4,16,64",
    episodes: Annotated[int, typer.Option(min=1, help="Episodes at each, at least.")] = 28,
    policy: Annotated[str, typer.Option("--policy", "-p", help="Who plays.")] = "baseline",
    backend: Backend = "local",
    sandbox_option: SandboxOptions = None,
) -> None:
    """Play the bundled tasks with more and more workers: episodes an hour, and processor time of each.

    The machine's processor time is what was busy on it meanwhile, less what was busy in the second before: run nothing
    beside it.
    """
    console = open_console()
    try:
        levels = [int(part) for part in workers.split(",")]
    except ValueError:
        raise UsageError(f"--workers {workers!r} is not numbers with commas between") from None
    env = {"backend": backend, "sandbox_options": parse_sandbox_options(backend, sandbox_option)}
    idle = busy_before()
    with console.status("playing") as status:

        def play(count: int) -> Level:
            status.update(f"playing with {count} workers")
            return measure(count, episodes, policy, env, lambda: machine_cpu(idle))

        table = level_table(play(count) for count in levels)
    console.print(f"policy {policy}, {backend} sandboxes, {os.cpu_count()} processors, {idle:.0%} busy before\n")
    console.print(table)


def measure(workers: int, episodes: int, policy: str, env: Mapping[str, Any], meter: Callable[[], Cpu]) -> Level:
    """Play at least so many episodes with so many workers; `meter` reads the processor time so far."""
    tasks = len(load_source("toy").ids())
    attempts = math.ceil(max(episodes, 3 * workers) / tasks)
    plan = Plan(source="toy", policy=policy, env=dict(env), attempts=attempts)
    with tempfile.TemporaryDirectory(prefix="swe-gym-bench-") as folder:
        before, started = meter(), time.monotonic()
        result = play_plan(plan, Path(folder) / "run", RolloutOptions(workers=workers))
        seconds, after = time.monotonic() - started, meter()
        shares = where_time_went(result)
    client = after.client - before.client
    return Level(workers, result.progress.done, seconds, Cpu(client, max(client, after.all - before.all)), shares)


def level_table(levels: Iterable[Level]) -> Table:
    """One column per number of workers: side by side, the default four fit into 80 characters."""
    names = ("workers", "episodes", "episodes/h", "s each", "CPU ms each", "of it the client", *PARTS, "rest")
    head, *rows = zip(names, *map(cells, levels), strict=True)
    table = plain_table(*head)
    for row in rows:
        table.add_row(*row)
    return table


def cells(level: Level) -> list[str]:
    """A column of the table."""
    each = level.episodes or 1
    parts = [f"{level.shares[part]:.0%}" for part in (*PARTS, "rest")]
    return [
        str(level.workers),
        str(level.episodes),
        f"{level.episodes / level.seconds * 3600:,.0f}",
        f"{level.seconds * level.workers / each:.2f}",
        f"{level.cpu.all / each * 1000:.0f}",
        f"{level.cpu.client / each * 1000:.0f} ({level.cpu.client / level.cpu.all:.0%})",
        *parts,
    ]


def where_time_went(result: RolloutResult) -> dict[str, float]:
    """Part of the episodes' wall-clock time -> share."""
    entries = read_index(result.folder)
    total = sum(entry.seconds["total"] for entry in entries) or 1.0
    shares = {part: sum(entry.seconds[part] for entry in entries) / total for part in PARTS}
    return shares | {"rest": 1.0 - sum(shares.values())}


def machine_cpu(idle: float) -> Cpu:
    """Processor time so far. That of everything is the machine's, less a share that was busy without us."""
    without_us = idle * time.monotonic() * (os.cpu_count() or 1)
    return Cpu(time.process_time(), _busy() - without_us)


def _busy() -> float:
    """Seconds for which a processor of this machine was busy since it was started."""
    fields = [int(field) for field in Path("/proc/stat").read_text().partition("\n")[0].split()[1:]]
    return (sum(fields[:8]) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")  # not idle, not waiting for disks


def busy_before(seconds: float = 1.0) -> float:
    """Share of the machine's processors that is busy while this process does nothing."""
    before = _busy()
    time.sleep(seconds)
    return (_busy() - before) / seconds / (os.cpu_count() or 1)
