"""The tools of R2E-Gym: `file_editor`, `search`, `execute_bash` and `finish`."""

import io
import shlex
import tokenize
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from ...types import ToolResult
from ..base import ToolContext, tool
from ..edit import FileText, NewStr
from ..editing import number_lines
from ..files import Document
from ..grep import search as grep_lines
from ..shell import DEFAULT_TIMEOUT, ENDING_ROOM, run_command
from ..text import bound, clean, harmless
from ..view import open_for_view
from .str_replace import Command, FileEditorTool, InsertLine, OldStr, Path, ViewRange, view_path

CONDENSE_FROM = 110
"""Lines above which a Python file is shown condensed unless a range is given."""

SHORT_BODY = 4
"""Lines from which the body of a function is elided."""

MAX_FILES = 100
"""Maximum number of files that a search lists."""

SYNTAX_CHECK = "import ast, sys\ntry: ast.parse(sys.stdin.buffer.read())\nexcept SyntaxError as e: print(e)"
"""The program of `enable_linting`, run by the sandbox's Python."""


class FileEditor(FileEditorTool):
    """R2E-Gym's editor."""

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
        concise: Annotated[bool | None, "For view: elide the bodies of functions, or do not."] = None,
        python_only: Annotated[
            bool, "For view of a folder: show only folders and Python files; false by default."
        ] = False,
        enable_linting: Annotated[bool, "After a change: check the syntax of a Python file; false by default."] = False,
    ) -> ToolResult:
        """View, create and change files.

        `view` shows a file with line numbers, or what lies in a folder two levels deep; a Python file of more than 110
        lines is shown with the bodies of its functions elided unless `view_range` is given or `concise` is false.
        `create` makes a new file; `str_replace` replaces a text that occurs exactly once; `insert` puts lines after a
        line; `undo_edit` takes back the last change.
        """
        if command == "view":
            text = "" if view_range is not None else _condense(context, path, concise)
            text = text or view_path(context, path, view_range, only_python=python_only)
        else:
            text = self._change(context, command, path, (old_str, new_str, insert_line, file_text))
            text += _syntax_error(context, path) if enable_linting else ""
        return ToolResult(text=f"Execution output of [file_editor]:\n{text}")


def _condense(context: ToolContext, path: str, concise: bool | None) -> str:
    """Return a condensed view of a long Python file; empty for anything else."""
    document = open_for_view(context, path) if path.endswith(".py") else None
    if document is None or not (document.line_count > CONDENSE_FROM if concise is None else concise):
        return ""
    condensed = condense(document)
    shown = f"Here is {path}, condensed; give a view_range to see all of a part:\n{condensed}"
    return bound(shown, context.max_output - ENDING_ROOM) if condensed else ""


def condense(document: Document) -> str:
    """Return a Python file with line numbers and without function bodies; empty if it is not valid Python."""
    try:
        bodies = list(_bodies(document.text))
    except (tokenize.TokenError, SyntaxError):
        return ""
    parts: list[str] = []
    line = 1
    for first, last in bodies:
        if first >= line and last - first + 1 >= SHORT_BODY:  # an inner function is elided with the outer one
            parts += [
                number_lines(document.lines(line, first - 1), line),
                f"{first:6}\t... lines {first}-{last} elided ...\n",
            ]
            line = last + 1
    return "".join([*parts, number_lines(document.lines(line, document.line_count), line)])


def _bodies(source: str) -> Iterator[tuple[int, int]]:
    """Yield the first and last line of each function's body, outer ones before inner ones."""
    starts: list[int] = []  # first line of each open block, or 0 if it is not a function's
    found: list[tuple[int, int]] = []
    in_function = at_line_start = True
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.INDENT:
            starts.append(token.start[0] if in_function else 0)
        elif token.type == tokenize.DEDENT:
            start = starts.pop()
            found += [(start, last)] if start else []
        elif token.type not in (tokenize.NL, tokenize.COMMENT, tokenize.NEWLINE, tokenize.ENDMARKER):
            if at_line_start:
                in_function = token.string in ("def", "async")
            last = token.end[0]
        at_line_start = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT) or (
            at_line_start and token.type in (tokenize.NL, tokenize.COMMENT)
        )
    yield from sorted(found)


