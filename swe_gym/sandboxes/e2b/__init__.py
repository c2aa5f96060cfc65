"""Sandboxes of E2B, of Tencent's Agent Sandbox (AGS) and of other services with E2B's protocol.

The service starts a virtual machine from a template. Through the official SDK, this package starts a relay in it, and
the relay starts the runner. Commands are frames, as on every backend; see `relay` and `stream` for how they travel over
short or interrupted calls.
"""

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import ClassVar

from pydantic import SecretStr

from ...errors import SandboxClosed, SandboxLost, SandboxStartError, SweGymError
from ...types import Capabilities, JsonMapping
from ..base import CLEAN_ENV
from ..channel import LONGEST_WAIT, ByteStream
from ..container import ContainerSandbox
from ..types import Finding, SandboxSpec, demand_isolation, parse_options
from .ags import Tools, ToolSettings
from .sdk import AGS_DOMAIN, AGS_REGION, E2BOptions, is_ags
from .service import Instance, check_service
from .stream import ResumedStream

__all__ = ["AGSSandbox", "E2BOptions", "E2BSandbox", "ToolSettings", "Tools"]

SEND_SECONDS = 5.0
"""Seconds before a call that sends data is cancelled and repeated."""


class E2BSandbox(ContainerSandbox):
    """A sandbox of a service with E2B's protocol."""

    name = "e2b"

    def __init__(self, spec: SandboxSpec) -> None:
        options = self._parse(spec.options)
        super().__init__(public_spec(spec, options), options.activate)
        self.options = options
        advice = "Declare what the service provides with the backend option `isolation`."
        demand_isolation(spec, options.isolation, self.name, advice)
        self._instance = Instance(options, self.spec, self.id)
        self._opening: Future[None] = Future()
        self._stream: ResumedStream | None = None

    # --- the backend ----------------------------------------------------------------------------------------

    @classmethod
    def _parse(cls, options: JsonMapping) -> E2BOptions:
        return parse_options(E2BOptions, options, cls.name)

    @classmethod
    def check(cls, specs: Sequence[SandboxSpec]) -> list[Finding]:
        """See `Sandbox.check`: the service answers and accepts the key."""
        return [Finding("service", True, f"{check_service(cls._parse(specs[0].options))} answers")]

    @classmethod
    def diagnose(cls, options: JsonMapping) -> list[Finding]:
        """See `Sandbox.diagnose`."""
        parsed = cls._parse(options)
        try:
            return [Finding("service", True, f"{check_service(parsed)} answers")]
        except SweGymError as error:
            what, _, fix = str(error).partition(". ")
            return [Finding("service", False, what, fix or "check the key, the domain and the network")]

    # --- what it offers -------------------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:
        """See `Sandbox.capabilities`."""
        notes = ["The template limits processes, CPU and memory.", "Disk is limited per file, not in total."]
        notes += self._runner_notes()
        if not self._closes_network():
            notes.append("The sandbox tool sets the network: AGS has no setting per sandbox.")
        return Capabilities(
            backend=self.name,
            isolation=self.options.isolation,
            network="open" if not self._closes_network() else self.spec.access,
            notes=tuple(notes),
        )

    def _closes_network(self) -> bool:
        return not is_ags(self._instance.domain)

    @property
    def workdir(self) -> str:
        """See `Sandbox.workdir`."""
        home = self._image_env.get("HOME", "") if self.options.workdir_in_home else ""
        return home.rstrip("/") + self.spec.workdir

    # --- life -----------------------------------------------------------------------------------------------

    def _connect(self, deadline: float) -> ByteStream:
        self._open_instance(deadline)
        self._stream = ResumedStream(
            self._instance,
            name=self.id,
            send_seconds=min(SEND_SECONDS, self.options.request_timeout),
            listen_seconds=self.options.listen_seconds,
            renew_seconds=self.options.timeout / 3,
        )
        return self._stream

    def _open_instance(self, deadline: float) -> None:
        """Open it in another thread, so that neither the deadline nor `close` waits for a hanging service."""

        def work() -> None:
            try:
                self._instance.open(deadline)
            except BaseException as error:  # noqa: BLE001  handed to the waiting thread
                _settle(self._opening, error)
            else:
                _settle(self._opening, None)

        threading.Thread(target=work, name=f"e2b-{self.id}-open", daemon=True).start()
        try:
            self._opening.result(min(LONGEST_WAIT, max(0.0, deadline - time.monotonic())))
        except CancelledError:
            raise SandboxClosed(f"{self} was closed while it started") from None
        except TimeoutError:
            text = "the service did not start the sandbox in time"
            late = SandboxStartError(text, reason="timeout", retryable=True)
            raise self._instance.trouble or late from None

    def _disconnect(self) -> None:
        self._opening.cancel()
        self._instance.kill()

    def _last_words(self) -> str:
        return (self._stream.errors.strip() or self._stream.trouble) if self._stream else ""

    def _explain_loss(self, loss: SandboxLost) -> SandboxLost:
        """See `ContainerSandbox._explain_loss`; adds the service's timeout or its last error."""
        if loss.reason == "killed" and self._instance.expired:
            return SandboxLost(str(loss), reason="expired")
        trouble = self._stream.trouble if self._stream and loss.reason == "unresponsive" else ""
        return SandboxLost(str(loss), reason=loss.reason, detail=trouble) if trouble else loss

    def _read_environment(self) -> dict[str, str]:
        """Return the template's environment without the service's variables, which differ between sandboxes."""
        found = super()._read_environment().items()
        return {key: value for key, value in found if not key.startswith("E2B_") and key not in CLEAN_ENV}


class AGSSandbox(E2BSandbox):
    """A sandbox of AGS. Its domain is the option's, else that of E2B_DOMAIN, else that of the region AGS_REGION."""

    name = "ags"
    quota: ClassVar[int | None] = 10
    """Sandboxes that a personal account may run at once."""

    @classmethod
    def _parse(cls, options: JsonMapping) -> E2BOptions:
        region = os.environ.get("AGS_REGION") or AGS_REGION
        default = {} if os.environ.get("E2B_DOMAIN") else {"domain": f"{region}.{AGS_DOMAIN}"}
        return super()._parse({**default, **options})


def public_spec(spec: SandboxSpec, options: E2BOptions) -> SandboxSpec:
    """Return the spec with the template as the default image and the key hidden."""
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
        pass  # the start was cancelled, and `kill` has ended what was opened
