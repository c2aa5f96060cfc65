"""The `submit` tool."""

from __future__ import annotations

from typing import Any

from ..types import ToolResult
from . import schema
from .base import Tool, ToolContext


class Submit(Tool):
    """End the episode."""

    name = "submit"
    description = (
        "Hand in the work when the problem is solved. This ends the episode: the repository is judged as it is now, "
        "and nothing can be changed afterwards."
    )
    parameters = schema.parameters(message=schema.string("What was done, for the record; it is not judged."))

    def run(self, context: ToolContext, **_message: Any) -> ToolResult:  # noqa: ARG002  the call itself is the record
        """Say that the work is done."""
        return ToolResult(text="The work was submitted.", submitted=True)
