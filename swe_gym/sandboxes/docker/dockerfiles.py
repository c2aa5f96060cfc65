"""Building the image of a task from the Dockerfile that it brings."""

import logging
import threading
import time

import docker

from ...errors import SandboxStartError
from ...types import ImageBuild, JsonObject
from ..gates import NEVER, gate
from .engine import engine_errors
from .images import find_image

log = logging.getLogger(__name__)

SHOWN = 4000
"""Characters at the end of a build's output that an error shows."""


def build_dockerfile(
    engine: docker.APIClient,
    image: str,
    build: ImageBuild,
    *,
    deadline: float,
    cancelled: threading.Event = NEVER,
    base_url: str | None = None,
) -> JsonObject:
    """Build an image unless the engine has it, one at a time on this machine. Return the engine's description.

    Steps run in containers of the engine, with its network.

    Args:
        engine: The engine.
        image: Name of the image. It stands for the content of the build's folder.
        build: What to build.
        deadline: Time of `time.monotonic` by which it must be built.
        cancelled: Event that ends the waiting for another build.
        base_url: Address of the engine, for errors.

    Raises:
        SandboxStartError: A step failed (`reason="image"`), or the time is over (`"timeout"`).
    """
    with gate("docker-build", 1, deadline, cancelled):
        if found := find_image(engine, image):
            return found
        log.info("building image %s from %s", image, build.context)
        end = min(deadline, time.monotonic() + build.timeout)
        said: list[str] = []
        with engine_errors(f"build image {image!r}", base_url):
            engine.timeout = max(0.1, end - time.monotonic())
            for event in engine.build(path=build.context, tag=image, rm=True, forcerm=True, decode=True):
                said.append(str(event.get("stream", "")) + str(event.get("error", "")))
                if "error" in event or time.monotonic() > end:
                    break
        found = find_image(engine, image)
        if found is None:
            late = time.monotonic() > end
            text = f"{build.context}/Dockerfile was not built" + (f" in {build.timeout:g} s" if late else "")
            detail = "".join(said)[-SHOWN:].strip()
            raise SandboxStartError(text, reason="timeout" if late else "image", retryable=late, detail=detail)
        log.info("built image %s", image)
        return found
