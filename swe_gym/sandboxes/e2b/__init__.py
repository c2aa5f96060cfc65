"""Sandboxes of E2B, of Tencent's Agent Sandbox (AGS) and of others that speak E2B's protocol.

The service starts a virtual machine from a template; in it, through the official SDK, we start the relay, and the relay
the runner. Commands are frames, as on every backend, over calls that are short or may be cut: see `relay` and `stream`.
"""

import threading
import time
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import Any

from pydantic import SecretStr

from ...errors import SandboxClosed, SandboxLost, SandboxStartError
from ...types import Capabilities
from ..base import CLEAN_ENV, SandboxSpec, demand_isolation, parse_options
from ..channel import LONGEST_WAIT, ByteStream
from ..container import ContainerSandbox
from .options import E2BOptions, is_ags
from .service import Instance
from .stream import ResumedStream

__all__ = ["E2BOptions", "E2BSandbox"]

SEND_SECONDS = 5.0
"""What is sent should arrive so soon; a call that takes longer is made again."""


class E2BSandbox(ContainerSandbox):
    """A sandbox of a service that speaks E2B's protocol."""

    name = "e2b"
    slack = 10.0

    def __init__(self, spec: SandboxSpec) -> None:
        options = parse_options(E2BOptions, spec.options, self.name)
        super().__init__(public_spec(spec, options), options.activate)
        self.options = options
        advice = "Say what the service gives with sandbox_options={'options': {'isolation': ...}}."
        demand_isolation(spec, options.isolation, self.name, advice)
        self._instance = Instance(options, self.spec, self.id)
        self._opening: Future[None] = Future()
        self._stream: ResumedStream | None = None

    @property
    def capabilities(self) -> Capabilities:
        """See `Sandbox.capabilities`."""
        notes = ["Processes, CPU and memory are those of the template.", "Disk is capped per file, not in total."]
        notes += self._runner_notes()
        given_by_tool = is_ags(self._instance.domain)
        if given_by_tool:
            notes.append("The network is the tool's: AGS does not take it for each sandbox.")
        return Capabilities(
            backend=self.name,
            isolation=self.options.isolation,
            network="open" if given_by_tool else self.spec.network,
            notes=tuple(notes),
        )

    @property
    def workdir(self) -> str:
        """See `Sandbox.workdir`."""
        home = self._image_env.get("HOME", "") if self.options.workdir_in_home else ""
        return home.rstrip("/") + self.spec.workdir

    # --- life -----------------------------------------------------------------------------------------------

    def _start(self, deadline: float) -> None:
        try:
            super()._start(deadline)
        except SandboxLost as lost:
            text = "the sandbox was lost while it started"
            raise SandboxStartError(text, reason="setup", retryable=True, detail=str(lost)) from lost
        except SandboxStartError as error:
            lost_to = error.__cause__
            if isinstance(lost_to, SandboxLost) and lost_to.reason == "unresponsive":
                text = "the service did not bring the sandbox up in time"
                raise SandboxStartError(text, reason="timeout", retryable=True, detail=error.detail) from lost_to
            raise

    def _connect(self, deadline: float) -> ByteStream:
        self._open_instance(deadline)
        self._stream = ResumedStream(
            self._instance,
            name=f"e2b-{self.id}",
            send_seconds=min(SEND_SECONDS, self.options.request_timeout),
            listen_seconds=self.options.listen_seconds,
            renew_seconds=self.options.timeout / 3,
        )
        return self._stream

    def _open_instance(self, deadline: float) -> None:
        """Open it in a thread of its own: a service that hangs does not hang us, and `close` need not wait."""

        def work() -> None:
            try:
                self._instance.open(deadline)
            except BaseException as error:  # noqa: BLE001  handed to whoever waits
                _settle(self._opening, error)
            else:
                _settle(self._opening, None)

        threading.Thread(target=work, name=f"e2b-{self.id}-open", daemon=True).start()
        try:
            self._opening.result(min(LONGEST_WAIT, max(0.0, deadline - time.monotonic())))
        except CancelledError:
            raise SandboxClosed(f"{self} was closed while it started") from None
        except TimeoutError:
            text = "the service did not bring the sandbox up in time"
            late = SandboxStartError(text, reason="timeout", retryable=True)
            raise self._instance.trouble or late from None

    def _disconnect(self) -> None:
        self._opening.cancel()
        self._instance.kill()

    def _last_words(self) -> str:
        return (self._stream.errors.strip() or self._stream.trouble) if self._stream else ""

    def _explained(self, lost: SandboxLost) -> SandboxLost:
        """With what the service said, where it is the service that does not answer; and whether the time was over."""
        if lost.reason == "killed" and self._instance.expired:
            return SandboxLost(str(lost), reason="expired")
        trouble = self._stream.trouble if self._stream and lost.reason == "unresponsive" else ""
        return SandboxLost(str(lost), reason=lost.reason, detail=trouble) if trouble else lost

    def _read_environment(self, deadline: float) -> dict[str, str]:
        """What the template sets, but not what the service says of the sandbox, which differs each time."""
        found = super()._read_environment(deadline).items()
        return {key: value for key, value in found if not key.startswith("E2B_") and key not in CLEAN_ENV}

    def _request(
        self, op: str, payload: bytes = b"", *, timeout: float, path: str = "", **fields: Any
    ) -> tuple[dict[str, Any], bytes]:
        try:
            return super()._request(op, payload, timeout=timeout, path=path, **fields)
        except SandboxLost as lost:
            raise self._explained(lost) from None


def public_spec(spec: SandboxSpec, options: E2BOptions) -> SandboxSpec:
    """The spec as the sandbox keeps it: the template as the image where there is none, and the key hidden."""
    hidden = dict(spec.options)
    if isinstance(hidden.get("api_key"), str):
        hidden["api_key"] = SecretStr(hidden["api_key"])
    return spec.model_copy(update={"image": spec.image or options.template, "options": hidden})


def _settle(future: "Future[None]", error: BaseException | None) -> None:
    try:
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
    except InvalidStateError:
        pass  # nobody waits any more, and `kill` has ended what was opened
