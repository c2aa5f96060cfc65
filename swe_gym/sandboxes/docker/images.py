"""The images of tasks: found, pulled, or built from the Dockerfile that a task brings."""

import contextlib
import json
import logging
import queue
import re
import threading
import time
from collections.abc import Callable

import docker
import docker.auth
import docker.errors
import docker.utils
import requests

from ...errors import SandboxStartError
from ...types import ImageBuild, JsonObject
from ..gates import NEVER, add_jitter, gate
from .engine import ENGINE_ERRORS, engine_errors, free_megabytes, url

log = logging.getLogger(__name__)

SILENCE = 300.0
"""Seconds without an event after which a pull counts as stalled."""

POLL_SECONDS = 0.5
"""Seconds between checks of whether a pull is still wanted."""

FIRST_PAUSE, LONGEST_PAUSE = 5.0, 60.0
"""Seconds between attempts if the registry limits the rate and sends no Retry-After."""

UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}

Progress = Callable[[JsonObject], None]


def find_image(engine: docker.APIClient, image: str) -> JsonObject | None:
    """Return the engine's description of an image, or None if the engine does not have it.

    Raises:
        SandboxStartError: The engine failed.
    """
    with engine_errors(f"look for image {image!r}"):
        try:
            found: JsonObject = engine.inspect_image(image)
        except docker.errors.ImageNotFound:
            return None
        return found


def pull_image(
    engine: docker.APIClient,
    image: str,
    *,
    timeout: float,
    min_free_mb: int = 0,
    progress: Progress = lambda _: None,
    wanted: Callable[[], bool] = lambda: True,
    purpose: str = "",
) -> None:
    """Pull an image. If the registry limits the rate, wait as long as it asks, else 5 s, 10 s ... 60 s, and retry.

    The engine keeps finished layers, so a retry resumes the pull.

    Args:
        engine: The engine that pulls.
        image: Name, and tag or digest.
        timeout: Seconds before the pull fails, pauses included.
        min_free_mb: MiB that must be free on the engine's disk, if that disk belongs to this machine.
        progress: Called with the engine's events: dictionaries with "status" and perhaps "id" and "progressDetail".
        wanted: Polled; the pull stops once it returns False.
        purpose: What the image is for, in log records.

    Raises:
        SandboxStartError: The image does not exist or is private (`reason="image"`), the rate limit lasted
            (`"rate_limit"`), the disk is (nearly) full (`"capacity"`), or the time is over (`"timeout"`).
    """
    started = time.monotonic()
    deadline = started + timeout
    suffix = f" for {purpose}" if purpose else ""
    log.info("pulling image %s%s", image, suffix)
    pause = FIRST_PAUSE
    while True:
        check_disk(engine, image, min_free_mb)
        try:
            with engine_errors(f"pull image {image!r}"):
                _pull_once(engine, image, deadline, progress, wanted)
            log.info("pulled image %s%s in %.0f s", image, suffix, time.monotonic() - started)
            return
        except TooManyRequests as refusal:
            wait = refusal.seconds if refusal.seconds is not None else add_jitter(pause, 0.75, 1.25)
            if time.monotonic() + wait >= deadline or not wanted():
                message = f"the rate limit of the registry of image {image!r} lasted. Raise it with `docker login`"
                raise SandboxStartError(message, reason="rate_limit", retryable=True, detail=str(refusal)) from refusal
            log.warning("rate limit while pulling image %s%s; retrying in %.0f s", image, suffix, wait)
            progress({"status": f"rate limit of the registry: waiting {wait:.0f} s"})
            _wait(wait, wanted)
            pause = min(LONGEST_PAUSE, 2 * pause)


class TooManyRequests(Exception):
    """The registry answered 429; `seconds` is its Retry-After, if it sent one."""

    def __init__(self, text: str, seconds: float | None) -> None:
        super().__init__(text)
        self.seconds = seconds


def check_pull(engine: docker.APIClient, image: str) -> str:
    """Ask the registry whether an image can be pulled. Nothing is downloaded.

    Returns:
        Why the registry could not be asked; empty if it has the image.

    Raises:
        SandboxStartError: The image does not exist or is private.
    """
    try:
        engine.inspect_distribution(image)
    except docker.errors.APIError as error:
        text = str(error.explanation or error)
        refusal = _refusal(image, text)
        absent = isinstance(refusal, SandboxStartError) and not refusal.retryable
        if absent and "page not found" not in text.lower():  # Podman has no such call
            raise refusal from error
        return text
    except ENGINE_ERRORS as error:
        return str(error)
    return ""


