"""The pod of a sandbox, as the API takes it, and the program that is sent to its first process. Pure."""

import getpass
import re
import socket
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import Unsupported
from ...guests import bundle
from ..base import SandboxSpec
from ..container import VENV, start_command
from ..lent_python import PLACE, lender
from ..runner_sandbox import runner_source
from .api import Object
from .options import KubernetesOptions
from .status import CONTAINER, LENT_PYTHON, START_TIMEOUT, TTL

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "swe-gym"
RUN, SANDBOX, CLAIM, OWNER, NETWORK = (f"swe-gym/{name}" for name in ("run", "sandbox", "claim", "owner", "network"))
"""Labels. All pods of one client process share a run; a claim is known to the one who made the pod, and nobody else."""

QUEUE_NAME = "kueue.x-k8s.io/queue-name"
KEEP_OUT_OF_LOGS = {"fluentbit.io/exclude": "true"}
"""Standard output carries frames, not text: collectors of logs have no use for it."""

_CAPABILITIES = """
CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE
NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN
SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE
MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE
"""
CAPABILITIES = tuple(_CAPABILITIES.split())
"""Names in the order of the kernel's numbers."""

TO_UNPLUG = ("NET_ADMIN", "SETPCAP")

BOOT = """\
import os, select, sys
def read(size):
    data = b""
    while len(data) < size:
        ready = select.select([0], [], [], {patience})[0]
        piece = os.read(0, size - len(data)) if ready else b""
        if not piece:
            sys.exit("nobody came for this sandbox")
        data += piece
    return data
exec(compile(read(int(read(8))), "sandbox", "exec"), {{"__name__": "sandbox"}})
"""
"""The first program: takes the real one from standard input, so that the pod stays small. It gives up by itself where
nobody attaches, as when the client died in between."""

DEFAULT_CPUS, DEFAULT_MEMORY_MB = 2, 4096
"""Limits where the spec says nothing. Next to nothing is reserved for them: most sandboxes wait most of the time."""

ATTACH_SECONDS = 60
"""How long a container that runs waits for its client, who may have died meanwhile."""

_LABEL = re.compile(r"[^A-Za-z0-9._-]+")


def pod_name(sandbox_id: str) -> str:
    """The name of a sandbox's pod."""
    return f"swe-gym-{sandbox_id}"


def unplugs(spec: SandboxSpec, options: KubernetesOptions) -> bool:
    """Whether the sandbox closes its own network."""
    return spec.network == "none" and options.network == "unplug"


def check(spec: SandboxSpec, options: KubernetesOptions) -> None:
    """Refuse what a pod cannot be.

    Raises:
        Unsupported: A user that is no number, or one who could not close the network.
    """
    uid = user_id(spec)
    if uid and unplugs(spec, options):
        raise Unsupported(
            f"only root can take the network down, and user={spec.user!r} was asked for: close it by a NetworkPolicy, "
            "sandbox_options={'options': {'network': 'policy'}}, or give network='egress'"
        )
    for name in options.capabilities:
        if name not in CAPABILITIES:
            raise Unsupported(f"backend 'kubernetes': no capability {name!r}. Known: {', '.join(CAPABILITIES)}")


def user_id(spec: SandboxSpec) -> int | None:
    """The number of the user who runs commands; None is the image's.

    Raises:
        Unsupported: It is a name other than root: a pod takes numbers only.
    """
    if spec.user is None or spec.user == "root":
        return None if spec.user is None else 0
    if not spec.user.isdecimal():
        raise Unsupported(
            f"a pod takes the number of a user, not the name {spec.user!r}: give its uid, as in user='1000'"
        )
    return int(spec.user)


def program(spec: SandboxSpec, options: KubernetesOptions) -> bytes:
    """What `BOOT` reads: the length in 8 digits and the runner, with what comes before it."""
    source = runner_source()
    if unplugs(spec, options):
        kept = [CAPABILITIES.index(name) for name in options.capabilities]
        source = "\n".join(
            [
                bundle("local/linux"),
                bundle("unplug"),
                f"unplug(); drop_privileges({kept})",
                source,
            ]
        )
    data = source.encode()
    return b"%08d" % len(data) + data


