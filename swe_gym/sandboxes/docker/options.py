"""The options of the Docker backend, and their check against the engine before a run."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Literal

import docker
from pydantic import Field

from ...errors import SandboxError, UsageError
from ...types import Frozen
from ..container import KEPT_CAPABILITIES, default_image
from ..types import DEFAULT_MEMORY_MB, Finding, SandboxSpec
from .engine import connect, engine_errors, free_megabytes
from .images import check_disk, check_pull, find_image


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


ENGINE_SECONDS = 5.0
IMAGE_MB = 390
"""Disk space of an image of SWE-bench Verified, on average over all 500, in MiB."""

LIMITS = {"MemoryLimit": "memory", "PidsLimit": "processes", "CpuCfsQuota": "CPU"}
"""Field of an engine's info -> the resource that it can limit."""


def check_images(specs: Sequence[SandboxSpec], options: DockerOptions) -> Finding:
    """Check that the engine answers, has the images or can get them, and has room for them.

    Raises:
        SandboxStartError: The engine does not answer, its disk is full, or an image does not exist.
        UsageError: Images are missing, and may not be pulled or have no room.
    """
    needed = {spec.image or options.default_image or default_image(spec.python): spec.build for spec in specs}
    with closing(connect(options.base_url, ENGINE_SECONDS)) as engine:
        absent = [image for image in needed if find_image(engine, image) is None]
        if not absent:
            return Finding("images", True, f"all {len(needed)} present")
        missing = [image for image in absent if needed[image] is None]
        said = f"{len(needed) - len(absent)} present"
        said += f", {len(absent) - len(missing)} to build" if len(missing) < len(absent) else ""
        if not missing:
            return Finding("images", True, said)
        return Finding("images", True, f"{said}, {_check_pulls(engine, missing, len(needed), options)}")


def _check_pulls(engine: docker.APIClient, missing: Sequence[str], total: int, options: DockerOptions) -> str:
    """Check that missing images can be pulled, and return what is to pull. Only the first one is looked up."""
    if options.pull == "never":
        raise UsageError(f"{len(missing)} of {total} images are missing, such as {missing[0]}, and pull=never")
    check_disk(engine, missing[0], options.min_free_mb)
    unknown = check_pull(engine, missing[0])
    with engine_errors("report its disk"):
        free = free_megabytes(engine)
    needs = len(missing) * IMAGE_MB
    if free is not None and options.min_free_mb and free - options.min_free_mb < needs:
        raise UsageError(
            f"{len(missing)} of {total} images are missing. At {IMAGE_MB} MiB each, as in SWE-bench, they need "
            f"about {needs / 1024:,.0f} GiB, and the Docker engine's disk has {free / 1024:,.0f} GiB. Free space, "
            "choose fewer tasks, or omit this check: --sandbox-option 'options={\"min_free_mb\": 0}'"
        )
    room = "" if free is None else f"; {free / 1024:,.0f} GiB free on the engine's disk"
    doubt = f"; the registry could not be asked about {missing[0]}: {unknown}" if unknown else ""
    return f"{len(missing)} to pull{room}{doubt}"


def diagnose(options: DockerOptions) -> Iterator[Finding]:
    """Check that the engine answers, and whether it enforces limits; rootless engines may not."""
    try:
        with (
            closing(connect(options.base_url, ENGINE_SECONDS)) as client,
            engine_errors("report its capabilities", options.base_url),
        ):
            told = client.info()
    except SandboxError as error:
        what, _, fix = str(error).partition("\n")[0].partition(". ")
        yield Finding("docker", False, what, fix, main=True)
        return
    yield Finding("docker", True, f"engine {told.get('ServerVersion')} on {told.get('OperatingSystem')}", main=True)
    lacking = [what for name, what in LIMITS.items() if told.get(name) is False]
    fix = "delegate the controllers of cgroup v2: https://rootlesscontaine.rs/getting-started/common/cgroup2/"
    limits = f"not enforced: {', '.join(lacking)}" if lacking else ", ".join(LIMITS.values())
    yield Finding("docker limits", not lacking, limits, fix, needed=False, main=bool(lacking))
