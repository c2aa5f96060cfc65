"""Sandboxes in containers of Docker, rootless Docker or Podman. The runner is the first process of each container.

A command is one frame on an open stream, not a `docker exec`. Standard input is opened with `StdinOnce`, so the engine
closes it when this process ends, even by SIGKILL; the runner then exits, and the container removes itself.
"""

import contextlib
import io
import logging
import tarfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import ClassVar

import docker
import docker.errors
import docker.types

from ...errors import SandboxClosed, SandboxLost, SandboxStartError
from ...guests.seccomp import MASKED, READ_ONLY
from ...types import Capabilities, JsonMapping, JsonObject
from ..channel import ByteStream
from ..container import BOOT, NO_PYTHON_SAID, ContainerSandbox, boot_input, start_command
from ..contents.pythons import PORTABLE_FOLDER, pack_portable_python, why_not_portable
from ..gates import gate
from ..runner_sandbox import runner_source
from ..types import Finding, SandboxSpec, demand_isolation, parse_options
from .build import build_image
from .engine import ENGINE_ERRORS, DockerStream, attach, connect, engine_errors, is_unreachable, why_it_ended
from .images import build_dockerfile, find_image, progress_line, pull_image
from .options import DockerOptions, check_images, diagnose
from .owners import PREFIX, labels, start_guard, sweep, volume_of

__all__ = [
    "DockerOptions",
    "DockerSandbox",
    "build_image",
    "connect",
    "engine_errors",
    "find_image",
    "progress_line",
    "pull_image",
]

log = logging.getLogger(__name__)

VM_RUNTIMES = ("runsc", "kata", "kata-runtime", "io.containerd.kata.v2")
"""Runtimes that run each container on a kernel of its own."""

CPU_PERIOD = 100_000
"""CPU period in microseconds. Unlike "nano CPUs", a quota of it may exceed the number of cores."""

HOSTS = "127.0.0.1\tlocalhost sandbox\n::1\tip6-localhost ip6-loopback\n"
"""The loopback addresses in `/etc/hosts`. "localhost" is 127.0.0.1, as where the engine manages the network."""
WRITE_HOSTS = f"printf %s '{HOSTS}' >/etc/hosts && chmod 644 /etc/hosts\n"

REMOVE_SECONDS = 8.0
REMOVE_AGAIN_SECONDS = 60.0
REMOVE_PAUSE = 0.5
LATE_SECONDS = 15.0
"""Seconds in which a container may still appear after the reply to its creation was lost."""

NOT_FOUND, CONFLICT = 404, 409
EXPLAIN_SECONDS = 2.0

_WITHOUT_PYTHON: set[str] = set()
"""Ids of images known to have no Python, so that later sandboxes need only one container."""


