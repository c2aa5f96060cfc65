"""Episodes on failing backends: each fault is a typed error in time, never an observation or a reward."""

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, SupportsFloat

import gymnasium
import pytest
from gymnasium.error import ResetNeeded

pytest.importorskip("docker")
pytest.importorskip("e2b")
pytest.importorskip("kubernetes")

from failing_backends import BACKENDS, BEFORE_THE_TESTS, Failing, tasks_file
from servers.docker_proxy import Fault
from servers.kubernetes_server import CREATING, SCHEDULED

from swe_gym.envs.registration import register_families
from swe_gym.envs.swe_env import SANDBOX_FAILED
from swe_gym.errors import SandboxStartError
from swe_gym.testing.sandbox_contract.case import eventually

register_families()

pytestmark = pytest.mark.filterwarnings(  # docker-py leaks a socket that was never connected
    r"ignore:Exception ignored in. <socket.socket fd=\d+, family=1, type=1, proto=0>"
    ":pytest.PytestUnraisableExceptionWarning"
)

Env = gymnasium.Env[str, str]
Step = tuple[str, SupportsFloat, bool, bool, dict[str, Any]]

SUBMIT = json.dumps({"name": "submit", "arguments": {}})


class Case(NamedTuple):
    """A failure of a backend.

    Attributes:
        backend: Name of the backend.
        fail: Makes the backend's tool fail permanently.
        reason: Reason of the error.
        waits: Whether the error comes at the client's deadline, because the failure is silent or retried.
    """

    backend: str
    fail: Callable[[Any], None]
    reason: str
    waits: bool = False


def engine(method: str, path: str, does: Any, **more: Any) -> Callable[[Any], None]:
    """A fault of all such requests of the Docker engine."""
    return lambda proxy: proxy.inject(Fault(method, path, does, nth=0, **more))


def server(path: str, method: str = "*", **fault: Any) -> Callable[[Any], None]:
    """A fault of all such requests of a server."""
    return lambda server: server.inject(path, method=method, times=None, **fault)


def pods_become(status: dict[str, Any]) -> Callable[[Any], None]:
    """Stops all pods at this status."""
    return lambda server: setattr(server, "life", [SCHEDULED, status])


NO_IMAGE = {"waiting": {"reason": "ErrImagePull", "message": "manifest unknown"}}
NO_NODE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}

STARTS = {
    "docker-refuses": Case("docker", engine("POST", "/containers/create", "error"), "setup"),
    "docker-limits": Case("docker", engine("POST", "/containers/create", "error", status=429), "rate_limit"),
    "docker-stalls": Case("docker", engine("POST", "/start$", "stall"), "timeout", waits=True),
    "docker-cuts": Case("docker", engine("POST", "/attach", "cut"), "unknown"),
    "docker-loses-a-reply": Case("docker", engine("POST", "/containers/create", "cut_reply"), "unknown"),
    "docker-stalls-a-reply": Case("docker", engine("POST", "/attach", "stall_reply", after=300), "timeout", waits=True),
    "kubernetes-limits": Case("kubernetes", server("*/pods", "POST", status=429), "rate_limit", waits=True),
    "kubernetes-fails": Case("kubernetes", server("*/pods", "POST", status=500), "unknown", waits=True),
    "kubernetes-forbids": Case("kubernetes", server("*/pods", "POST", status=403), "setup"),
    "kubernetes-hangs": Case("kubernetes", server("*/pods", "POST", hang=True), "unknown", waits=True),
    "kubernetes-cuts": Case("kubernetes", server("*/pods", "POST", drop=True), "unknown", waits=True),
    "kubernetes-has-no-image": Case("kubernetes", pods_become({"containerStatuses": [{"state": NO_IMAGE}]}), "image"),
    "kubernetes-has-no-room": Case("kubernetes", pods_become({"conditions": [NO_NODE]}), "capacity"),
    "kubernetes-takes-too-long": Case("kubernetes", pods_become(CREATING), "timeout", waits=True),
    "kubernetes-refuses-to-attach": Case("kubernetes", server("*/attach", drop=True), "setup", waits=True),
    "kubernetes-has-silent-pods": Case("kubernetes", lambda server: server.freeze_pods(), "timeout", waits=True),
    "e2b-refuses": Case("e2b", server("*/sandboxes", "POST", status=401), "setup"),
    "e2b-limits": Case("e2b", server("*/sandboxes", "POST", status=429), "rate_limit", waits=True),
    "e2b-has-no-template": Case("e2b", server("*/sandboxes", "POST", status=404), "image"),
    "e2b-fails": Case("e2b", server("/process.Process/Start", status=500), "unknown"),
    "e2b-hangs": Case("e2b", server("/process.Process/Connect", hang=True), "timeout", waits=True),
    "e2b-loses-replies": Case("e2b", server("*/sandboxes", "POST", lose_reply=True), "unknown"),
    "e2b-cuts-replies": Case("e2b", server("*/sandboxes", "POST", cut_after=10), "unknown"),
}
"""Failures of starts."""


