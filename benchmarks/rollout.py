"""Measure the cost of rollouts, and whether they survive kills.

    python benchmarks/rollout.py throughput [local|docker] [1,4,16,64]
    python benchmarks/rollout.py kill [20]

`throughput` plays the bundled tasks with the rule-based baseline, like `swe-gym bench rollout`. It counts the CPU
time of this process and its sandboxes by control groups (version 1, as root), so other load does not count. For
Docker, set SWE_GYM_TEST_IMAGE to an image with Python and git. The CPU time of all containers and of the engine's
daemons counts, so nothing else may use the engine.

`kill` starts a rollout of 140 episodes, kills it with SIGKILL at random moments, checks the folder after each kill,
resumes it, and checks the result.
"""

import collections
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from common import LiveTable
from rich.console import Console

from swe_gym.cli.bench import Cpu, level_table, measure
from swe_gym.trajectories.run_folder import FAILED, TRAJECTORIES, read_index
from swe_gym.trajectories.trajectory import Trajectory

GROUPS = Path("/sys/fs/cgroup/cpuacct")
ATTEMPTS = 10

PLAY = """
import sys
from swe_gym.rollout.engine import RolloutOptions, rollout
from swe_gym.rollout.plan import Plan

rollout(Plan(source="toy", policy="baseline", attempts=int(sys.argv[2])), sys.argv[1], RolloutOptions(workers=4))
"""


def throughput(backend: str = "local", workers: str = "1,4,16,64") -> None:
    """Print episodes per hour, CPU time and its parts, for several numbers of workers."""
    options = {"image": os.environ["SWE_GYM_TEST_IMAGE"]} if backend == "docker" else {}
    env = {"backend": backend, "sandbox_options": options}
    with own_group() as group:
        groups = [group, GROUPS / "docker"] if backend == "docker" else [group]

        def meter() -> Cpu:
            used = sum(int((one / "cpuacct.usage").read_text()) for one in groups)
            return Cpu(time.process_time(), used / 1e9 + (engine_seconds() if backend == "docker" else 0.0))

        measure(1, 1, "baseline", env, meter)  # images and caches
        levels = [measure(int(count), 28, "baseline", env, meter) for count in workers.split(",")]
    print(f"rule-based baseline, {backend}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}\n")
    Console(width=160).print(level_table(levels))


def engine_seconds() -> float:
    """Return the CPU seconds of the Docker engine's daemons and their children."""
    ticks = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{name}/comm").read_text().strip() in ("dockerd", "containerd"):
                ticks += sum(map(int, Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def own_group() -> Iterator[Path]:
    """Put this process and its children into a new control group."""
    group = GROUPS / f"swe-gym-bench-{os.getpid()}"
    group.mkdir()
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield group
    finally:
        for pid in (group / "cgroup.procs").read_text().split():  # the launcher of local sandboxes is still alive
            (GROUPS / "cgroup.procs").write_text(pid)
        group.rmdir()


def kill(times: str = "20") -> None:
    """Kill a rollout repeatedly, let it finish, and check that each episode was played exactly once."""
    with tempfile.TemporaryDirectory(prefix="swe-gym-kill-") as place:
        folder = Path(place) / "run"
        table = LiveTable("killed after", "failed tries", "sandboxes gone after", "episodes done")
        for _ in range(int(times)):
            table.add(*kill_once(folder))
        started = time.monotonic()
        subprocess.run([sys.executable, "-c", PLAY, str(folder), str(ATTEMPTS)], check=True)
        counts = collections.Counter((entry.task_id, entry.attempt) for entry in read_index(folder))
        assert len(counts) == ATTEMPTS * 14, len(counts)
        assert set(counts.values()) == {1}
        assert not list((folder / "live").iterdir())
        print(f"{len(counts)} episodes, each exactly once; the last run took {time.monotonic() - started:.1f} s")


def kill_once(folder: Path) -> tuple[str, ...]:
    """Kill a rollout some time after it starts. The folder must stay valid and the sandboxes must end."""
    process = subprocess.Popen([sys.executable, "-c", PLAY, str(folder), str(ATTEMPTS)])
    lock = folder / "lock"
    while process.poll() is None and not (lock.exists() and str(process.pid) in lock.read_text()):
        time.sleep(0.005)
    delay = random.uniform(0, 2.0)
    time.sleep(delay)
    boxes = below(process.pid)
    process.kill()
    process.wait()
    killed = time.monotonic()
    while any(Path(f"/proc/{pid}").exists() for pid in boxes):
        assert time.monotonic() < killed + 10, "sandboxes outlived the rollout"
        time.sleep(0.01)
    gone = time.monotonic() - killed
    done = [(one.task_id, one.attempt) for one in Trajectory.read(folder / TRAJECTORIES)]
    failed = list(Trajectory.read(folder / FAILED))
    assert len(set(done)) == len(done)
    return f"{delay:.2f} s", str(len(failed)), f"{gone:.2f} s", str(len(done))


def below(pid: int) -> list[int]:
    """Return the descendants of a process."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
    found, todo = [], [pid]
    while todo:
        todo = [child for child, parent in parents.items() if parent in todo]
        found += todo
    return found


if __name__ == "__main__":
    commands = {"throughput": throughput, "kill": kill}
    if len(sys.argv) < 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]](*sys.argv[2:])
