"""An engine that stalls, disconnects and refuses: each fault is a typed error in time and leaves nothing behind."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from servers.docker_proxy import DockerProxy, Fault

from swe_gym.envs.swe_env import SweEnv
from swe_gym.errors import SandboxClosed, SandboxLost, SandboxStartError
from swe_gym.sandboxes import Sandbox, SandboxSpec
from swe_gym.testing.sandbox_contract.case import Background, eventually

docker = pytest.importorskip("docker")

CALL_SECONDS = 1.5
"""Deadline of one call of the engine in these tests."""

REMOVE_SECONDS = 8.0
LATE_SECONDS = 15.0
"""Seconds in which a container may appear after the reply to its creation was lost."""

SLACK = 10.0

CREATE = "POST", r"/containers/create"
ATTACH = "POST", r"/attach"
START = "POST", r"/start$"
REMOVE = "DELETE", r"/containers/"
VERSION = "GET", r"/version"
PULL = "POST", r"/images/create"
IMAGE = "GET", r"/images/.*/json"


@pytest.fixture
def mark() -> str:
    """A label value unique to one test: others use the same engine."""
    return f"{os.getpid()}-{time.monotonic_ns()}"


@pytest.fixture
def ours(docker_image: str, mark: str) -> Iterator[Callable[[], list[str]]]:
    """Lists the containers of this test without the proxy."""
    assert docker_image
    with closing(docker.APIClient(version="auto")) as engine:
        yield lambda: [
            container["Names"][0] for container in engine.containers(all=True, filters={"label": f"test={mark}"})
        ]


@pytest.fixture
def sandbox(docker_image: str, mark: str) -> Callable[..., Sandbox]:
    """A new sandbox through a proxy."""
    from swe_gym.sandboxes.docker import DockerSandbox

    def make(proxy: DockerProxy, **fields: Any) -> Sandbox:
        options = {"base_url": proxy.base_url, **fields.pop("options", {})}
        spec = {"image": docker_image, "labels": {"test": mark}, "start_timeout": 60.0, "options": options, **fields}
        return DockerSandbox(SandboxSpec.model_validate(spec))

    return make


@contextmanager
def proxied(*faults: Fault) -> Iterator[DockerProxy]:
    """A proxy that outlives all removals: docker-py leaks the socket of a refused connection."""
    with DockerProxy(*faults) as proxy:
        yield proxy
        proxy.thaw()
        eventually(lambda: not removers(), LATE_SECONDS + REMOVE_SECONDS, "no thread is left")


FAULTS = [
    (Fault(*VERSION, "stall"), "timeout", True),
    (Fault(*VERSION, "cut"), "unknown", True),
    (Fault(*VERSION, "error", status=503), "setup", True),
    (Fault(*IMAGE, "stall"), "timeout", True),
    (Fault(*IMAGE, "cut"), "unknown", True),
    (Fault(*IMAGE, "cut_reply", after=300), "unknown", True),
    (Fault(*IMAGE, "error"), "setup", True),
    (Fault(*CREATE, "stall"), "timeout", True),
    (Fault(*CREATE, "cut"), "unknown", True),
    (Fault(*CREATE, "cut_reply"), "unknown", True),
    (Fault(*CREATE, "stall_reply"), "timeout", True),
    (Fault(*CREATE, "error", status=409, message="Conflict"), "setup", False),
    (Fault(*CREATE, "error", status=429, message="slow down"), "rate_limit", True),
    (Fault(*CREATE, "error", message="write /x: no space left on device"), "capacity", False),
    (Fault(*CREATE, "error", status=507, message="Insufficient Storage"), "capacity", False),
    (Fault(*CREATE, "error", status=404, message="No such image: x"), "image", False),
    (Fault(*ATTACH, "stall"), "timeout", True),
    (Fault(*ATTACH, "cut"), "unknown", True),
    (Fault(*ATTACH, "error"), "setup", True),
    (Fault(*ATTACH, "cut_reply", after=300), "setup", True),
    (Fault(*ATTACH, "stall_reply", after=300), "timeout", True),
    (Fault(*START, "stall"), "timeout", True),
    (Fault(*START, "cut"), "unknown", True),
    (Fault(*START, "cut_reply"), "unknown", True),
    (Fault(*START, "stall_reply"), "timeout", True),
    (Fault(*START, "error"), "setup", True),
]

LIKE_ANOTHER = {(IMAGE, "stall"), (IMAGE, "cut_reply"), (CREATE, "cut"), (CREATE, "stall_reply"), (ATTACH, "stall")}
LIKE_ANOTHER |= {(ATTACH, "cut_reply"), (START, "cut"), (START, "stall_reply"), (START, "error")}
"""Faults that another request or another moment of the same request shows too. They are for a thorough run."""


def faults() -> list[ParameterSet]:
    return [
        pytest.param(
            *row,
            id=f"{row[0].path}-{row[0].does}-{row[0].status}",
            marks=pytest.mark.thorough if ((row[0].method, row[0].path), row[0].does) in LIKE_ANOTHER else (),
        )
        for row in FAULTS
    ]


@pytest.mark.parametrize(("fault", "reason", "retryable"), faults())
def test_a_fault_at_the_start_is_a_typed_error_in_time(
    fault: Fault, reason: str, retryable: bool, sandbox: Callable[..., Sandbox], ours: Callable[[], list[str]]
) -> None:
    with proxied(fault) as proxy:
        stalls = fault.does.startswith("stall")
        limits = {"start_timeout": 5.0, "options": {"timeout": CALL_SECONDS}} if stalls else {}
        box = sandbox(proxy, **limits)
        before = time.monotonic()
        with pytest.raises(SandboxStartError) as error:
            box.start()
        took = time.monotonic() - before
    assert (error.value.reason, error.value.retryable) == (reason, retryable), str(error.value)
    assert box.closed
    assert took < (5.0 + SLACK + 1 if stalls else 30)
    eventually(lambda: ours() == [], REMOVE_SECONDS + 2, "nothing is left of a start that failed")


def test_a_container_that_appears_after_a_failed_start_is_removed(
    sandbox: Callable[..., Sandbox], ours: Callable[[], list[str]], docker_image: str, mark: str
) -> None:
    with proxied(Fault(*CREATE, "stall")) as proxy, closing(docker.APIClient(version="auto")) as engine:
        box = sandbox(proxy, start_timeout=4.0, options={"timeout": CALL_SECONDS})
        with pytest.raises(SandboxStartError):
            box.start()
        engine.create_container(docker_image, ["true"], name=f"swe-gym-{box.id}", labels={"test": mark})
        eventually(lambda: ours() == [], LATE_SECONDS, "the late container is gone")


def test_a_start_that_stalls_ends_at_its_deadline(
    sandbox: Callable[..., Sandbox], ours: Callable[[], list[str]]
) -> None:
    with proxied(Fault(*START, "stall")) as proxy:
        box = sandbox(proxy, start_timeout=4.0)
        before = time.monotonic()
        with pytest.raises(SandboxStartError) as error:
            box.start()
        assert time.monotonic() - before < 4.0 + SLACK
    assert error.value.reason == "timeout"
    eventually(lambda: ours() == [], REMOVE_SECONDS + 2, "nothing is left")


def test_a_pull_ends_at_its_own_deadline(sandbox: Callable[..., Sandbox]) -> None:
    with proxied(Fault(*PULL, "stall")) as proxy:
        box = sandbox(proxy, image="nobody/nothing:1", start_timeout=600.0, options={"pull_timeout": 0.5})
        with pytest.raises(SandboxStartError, match="was not pulled in time") as error:
            box.start()
        proxy.cut()  # the thread that reads the engine's reply waits for it no longer
    assert (error.value.reason, error.value.retryable) == ("timeout", True)


def test_a_hanging_engine_delays_neither_commands_nor_close(
    sandbox: Callable[..., Sandbox], ours: Callable[[], list[str]]
) -> None:
    with proxied() as proxy:
        with sandbox(proxy) as box:
            assert box.exec("echo here").text == "here\n"
            proxy.freeze()
            before = time.monotonic()
            with pytest.raises(SandboxLost) as error:
                box.exec("echo here", timeout=1.0, grace=0.5)
            assert time.monotonic() - before < 1.5 + SLACK + 1
            assert error.value.reason == "unresponsive"
            assert box.closed
        proxy.thaw()
        eventually(lambda: ours() == [], 60, "the container is removed once the engine answers again")


def test_a_close_while_the_engine_hangs_is_bounded(
    sandbox: Callable[..., Sandbox], ours: Callable[[], list[str]]
) -> None:
    with proxied() as proxy:
        box = sandbox(proxy).start()
        proxy.freeze()
        before = time.monotonic()
        box.close()
        assert time.monotonic() - before < 10
        proxy.thaw()
        eventually(lambda: ours() == [], 60, "the container is removed once the engine answers again")


@pytest.mark.parametrize("does", ["stall", "cut", "error", "cut_reply"])
def test_a_failed_removal_leaves_nothing(
    does: Any, sandbox: Callable[..., Sandbox], ours: Callable[[], list[str]]
) -> None:
    with proxied(Fault(*REMOVE, does)) as proxy:
        box = sandbox(proxy).start()
        before = time.monotonic()
        box.close()
        assert time.monotonic() - before < 10
        eventually(lambda: ours() == [], 60, "the container ends by itself, and is removed")


def test_a_connection_that_breaks_during_a_command_is_a_loss(
    sandbox: Callable[..., Sandbox], ours: Callable[[], list[str]]
) -> None:
    with proxied() as proxy, sandbox(proxy) as box:
        command = Background(lambda: box.exec("echo half; sleep 60", timeout=90))
        box.exec("true")
        proxy.cut()
        assert command.wait(60)
        with pytest.raises(SandboxLost):
            command.result(0)
        assert box.closed
        eventually(lambda: ours() == [], 60, "its container is gone")


def test_a_truncated_reply_is_a_loss(sandbox: Callable[..., Sandbox]) -> None:
    with proxied(Fault(*ATTACH, "cut_reply", after=100_000)) as proxy, sandbox(proxy) as box:
        with pytest.raises(SandboxLost):
            box.exec("head -c 1000000 /dev/zero", timeout=30)
        assert box.closed


def test_closing_during_a_start_leaves_nothing(sandbox: Callable[..., Sandbox], ours: Callable[[], list[str]]) -> None:
    for fault in (Fault(*CREATE, "stall_reply"), Fault(*ATTACH, "stall"), Fault(*START, "stall_reply")):
        with proxied(fault) as proxy:
            box = sandbox(proxy, options={"timeout": 4.0})
            start = Background(box.start)
            eventually(lambda proxy=proxy, fault=fault: asked(proxy, fault), 60, "the start has come to the fault")
            box.close()
            assert start.wait(60)
            with pytest.raises(SandboxClosed):
                start.result(0)
        eventually(lambda: ours() == [], 60, f"nothing is left after {fault}")


def asked(proxy: DockerProxy, fault: Fault) -> bool:
    return any(request.method == fault.method and fault.path.strip("$") in request.path for request in proxy.requests)


def test_cycles_under_faults_leave_no_container_no_descriptor_and_no_thread(
    sandbox: Callable[..., Sandbox], ours: Callable[[], list[str]]
) -> None:
    faults = [
        Fault(*CREATE, "cut_reply", nth=2),
        Fault(*ATTACH, "cut", nth=3),
        Fault(*START, "error", nth=3),
        Fault(*REMOVE, "cut", nth=4),
        Fault(*ATTACH, "cut_reply", nth=6, after=400),
        Fault(*IMAGE, "error", nth=7),
    ]
    with proxied(*faults) as proxy:
        ends = [cycle(sandbox(proxy)) for _ in range(2)]
        before = descriptors_outside(proxy)
        ends += [cycle(sandbox(proxy)) for _ in range(8)]
        eventually(lambda: descriptors_outside(proxy) <= before, 60, "no descriptor is left open")
    assert set(ends) == {"SandboxStartError", "ok"}
    eventually(lambda: ours() == [], 60, "no container is left")


def cycle(box: Sandbox) -> str:
    try:
        with box:
            assert box.exec("echo here").text == "here\n"
        return "ok"
    except (SandboxStartError, SandboxLost) as error:
        return type(error).__name__


def removers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(("remove swe-gym", "pull "))]


def descriptors_outside(proxy: DockerProxy) -> int:
    """Open descriptors of this process without the proxy's."""
    return len(os.listdir("/proc/self/fd")) - len(proxy.connections)


