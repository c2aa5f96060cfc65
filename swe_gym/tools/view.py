"""The tools `view` and `listdir`: a file, or the names in a folder."""

import dataclasses
import posixpath
from typing import Annotated

from ..errors import NotAFile, ToolError
from ..types import ToolResult
from .base import ToolContext, tool
from .editing import number_lines
from .files import MAX_FILE_BYTES, Document, check_text, explained, shown_path
from .text import bound, clean, harmless, shorten

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


MAX_DEPTH = 10
"""Upper limit of `depth`."""

MAX_ENTRIES = 500
"""Names shown; upper levels come first."""

MAX_LISTING = 1 << 20
"""Bytes of names read from the sandbox."""


@tool(examples=({"path": "."}, {"path": ".", "depth": 2}))
def listdir(
    context: ToolContext,
    path: Annotated[str, "The folder, relative to the repository or absolute; the repository itself by default."] = ".",
    depth: Annotated[int, f"How many levels to show, from 1 (the default) to {MAX_DEPTH}."] = 1,
) -> ToolResult:
    """List a folder, as a tree: folders end with a slash, symbolic links show where they lead.

    The .git folder is left out. At most 500 names are shown; what is left out is counted.
    """
    return ToolResult(text=list_folder(context, path, depth=depth))


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a folder.

    Attributes:
        path: Path relative to the listed folder.
        kind: Kind as `find -printf %y` prints it: "d" for a folder, "l" for a link, "f" for a file.
        target: Target of a link.
    """

    path: str
    kind: str
    target: str = ""

    @property
    def label(self) -> str:
        """The name as shown to policies."""
        name = harmless(posixpath.basename(self.path))
        return f"{name}/" if self.kind == "d" else f"{name} -> {harmless(self.target)}" if self.target else name


def find_entries(context: ToolContext, path: str, *, depth: int, hidden: bool = True) -> list[Entry]:
    """Return the entries below a folder in the order of the tree, without `.git`.

    Args:
        context: The sandbox.
        path: The folder.
        depth: Levels to list, from 1 to `MAX_DEPTH`.
        hidden: Whether to include other hidden names.

    Raises:
        ToolError: The folder is missing or too large, or `depth` is out of range.
    """
    if not 1 <= depth <= MAX_DEPTH:
        raise ToolError(f"depth is {depth}, but must be from 1 to {MAX_DEPTH}.")
    with explained(context, path):
        folder = context.sandbox.resolve(check_text(path, "path")).rstrip("/") + "/"
    skip = ["-name", ".git"] if hidden else ["-name", ".*"]
    argv = ["find", folder, "-mindepth", "1", "-maxdepth", str(depth), *skip, "-prune", "-o", "-printf", r"%y%P\0%l\0"]
    found = context.sandbox.exec(argv, timeout=context.time_left(30.0), max_output=MAX_LISTING)
    if found.stdout_dropped or found.timed_out:
        raise ToolError(f"{shown_path(context.sandbox, path)!r} holds too much to list: ask for less depth.")
    if not found.ok and not found.stdout:
        raise ToolError(_why_not(context, path, found.error_text))
    fields = found.stdout.decode("utf-8", "replace").split("\0")
    entries = [Entry(where[1:], where[:1], target) for where, target in zip(fields[::2], fields[1::2], strict=False)]
    return sorted(entries, key=lambda entry: entry.path.split("/"))


def list_folder(context: ToolContext, path: str, *, depth: int) -> str:
    """Return a folder as an indented tree, bounded.

    Raises:
        ToolError: See `find_entries`.
    """
    entries = find_entries(context, path, depth=depth)
    shown = shown_path(context.sandbox, path)
    title = "./" if shown == "." else harmless(shown.rstrip("/")) + "/"
    if not entries:
        return f"{title} is empty.\n"
    return bound(title + "\n" + "".join(line + "\n" for line in _tree(entries)), context.max_output)


def _tree(entries: list[Entry]) -> list[str]:
    """Return the lines of the tree. If there are too many, lower levels are dropped first."""
    by_level = sorted(entries, key=lambda entry: entry.path.count("/"))  # stable: a level keeps its order
    kept = set(by_level[:MAX_ENTRIES])
    lines = ["  " * (entry.path.count("/") + 1) + entry.label for entry in entries if entry in kept]
    if len(kept) < len(entries):
        lines.append(f"[... {len(entries) - len(kept):,} names are not shown, the deepest ones: list a sub-folder ...]")
    return lines


def _why_not(context: ToolContext, path: str, reason: str) -> str:
    shown = shown_path(context.sandbox, path)
    if "No such file" in reason:
        return f"There is no folder {shown!r}."
    if "Not a directory" in reason:
        return f"{shown!r} is not a folder."
    return f"{shown!r} cannot be listed: {clean(reason).strip().replace(context.sandbox.resolve(path), shown)}"
