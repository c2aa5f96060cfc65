"""The options of the Kubernetes backend, and the manifest of a pod that is made of them. Pure functions."""

import getpass
import re
import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from ...errors import Unsupported
from ...guests import bundle
from ...types import Frozen, JsonObject
from ..container import BOOT, KEPT_CAPABILITIES, VENV, start_command
from ..contents.pythons import PORTABLE_FOLDER, packing_program
from ..types import DEFAULT_MEMORY_MB, SandboxSpec
from .api import Object
from .status import CONTAINER, PORTABLE_PYTHON, START_TIMEOUT, TTL, UNPLUG


class ClusterOptions(Frozen):
    """The cluster, and limits on its use. Sandboxes with equal values share connections.

    The limits count over all processes of this user on this machine, the rate per process.

    Attributes:
        kubeconfig: Path of a kubeconfig; None uses `kubectl`'s, else the pod that this process runs in.
        context: Context of the kubeconfig; None is the current one.
        namespace: Namespace of the pods; None is the context's.
        capacity_timeout: Seconds that a pod may wait for room on a node or in a quota. Also the timeout for an API
            server that has never answered.
        create_rate: Maximum number of pods created per second.
        create_limit: Maximum number of concurrent creations.
        connect_limit: Maximum number of connections that are opened concurrently.
        delete_limit: Maximum number of concurrent deletions.
        backoff: Seconds before a creation is retried: the first pause and the longest.
    """

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    capacity_timeout: float = Field(default=60.0, ge=0)
    create_rate: float = Field(default=20.0, gt=0)
    create_limit: int = Field(default=16, gt=0)
    connect_limit: int = Field(default=16, gt=0)
    delete_limit: int = Field(default=16, gt=0)
    backoff: tuple[float, float] = (5.0, 60.0)


class KubernetesOptions(ClusterOptions):
    """Options of the Kubernetes backend, beside those of `ClusterOptions`.

    Attributes:
        default_image: Image of tasks that have a workspace and no image; None is `python:VERSION`.
        image_pull_policy: `imagePullPolicy` of the pod.
        image_pull_secrets: Names of `imagePullSecrets`.
        python_image: Image whose Python is copied into sandboxes whose image has none; only the runner uses it.
        running: Maximum number of commands that run at the same time, over all processes of this user on this machine;
            None is unlimited. A command that waits keeps its whole timeout, and fails with a retryable error if the
            wait exceeds it.
        waiting: Maximum number of grading sandboxes that start while a policy works and wait for its end, counted in
            the same way. Grading then starts at once, but a pod that waits holds its `requests` and counts towards
            quotas.
        activate: Python environment to put first on PATH. "auto" looks for one; an empty string keeps the image's PATH.
        network: How `network="none"` is enforced. "unplug" takes the interfaces down before the first command can run;
            "policy" relies on your NetworkPolicy for the label `swe-gym/network: none`; "open" leaves the network open
            and reports it in `capabilities`.
        capabilities: Linux capabilities of commands; all others are dropped.
        requests: `resources.requests` of the pod. By default equal to `cpus` and `memory_mb`, and minimal if those are
            not set.
        node_selector: `nodeSelector` of the pod.
        tolerations: `tolerations` of the pod.
        runtime_class: `runtimeClassName` of the pod; gVisor and Kata are runtime classes.
        priority_class: `priorityClassName` of the pod.
        service_account: `serviceAccountName` of the pod. Its token is not mounted.
        queue_name: Local queue of Kueue that admits the pods.
        labels: More labels of the pods.
        annotations: More annotations of the pods.
        owner: Label that names the owner of the pods; None is this user and machine.
        owner_reference: An entry of `metadata.ownerReferences`. The pods are deleted together with that object.
    """

    default_image: str | None = None
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    python_image: str | None = None
    running: int | None = Field(default=None, gt=0)
    waiting: int = Field(default=0, ge=0)
    activate: str = "auto"
    network: Literal["unplug", "policy", "open"] = "unplug"
    capabilities: tuple[str, ...] = KEPT_CAPABILITIES
    requests: dict[str, str] = {}
    node_selector: dict[str, str] = {}
    tolerations: tuple[JsonObject, ...] = ()
    runtime_class: str | None = None
    priority_class: str | None = None
    service_account: str | None = None
    queue_name: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner: str | None = None
    owner_reference: JsonObject | None = None


MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "swe-gym"
RUN, SANDBOX, CLAIM, OWNER, NETWORK = (f"swe-gym/{name}" for name in ("run", "sandbox", "claim", "owner", "network"))
"""Labels. Pods of one client process share a run; only the creator of a pod knows its claim."""

QUEUE_NAME = "kueue.x-k8s.io/queue-name"
KEEP_OUT_OF_LOGS = {"fluentbit.io/exclude": "true"}
"""Keeps log collectors from a standard output that carries frames, not text."""

_CAPABILITIES = """
CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE
NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN
SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE
MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE
"""
CAPABILITIES = tuple(_CAPABILITIES.split())
"""Linux capabilities in the order of the kernel's numbers."""

DEFAULT_CPUS = 2
"""Limits if the spec sets none. Requests stay minimal: most sandboxes wait most of the time."""

_LABEL = re.compile(r"[^A-Za-z0-9._-]+")


def pod_name(sandbox_id: str) -> str:
    """Return the name of a sandbox's pod."""
    return f"swe-gym-{sandbox_id}"


def unplugs(spec: SandboxSpec, options: KubernetesOptions) -> bool:
    """Return whether the sandbox takes its own network down."""
    return spec.closed and options.network == "unplug"


def check(spec: SandboxSpec, options: KubernetesOptions) -> None:
    """Check that a pod can fulfil the spec.

    Raises:
        Unsupported: The user is not a number, or a capability is unknown.
    """
    user_id(spec)
    for name in options.capabilities:
        if name not in CAPABILITIES:
            raise Unsupported(f"backend 'kubernetes': unknown capability {name!r}. Known: {', '.join(CAPABILITIES)}")


def user_id(spec: SandboxSpec) -> int | None:
    """Return the uid that runs commands; None is the image's user.

    Raises:
        Unsupported: The user is a name other than root; a pod takes only uids.
    """
    if spec.user is None or spec.user == "root":
        return None if spec.user is None else 0
    if not spec.user.isdecimal():
        raise Unsupported(f"a pod takes a uid, not the user name {spec.user!r}. Pass the uid, such as user='1000'")
    return int(spec.user)


def pod(spec: SandboxSpec, options: KubernetesOptions, *, name: str, image: str, run: str, sandbox: str) -> Object:
    """Return the manifest of a sandbox's pod.

    Args:
        spec: Specification of the sandbox.
        options: Options of the backend.
        name: Name of the pod.
        image: Image of the container.
        run: Label value shared by all pods of this client.
        sandbox: Id of the sandbox.
    """
    labels = {
        **{label(key): label(value) for key, value in spec.labels.items()},
        **options.labels,
        MANAGED_BY: MANAGER,
        RUN: run,
        SANDBOX: sandbox,
        CLAIM: uuid.uuid4().hex,
        OWNER: label(options.owner or _owner()),
        NETWORK: "none" if spec.closed else "egress",
        **({QUEUE_NAME: options.queue_name} if options.queue_name else {}),
    }
    leases = {TTL: str(_round_seconds(spec.ttl)), START_TIMEOUT: str(_round_seconds(spec.start_timeout))}
    metadata: Object = {
        "name": name,
        "labels": labels,
        "annotations": {**KEEP_OUT_OF_LOGS, **options.annotations, **leases},
    }
    if options.owner_reference:
        metadata["ownerReferences"] = [options.owner_reference]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": _pod_spec(spec, options, image)}


def _pod_spec(spec: SandboxSpec, options: KubernetesOptions, image: str) -> Object:
    chosen = {
        "nodeSelector": options.node_selector,
        "tolerations": list(options.tolerations),
        "imagePullSecrets": [{"name": name} for name in options.image_pull_secrets],
        "runtimeClassName": options.runtime_class,
        "priorityClassName": options.priority_class,
        "serviceAccountName": options.service_account,
        **_dns(spec),
    }
    security: Object = {"seccompProfile": {"type": "RuntimeDefault"}}
    uid = user_id(spec)
    if uid is not None:
        security |= {"runAsUser": uid, "runAsNonRoot": uid != 0}
    return {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": _round_seconds(spec.ttl + spec.start_timeout + 1),
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostname": "sandbox",
        "securityContext": security,
        "initContainers": list(_init_containers(spec, options, image)),
        "containers": [_container(spec, options, image)],
        "volumes": [{"name": name, "emptyDir": {}} for name in (*_own_folders(spec), *_lent(options))],
        **{key: value for key, value in chosen.items() if value},
    }


