"""Backends that fail on command in the middle of an episode, each with its fault server."""

import contextlib
import dataclasses
import gc
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from servers.docker_proxy import DockerProxy
from servers.e2b_server import E2BServer
from servers.kubernetes_server import KubernetesServer

from swe_gym.grading.base import Ready
from swe_gym.grading.graders import EXIT_CODE
from swe_gym.grading.plan import read_plan
from swe_gym.sandboxes import Sandbox
from swe_gym.sandboxes.e2b import E2BSandbox
from swe_gym.tasks.file import write_tasks
from swe_gym.testing.sandbox_contract.case import eventually
from swe_gym.types import Oracle, Task, Verdict

KubernetesSandbox = pytest.importorskip("swe_gym.sandboxes.kubernetes").KubernetesSandbox


@dataclasses.dataclass
class Failing:
    """A backend and the tool that makes it fail.

    Attributes:
        name: Name of the backend for `gym.make`.
        hasty: Name of the same backend with a shorter slack.
        options: `sandbox_options` that lead to the tool.
        tool: Proxy before the service, or server in its place.
        left: Returns the sandboxes that still exist.
    """

    name: str
    hasty: str
    options: dict[str, Any]
    tool: Any
    left: Callable[[], Any]


class HastyKubernetes(KubernetesSandbox):  # type: ignore[misc, valid-type]  # imported where there is one
    """Waits two seconds longer for a reply, not ten."""

    slack = 2.0


class HastyE2B(E2BSandbox):
    """Waits two seconds longer for a reply, not ten."""

    slack = 2.0


@contextlib.contextmanager
def docker(request: pytest.FixtureRequest, _: Path) -> Iterator[Failing]:
    """A real engine behind a proxy."""
    import docker

    image = request.getfixturevalue("docker_image")  # skips without an engine
    label = uuid.uuid4().hex  # others use the same engine
    with DockerProxy() as proxy, contextlib.closing(docker.APIClient(version="auto")) as engine:
        own = {"default_image": image, "base_url": proxy.base_url}
        options = {"labels": {"test": label}, "options": own}

        def left() -> list[Any]:
            return list(engine.containers(all=True, filters={"label": f"test={label}"}))

        yield Failing("docker", "docker", options, proxy, left)
        proxy.thaw()
        eventually(lambda: left() == [] and not removers(), 60, "no container and no removing thread is left")
    gc.collect()  # docker-py leaks sockets, which would fail another test


def removers() -> list[str]:
    """Names of threads that remove containers and need the proxy."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("remove swe-gym")]


@contextlib.contextmanager
def kubernetes(_: pytest.FixtureRequest, folder: Path) -> Iterator[Failing]:
    """A server instead of a cluster. Commands in its pods print their arguments and succeed."""
    with KubernetesServer() as server:
        own = {"kubeconfig": server.kubeconfig(folder), "default_image": "any", "backoff": (0.05, 0.2)}
        options = {"options": {**own, "capacity_timeout": 0.5}}
        yield Failing("kubernetes", "failing_backends:HastyKubernetes", options, server, lambda: list(server.pods))


@contextlib.contextmanager
def e2b(_: pytest.FixtureRequest, folder: Path) -> Iterator[Failing]:
    """A server instead of the service. Commands are processes of this machine."""
    with E2BServer(folder / "e2b") as server:
        options = server.sandbox_options(request_timeout=3.0)
        yield Failing("e2b", "failing_backends:HastyE2B", options, server, lambda: server.running)


BACKENDS = {"docker": docker, "kubernetes": kubernetes, "e2b": e2b}


BEFORE_THE_TESTS: list[Callable[[], None]] = []
"""Functions to call in the judge before the hidden tests run."""


def grade_after(task: Task, sandbox: Sandbox) -> Verdict:
    """A grader that first calls `BEFORE_THE_TESTS`."""
    while BEFORE_THE_TESTS:
        BEFORE_THE_TESTS.pop()()
    plan = read_plan(task.oracle.evaluation, sandbox.workdir)
    return EXIT_CODE.decide(task, EXIT_CODE.run(Ready(task, plan, lambda: sandbox), sandbox))


def tasks_file(folder: Path) -> str:
    """Writes a file with one task that is always solved, graded by `grade_after`."""
    oracle = Oracle(test_cmd="true", grader="failing_backends:grade_after", timeout=1.0)
    path = folder / "tasks.json"
    write_tasks([Task(task_id="one", problem_statement="Do nothing.", oracle=oracle)], path)
    return str(path)
