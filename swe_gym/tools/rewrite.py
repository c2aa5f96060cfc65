"""The `rewrite` tool."""

from typing import Annotated

from ..errors import ToolError
from ..types import ToolResult
from .base import ToolContext, tool
from .editing import DocumentChange, new_file, replace_all, replace_lines, unified_diff
from .files import find_document, read_document, shown_path, write_file
from .text import bound, harmless


@tool
def rewrite(
    context: ToolContext,
    path: Annotated[str, "The file, relative to the repository or absolute."],
    *,
    start: Annotated[int | None, "The first line to replace, counted from 1."] = None,
    end: Annotated[int | None, "The last line to replace, included; the same as start if left out."] = None,
    new_code: Annotated[str, "The new lines, with their indentation."],
) -> ToolResult:
    """Replace lines of a file, or a whole file, and get the change as a unified diff.

    With `start` and `end` the lines from start to end (both included, counted from 1) are replaced; with `start` alone
    that one line; with neither the whole file, which is made if it does not exist. An empty `new_code` deletes the
    lines. Line numbers are those of the file as it is now: view it again after a change that moved them.
    """
    change, done = _make_change(context, path, new_code, start, end)
    write_file(context, path, change.after.data)
    shown = harmless(shown_path(context.sandbox, path))
    diff = bound(unified_diff(change, shown), context.max_output - 2 * len(shown) - 100)
    return ToolResult(text=f"The file {shown} was {done}.\n\n{diff}")


def _make_change(
    context: ToolContext, path: str, text: str, start: int | None, end: int | None
) -> tuple[DocumentChange, str]:
    """Return the change, and "updated" or "created"."""
    if start is not None:
        return replace_lines(read_document(context, path), start, start if end is None else end, text), "updated"
    if end is not None:
        raise ToolError("end is given without start: give both, or neither for the whole file.")
    document = find_document(context, path)
    return (new_file(text), "created") if document is None else (replace_all(document, text), "updated")
