"""Interpreting the status of pods and refusals of the API."""

from typing import Any

import pytest

from swe_gym.errors import SandboxStartError

pytest.importorskip("kubernetes")

from swe_gym.sandboxes.kubernetes.api import ApiError
from swe_gym.sandboxes.kubernetes.status import Waiting, is_expired, judge, judge_refusal, loss

Object = dict[str, Any]


def pod(*, container: Object | None = None, conditions: list[Object] | None = None, **status: Any) -> Object:
    if container is not None:
        sidecar = {"name": "added-by-a-webhook", "state": {"running": {}}}
        status["containerStatuses"] = [sidecar, {"name": "sandbox", "image": "img:1", "state": container}]
    return {"metadata": {"name": "p"}, "status": {"conditions": conditions or [], **status}}


def waiting(reason: str, message: str = "") -> Object:
    return pod(phase="Pending", container={"waiting": {"reason": reason, "message": message}})


def unscheduled(reason: str, message: str = "") -> Object:
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return pod(phase="Pending", conditions=[condition])


def ended(reason: str, code: int, message: str = "", phase: str = "Failed") -> Object:
    return pod(phase=phase, container={"terminated": {"reason": reason, "exitCode": code, "message": message}})


def copying(state: Object, **status: Any) -> Object:
    made = pod(phase="Pending", container={"waiting": {"reason": "PodInitializing"}})
    made["status"] |= {
        "initContainerStatuses": [{"name": "portable-python", "image": "with-python:1", "state": state}],
        **status,
    }
    return made


def test_ready_is_a_running_container() -> None:
    assert judge(pod(phase="Running", container={"running": {"startedAt": "now"}})) == "ready"
    only_a_sidecar_runs = pod(phase="Pending", container={"waiting": {"reason": "ContainerCreating"}})
    assert isinstance(judge(only_a_sidecar_runs), Waiting)


@pytest.mark.parametrize(
    ("state", "reason", "retryable", "words"),
    [
        (waiting("InvalidImageName"), "image", False, "name is invalid"),
        (waiting("ErrImageNeverPull"), "image", False, "'Never'"),
        (waiting("ErrImagePull", "manifest for img:1 not found: manifest unknown"), "image", False, "img:1"),
        (waiting("ErrImagePull", "pull access denied, repository does not exist"), "image", False, "cannot be pulled"),
        (waiting("ErrImagePull", "unauthorized: authentication required"), "image", False, "image_pull_secrets"),
        (waiting("ImagePullBackOff", 'name unknown: repository "x"'), "image", False, "cannot be pulled"),
        (waiting("CreateContainerConfigError", 'secret "x" not found'), "setup", False, "configuration"),
        (waiting("CreateContainerError", "no space"), "setup", False, "cannot create"),
        (waiting("RunContainerError", 'exec: "/bin/sh": executable file not found'), "image", False, "/bin/sh"),
        (waiting("CrashLoopBackOff"), "setup", False, "as soon as it starts"),
        (ended("Error", 97, "no Python found in the image"), "image", False, "no Python 3"),
        (ended("ContainerCannotRun", 127, 'exec: "/bin/sh": no such file or directory'), "image", False, "/bin/sh"),
        (copying({"terminated": {"exitCode": 97}}, phase="Failed"), "image", False, "python_image with-python:1"),
        (copying({"waiting": {"reason": "ErrImageNeverPull"}}), "image", False, "'Never'"),
        (ended("OOMKilled", 137), "setup", False, "memory_mb"),
        (ended("Error", 1, "Operation not permitted"), "setup", False, "exit code 1"),
        (ended("Completed", 0, phase="Succeeded"), "setup", True, "before it was used"),
        (pod(phase="Failed", reason="Evicted", message="low on disk"), "capacity", True, "Evicted"),
        (pod(phase="Failed", reason="OutOfmemory"), "capacity", True, "OutOfmemory"),
        (pod(phase="Failed", reason="NodeLost"), "unknown", True, "NodeLost"),
        (pod(phase="Failed", reason="UnexpectedAdmissionError"), "unknown", True, "UnexpectedAdmissionError"),
        (pod(phase="Failed", reason="DeadlineExceeded"), "timeout", True, "DeadlineExceeded"),
        (pod(phase="Failed"), "unknown", True, "Failed"),
        (
            pod(phase="Pending", conditions=[{"type": "DisruptionTarget", "status": "True", "message": "preempted"}]),
            "capacity",
            True,
            "preempted",
        ),
        ({**pod(), "metadata": {"name": "p", "deletionTimestamp": "now"}}, "unknown", True, "deleted"),
    ],
)
def test_permanent_failures(state: Object, reason: str, retryable: bool, words: str) -> None:
    judged = judge(state)
    assert isinstance(judged, SandboxStartError)
    assert (judged.reason, judged.retryable) == (reason, retryable)
    assert words in str(judged)


