"""The `view` tool."""

from __future__ import annotations

import dataclasses

from ..errors import NotAFile, ToolError
from ..types import ToolResult
from . import schema
from .base import Tool, ToolContext
from .document import Document
from .editing import numbered
from .files import MAX_FILE_BYTES, checked, explained, shown_path
from .listdir import list_folder
from .text import harmless, shorten

MAX_LINE = 2000
"""Characters of a line that are shown."""

HEADER_ROOM = 400
"""Characters kept free for what is said about the lines."""


class View(Tool):
    """Show a file with line numbers, or what a folder holds."""

    name = "view"
    description = (
        "Show a text file with line numbers, or list a folder. Without `start` and `end` a file is shown from its "
        "beginning; of a long file a window is shown, and a last line says where to go on. The numbers and the tab "
        "behind them are not part of the file."
    )
    parameters = schema.parameters(
        ["path"],
        path=schema.string("The file or folder, relative to the repository or absolute."),
        start=schema.integer("The first line to show, counted from 1."),
        end=schema.integer("The last line to show, included; -1 is the end of the file."),
    )
    examples = ({"path": "."},)

    def run(self, context: ToolContext, path: str, start: int | None = None, end: int | None = None) -> ToolResult:
        """Show the lines `start` to `end` of a file, as far as there is room; or a folder."""
        document = open_for_view(context, path)
        if document is None:
            return ToolResult(text=list_folder(context, path, depth=1))
        window = choose_window(document, start, end, context.max_output - HEADER_ROOM)
        return ToolResult(text=_header(context, path, document, window) + window.text + more_lines(window))


@dataclasses.dataclass(frozen=True)
class Window:
    """The part of a file that is shown.

    Attributes:
        text: The numbered lines.
        first: Number of the first line.
        last: Number of the last line; `first - 1` where there are none.
        wanted: Number of the last line that was asked for.
        total: Lines of the file.
    """

    text: str
    first: int
    last: int
    wanted: int
    total: int


def open_for_view(context: ToolContext, path: str) -> Document | None:
    """A text file, or None where the path is a folder.

    Raises:
        ToolError: There is no such file, or it is binary.
    """
    with explained(context, path):
        try:
            data = context.sandbox.read_file(checked(path, "path"), max_bytes=MAX_FILE_BYTES)
        except NotAFile:
            return None
    document = Document.of(data)
    if document.is_binary:
        shown = shown_path(context.sandbox, path)
        raise ToolError(f"{shown!r} is a binary file of {len(data):,} bytes: look at it with a program, such as xxd.")
    return document


def choose_window(document: Document, start: int | None, end: int | None, room: int) -> Window:
    """The asked lines of a file, as many whole ones as have room in so many characters, but at least one.

    Raises:
        ToolError: The file has no such lines.
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
        part = numbered([shorten(line, MAX_LINE) for line in document.lines(number, number)], number)
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
    """Where to go on, if lines that were asked for had no room."""
    left = window.wanted - window.last
    return f"[... {left:,} more lines: go on with start={window.last + 1} ...]\n" if left > 0 else ""
