"""The `eval` tool."""

import re

from ..errors import ToolError
from ..types import ToolResult
from .base import ToolContext, tool
from .shell import report, run_command

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