def pod(spec: SandboxSpec, options: KubernetesOptions, *, name: str, image: str, run: str, sandbox: str) -> Object:
    """The pod of a sandbox.

    Args:
        spec: What the sandbox should be.
        options: The backend's options.
        name: The pod's name.
        image: The container's image.
        run: What all pods of this client share.
        sandbox: The sandbox's id.
    """
    labels = {
        **{label(key): label(value) for key, value in spec.labels.items()},
        **options.labels,
        MANAGED_BY: MANAGER,
        RUN: run,
        SANDBOX: sandbox,
        CLAIM: uuid.uuid4().hex,
        OWNER: label(options.owner or _owner()),
        NETWORK: spec.network,
        **({QUEUE_NAME: options.queue_name} if options.queue_name else {}),
    }
    leases = {TTL: str(_whole(spec.ttl)), START_TIMEOUT: str(_whole(spec.start_timeout))}
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
        "activeDeadlineSeconds": _whole(spec.ttl + spec.start_timeout + 1),
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostname": "sandbox",
        "securityContext": security,
        "initContainers": [_lender(spec, options)] if options.python_image else [],
        "containers": [_container(spec, options, image)],
        "volumes": [{"name": name, "emptyDir": {}} for name in (*_own_folders(spec), *_lent(options))],
        **{key: value for key, value in chosen.items() if value},
    }


def _dns(spec: SandboxSpec) -> Object:
    """Without network a name should fail at once, and not after the timeouts of servers that cannot be reached."""
    return {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["127.0.0.1"]}} if spec.network == "none" else {}


def _container(spec: SandboxSpec, options: KubernetesOptions, image: str) -> Object:
    mounts: list[Object] = [{"name": name, "mountPath": path} for name, path in _own_folders(spec).items()]
    mounts += [{"name": name, "mountPath": path, "readOnly": True} for name, path in _lent(options).items()]
    added = {*options.capabilities, *(TO_UNPLUG if unplugs(spec, options) else ())}
    return {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": options.image_pull_policy,
        "command": _command(BOOT.format(patience=ATTACH_SECONDS)),
        "workingDir": spec.workdir,
        "volumeMounts": mounts,
        "stdin": True,
        "stdinOnce": True,  # our end closes it, by our death too, and the runner ends with it
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": _resources(spec, options.requests),
        "securityContext": _no_rights_but(added),
    }


def _lender(spec: SandboxSpec, options: KubernetesOptions) -> Object:
    """Runs to its end before the sandbox starts, and leaves a Python for it."""
    return {
        "name": LENT_PYTHON,
        "image": options.python_image,
        "imagePullPolicy": options.image_pull_policy,
        "command": _command(lender()),
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in _lent(options).items()],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": _resources(spec, options.requests),
        "securityContext": _no_rights_but(()),
    }


def _lent(options: KubernetesOptions) -> dict[str, str]:
    return {LENT_PYTHON: PLACE} if options.python_image else {}


def _command(program: str) -> list[str]:
    """The first command of a container. The API would take $(NAME) for a variable."""
    return [part.replace("$", "$$") for part in start_command(program)]


def _no_rights_but(capabilities: Iterable[str]) -> Object:
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"], "add": sorted(capabilities)}}


def _own_folders(spec: SandboxSpec) -> dict[str, str]:
    """Where a user who is not root must be able to write, to bring in the workspace of a task without an image."""
    return {"workdir": spec.workdir, "venv": VENV} if user_id(spec) and not spec.image else {}


def _resources(spec: SandboxSpec, requests: Mapping[str, str]) -> Object:
    """Limits always, so that no sandbox can take its node down; what was asked for by name is reserved too."""
    limits = {
        "cpu": f"{max(1, round((spec.cpus or DEFAULT_CPUS) * 1000))}m",
        "memory": f"{spec.memory_mb or DEFAULT_MEMORY_MB}Mi",
        "ephemeral-storage": f"{spec.disk_mb}Mi",
    }
    # A limit that nothing is requested for is requested in full. Few sandboxes fill their disk.
    reserved = {"ephemeral-storage": "0"}
    if spec.cpus is None:
        reserved["cpu"] = "10m"
    if spec.memory_mb is None:
        reserved["memory"] = "64Mi"
    return {"limits": limits, "requests": {**reserved, **requests}}


def _whole(seconds: float) -> int:
    """Whole seconds, as many as the API can count."""
    return int(min(seconds, 2**31 - 1))


def label(text: str) -> str:
    """Any text as a label's value: at most 63 characters of those that are allowed."""
    return _LABEL.sub("-", text)[:63].strip("-._")


def _owner() -> str:
    try:
        user: Any = getpass.getuser()
    except (OSError, KeyError):  # a uid without a name
        user = "unknown"
    return f"{user}.{socket.gethostname()}"
