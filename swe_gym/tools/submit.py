"""The `submit` tool."""

from typing import Annotated

from ..types import ToolResult
from .base import ToolContext, tool


@tool
def submit(
    context: ToolContext,  # noqa: ARG001  the call itself is the record
    message: Annotated[str, "What was done, for the record; it is not judged."] = "",  # noqa: ARG001
) -> ToolResult:
    """Hand in the work when the problem is solved.

    This ends the episode: the repository is judged as it is now, and nothing can be changed afterwards.
    """
    return ToolResult(text="The work was submitted.", submitted=True)
