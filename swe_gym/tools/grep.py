"""The `grep` tool."""

import dataclasses
import fnmatch
import re
import time
from typing import Annotated

from ..errors import ToolError
from ..types import ExecResult, ToolResult
from .base import ToolContext, tool
from .files import check_text, shown_path
from .text import bound, clean, harmless, shorten

MAX_RESULTS = 100
"""Default number of matching lines shown."""

MAX_LINE = 300
"""Characters shown of a matching line."""

MAX_FOUND = 2 << 20
"""Bytes of matching lines read from the sandbox; beyond that only counts are shown."""

MAX_PATTERN = 2000
"""Maximum length of a pattern in characters."""

TIMEOUT = 30.0
"""Seconds before a search is stopped, including a second run of `grep`."""


@tool(examples=({"pattern": "import"}, {"pattern": "^def ", "include": "*.py", "max_results": 10}))
def grep(
    context: ToolContext,
    pattern: Annotated[str, "The regular expression."],
    path: Annotated[str, "The file or folder to search, relative to the repository or absolute; all by default."] = ".",
    include: Annotated[str, 'Search only files whose name or path matches this glob, such as "*.py".'] = "",
    max_results: Annotated[int, "How many matching lines to show at most."] = MAX_RESULTS,
) -> ToolResult:
    r"""Search files for lines that match an extended regular expression (as grep -E; \d, \w, \s and \b work too) and
    get them as path:line:text, sorted. The .git folder and binary files are left out. Matching is by line and
    case-sensitive. At most 100 lines are shown unless `max_results` says otherwise.
    """  # noqa: D205  policies read this text, unwrapped
    found = search(context, pattern, path, include=include, max_results=max_results)
    if found.matches is None:
        return ToolResult(text=bound(_flood(found), context.max_output))
    lines = [f"{match.path}:{match.line}:{match.shown()}\n" for match in found.matches[:max_results]]
    return ToolResult(text=bound("".join(lines) + summary(found, max_results), context.max_output))


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class Match:
    """A matching line."""

    path: str
    line: int
    text: str

    def shown(self) -> str:
        """Return the line, made harmless and cut if it is long."""
        return shorten(harmless(self.text), MAX_LINE)


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
        pattern: The pattern searched for.
        where: The file or folder as shown to policies.
        matches: All matching lines, sorted by path and line; None if there are too many to read.
        counts: Number of matching lines by file, sorted by path.
    """

    pattern: str
    where: str
    matches: list[Match] | None
    counts: dict[str, int]


def search(
    context: ToolContext, pattern: str, path: str, *, include: str = "", basic: bool = False, max_results: int = 1
) -> SearchResult:
    """Search with the sandbox's `grep`, which runs a second time to count if it prints too much.

    Args:
        context: The sandbox.
        pattern: A regular expression.
        path: A file or folder.
        include: A glob that names or paths must match; empty for all.
        basic: Whether `pattern` is a basic regular expression; else it is an extended one.
        max_results: The policy's limit of lines, checked here.

    Raises:
        ToolError: The path is missing, the pattern or the limit is invalid, or the search takes too long.
    """
    if max_results < 1:
        raise ToolError(f"max_results is {max_results}, but must be 1 or more.")
    where = shown_path(context.sandbox, check_text(path, "path"))
    globs = _alternatives(check_text(include, "include"))
    _check_pattern(pattern)
    expression = check_text(pattern if basic else as_extended(pattern), "pattern")
    options = ["-G" if basic else "-E", "-rHIZ", "--exclude-dir=.git", *([] if basic else _ignore_case(pattern))]
    options += [f"--include={glob.rpartition('/')[2]}" for glob in globs]
    deadline = time.monotonic() + context.time_left(TIMEOUT)
    lines = _grep(context, deadline, [*options, "-n", "-e", expression, "--", where], expression)
    if lines is not None:
        parsed = (Match(name, int(line), text) for name, line, text in _parse(lines))
        matches = sorted(match for match in parsed if _matches_globs(match.path, where, globs))
        counts: dict[str, int] = {}
        for match in matches:
            counts[match.path] = counts.get(match.path, 0) + 1
        return SearchResult(pattern, where, matches, counts)
    counted = _grep(context, deadline, [*options, "-c", "-e", expression, "--", where], expression) or b""
    totals = sorted((name, int(count)) for name, count, _ in _parse(counted) if _matches_globs(name, where, globs))
    return SearchResult(pattern, where, None, {name: count for name, count in totals if count})


def _check_pattern(pattern: str) -> None:
    if not pattern:
        raise ToolError("The pattern is empty.")
    if "\n" in pattern:
        raise ToolError("A pattern matches within one line: give one line.")
    if len(pattern) > MAX_PATTERN:
        raise ToolError(f"The pattern has {len(pattern):,} characters; at most {MAX_PATTERN:,} are taken.")


def summary(found: SearchResult, shown: int) -> str:
    """Return a note on the lines after the first `shown`; empty if there are none."""
    total = sum(found.counts.values())
    if not total:
        where = "the repository" if found.where == "." else found.where
        hint = " In an extended regular expression | needs no backslash." if r"\|" in found.pattern else ""
        return f"No line of {where} matches `{harmless(found.pattern)}`.{hint}\n"
    if total <= shown:
        return ""
    return f"[... {total - shown:,} more matching lines; {total:,} in {len(found.counts):,} files in all ...]\n"


def _flood(found: SearchResult) -> str:
    most = sorted(found.counts.items(), key=lambda item: (-item[1], item[0]))[:20]
    listed = "".join(f"{path}: {count:,} lines\n" for path, count in most)
    total, files = sum(found.counts.values()), len(found.counts)
    return f"{total:,} lines in {files:,} files match, too many to show: narrow the search. Most are in\n{listed}"


def as_extended(pattern: str) -> str:
    r"""Translate a pattern into the extended syntax, which has neither "\d" nor "(?:".

    Raises:
        ToolError: It holds a look-around or another group unknown to this syntax; `grep` would match it literally.
    """
    return _TOKEN.sub(_translate, pattern.removeprefix("(?i)"))


def _translate(match: re.Match[str]) -> str:
    token = match[0]
    if token.startswith("["):
        return re.sub(r"\\([dwst])", lambda inner: _IN_BRACKETS[inner[1]], token)
    if token == "(?":
        raise ToolError(f"`{harmless(match.string)}` holds `(?`, which extended regular expressions have not.")
    return _OUTSIDE.get(token, token)


_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\[:\w+:\]|[^\]])*\]|\(\?:?")
_OUTSIDE = {r"\d": "[0-9]", r"\D": "[^0-9]", r"\t": "\t", "(?:": "("}
_IN_BRACKETS = {"d": "0-9", "w": "[:alnum:]_", "s": "[:space:]", "t": "\t"}


def _ignore_case(pattern: str) -> list[str]:
    return ["-i"] if pattern.startswith("(?i)") else []


def _alternatives(glob: str) -> list[str]:
    """Expand braces: `*.{c,h}` becomes `*.c` and `*.h`."""
    match = re.fullmatch(r"([^{}]*)\{([^{}]*)\}([^{}]*)", glob)
    if match is None:
        return [glob] if glob else []
    return [match[1] + choice + match[3] for choice in match[2].split(",")]


def _matches_globs(path: str, where: str, globs: list[str]) -> bool:
    """Return whether globs with a slash match the path; `grep` itself compares names."""
    below = path.removeprefix(where + "/")
    patterns = [glob.removeprefix("./").replace("**/", "*") for glob in globs]
    return not globs or any(
        "/" not in glob or fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(below, pattern)
        for glob, pattern in zip(globs, patterns, strict=True)
    )


def _grep(context: ToolContext, deadline: float, arguments: list[str], pattern: str) -> bytes | None:
    """Return the output of `grep` in the order of the file system; None if it is too long to read.

    ASCII patterns are compared as bytes: that is fast, and works in any encoding.
    """
    env = {"LC_ALL": "C"} if pattern.isascii() else {}
    timeout = max(0.1, deadline - time.monotonic())
    result = context.sandbox.exec(["grep", *arguments], env=env, timeout=timeout, max_output=MAX_FOUND)
    if result.timed_out:
        raise ToolError(f"The search took more than {TIMEOUT:g} s: search a sub-folder, or for a simpler pattern.")
    if result.exit_code not in (0, 1) or "unrecognized option" in result.error_text:
        _check_errors(result, pattern, arguments[-1])
    return None if result.stdout_dropped else result.stdout


def _check_errors(result: ExecResult, pattern: str, where: str) -> None:
    """Raise for a bad pattern or path. Files that cannot be read are skipped."""
    errors = [line.removeprefix("grep: ") for line in clean(result.error_text).splitlines()]
    errors = [line for line in errors if not line.startswith("warning: ")]
    about_path = [line.removeprefix(f"{where}: ") for line in errors if line.startswith(f"{where}: ")]
    if about_path:
        missing = about_path[0] in ("No such file or directory", "Not a directory")
        raise ToolError(
            f"There is no file or folder {where!r}." if missing else f"{where!r} cannot be searched: {about_path[0]}."
        )
    if result.exit_code == 2 and all(": " in line for line in errors):
        return
    reason = "; ".join(errors[:3]) or result.describe()
    if result.exit_code == 2:
        raise ToolError(f"`{harmless(pattern)}` is no regular expression that grep takes: {reason}.")
    raise ToolError(f"The search failed: {reason}.")


_RECORD = re.compile(rb"([^\0]+)\0(\d+):?([^\n]*)\n")


def _parse(output: bytes) -> list[tuple[str, str, str]]:
    """Return path, line number (or count) and text of each line of the output."""
    found, position = [], 0
    while match := _RECORD.match(output, position):  # stops at anything that grep did not print
        found.append((_decode(match[1]).removeprefix("./"), match[2].decode(), _decode(match[3])))
        position = match.end()
    return found


def _decode(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return line.decode("latin-1")
