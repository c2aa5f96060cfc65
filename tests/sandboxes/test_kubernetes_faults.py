"""The Kubernetes backend against a server with faults: each fault is the right error in time."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from servers.kubernetes_server import CREATING, RUNNING, SCHEDULED, KubernetesServer

from swe_gym.errors import SandboxClosed, SandboxError, SandboxLost, SandboxStartError, UsageError
from swe_gym.sandboxes import SandboxSpec
from swe_gym.testing.loopback import Exchange
from swe_gym.testing.sandbox_contract.case import Background

pytest.importorskip("kubernetes")

from swe_gym.sandboxes.kubernetes import KubernetesSandbox, sweep

Make = Callable[..., KubernetesSandbox]


@pytest.fixture
def server() -> Iterator[KubernetesServer]:
    with KubernetesServer() as server:
        yield server


@pytest.fixture
def make(server: KubernetesServer, tmp_path: Path) -> Iterator[Make]:
    made: list[KubernetesSandbox] = []
    kubeconfig = server.kubeconfig(tmp_path)

    def make_one(start: bool = True, start_timeout: float = 20.0, **options: Any) -> KubernetesSandbox:
        given = {"kubeconfig": kubeconfig, "backoff": (0.05, 0.2), **options}
        made.append(KubernetesSandbox(SandboxSpec(image="any", start_timeout=start_timeout, options=given)))
        return made[-1].start() if start else made[-1]

    yield make_one
    for sandbox in made:
        sandbox.close()


class PairedDeletions(KubernetesServer):
    """Replies to a deletion once another one has arrived.

    Attributes:
        most: Most deletions that were open at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.most = self._open = 0
        self._pair = threading.Barrier(2)
        self._counting = threading.Lock()

    def answer(self, exchange: Exchange) -> None:
        if exchange.asked.method != "DELETE":
            return super().answer(exchange)
        with self._counting:
            self._open += 1
            self.most = max(self.most, self._open)
        self._pair.wait(60)
        with self._counting:
            self._open -= 1
        return super().answer(exchange)


def start_error(make: Make, **options: Any) -> SandboxStartError:
    with pytest.raises(SandboxStartError) as caught:
        make(**options)
    return caught.value


def creations(server: KubernetesServer) -> int:
    return sum(request.method == "POST" for request in server.requests)


def pause_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        pause.wait(0.02)


def test_a_sandbox_works_and_leaves_nothing(server: KubernetesServer, make: Make) -> None:
    sandbox = make()
    assert len(server.pods) == 1
    asked = len(server.requests)
    for _ in range(20):
        assert sandbox.exec(["echo", "hello"]).text == "echo hello"
    assert len(server.requests) == asked, "a command called the API"
    sandbox.close()
    assert not server.pods


def test_version_5_of_the_protocol(tmp_path: Path) -> None:
    with KubernetesServer(protocol="v5.channel.k8s.io") as server:
        options = {"kubeconfig": server.kubeconfig(tmp_path)}
        with KubernetesSandbox(SandboxSpec(image="any", options=options)) as sandbox:
            assert sandbox.exec(["echo", "hello"]).text == "echo hello"


# --- creation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param({"status": 429, "headers": {"Retry-After": "0"}, "times": 3}, id="too-many-requests"),
        pytest.param({"status": 500, "times": 3}, id="server-error"),
        pytest.param({"status": 503, "times": 3}, id="unavailable"),
        pytest.param({"status": 409, "message": "the object has been modified"}, id="conflict"),
        pytest.param({"drop": True}, id="cut-before"),
        pytest.param({"lose_reply": True}, id="reply-lost"),
        pytest.param({"status": 504, "done": True}, id="carried-out-and-timed-out"),
        pytest.param({"status": 403, "message": "exceeded quota: pods=10", "times": 2}, id="quota-frees-up"),
    ],
)
def test_creation_recovers(server: KubernetesServer, make: Make, fault: dict[str, Any]) -> None:
    server.inject("*/pods", method="POST", **fault)
    sandbox = make()
    assert len(server.pods) == 1, "a retry created a second pod"
    assert creations(server) > 1
    sandbox.close()
    assert not server.pods


