"""Read-only volumes of the engine, each filled once with an immutable folder of this machine.

All sandboxes share a volume, so a mount costs a sandbox neither time nor disk, even if the engine is on another
machine. A second, empty volume marks a filled one; `docker volume rm` removes both.
"""

import contextlib
import uuid
from pathlib import Path

import docker
import docker.errors

from ...cache import digest
from ..container import compress_folder
from ..gates import gate
from .engine import engine_errors
from .owners import PREFIX, labels

LABEL = "swe_gym.folder"
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
                    engine.create_volume(one, labels={LABEL: folder})
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
    engine.create_volume(name, labels={LABEL: name})
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
