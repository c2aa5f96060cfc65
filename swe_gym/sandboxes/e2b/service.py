"""One sandbox of the service, through the official SDK."""

import base64
import contextlib
import functools
import itertools
import logging
import shlex
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from ...errors import SandboxClosed, SandboxError, SandboxStartError, UsageError
from ...guests import bundle
from ...guests.relay import GREETING
from ..container import NO_PYTHON, start_command
from ..runner_sandbox import runner_source
from ..types import SandboxSpec
from .sdk import (
    E2BOptions,
    back_off,
    create_sandbox,
    in_time,
    is_a,
    is_final,
    judge,
    load_sdk,
    resolve_access,
    select_supported,
    status_of,
    whole_seconds,
)
from .stream import Cut, Gone

log = logging.getLogger(__name__)

LABEL = "swe_gym"
"""Metadata entry of every sandbox of this package; its value is the sandbox's id."""

ASK_SECONDS = 8.0
MOST_BEFORE_GREETING = 1 << 16
"""Characters of output in which the relay's greeting must come."""

KILL_SECONDS = 8.0
CHECK_SECONDS = 5.0
LONGEST_LIFE = 7 * 86400.0

WORTH_WAITING = ("rate_limit", "capacity")
"""Reasons after which the service surely created no sandbox, and may create one later."""


def check_service(options: E2BOptions) -> str:
    """Ask a service for a list of sandboxes, and return its domain.

    Raises:
        UsageError: The key is missing or invalid, or the service does not answer.
        MissingDependency: The SDK is not installed.
    """
    access, sdk = resolve_access(options), load_sdk()
    arguments = {**access.arguments(), "request_timeout": ASK_SECONDS}
    try:
        in_time(lambda: sdk.Sandbox.list(**arguments).next_items(), ASK_SECONDS)
    except Exception as error:  # noqa: BLE001  the SDK's errors have no common base
        if status_of(error) not in (404, 405):  # a service may have no list
            raise UsageError(f"the sandboxes of {access.api_url} cannot be used: {judge(error)[2]} ({error})") from None
    return access.domain


class Greeted(Exception):
    """The relay has started."""


