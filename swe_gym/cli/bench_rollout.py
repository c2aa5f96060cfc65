"""`swe-gym bench rollout`: measure episodes per hour, their cost, and where the time goes."""

import math
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.table import Table

from ..errors import UsageError
from ..guard import TemporaryFolder
from ..rollout.engine import RolloutOptions, RolloutResult
from ..rollout.engine import rollout as play_plan
from ..rollout.plan import Plan
from ..tasks import load_source
from ..trajectories.run_folder import read_index
from ..types import JsonMapping
from .common import make_table, open_console, print_json
from .common import sandbox_options as parse_sandbox_options
from .options import POLICY, AsJson, Backend, SandboxOptions

PARTS = ("start", "tools", "grading", "policy")
"""Parts of an episode's wall-clock time."""


class Cpu(NamedTuple):
    """CPU time in seconds: of this process, and of everything."""

    client: float
    all: float


class Level(NamedTuple):
    """The measurement for one number of workers."""

    workers: int
    episodes: int
    seconds: float
    cpu: Cpu
    shares: dict[str, float]


def rollout(
    workers: Annotated[
        str,
        typer.Option("--workers", "-w", metavar="N,N,...", help="Numbers of workers to measure, separated by commas."),
    ] = "1,4,16,64",
    episodes: Annotated[int, typer.Option(min=1, help="Minimum number of episodes per measurement.")] = 28,
    policy: Annotated[str, POLICY] = "baseline",
    backend: Backend = "local",
    sandbox_option: SandboxOptions = None,
    as_json: AsJson = False,
) -> None:
    """Measure rollouts of the bundled tasks with increasing numbers of workers.

    CPU time is that of the whole machine, minus the load in the second before: run nothing else meanwhile.
    """
    console = open_console(stderr=as_json)
    try:
        levels = [int(part) for part in workers.split(",")]
    except ValueError:
        raise UsageError(
            f"--workers {workers!r} is invalid: write numbers separated by commas, for example 1,4,16"
        ) from None
    env = {"backend": backend, "sandbox_options": parse_sandbox_options(backend, sandbox_option)}
    idle = measure_load()
    with console.status("running") as status:

        def play(count: int) -> Level:
            status.update(f"running with {count} workers")
            return measure(count, episodes, policy, env, lambda: machine_cpu(idle))

        found = [play(count) for count in levels]
    if as_json:
        print_json([level._asdict() | {"cpu": level.cpu._asdict()} for level in found])
        return
    console.print(f"policy {policy}, {backend} sandboxes, {os.cpu_count()} processors, {idle:.0%} load before\n")
    console.print(level_table(found))


def measure(workers: int, episodes: int, policy: str, env: JsonMapping, meter: Callable[[], Cpu]) -> Level:
    """Run at least `episodes` episodes; `meter` reads the CPU time so far."""
    tasks = len(load_source("toy").ids())
    attempts = math.ceil(max(episodes, 3 * workers) / tasks)
    plan = Plan(source="toy", policy=policy, env=dict(env), attempts=attempts)
    with TemporaryFolder("swe-gym-bench-") as folder:
        before, started = meter(), time.monotonic()
        result = play_plan(plan, folder.path / "run", RolloutOptions(workers=workers))
        seconds, after = time.monotonic() - started, meter()
        shares = where_time_went(result)
    client = after.client - before.client
    return Level(workers, result.progress.done, seconds, Cpu(client, max(client, after.all - before.all)), shares)


def level_table(levels: Iterable[Level]) -> Table:
    """Make a table with one column per number of workers; the default four fit into 80 characters."""
    names = ("workers", "episodes", "episodes/h", "s each", "CPU ms each", "client part", *PARTS, "rest")
    head, *rows = zip(names, *map(cells, levels), strict=True)
    table = make_table(*head)
    for row in rows:
        table.add_row(*row)
    return table


def cells(level: Level) -> list[str]:
    """Return a column of the table."""
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
    """Return the share of each part of the episodes' wall-clock time."""
    entries = read_index(result.folder)
    total = sum(entry.seconds["total"] for entry in entries) or 1.0
    shares = {part: sum(entry.seconds[part] for entry in entries) / total for part in PARTS}
    return shares | {"rest": 1.0 - sum(shares.values())}


def machine_cpu(idle: float) -> Cpu:
    """Return the CPU time so far. `idle` is the load of other programs."""
    without_us = idle * time.monotonic() * (os.cpu_count() or 1)
    return Cpu(time.process_time(), _read_busy_seconds() - without_us)


def _read_busy_seconds() -> float:
    """Return the busy seconds of all processors since the machine started."""
    fields = [int(field) for field in Path("/proc/stat").read_text().partition("\n")[0].split()[1:]]
    return (sum(fields[:8]) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")  # not idle, not waiting for disks


def measure_load(seconds: float = 1.0) -> float:
    """Return the load of the machine while this process does nothing."""
    before = _read_busy_seconds()
    time.sleep(seconds)
    return (_read_busy_seconds() - before) / seconds / (os.cpu_count() or 1)
