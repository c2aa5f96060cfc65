"""Checks of the engine, before a run and for `swe-gym doctor`."""

from collections.abc import Iterator, Sequence
from contextlib import closing

import docker

from ...errors import SandboxError, UsageError
from ..container import default_image
from ..finding import Finding
from ..spec import SandboxSpec
from .engine import connect, engine_errors, free_megabytes
from .images import check_disk, check_pull, find_image
from .options import DockerOptions

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
