"""The `eval` tool."""

from __future__ import annotations

import re

from ..errors import ToolError
from ..types import ToolResult
from . import schema
from .base import Tool, ToolContext
from .bash import report
from .shell import run_command

DURATION = re.compile(
    r"^(Ran \d+ tests? in |=*.*\b(?:passed|failed|errors?|skipped|deselected|warnings?)\b.* in )[\d.]+s", re.M
)
"""What unittest and pytest say of the time they took, which no two runs share."""


class Eval(Tool):
    """Run the task's visible entry point."""

    name = "eval"
    description = (
        "Run the tests or the program that this task comes with, on the repository as it is now, and get the output "
        "and the exit code. Passing them is a good sign, but the work is judged by other tests after it is submitted."
    )
    parameters = schema.parameters()

    def run(self, context: ToolContext) -> ToolResult:
        """Run `context.eval_cmd` for at most `context.eval_timeout` seconds."""
        if not context.eval_cmd:
            raise ToolError("This task comes with nothing to run: find the tests in the repository and run them.")
        result = report(run_command(context, context.eval_cmd, timeout=context.eval_timeout), context.max_output)
        return result.model_copy(update={"text": DURATION.sub(r"\1...", result.text)})
