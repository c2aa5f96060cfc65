"""`pdb`: Python's debugger, kept running between calls."""

from __future__ import annotations

import dataclasses
import shlex
import signal
from collections.abc import Sequence
from typing import Annotated

from ..errors import FileError, ToolError
from ..sandboxes import Sandbox
from ..types import JsonObject, ToolResult
from .base import Tool, ToolContext
from .editing import moved_lines
from .files import check_text, shown_path
from .pdb_session import FORMS, Breakpoint, DebuggerReply, DebuggerSession, Position, parse_entrypoint
from .shell import MAX_TIMEOUT, cap_timeout
from .text import NOTE_ROOM, bound, clean, harmless, shorten

DEFAULT_TIMEOUT = 60.0
"""Default `timeout` of a command, in seconds."""

START_TIMEOUT = 30.0
"""Minimum number of seconds that a program has to reach its first line."""

MAX_COMMAND = 50_000
"""Maximum length of `command` in characters."""

LINE_WIDTH = 200


@dataclasses.dataclass(slots=True)
class _Breakpoints:
    """The breakpoints of an episode, and the text of their files at the time of setting."""

    points: tuple[Breakpoint, ...] = ()
    texts: dict[str, list[str]] = dataclasses.field(default_factory=dict)

    def update(self, sandbox: Sandbox, points: tuple[Breakpoint, ...]) -> None:
        """Store the breakpoints of a session, which runs the current files."""
        self.points = points
        self.texts = {
            file: self.texts[file] if file in self.texts else _lines(sandbox, file)
            for file in {point.file for point in points}
        }

    def follow_edits(self, sandbox: Sandbox) -> list[str]:
        """Move the breakpoints along with edits. Return notes on those that moved or were dropped."""
        notes: list[str] = []
        kept = list(self.points)
        for file, old in list(self.texts.items()):
            new = self.texts[file] = _lines(sandbox, file)
            if new == old:
                continue
            moved = moved_lines(old, new)
            for point in [point for point in kept if point.file == file]:
                kept.remove(point)
                line = moved.get(point.line)
                where = f"{shown_path(sandbox, file)}:{point.line}"
                if line is None:
                    notes.append(f"Breakpoint {point.number} at {where} was dropped: its line is gone.")
                else:
                    kept.append(point.model_copy(update={"line": line}))
                    notes += [f"Breakpoint {point.number} moved from {where} to line {line}."] * (line != point.line)
        self.points = tuple(sorted(kept, key=lambda point: point.number))
        return notes