@pytest.mark.sample(every=3)
@pytest.mark.parametrize(
    ("fault", "reason", "retryable", "words"),
    [
        ({"status": 429}, "rate_limit", True, "could not be created"),
        ({"status": 500}, "unknown", True, "could not be created"),
        ({"status": 403, "message": "exceeded quota: pods=10"}, "capacity", True, "quota is used up"),
    ],
)
def test_creation_gives_up_in_time(
    server: KubernetesServer, make: Make, fault: dict[str, Any], reason: str, retryable: bool, words: str
) -> None:
    server.inject("*/pods", method="POST", times=None, **fault)
    started = time.monotonic()
    error = start_error(make, start_timeout=3.0, capacity_timeout=2.0)
    assert time.monotonic() - started < 50.0
    assert (error.reason, error.retryable) == (reason, retryable)
    assert words in str(error)
    assert creations(server) > 1
    assert not server.pods


def test_a_cluster_that_never_answered_fails_before_the_deadline(server: KubernetesServer, make: Make) -> None:
    server.inject("*", drop=True, times=None)
    error = start_error(make, start_timeout=600.0, capacity_timeout=2.0)
    assert error.retryable
    assert f"no Kubernetes API answers at {server.url}. Check that it is up and that the context is right" in str(error)
    assert creations(server) > 1


@pytest.mark.parametrize(
    ("status", "message", "words"),
    [
        (401, "Unauthorized", "Renew the credentials"),
        (403, 'User "x" cannot create resource "pods"', "Apply the Role"),
        (403, 'violates PodSecurity "baseline:latest": NET_ADMIN', "network=policy"),
        (403, "failed quota: gpus: must specify limits.example.com/gpu", "quota requires limits"),
        (404, 'namespaces "tests" not found', "the namespace does not exist"),
        (422, "spec.containers: Invalid value", "the request is invalid"),
    ],
)
def test_refusals_fail_at_once(server: KubernetesServer, make: Make, status: int, message: str, words: str) -> None:
    server.inject("*/pods", method="POST", status=status, message=message, times=None)
    error = start_error(make)
    assert (error.reason, error.retryable) == ("setup", False)
    assert words in str(error)
    assert message in error.detail
    assert creations(server) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "method", "path"), [("create_limit", "POST", "*/pods"), ("connect_limit", "GET", "*/attach")]
)
def test_a_limit_holds_over_all_sandboxes(
    server: KubernetesServer, make: Make, option: str, method: str, path: str
) -> None:
    fault = server.inject(path, method=method, hang=True)
    hanging = Background(lambda: make(**{option: 1}))
    pause_until(lambda: fault.times == 0)
    error = start_error(make, start_timeout=1.0, **{option: 1})
    assert (error.reason, error.retryable) == ("capacity", True)
    assert "all 1 places of the gate" in str(error)
    server.close()  # ends the request
    with pytest.raises(SandboxError):
        hanging.result(60)


def test_deletions_are_limited(tmp_path: Path) -> None:
    """Two at once are let through: each waits for another one, and there are never three."""
    with PairedDeletions() as server:
        options = {"kubeconfig": server.kubeconfig(tmp_path), "delete_limit": 2}
        sandboxes = [KubernetesSandbox(SandboxSpec(image="any", options=options)).start() for _ in range(4)]
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(KubernetesSandbox.close, sandboxes))
        assert not server.pods
        assert server.most == 2


def test_creations_per_second_are_limited(make: Make) -> None:
    make(create_rate=0.001)
    error = start_error(make, create_rate=0.001)
    assert "too many others are waiting to be created" in str(error)


def test_retry_after_is_honoured(server: KubernetesServer, make: Make) -> None:
    server.inject("*/pods", method="POST", status=429, headers={"Retry-After": "1"})
    started = time.monotonic()
    make(backoff=(60.0, 60.0))
    assert 1.0 <= time.monotonic() - started < 50.0


def test_a_foreign_pod_of_the_same_name_is_left_alone(server: KubernetesServer, make: Make) -> None:
    sandbox = make(start=False)
    name = f"swe-gym-{sandbox.id}"
    server.create({"metadata": {"name": name, "labels": {}}, "spec": {"containers": [{"name": "x", "image": "y"}]}})
    with pytest.raises(SandboxStartError, match="is not ours") as caught:
        sandbox.start()
    assert caught.value.retryable
    assert set(server.pods) == {name}


# --- readiness ---------------------------------------------------------------------------------------------


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {**SCHEDULED, "containerStatuses": [{"state": state}]}


def test_a_bad_image_fails_at_once(server: KubernetesServer, make: Make) -> None:
    server.life = [SCHEDULED, CREATING, waiting("ErrImagePull", "manifest for any:latest not found: manifest unknown")]
    started = time.monotonic()
    error = start_error(make, start_timeout=600.0)
    assert time.monotonic() - started < 50.0
    assert (error.reason, error.retryable) == ("image", False)
    assert "manifest unknown" in error.detail
    assert not server.pods


