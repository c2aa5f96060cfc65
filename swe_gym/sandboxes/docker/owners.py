"""Who owns a container: its labels, the guard that removes it after its owner's death, and the sweep."""

import contextlib
import importlib.resources
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import docker
import docker.errors

from ...types import JsonMapping
from ..base import parse_options
from .engine import address, connect, engine_errors
from .options import DockerOptions

log = logging.getLogger(__name__)

PREFIX = "swe-gym-"
"""Start of a container's name; the sandbox's id follows."""

LABEL = "swe_gym.sandbox"
"""Label of every container of this package; its value is the sandbox's id."""

EXPIRES = "swe_gym.expires"
"""Label: the second since the epoch after which any client may remove the container."""

OWNER = "swe_gym.owner"
"""Label: the process that created the container, see `owner`."""

IGNORED_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "_proxy", "_PROXY")
"""Suffixes of variables that divert docker-py from the engine; `Client` ignores them."""

_GUARDS: dict[tuple[int, str | None], int] = {}
"""Process ids of guards by client process and engine. A fork is another client."""

_LOCK = threading.Lock()


def owner(pid: int | None = None) -> str:
    """Return the identity of a process, unique over time: host, boot, process namespace, number, start time.

    Empty for a process that does not exist, and on systems without /proc.
    """
    pid = os.getpid() if pid is None else pid
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid").strip("pid:[]")
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    state, start = fields[0], fields[19]
    return "" if state in "ZX" else f"{socket.gethostname()}/{boot}/{namespace}/{pid}/{start}"


def labels(sandbox: str, ttl: float) -> dict[str, str]:
    """Return the labels of a container that lives for `ttl` seconds."""
    return {LABEL: sandbox, EXPIRES: str(int(time.time() + ttl)), OWNER: owner() or f"{socket.gethostname()}/"}


def abandoned(container_labels: Mapping[str, str], now: float) -> bool:
    """Return whether a container of this package has an expired lease, or an owner that died on this machine."""
    if LABEL not in container_labels or EXPIRES not in container_labels:
        return False
    if now >= int(container_labels[EXPIRES]):
        return True
    theirs = container_labels.get(OWNER, "").rsplit("/", 2)
    ours = owner().rsplit("/", 2)
    if len(theirs) != 3 or len(ours) != 3 or theirs[0] != ours[0]:
        return False  # another machine, boot or namespace: only the lease counts
    return owner(int(theirs[1])) != container_labels[OWNER]


def guard(base_url: str | None) -> None:
    """Start the process that removes this client's containers after its death, unless it runs already."""
    base_url = address(base_url)
    key = os.getpid(), base_url
    with _LOCK:
        if key not in _GUARDS and owner():
            _GUARDS[key] = _start_guard(base_url)
            log.debug("process %d removes containers on %s if this one dies", _GUARDS[key], base_url or "DOCKER_HOST")


def _start_guard(base_url: str | None) -> int:
    program = importlib.resources.files(__package__).joinpath("guard.py").read_text("utf-8")
    argv = [sys.executable, "-c", program, str(os.getpid()), f"{OWNER}={owner()}", *([base_url] if base_url else [])]
    # A session of its own, so that signals to this process group spare it, and no inherited descriptors.
    nothing = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0)]
    nothing += [(os.POSIX_SPAWN_DUP2, 0, 1), (os.POSIX_SPAWN_DUP2, 0, 2)]  # type: ignore[list-item]  # of other lengths
    path = os.pathsep.join(filter(None, sys.path))
    environment = {name: value for name, value in os.environ.items() if not name.endswith(IGNORED_VARIABLES)}
    environment |= {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    return os.posix_spawn(sys.executable, argv, environment, file_actions=nothing, setsid=True)


def sweep(options: JsonMapping | None = None, *, timeout: float = 60.0) -> list[str]:
    """Remove abandoned containers of any client of this package; no other container is touched.

    A container is abandoned if its lease (`SandboxSpec.ttl`) has expired, or if its owner was a process of this machine
    that has ended.

    Args:
        options: Options of the backend; `base_url` selects the engine.
        timeout: Seconds before a call of the engine fails.

    Returns:
        The names of the removed containers, sorted.

    Raises:
        UsageError: An option is unknown or invalid.
        SandboxStartError: The engine cannot be reached or does not answer.
    """
    base_url = parse_options(DockerOptions, options or {}, "docker").base_url
    with contextlib.closing(connect(base_url, timeout)) as engine, engine_errors("list containers", base_url):
        swept = []
        for container in engine.containers(all=True, filters={"label": LABEL}):
            if abandoned(container["Labels"], time.time()):
                with contextlib.suppress(docker.errors.APIError):  # removed, or being removed
                    engine.remove_container(container["Id"], force=True, v=True)
                swept.append(container["Names"][0].lstrip("/"))
    if swept:
        log.info("removed %d abandoned containers: %s", len(swept), " ".join(swept))
    return sorted(swept)
