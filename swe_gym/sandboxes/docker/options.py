"""The options of the Docker backend."""

from typing import Literal

from pydantic import Field

from ...types import Frozen
from ..container import KEPT_CAPABILITIES
from ..spec import DEFAULT_MEMORY_MB


class DockerOptions(Frozen):
    """Options of the Docker backend.

    Attributes:
        base_url: Address of the engine. None uses DOCKER_HOST and its companions, else the first socket of Docker,
            rootless Docker or Podman that exists.
        timeout: Seconds before a call of the engine fails.
        starting: Maximum number of sandboxes that start at the same time, over all processes of this user on this
            machine.
        removing: Maximum number of sandboxes that are removed at the same time, counted in the same way.
        running: Maximum number of commands that run at the same time, counted in the same way; None is unlimited. A
            command that waits keeps its whole timeout, and fails with a retryable error if the wait exceeds it.
        waiting: Maximum number of grading sandboxes that start while a policy works and wait for its end, counted in
            the same way. 0 starts them at the end, and grading waits for the start.
        pull: "missing" pulls images that the engine lacks, "always" also looks for newer ones, "never" fails instead.
        pull_timeout: Seconds before a pull fails, rate-limit pauses included.
        min_free_mb: MiB that must be free on the engine's disk for a pull, if that disk belongs to this machine.
        default_image: Image of tasks that have a workspace and no image; None is `python:VERSION`.
        copy_python: Copy this machine's Python into containers whose image has none; only the runner uses it.
        activate: Python environment to put first on PATH. "auto" looks for one; an empty string keeps the image's PATH.
        cpus: CPU limit in cores if the task sets none.
        memory_mb: Memory limit in MiB, swap included, if the task sets none.
        egress_network: Network of the engine for `network="egress"`.
        cap_add: Linux capabilities of commands; all others are dropped.
        security_opt: Values for `docker run --security-opt`.
        storage_opt: Values for `docker run --storage-opt`. `{"size": "10G"}` limits the disk if the engine supports it.
        runtime: Value for `docker run --runtime`; "runsc" is gVisor.
    """

    base_url: str | None = None
    timeout: float = Field(default=60.0, gt=0)
    starting: int = Field(default=8, gt=0)
    removing: int = Field(default=8, gt=0)
    running: int | None = Field(default=None, gt=0)
    waiting: int = Field(default=16, ge=0)
    pull: Literal["missing", "always", "never"] = "missing"
    pull_timeout: float = Field(default=1800.0, gt=0)
    min_free_mb: int = Field(default=5120, ge=0)
    default_image: str | None = None
    copy_python: bool = True
    activate: str = "auto"
    cpus: float = Field(default=2.0, gt=0)
    memory_mb: int = Field(default=DEFAULT_MEMORY_MB, gt=0)
    egress_network: str = "bridge"
    cap_add: tuple[str, ...] = KEPT_CAPABILITIES
    security_opt: tuple[str, ...] = ("no-new-privileges",)
    storage_opt: dict[str, str] = {}
    runtime: str | None = None
