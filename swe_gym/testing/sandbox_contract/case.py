"""A case of the contract, and helpers of all cases."""

import contextlib
import dataclasses
import inspect
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from ...errors import FileError, SandboxLost
from ...sandboxes import ISOLATION_LEVELS, Sandbox
from ...types import ExecResult

SLACK = 10.0
"""Seconds beyond timeout and grace that the contract allows a backend."""

CLOSE_SECONDS = 10.0
CANCEL_SECONDS = 1.0 + SLACK
"""Seconds within which a waiting call must end when what it waits for is closed: the promised one, and the slack."""

POLL_SECONDS = 0.02

T = TypeVar("T")
Error = TypeVar("Error", bound=Exception)


class Background(Generic[T]):
    """A call in a daemon thread, awaited with a limit."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result.append(self._work())
        except BaseException as error:  # noqa: BLE001  raised by `result`
            self._error = error

    def wait(self, seconds: float) -> bool:
        """Return whether the call ended within `seconds`."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def result(self, seconds: float) -> T:
        """Return the call's result, or raise its error.

        Raises:
            AssertionError: The call did not end within `seconds`.
        """
        assert self.wait(seconds), f"a call did not return within {seconds:g} s"
        if self._error is not None:
            raise self._error
        return self._result[0]


class Opener:
    """The argument of a case: opens sandboxes of the backend under test.

    Args:
        open_one: Opens a sandbox with the given fields of `SandboxSpec`.
    """

    def __init__(self, open_one: Callable[..., Sandbox]) -> None:
        self._open_one = open_one
        self._opened: list[Sandbox] = []

    def __call__(self, **fields: object) -> Sandbox:
        """Open a sandbox. It is closed after the case."""
        sandbox = self._open_one(**fields)
        self._opened.append(sandbox)
        return sandbox

    @contextlib.contextmanager
    def within(self, seconds: float, what: str) -> Iterator[None]:
        """Assert that the block takes at most `seconds`."""
        before = time.monotonic()
        yield
        took = time.monotonic() - before
        assert took <= seconds, f"{what} took {took:.2f} s, more than {seconds:g} s"

    def close_all(self) -> None:
        """Close all sandboxes, each within the 10 s of the contract and without an exception."""
        while self._opened:
            with self.within(CLOSE_SECONDS, "close"):
                self._opened.pop().close()


@dataclasses.dataclass(frozen=True)
class Case:
    """One promise of the contract.

    Attributes:
        name: Unique name.
        promise: The promise as a sentence.
        tags: Topic, and tags to select by: "network", "hostile" (tries to escape or to break the sandbox), "slow".
        check: Function that raises, usually `AssertionError`, if the promise is broken.
        budget: Seconds after which the case fails because a call hangs.
    """

    name: str
    promise: str
    tags: frozenset[str]
    check: Callable[[Opener], None] = dataclasses.field(repr=False)
    budget: float

    def run(self, make: Callable[..., Sandbox]) -> None:
        """Test a backend.

        Args:
            make: Function of `SandboxSpec` fields, as keyword arguments, that returns an open sandbox.

        Raises:
            AssertionError: The promise is broken.
        """
        opener = Opener(make)
        check = Background(lambda: self.check(opener))
        if not check.wait(self.budget):
            Background(opener.close_all).wait(CLOSE_SECONDS)
            raise AssertionError(f"{self.name} did not end within {self.budget:g} s: a call of the sandbox hangs")
        try:
            check.result(0)
        except BaseException:
            with contextlib.suppress(Exception):  # the first failure matters
                opener.close_all()
            raise
        opener.close_all()


def case(*tags: str, budget: float = 300.0) -> Callable[[Callable[..., None]], Case]:
    """Turn a function into a case. Its docstring is the promise. It takes an `Opener`, an open `sandbox`, or both."""

    def make_case(check: Callable[..., None]) -> Case:
        def run(make: Opener) -> None:
            check(*(make() if name == "sandbox" else make for name in inspect.signature(check).parameters))

        promise = " ".join((check.__doc__ or "").split())
        return Case(check.__name__, promise, frozenset(tags), run, budget)

    return make_case


# --- helpers ----------------------------------------------------------------------------------------------


def ok(result: ExecResult) -> ExecResult:
    """Assert that a command succeeded and return its result."""
    assert result.ok, f"a command failed ({result.describe()}): {result.text[-500:]!r} {result.error_text[-500:]!r}"
    return result


def check_refused(kind: type[Error], call: Callable[[], object], what: str) -> Error:
    """Assert that a call raises this kind of error, and return it."""
    try:
        call()
    except kind as error:
        return error
    except FileError as error:
        raise AssertionError(f"{what}: {type(error).__name__} instead of {kind.__name__}: {error}") from error
    raise AssertionError(f"{what}: no {kind.__name__}")


def loss_of(call: Callable[[], object]) -> SandboxLost | None:
    """Return the `SandboxLost` that a call raises; None if it returns."""
    try:
        call()
    except SandboxLost as error:
        return error
    return None


def python(sandbox: Sandbox, program: str, *arguments: str, stdin: bytes = b"", timeout: float = 30.0) -> str:
    """Run a Python program in the sandbox and return what it prints."""
    return ok(sandbox.exec(["python3", "-c", program, *arguments], stdin=stdin, timeout=timeout)).text


def eventually(condition: Callable[[], bool], seconds: float, message: str) -> None:
    """Assert that a condition becomes true within `seconds`."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {message}"
        pause.wait(POLL_SECONDS)


def new_marker() -> str:
    """Return a unique number of seconds, so that `sleep MARKER` can be found in a list of processes."""
    return f"300.{secrets.randbelow(10**9):09d}"


_FIND_PROCESSES = """
import glob, os, sys
marker, found = sys.stdin.buffer.read(), set()
for path in glob.glob("/proc/[0-9]*/task/*/cmdline"):  # the first thread may have ended alone, and shows nothing
    try:
        with open(path, "rb") as file:
            if marker in file.read() and path.split("/")[2] != str(os.getpid()):
                found.add(path.split("/")[2])
    except OSError:
        pass
print(*found)
"""


def processes_inside(sandbox: Sandbox, marker: str) -> list[str]:
    """Return the sandbox's pids of live processes with the marker in their arguments."""
    return python(sandbox, _FIND_PROCESSES, stdin=marker.encode()).split()


def processes_here(marker: str) -> list[str]:
    """Return this machine's pids of such processes; none for remote backends."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/task/*/cmdline"):
        with contextlib.suppress(OSError):
            if marker.encode() in path.read_bytes():
                found.add(path.parts[2])
    return sorted(found)


def demand_isolation(sandbox: Sandbox, why: str, level: str = "namespace") -> None:
    """Fail before a command that would harm this machine without that isolation."""
    isolation = sandbox.capabilities.isolation
    strong_enough = isolation in ISOLATION_LEVELS[ISOLATION_LEVELS.index(level) :]
    assert strong_enough, f"not tried: {why}, and isolation {isolation!r} does not contain that"
    with open("/proc/self/cmdline", "rb") as file:  # protects this machine from a backend with false claims
        own = file.read()
    seen = sandbox.exec(["cat", f"/proc/{os.getpid()}/cmdline"]).stdout
    assert seen != own, f"not tried: {why}, and this process is visible in the sandbox"


def run_all(works: Sequence[Callable[[], T]], seconds: float = 50.0) -> list[T]:
    """Run all concurrently, each in a thread, and return their results in order. The default fits the usual budget."""
    deadline = time.monotonic() + seconds
    running = [Background(work) for work in works]
    return [background.result(max(0.0, deadline - time.monotonic())) for background in running]
