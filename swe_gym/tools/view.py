"""The `view` tool."""

import dataclasses
from typing import Annotated

from ..errors import NotAFile, ToolError
from ..types import ToolResult
from .base import ToolContext, tool
from .editing import number_lines
from .files import MAX_FILE_BYTES, Document, check_text, explained, shown_path
from .listdir import list_folder
from .text import harmless, shorten

MAX_LINE = 2000
"""Characters shown of one line."""

HEADER_ROOM = 400
"""Characters reserved for the header and the note on further lines."""


@tool(examples=({"path": "."},))
def view(
    context: ToolContext,
    path: Annotated[str, "The file or folder, relative to the repository or absolute."],
    start: Annotated[int | None, "The first line to show, counted from 1."] = None,
    end: Annotated[int | None, "The last line to show, included; -1 is the end of the file."] = None,
) -> ToolResult:
    """Show a text file with line numbers, or list a folder.

    Without `start` and `end` a file is shown from its beginning; of a long file a window is shown, and a last line says
    where to go on. The numbers and the tab behind them are not part of the file.
    """
    document = open_for_view(context, path)
    if document is None:
        return ToolResult(text=list_folder(context, path, depth=1))
    window = choose_window(document, start, end, context.max_output - HEADER_ROOM)
    return ToolResult(text=_header(context, path, document, window) + window.text + more_lines(window))


@dataclasses.dataclass(frozen=True)
class Window:
    """The lines of a file that are shown.

    Attributes:
        text: The numbered lines.
        first: Number of the first line.
        last: Number of the last line; `first - 1` if there are none.
        wanted: Number of the last requested line.
        total: Number of lines of the file.
    """

    text: str
    first: int
    last: int
    wanted: int
    total: int


def open_for_view(context: ToolContext, path: str) -> Document | None:
    """Return a text file, or None if the path is a folder.

    Raises:
        ToolError: The file is missing or binary.
    """
    with explained(context, path):
        try:
            data = context.sandbox.read_file(check_text(path, "path"), max_bytes=MAX_FILE_BYTES)
        except NotAFile:
            return None
    document = Document.of(data)
    if document.is_binary:
        shown = shown_path(context.sandbox, path)
        raise ToolError(f"{shown!r} is a binary file of {len(data):,} bytes: look at it with a program, such as xxd.")
    return document


def choose_window(document: Document, start: int | None, end: int | None, room: int) -> Window:
    """Return the requested lines, as many as fit in `room` characters but at least one.

    Raises:
        ToolError: The file does not have these lines.
    """
    total = document.line_count
    first = 1 if start is None else start
    wanted = total if end is None or end == -1 else min(end, total)
    if first < 1 or first > max(total, 1):
        raise ToolError(f"start is {first}, but the file has lines 1 to {total}.")
    if end is not None and end != -1 and end < first:
        raise ToolError(f"end ({end}) is before start ({first}).")
    parts: list[str] = []
    for number in range(first, wanted + 1):
        part = number_lines([shorten(line, MAX_LINE) for line in document.lines(number, number)], number)
        if parts and len(part) > room:
            break
        parts.append(part)
        room -= len(part)
    return Window("".join(parts), first, first + len(parts) - 1, wanted, total)


def _header(context: ToolContext, path: str, document: Document, window: Window) -> str:
    shown = harmless(shown_path(context.sandbox, path))
    notes = [] if document.encoding == "utf-8" and not document.bom else [f"{document.encoding} text"]
    notes += ["lines end with CRLF"] if document.newline == "\r\n" else []
    about = f" ({', '.join(notes)})" if notes else ""
    if not window.total:
        return f"{shown} is empty{about}.\n"
    return f"{shown}, lines {window.first}-{window.last} of {window.total}{about}:\n"


def more_lines(window: Window) -> str:
    """Return a note on requested lines that did not fit."""
    left = window.wanted - window.last
    return f"[... {left:,} more lines: go on with start={window.last + 1} ...]\n" if left > 0 else ""
