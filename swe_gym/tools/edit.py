"""The tools `edit`, with its undo, and `rewrite`, and the base class of all tools that edit by text."""

import base64
import collections
import dataclasses
import hashlib
from typing import Annotated, Literal, Self

from ..errors import ToolError
from ..sandboxes import Sandbox
from ..types import Json, JsonObject, ToolResult
from .base import Tool, ToolContext, tool
from .editing import (
    DocumentChange,
    insert_after,
    new_file,
    replace_all,
    replace_lines,
    replace_once,
    snippet,
    unified_diff,
)
from .files import explained, find_document, read_document, shown_path, write_file
from .text import bound, harmless

MAX_STEPS = 50
"""Maximum number of changes of one file that can be undone."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One change of a file, reduced to what undo needs.

    Attributes:
        start: Start of the change in bytes.
        removed: Old bytes; None if the file did not exist.
        added: Number of new bytes.
        digest: SHA-256 of the file after the change.
    """

    start: int
    removed: bytes | None
    added: int
    digest: bytes

    def as_row(self) -> list[Json]:
        """Return the step as plain JSON."""
        removed = None if self.removed is None else base64.b64encode(self.removed).decode()
        return [self.start, removed, self.added, self.digest.hex()]

    @classmethod
    def of_row(cls, row: list[Json]) -> Self:
        """Return the step of `as_row`."""
        start, removed, added, digest = row
        return cls(start, None if removed is None else base64.b64decode(removed), added, bytes.fromhex(digest))


class EditHistory:
    """The last changes of each file."""

    def __init__(self) -> None:
        self._steps: dict[str, collections.deque[Step]] = {}

    def record(self, path: str, before: bytes | None, after: bytes) -> None:
        """Record a change of the file from `before` to `after`."""
        steps = self._steps.setdefault(path, collections.deque(maxlen=MAX_STEPS))
        steps.append(step_between(before, after))

    def before_last(self, path: str, current: bytes | None) -> bytes | None:
        """Return the file before its last change; None if it did not exist.

        Raises:
            ToolError: There is nothing to undo, or something else has changed the file since.
        """
        steps = self._steps.get(path)
        if not steps:
            raise ToolError("There is nothing to undo: this tool made no change of the file that is not undone yet.")
        step = steps[-1]
        if current is None or _digest(current) != step.digest:
            raise ToolError("The file was changed by something else after the last edit: undo would lose that change.")
        if step.removed is None:
            return None
        return current[: step.start] + step.removed + current[step.start + step.added :]

    def drop_last(self, path: str) -> None:
        """Forget the last change of a file after it is undone."""
        self._steps[path].pop()

    def clear(self) -> None:
        """Forget everything."""
        self._steps.clear()

    def save(self, sandbox: Sandbox) -> JsonObject:
        """Return everything as plain JSON, with the paths of `sandbox`."""
        return {shown_path(sandbox, path): [step.as_row() for step in steps] for path, steps in self._steps.items()}

    def load(self, sandbox: Sandbox, state: JsonObject) -> None:
        """Take over what `save` returned."""
        for path, rows in state.items():
            steps = collections.deque((Step.of_row(row) for row in rows), maxlen=MAX_STEPS)
            self._steps[sandbox.resolve(path)] = steps


def step_between(before: bytes | None, after: bytes) -> Step:
    """Return the smallest step from `before` to `after`."""
    if before is None:
        return Step(0, None, len(after), _digest(after))
    start = _common_prefix(before, after)
    end = _common_prefix(before[start:][::-1], after[start:][::-1])
    return Step(start, before[start : len(before) - end], len(after) - start - end, _digest(after))