def _syntax_error(context: ToolContext, path: str) -> str:
    """Return the sandbox's Python's verdict on a Python file; empty if the syntax is valid or Python is missing."""
    if not path.endswith(".py"):
        return ""
    line = f"python3 -c {shlex.quote(SYNTAX_CHECK)} < {shlex.quote(context.sandbox.resolve(path))}"
    checked = context.sandbox.exec(line, timeout=context.time_left(30.0))
    problem = clean(checked.text).strip() if checked.ok else ""
    return f"[syntax error: {problem}]\n" if problem else ""


@tool(examples=({"search_term": "import"},))
def search(
    context: ToolContext,
    search_term: Annotated[str, "The text to search for."],
    path: Annotated[str, "The file or folder to search, absolute or relative; the repository by default."] = ".",
    python_only: Annotated[bool, "Search only Python files; false by default."] = False,
) -> ToolResult:
    """Search for a text (a basic regular expression, as for grep).

    Below a folder, the files that hold it are listed with the number of matching lines; in a file, the matching lines
    are shown with their numbers.
    """
    found = grep_lines(context, search_term, path, include="*.py" if python_only else "", basic=True)
    if found.matches and set(found.counts) == {found.where}:
        body = "".join(f"{match.line}:{match.shown()}\n" for match in found.matches)
    else:
        body = _by_file(found.counts, f'"{harmless(search_term)}" in {harmless(path)}')
    return ToolResult(text=f"Execution output of [search]:\n{bound(body, context.max_output - ENDING_ROOM)}")


def _by_file(counts: Mapping[str, int], what: str) -> str:
    """Return the matching files with their number of matching lines."""
    if not counts:
        return f"No matches for {what}\n"
    if len(counts) > MAX_FILES:
        return f"{len(counts):,} files hold matches for {what}: narrow the search\n"
    files = "".join(f"./{path} ({count} matches)\n" for path, count in counts.items())
    return f"Found {sum(counts.values()):,} matches for {what}:\n{files}End of matches for {what}\n"


@tool(examples=({"cmd": "echo hello"}, {"cmd": "ls"}))
def execute_bash(context: ToolContext, cmd: Annotated[str, "The command line."]) -> ToolResult:
    """Run a bash command and get its exit code, standard output and standard error.

    Every call is a new shell that starts in the repository: a directory change or a variable does not last to the next
    call, so join such steps with &&. There is no input. A command is stopped after 120 seconds.
    """
    ran = run_command(context, cmd, timeout=DEFAULT_TIMEOUT, merge=False)
    room = context.max_output - ENDING_ROOM
    errors = ran.error_output(room // 2)
    output = ran.output(room - len(errors))
    code = -1 if ran.exit_code is None else ran.exit_code
    stopped = f"[{ran.ending()}]\n" if ran.result.timed_out else ""
    text = (
        f"Exit code: {code}\nExecution output of [execute_bash]:\n{stopped}"
        f"[STDOUT]\n\n{output}\n\n[STDERR]\n\n{errors}\n"
    )
    return ToolResult(text=text, ok=ran.result.ok, exit_code=ran.exit_code)


@tool
def finish(
    context: ToolContext,  # noqa: ARG001  the call itself is the record
    command: Annotated[Literal["submit"], "Must be submit, which is the default."] = "submit",  # noqa: ARG001
    result: Annotated[str, "What was done, for the record; it is not judged."] = "",  # noqa: ARG001
) -> ToolResult:
    """Hand in the work when the problem is solved. This ends the episode: the repository is judged as it is now."""
    return ToolResult(text="<<< Finished >>>", submitted=True)
