"""Measure executors: the cost of Ray and of worker processes against threads, and whether runs survive dying nodes.

python benchmarks/executors.py overhead  # episodes/h and CPU time of an episode in threads and on a Ray node
python benchmarks/executors.py scaling   # one and two Ray nodes, each pinned to one core
python benchmarks/executors.py vector    # steps/s of SweVectorEnv in threads and in worker processes
python benchmarks/executors.py faults    # nodes killed at 10 random moments, one cut off, the driver killed

Ray must be installed, except for `vector`. CPU time is that of a control group (version 1, as root), with everything
that Ray starts. Both are those between the first and the last tenth of the episodes, without the start of a cluster.
"""

import collections
import contextlib
import multiprocessing
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import typer
from common import show, wait_until
from rollout import below, own_group

from swe_gym.rollout.engine import RolloutOptions, rollout
from swe_gym.rollout.plan import Plan
from swe_gym.rollout.progress import Progress
from swe_gym.trajectories.run_folder import FAILED, TRAJECTORIES
from swe_gym.trajectories.trajectory import Trajectory

MEMORY = 80 << 20
"""Bytes of the object store of a node."""

TOY = 14
"""Bundled tasks."""

PLAY = """
import sys
from swe_gym.rollout.engine import RolloutOptions, rollout
from swe_gym.rollout.plan import Plan

options = {"address": sys.argv[2], "per_node": 3, "lease": float(sys.argv[4])}
how = RolloutOptions(executor="ray", executor_options=options, retries=20)
rollout(Plan.model_validate_json(sys.argv[3]), sys.argv[1], how)
"""
"""A driver. Its arguments: run folder, address, plan, lease."""

LOOK = '{"name": "listdir", "arguments": {}}'
SUBMIT = '{"name": "submit", "arguments": {}}'


def short_plan(attempts: int) -> Plan:
    """Return a plan of short episodes."""
    return Plan(source="toy", policy="scripted", policy_options={"actions": [LOOK, LOOK, SUBMIT]}, attempts=attempts)


app = typer.Typer(add_completion=False)


class Machines(NamedTuple):
    """A Ray cluster on this machine.

    Attributes:
        cluster: The cluster. Its head node has no cores.
        nodes: The other nodes.
        boxes: Processes of sandboxes that were seen.
    """

    cluster: Any
    nodes: list[Any]
    boxes: set[int]

    @property
    def address(self) -> str:
        """Address of the cluster."""
        return str(self.cluster.address)

    def add(self, cores: int = 1) -> None:
        """Start a node. On a busy machine Ray may give up after half a minute: try again."""
        for attempt in range(3):
            try:
                self.nodes.append(self.cluster.add_node(num_cpus=cores, object_store_memory=MEMORY))
                return
            except Exception:
                if attempt == 2:
                    raise

    def kill(self, index: int) -> None:
        """Kill a node without grace."""
        self.cluster.remove_node(self.nodes.pop(index), allow_graceful=False)

    def cut_off(self, index: int, seconds: float) -> None:
        """Stop all processes of a node, and let them continue after some seconds."""
        pids = self.pids(index)
        send(pids, signal.SIGSTOP)
        threading.Timer(seconds, send, (pids, signal.SIGCONT)).start()

    def pids(self, index: int) -> list[int]:
        """Return the processes of a node: Ray's, and those of sandboxes."""
        raylet = self.nodes[index].all_processes["raylet"][0].process.pid
        return [raylet, *below(raylet)]

    def look(self) -> int:
        """Note the processes of sandboxes that are alive, and return their number."""
        seen = {pid for index in range(len(self.nodes)) for pid in self.pids(index) if not is_rays(pid)}
        self.boxes.update(seen)
        return len(seen)

    def no_box_is_left(self) -> bool:
        """Return whether all sandboxes that were seen have ended."""
        return not any(Path(f"/proc/{pid}").exists() for pid in self.boxes)


def is_rays(pid: int) -> bool:
    """Return whether a process is one of Ray, or has ended."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return b"ray::" in command or b"/ray/" in command
    except OSError:
        return True


def send(pids: list[int], number: int) -> None:
    """Send a signal to processes."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def machines(nodes: int, cores: int = 1) -> Iterator[Machines]:
    """Start a head node without cores and some other nodes."""
    from ray.cluster_utils import Cluster

    few = {"prestart_worker_first_driver": False, "worker_niceness": 0}  # no idle workers, none that yields to others
    head = {"num_cpus": 0, "object_store_memory": MEMORY, "include_dashboard": False, "_system_config": few}
    made = Machines(Cluster(initialize_head=True, head_node_args=head), [], set())
    try:
        for _ in range(nodes):
            made.add(cores)
        made.cluster.wait_for_nodes()
        yield made
    finally:
        made.cluster.shutdown()