@pytest.mark.filterwarnings(  # docker-py leaks a socket that was never connected
    r"ignore:Exception ignored in. <socket.socket fd=\d+, family=1, type=1, proto=0>"
    ":pytest.PytestUnraisableExceptionWarning"
)
def test_a_hanging_engine_blocks_neither_step_nor_reset_nor_close(docker_image: str) -> None:
    with proxied() as proxy:
        limits = {"start_timeout": 5.0, "options": {"default_image": docker_image, "base_url": proxy.base_url}}
        action = json.dumps({"name": "bash", "arguments": {"command": "true", "timeout": 1}})
        env = SweEnv("toy", backend="docker", sandbox_options=limits)
        env.reset(seed=1)
        assert env.step(action)[4]["tool_ok"]
        proxy.freeze()
        before = time.monotonic()
        _, reward, _, truncated, info = env.step(action)
        assert (reward, truncated, info["outcome"], info["reward_valid"]) == (0.0, True, "infra_failed", False)
        assert time.monotonic() - before < 1.0 + 1.0 + SLACK + 8.0
        before = time.monotonic()
        with pytest.raises(SandboxStartError):
            env.reset(seed=1)
        assert time.monotonic() - before < 5.0 + SLACK + 8.0
        before = time.monotonic()
        env.close()
        assert time.monotonic() - before < 10
