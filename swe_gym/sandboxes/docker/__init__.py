"""Sandboxes in containers of Docker, rootless Docker or Podman: the runner is the first process of each.

The hot path has no `docker exec` in it: a command is one frame. Standard input is opened once (`StdinOnce`), so the
engine closes it when we are gone, by SIGKILL too; the runner then ends, and with it the container, which removes
itself.
"""

import contextlib
import threading
import time
from typing import Any

import docker
import docker.errors
import docker.types

from ...errors import SandboxClosed, SandboxLost, SandboxStartError
from ...types import Capabilities
from ..base import SandboxSpec, demand_isolation, parse_options
from ..channel import ByteStream
from ..container import NO_PYTHON_SAID, ContainerSandbox, start_command
from ..gates import gate
from ..lent_python import PLACE, archive, problem
from ..runner_sandbox import runner_source
from .engine import ENGINE_ERRORS, attach, connect, engine_errors, nobody_there, why_it_ended
from .images import find_image, pull_image
from .options import DockerOptions
from .owners import PREFIX, guard, labels, sweep
from .stream import DockerStream

__all__ = ["DockerOptions", "DockerSandbox", "sweep"]

VM_RUNTIMES = ("runsc", "kata", "kata-runtime", "io.containerd.kata.v2")
"""Runtimes that put a kernel of its own between a container and the host's."""

CPU_PERIOD = 100_000
"""Microseconds. A quota of it may, unlike "nano CPUs", be larger than the machine."""

REMOVE_SECONDS = 8.0
REMOVE_AGAIN_SECONDS = 60.0
REMOVE_PAUSE = 0.5
COMING_SECONDS = 15.0
"""How long a container may be awaited whose creation was asked for and never answered, to remove it."""

GONE, GOING = 404, 409
EXPLAIN_SECONDS = 2.0

_WITHOUT_PYTHON: set[str] = set()
"""Ids of images that were found to have none, so that one container is enough the next time."""


