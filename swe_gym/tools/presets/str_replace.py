"""The tools of scaffolds around `str_replace_editor`: SWE-agent, OpenHands and R2E-Gym's versions of both."""

import posixpath
from collections.abc import Sequence
from typing import Annotated, Literal

from ...errors import ToolError
from ...types import ToolResult
from ..base import ToolContext, tool
from ..edit import EditorTool, FileText, NewStr
from ..files import shown_path
from ..shell import DEFAULT_TIMEOUT, bash
from ..text import bound, harmless
from ..view import HEADER_ROOM, choose_window, find_entries, more_lines, open_for_view

Command = Annotated[Literal["view", "create", "str_replace", "insert", "undo_edit"], "What to do."]
Path = Annotated[str, "The file, or for view also a folder; absolute, or relative to the repository."]
OldStr = Annotated[str | None, "For str_replace: the text to replace, which must occur exactly once."]
InsertLine = Annotated[int | None, "For insert: the number of the line to insert after; 0 is the beginning."]
ViewRange = Annotated[
    Sequence[int] | None,
    "For view: the first and the last line, as in [11, 20]; -1 is the end of the file.",
]
SecurityRisk = Annotated[str, "How risky the call is, by the model's own judgement; nothing depends on it."]
"""OpenHands asks its models for it."""


class FileEditorTool(EditorTool):
    """Base class of the editors of SWE-agent, OpenHands and R2E-Gym."""

    def _change(
        self,
        context: ToolContext,
        command: str,
        path: str,
        arguments: tuple[str | None, str | None, int | None, str | None],
    ) -> str:
        shown = harmless(path)
        text = self._apply(
            context,
            command,
            path,
            arguments,
            created=f"The file {shown} has been created.\n",
            changed=f"The file {shown} has been edited. Here is the changed part, numbered:\n",
        )
        return text + "\n" * (command == "undo_edit")


class StrReplaceEditor(FileEditorTool):
    """The editor of SWE-agent and OpenHands."""

    examples = ({"command": "view", "path": "."},)

    def run(
        self,
        context: ToolContext,
        command: Command,
        path: Path,
        file_text: FileText = None,
        old_str: OldStr = None,
        new_str: NewStr = None,
        insert_line: InsertLine = None,
        view_range: ViewRange = None,
        security_risk: SecurityRisk = "",  # noqa: ARG002
    ) -> ToolResult:
        """View, create and change files.

        `view` shows a file with line numbers, or what lies in a folder two levels deep; `create` makes a new file;
        `str_replace` replaces a text that occurs exactly once, spaces and line ends included; `insert` puts lines after
        a line; `undo_edit` takes back the last change of a file.
        """
        if command == "view":
            return ToolResult(text=view_path(context, path, view_range))
        return ToolResult(text=self._change(context, command, path, (old_str, new_str, insert_line, file_text)))


def view_path(context: ToolContext, path: str, view_range: Sequence[int] | None, *, only_python: bool = False) -> str:
    """Return a file with line numbers, or the names in a folder two levels deep.

    Raises:
        ToolError: The file is missing or binary, or does not have these lines; or the folder holds too much.
    """
    document = open_for_view(context, path)
    if document is None:
        if view_range is not None:
            raise ToolError(f"{shown_path(context.sandbox, path)!r} is a folder: view_range is for files.")
        return _folder_view(context, path, only_python)
    if view_range is not None and len(view_range) != 2:
        raise ToolError(f"view_range has {len(view_range)} numbers, but must have two: the first and the last line.")
    start, end = view_range or (None, None)
    window = choose_window(document, start, end, context.max_output - HEADER_ROOM)
    return f"Here is {harmless(path)}, numbered as by `cat -n`:\n{window.text}{more_lines(window)}"


def _folder_view(context: ToolContext, path: str, only_python: bool) -> str:
    entries = find_entries(context, path, depth=2, hidden=False)
    if only_python:
        entries = [entry for entry in entries if entry.kind == "d" or entry.path.endswith(".py")]
    below = [posixpath.join(path, entry.path) + ("/" if entry.kind == "d" else "") for entry in entries]
    names = "".join(f"{harmless(name)}\n" for name in [path, *below])
    return bound(
        f"Here are the files and folders up to 2 levels deep in {path}, hidden ones left out:\n{names}",
        context.max_output,
    )


@tool(examples=({"command": "echo hello"}, {"command": "ls"}))
def execute_bash(
    context: ToolContext,
    command: Annotated[str, "The command line."],
    is_input: Annotated[
        Literal["true", "false"], "Must be false: no command goes on running that could take input."
    ] = "false",
    timeout: Annotated[float, "Seconds after which the command is stopped."] = DEFAULT_TIMEOUT,
    security_risk: SecurityRisk = "",  # noqa: ARG001
) -> ToolResult:
    """Run a bash command and get its output and exit code.

    Every call is a new shell that starts in the repository: a directory change or a variable does not last to the next
    call, so join such steps with &&. A command is stopped after `timeout` seconds (120 by default, 600 at most). There
    is no terminal and no input: start what should go on running with &, its output sent to a file.
    """
    if is_input == "true":
        raise ToolError("No command is running that could take input: each runs to its end within its call.")
    return bash.run(context, command, timeout)


@tool(examples=({"thought": "Read the failing test first."},))
def think(
    context: ToolContext,  # noqa: ARG001  the call itself is the note
    thought: Annotated[str, "What to keep in mind."],  # noqa: ARG001
) -> ToolResult:
    """Write down a thought, a plan or an open question. Nothing is run and nothing is changed."""
    return ToolResult(text="The thought has been noted.")


@tool
def finish(
    context: ToolContext,  # noqa: ARG001  the call itself is the record
    message: Annotated[str, "What was done, for the record; it is not judged."] = "",  # noqa: ARG001
    task_completed: Annotated[str, "Whether the model thinks it is done; it is not judged."] = "",  # noqa: ARG001
) -> ToolResult:
    """Hand in the work when the problem is solved. This ends the episode: the repository is judged as it is now."""
    return ToolResult(text="The work was submitted.", submitted=True)