def _dns(spec: SandboxSpec) -> Object:
    """Make name lookups without a network fail at once, not after timeouts of unreachable servers."""
    return {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["127.0.0.1"]}} if spec.closed else {}


def _container(spec: SandboxSpec, options: KubernetesOptions, image: str) -> Object:
    mounts: list[Object] = [{"name": name, "mountPath": path} for name, path in _own_folders(spec).items()]
    return {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": options.image_pull_policy,
        "command": _command(BOOT),
        "workingDir": spec.workdir,
        "volumeMounts": mounts + _lent_mounts(options),
        "stdin": True,
        "stdinOnce": True,  # closes with the client, even if it is killed, which ends the runner
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": _resources(spec, options.requests),
        "securityContext": _only(options.capabilities),
    }


def _init_containers(spec: SandboxSpec, options: KubernetesOptions, image: str) -> Iterator[Object]:
    """Yield what runs before the sandbox's container, in order."""
    if options.python_image:
        yield _pack_python(spec, options)
    if unplugs(spec, options):
        yield _unplugger(spec, options, image)


def _unplugger(spec: SandboxSpec, options: KubernetesOptions, image: str) -> Object:
    """Return the init container that takes the pod's network down, as root, whoever the image's user is."""
    return {
        "name": UNPLUG,
        "image": image,
        "imagePullPolicy": options.image_pull_policy,
        "command": _command(bundle("unplug") + "\nunplug()\n"),
        "volumeMounts": _lent_mounts(options),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": _resources(spec, options.requests),
        "securityContext": {**_only(("NET_ADMIN",)), "runAsUser": 0, "runAsNonRoot": False},
    }


def _pack_python(spec: SandboxSpec, options: KubernetesOptions) -> Object:
    """Return the init container that copies a Python into a volume."""
    return {
        "name": PORTABLE_PYTHON,
        "image": options.python_image,
        "imagePullPolicy": options.image_pull_policy,
        "command": _command(packing_program()),
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in _lent(options).items()],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": _resources(spec, options.requests),
        "securityContext": _only(()),
    }


def _lent_mounts(options: KubernetesOptions) -> list[Object]:
    return [{"name": name, "mountPath": path, "readOnly": True} for name, path in _lent(options).items()]


def _lent(options: KubernetesOptions) -> dict[str, str]:
    return {PORTABLE_PYTHON: PORTABLE_FOLDER} if options.python_image else {}


def _command(program: str) -> list[str]:
    """Return the command of a container. The API would expand $(NAME)."""
    return [part.replace("$", "$$") for part in start_command(program)]


def _only(capabilities: Iterable[str]) -> Object:
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"], "add": sorted(capabilities)}}


def _own_folders(spec: SandboxSpec) -> dict[str, str]:
    """Return folders in which a non-root user puts the workspace of a task without an image."""
    return {"workdir": spec.workdir, "venv": VENV} if user_id(spec) and not spec.image else {}


def _resources(spec: SandboxSpec, requests: Mapping[str, str]) -> Object:
    """Return limits, so that no sandbox can take its node down, and requests."""
    limits = {
        "cpu": f"{max(1, round((spec.cpus or DEFAULT_CPUS) * 1000))}m",
        "memory": f"{spec.memory_mb or DEFAULT_MEMORY_MB}Mi",
        "ephemeral-storage": f"{spec.disk_mb}Mi",
    }
    # A limit without a request is requested in full, but few sandboxes fill their disk.
    reserved = {"ephemeral-storage": "0"}
    if spec.cpus is None:
        reserved["cpu"] = "10m"
    if spec.memory_mb is None:
        reserved["memory"] = "64Mi"
    return {"limits": limits, "requests": {**reserved, **requests}}


def _round_seconds(seconds: float) -> int:
    """Return whole seconds, up to the API's maximum."""
    return int(min(seconds, 2**31 - 1))


def label(text: str) -> str:
    """Turn any text into a label value: at most 63 allowed characters."""
    return _LABEL.sub("-", text)[:63].strip("-._")


def _owner() -> str:
    try:
        user: Any = getpass.getuser()
    except (OSError, KeyError):  # a uid without a name
        user = "unknown"
    return f"{user}.{socket.gethostname()}"