def of_each_pod(does: Callable[[Any, str], None]) -> Callable[[Any], None]:
    """A fault of all pods while commands run in them."""

    def fail(server: Any) -> None:
        server.freeze_pods()  # otherwise its commands end at once
        for name in list(server.pods):
            does(server, name)

    return fail


def without_a_stream(**fault: Any) -> Callable[[Any], None]:
    """Fails all process calls of the E2B server."""

    def fail(server: Any) -> None:
        server.inject("/process.Process/*", times=None, **fault)
        server.cut_streams()

    return fail


def expire(server: Any) -> None:
    for sandbox in server.running:
        server.expire(sandbox)


def evict(server: Any, pod: str) -> None:
    server.set_status(pod, {"phase": "Failed", "reason": "Evicted", "message": "the node was low on disk"})
    server.cut(pod)


LOSSES = {
    "docker-cuts": Case("docker", lambda proxy: proxy.cut(), "killed"),
    "docker-hangs": Case("docker", lambda proxy: proxy.freeze(), "unresponsive", waits=True),
    "kubernetes-kills": Case("kubernetes", of_each_pod(lambda server, pod: server.end(pod, "OOMKilled")), "oom"),
    "kubernetes-evicts": Case("kubernetes", of_each_pod(evict), "evicted"),
    "kubernetes-deletes": Case("kubernetes", of_each_pod(lambda server, pod: server.remove(pod)), "killed"),
    "kubernetes-cuts": Case("kubernetes", of_each_pod(lambda server, pod: server.cut(pod)), "killed"),
    "kubernetes-hangs": Case("kubernetes", of_each_pod(lambda *_: None), "unresponsive", waits=True),
    "e2b-kills": Case("e2b", expire, "killed"),
    "e2b-refuses": Case("e2b", without_a_stream(status=401), "killed"),
    "e2b-fails": Case("e2b", without_a_stream(status=500), "unresponsive", waits=True),
    "e2b-loses-replies": Case("e2b", without_a_stream(lose_reply=True), "unresponsive", waits=True),
    "e2b-hangs": Case("e2b", without_a_stream(hang=True), "unresponsive", waits=True),
}
"""Failures of running sandboxes."""


def params(cases: dict[str, Case], *, waits: bool | None = None, of_each: int = 99) -> list[Any]:
    """Return parameters of a test: all cases, or those that do or do not wait for a deadline. Those that do are slow.

    All but the first of each backend, and of those that wait, are for a thorough run, if the test says so.
    """
    seen: Counter[tuple[str, bool]] = Counter()
    found = []
    for name, case in cases.items():
        seen[case.backend, case.waits] += 1
        marks = [pytest.mark.slow] * case.waits
        marks += [pytest.mark.thorough] * (seen[case.backend, case.waits] > of_each)
        if waits in (None, case.waits):
            found.append(pytest.param(case, id=name, marks=marks))
    return found


@pytest.fixture
def failing(request: pytest.FixtureRequest, case: Case, tmp_path: Path) -> Iterator[Failing]:
    """The backend of the case."""
    with BACKENDS[case.backend](request, tmp_path) as backend:
        yield backend


@pytest.fixture
def make(failing: Failing, tmp_path: Path) -> Iterator[Callable[..., Env]]:
    """Makes environments whose only task is always solved."""
    with contextlib.ExitStack() as stack:
        settings: dict[str, Any] = {"path": tasks_file(tmp_path), "backend": failing.hasty}

        def make_one(**given: Any) -> Env:
            options = {**failing.options, **given}
            return stack.enter_context(gymnasium.make("SWE/Tasks-v0", sandbox_options=options, **settings))

        yield make_one
    BEFORE_THE_TESTS.clear()


