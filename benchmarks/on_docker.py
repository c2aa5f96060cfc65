"""Measure Docker sandboxes.

    python benchmarks/on_docker.py [IMAGE] [--what speed]

episode Split a graded episode of a bundled task into its pieces, played one after the other: wall time, CPU time of
        this process, and of the machine, on which nothing else must run; or of each of `--cgroups`, such as the
        engine's and that of its containers.
latency Play graded episodes of a bundled task, in turn with and without a grading container that waits for their end.
speed   Compare commands and starts with docker-py's `exec_run` and `docker run`, alternating on one engine.
kill    Kill clients with SIGKILL at random moments, and count the containers that outlive them by `--seconds`.
cycles  Open and close sandboxes on an engine that fails one request in ten. Nothing may be left, grow or be removed
        that swe_gym did not start. The failing proxy is a separate process, so all figures are the client's.

IMAGE needs Python 3, and for `episode` and `latency` also git. `kill` and `cycles` exit with status 1 if something is
left.
"""

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import docker
import docker_episode
from common import milliseconds, playing, process_size, show, wait_until

from swe_gym.cli.bench import alternate
from swe_gym.errors import SandboxError
from swe_gym.sandboxes import SandboxSpec, WarmPool, open_sandbox

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # where the servers are
from servers.docker_proxy import DockerProxy, Fault

BACKEND = "docker"
THREADS = 16

# --- speed ----------------------------------------------------------------------------------------------------

SECONDS = 8.0
ROUNDS, TURN, PAUSE_SECONDS = 5, 20, 0.5
SETTLE_SECONDS = 15.0
"""Seconds in which a pool fills."""

CLOSING = ThreadPoolExecutor(1)  # closing is not timed


def speed(image: str) -> int:
    """Compare with docker-py and the `docker` command."""
    spec = SandboxSpec(image=image)
    client = docker.from_env(max_pool_size=THREADS)
    with ExitStack() as stack:
        box = stack.enter_context(open_sandbox(spec, BACKEND))
        container = plain_container(client, image, stack)
        ours, theirs = in_turns(lambda: box.exec(["true"]), lambda: container.exec_run(["true"]))
        step, bare = in_turns(
            stack.enter_context(playing(BACKEND, default_image=image)), lambda: container.exec_run(["true"])
        )
    start, run = alternate(lambda: first_command(spec), lambda: docker_run(image), 10)
    rows = [
        ("a command, median", f"{ours:.2f} ms", f"exec_run: {theirs:.1f} ms", f"1/{theirs / ours:.0f}"),
        ("a whole step of an environment", f"{step:.2f} ms", f"exec_run: {bare:.1f} ms", f"1/{bare / step:.0f}"),
        together(spec, client, image),
        ("create to first command", f"{start:.0f} ms", f"docker run --rm: {run:.0f} ms", f"{start / run:.2f}x"),
        ("warm pool to first command", from_the_pool(spec), "bar: 50 ms", ""),
    ]
    show(f"Docker, {image}", ("what", "swe_gym", "compared with", "ratio"), rows)
    return 0


def plain_container(client: docker.DockerClient, image: str, stack: ExitStack) -> Any:
    """Start a container with docker-py; the stack removes it."""
    container = client.containers.run(image, ["sleep", "600"], detach=True, network_mode="none", auto_remove=True)
    stack.callback(container.remove, force=True)
    return container


