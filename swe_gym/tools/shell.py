"""Command lines in the sandbox, and how policies are told that they ended."""

import contextlib
import dataclasses
import signal

from ..errors import ToolError
from ..types import ExecResult, ToolResult
from .base import ToolContext
from .files import check_text
from .text import bound_output

KEPT_BYTES = 1 << 20
"""Bytes of each stream that the sandbox keeps: far more than is shown, so that only one cut is counted."""

DEFAULT_TIMEOUT = 120.0
"""Default `timeout` of a command, in seconds."""

MAX_TIMEOUT = 600.0
"""Upper limit of `timeout`, in seconds."""

ENDING_ROOM = 200
"""Characters reserved for the line that says how the command ended."""


@dataclasses.dataclass(frozen=True)
class Ran:
    """A finished command.

    Attributes:
        result: The sandbox's result.
        limit: The requested timeout in seconds.
        cut_short: Whether the episode had less time left than `limit`.
    """

    result: ExecResult
    limit: float
    cut_short: bool

    @property
    def exit_code(self) -> int | None:
        """The exit code as a shell reports it: 128 + the signal's number; None after a timeout."""
        if self.result.timed_out:
            return None
        return 128 + self.result.signal if self.result.signal is not None else self.result.exit_code

    def ending(self) -> str:
        """Return how it ended: "exit code 1", "killed by signal 11 (SIGSEGV)", or why it was stopped."""
        if self.result.timed_out and self.cut_short:
            return "stopped, with everything it started: the time of the episode is up"
        if self.result.timed_out:
            return f"timed out after {self.limit:g} s; it was stopped, with everything it started"
        if self.result.signal is not None:
            return f"killed by signal {self.result.signal}{_signal_name(self.result.signal)}"
        return f"exit code {self.result.exit_code}"

    def output(self, limit: int) -> str:
        """Return standard output (with standard error if merged) in at most `limit` clean characters."""
        return bound_output(self.result.stdout, dropped=self.result.stdout_dropped, kept=KEPT_BYTES, limit=limit)

    def error_output(self, limit: int) -> str:
        """Return standard error in at most `limit` clean characters."""
        return bound_output(self.result.stderr, dropped=self.result.stderr_dropped, kept=KEPT_BYTES, limit=limit)


def run_command(context: ToolContext, command: str, *, timeout: float, merge: bool = True) -> Ran:
    """Run a command line in a new shell in the workdir.

    Args:
        context: The sandbox and the episode's deadline.
        command: The argument of `bash -c`.
        timeout: Seconds before the command is killed.
        merge: Whether to interleave both streams in the order of writing.

    Raises:
        ToolError: The command is empty or holds a NUL or a lone surrogate.
    """
    if not command.strip():
        raise ToolError("The command is empty.")
    limit = context.time_left(timeout)
    result = context.sandbox.exec(check_text(command, "command"), timeout=limit, merge=merge, max_output=KEPT_BYTES)
    return Ran(result, timeout, cut_short=limit < timeout)


def cap_timeout(timeout: float, most: float = MAX_TIMEOUT) -> float:
    """Return a policy's timeout, at most `most` seconds.

    Raises:
        ToolError: It is not positive.
    """
    if not timeout > 0:
        raise ToolError(f"timeout is {timeout}, but must be more than 0 seconds.")
    return min(timeout, most)


def report(ran: Ran, limit: int) -> ToolResult:
    """Return a command's output with a last line that says how it ended, in at most `limit` characters."""
    output = ran.output(limit - ENDING_ROOM)
    newline = "\n" if output and not output.endswith("\n") else ""
    return ToolResult(text=f"{output}{newline}[{ran.ending()}]", ok=ran.result.ok, exit_code=ran.exit_code)


def _signal_name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return f" ({signal.Signals(number).name})"
    return ""
