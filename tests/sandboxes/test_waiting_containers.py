"""Grading containers that start while a policy works, and wait for the end of its episode."""

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from bundled_tasks import TASKS, solution

from swe_gym.envs.swe_env import SweEnv
from swe_gym.testing.sandbox_contract.case import eventually

docker = pytest.importorskip("docker")

WORK = json.dumps({"name": "bash", "arguments": {"command": "touch x"}})
SUBMIT = json.dumps({"name": "submit", "arguments": {}})

Containers = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def label() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def containers(engine: docker.APIClient, label: str) -> Containers:
    """Returns the containers of the test, also those that were only created, oldest first."""
    return lambda: engine.containers(all=True, filters={"label": f"test={label}"})[::-1]


@pytest.fixture
def options(docker_image: str, label: str) -> dict[str, Any]:
    """Options of an environment whose grading container waits even if tests of other processes have some."""
    return {"labels": {"test": label}, "options": {"default_image": docker_image, "pull": "never", "waiting": 1000}}


@pytest.fixture
def env(options: dict[str, Any]) -> Iterator[SweEnv]:
    with closing(SweEnv("toy", task_id=TASKS[0], backend="docker", sandbox_options=options)) as made:
        made.reset()
        yield made


def both_run(containers: Containers) -> list[dict[str, Any]]:
    eventually(lambda: [one["State"] for one in containers()] == ["running"] * 2, 60, "two containers run")
    return containers()


def test_the_container_that_waits_is_like_one_that_starts_at_the_end(
    env: SweEnv, containers: Containers, engine: docker.APIClient
) -> None:
    env.step(WORK)
    policys, waits = (engine.inspect_container(one["Id"]) for one in both_run(containers))
    assert waits["HostConfig"] == policys["HostConfig"]
    assert {**waits["Config"], "Labels": {}} == {**policys["Config"], "Labels": {}}
    assert waits["NetworkSettings"]["Networks"] == policys["NetworkSettings"]["Networks"]
    assert not [change for change in engine.diff(waits["Id"]) if change["Path"] == "/testbed/x"]
    env.step(WORK)
    assert [one["Id"] for one in containers()] == [policys["Id"], waits["Id"]]
    for action in solution(TASKS[0]):
        reward = env.step(action)[1]
    assert reward == 1.0
    eventually(lambda: not containers(), 60, "no container is left")


def test_a_container_that_was_killed_while_it_waited_is_replaced(
    env: SweEnv, containers: Containers, engine: docker.APIClient
) -> None:
    env.step(WORK)
    engine.remove_container(both_run(containers)[1]["Id"], force=True)
    _, reward, terminated, _, info = env.step(SUBMIT)
    assert (reward, terminated, info["outcome"], info["reward_valid"]) == (0.0, True, "submitted", True)
    eventually(lambda: not containers(), 60, "no container is left")


@pytest.mark.parametrize("moment", [0, 1, 2])
def test_closing_at_any_moment_of_a_start_leaves_nothing(moment: int, env: SweEnv, containers: Containers) -> None:
    env.step(WORK)
    if moment:
        eventually(lambda: len(containers()) == 2, 60, "two containers exist")
    if moment == 2:
        both_run(containers)
    env.close()
    eventually(lambda: not containers(), 60, "no container is left")


CLIENT = """
import json, sys
from swe_gym.envs.swe_env import SweEnv

env = SweEnv("toy", backend="docker", sandbox_options=json.loads(sys.argv[1]))
env.reset()
env.step(sys.argv[2])
print("waits", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("ready", [False, True])
def test_a_killed_client_leaves_nothing(ready: bool, options: dict[str, Any], containers: Containers) -> None:
    command = [sys.executable, "-c", CLIENT, json.dumps(options), WORK]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"waits\n"
        if ready:
            both_run(containers)
        client.kill()
    eventually(lambda: not containers(), 60, "no container is left")