def in_turns(first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float]:
    """Return median milliseconds of both, in alternating batches: the engine tidies up after an exec."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for work, kept in zip((first, second), times, strict=True):
            kept += [milliseconds(work) for _ in range(TURN)]
            time.sleep(PAUSE_SECONDS)
    return statistics.median(times[0]), statistics.median(times[1])


def from_the_pool(spec: SandboxSpec) -> str:
    """Take warm sandboxes and run a command in each."""
    times = []
    with WarmPool(BACKEND, ready=THREADS) as pool, ExitStack() as stack:
        pool.want(spec, THREADS)
        time.sleep(SETTLE_SECONDS)
        for _ in range(THREADS):
            started = time.perf_counter()
            box = pool.take(spec)
            box.exec(["true"])
            times.append((time.perf_counter() - started) * 1000)
            stack.callback(box.close)
    return f"{statistics.median(times):.1f} ms, at most {max(times):.1f} ms"


def together(spec: SandboxSpec, client: docker.DockerClient, image: str) -> tuple[str, str, str, str]:
    """Count commands per second over sixteen containers, one thread each."""
    with ExitStack() as stack:
        boxes = [stack.enter_context(open_sandbox(spec, BACKEND)) for _ in range(THREADS)]
        ours = rate([lambda box=box: box.exec(["true"]) for box in boxes])
    with ExitStack() as stack:
        containers = [plain_container(client, image, stack) for _ in range(THREADS)]
        theirs = rate([lambda container=container: container.exec_run(["true"]) for container in containers])
    return f"{THREADS} containers together", f"{ours:.0f}/s", f"exec_run: {theirs:.0f}/s", f"{ours / theirs:.0f}x"


def rate(works: list[Callable[[], object]]) -> float:
    """Return calls per second, with one thread per function."""
    end = time.perf_counter() + SECONDS

    def many(work: Callable[[], object]) -> int:
        count = 0
        while time.perf_counter() < end:
            work()
            count += 1
        return count

    started = time.perf_counter()
    with ThreadPoolExecutor(len(works)) as pool:
        return sum(pool.map(many, works)) / (time.perf_counter() - started)


def first_command(spec: SandboxSpec) -> None:
    """Open a sandbox and run a command in it."""
    box = open_sandbox(spec, BACKEND)
    box.exec(["true"])
    CLOSING.submit(box.close)


def docker_run(image: str) -> None:
    """Run one command as a user would."""
    subprocess.run(["docker", "run", "--rm", "--network", "none", image, "true"], check=True)


# --- kill -----------------------------------------------------------------------------------------------------

CLIENT = """
import sys, threading
from swe_gym.sandboxes import SandboxSpec, open_sandbox

image, label = sys.argv[1:]
spec = SandboxSpec(image=image, labels={"test": label})

def cycles():
    while True:
        with open_sandbox(spec, "swe_gym.sandboxes.docker:DockerSandbox") as box:
            box.exec("setsid sleep 600 & true")
            print("used", flush=True)

for _ in range(4):
    threading.Thread(target=cycles).start()
