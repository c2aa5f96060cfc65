"""Interpreting the status of a pod, or a refusal of the API. Pure functions.

`status.phase` alone is not enough: a pod is "Pending" while its image does not exist, while a quota is used up, and
while all is well.
"""

import dataclasses
import datetime
from collections.abc import Iterator, Mapping
from typing import Literal

from ...errors import SandboxStartError
from ..container import NO_PYTHON
from .api import ApiError, Object


@dataclasses.dataclass(frozen=True)
class Waiting:
    """A condition that may pass by itself, of a pod or of a request to create one.

    Attributes:
        why: Description for the error at the deadline.
        reason: `SandboxStartError.reason` at the deadline.
        for_capacity: Whether it waits for room, which may never come; `capacity_timeout` limits the wait.
    """

    why: str
    reason: str = "timeout"
    for_capacity: bool = False


READY: Literal["ready"] = "ready"

CONTAINER = "sandbox"
"""Name of the sandbox's container; webhooks may add others to the pod."""

PORTABLE_PYTHON = "portable-python"
"""Name of the init container that copies a Python, and of its volume."""

UNPLUG = "unplug"
"""Name of the init container that takes the network down."""

Judgement = Literal["ready"] | Waiting | SandboxStartError


def _make_start_error(what: str, reason: str, detail: str, *, retryable: bool = False) -> SandboxStartError:
    return SandboxStartError(what, reason=reason, retryable=retryable, detail=detail)


# --- start -----------------------------------------------------------------------------------------------

WAITING_IS_FATAL: Mapping[str, tuple[str, str]] = {
    "InvalidImageName": ("image", "the image's name is invalid"),
    "ErrImageNeverPull": ("image", "the image is not on the node, and image_pull_policy is 'Never'"),
    "ImageInspectError": ("image", "the node cannot read the image"),
    "CreateContainerConfigError": ("setup", "the container's configuration refers to something missing"),
    "CreateContainerError": ("setup", "the node cannot create the container"),
    "RunContainerError": ("setup", "the node cannot run the container"),
    "CrashLoopBackOff": ("setup", "the container exits as soon as it starts"),
}
"""Permanent failures: `state.waiting.reason` -> `SandboxStartError.reason` and description."""

PULL_PROBLEMS = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable")
PULL_IS_FATAL = (
    "not found",
    "manifest unknown",
    "unauthorized",
    "denied",
    "no basic auth",
    "name unknown",
    "invalid reference",
)
PULL_IS_LIMITED = ("toomanyrequests", "too many requests", "429", "rate limit")

END_IS_RETRYABLE: Mapping[str, str] = {
    "Evicted": "capacity",
    "Preempting": "capacity",
    "OutOfcpu": "capacity",
    "OutOfmemory": "capacity",
    "OutOfephemeral-storage": "capacity",
    "OutOfpods": "capacity",
    "UnexpectedAdmissionError": "unknown",
    "NodeAffinity": "unknown",
    "NodeLost": "unknown",
    "NodeShutdown": "unknown",
    "Shutdown": "unknown",
    "Terminated": "unknown",
    "DeadlineExceeded": "timeout",
}
"""Transient failures before readiness: `status.reason` of the pod -> `SandboxStartError.reason`."""


def judge(pod: Object) -> Judgement:
    """Return whether a pod's container runs, may still run, or will never run."""
    status = pod.get("status") or {}
    name = pod["metadata"]["name"]
    before = _judge_init_containers(name, status)
    if before is not None:
        return before
    if status.get("phase") in ("Failed", "Succeeded"):
        return _judge_end(name, status)
    if "deletionTimestamp" in pod["metadata"]:
        return _make_start_error(f"pod {name} was deleted while it started", "unknown", "", retryable=True)
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    if conditions.get("DisruptionTarget", {}).get("status") == "True":
        message = conditions["DisruptionTarget"].get("message", "")
        return _make_start_error(f"pod {name} was preempted while it started", "capacity", message, retryable=True)
    for container in _containers(status):
        state = container.get("state") or {}
        if "running" in state:
            return READY
        if "terminated" in state:
            return _judge_exit(name, state["terminated"])
        if "waiting" in state:
            return _judge_waiting(name, state["waiting"], container.get("image", ""))
    return _judge_scheduling(conditions.get("PodScheduled", {}))


