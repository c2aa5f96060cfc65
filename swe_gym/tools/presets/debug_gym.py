"""The tools of debug-gym: `bash`, `view`, `grep`, `edit` and `pdb` where its parameters are not ours.

`listdir`, `rewrite`, `eval` and `submit` are the same there as here; `edit` is the newer name of `rewrite`.
"""

from __future__ import annotations

import itertools
import shlex
from typing import Any

from ...errors import ToolError
from ...types import ToolResult
from .. import schema
from ..base import Tool, ToolContext
from ..bash import ENDING_ROOM
from ..files import shown_path
from ..grep import search, summary
from ..listdir import list_folder
from ..pdb import Pdb
from ..rewrite import Rewrite
from ..shell import run_command
from ..text import bound, harmless
from ..view import HEADER_ROOM, choose_window, more_lines, open_for_view

BASH_TIMEOUT = 30.0
"""Seconds that a command may take where the policy does not say."""

MAX_BASH_TIMEOUT = 3600.0
"""Seconds that a command may take at most."""


class DebugGymBash(Tool):
    """Run a shell command, by debug-gym's parameters."""

    name = "bash"
    description = (
        "Run a bash command and get its output. Every call is a new shell that starts in the repository: a directory "
        "change or a variable does not last to the next call, so join such steps with &&. There is no input. A "
        f"command is stopped after `timeout` seconds, {BASH_TIMEOUT:g} by default."
    )
    parameters = schema.parameters(
        ["command"],
        command=schema.string("The command line."),
        timeout=schema.number(f"Seconds after which the command is stopped, {MAX_BASH_TIMEOUT:g} at most."),
    )
    examples = ({"command": "echo hello"}, {"command": "ls"})

    def run(self, context: ToolContext, command: str, timeout: float = BASH_TIMEOUT) -> ToolResult:
        """Run `command` for at most `timeout` seconds."""
        if not timeout > 0:
            raise ToolError(f"timeout is {timeout}, but must be more than 0 seconds.")
        ran = run_command(context, command, timeout=min(timeout, MAX_BASH_TIMEOUT))
        output = ran.output(context.max_output - ENDING_ROOM)
        if ran.result.ok:
            text = output or "The command was successful and printed nothing."
        else:
            text = f"The command failed ({ran.ending()}). Its output:\n{output or '(none)'}"
        return ToolResult(text=text, ok=ran.result.ok, exit_code=ran.exit_code)


class DebugGymView(Tool):
    """Show a file, by debug-gym's parameters."""

    name = "view"
    description = (
        "Show a text file with line numbers, or list a folder. Without `start` and `end` a file is shown from its "
        "beginning, and a long one as far as there is room. Breakpoints are listed by the pdb tool."
    )
    parameters = schema.parameters(
        ["path"],
        path=schema.string("The file, relative to the repository or absolute."),
        start=schema.integer("The first line to show, counted from 1."),
        end=schema.integer("The last line to show, included."),
        include_line_numbers_and_breakpoints=schema.boolean("Whether to number the lines; true by default."),
    )
    examples = ({"path": "."},)

    def run(
        self,
        context: ToolContext,
        path: str,
        start: int | None = None,
        end: int | None = None,
        include_line_numbers_and_breakpoints: bool = True,
    ) -> ToolResult:
        """Show the lines `start` to `end` of a file, as far as there is room; or a folder."""
        document = open_for_view(context, path)
        if document is None:
            return ToolResult(text=list_folder(context, path, depth=1))
        window = choose_window(document, start, end, context.max_output - HEADER_ROOM)
        text = window.text
        if not include_line_numbers_and_breakpoints:
            text = "".join(f"{harmless(line)}\n" for line in document.lines(window.first, window.last))
        where = f"lines {window.first}-{window.last} of {window.total} total lines"
        shown = harmless(shown_path(context.sandbox, path))
        return ToolResult(text=f"Viewing `{shown}`, {where}.\n\n```\n{text}```\n{more_lines(window)}")


class DebugGymGrep(Tool):
    """Search files, by debug-gym's parameters."""

    name = "grep"
    description = (
        "Search files for lines that match an extended regular expression, and get them by file with their numbers. "
        "The .git folder and binary files are left out."
    )
    parameters = schema.parameters(
        ["pattern"],
        pattern=schema.string("The regular expression."),
        path=schema.string('The file, folder or glob (such as "tests/*.py") to search; all by default.'),
        max_results=schema.integer("How many matching lines to show at most, 100 by default."),
    )
    examples = ({"pattern": "import"}, {"pattern": "^def ", "path": "*.py", "max_results": 10})

    def run(self, context: ToolContext, pattern: str, path: str = ".", max_results: int = 100) -> ToolResult:
        """Search `path` for `pattern`."""
        if max_results < 1:
            raise ToolError(f"max_results is {max_results}, but must be 1 or more.")
        is_glob = any(character in path for character in "*?[")
        found = search(context, pattern, "." if is_glob else path, include=path if is_glob else "")
        matches = (found.matches or [])[:max_results]
        parts = []
        for file, lines in itertools.groupby(matches, key=lambda match: match.path):
            parts.append(f"=== {file} ===\n" + "".join(f"{match.line:6} {match.shown()}\n" for match in lines))
        return ToolResult(text=bound("\n".join([*parts, summary(found, len(matches))]), context.max_output))


class DebugGymEdit(Rewrite):
    """Replace lines of a file, or a whole file: `rewrite` by its newer name."""

    name = "edit"


class DebugGymPdb(Pdb):
    """The debugger, by debug-gym's parameters of both generations."""

    description = (
        Pdb.description + " The command `start` begins a new session, of the program that `entrypoint` names, or "
        "`runner` and `file` together."
    )
    parameters = schema.parameters(
        ["command"],
        command=schema.string("The command for pdb, or start."),
        entrypoint=schema.string("What to debug, as in `python -m pytest tests/test_x.py`."),
        runner=schema.string("With file: what runs it.", ["python", "pytest"]),
        file=schema.string("With runner: the Python file or the test to debug, such as tests/test_x.py::test_a."),
    )
    examples = ()

    def run(self, context: ToolContext, **arguments: Any) -> ToolResult:
        """Type `command` into the session of the program that is named, or of the last one."""
        command, entrypoint = arguments["command"], arguments.get("entrypoint", "")
        if not entrypoint and (file := arguments.get("file")):
            module = "-m pytest " if arguments.get("runner") == "pytest" else ""
            entrypoint = f"python {module}{shlex.quote(file)}"
        if command.strip() == "start":
            self._close()
            command = "where"
        return super().run(context, command=command, entrypoint=entrypoint)