def test_a_delayed_image_pull(server: KubernetesServer, make: Make) -> None:
    server.life = [waiting("ErrImagePull", "connection reset"), waiting("ImagePullBackOff"), RUNNING]
    assert make().exec(["x"]).ok


@pytest.mark.slow
def test_a_rate_limited_registry(server: KubernetesServer, make: Make) -> None:
    server.life = [waiting("ErrImagePull", "toomanyrequests: You have reached your pull rate limit")]
    error = start_error(make, start_timeout=3.0)
    assert (error.reason, error.retryable) == ("rate_limit", True)


def test_no_room_on_any_node(server: KubernetesServer, make: Make) -> None:
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    server.life = [{"phase": "Pending", "conditions": [unschedulable]}]
    error = start_error(make, capacity_timeout=0.3)
    assert (error.reason, error.retryable) == ("capacity", True)
    assert "0/3 nodes" in str(error)
    assert not server.pods


def test_a_queued_pod_is_waited_for(server: KubernetesServer, make: Make) -> None:
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    server.life = [{"phase": "Pending", "conditions": [gated]}]
    sandbox = make(start=False, capacity_timeout=0.0)
    starting = threading.Thread(target=sandbox.start)
    starting.start()
    pause_until(lambda: bool(server.pods))
    server.set_status(f"swe-gym-{sandbox.id}", RUNNING)
    starting.join(60)
    assert sandbox.exec(["x"]).ok


@pytest.mark.slow
def test_a_timeout_names_the_last_state(server: KubernetesServer, make: Make) -> None:
    server.life = [SCHEDULED, CREATING]
    error = start_error(make, start_timeout=3.0)
    assert (error.reason, error.retryable) == ("timeout", True)
    assert "ContainerCreating" in str(error)
    assert not server.pods


def test_history_is_compacted_while_a_pod_starts(server: KubernetesServer, make: Make) -> None:
    server.life = [SCHEDULED]
    sandbox = make(start=False)
    starting = threading.Thread(target=sandbox.start)
    starting.start()
    pause_until(lambda: bool(server.pods))
    server.compact()
    server.set_status(f"swe-gym-{sandbox.id}", RUNNING)
    server.compact()
    starting.join(60)
    assert sandbox.exec(["x"]).ok


@pytest.mark.parametrize("fault", [{"status": 410}, {"status": 429}, {"status": 500}, {"drop": True}], ids=str)
def test_refused_watches_are_reopened(server: KubernetesServer, make: Make, fault: dict[str, Any]) -> None:
    server.inject("*watch=true*", times=2, **fault)
    assert make().exec(["x"]).ok


def test_lists_replace_a_watch_that_always_fails(server: KubernetesServer, make: Make) -> None:
    server.life = [SCHEDULED]
    server.inject("*watch=true*", status=500, times=None)
    sandbox = make(start=False)
    starting = threading.Thread(target=sandbox.start)
    starting.start()
    pause_until(lambda: bool(server.pods))
    server.set_status(f"swe-gym-{sandbox.id}", RUNNING)
    starting.join(60)
    assert sandbox.exec(["x"]).ok


@pytest.mark.slow
def test_a_half_open_watch_is_noticed(server: KubernetesServer, make: Make) -> None:
    server.life = [SCHEDULED]
    sandbox = make(start=False, start_timeout=60.0)
    starting = threading.Thread(target=sandbox.start)
    starting.start()
    pause_until(lambda: bool(server._watches))
    pause_until(lambda: bool(server.pods))
    server.freeze_watches()
    server.set_status(f"swe-gym-{sandbox.id}", RUNNING)
    starting.join(60)
    assert sandbox.exec(["x"]).ok


def test_a_forbidden_watch_is_an_error(server: KubernetesServer, make: Make) -> None:
    server.life = [SCHEDULED]
    server.inject("*labelSelector*", status=403, message="cannot list", times=None)
    error = start_error(make)
    assert (error.reason, error.retryable) == ("setup", False)
    assert "get, list and watch" in str(error)
    assert not server.pods


def test_a_pod_that_is_deleted_during_the_start(server: KubernetesServer, make: Make) -> None:
    server.life = [SCHEDULED]
    sandbox = make(start=False)
    threading.Thread(target=lambda: (pause_until(lambda: bool(server.pods)), server.remove(*server.pods))).start()
    with pytest.raises(SandboxStartError, match="was deleted") as caught:
        sandbox.start()
    assert caught.value.retryable