def _containers(status: Object) -> Iterator[Object]:
    """Yield the status of the sandbox's container, once it exists."""
    yield from (found for found in status.get("containerStatuses") or () if found.get("name") == CONTAINER)


def _judge_init_containers(name: str, status: Object) -> Judgement | None:
    """Return the problem of the first of our init containers that has not succeeded; None without one."""
    for container in status.get("initContainerStatuses") or ():
        if container.get("name") not in (PORTABLE_PYTHON, UNPLUG):
            continue
        state, image = container.get("state") or {}, container.get("image", "")
        if "waiting" in state:
            return _judge_waiting(name, state["waiting"], image)
        if (ended := state.get("terminated") or {}).get("exitCode"):
            return _judge_init_exit(name, container["name"], image, ended)
    return None


def _judge_init_exit(name: str, container: str, image: str, ended: Object) -> SandboxStartError:
    detail = ended.get("message") or ""
    if container == PORTABLE_PYTHON:
        return _make_start_error(f"pod {name}: python_image {image} has no usable Python 3", "image", detail)
    if "Operation not permitted" in detail:
        text = (
            f"pod {name} may not take its network down: close it by a NetworkPolicy and set the option network=policy"
        )
        return _make_start_error(text, "setup", detail)
    return _judge_exit(name, ended)


def _judge_waiting(name: str, waiting: Object, image: str) -> Judgement:
    reason, message = waiting.get("reason") or "", waiting.get("message") or ""
    if reason in WAITING_IS_FATAL:
        kind, words = WAITING_IS_FATAL[reason]
        return _missing_program(name, message) or _make_start_error(f"pod {name}: {words} ({reason})", kind, message)
    if reason in PULL_PROBLEMS:
        lowered = message.lower()
        if any(words in lowered for words in PULL_IS_LIMITED):
            return Waiting(f"the registry of image {image} limits the rate: {message}", "rate_limit")
        if any(words in lowered for words in PULL_IS_FATAL):
            text = f"pod {name}: image {image} cannot be pulled. Check its name and image_pull_secrets"
            return _make_start_error(text, "image", message)
        return Waiting(f"image {image} is not pulled yet: {message or reason}", "image")
    return Waiting(f"the container is being created ({message or reason or 'no reason given'})")


def _judge_scheduling(scheduled: Object) -> Judgement:
    if scheduled.get("status") == "True":
        return Waiting("it is scheduled, but its node has not reported since")
    reason, message = scheduled.get("reason") or "", scheduled.get("message") or ""
    if reason == "SchedulingGated":
        return Waiting(f"it is queued: {message or 'a scheduling gate is closed'}", "capacity")
    if reason == "Unschedulable":
        return Waiting(f"no node has room for it: {message}", "capacity", for_capacity=True)
    return Waiting(f"it is not scheduled yet {message}".rstrip())


def _judge_end(name: str, status: Object) -> SandboxStartError:
    reason, message = status.get("reason") or "", status.get("message") or ""
    if reason not in END_IS_RETRYABLE:
        for container in _containers(status):
            if ended := (container.get("state") or {}).get("terminated"):
                return _judge_exit(name, ended)
    text = f"pod {name} ended before it was ready ({reason or status['phase']})"
    return _make_start_error(text, END_IS_RETRYABLE.get(reason, "unknown"), message, retryable=True)


def _judge_exit(name: str, ended: Object) -> SandboxStartError:
    reason, message = ended.get("reason") or "", ended.get("message") or ""
    if ended.get("exitCode") == NO_PYTHON:
        text = f"pod {name}: the image has no Python 3. The option 'python_image' copies one into it"
        return _make_start_error(text, "image", message)
    if reason == "OOMKilled":
        return _make_start_error(f"pod {name}: memory_mb is too small to start", "setup", message)
    text = f"pod {name}: the container exited before it was used ({reason}, exit code {ended.get('exitCode')})"
    return _missing_program(name, message) or _make_start_error(
        text, "setup", message, retryable=reason in ("Completed", "ContainerStatusUnknown")
    )


def _missing_program(name: str, message: str) -> SandboxStartError | None:
    if "executable file not found" in message or "no such file or directory" in message:
        return _make_start_error(
            f"pod {name}: the image lacks /bin/sh or Python 3, which a sandbox needs", "image", message
        )
    return None


# --- the end ----------------------------------------------------------------------------------------------

