"""Docker sandboxes that are opened and closed on an engine that fails one request in ten, in every way.

    python benchmarks/docker_cycles.py [IMAGE] [CYCLES]

Nothing may be left, nothing may grow, and what is not ours may not be touched. The engine's proxy is a process of its
own, so descriptors, threads and memory are the client's alone. IMAGE needs python3; the default is python:3.12. Exit
status 1: something was left or touched.
"""

import gc
import os
import random
import resource
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import docker
from rich.console import Console
from rich.table import Table

from swe_gym.errors import SandboxError
from swe_gym.sandboxes import SandboxSpec, open_sandbox

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # where the servers are
from servers.docker_proxy import DockerProxy, Fault

THREADS = 16
PARTS = 5
FAULTY = 0.1
CALL_SECONDS = 2.0
PATIENCE = 90.0
REQUESTS = {
    ("GET", "/version"): ("cut", "error", "stall"),
    ("GET", "/images/.*/json"): ("cut", "error", "cut_reply", "stall"),
    ("POST", "/containers/create"): ("cut", "error", "cut_reply", "stall", "stall_reply"),
    ("POST", "/attach"): ("cut", "error", "cut_reply", "stall", "stall_reply"),
    ("POST", "/start$"): ("cut", "error", "cut_reply", "stall", "stall_reply"),
    ("DELETE", "/containers/"): ("cut", "error", "cut_reply", "stall", "stall_reply"),
}
"""What can go wrong with which request. Of six requests in a cycle, about one in ten does."""


def faults(cycles: int) -> list[Fault]:
    """The same ones in every run."""
    chance = random.Random(7)
    chosen = []
    for (method, path), ways in REQUESTS.items():
        for nth in range(1, cycles + 1):
            if chance.random() < FAULTY:
                after = chance.choice([0, 300, 2000]) if path == "/attach" else chance.choice([0, 100])
                chosen.append(Fault(method, path, chance.choice(ways), nth=nth, after=after))  # type: ignore[arg-type]  # a text of the table
    return chosen


@contextmanager
def proxy(cycles: int) -> Iterator[str]:
    """A proxy in a process of its own; its address."""
    command = [sys.executable, __file__, "--proxy", str(cycles)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate()


def serve(cycles: int) -> None:
    """Be that process, until standard input ends."""
    with DockerProxy(*faults(cycles)) as engine:
        print(engine.base_url, flush=True)
        sys.stdin.read()


def figures() -> tuple[int, int, int]:
    """Open descriptors, threads, and MiB of memory of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return len(os.listdir("/proc/self/fd")), threading.active_count(), pages * resource.getpagesize() >> 20


def main(image: str, cycles: int) -> int:
    """Measure and print; returns how many things went wrong that must not."""
    mine = {"label": f"test={os.getpid()}"}
    outcomes = Counter[str]()
    table = Table("cycles", "descriptors", "threads", "memory", title=f"{cycles} Docker sandboxes, {THREADS} at a time")
    with closing(docker.APIClient(version="auto")) as engine, bystander(engine, image) as untouched:
        started = time.monotonic()
        with proxy(cycles) as address, ThreadPoolExecutor(THREADS) as threads:
            options = {"base_url": address, "timeout": CALL_SECONDS, "starting": THREADS}
            spec = SandboxSpec(image=image, labels={"test": f"{os.getpid()}"}, start_timeout=30.0, options=options)
            for part in range(1, PARTS + 1):
                outcomes.update(threads.map(cycle, [spec] * (cycles // PARTS)))
                table.add_row(str(part * cycles // PARTS), *map(str, figures()))
            took = time.monotonic() - started
            wait_for(lambda: not engine.containers(all=True, filters=mine))
        wait_for(lambda: threading.active_count() == 1)
        table.add_row("after", *map(str, figures()))
        left, touched = len(engine.containers(all=True, filters=mine)), not untouched()
    table.caption = f"{took:.0f} s; {left} containers left; a container of others was {'' if touched else 'un'}touched"
    console = Console()
    console.print(table)
    console.print(dict(outcomes.most_common()))
    return left + touched + outcomes["wrong output"]


def cycle(spec: SandboxSpec) -> str:
    """Open a sandbox, use it, close it; says how that went."""
    try:
        with open_sandbox(spec, "docker") as box:
            return "played" if box.exec(["echo", "x"]).stdout == b"x\n" else "wrong output"
    except SandboxError as error:
        return f"{type(error).__name__} ({getattr(error, 'reason', '')})"


@contextmanager
def bystander(engine: Any, image: str) -> Iterator[Callable[[], bool]]:
    """A container that is not ours and looks much like it; tells whether it still runs."""
    labels = {"swe_gym": "1", "swe_gym.expires": "0"}
    container = engine.create_container(image, ["sleep", "3600"], labels=labels, network_disabled=True)
    try:
        engine.start(container)
        yield lambda: engine.inspect_container(container)["State"]["Running"]
    finally:
        engine.remove_container(container, force=True)


def wait_for(condition: Callable[[], bool]) -> None:
    """Give what is going some time to be gone."""
    end = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--proxy"]:
        serve(int(sys.argv[2]))
    else:
        sys.exit(1 if main(*(sys.argv[1:2] or ["python:3.12"]), *map(int, sys.argv[2:3] or [1000])) else 0)
