"""`swe-gym bench`: measure the cost of sandboxes and rollouts on this machine."""

import math
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.table import Table

from ..errors import UsageError
from ..guard import TemporaryFolder
from ..rollout import Plan, RolloutOptions, RolloutResult
from ..rollout import rollout as play_plan
from ..sandboxes import Sandbox, SandboxSpec, make_spec, open_sandbox
from ..tasks import load_source
from ..trajectories.run_folder import read_index
from ..types import JsonMapping
from .common import make_table, open_console, print_json
from .common import sandbox_options as parse_sandbox_options
from .options import POLICY, AsJson, Backend, SandboxOptions

app = typer.Typer(no_args_is_help=True, help="Measure the cost of sandboxes and rollouts on this machine.")


class Measured(NamedTuple):
    """A measurement in a sandbox and, if it makes sense there, on the host."""

    operation: str
    unit: str
    sandbox: float
    host: float | None = None

    def cells(self) -> list[str]:
        """Return the values, with their unit, and the ratio."""
        values = [value for value in (self.sandbox, self.host) if value is not None]
        texts = [f"{value:.{2 if value < 10 else 0}f}{'' if self.unit == '/s' else ' '}{self.unit}" for value in values]
        return [*texts, f"{self.sandbox / self.host:.1f}x"] if self.host else texts


@app.command()
def sandbox(
    backend: Backend = "local",
    sandbox_option: SandboxOptions = None,
    rounds: Annotated[int, typer.Option(min=5, help="Repetitions of each timing.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Measure the time of a command, a start and a close, commands per second, and memory per sandbox.

    Timings of sandbox and host alternate, so that other load on the machine affects both. Memory is that of half as
    many open sandboxes as there are rounds.
    """
    console = open_console(stderr=as_json)
    spec = make_spec(SandboxSpec(), parse_sandbox_options(backend, sandbox_option))
    found: list[Measured] = []
    with console.status("timing commands") as status:
        with open_sandbox(spec, backend) as box:
            isolation = box.capabilities.isolation
            for name, ours, bare in (
                ("bash -c true", "true", ["bash", "-c", "true"]),
                ("true", ["true"], ["true"]),
            ):
                times = alternate(partial(box.exec, ours), partial(subprocess.run, bare, check=True), rounds)
                found.append(Measured(name, "ms", *times))
        status.update("timing starts")
        start, close = start_and_close(spec, backend, max(5, rounds // 5))
        found += Measured("open, first command", "ms", start), Measured("close", "ms", close)
        status.update("running commands on 16 threads")
        found.append(Measured("true on 16 threads", "/s", *throughput(spec, backend, rounds)))
        live = (rounds + 1) // 2
        status.update(f"holding {live} open")
        found.append(Measured(f"memory of each of {live}", "MB", memory_each(spec, backend, live)))
    if as_json:
        rows = [one._asdict() for one in found]
        print_json({"backend": backend, "isolation": isolation, "rounds": rounds, "measured": rows})
        return
    console.print(f"{backend} sandboxes, isolation {isolation}; times are medians of {rounds}\n")
    table = make_table("operation", "sandbox", "host", "ratio")
    for one in found:
        table.add_row(one.operation, *one.cells())
    console.print(table)


def alternate(first: Callable[[], object], second: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Return the median milliseconds of two functions called in turn."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for work, kept in zip((first, second), times, strict=True):
            started = time.perf_counter()
            work()
            kept.append((time.perf_counter() - started) * 1000)
    return statistics.median(times[0]), statistics.median(times[1])


def start_and_close(spec: SandboxSpec, backend: str, rounds: int) -> tuple[float, float]:
    """Return the median milliseconds of a start, first command included, and of a close."""
    starts, closes = [], []
    for _ in range(rounds):
        started = time.perf_counter()
        box = open_sandbox(spec, backend)
        box.exec(["true"])
        ready = time.perf_counter()
        box.close()
        starts.append((ready - started) * 1000)
        closes.append((time.perf_counter() - ready) * 1000)
    return statistics.median(starts), statistics.median(closes)


def throughput(spec: SandboxSpec, backend: str, each: int = 150, threads: int = 16) -> tuple[float, float]:
    """Return the commands per second of `threads` sandboxes, and of `subprocess.run` in as many threads."""

    def rate(works: list[Callable[[], object]]) -> float:
        def many(work: Callable[[], object]) -> None:
            for _ in range(each):
                work()

        with ThreadPoolExecutor(threads) as pool:
            started = time.perf_counter()
            list(pool.map(many, works))
            return threads * each / (time.perf_counter() - started)

    with ExitStack() as stack:
        boxes = [stack.enter_context(open_sandbox(spec, backend)) for _ in range(threads)]
        works: list[Callable[[], object]] = [lambda box=box: box.exec(["true"]) for box in boxes]  # type: ignore[misc]  # a default binds the loop's box
        return rate(works), rate([lambda: subprocess.run(["true"], check=True)] * threads)


def memory_each(spec: SandboxSpec, backend: str, count: int) -> float:
    """Return the MB of memory that each of `count` sandboxes takes, kernel memory included.

    The value is the drop in available memory, so other programs that start or end affect it.
    """
    open_sandbox(spec, backend).close()  # loads what they share
    before = available_mb()
    with ExitStack() as stack:
        boxes: list[Sandbox] = []
        with ThreadPoolExecutor(8) as pool:
            for box in pool.map(lambda _: open_sandbox(spec, backend), range(count)):
                boxes.append(stack.enter_context(box))
            list(pool.map(lambda box: box.exec(["true"]), boxes))
        return (before - available_mb()) / count


def available_mb() -> float:
    """Return the available memory in MB."""
    with open("/proc/meminfo") as file:
        line = next(line for line in file if line.startswith("MemAvailable"))
    return int(line.split()[1]) / 1024


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


@app.command()
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