@pytest.mark.parametrize(
    ("state", "reason", "for_capacity", "words"),
    [
        ({"metadata": {"name": "p"}}, "timeout", False, "scheduled"),
        (unscheduled("Unschedulable", "0/3 nodes are available"), "capacity", True, "0/3 nodes"),
        (unscheduled("SchedulingGated"), "capacity", False, "queued"),
        (pod(conditions=[{"type": "PodScheduled", "status": "True"}]), "timeout", False, "it is scheduled"),
        (waiting("ContainerCreating"), "timeout", False, "ContainerCreating"),
        (waiting("PodInitializing"), "timeout", False, "PodInitializing"),
        (waiting("ImagePullBackOff", 'Back-off pulling image "img:1"'), "image", False, "img:1"),
        (waiting("ErrImagePull", "net/http: TLS handshake timeout"), "image", False, "TLS handshake"),
        (waiting("ErrImagePull", "toomanyrequests: You have reached"), "rate_limit", False, "limits the rate"),
        (waiting("RegistryUnavailable"), "image", False, "is not pulled yet"),
    ],
)
def test_transient_conditions(state: Object, reason: str, for_capacity: bool, words: str) -> None:
    judged = judge(state)
    assert isinstance(judged, Waiting)
    assert (judged.reason, judged.for_capacity) == (reason, for_capacity)
    assert words in judged.why


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (ended("OOMKilled", 137), "oom"),
        (ended("Error", 137), "killed"),
        (ended("Completed", 0, phase="Succeeded"), "killed"),
        (ended("ContainerStatusUnknown", 137), "unknown"),
        (pod(phase="Failed", reason="Evicted"), "evicted"),
        (pod(phase="Failed", reason="Shutdown"), "evicted"),
        (pod(phase="Failed", reason="DeadlineExceeded"), "expired"),
        (pod(phase="Running", conditions=[{"type": "DisruptionTarget", "status": "True"}]), "evicted"),
        ({**pod(phase="Running"), "metadata": {"name": "p", "deletionTimestamp": "now"}}, "killed"),
    ],
)
def test_losses(state: Object, reason: str) -> None:
    found = loss(state)
    assert found is not None
    assert found[0] == reason


def test_no_loss() -> None:
    assert loss(pod(phase="Running", container={"running": {}})) is None


@pytest.mark.parametrize(
    ("status", "message", "reason", "for_capacity"),
    [
        (403, 'pods "p" is forbidden: exceeded quota: compute, requested: pods=1', "capacity", True),
        (429, "too many requests", "rate_limit", False),
        (500, "etcdserver: leader changed", "unknown", False),
        (503, "", "unknown", False),
        (0, "connection reset", "unknown", False),
        (409, "Operation cannot be fulfilled on resourcequotas: the object has been modified", "unknown", False),
    ],
)
def test_transient_refusals(status: int, message: str, reason: str, for_capacity: bool) -> None:
    judged = judge_refusal(ApiError(status, "", message))
    assert isinstance(judged, Waiting)
    assert (judged.reason, judged.for_capacity) == (reason, for_capacity)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_permanent_refusals(status: int) -> None:
    judged = judge_refusal(ApiError(status, "", "no"))
    assert isinstance(judged, SandboxStartError)
    assert (judged.reason, judged.retryable) == ("setup", False)


NOON = 1_700_000_000.0
CREATED = "2023-11-14T22:13:20Z"


def leased(phase: str, *, ended_at: str | None = None, annotations: Object | None = None) -> Object:
    leases = {"swe-gym/ttl": "3600", "swe-gym/start-timeout": "600"}
    metadata = {
        "name": "p",
        "creationTimestamp": CREATED,
        "annotations": leases if annotations is None else annotations,
    }
    terminated = {"terminated": {"finishedAt": ended_at}} if ended_at else {"running": {}}
    return {
        "metadata": metadata,
        "status": {"phase": phase, "containerStatuses": [{"name": "sandbox", "state": terminated}]},
    }


@pytest.mark.parametrize(
    ("state", "seconds", "over"),
    [
        (leased("Running"), 4000, False),
        (leased("Running"), 4261, True),
        (leased("Pending"), 600, False),
        (leased("Pending"), 661, True),
        (leased("Succeeded", ended_at="2023-11-14T22:14:20Z"), 100, False),
        (leased("Succeeded", ended_at="2023-11-14T22:14:20Z"), 121, True),
        (leased("Failed"), 61, True),
        (leased("Failed", annotations={}), 10**9, False),
        (leased("Running", annotations={"swe-gym/ttl": "x", "swe-gym/start-timeout": "1"}), 10**9, False),
    ],
)
def test_leases(state: Object, seconds: float, over: bool) -> None:
    assert is_expired(state, now=NOON + seconds, older_than=60.0) is over