LossReason = Literal["oom", "evicted", "expired", "killed", "unknown"]

LOSSES: Mapping[str, LossReason] = {
    "OOMKilled": "oom",
    "Evicted": "evicted",
    "Preempting": "evicted",
    "NodeShutdown": "evicted",
    "Shutdown": "evicted",
    "Terminated": "evicted",
    "DeadlineExceeded": "expired",
    "NodeLost": "unknown",
    "ContainerStatusUnknown": "unknown",
}


def loss(pod: Object) -> tuple[LossReason, str] | None:
    """Return why a ready sandbox has ended, as reason and description; None if it has not."""
    status = pod.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition["type"] == "DisruptionTarget" and condition.get("status") == "True":
            return "evicted", condition.get("message") or condition.get("reason") or ""
    if status.get("reason") in LOSSES:
        return LOSSES[status["reason"]], status.get("message") or status["reason"]
    for container in _containers(status):
        ended = (container.get("state") or {}).get("terminated")
        if ended:
            text = f"{ended.get('reason') or 'ended'}, exit code {ended.get('exitCode')}"
            return LOSSES.get(ended.get("reason") or "", "killed"), text
    if status.get("phase") in ("Failed", "Succeeded") or "deletionTimestamp" in pod["metadata"]:
        return "killed", status.get("message") or "the pod was deleted or ended"
    return None


# --- refusals of the API ----------------------------------------------------------------------------------


def judge_refusal(error: ApiError) -> Waiting | SandboxStartError:
    """Interpret a refused creation of a pod. The caller handles "AlreadyExists"."""
    if error.status == 403 and "exceeded quota" in error.message:
        return Waiting("the namespace's quota is used up", "capacity", for_capacity=True)
    if error.status == 429:
        return Waiting("the API server limits the rate", "rate_limit")
    if error.transient or error.status == 409:
        return Waiting("the API server failed", "unknown")
    return _make_start_error(f"the cluster refused to create a pod: {_advice(error)}", "setup", str(error))


def _advice(error: ApiError) -> str:
    if error.status == 401:
        return "not authenticated. Renew the credentials of the kubeconfig or of the service account"
    if error.status == 404:
        return "the namespace does not exist. Create it, or set the option 'namespace'"
    if error.status == 403 and "PodSecurity" in error.message:
        return (
            "the namespace's pod security standard forbids it. For 'baseline', close the network by a NetworkPolicy "
            "and set the backend option network=policy; for 'restricted', also set capabilities=[] and a numeric user"
        )
    if error.status == 403 and "must specify" in error.message:
        return "the namespace's quota requires limits other than CPU, memory and disk"
    if error.status == 403:
        return "not authorized. Apply the Role in docs/sandboxes/kubernetes.md"
    return "the request is invalid"


# --- leases -----------------------------------------------------------------------------------------------

TTL = "swe-gym/ttl"
START_TIMEOUT = "swe-gym/start-timeout"
"""Annotations: seconds that a pod may live, and seconds that it may take to start.

Both count from `creationTimestamp`, so only the API server's clock matters."""


def is_expired(pod: Object, *, now: float, older_than: float) -> bool:
    """Return whether a pod is abandoned.

    Args:
        pod: A pod with this package's label.
        now: Seconds since the epoch by the API server's clock.
        older_than: Seconds that an ended pod is kept for its owner to inspect.
    """
    annotations = pod["metadata"].get("annotations") or {}
    age = now - _seconds(pod["metadata"]["creationTimestamp"])
    start_timeout, ttl = _number(annotations.get(START_TIMEOUT)), _number(annotations.get(TTL))
    if start_timeout is None or ttl is None:
        return False  # created by hand
    status = pod.get("status") or {}
    if status.get("phase") in ("Succeeded", "Failed"):
        return now - _end(pod) > older_than
    if status.get("phase") == "Pending":
        return age > start_timeout + older_than
    return age > start_timeout + ttl + older_than


def _end(pod: Object) -> float:
    """Return when a pod ended; when it was created if that is unknown."""
    times: list[str | None] = [pod["metadata"]["creationTimestamp"]]
    for container in _containers(pod["status"]):
        times.append((container.get("state") or {}).get("terminated", {}).get("finishedAt"))
    return max(_seconds(text) for text in times if text)


def _seconds(text: str) -> float:
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
