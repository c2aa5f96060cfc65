"""What this package owns on an engine: containers, removed after their owner's death, and read-only volumes."""

import contextlib
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import docker
import docker.errors

from ...cache import digest
from ...errors import SandboxStartError
from ...guard import Guard, keep_removing
from ...types import JsonMapping
from ..container import compress_folder
from ..gates import gate
from .engine import address, connect, engine_errors

log = logging.getLogger(__name__)

PREFIX = "swe-gym-"
"""Start of a container's name; the sandbox's id follows."""

LABEL = "swe_gym.sandbox"
"""Label of every container of this package; its value is the sandbox's id."""

EXPIRES = "swe_gym.expires"
"""Label: the second since the epoch after which any client may remove the container."""

OWNER = "swe_gym.owner"
"""Label: the process that created the container, see `owner`."""

PAUSES = 10 * (0.4,)
"""Seconds before each removal of a dead client's containers."""

_GUARDS: dict[tuple[int, str | None], Guard] = {}
"""Guards by client process and engine. A fork is another client."""

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
    state, threads, start = fields[0], int(fields[17]), fields[19]
    ended = state in "ZX" and threads < 2  # else only its first thread has ended
    return "" if ended else f"{socket.gethostname()}/{boot}/{namespace}/{pid}/{start}"


def labels(sandbox: str, ttl: float) -> dict[str, str]:
    """Return the labels of a container that lives for `ttl` seconds."""
    return {LABEL: sandbox, EXPIRES: str(int(time.time() + ttl)), OWNER: owner() or f"{socket.gethostname()}/"}


def is_abandoned(container_labels: Mapping[str, str], now: float) -> bool:
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


def start_guard(base_url: str | None) -> None:
    """Start the process that removes this client's containers after its death, unless it runs already.

    A running container exits by itself when its client dies. One that was created but not started cannot.
    """
    base_url = address(base_url)
    key = os.getpid(), base_url
    with _LOCK:
        if key not in _GUARDS and owner():
            arguments = [f"{OWNER}={owner()}", *([base_url] if base_url else [])]
            _GUARDS[key] = Guard(f"{__name__}:remove_owned", *arguments)


def remove_owned(label: str, base_url: str | None = None) -> None:
    """Remove the containers of a dead client: one that was being created when it died appears a moment later.

    Args:
        label: Label of its containers.
        base_url: The engine.
    """
    keep_removing(lambda: _remove(base_url, 10.0, label, lambda _: True), PAUSES, SandboxStartError)


def _remove(base_url: str | None, timeout: float, label: str, wanted: Callable[[JsonMapping], bool]) -> list[str]:
    """Remove the containers with a label whose labels are wanted. Return their names."""
    removed = []
    with contextlib.closing(connect(base_url, timeout)) as engine, engine_errors("list containers", base_url):
        for container in engine.containers(all=True, filters={"label": label}):
            if wanted(container["Labels"]):
                with contextlib.suppress(docker.errors.APIError):  # removed, or being removed
                    engine.remove_container(container["Id"], force=True, v=True)
                removed.append(container["Names"][0].lstrip("/"))
    return sorted(removed)


def sweep(base_url: str | None, *, timeout: float = 60.0) -> list[str]:
    """Remove abandoned containers of any client of this package; no other container is touched.

    A container is abandoned if its lease (`SandboxSpec.ttl`) has expired, or if its owner was a process of this machine
    that has ended.

    Args:
        base_url: Address of the engine.
        timeout: Seconds before a call of the engine fails.

    Returns:
        The names of the removed containers, sorted.

    Raises:
        SandboxStartError: The engine cannot be reached or does not answer.
    """
    swept = _remove(base_url, timeout, LABEL, lambda labels: is_abandoned(labels, time.time()))
    if swept:
        log.info("removed %d abandoned containers: %s", len(swept), " ".join(swept))
    return swept


VOLUME_LABEL = "swe_gym.folder"
"""Label of every volume of this package; its value is the path of the folder."""

FILL_SECONDS = 600.0


def volume_of(engine: docker.APIClient, folder: str, image: str, deadline: float) -> str:
    """Return the name of the volume with a folder's content; fill one if the engine has none.

    Args:
        engine: The engine.
        folder: The folder. Its path stands for its content, which never changes.
        image: An image of the engine, for the container through which the volume is filled. It is never started.
        deadline: Time (`time.monotonic`) until which to wait for another process that fills the volume.

    Raises:
        SandboxStartError: The engine failed, or the time is over.
    """
    name = f"{PREFIX}{digest(folder)[:16]}"
    mark = f"{name}-filled"
    if not _exists(engine, mark):
        with gate("docker-volume", 1, deadline), engine_errors("fill a volume"):
            if not _exists(engine, mark):
                engine.timeout = FILL_SECONDS
                archive = compress_folder(Path(folder), deadline)
                for one in (name, mark):  # the mark last
                    engine.create_volume(one, labels={VOLUME_LABEL: folder})
                    if one == name:
                        _fill(engine, name, archive, image)
    return name


def _exists(engine: docker.APIClient, name: str) -> bool:
    with engine_errors("look for a volume"):
        try:
            engine.inspect_volume(name)
        except docker.errors.NotFound:
            return False
        return True


def _fill(engine: docker.APIClient, name: str, archive: Path, image: str) -> None:
    engine.create_volume(name, labels={VOLUME_LABEL: name})
    host = engine.create_host_config(binds={name: {"bind": "/folder", "mode": "rw"}}, network_mode="none")
    identity = f"fill-{uuid.uuid4().hex[:12]}"
    container = engine.create_container(
        image, command=["true"], name=PREFIX + identity, host_config=host, labels=labels(identity, FILL_SECONDS)
    )
    try:
        with archive.open("rb") as file:
            engine.put_archive(container, "/folder", file)
    finally:
        with contextlib.suppress(docker.errors.NotFound):
            engine.remove_container(container, force=True)