class DockerSandbox(ContainerSandbox):
    """A sandbox in a container."""

    name = "docker"
    on_this_machine: ClassVar[bool] = True

    _new_layers: ClassVar[bool] = True
    _builds = True

    def __init__(self, spec: SandboxSpec) -> None:
        self.options = parse_options(DockerOptions, spec.options, self.name)
        super().__init__(spec, self.options.activate, self.options.running)
        self.waiting = self.options.waiting
        advice = "Set the backend option `runtime` to a stronger one, such as runsc."
        demand_isolation(spec, self._isolation, self.name, advice)
        self._engine: docker.APIClient | None = None
        self._container = ""
        self._may_appear = False
        self._stream: DockerStream | None = None
        self._unresponsive = False
        self._image_id = ""
        self._copies_python = False
        self._volumes: dict[str, dict[str, str]] = {}

    # --- the backend ----------------------------------------------------------------------------------------

    @classmethod
    def check(cls, specs: Sequence[SandboxSpec]) -> list[Finding]:
        """See `Sandbox.check`: the engine answers, and has the images or room for them."""
        return [check_images(specs, parse_options(DockerOptions, specs[0].options, cls.name))]

    @classmethod
    def diagnose(cls, options: JsonMapping) -> list[Finding]:
        """See `Sandbox.diagnose`."""
        return list(diagnose(parse_options(DockerOptions, options, cls.name)))

    @classmethod
    def sweep(cls, options: JsonMapping) -> list[str]:
        """Remove containers whose lease has expired, or whose owner was a process of this machine that has ended."""
        return sweep(parse_options(DockerOptions, options, cls.name).base_url)

    # --- what it offers -------------------------------------------------------------------------------------

    @property
    def _isolation(self) -> str:
        return "vm" if self.options.runtime in VM_RUNTIMES else "container"

    @property
    def capabilities(self) -> Capabilities:
        """See `Sandbox.capabilities`."""
        notes = self._runner_notes()
        if self._isolation == "container":
            notes.append("The container shares the engine's kernel: a kernel exploit escapes.")
        if self._copies_python:
            notes.append(f"The image has no Python: the runner uses a copy of this machine's in {PORTABLE_FOLDER}.")
        if "size" not in self.options.storage_opt:
            notes.append("Disk is limited per file, not in total.")
        return Capabilities(
            backend=self.name,
            isolation=self._isolation,
            network=self.spec.access,
            notes=tuple(notes),
        )

    @property
    def image_digest(self) -> str:
        """See `Sandbox.image_digest`."""
        return self._image_id

    # --- start ----------------------------------------------------------------------------------------------

    def _start(self, deadline: float) -> None:
        """Start the container; if its image turns out to have no Python, start another one with a copied Python."""
        try:
            super()._start(deadline)
        except SandboxStartError as error:
            if self._copies_python or not self.options.copy_python or NO_PYTHON_SAID not in error.detail:
                raise
            log.info("sandbox %s: the image has no Python; starting again with this machine's", self.id)
            _WITHOUT_PYTHON.add(self._image_id)
            self._close()
            super()._start(deadline)

    def _connect(self, deadline: float) -> ByteStream:
        try:
            return self._start_container(deadline)
        except SandboxStartError as error:
            self._unresponsive = error.reason == "timeout"
            raise

    def _start_container(self, deadline: float) -> ByteStream:
        base_url = self.options.base_url
        engine = self._engine = connect(base_url, self._call_seconds(deadline))
        image = self.spec.image or self.options.default_image or self._default_image()
        found = self._bring_image(engine, image, deadline)
        self._image_id = found.get("Id", "")
        self._copies_python = self._image_id in _WITHOUT_PYTHON
        if self._copies_python and (why := why_not_portable(found.get("Architecture", ""))):
            text = f"image {image!r} has no Python, and {why}. Install Python 3.6 or newer in the image"
            raise SandboxStartError(text, reason="image")
        start_guard(base_url)
        self._volumes = {
            volume_of(engine, folder, image, deadline): {"bind": place, "mode": "ro"}
            for place, folder in self.spec.mounts.items()
        }
        with gate("docker-start", self.options.starting, deadline, self._cancelled):
            self._check_wanted()
            # Set before the engine replies, as the reply may be lost. The container without Python may still exist.
            self._container = PREFIX + self.id + ("-python" if self._copies_python else "")
            with engine_errors("create a container", base_url):
                engine.timeout = self._call_seconds(deadline)
                self._create(engine, image, found)
            for what, data in self._own_files(found):
                with engine_errors(f"copy {what} into a container", base_url):
                    engine.timeout = self._call_seconds(deadline)
                    engine.put_archive(self._container, "/", data)
            with engine_errors("attach to a container", base_url):
                engine.timeout = self._call_seconds(deadline)
                self._stream = DockerStream(attach(engine, self._container))
            try:
                self._check_wanted()
                with engine_errors("start a container", base_url):
                    engine.timeout = self._call_seconds(deadline)
                    engine.start(self._container)
                with contextlib.suppress(ConnectionError):  # it has ended, and its last words tell why
                    self._stream.write(boot_input(runner_source()), deadline - time.monotonic())
            except BaseException:
                self._stream.close()  # no channel owns it yet
                raise
        log.debug("sandbox %s: container %s of image %s started", self.id, self._container, image)
        return self._stream

    def _call_seconds(self, deadline: float) -> float:
        left = deadline - time.monotonic()
        if left <= 0:
            raise SandboxStartError("the sandbox did not start in time", reason="timeout", retryable=True)
        return min(self.options.timeout, left)

    def _check_wanted(self) -> None:
        if self.closed:
            raise SandboxClosed("closed while it started")

    def _bring_image(self, engine: docker.APIClient, image: str, deadline: float) -> JsonObject:
        pull = self.options.pull
        if pull != "always" and (found := find_image(engine, image)):
            return found
        if self.spec.build:
            return build_dockerfile(
                engine,
                image,
                self.spec.build,
                deadline=deadline,
                cancelled=self._cancelled,
                base_url=self.options.base_url,
            )
        if pull == "never":
            text = f"the Docker engine has no image {image!r}, and pull='never'. Run `docker pull {image}`"
            raise SandboxStartError(text, reason="image")
        pull_image(
            engine,
            image,
            timeout=min(self.options.pull_timeout, deadline - time.monotonic()),
            min_free_mb=self.options.min_free_mb,
            wanted=lambda: not self.closed,
            purpose=f"sandbox {self.id}",
        )
        return find_image(engine, image) or {}

    def _create(self, engine: docker.APIClient, image: str, found: JsonObject) -> None:
        self._may_appear = True  # if the reply is lost, the engine may still be creating the container
        try:
            self._request_container(engine, image, is_root=self._is_root(found))
            self._may_appear = False
        except docker.errors.APIError:
            self._may_appear = False
            raise

    def _is_root(self, found: JsonObject) -> bool:
        """Return whether commands run as root, who can write `/etc/hosts`."""
        user = self.spec.user or (found.get("Config") or {}).get("User") or "root"
        return user.partition(":")[0] in ("root", "0")

    def _own_files(self, found: JsonObject) -> Iterator[tuple[str, bytes]]:
        """Yield archives to unpack in the container before its start, each with its name in errors."""
        if self._copies_python:
            yield "Python", pack_portable_python()
        if self.spec.closed and not self._is_root(found):
            yield "/etc/hosts", one_file("etc/hosts", HOSTS.encode())

    def _request_container(self, engine: docker.APIClient, image: str, *, is_root: bool) -> None:
        """Create the container.

        Without a network, the engine leaves it alone. The container has a network namespace with a loopback device in
        any case. What the engine would add is a program that runs at the start, records on its disk, `/etc/hosts`, and
        a loopback device without IPv6.
        """
        spec, options = self.spec, self.options
        memory = (spec.memory_mb or options.memory_mb) << 20
        host = engine.create_host_config(
            auto_remove=True,
            log_config=docker.types.LogConfig(type="none"),  # otherwise the engine writes every byte to its disk
            network_mode="none" if spec.closed else options.egress_network,
            mem_limit=memory,
            memswap_limit=memory,
            cpu_period=CPU_PERIOD,
            cpu_quota=int((spec.cpus or options.cpus) * CPU_PERIOD),
            pids_limit=spec.pids,
            cap_drop=["ALL"],
            cap_add=list(options.cap_add),
            security_opt=list(options.security_opt),
            storage_opt=options.storage_opt or None,
            binds=self._volumes or None,
            runtime=options.runtime,
        )
        host |= {"MaskedPaths": MASKED, "ReadonlyPaths": [f"/proc/{name}" for name in READ_ONLY]}
        engine.create_container(
            image,
            name=self._container,
            entrypoint=start_command(BOOT, WRITE_HOSTS if is_root and spec.closed else ""),
            command=[],
            network_disabled=spec.closed,
            stdin_open=True,  # and not detached: docker-py then sets StdinOnce
            hostname="sandbox",
            user=spec.user,
            working_dir=self.workdir,  # created if the image lacks it
            host_config=host,
            labels={**spec.labels, **labels(self.id, spec.ttl)},
        )

    def _bring_mounts(self, deadline: float) -> None:
        """Do nothing: the engine mounts volumes."""

    # --- end --------------------------------------------------------------------------------------------------

    def _disconnect(self) -> None:
        """Remove the container. A runner that was started has lost its input, so it exits in any case.

        A thread removes it and retries if the engine fails. An engine that is known to hang is not waited for.
        """
        engine, container = self._engine, self._container
        if self.closed:
            self._cancelled.set()
        if engine is None:
            return
        if not container:
            engine.close()
            return
        tried = threading.Event()
        arguments = (engine, container, tried, self.options.removing, self._may_appear)
        threading.Thread(target=_remove, args=arguments, name=f"remove {container}", daemon=True).start()
        if not self._unresponsive:
            tried.wait(REMOVE_SECONDS)

    def _last_words(self) -> str:
        return self._stream.errors.decode("utf-8", "replace").strip() if self._stream else ""

    def _explain_loss(self, loss: SandboxLost) -> SandboxLost:
        """See `ContainerSandbox._explain_loss`; the engine knows why a container ended."""
        self._unresponsive = loss.reason == "unresponsive"
        if loss.reason != "killed" or self._engine is None or self.closed:
            return loss
        found = why_it_ended(self._engine, self._container, EXPLAIN_SECONDS)
        if found is None:
            return loss
        reason, text = found
        return SandboxLost(f"the sandbox is gone: {text}", reason=reason, detail=self._last_words())


