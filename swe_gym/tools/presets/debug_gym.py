"""The tools of debug-gym: `bash`, `view`, `grep`, `edit` and `pdb`, whose parameters differ from ours.

`listdir`, `rewrite`, `eval` and `submit` are the same as ours; `edit` is the newer name of `rewrite`.
"""

import itertools
import shlex
from typing import Annotated, Literal

from ...types import ToolResult
from ..base import ToolContext, tool
from ..edit import rewrite
from ..files import shown_path
from ..grep import search, summary
from ..pdb import Pdb
from ..shell import ENDING_ROOM, cap_timeout, run_command
from ..text import bound, harmless
from ..view import HEADER_ROOM, choose_window, list_folder, more_lines, open_for_view

BASH_TIMEOUT = 30.0
"""Default `timeout` of a command, in seconds."""

MAX_BASH_TIMEOUT = 3600.0
"""Upper limit of `timeout`, in seconds."""


@tool(examples=({"command": "echo hello"}, {"command": "ls"}))
def bash(
    context: ToolContext,
    command: Annotated[str, "The command line."],
    timeout: Annotated[
        float, f"Seconds after which the command is stopped, {MAX_BASH_TIMEOUT:g} at most."
    ] = BASH_TIMEOUT,
) -> ToolResult:
    """Run a bash command and get its output.

    Every call is a new shell that starts in the repository: a directory change or a variable does not last to the next
    call, so join such steps with &&. There is no input. A command is stopped after `timeout` seconds, 30 by default.
    """
    ran = run_command(context, command, timeout=cap_timeout(timeout, MAX_BASH_TIMEOUT))
    output = ran.output(context.max_output - ENDING_ROOM)
    if ran.result.ok:
        text = output or "The command was successful and printed nothing."
    else:
        text = f"The command failed ({ran.ending()}). Its output:\n{output or '(none)'}"
    return ToolResult(text=text, ok=ran.result.ok, exit_code=ran.exit_code)


@tool(examples=({"path": "."},))
def view(
    context: ToolContext,
    path: Annotated[str, "The file, relative to the repository or absolute."],
    start: Annotated[int | None, "The first line to show, counted from 1."] = None,
    end: Annotated[int | None, "The last line to show, included."] = None,
    include_line_numbers_and_breakpoints: Annotated[bool, "Whether to number the lines; true by default."] = True,
) -> ToolResult:
    """Show a text file with line numbers, or list a folder.

    Without `start` and `end` a file is shown from its beginning, and a long one as far as there is room. Breakpoints
    are listed by the pdb tool.
    """
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


@tool(examples=({"pattern": "import"}, {"pattern": "^def ", "path": "*.py", "max_results": 10}))
def grep(
    context: ToolContext,
    pattern: Annotated[str, "The regular expression."],
    path: Annotated[str, 'The file, folder or glob (such as "tests/*.py") to search; all by default.'] = ".",
    max_results: Annotated[int, "How many matching lines to show at most, 100 by default."] = 100,
) -> ToolResult:
    """Search files for lines that match an extended regular expression, and get them by file with their numbers.

    The .git folder and binary files are left out.
    """
    is_glob = any(character in path for character in "*?[")
    where, include = (".", path) if is_glob else (path, "")
    found = search(context, pattern, where, include=include, max_results=max_results)
    matches = (found.matches or [])[:max_results]
    parts = []
    for file, lines in itertools.groupby(matches, key=lambda match: match.path):
        parts.append(f"=== {file} ===\n" + "".join(f"{match.line:6} {match.shown()}\n" for match in lines))
    return ToolResult(text=bound("\n".join([*parts, summary(found, len(matches))]), context.max_output))


edit = tool(name="edit")(rewrite.run)


class DebugGymPdb(Pdb):
    """The debugger, with debug-gym's parameters of both generations."""

    name = "pdb"
    description = (
        Pdb.description + " The command `start` begins a new session, of the program that `entrypoint` names, or "
        "`runner` and `file` together."
    )

    def run(  # type: ignore[override]  # other parameters, for other callers
        self,
        context: ToolContext,
        command: Annotated[str, "The command for pdb, or start."],
        entrypoint: Annotated[str, "What to debug, as in `python -m pytest tests/test_x.py`."] = "",
        runner: Annotated[Literal["python", "pytest"], "With file: what runs it."] = "python",
        file: Annotated[
            str, "With runner: the Python file or the test to debug, such as tests/test_x.py::test_a."
        ] = "",
    ) -> ToolResult:
        """Run `command` in the session of the program that is named, or of the last one."""
        if file and not entrypoint:
            entrypoint = f"python {'-m pytest ' if runner == 'pytest' else ''}{shlex.quote(file)}"
        if command.strip() == "start":
            self._close()
            command = "where"
        return super().run(context, command=command, entrypoint=entrypoint)
