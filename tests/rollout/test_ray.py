"""Rollouts on a Ray cluster of local nodes: one is killed, one is cut off and comes back, the driver is killed."""

import collections
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

if "ray" not in os.environ.get("SWE_GYM_REQUIRE", "").split(","):
    pytest.importorskip("ray", reason="Ray is tested in a separate environment")


import ray
from executors import PLAY, Machines, lines, machines, short_plan
from ray._raylet import GcsClient
from ray.autoscaler.v2.sdk import get_cluster_resource_state

from swe_gym.errors import UsageError
from swe_gym.remote import NodeLost
from swe_gym.rollout.engine import RolloutOptions, rollout
from swe_gym.rollout.executors import open_executor
from swe_gym.rollout.executors.ray_nodes import RayCluster, Room
from swe_gym.rollout.progress import Progress
from swe_gym.tasks import load_source
from swe_gym.testing.sandbox_contract.case import eventually
from swe_gym.trajectories.run_folder import FAILED, read_live
from swe_gym.trajectories.trajectory import Trajectory

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray emits warnings

ATTEMPTS = 2
LEASE = 8.0


@pytest.fixture(scope="module")
def made() -> Iterator[Machines]:
    """A head node without cores, and two nodes."""
    with machines(2) as two:
        yield two


def test_a_node_has_room_for_what_its_cores_and_its_memory_allow() -> None:
    resources = {"CPU": 8.0, "memory": 6.0 * 2**30}
    assert [Room(None, 0.5, 1024).of(resources), Room(None, 0.25, 128).of(resources)] == [6, 28]
    assert [Room(5, 0.5, 1024).of({"CPU": 2.0}), Room(5, 0.5, 1024).of({"CPU": 0.0})] == [5, 0]
    assert [Room(None, cpus, 64).of({"CPU": 4.0}) for cpus in (0.25, 1.0, 2.0, 4.0, 5.0)] == [12, 3, 1, 1, 0]
    assert [Room(None, 0.25, 64).of({"CPU": free}) for free in (0.2, 0.3, 1.0, 1.5, 2.0)] == [0, 1, 4, 4, 4]


def test_the_actor_of_a_node_asks_ray_for_what_its_episodes_need() -> None:
    free = {"CPU": 8.0, "memory": 6.0 * 2**30}
    assert Room(None, 0.5, 1024).held(free) == {"num_cpus": 8, "memory": 6 * 2**30}  # also the one left to Ray
    assert Room(5, 0.5, 1024).held(free) == {"num_cpus": 2, "memory": 5 * 2**30}
    assert Room(5, 0.1, 64).held({"CPU": 0.33337}) == {"num_cpus": 0.3333, "memory": 0}


def test_mistakes_are_named() -> None:
    with pytest.raises(UsageError, match="Did you mean 'lease'"), open_executor("ray", {"leas": 3}):
        pass
    for options, said in [
        ({"lease": 0}, "lease, num_cpus, memory_mb and per_node must be positive"),
        ({"num_cpus": 0}, "must be positive: lease=30, num_cpus=0"),
        ({"num_cpus": 1.5}, "above 1 a whole number, as Ray demands: 1.5"),
        ({"address": "127.0.0.1:1"}, r"cluster 127\.0\.0\.1:1: "),
    ]:
        with pytest.raises(UsageError, match=said):
            open_executor("ray", options).__enter__()


def test_a_cluster_without_nodes_is_asked_to_grow_and_grows(tmp_path: Path) -> None:
    with machines(0) as none:
        client, seen = GcsClient(address=none.address), []

        def grow(_: Progress) -> None:
            """Do what an autoscaler does: read the demand, and add nodes."""
            seen.append(demand_of(client))
            if not none.nodes and seen[-1] == {0.5: 14}:  # an episode of each task
                none.add()
                none.add()

        where = {"address": none.address, "num_cpus": 0.5, "lease": 30.0, "patience": 90.0}
        options = RolloutOptions(executor="ray", executor_options=where)
        result = rollout(short_plan(1), tmp_path / "run", options, on_progress=grow)
        assert result.progress.done == 14
        eventually(lambda: demand_of(client) == {}, 60, "nothing more is asked for")