# --- attaching ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [{"status": 500}, {"status": 502}, {"status": 429}, {"drop": True}], ids=str)
def test_attaching_recovers(server: KubernetesServer, make: Make, fault: dict[str, Any]) -> None:
    server.inject("*/attach", times=2, **fault)
    assert make().exec(["x"]).ok


def test_a_forbidden_attach_is_an_error(server: KubernetesServer, make: Make) -> None:
    server.inject("*/attach", status=403, message="cannot get pods/attach", times=None)
    error = start_error(make)
    assert (error.reason, error.retryable) == ("setup", False)
    assert "pods/attach" in str(error)
    assert not server.pods


def test_a_hanging_handshake(server: KubernetesServer, make: Make) -> None:
    server.inject("*/attach", hang=True, times=None)
    started = time.monotonic()
    assert start_error(make, start_timeout=1.0).retryable
    assert time.monotonic() - started < 50.0
    assert not server.pods


# --- deletion -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({"reason": "OOMKilled"}, "oom"),
        ({"reason": "Error"}, "killed"),
    ],
)
def test_a_loss_has_the_cluster_s_reason(
    server: KubernetesServer, make: Make, status: dict[str, str], reason: str
) -> None:
    sandbox = make()
    server.end(f"swe-gym-{sandbox.id}", **status)
    with pytest.raises(SandboxLost) as caught:
        sandbox.exec(["x"])
    assert caught.value.reason == reason
    assert caught.value.retryable
    assert not server.pods


def test_an_evicted_pod(server: KubernetesServer, make: Make) -> None:
    sandbox = make()
    name = f"swe-gym-{sandbox.id}"
    server.set_status(name, {"phase": "Failed", "reason": "Evicted", "message": "the node was low on disk"})
    server.cut(name)
    with pytest.raises(SandboxLost, match="low on disk") as caught:
        sandbox.exec(["x"])
    assert caught.value.reason == "evicted"


def test_a_pod_deleted_by_another_client(server: KubernetesServer, make: Make) -> None:
    sandbox = make()
    server.remove(f"swe-gym-{sandbox.id}")
    started = time.monotonic()
    with pytest.raises(SandboxLost) as caught:
        sandbox.exec(["x"])
    assert caught.value.reason == "killed"
    assert time.monotonic() - started < 50.0


def test_a_cut_connection_is_a_loss(server: KubernetesServer, make: Make) -> None:
    sandbox = make()
    server.cut(f"swe-gym-{sandbox.id}")
    started = time.monotonic()
    with pytest.raises(SandboxLost):
        sandbox.exec(["x"])
    assert time.monotonic() - started < 50.0
    assert sandbox.closed
    assert not server.pods


@pytest.mark.parametrize(
    "fault", [{"status": 500}, {"status": 429}, {"drop": True}, {"lose_reply": True}, None], ids=str
)
def test_close_never_raises_and_the_pod_is_deleted_later(
    server: KubernetesServer, make: Make, fault: dict[str, Any] | None
) -> None:
    sandbox = make()
    if fault is None:
        server.pods.clear()
    else:
        server.inject("*/pods/*", method="DELETE", **fault)
    sandbox.close()
    pause_until(lambda: not server.pods, 60.0)


@pytest.mark.slow
def test_close_is_bounded(server: KubernetesServer, make: Make) -> None:
    sandbox = make()
    server.inject("*/pods/*", method="DELETE", hang=True)
    started = time.monotonic()
    sandbox.close()
    assert time.monotonic() - started < 10.0


def test_close_ends_a_start(server: KubernetesServer, make: Make) -> None:
    server.life = [SCHEDULED]
    sandbox = make(start=False, start_timeout=600.0)
    errors: list[SandboxError] = []

    def start() -> None:
        try:
            sandbox.start()
        except SandboxError as error:
            errors.append(error)

    starting = threading.Thread(target=start)
    starting.start()
    pause_until(lambda: bool(server.pods))
    sandbox.close()
    starting.join(60)
    assert [type(error) for error in errors] == [SandboxClosed]
    assert not server.pods


@pytest.mark.slow
def test_close_while_the_creation_hangs_leaves_no_pod(server: KubernetesServer, make: Make) -> None:
    server.inject("*/pods", method="POST", delay=2.0, lose_reply=True)
    sandbox = make(start=False)
    failed = threading.Event()

    def start() -> None:
        with pytest.raises(SandboxError):
            sandbox.start()
        failed.set()

    starting = threading.Thread(target=start)
    starting.start()
    pause_until(lambda: bool(creations(server)))
    sandbox.close()
    starting.join(60)
    assert failed.is_set()
    pause_until(lambda: any(request.method == "DELETE" for request in server.requests), 60.0)
    pause_until(lambda: not server.pods, 60.0)


