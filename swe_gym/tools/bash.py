"""The `bash` tool."""

from __future__ import annotations

from ..errors import ToolError
from ..types import ToolResult
from . import schema
from .base import Tool, ToolContext
from .shell import DEFAULT_TIMEOUT, MAX_TIMEOUT, Ran, run_command

ENDING_ROOM = 200
"""Characters kept free for the line that says how the command ended."""


class Bash(Tool):
    """Run a shell command."""

    name = "bash"
    description = (
        "Run a bash command and get its output (standard output and standard error together) and its exit code. "
        "Every call is a new shell that starts in the repository: a directory change or a variable does not last to "
        "the next call, so join such steps with && in one command. There is no terminal and no input. "
        f"A command is stopped after `timeout` seconds ({DEFAULT_TIMEOUT:g} by default, {MAX_TIMEOUT:g} at most) with "
        "everything it started. Start what should go on running with & and send its output to a file. "
        "Of a long output the beginning and the end are shown."
    )
    parameters = schema.parameters(
        ["command"],
        command=schema.string("The command line, as for bash -c; it may have many lines."),
        timeout=schema.number("Seconds after which the command is stopped."),
    )
    examples = ({"command": "echo hello"}, {"command": "ls"}, {"command": "ls | wc -l", "timeout": 30})

    def run(self, context: ToolContext, command: str, timeout: float = DEFAULT_TIMEOUT) -> ToolResult:
        """Run `command` for at most `timeout` seconds."""
        return run_bash(context, command, timeout)


def run_bash(context: ToolContext, command: str, timeout: float) -> ToolResult:
    """What the tool does, for every name under which there is such a tool.

    Raises:
        ToolError: The command is empty, or the timeout is not positive.
    """
    if not timeout > 0:
        raise ToolError(f"timeout is {timeout}, but must be more than 0 seconds.")
    return report(run_command(context, command, timeout=min(timeout, MAX_TIMEOUT)), context.max_output)


def report(ran: Ran, limit: int) -> ToolResult:
    """A command's output with one line more, which says how it ended."""
    output = ran.output(limit - ENDING_ROOM)
    newline = "\n" if output and not output.endswith("\n") else ""
    return ToolResult(text=f"{output}{newline}[{ran.ending()}]", ok=ran.result.ok, exit_code=ran.exit_code)
