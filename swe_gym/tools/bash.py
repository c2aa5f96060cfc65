"""The `bash` tool."""

from typing import Annotated

from ..types import ToolResult
from .base import ToolContext, tool
from .shell import DEFAULT_TIMEOUT, cap_timeout, report, run_command


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
