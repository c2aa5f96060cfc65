"""Rollouts on a Ray cluster of local nodes: one is killed, one is cut off and comes back, the driver is killed."""

import collections
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

if "ray" not in os.environ.get("SWE_GYM_REQUIRE", "").split(","):
    pytest.importorskip("ray", reason="Ray is tested in a separate environment")

from ray.cluster_utils import Cluster

from swe_gym.errors import UsageError
from swe_gym.rollout.engine import RolloutOptions, rollout
from swe_gym.rollout.executors import open_executor
from swe_gym.rollout.executors.ray import Room
from swe_gym.rollout.plan import Plan
from swe_gym.rollout.progress import Progress
from swe_gym.tasks import load_source
from swe_gym.testing.sandbox_contract.case import eventually
from swe_gym.trajectories.run_folder import FAILED, TRAJECTORIES, read_live
from swe_gym.trajectories.trajectory import Trajectory

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray emits warnings

ATTEMPTS = 3
LEASE = 4.0

PLAY = """
import sys
from swe_gym.rollout.engine import RolloutOptions, rollout
from swe_gym.rollout.plan import Plan

options = RolloutOptions(executor="ray", executor_options={"address": sys.argv[2], "per_node": 3})
rollout(Plan(source="toy", policy="gold", attempts=3), sys.argv[1], options)
"""


def below(pid: int) -> list[int]:
    """A process and all that it started."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
    found, todo = [pid], [pid]
    while todo:
        todo = [child for child, parent in parents.items() if parent in todo]
        found += todo
    return found


def is_rays(pid: int) -> bool:
    try:
        return b"ray" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True


class Machines(NamedTuple):
    """A cluster, its two nodes with cores, and all processes of sandboxes that were seen."""

    cluster: Any
    nodes: list[Any]
    boxes: set[int]

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def pids(self, index: int) -> list[int]:
        return below(self.nodes[index].all_processes["raylet"][0].process.pid)

    def look(self) -> int:
        """Note the processes of sandboxes, and return their number."""
        seen = {pid for node in range(len(self.nodes)) for pid in self.pids(node) if not is_rays(pid)}
        self.boxes.update(seen)
        return len(seen)

    def signal(self, pids: list[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def no_box_is_left(self) -> bool:
        return not any(Path(f"/proc/{pid}").exists() for pid in self.boxes)


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    """A head node without cores, and two nodes."""
    args = {"object_store_memory": 80 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **args})
    try:
        nodes = [cluster.add_node(num_cpus=2, object_store_memory=80 << 20) for _ in range(2)]
        cluster.wait_for_nodes()
        yield Machines(cluster, nodes, set())
    finally:
        cluster.shutdown()


def test_a_node_has_room_for_what_its_cores_and_its_memory_allow() -> None:
    resources = {"CPU": 8.0, "memory": 6.0 * 2**30}
    assert [Room(None, 2.0, 1024).of(resources), Room(None, 4.0, 128).of(resources)] == [6, 28]
    assert [Room(5, 2.0, 1024).of({"CPU": 2.0}), Room(5, 2.0, 1024).of({"CPU": 0.0})] == [5, 0]
    with pytest.raises(UsageError, match="Did you mean 'lease'"), open_executor("ray", {"leas": 3}):
        pass
    with pytest.raises(UsageError, match="lease, per_core, memory_mb and per_node must be positive"):
        open_executor("ray", {"lease": 0}).__enter__()


def test_every_episode_is_played_once_whatever_dies(machines: Machines, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    plan = Plan(source="toy", policy="gold", attempts=ATTEMPTS)
    wanted = {(task, attempt) for task in load_source("toy").ids() for attempt in range(ATTEMPTS)}

    with subprocess.Popen([sys.executable, "-c", PLAY, str(folder), machines.address]) as driver:
        eventually(lambda: machines.look() > 0 and lines(folder) >= 4, 120, "it plays")
        driver.kill()
    eventually(machines.no_box_is_left, 30, "the sandboxes of a killed driver end")
    before = lines(folder)
    assert 4 <= before < len(wanted)

    faults: list[tuple[int, Callable[[], object]]] = [
        (before + 6, lambda: cut_off(machines)),
        (before + 16, lambda: machines.cluster.remove_node(machines.nodes.pop(), allow_graceful=False)),
    ]
    turns: list[int] = []

    def disturb(progress: Progress) -> None:
        machines.look()
        turns.extend(len(one.turns) for one in read_live(folder))
        if faults and progress.done >= faults[0][0]:
            faults.pop(0)[1]()

    where = {"address": machines.address, "per_node": 3, "lease": LEASE}
    options = RolloutOptions(executor="ray", executor_options=where, retries=10)
    result = rollout(plan, folder, options, on_progress=disturb)
    assert faults == []
    counts = collections.Counter((one.task_id, one.attempt) for one in result.trajectories())
    assert (set(counts), set(counts.values())) == (wanted, {1})
    assert {one.reward for one in result.trajectories()} == {1.0}
    failed = list(Trajectory.read(folder / FAILED))
    assert {one.reason.partition(" ")[0] for one in failed} == {"NodeLost", "killed"}
    assert {one.reward_valid for one in failed} == {False}
    assert max(turns) > 0  # turns arrive while the episode runs
    assert list((folder / "live").iterdir()) == []
    eventually(machines.no_box_is_left, 30, "no sandbox is left")


def lines(folder: Path) -> int:
    """Return the number of graded episodes."""
    path = folder / TRAJECTORIES
    return path.read_text().count("\n") if path.exists() else 0


def cut_off(machines: Machines) -> None:
    """Stop all processes of the first node, and continue them after the lease. The other node is killed later."""
    pids = machines.pids(0)
    machines.signal(pids, signal.SIGSTOP)
    threading.Timer(LEASE + 2.0, machines.signal, (pids, signal.SIGCONT)).start()