def one_file(path: str, content: bytes) -> bytes:
    """Return a tar archive of one file, which belongs to root."""
    buffer = io.BytesIO()
    member = tarfile.TarInfo(path)
    member.size = len(content)
    with tarfile.open(fileobj=buffer, mode="w") as packed:
        packed.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _remove(engine: docker.APIClient, container: str, tried: threading.Event, places: int, may_appear: bool) -> None:
    """Remove a container, retrying transient failures. Sets `tried` after the first attempt.

    If the container `may_appear`, a missing one is retried too: an engine under load finishes abandoned requests.
    """
    started = time.monotonic()
    end = started + REMOVE_AGAIN_SECONDS
    with contextlib.closing(engine):
        while time.monotonic() < end:
            engine.timeout = REMOVE_SECONDS
            try:
                with gate("docker-remove", places, end):
                    engine.remove_container(container, force=True, v=True)
                break
            except SandboxStartError as error:  # every place of the gate stayed taken
                log.warning("container %s was not removed: %s", container, error)
                break
            except ENGINE_ERRORS as error:
                status = getattr(error, "status_code", None)
                coming = may_appear and time.monotonic() < started + LATE_SECONDS
                if status == CONFLICT or (status == NOT_FOUND and not coming) or is_unreachable(error):
                    break
                level = logging.DEBUG if status == NOT_FOUND else logging.WARNING
                log.log(level, "removing container %s failed; retrying: %s", container, error)
            tried.set()
            time.sleep(REMOVE_PAUSE)
        else:
            log.warning("container %s was not removed in %.0f s", container, REMOVE_AGAIN_SECONDS)
    tried.set()
