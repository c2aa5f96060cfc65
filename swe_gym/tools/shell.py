"""One command line in the sandbox, and what a policy is told about how it ended."""

from __future__ import annotations

import contextlib
import dataclasses
import signal

from ..errors import ToolError
from ..types import ExecResult
from .base import ToolContext
from .files import checked
from .text import bound_output

KEPT_BYTES = 1 << 20
"""Bytes of each stream that the sandbox keeps of a flood: far more than is shown, so that the cut is counted once."""

DEFAULT_TIMEOUT = 120.0
"""Seconds that a command may take where the policy does not say."""

MAX_TIMEOUT = 600.0
"""Seconds that a command may take at most."""


@dataclasses.dataclass(frozen=True)
class Ran:
    """A command that ended.

    Attributes:
        result: How, as the sandbox says.
        limit: Seconds that it was given.
        cut_short: The episode had less time left than was asked for.
    """

    result: ExecResult
    limit: float
    cut_short: bool

    @property
    def exit_code(self) -> int | None:
        """As a shell reports it: 128 and the number of the signal that ended it; None after a timeout."""
        if self.result.timed_out:
            return None
        return 128 + self.result.signal if self.result.signal is not None else self.result.exit_code

    def ending(self) -> str:
        """How it ended: "exit code 1", "killed by signal 11 (SIGSEGV)", or why it was stopped."""
        if self.result.timed_out and self.cut_short:
            return "stopped, with everything it started: the time of the episode is up"
        if self.result.timed_out:
            return f"timed out after {self.limit:g} s; it was stopped, with everything it started"
        if self.result.signal is not None:
            return f"killed by signal {self.result.signal}{_signal_name(self.result.signal)}"
        return f"exit code {self.result.exit_code}"

    def output(self, limit: int) -> str:
        """Standard output (and standard error, where they were merged) in at most `limit` clean characters."""
        return bound_output(self.result.stdout, dropped=self.result.stdout_dropped, kept=KEPT_BYTES, limit=limit)

    def error_output(self, limit: int) -> str:
        """Standard error in at most `limit` clean characters."""
        return bound_output(self.result.stderr, dropped=self.result.stderr_dropped, kept=KEPT_BYTES, limit=limit)


def run_command(context: ToolContext, command: str, *, timeout: float, merge: bool = True) -> Ran:
    """Run a command line by a new shell in the workdir.

    Args:
        context: The sandbox and the time that is left.
        command: For `bash -c`.
        timeout: Seconds that were asked for.
        merge: Take both streams as one, in the order of writing.

    Raises:
        ToolError: The command is empty, or no command line can hold it.
    """
    if not command.strip():
        raise ToolError("The command is empty.")
    limit = context.time_left(timeout)
    result = context.sandbox.exec(checked(command, "command"), timeout=limit, merge=merge, max_output=KEPT_BYTES)
    return Ran(result, timeout, cut_short=limit < timeout)


def _signal_name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return f" ({signal.Signals(number).name})"
    return ""