@pytest.mark.slow
def test_many_threads_and_many_faults(server: KubernetesServer, make: Make) -> None:
    for method, path in (("POST", "*/pods"), ("GET", "*watch=true*"), ("GET", "*/attach"), ("DELETE", "*/pods/*")):
        for fault in ({"status": 429}, {"status": 500}, {"drop": True}):
            server.inject(path, method=method, times=2, **fault)
    done: list[bool] = []

    def play() -> None:
        for _ in range(3):
            sandbox = make(start_timeout=60.0)
            assert sandbox.exec(["x"]).text == "x"
            sandbox.close()
        done.append(True)

    threads = [threading.Thread(target=play) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(done) == 8
    pause_until(lambda: not server.pods, 60.0)


# --- logging ------------------------------------------------------------------------------------------------


def test_retries_and_losses_are_logged(server: KubernetesServer, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    server.inject("*/pods", method="POST", status=503)
    server.inject("*/attach", status=500)
    sandbox = make()
    server.end(f"swe-gym-{sandbox.id}", "OOMKilled")
    with pytest.raises(SandboxLost):
        sandbox.exec(["x"])
    warnings = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    told = [text for text in warnings if sandbox.id in text]  # threads of other clusters may still log
    for words in ("was not created; retrying", "attaching to pod", "was lost during exec (oom)"):
        assert any(words in text for text in told), told


def test_an_error_of_the_watching_thread_is_logged(
    server: KubernetesServer, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    server.inject("*labelSelector*", status=200, body={"items": []})  # without the version that the thread needs
    assert make().exec(["x"]).ok
    said = "the watching thread of namespace tests failed; retrying"
    record, *_ = [one for one in caplog.records if one.levelno == logging.ERROR and said in one.getMessage()]
    assert record.exc_info is not None


# --- the sweep ----------------------------------------------------------------------------------------------


def test_sweep_deletes_only_abandoned_pods(server: KubernetesServer, make: Make) -> None:
    ended, running = make(), make()
    foreign = {"metadata": {"name": "foreign", "labels": {}}, "spec": {"containers": [{"name": "x", "image": "y"}]}}
    server.create(foreign)
    for name in (f"swe-gym-{ended.id}", "foreign"):
        server.end(name, "Completed", 0)
    options = running.options
    assert sweep(options) == [], "the owner may still inspect a pod that has just ended"
    assert sweep(options, older_than=-5.0) == [f"swe-gym-{ended.id}"]
    assert set(server.pods) == {f"swe-gym-{running.id}", "foreign"}


def test_a_refused_sweep(server: KubernetesServer, tmp_path: Path) -> None:
    server.inject("*/pods", status=403, message="cannot list")
    with pytest.raises(SandboxError, match="verbs list and delete"):
        KubernetesSandbox.sweep({"kubeconfig": server.kubeconfig(tmp_path)})


# --- configuration ------------------------------------------------------------------------------------------


def test_unknown_context(server: KubernetesServer, tmp_path: Path) -> None:
    options = {"kubeconfig": server.kubeconfig(tmp_path), "context": "no-such"}
    with pytest.raises(UsageError, match="no-such"):
        KubernetesSandbox(SandboxSpec(image="any", options=options)).start()


def test_no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    options = {"kubeconfig": str(tmp_path / "nothing")}
    with pytest.raises(UsageError, match="no Kubernetes cluster is configured"):
        KubernetesSandbox(SandboxSpec(image="any", options=options)).start()


def test_unknown_option() -> None:
    with pytest.raises(UsageError, match="namespace"):
        KubernetesSandbox(SandboxSpec(options={"namspace": "x"}))


def test_an_unreachable_server(tmp_path: Path, server: KubernetesServer) -> None:
    path = Path(server.kubeconfig(tmp_path))
    path.write_text(path.read_text().replace(server.url, "http://127.0.0.1:1"))
    options = {"kubeconfig": str(path), "backoff": (0.1, 0.2)}
    with pytest.raises(SandboxStartError) as caught:
        KubernetesSandbox(SandboxSpec(image="any", start_timeout=1.0, options=options)).start()
    assert caught.value.retryable
    assert "refused" in str(caught.value)