class Instance:
    """A sandbox of the service with the relay in it, as `ResumedStream` uses it.

    Attributes:
        trouble: Reason why the service has not created the sandbox yet.
    """

    def __init__(self, options: E2BOptions, spec: SandboxSpec, name: str) -> None:
        self._options = options
        self._spec = spec
        self._name = name
        self._access = resolve_access(options)
        self._check_seconds = min(CHECK_SECONDS, options.request_timeout)
        self._sdk = load_sdk()
        self._lock = threading.Lock()
        self._killed = threading.Event()
        self._box: Any = None
        self._pid = 0
        self._expires = 0.0
        self.trouble: SandboxStartError | None = None

    @property
    def domain(self) -> str:
        """Domain of the service."""
        return self._access.domain

    @property
    def expired(self) -> bool:
        """Whether the service has ended the sandbox because it was not renewed."""
        return time.monotonic() >= self._expires > 0

    # --- life ---------------------------------------------------------------------------------------------

    def open(self, deadline: float) -> None:
        """Create the sandbox and start the relay in it.

        Raises:
            SandboxStartError: The service did not create the sandbox, or the relay did not start.
            SandboxClosed: `kill` was called.
        """
        self._create_patiently(deadline)
        try:
            self._launch(deadline)
        except SandboxError:
            raise
        except Exception as error:  # noqa: BLE001  the SDK's errors have no common base
            raise self._start_error("start the runner", error) from None

    def kill(self) -> None:
        """Have the service end it, now or once it is created. Idempotent; never raises; takes at most 8 s."""
        self._killed.set()
        with self._lock:
            box = self._box
        if box is not None:
            seconds = min(KILL_SECONDS, self._options.request_timeout)
            try:
                in_time(lambda: box.kill(request_timeout=seconds), seconds)
            except Exception as error:  # noqa: BLE001  the SDK's errors have no common base
                level = logging.DEBUG if is_final(error) else logging.WARNING
                text = "sandbox %s was not ended; the service ends it after its timeout: %s"
                log.log(level, text, self._name, self._describe(error))

    def _create_patiently(self, deadline: float) -> None:
        """Create the sandbox; wait and retry while the service is at capacity or limits the rate."""
        for attempt in itertools.count():
            before = time.monotonic()
            try:
                box = self._create()  # has its own deadline, so that a late sandbox is noticed and ended
            except Exception as error:  # noqa: BLE001  the SDK's errors have no common base
                failure = self._start_error("create a sandbox", error)
                if failure.reason not in WORTH_WAITING:
                    if failure.retryable and not is_a(error, "ConnectError"):  # else it may have been created
                        self._kill_unanswered()
                    raise failure from None
                pause = getattr(error, "retry_after", None) or back_off(attempt)
                if time.monotonic() + pause >= deadline:
                    raise failure from None
                self.trouble = failure
                log.warning("sandbox %s: %s; retrying in %.0f s", self._name, failure, pause)
                if self._killed.wait(pause):
                    raise SandboxClosed("closed while it waited for the service") from None
                continue
            log.debug("sandbox %s was created in %.1f s", self._name, time.monotonic() - before)
            self.trouble = None
            self._expires = before + self._options.timeout
            with self._lock:
                self._box = box
            if self._killed.is_set():
                self.kill()
                raise SandboxClosed("closed while it was created")
            return

    def _create(self) -> Any:
        options, spec = self._options, self._spec
        wanted = {
            "template": options.choose_template(spec.image),
            "timeout": whole_seconds(options.timeout),
            "metadata": self._metadata(),
            "secure": True,  # the daemon asks for a token; newer services always do
            "allow_internet_access": not spec.closed,
        }
        return create_sandbox(self._access, wanted, name=self._name, timeout=options.request_timeout)

    def _metadata(self) -> dict[str, str]:
        return {
            **self._spec.labels,
            **self._options.metadata,
            **self._options.image_metadata(self._spec, self.domain),
            LABEL: self._name,
        }

    def _kill_unanswered(self) -> None:
        """End the sandbox that the service may have created for a call without a reply."""
        try:
            query = self._sdk.SandboxQuery(metadata={LABEL: self._name})
            access = {**self._access.arguments(), "request_timeout": self._check_seconds}
            for found in self._sdk.Sandbox.list(query=query, **access).next_items():
                self._sdk.Sandbox.kill(found.sandbox_id, **access)
        except Exception as error:  # noqa: BLE001  the SDK's errors have no common base
            text = "sandbox %s may have been created; the service ends it after its timeout: %s"
            log.warning(text, self._name, self._describe(error))

    def _launch(self, deadline: float) -> None:
        """Start the relay as a background process and wait for its greeting."""
        commands, user = self._box.commands, self._spec.user or "root"
        workdir = "~" * self._options.workdir_in_home + self._spec.workdir
        if user != "root" and not self._options.workdir_in_home:
            place = shlex.quote(self._spec.workdir)
            owner = shlex.quote(user)
            limit = max(0.1, deadline - time.monotonic())
            commands.run(f"mkdir -p {place} && chown {owner} {place}", user="root", timeout=whole_seconds(limit))
        life = min(self._spec.ttl, LONGEST_LIFE) + 60  # then the daemon kills it
        handle = commands.run(
            "exec " + shlex.join(start_command(relay_program(workdir))),
            background=True,
            user=user,
            cwd="/",
            timeout=whole_seconds(life),
            **select_supported(commands.run, stdin=True, retain_output=False),
        )
        self._pid = handle.pid
        errors = ErrorTail()
        try:
            handle.wait(on_stdout=wait_for_greeting(), on_stderr=errors.add)
        except Greeted:
            handle.disconnect()
        except self._sdk.CommandExitException as ended:
            why = "it has no Python" if ended.exit_code == NO_PYTHON else f"exit code {ended.exit_code}"
            text = f"the template cannot run the runner: {why}"
            raise SandboxStartError(text, reason="setup", detail=self._clean(errors.text)) from None

    # --- methods of `RemoteProcess`-------------------------------------------------------------------------

    def send(self, text: str, timeout: float) -> None:
        """See `RemoteProcess.send`."""
        with self._translate_errors():
            self._box.commands.send_stdin(self._pid, text, request_timeout=timeout)

    def follow(
        self, opened: Callable[[], None], output: Callable[[str], None], errors: Callable[[str], None], seconds: int
    ) -> None:
        """See `RemoteProcess.follow`."""
        until = time.monotonic() + seconds
        commands = self._box.commands
        with self._translate_errors():
            try:
                handle = commands.connect(
                    self._pid, timeout=seconds, **select_supported(commands.connect, retain_output=False)
                )
                opened()
                handle.wait(on_stdout=output, on_stderr=errors)
            except self._sdk.CommandExitException as ended:
                raise Gone(f"its runner ended with exit code {ended.exit_code}") from None
            except self._sdk.TimeoutException:
                if time.monotonic() < until:  # else the time to listen is over
                    raise
                return
            raise Gone("its runner ended")

    def check(self) -> None:
        """See `RemoteProcess.check`."""
        with self._translate_errors():
            in_time(lambda: self._box.get_info(request_timeout=self._check_seconds), self._check_seconds)

    def renew(self) -> None:
        """See `RemoteProcess.renew`."""
        before = time.monotonic()
        with self._translate_errors():
            seconds = whole_seconds(self._options.timeout)
            call = functools.partial(self._box.set_timeout, seconds, request_timeout=self._check_seconds)
            in_time(call, self._check_seconds)
        self._expires = before + self._options.timeout

    # --- errors -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Turn errors of the SDK into `Gone`, if the sandbox has ended, or `Cut`, if the call may be retried."""
        try:
            yield
        except (Cut, Gone):
            raise
        except Exception as error:  # noqa: BLE001  the SDK's errors have no common base
            raise (Gone if is_final(error) else Cut)(self._describe(error)) from None

    def _start_error(self, what: str, error: Exception) -> SandboxStartError:
        """Translate an error of the service. The original may contain the key, so it is not chained."""
        reason, retryable, advice = judge(error)
        text = f"the service at {self._access.api_url} did not {what}: {advice}"
        return SandboxStartError(text, reason=reason, retryable=retryable, detail=self._describe(error))

    def _describe(self, error: Exception) -> str:
        return self._clean(f"{type(error).__name__}: {error}")

    def _clean(self, text: str) -> str:
        """Remove the key from a text."""
        return text.replace(self._access.api_key.get_secret_value(), "***")


class ErrorTail:
    """The last characters of a stream."""

    def __init__(self) -> None:
        self.text = ""

    def add(self, piece: str) -> None:
        """Add a piece of the stream."""
        self.text = (self.text + piece)[-MOST_BEFORE_GREETING:]


def wait_for_greeting() -> Callable[[str], None]:
    """Return a function that takes pieces of output and raises `Greeted` once they contain the greeting.

    It raises `SandboxStartError` if there is no greeting in much output.
    """
    seen = ""

    def look(text: str) -> None:
        nonlocal seen
        seen += text
        if GREETING in seen.split("\n")[:-1]:
            raise Greeted
        if len(seen) > MOST_BEFORE_GREETING:
            raise SandboxStartError("the service sent other output than the relay's", reason="setup", detail=seen[:200])

    return look


def relay_program(workdir: str, runner: str = "") -> str:
    """Return the relay with the runner, compressed, as a text for `python3 -c`."""
    program = f"{bundle('relay')}\nserve({runner or runner_source()!r}, {workdir!r})\n"
    packed = base64.b85encode(zlib.compress(program.encode(), 9)).decode()
    return f"import base64,zlib;exec(zlib.decompress(base64.b85decode({packed!r})))"