def lines(folder: Path) -> int:
    """Return the number of graded episodes of a run."""
    path = folder / TRAJECTORIES
    return path.read_bytes().count(b"\n") if path.exists() else 0


class Rate(NamedTuple):
    """Speed and cost of a rollout."""

    per_hour: float
    cpu_ms: float


def measure(attempts: int, options: RolloutOptions, usage: Path | None = None, cores: Collection[int] = ()) -> Rate:
    """Play the bundled tasks with the rule-based policy, in a new process, so that no run finds what another has read.

    Args:
        attempts: Episodes of each task.
        options: How to play.
        usage: File with the CPU nanoseconds of a control group. None: those of the driver.
        cores: Cores to stay on. Empty: all.
    """
    cores = cores or os.sched_getaffinity(0)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=os.sched_setaffinity, initargs=(0, cores)) as pool:
        return pool.submit(_measure, attempts, options, usage).result()


def _measure(attempts: int, options: RolloutOptions, usage: Path | None) -> Rate:
    seen: list[tuple[float, int, float]] = []

    def look(progress: Progress) -> None:
        if 0.1 <= progress.done / progress.total <= 0.9:
            cpu = int(usage.read_text()) / 1e9 if usage else time.process_time()
            seen.append((time.monotonic(), progress.done, cpu))

    with tempfile.TemporaryDirectory(prefix="swe-gym-executors-") as place:
        plan = Plan(source="toy", policy="baseline", attempts=attempts)
        rollout(plan, Path(place) / "run", options, on_progress=look)
    (started, first, before), (ended, last, after) = seen[0], seen[-1]
    return Rate((last - first) / (ended - started) * 3600, 1000 * (after - before) / (last - first))


def on_ray(made: Machines, per_node: int) -> RolloutOptions:
    """Return the options of a rollout on a cluster."""
    return RolloutOptions(executor="ray", executor_options={"address": made.address, "per_node": per_node, "lease": 60})


@app.command()
def overhead(attempts: int = 10, workers: int = 16, rounds: int = 8) -> None:
    """Compare threads with one Ray node, in turn. Bar: at most 5 % at 16 workers in the median."""
    pairs = []
    with own_group() as group, machines(1) as made:
        for _ in range(rounds):
            how = (RolloutOptions(workers=workers), on_ray(made, workers))
            pairs.append([measure(attempts, options, group / "cpuacct.usage") for options in how])
    rows = [(*cells(threads), *cells(ours), *differences(threads, ours)) for threads, ours in pairs]
    medians = [
        Rate(*(statistics.median(column) for column in zip(*rates, strict=True))) for rates in zip(*pairs, strict=True)
    ]
    rows.append((*(cell for one in medians for cell in cells(one)), *differences(*medians)))
    columns = ("threads: episodes/h", "CPU ms each", "Ray: episodes/h", "CPU ms each", "slower", "more CPU")
    show(f"{workers} workers, load {os.getloadavg()[0]:.1f}", columns, rows, "The last row holds medians.")


def cells(one: Rate) -> tuple[str, str]:
    """Return the cells of a measurement."""
    return f"{one.per_hour:,.0f}", f"{one.cpu_ms:.0f}"


def differences(base: Rate, one: Rate) -> tuple[str, str]:
    """Return how much slower and dearer one is than the other."""
    return f"{base.per_hour / one.per_hour - 1:+.1%}", f"{one.cpu_ms / base.cpu_ms - 1:+.1%}"


@app.command()
def scaling(attempts: int = 8, per_node: int = 8, rounds: int = 2) -> None:
    """Compare one node with two, each pinned to one core. Bar: 1.8 times the episodes of one.

    Two cores may share caches and execution units. What they can reach at best is shown by one and two processes that
    know nothing of each other, each with threads on a core of its own. On a machine of two cores, the driver of one
    node has a core for itself, and that of two nodes has none. So they are also compared with the driver on the first
    core.
    """
    ways = {"alone, in threads": apart, "Ray nodes": on_nodes, "Ray nodes, driver on the first core": with_driver}
    found: dict[str, dict[int, list[float]]] = {name: {1: [], 2: []} for name in ways}
    cores = sorted(os.sched_getaffinity(0))[:2]
    for _ in range(rounds):
        for count in (1, 2):
            for name, way in ways.items():
                found[name][count].append(way(attempts, per_node, cores[:count]))
    rows = [
        (
            name,
            *(" ".join(f"{one:,.0f}" for one in rates) for rates in by_count.values()),
            f"{sum(by_count[2]) / sum(by_count[1]):.2f}",
        )
        for name, by_count in found.items()
    ]
    show(f"load {os.getloadavg()[0]:.1f}", ("episodes/h", "on one core", "on two", "ratio of means"), rows)


