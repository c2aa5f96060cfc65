"""One sandbox of the service, through the official SDK: created, reached, renewed, killed."""

import base64
import contextlib
import functools
import itertools
import shlex
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from ...errors import SandboxClosed, SandboxError, SandboxStartError
from ...guests import bundle
from ...guests.relay import GREETING
from ..base import SandboxSpec
from ..container import NO_PYTHON, start_command
from ..runner_sandbox import runner_source
from .creation import create_sandbox
from .options import E2BOptions, resolve_access, whole_seconds
from .refusals import back_off, is_a, is_final, judge
from .sdk import in_time, load_sdk, supported
from .stream import Cut, Gone

LABEL = "swe_gym"
"""In the metadata of every sandbox of ours; its value is the sandbox's id."""

KILL_SECONDS = 8.0
CHECK_SECONDS = 5.0
LONGEST_LIFE = 7 * 86400.0

WORTH_WAITING = ("rate_limit", "capacity")
"""Reasons for which the service made no sandbox, and may make one later."""


class Greeted(Exception):
    """The relay said that it is there."""


class Instance:
    """A sandbox of the service with the relay in it; what `ResumedStream` needs of it, and its life.

    Attributes:
        trouble: Why the service has not created it yet.
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
        """The service's domain."""
        return self._access.domain

    @property
    def expired(self) -> bool:
        """Whether the service should have ended the sandbox by now because we did not renew it."""
        return time.monotonic() >= self._expires > 0

    # --- life ---------------------------------------------------------------------------------------------

    def open(self, deadline: float) -> None:
        """Create the sandbox and start the relay in it.

        Raises:
            SandboxStartError: The service did not give a sandbox, or it cannot run the relay.
            SandboxClosed: `kill` was called meanwhile.
        """
        self._create_patiently(deadline)
        try:
            self._launch(deadline)
        except SandboxError:
            raise
        except Exception as error:  # noqa: BLE001  the SDK's errors have no common base
            raise self._start_error("start the runner", error) from None

    def kill(self) -> None:
        """Have the service end it, now or as soon as it is created. Idempotent; raises nothing; takes at most 8 s."""
        self._killed.set()
        with self._lock:
            box = self._box
        if box is not None:
            seconds = min(KILL_SECONDS, self._options.request_timeout)
            with contextlib.suppress(Exception):  # gone is as good, and its timeout ends what cannot be reached
                in_time(lambda: box.kill(request_timeout=seconds), seconds)

    def _create_patiently(self, deadline: float) -> None:
        """Create, and wait where the service asks to come back later."""
        for attempt in itertools.count():
            before = time.monotonic()
            try:
                box = self._create()  # by its own deadline, so that what comes late is still heard of, and ended
            except Exception as error:  # noqa: BLE001  the SDK's errors have no common base
                failure = self._start_error("create a sandbox", error)
                if failure.reason not in WORTH_WAITING:
                    if failure.retryable and not is_a(error, "ConnectError"):  # else it may have been made
                        self._kill_unheard_of()
                    raise failure from None
                pause = getattr(error, "retry_after", None) or back_off(attempt)
                if time.monotonic() + pause >= deadline:
                    raise failure from None
                self.trouble = failure
                if self._killed.wait(pause):
                    raise SandboxClosed("closed while it waited for the service") from None
                continue
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
            "secure": options.secure,
            "allow_internet_access": spec.network == "egress",
        }
        return create_sandbox(self._access, wanted, name=self._name, timeout=options.request_timeout)

    def _metadata(self) -> dict[str, str]:
        return {
            **self._spec.labels,
            **self._options.metadata,
            **self._options.image_metadata(self._spec, self.domain),
            LABEL: self._name,
        }

    def _kill_unheard_of(self) -> None:
        """End what the service may have made for a call whose reply did not arrive."""
        with contextlib.suppress(Exception):  # its timeout ends what cannot be found
            query = self._sdk.SandboxQuery(metadata={LABEL: self._name})
            access = {**self._access.arguments(), "request_timeout": self._check_seconds}
            for found in self._sdk.Sandbox.list(query=query, **access).next_items():
                self._sdk.Sandbox.kill(found.sandbox_id, **access)

    def _launch(self, deadline: float) -> None:
        """Start the relay as a process in the background, and wait for its greeting."""
        commands, user = self._box.commands, self._spec.user or "root"
        workdir = "~" * self._options.workdir_in_home + self._spec.workdir
        if user != "root" and not self._options.workdir_in_home:
            place = shlex.quote(self._spec.workdir)
            owner = shlex.quote(user)
            limit = max(0.1, deadline - time.monotonic())
            commands.run(f"mkdir -p {place} && chown {owner} {place}", user="root", timeout=whole_seconds(limit))
        life = min(self._spec.ttl, LONGEST_LIFE) + 60  # then the daemon kills it, if nobody else did
        handle = commands.run(
            "exec " + shlex.join(start_command(relay_program(workdir))),
            background=True,
            user=user,
            cwd="/",
            timeout=whole_seconds(life),
            **supported(commands.run, stdin=True),
        )
        self._pid = handle.pid
        try:
            handle.wait(on_stdout=wait_for_greeting())
        except Greeted:
            handle.disconnect()
        except self._sdk.CommandExitException as ended:
            why = "it has no Python" if ended.exit_code == NO_PYTHON else f"exit code {ended.exit_code}"
            text = f"the template cannot run the runner: {why}"
            raise SandboxStartError(text, reason="setup", detail=self._clean(ended.stderr)) from None

    # --- what the stream needs ----------------------------------------------------------------------------

    def send(self, text: str, timeout: float) -> None:
        """See `RemoteProcess.send`."""
        with self._translated():
            self._box.commands.send_stdin(self._pid, text, request_timeout=timeout)

    def follow(
        self, opened: Callable[[], None], output: Callable[[str], None], errors: Callable[[str], None], seconds: int
    ) -> None:
        """See `RemoteProcess.follow`."""
        until = time.monotonic() + seconds
        commands = self._box.commands
        with self._translated():
            try:
                handle = commands.connect(
                    self._pid, timeout=seconds, **supported(commands.connect, retain_output=False)
                )
                opened()
                handle.wait(on_stdout=output, on_stderr=errors)
            except self._sdk.CommandExitException as ended:
                raise Gone(f"its runner ended with exit code {ended.exit_code}") from None
            except self._sdk.TimeoutException:
                if time.monotonic() < until:  # else nothing has failed: the time to listen is over
                    raise
                return
            raise Gone("its runner ended")

    def check(self) -> None:
        """See `RemoteProcess.check`."""
        with self._translated():
            in_time(lambda: self._box.get_info(request_timeout=self._check_seconds), self._check_seconds)

    def renew(self) -> None:
        """See `RemoteProcess.renew`."""
        before = time.monotonic()
        with self._translated():
            seconds = whole_seconds(self._options.timeout)
            call = functools.partial(self._box.set_timeout, seconds, request_timeout=self._check_seconds)
            in_time(call, self._check_seconds)
        self._expires = before + self._options.timeout

    # --- errors -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Of the SDK's errors, tell those that end the sandbox from those after which a call may be made again."""
        try:
            yield
        except (Cut, Gone):
            raise
        except Exception as error:  # noqa: BLE001  the SDK's errors have no common base
            text = self._clean(f"{type(error).__name__}: {error}")
            if is_final(error):
                raise Gone(text) from None
            raise Cut(text) from None

    def _start_error(self, what: str, error: Exception) -> SandboxStartError:
        """The error of ours that says what the service's means. That one could hold the key, so it is not chained."""
        reason, retryable, advice = judge(error)
        text = f"the service at {self._access.api_url} did not {what}: {advice}"
        detail = self._clean(f"{type(error).__name__}: {error}")
        return SandboxStartError(text, reason=reason, retryable=retryable, detail=detail)

    def _clean(self, text: str) -> str:
        """Without the key, whoever put it there."""
        return text.replace(self._access.api_key.get_secret_value(), "***")


def wait_for_greeting() -> Callable[[str], None]:
    """A function that takes output, in pieces, and raises `Greeted` once the greeting was in it."""
    seen = ""

    def look(text: str) -> None:
        nonlocal seen
        seen += text
        if GREETING in seen.split("\n")[:-1]:
            raise Greeted

    return look


def relay_program(workdir: str, runner: str = "") -> str:
    """The relay, with the runner in it, as a short text for `python3 -c`."""
    program = f"{bundle('relay')}\nserve({runner or runner_source()!r}, {workdir!r})\n"
    packed = base64.b85encode(zlib.compress(program.encode(), 9)).decode()
    return f"import base64,zlib;exec(zlib.decompress(base64.b85decode({packed!r})))"