class DockerSandbox(ContainerSandbox):
    """A sandbox in a container."""

    name = "docker"

    def __init__(self, spec: SandboxSpec) -> None:
        self.options = parse_options(DockerOptions, spec.options, self.name)
        super().__init__(spec, self.options.activate, self.options.running)
        advice = "Name a runtime that gives more, such as sandbox_options={'options': {'runtime': 'runsc'}}."
        demand_isolation(spec, self._isolation, self.name, advice)
        self._engine: docker.APIClient | None = None
        self._container = ""
        self._may_come = False
        self._stream: DockerStream | None = None
        self._unresponsive = False
        self._image_id = ""
        self._lends = False

    @property
    def _isolation(self) -> str:
        return "vm" if self.options.runtime in VM_RUNTIMES else "container"

    @property
    def capabilities(self) -> Capabilities:
        """See `Sandbox.capabilities`."""
        notes = self._runner_notes()
        if self._isolation == "container":
            notes.append("It shares the engine's kernel: it does not stop an exploit of the kernel.")
        if self._lends:
            notes.append(f"Its image has no Python: the runner has one of its own in {PLACE}.")
        if "size" not in self.options.storage_opt:
            notes.append("Disk is capped per file, not in total.")
        return Capabilities(
            backend=self.name,
            isolation=self._isolation,
            network=self.spec.network,
            notes=tuple(notes),
        )

    @property
    def image_digest(self) -> str:
        """See `Sandbox.image_digest`."""
        return self._image_id

    # --- life -----------------------------------------------------------------------------------------------

    def _start(self, deadline: float) -> None:
        try:
            self._start_with_some_python(deadline)
        except SandboxLost as loss:
            reason = "timeout" if loss.reason == "unresponsive" else "setup"
            raise SandboxStartError(
                "the sandbox was lost while it started", reason=reason, retryable=True, detail=str(loss)
            ) from loss

    def _start_with_some_python(self, deadline: float) -> None:
        """Start; where the image turns out to have no Python, that container has ended, and another one gets ours."""
        try:
            super()._start(deadline)
        except SandboxStartError as error:
            if self._lends or not self.options.lend_python or NO_PYTHON_SAID not in error.detail:
                raise
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
        where = self.options.base_url
        engine = self._engine = connect(where, self._call_seconds(deadline))
        image = self.spec.image or self.options.default_image or self._default_image()
        found = self._bring_image(engine, image, deadline)
        self._image_id = found.get("Id", "")
        self._lends = self._image_id in _WITHOUT_PYTHON
        if self._lends and (why := problem(found.get("Architecture", ""))):
            text = f"image {image!r} has no Python, and {why}. Install Python 3.6 or newer in the image"
            raise SandboxStartError(text, reason="image")
        guard(where)
        with gate("docker-start", self.options.starting, deadline, self._cancelled):
            self._check_wanted()
            # Known before the engine's reply, which may be lost; of its own, while the one without Python is going.
            self._container = PREFIX + self.id + ("-lent" if self._lends else "")
            with engine_errors("create a container", where):
                engine.timeout = self._call_seconds(deadline)
                self._create(engine, image)
            if self._lends:
                with engine_errors("bring Python into a container", where):
                    engine.timeout = self._call_seconds(deadline)
                    engine.put_archive(self._container, "/", archive())
            with engine_errors("attach to a container", where):
                engine.timeout = self._call_seconds(deadline)
                self._stream = DockerStream(attach(engine, self._container))
            try:
                self._check_wanted()
                with engine_errors("start a container", where):
                    engine.timeout = self._call_seconds(deadline)
                    engine.start(self._container)
            except BaseException:
                self._stream.close()  # nobody else has got it yet
                raise
        return self._stream

    def _call_seconds(self, deadline: float) -> float:
        left = deadline - time.monotonic()
        if left <= 0:
            raise SandboxStartError("the sandbox was not started in time", reason="timeout", retryable=True)
        return min(self.options.timeout, left)

    def _check_wanted(self) -> None:
        if self.closed:
            raise SandboxClosed("closed while it started")

    def _bring_image(self, engine: docker.APIClient, image: str, deadline: float) -> dict[str, Any]:
        pull = self.options.pull
        if pull != "always" and (found := find_image(engine, image)):
            return found
        if pull == "never":
            raise SandboxStartError(f"image {image!r} is not there, and pull='never'", reason="image")
        pull_image(
            engine,
            image,
            timeout=min(self.options.pull_timeout, deadline - time.monotonic()),
            min_free_mb=self.options.min_free_mb,
            wanted=lambda: not self.closed,
        )
        return find_image(engine, image) or {}

    def _create(self, engine: docker.APIClient, image: str) -> None:
        self._may_come = True  # where the engine's reply is lost, it may still be making the container
        try:
            self._ask_for_container(engine, image)
            self._may_come = False
        except docker.errors.APIError:
            self._may_come = False
            raise

    def _ask_for_container(self, engine: docker.APIClient, image: str) -> None:
        spec, options = self.spec, self.options
        memory = (spec.memory_mb or options.memory_mb) << 20
        host = engine.create_host_config(
            auto_remove=True,
            log_config=docker.types.LogConfig(type="none"),  # else every byte would be written to the engine's disk too
            network_mode="none" if spec.network == "none" else options.egress_network,
            mem_limit=memory,
            memswap_limit=memory,
            cpu_period=CPU_PERIOD,
            cpu_quota=int((spec.cpus or options.cpus) * CPU_PERIOD),
            pids_limit=spec.pids,
            cap_drop=["ALL"],
            cap_add=list(options.cap_add),
            security_opt=list(options.security_opt),
            storage_opt=options.storage_opt or None,
            runtime=options.runtime,
        )
        engine.create_container(
            image,
            name=self._container,
            entrypoint=start_command(runner_source()),
            command=[],
            stdin_open=True,  # and not detached: so docker-py sets StdinOnce
            hostname="sandbox",
            user=spec.user,
            working_dir=self.workdir,  # made where the image has none
            host_config=host,
            labels={**spec.labels, **labels(self.id, spec.ttl)},
        )

    # --- death ------------------------------------------------------------------------------------------------

    def _disconnect(self) -> None:
        """Have the container removed. Its runner has lost its input already, so it ends in any case if it was started.

        A thread asks for it, and goes on asking where the engine fails; one that is known to hang is not waited for.
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
        arguments = (engine, container, tried, self.options.removing, self._may_come)
        threading.Thread(target=_remove, args=arguments, name=f"remove {container}", daemon=True).start()
        if not self._unresponsive:
            tried.wait(REMOVE_SECONDS)

    def _last_words(self) -> str:
        return self._stream.errors.decode("utf-8", "replace").strip() if self._stream else ""

    def _request(
        self, op: str, payload: bytes = b"", *, timeout: float, path: str = "", **fields: Any
    ) -> tuple[dict[str, Any], bytes]:
        try:
            return super()._request(op, payload, timeout=timeout, path=path, **fields)
        except SandboxLost as loss:
            self._unresponsive = loss.reason == "unresponsive"
            raise self._explained(loss) from loss

    def _explained(self, loss: SandboxLost) -> SandboxLost:
        """The loss, with what the engine says of the container's end."""
        if loss.reason != "killed" or self._engine is None or self.closed:
            return loss
        found = why_it_ended(self._engine, self._container, EXPLAIN_SECONDS)
        if found is None:
            return loss
        reason, text = found
        return SandboxLost(f"the sandbox is gone: {text}", reason=reason, detail=self._last_words())


def _remove(engine: docker.APIClient, container: str, tried: threading.Event, places: int, may_come: bool) -> None:
    """Remove a container; `tried` is set once that was asked for. What fails for a passing reason is tried again.

    So is one that is not there, where it `may_come`: an engine under load goes on making what nobody waits for.
    """
    started = time.monotonic()
    end = started + REMOVE_AGAIN_SECONDS
    with contextlib.closing(engine), contextlib.suppress(SandboxStartError):  # others were removing all the time
        while time.monotonic() < end:
            engine.timeout = REMOVE_SECONDS
            try:
                with gate("docker-remove", places, end):
                    engine.remove_container(container, force=True, v=True)
            except ENGINE_ERRORS as error:
                status = getattr(error, "status_code", None)
                coming = may_come and time.monotonic() < started + COMING_SECONDS
                if status == GOING or (status == GONE and not coming) or nobody_there(error):
                    break
            else:
                break
            tried.set()
            time.sleep(REMOVE_PAUSE)
    tried.set()
