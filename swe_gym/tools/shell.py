"""The tools `bash`, `eval` and `submit`, and how policies are told that a command ended."""

import contextlib
import dataclasses
import re
import signal
from typing import Annotated

from ..errors import ToolError
from ..types import ExecResult, ToolResult
from .base import ToolContext, tool
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


@tool(examples=({"command": "echo hello"}, {"command": "ls"}, {"command": "ls | wc -l", "timeout": 30}))
def bash(
    context: ToolContext,
    command: Annotated[str, "The command line, as for bash -c; it may have many lines."],
    timeout: Annotated[float, "Seconds after which the command is stopped."] = DEFAULT_TIMEOUT,
) -> ToolResult:
    """Run a bash command and get its output (standard output and standard error together) and its exit code.

    Every call is a new shell that starts in the repository: a directory change or a variable does not last to the next
    call, so join such steps with && in one command. There is no terminal and no input. A command is stopped after
    `timeout` seconds (120 by default, 600 at most) with everything it started. Start what should go on running with &
    and send its output to a file. Of a long output the beginning and the end are shown.
    """
    return report(run_command(context, command, timeout=cap_timeout(timeout)), context.max_output)


SUMMARY = re.compile(
    r"^(?:(Ran \d+ tests? in )|(=+ )?((?:no tests ran|\d+ [a-z ]+(?:, \d+ [a-z ]+)*) in ))"
    r"[\d.]+s(?: \(\d+:\d\d:\d\d\))?(?: =+)?",
    re.MULTILINE,
)
"""The line in which unittest or pytest prints the duration of the tests."""


@tool(name="eval")
def run_eval(context: ToolContext) -> ToolResult:
    """Run the tests or the program that this task comes with, on the repository as it is now, and get the output and
    the exit code. Passing them is a good sign, but the work is judged by other tests after it is submitted.
    """  # noqa: D205  policies read this text, unwrapped
    if not context.eval_cmd:
        raise ToolError("This task comes with nothing to run: find the tests in the repository and run them.")
    result = report(run_command(context, context.eval_cmd, timeout=context.eval_timeout), context.max_output)
    return result.model_copy(update={"text": SUMMARY.sub(_without_time, result.text)})


def _without_time(match: re.Match[str]) -> str:
    """Return the summary without the time and without pytest's bars, whose length depends on it."""
    ran, bar, counts = match.groups()
    return f"{ran}..." if ran else f"=== {counts}... ===" if bar else f"{counts}..."


@tool
def submit(
    context: ToolContext,  # noqa: ARG001  the call itself is the record
    message: Annotated[str, "What was done, for the record; it is not judged."] = "",  # noqa: ARG001
) -> ToolResult:
    """Hand in the work when the problem is solved.

    This ends the episode: the repository is judged as it is now, and nothing can be changed afterwards.
    """
    return ToolResult(text="The work was submitted.", submitted=True)