def _common_prefix(one: bytes, other: bytes) -> int:
    """Return the length of the common prefix, found by bisection: fast for long files."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


NewStr = Annotated[str | None, "For str_replace: the text in its place, nothing by default. For insert: the new lines."]
FileText = Annotated[str | None, "For create: the content of the file."]


class EditorTool(Tool):
    """Base class of tools that change files by text and can undo it."""

    def __init__(self) -> None:
        self._history = EditHistory()

    def reset(self) -> None:
        """Forget the changes of the last episode."""
        self._history.clear()

    def save(self, sandbox: Sandbox) -> JsonObject:
        """Return the changes that can be undone."""
        return self._history.save(sandbox)

    def load(self, sandbox: Sandbox, state: JsonObject) -> None:
        """Take over the changes that can be undone."""
        self._history.load(sandbox, state)

    def _apply(
        self,
        context: ToolContext,
        command: str,
        path: str,
        arguments: tuple[str | None, str | None, int | None, str | None],
        *,
        created: str,
        changed: str,
    ) -> str:
        """Run a command that changes a file.

        Args:
            context: The sandbox.
            command: "str_replace", "insert", "create", "undo" or "undo_edit".
            path: The file.
            arguments: `old_str`, `new_str`, `insert_line` and `file_text`.
            created: Text to return after "create".
            changed: Text to return after a change, before the changed lines.

        Raises:
            ToolError: The change is impossible; the file is unchanged.
        """
        old_str, new_str, insert_line, file_text = arguments
        if command == "create":
            self._create(context, path, file_text)
            return created
        if command == "str_replace":
            change = self._replace(context, path, old_str, new_str)
        elif command == "insert":
            change = self._insert(context, path, insert_line, new_str)
        elif command in ("undo", "undo_edit"):
            return self._undo(context, path)
        else:
            known = ", ".join(self.spec.parameters["properties"]["command"]["enum"])
            raise ToolError(f"There is no command {command!r}: give one of {known}.")
        return changed + bound(snippet(change), context.max_output - 500)

    def _replace(self, context: ToolContext, path: str, old: str | None, new: str | None) -> DocumentChange:
        if old is None:
            raise ToolError("str_replace needs old_str, the text to replace.")
        return self._write(context, path, replace_once(read_document(context, path), old, new or ""))

    def _insert(self, context: ToolContext, path: str, line: int | None, text: str | None) -> DocumentChange:
        if line is None or text is None:
            raise ToolError("insert needs insert_line, the line to insert after, and new_str, the lines to insert.")
        return self._write(context, path, insert_after(read_document(context, path), line, text))

    def _create(self, context: ToolContext, path: str, text: str | None) -> None:
        if text is None:
            raise ToolError("create needs file_text, the content of the file.")
        if find_document(context, path) is not None:
            shown = shown_path(context.sandbox, path)
            raise ToolError(f"The file {shown!r} exists already, and nothing was changed: change it by str_replace.")
        change = new_file(text)
        write_file(context, path, change.after.data)
        self._history.record(context.sandbox.resolve(path), None, change.after.data)

    def _undo(self, context: ToolContext, path: str) -> str:
        full, shown = context.sandbox.resolve(path), harmless(shown_path(context.sandbox, path))
        document = find_document(context, path)
        before = self._history.before_last(full, None if document is None else document.data)
        if before is None:
            _remove(context, path)
        else:
            write_file(context, path, before)
        self._history.drop_last(full)
        return f"The last change of {shown} was undone{': it does not exist any more' if before is None else ''}."

    def _write(self, context: ToolContext, path: str, change: DocumentChange) -> DocumentChange:
        write_file(context, path, change.after.data)
        self._history.record(context.sandbox.resolve(path), change.before.data, change.after.data)
        return change


class Edit(EditorTool):
    """The `edit` tool."""

    def run(
        self,
        context: ToolContext,
        command: Annotated[Literal["str_replace", "insert", "create", "undo"], "What to do."],
        path: Annotated[str, "The file, relative to the repository or absolute."],
        old_str: Annotated[str | None, "For str_replace: the text to replace."] = None,
        new_str: NewStr = None,
        insert_line: Annotated[int | None, "For insert: the number of the line to insert after."] = None,
        file_text: FileText = None,
    ) -> ToolResult:
        """Change a file.

        Commands: `str_replace` replaces `old_str`, which must occur exactly once and match every space and line, by
        `new_str`; `insert` puts the lines `new_str` after line `insert_line` (0 is the beginning of the file); `create`
        makes a new file that holds `file_text`; `undo` takes back the last change that this tool made of the file. All
        other bytes of the file stay as they are, line ends too.
        """
        shown = harmless(shown_path(context.sandbox, path))
        text = self._apply(
            context,
            command,
            path,
            (old_str, new_str, insert_line, file_text),
            created=f"The file {shown} was created.",
            changed=f"The file {shown} was changed. It now reads:\n",
        )
        return ToolResult(text=text)


def _remove(context: ToolContext, path: str) -> None:
    with explained(context, path):
        removed = context.sandbox.exec(["rm", "-f", "--", context.sandbox.resolve(path)], timeout=30.0)
    if not removed.ok:
        raise ToolError(f"{shown_path(context.sandbox, path)!r} cannot be removed: {removed.describe()}.")


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