"""


def kill(image: str, times: int, limit: float) -> int:
    """Kill clients one after the other. Return how many containers were left after `limit` seconds."""
    longest, left, most = 0.0, 0, 0
    with closing(docker.APIClient(version="auto")) as engine:
        for number in range(times):
            label = f"{os.getpid()}-{number}"

            def containers(label: str = label) -> list[dict[str, str]]:
                found: list[dict[str, str]] = engine.containers(all=True, filters={"label": f"test={label}"})
                return found

            most = max(most, kill_one(image, label, containers))
            killed = time.monotonic()
            while (found := containers()) and time.monotonic() - killed < limit:
                time.sleep(0.02)
            longest = max(longest, time.monotonic() - killed)
            left += len(found)
    columns = ("clients killed", "containers, at most", "last one gone after", "containers left")
    show(f"Docker, {image}", columns, [(str(times), str(most), f"{longest:.2f} s", str(left))])
    return left


def kill_one(image: str, label: str, containers: Callable[[], list[dict[str, str]]]) -> int:
    """Start a client and kill it. Return its number of containers."""
    command = [sys.executable, "-c", CLIENT, image, label]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        client.stdout.readline()
        with suppress(subprocess.TimeoutExpired):
            client.wait(random.uniform(0.0, 1.0))
        count = len(containers())
        client.send_signal(signal.SIGKILL)
    return count


# --- cycles ---------------------------------------------------------------------------------------------------

PARTS = 5
FAULTY = 0.1
CALL_SECONDS = 2.0
WAYS = ("cut", "error", "cut_reply", "stall", "stall_reply")
REQUESTS = {
    ("GET", "/version"): ("cut", "error", "stall"),
    ("GET", "/images/.*/json"): ("cut", "error", "cut_reply", "stall"),
    ("POST", "/containers/create"): WAYS,
    ("POST", "/attach"): WAYS,
    ("POST", "/start$"): WAYS,
    ("DELETE", "/containers/"): WAYS,
}
"""Faults of each request. About one request in ten fails."""


def faults(cycles: int) -> list[Fault]:
    """Draw the faults, the same in every run."""
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
    """Start a proxy in a separate process; give its address."""
    command = [sys.executable, __file__, "--what", "proxy", "--times", str(cycles)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate()


def serve(cycles: int) -> int:
    """Run the proxy until standard input ends."""
    with DockerProxy(*faults(cycles)) as engine:
        print(engine.base_url, flush=True)
        sys.stdin.read()
    return 0


def cycles(image: str, times: int) -> int:
    """Open and close sandboxes. Return the number of containers left or touched, and of wrong outputs."""
    mine = {"label": f"test={os.getpid()}"}
    outcomes = Counter[str]()
    rows = []
    with closing(docker.APIClient(version="auto")) as engine, bystander(engine, image) as untouched:
        started = time.monotonic()
        with proxy(times) as address, ThreadPoolExecutor(THREADS) as threads:
            options = {"base_url": address, "timeout": CALL_SECONDS, "starting": THREADS}
            spec = SandboxSpec(image=image, labels={"test": f"{os.getpid()}"}, start_timeout=30.0, options=options)
            for part in range(1, PARTS + 1):
                outcomes.update(threads.map(cycle, [spec] * (times // PARTS)))
                rows.append((str(part * times // PARTS), *process_size()))
            took = time.monotonic() - started
            wait_until(lambda: not engine.containers(all=True, filters=mine))
        wait_until(lambda: threading.active_count() == 1)
        rows.append(("after", *process_size()))
        left, touched = len(engine.containers(all=True, filters=mine)), not untouched()
    caption = f"{took:.0f} s; {left} containers left; another user's container: {'removed' if touched else 'untouched'}"
    title = f"{times} Docker sandboxes, {THREADS} at a time"
    show(title, ("cycles", "descriptors", "threads", "memory"), rows, caption)
    show("outcomes", ("outcome", "sandboxes"), [(name, str(count)) for name, count in outcomes.most_common()])
    return left + touched + outcomes["wrong output"]


def cycle(spec: SandboxSpec) -> str:
    """Open a sandbox, run a command, close it. Return the outcome."""
    try:
        with open_sandbox(spec, BACKEND) as box:
            return "played" if box.exec(["echo", "x"]).stdout == b"x\n" else "wrong output"
    except SandboxError as error:
        return f"{type(error).__name__} ({getattr(error, 'reason', '')})"


@contextmanager
def bystander(engine: Any, image: str) -> Iterator[Callable[[], bool]]:
    """Run a container of another user that resembles a sandbox; give a function that checks it still runs."""
    labels = {"swe_gym": "1", "swe_gym.expires": "0"}
    container = engine.create_container(image, ["sleep", "3600"], labels=labels, network_disabled=True)
    try:
        engine.start(container)
        yield lambda: engine.inspect_container(container)["State"]["Running"]
    finally:
        engine.remove_container(container, force=True)


def main() -> int:
    """Run one measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", nargs="?", default="python:3.12", metavar="IMAGE")
    parser.add_argument(
        "--what", default="speed", choices=["speed", "episode", "latency", "kill", "cycles", "proxy"], metavar="WHAT"
    )
    parser.add_argument(
        "--times", type=int, help="episodes (default: 10), clients to kill (50), sandboxes to open (1000)"
    )
    parser.add_argument("--cgroups", type=Path, nargs="*", default=[], help="folders of cgroups whose CPU time to show")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long a container may outlive its client")
    arguments = parser.parse_args()
    if arguments.what == "episode":
        cpu = [f"CPU, {folder.name}" for folder in arguments.cgroups] or ["CPU, machine"]
        rows = docker_episode.measure(arguments.image, arguments.times or 10, arguments.cgroups)
        show(f"Docker, {arguments.image}: an episode", ("piece", "times", "wall", "CPU, client", *cpu), rows)
        return 0
    if arguments.what == "latency":
        rows = docker_episode.latency(arguments.image, arguments.times or 10)
        columns = ("episode", "container waits", "reset to reward, median", "last step, median")
        show(f"Docker, {arguments.image}: latency of an episode", columns, rows)
        return 0
    if arguments.what == "kill":
        return int(kill(arguments.image, arguments.times or 50, arguments.seconds) > 0)
    if arguments.what == "cycles":
        return int(cycles(arguments.image, arguments.times or 1000) > 0)
    return serve(arguments.times) if arguments.what == "proxy" else speed(arguments.image)


if __name__ == "__main__":
    sys.exit(main())