def demand_of(client: GcsClient) -> dict[float, int]:
    """Return what autoscalers are told: the CPUs of waiting tasks and actors -> their number."""
    state = get_cluster_resource_state(client)
    found: collections.Counter[float] = collections.Counter()
    for one in state.pending_resource_requests:  # equal ones may come apart
        found[one.request.resources_bundle.get("CPU", 0.0)] += one.count
    return {cpus: count for cpus, count in found.items() if cpus}


def test_nodes_whose_actors_start_count_as_room(made: Machines) -> None:
    cluster = RayCluster(made.address, Room(None, 0.25, 64), 30.0, 60.0, ())
    client = GcsClient(address=made.address)
    with contextlib.closing(cluster):
        eventually(lambda: ray.available_resources().get("CPU") == 2, 60, "the actors of earlier tests have ended")
        assert len(cluster.nodes()) == 2
        cluster.demand(2 * 4 + 3)
        assert len(cluster._asks()) == 3  # only what finds no room
        eventually(lambda: demand_of(client) == {0.25: 3}, 60, "an autoscaler sees them")
    eventually(lambda: demand_of(client) == {}, 60, "nothing is asked for")


def test_a_demand_that_no_node_can_meet_is_an_error_by_name(made: Machines, tmp_path: Path) -> None:
    options = {"address": made.address, "num_cpus": 8, "patience": 2.0}
    with pytest.raises(NodeLost, match=r"needs 8 CPUs and 1,024 MiB, and of 3 nodes none has more free than 1 CPUs"):
        rollout(short_plan(1), tmp_path / "run", RolloutOptions(executor="ray", executor_options=options))


def test_every_episode_is_played_once_whatever_dies(made: Machines, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    plan = short_plan(ATTEMPTS)
    wanted = {(task, attempt) for task in load_source("toy").ids() for attempt in range(ATTEMPTS)}

    command = [sys.executable, "-c", PLAY, str(folder), made.address, plan.model_dump_json(), str(LEASE)]
    with subprocess.Popen(command) as driver:
        eventually(lambda: made.look() > 0 and lines(folder) >= 4, 240, "it plays")
        driver.kill()
    eventually(made.no_box_is_left, 30, "the sandboxes of a killed driver end")
    before = lines(folder)
    assert 4 <= before < len(wanted)

    faults: list[tuple[int, Callable[[], object]]] = [
        (before + 4, lambda: made.cut_off(0, LEASE + 2.0)),
        (before + 9, lambda: made.kill(1)),  # the other one has come back, or will
    ]
    turns: list[int] = []

    def disturb(progress: Progress) -> None:
        made.look()
        turns.extend(len(one.turns) for one in read_live(folder))
        if faults and progress.done >= faults[0][0]:
            faults.pop(0)[1]()

    where = {"address": made.address, "per_node": 3, "lease": LEASE}
    options = RolloutOptions(executor="ray", executor_options=where, retries=20)
    result = rollout(plan, folder, options, on_progress=disturb)
    assert faults == []
    counts = collections.Counter((one.task_id, one.attempt) for one in result.trajectories())
    assert (set(counts), set(counts.values())) == (wanted, {1})
    assert {(one.reward_valid, len(one.turns)) for one in result.trajectories()} == {(True, 3)}
    failed = list(Trajectory.read(folder / FAILED))
    assert {one.reason.partition(" ")[0] for one in failed} <= {"NodeLost", "killed"}
    assert "NodeLost" in {one.reason.partition(" ")[0] for one in failed}
    assert {one.reward_valid for one in failed} == {False}
    assert max(turns) > 0  # turns arrive while the episode runs
    assert list((folder / "live").iterdir()) == []
    eventually(made.no_box_is_left, 60, "no sandbox is left")
