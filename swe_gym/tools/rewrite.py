"""The `rewrite` tool."""

from __future__ import annotations

from ..errors import ToolError
from ..types import ToolResult
from . import schema
from .base import Tool, ToolContext
from .editing import Change, new_file, replace_all, replace_lines, unified_diff
from .files import find_document, read_document, shown_path, write_file
from .text import bound

DESCRIPTION = (
    "Replace lines of a file, or a whole file, and get the change as a unified diff. With `start` and `end` the "
    "lines from start to end (both included, counted from 1) are replaced; with `start` alone that one line; with "
    "neither the whole file, which is made if it does not exist. An empty `new_code` deletes the lines. Line numbers "
    "are those of the file as it is now: view it again after a change that moved them."
)

PARAMETERS = schema.parameters(
    ["path", "new_code"],
    path=schema.string("The file, relative to the repository or absolute."),
    start=schema.integer("The first line to replace, counted from 1."),
    end=schema.integer("The last line to replace, included; the same as start if left out."),
    new_code=schema.string("The new lines, with their indentation."),
)


class Rewrite(Tool):
    """Replace lines of a file, or a whole file."""

    name = "rewrite"
    description = DESCRIPTION
    parameters = PARAMETERS

    def run(
        self, context: ToolContext, path: str, new_code: str, start: int | None = None, end: int | None = None
    ) -> ToolResult:
        """Put `new_code` in place of the lines, or of everything."""
        return rewrite(context, path, new_code, start, end)


def rewrite(context: ToolContext, path: str, new_code: str, start: int | None, end: int | None) -> ToolResult:
    """What the tool does, for every name under which there is such a tool.

    Raises:
        ToolError: The file cannot be read or written, or has no such lines.
    """
    shown = shown_path(context.sandbox, path)
    if start is None and end is None:
        change, done = _rewrite_whole(context, path, new_code)
    elif start is None:
        raise ToolError("end is given without start: give both, or neither for the whole file")
    else:
        change = replace_lines(read_document(context, path), start, start if end is None else end, new_code)
        done = "updated"
    write_file(context, path, change.after.data)
    diff = unified_diff(change, shown)
    return ToolResult(text=f"The file {shown} was {done}.\n\n{bound(diff, context.max_output - 2 * len(shown) - 100)}")


def _rewrite_whole(context: ToolContext, path: str, text: str) -> tuple[Change, str]:
    document = find_document(context, path)
    return (new_file(text), "created") if document is None else (replace_all(document, text), "updated")
