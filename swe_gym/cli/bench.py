"""`swe-gym bench`: measure the cost of sandboxes on this machine."""

import statistics
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Annotated, NamedTuple

import typer

from ..sandboxes import Sandbox, SandboxSpec, make_spec, open_sandbox
from . import bench_rollout
from .common import make_table, open_console, print_json
from .common import sandbox_options as parse_sandbox_options
from .options import AsJson, Backend, SandboxOptions

app = typer.Typer(no_args_is_help=True, help="Measure the cost of sandboxes and rollouts on this machine.")
app.command()(bench_rollout.rollout)


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
    live: Annotated[int, typer.Option(min=1, help="Open sandboxes for the memory measurement.")] = 50,
    rounds: Annotated[int, typer.Option(min=5, help="Repetitions of each timing.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Measure the time of a command, a start and a close, commands per second, and memory per sandbox.

    Timings of sandbox and host alternate, so that other load on the machine affects both.
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
