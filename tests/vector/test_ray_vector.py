"""`SweVectorEnv` over Ray actors on a local node passes the tests of worker processes."""

import os
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import pytest

if "ray" not in os.environ.get("SWE_GYM_REQUIRE", "").split(","):
    pytest.importorskip("ray", reason="Ray is tested in a separate environment")

import ray
from executors import machines
from test_process_vector import (  # noqa: F401  run with the fixture of this module
    test_a_killed_process_fails_its_slots_and_starts_again_at_the_next_reset,
    test_slots_share_processes_and_answer_as_in_threads,
    test_what_a_worker_cannot_read_does_not_end_it,
)
from vector_parts import Scripted

from swe_gym.errors import SandboxLost, UsageError
from swe_gym.testing.sandbox_contract.case import eventually
from swe_gym.vector import SweVectorEnv

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray emits warnings

LIST = '{"name": "listdir", "arguments": {}}'


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Any]:
    """A head node without cores, and a node with four."""
    with machines(1, cores=4) as made:
        os.environ["RAY_ADDRESS"] = made.address
        yield made
        del os.environ["RAY_ADDRESS"]
        ray.shutdown()


@pytest.fixture
def envs() -> Iterator[SweVectorEnv]:
    """Four environments in two actors."""
    makers = [lambda name=name: Scripted(name=name) for name in "abcd"]  # type: ignore[misc]
    with SweVectorEnv(makers, executor="ray", processes=2) as made:
        yield made


def test_real_sandboxes_run_on_the_nodes_and_end_with_their_actors(cluster: Any) -> None:
    with gym.make_vec("SWE/Toy-v0", num_envs=2, executor="ray") as envs:
        envs.reset(seed=1)
        assert cluster.look() > 0
        assert envs.step([LIST] * 2)[4]["outcome"].tolist() == ["running"] * 2
    eventually(cluster.no_box_is_left, 60, "no sandbox is left")


def test_a_cluster_without_free_cpus_is_named() -> None:
    options = {"num_cpus": 2, "patience": 5.0}
    with pytest.raises(SandboxLost, match=r"that needs 2 free CPUs on one node did not start within 5 s"):
        SweVectorEnv([Scripted] * 3, executor="ray", processes=3, executor_options=options)


def test_mistakes_in_the_options_are_named() -> None:
    for executor, options, said in [
        ("ray", {"num_cpu": 2}, "Did you mean 'num_cpus'"),
        ("ray", {"num_cpus": 0}, "num_cpus must be positive"),
        ("process", {"num_cpus": 2}, "option of executor 'process'"),
        ("threads", {"num_cpus": 2}, "option of executor 'threads'"),
    ]:
        with pytest.raises(UsageError, match=said):
            SweVectorEnv([Scripted], executor=executor, executor_options=options)