class Pdb(Tool):
    """The `pdb` tool: a debugger session that outlives calls, and breakpoints that outlive the session."""

    def __init__(self) -> None:
        self._session: DebuggerSession | None = None
        self._breakpoints = _Breakpoints()
        self._entrypoint = ""
        self._arguments: tuple[str, ...] | None = None

    def reset(self) -> None:
        """End the session and forget the breakpoints."""
        self._close()
        self._breakpoints = _Breakpoints()
        self._entrypoint = ""
        self._arguments = None

    def save(self, sandbox: Sandbox) -> JsonObject:
        """Return the breakpoints and what is debugged. The session ends with its sandbox."""
        points = self._breakpoints
        return {
            "points": [
                {**point.model_dump(mode="json"), "file": shown_path(sandbox, point.file)} for point in points.points
            ],
            "texts": {shown_path(sandbox, file): text for file, text in points.texts.items()},
            "entrypoint": self._entrypoint,
            "arguments": None if self._arguments is None else list(self._arguments),
        }

    def load(self, sandbox: Sandbox, state: JsonObject) -> None:
        """Take over the breakpoints. The next call starts a new session."""
        self._breakpoints = _Breakpoints(
            tuple(Breakpoint.model_validate({**one, "file": sandbox.resolve(one["file"])}) for one in state["points"]),
            {sandbox.resolve(file): text for file, text in state["texts"].items()},
        )
        self._entrypoint = state["entrypoint"]
        self._arguments = None if state["arguments"] is None else tuple(state["arguments"])

    def run(
        self,
        context: ToolContext,
        command: Annotated[str, "What to type into pdb; a line each for several commands."],
        entrypoint: Annotated[
            str,
            "What to debug, as in `python -m pytest tests/test_x.py -x` or `python script.py 3`. Another one than the "
            "last starts a new session. The first is by default the task's own test command.",
        ] = "",
        timeout: Annotated[
            float,
            f"Seconds after which what runs is interrupted ({DEFAULT_TIMEOUT:g} by default, {MAX_TIMEOUT:g} at most).",
        ] = DEFAULT_TIMEOUT,
    ) -> ToolResult:
        """Run commands of the Python debugger pdb, such as `b pkg/mod.py:12, x > 3`, `c`, `n`, `s`, `r`, `up`,
        `p expr`, `w`, `restart`, `q`; several may be given, one per line. The first call starts the program, which
        then stands at its first line. It stops at breakpoints, at every failed test and where an exception is not
        caught, with all variables at hand. Each call returns what was printed, the current frame with its source, and
        the breakpoints, which stay over restarts and move along with edits. When source files change or the program
        ends, the next call starts it from the top. Its standard input is empty.
        """  # noqa: D205  policies read this text, unwrapped
        lines = _command_lines(command)
        timeout = cap_timeout(timeout)
        self._choose(context, check_text(entrypoint.strip(), "entrypoint"))
        try:
            return self._run(context, lines, timeout)
        except BaseException:  # a session that failed during a reply is unusable
            self._close()
            raise

    def _choose(self, context: ToolContext, entrypoint: str) -> None:
        """Select what to debug: `entrypoint`, the last one or the task's own."""
        wanted = entrypoint or self._entrypoint or context.eval_cmd
        if not wanted:
            raise ToolError(f"This task comes with nothing to run: say what to debug. {FORMS}")
        parse_entrypoint(wanted)
        if wanted != self._entrypoint:
            self._close()
            self._entrypoint = wanted
            self._arguments = None

    def _run(self, context: ToolContext, lines: list[str], timeout: float) -> ToolResult:
        """Start the program if needed, run the commands, and restart it when the session asks for that."""
        story = _Story()
        if not self._session:
            self._start(context, story, timeout)
        while self._session and lines:
            reply = self._session.command(lines, self._breakpoints.points, timeout=context.time_left(timeout))
            lines = []
            self._take(context, story, reply)
            story.not_run = list(reply.rest)
            position = reply.position
            if position and position.state in ("stale", "restart"):
                lines, story.not_run = story.not_run, []
                self._arguments = position.arguments or self._arguments
                changed = ", ".join(shown_path(context.sandbox, file) for file in position.changed)
                story.notes += [f"Changed since the program was started: {changed}."] if changed else []
                self._start(context, story, timeout)
        story.not_run += lines
        return self._result(context, story)

    def _start(self, context: ToolContext, story: _Story, timeout: float) -> None:
        """Start a session. If the program does not reach its first line, there is no session.

        The program has at least `START_TIMEOUT` seconds to load, however short `timeout` is.
        """
        timeout = context.time_left(max(timeout, START_TIMEOUT))
        notes = self._breakpoints.follow_edits(context.sandbox)
        self._session = DebuggerSession(context.sandbox, parse_entrypoint(self._entrypoint), timeout=timeout)
        arguments = f" with the arguments {shlex.join(self._arguments)}" if self._arguments is not None else ""
        story.notes += [f"Started: {self._entrypoint}{arguments}", *notes]
        reply = self._session.start(self._breakpoints.points, arguments=self._arguments, timeout=timeout)
        self._take(context, story, reply)

    def _take(self, context: ToolContext, story: _Story, reply: DebuggerReply) -> None:
        """Store the result of a request, and close a session that is over."""
        story.output += reply.output
        story.reply = reply
        if reply.position:
            story.notes += reply.position.notes
        if not reply.position or reply.position.state != "stopped":
            self._close()
        self._breakpoints.update(context.sandbox, reply.breakpoints)

    def _close(self) -> None:
        if self._session:
            self._session.close()
        self._session = None

    def _result(self, context: ToolContext, story: _Story) -> ToolResult:
        reply, position = story.reply, story.reply.position
        points = self._breakpoints.points
        end = [*_ending(story), *_place(context.sandbox, position, points), *_listing(context.sandbox, points)]
        state = bound(harmless("\n".join(end)), context.max_output // 2)
        head = bound(harmless("\n".join(story.notes)), context.max_output // 4)
        room = max(NOTE_ROOM, context.max_output - len(state) - len(head) - 4)
        output = bound(clean(story.output.decode("utf-8", "replace")).strip("\n"), room)
        text = "\n\n".join(part for part in (head, output, state) if part)
        failed = reply.timed_out or story.not_run or (position and position.failed)
        return ToolResult(text=text, ok=not failed, exit_code=_shell_status(None if position else reply.exit_code))


@dataclasses.dataclass(slots=True)
class _Story:
    """The events of one call.

    Attributes:
        notes: Notes for the policy, shown before the output.
        output: Everything that was printed.
        reply: Last reply.
        not_run: Commands that were not run because the program ended.
    """

    notes: list[str] = dataclasses.field(default_factory=list)
    output: bytes = b""
    reply: DebuggerReply = dataclasses.field(default_factory=DebuggerReply)
    not_run: list[str] = dataclasses.field(default_factory=list)


def _command_lines(command: str) -> list[str]:
    if not command.strip():
        raise ToolError("The command is empty: say what pdb should do, as in `b file.py:12`, `c`, `n` or `p x`.")
    if len(command) > MAX_COMMAND:
        raise ToolError(f"The command has {len(command):,} characters; at most {MAX_COMMAND:,} are taken.")
    return [line.rstrip("\r") for line in command.strip("\n").split("\n")]


def _lines(sandbox: Sandbox, file: str) -> list[str]:
    """Return the lines of a file; empty if it cannot be read."""
    try:
        return sandbox.read_file(file).decode("utf-8", "replace").splitlines()
    except FileError:
        return []


def _shell_status(exit_code: int | None) -> int | None:
    """Return an exit code as a shell reports it: 128 + the signal's number."""
    return 128 - exit_code if exit_code is not None and exit_code < 0 else exit_code


def _ending(story: _Story) -> list[str]:
    """Return how the command or the program ended, if that is worth a line."""
    reply = story.reply
    not_run = [shorten(f"Not run: {' ;; '.join(story.not_run)}", LINE_WIDTH)] if story.not_run else []
    return [*_how_it_ended(reply), *not_run]


def _how_it_ended(reply: DebuggerReply) -> list[str]:
    again = "Breakpoints are kept; the next command starts the program from the top."
    if reply.position:
        late = ["The command took too long and was interrupted."] if reply.timed_out else []
        return [f"The session is closed. {again}"] if reply.position.state == "quit" else late
    if reply.exit_code is None:
        return [f"The command took too long, the program could not be interrupted, and it was killed. {again}"]
    if reply.exit_code < 0:
        name = signal.strsignal(-reply.exit_code) or "unknown"
        return [f"The program was killed by signal {-reply.exit_code} ({name}). {again}"]
    return [f"The program ended with exit code {reply.exit_code}. {again}"]


def _place(sandbox: Sandbox, position: Position | None, points: Sequence[Breakpoint]) -> list[str]:
    """Return the current frame and its source."""
    if not position or position.state != "stopped":
        return []
    if position.runner:
        return [f"Stopped at the start of {position.runner}: no test has run yet."]
    why = f" ({position.reason})" if position.reason else ""
    thread = f", thread {position.thread}" if position.thread else ""
    file = shown_path(sandbox, position.file) if position.file.startswith("/") else position.file
    shown = [
        f"Stopped at {file}:{position.line} in {position.function}{why}, "
        f"frame {position.frame} of {position.frames}{thread}."
    ]
    shown += [position.exception] if position.exception else []
    shown += [f"It is about to return {position.returning}."] if position.returning is not None else []
    if position.defining is not None:
        shown.append(f"The commands of breakpoint {position.defining} are not complete: the line `end` ends them.")
    stops = {point.line for point in points if point.file == position.file and point.enabled}
    for number, text in enumerate(position.context, position.first):
        mark = ("B" if number in stops else " ") + ("->" if number == position.line else "  ")
        shown.append(f"{mark} {number:>4}  {shorten(text, LINE_WIDTH)}".rstrip())
    return shown


def _listing(sandbox: Sandbox, points: Sequence[Breakpoint]) -> list[str]:
    """Return the breakpoints, one per line."""
    return ["Breakpoints:", *(f"  {_describe(sandbox, point)}" for point in points)] if points else ["No breakpoints."]


def _describe(sandbox: Sandbox, point: Breakpoint) -> str:
    properties = {
        f"if {point.condition}": point.condition is not None,
        "disabled": not point.enabled,
        "temporary": point.temporary,
        f"ignored {point.ignore} more times": point.ignore > 0,
        f"reached {point.hits} times": point.hits > 0,
        f"runs {'; '.join(point.commands)}": bool(point.commands),
    }
    return ", ".join(
        [
            f"{point.number}  {shown_path(sandbox, point.file)}:{point.line}",
            *(text for text, holds in properties.items() if holds),
        ]
    )