def apart(attempts: int, workers: int, cores: list[int]) -> float:
    """Return the episodes per hour of a process on each core."""
    with ThreadPoolExecutor() as pool:
        how = RolloutOptions(workers=workers)
        return sum(one.per_hour for one in pool.map(lambda core: measure(attempts, how, cores={core}), cores))


def on_nodes(attempts: int, per_node: int, cores: list[int]) -> float:
    """Return the episodes per hour of a Ray node on each core."""
    with machines(len(cores)) as made:
        for index, core in enumerate(cores):
            for pid in made.pids(index):
                for task in os.listdir(f"/proc/{pid}/task"):
                    os.sched_setaffinity(int(task), {core})
        return measure(attempts * len(cores), on_ray(made, per_node)).per_hour


def with_driver(attempts: int, per_node: int, cores: list[int]) -> float:
    """Return the same with this process on the first core."""
    with pinned(cores[0]):
        return on_nodes(attempts, per_node, cores)


@contextlib.contextmanager
def pinned(core: int) -> Iterator[None]:
    """Run this process, with all that it starts, on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@app.command()
def vector(slots: int = 64, rounds: int = 100) -> None:
    """Compare threads with worker processes on sandboxes that cost nothing, so that the interpreter is the limit."""
    import gymnasium

    import swe_gym  # noqa: F401  registers the ids

    action = '{"name": "bash", "arguments": {"command": "true"}}'
    rows = []
    for executor in ("threads", "process") * 2:
        started = time.monotonic()
        where = {"executor": executor, "backend": "fake", "max_turns": 10**9}
        with gymnasium.make_vec("SWE/Toy-v0", num_envs=slots, **where) as envs:
            envs.reset(seed=0)
            ready = time.monotonic()
            for _ in range(rounds):
                envs.step((action,) * slots)
            rate = rounds * slots / (time.monotonic() - ready)
        rows.append((executor, f"{ready - started:.1f} s", f"{rate:,.0f}", f"{os.getloadavg()[0]:.1f}"))
    show(f"{slots} slots, backend fake", ("executor", "make and reset", "steps/s", "load"), rows)


@app.command()
def faults(nodes: int = 2, kills: int = 10, attempts: int = 20, lease: float = 10.0) -> None:
    """Kill nodes at random moments, cut one off, kill the driver. Bar: every episode is there exactly once."""
    chance = random.Random(os.urandom(8))
    kinds = [*(["node"] * kills), "cut", "driver"]
    chance.shuffle(kinds)
    moments = sorted(chance.sample(range(4, attempts * TOY - 20), len(kinds)))
    with tempfile.TemporaryDirectory(prefix="swe-gym-faults-") as place, machines(nodes) as made:
        folder = Path(place) / "run"
        plan = short_plan(attempts).model_dump_json()
        command = [sys.executable, "-c", PLAY, str(folder), made.address, plan, str(lease)]
        driver = subprocess.Popen(command)
        for kind, moment in zip(kinds, moments, strict=True):
            wait_until(lambda moment=moment: made.look() >= 0 and lines(folder) >= moment, 600)  # type: ignore[misc]
            print(f"{lines(folder)} episodes: {kind}", flush=True)
            disturb(made, kind, lease, chance)
            if kind == "driver":
                driver.kill()
                wait_until(made.no_box_is_left)
                assert made.no_box_is_left()
                driver = subprocess.Popen(command)
        assert driver.wait(1200) == 0
        counts = collections.Counter((one.task_id, one.attempt) for one in Trajectory.read(folder / TRAJECTORIES))
        lost = collections.Counter(one.reason for one in Trajectory.read(folder / FAILED))
        wait_until(made.no_box_is_left)
        left = sum(Path(f"/proc/{pid}").exists() for pid in made.boxes)
        print(f"{len(counts)} of {attempts * TOY} episodes, at most {max(counts.values())} times; failed {dict(lost)}")
        print(f"{len(made.boxes)} processes of sandboxes seen, {left} left")
        assert (len(counts), max(counts.values()), left) == (attempts * TOY, 1, 0)


def disturb(made: Machines, kind: str, lease: float, chance: random.Random) -> None:
    """Kill a node and start another one, or cut one off for longer than the lease."""
    index = chance.randrange(len(made.nodes))
    if kind == "node":
        made.kill(index)
        made.add()
    elif kind == "cut":
        made.cut_off(index, 1.5 * lease)


if __name__ == "__main__":
    app()