def check_disk(engine: docker.APIClient, image: str, min_free_mb: int) -> None:
    """Check the free space on the engine's disk, if that disk belongs to this machine.

    Raises:
        SandboxStartError: There is too little.
    """
    with engine_errors("report its disk"):
        free = free_megabytes(engine) if min_free_mb else None
    if free is not None and free < min_free_mb:
        raise SandboxStartError(
            f"image {image!r} was not pulled: the Docker engine's disk has {free} MiB left, less than min_free_mb="
            f"{min_free_mb}. Free space (`docker system df` lists what uses it) or lower that option",
            reason="capacity",
        )


def _wait(seconds: float, wanted: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while wanted() and (left := end - time.monotonic()) > 0:
        time.sleep(min(left, POLL_SECONDS))


def _pull_once(
    engine: docker.APIClient, image: str, deadline: float, progress: Progress, wanted: Callable[[], bool]
) -> None:
    """Pull in a thread, so that neither the deadline nor a cancellation waits for the engine."""
    events: queue.SimpleQueue[JsonObject | BaseException | None] = queue.SimpleQueue()
    given_up = threading.Event()
    arguments = (engine, image, events, given_up)
    threading.Thread(target=_read_events, args=arguments, name=f"pull {image}", daemon=True).start()
    try:
        while True:
            if not wanted():
                raise SandboxStartError(f"the pull of image {image!r} was cancelled")
            if time.monotonic() >= deadline:
                message = f"image {image!r} was not pulled in time; the engine keeps the finished layers"
                raise SandboxStartError(message, reason="timeout", retryable=True)
            try:
                event = events.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            if event is None:
                return
            if isinstance(event, BaseException):
                raise event
            if "error" in event:
                raise _refusal(image, str(event["error"]))
            progress(event)
    finally:
        given_up.set()


def _read_events(
    engine: docker.APIClient,
    image: str,
    events: "queue.SimpleQueue[JsonObject | BaseException | None]",
    given_up: threading.Event,
) -> None:
    try:
        with contextlib.closing(_ask(engine, image)) as reply:
            for line in reply.iter_lines():
                if given_up.is_set():
                    return
                if line:
                    events.put(json.loads(line))
        events.put(None)
    except Exception as error:  # noqa: BLE001  the waiting thread raises it
        events.put(error)


def _ask(engine: docker.APIClient, image: str) -> requests.Response:
    """Start a pull with the credentials of `docker login`. docker-py's own `pull` has no deadline."""
    name, tag = docker.utils.parse_repository_tag(image)
    registry, _ = docker.auth.resolve_repository_name(name)
    credentials = docker.auth.get_config_header(engine, registry)
    reply: requests.Response = engine.post(
        url(engine, "images/create"),
        params={"fromImage": name, "tag": tag or "latest"},
        headers={"X-Registry-Auth": credentials} if credentials else {},
        stream=True,
        timeout=(engine.timeout, SILENCE),
    )
    if reply.ok:
        return reply
    with contextlib.closing(reply):
        try:
            text = str(reply.json()["message"])
        except (ValueError, KeyError):
            text = reply.text
        if reply.status_code == 429:
            raise TooManyRequests(text, _retry_after(reply.headers.get("Retry-After", "")))
        raise _refusal(image, text, transient=reply.status_code >= 500)


def _refusal(image: str, text: str, *, transient: bool = True) -> Exception:
    lowered = text.lower()
    if "toomanyrequests" in lowered or "429" in lowered or "rate limit" in lowered:
        said = re.search(r"retry-after: *([0-9.]+ ?[a-zµ]*)", lowered)
        return TooManyRequests(text, _retry_after(said.group(1)) if said else None)
    if "no space left" in lowered:
        message = f"image {image!r} cannot be pulled: the Docker engine's disk is full. Check `docker system df`"
        return SandboxStartError(message, reason="capacity", detail=text)
    if any(words in lowered for words in ("denied", "unauthorized", "no basic auth", "forbidden")):
        message = f"image {image!r} does not exist or is private. Try `docker login`, then `docker pull {image}`"
        return SandboxStartError(message, reason="image", detail=text)
    if any(words in lowered for words in ("not found", "manifest unknown", "no such image", "invalid reference")):
        return SandboxStartError(f"image {image!r} does not exist", reason="image", detail=text)
    message = f"image {image!r} cannot be pulled. Check the engine's network, proxy and mirror: `docker pull {image}`"
    return SandboxStartError(message, reason="image", retryable=transient, detail=text)


def _retry_after(text: str) -> float | None:
    """Parse "30" (the header) or "1.5ms" (in messages of registries) into seconds."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(h|m|s|ms|us|µs|ns)?", text.strip())
    return float(found.group(1)) * UNITS[found.group(2) or "s"] if found else None


def progress_line(event: JsonObject) -> str:
    """Format an event of a pull as one line: layer, status, progress."""
    return " ".join(str(event[name]) for name in ("id", "status", "progress") if event.get(name))


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