@pytest.fixture
def env(make: Callable[..., Env]) -> Env:
    """An environment in the middle of an episode."""
    env = make()
    env.reset(seed=0)
    return env


def assert_no_reward(step: Step, case: Case, error: str) -> None:
    observation, reward, terminated, truncated, info = step
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert (info["outcome"], info["reward_valid"], info["resolved"]) == ("infra_failed", False, False)
    assert info["reward_components"] == {}
    assert observation in (SANDBOX_FAILED, "The work was submitted.")
    assert info["failure"].startswith(f"{error}:" if case.reason == "unknown" else f"{error} ({case.reason}):")


def half_a_command(timeout: int) -> str:
    """An action whose command has printed something when its sandbox fails."""
    return json.dumps({"name": "bash", "arguments": {"command": "echo half; sleep 60", "timeout": timeout}})


def in_time(started: float) -> bool:
    """Whether nothing waited for the end of the command, which takes a minute."""
    return time.monotonic() - started < 50


@pytest.mark.parametrize("case", [Case(name, lambda _: None, "") for name in BACKENDS], ids=BACKENDS)
def test_a_reward_without_a_fault(failing: Failing, tmp_path: Path) -> None:
    path = tasks_file(tmp_path)
    with gymnasium.make("SWE/Tasks-v0", path=path, backend=failing.name, sandbox_options=failing.options) as env:
        env.reset(seed=0)
        _, reward, terminated, _, info = env.step(SUBMIT)
    assert (reward, terminated, info["reward_valid"]) == (1.0, True, True)


@pytest.mark.parametrize("case", params(STARTS))
def test_a_failed_start_of_an_episode(case: Case, failing: Failing, make: Callable[..., Env]) -> None:
    env = make(start_timeout=2.0) if case.waits else make()
    case.fail(failing.tool)
    started = time.monotonic()
    with pytest.raises(SandboxStartError) as error:
        env.reset()
    assert in_time(started)
    assert error.value.reason == case.reason
    with pytest.raises(ResetNeeded):
        env.step(SUBMIT)
    eventually(lambda: failing.left() == [], 60, "no sandbox is left")


@pytest.mark.parametrize("case", params(STARTS, waits=False, of_each=1))
def test_a_failed_start_of_the_judge(case: Case, failing: Failing, env: Env) -> None:
    case.fail(failing.tool)
    started = time.monotonic()
    assert_no_reward(env.step(SUBMIT), case, "SandboxStartError")
    assert in_time(started)
    eventually(lambda: failing.left() == [], 60, "no sandbox is left")


@pytest.mark.parametrize("case", params(LOSSES, waits=False))
def test_a_loss_during_a_command(case: Case, failing: Failing, env: Env) -> None:
    if failing.name == "kubernetes":
        failing.tool.freeze_pods()
    failure = threading.Timer(0.2, case.fail, [failing.tool])
    failure.start()
    started = time.monotonic()
    step = env.step(half_a_command(timeout=60))
    failure.join()
    assert in_time(started)
    assert_no_reward(step, case, "SandboxLost")


@pytest.mark.parametrize("case", params(LOSSES, waits=True))
def test_a_sandbox_that_falls_silent(case: Case, failing: Failing, env: Env) -> None:
    case.fail(failing.tool)
    started = time.monotonic()
    assert_no_reward(env.step(half_a_command(timeout=1)), case, "SandboxLost")
    assert in_time(started)


@pytest.mark.parametrize("case", params(LOSSES, waits=False, of_each=1))
def test_a_loss_before_the_patch_is_taken(case: Case, failing: Failing, env: Env) -> None:
    case.fail(failing.tool)
    started = time.monotonic()
    assert_no_reward(env.step(SUBMIT), case, "SandboxLost")
    assert in_time(started)


@pytest.mark.parametrize("case", params(LOSSES, of_each=1))
def test_a_loss_before_the_hidden_tests(case: Case, failing: Failing, env: Env) -> None:
    BEFORE_THE_TESTS.append(lambda: case.fail(failing.tool))
    started = time.monotonic()
    assert_no_reward(env.step(SUBMIT), case, "SandboxLost")
    assert BEFORE_THE_TESTS == []
    assert in_time(started)
