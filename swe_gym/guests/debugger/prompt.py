"""The prompt: requests in, replies out, commands that differ from those of pdb, breakpoints, and what a stop shows."""

import bdb
import codeop
import contextlib
import dis
import linecache
import os
import pdb
import pprint
import re
import reprlib
import shlex
import sys
import threading
import traceback
import types

from .channel import Typed

HERE = "<debugger>"  # the file name that this program is compiled with
OWN_FILES = (HERE, bdb.__file__, pdb.__file__)
HARNESS = ("bdb", "pdb", "pytest", "_pytest", "pluggy", "unittest", "importlib", HERE)
"""Packages whose frames at the old end of the stack are left out."""


def summary(error: BaseException) -> str:
    """Return an exception as the last lines of a traceback show it."""
    try:
        return "".join(traceback.format_exception_only(type(error), error)).strip()
    except Exception:  # noqa: BLE001  its `__str__` may raise anything
        return type(error).__name__


def harness(frame: "types.FrameType") -> bool:
    """Return whether a frame belongs to the debugger or to a test runner."""
    return module_name(frame).partition(".")[0] in HARNESS


def module_name(frame: "types.FrameType") -> str:
    spec = frame.f_globals.get("__spec__")  # the true name of a module that runs as __main__
    return str(getattr(spec, "name", None) or frame.f_globals.get("__name__"))


def helper(frame: "types.FrameType") -> bool:
    """Return whether a frame raised an exception on behalf of its caller, as an assertion helper does."""
    hidden = frame.f_locals.get("__tracebackhide__") is True or "__unittest" in frame.f_globals
    return hidden or frame.f_code.co_filename.startswith("<frozen importlib") or harness(frame)


class Watch:
    """Notices that source files changed on disk after the program loaded them."""

    def __init__(self) -> None:
        self.root = ""
        self.stamps: dict[str, tuple[int, int] | None] = {}

    def add(self, files: "set[str]") -> None:
        for file in files - self.stamps.keys():
            self.stamps[file] = self.stamp(file)

    def add_loaded(self) -> None:
        """Add the files of all modules below the root."""
        files = set()
        for module in list(sys.modules.values()):
            try:
                file = object.__getattribute__(module, "__dict__").get("__file__")
            except Exception:  # noqa: BLE001  sys.modules may hold anything
                continue
            if isinstance(file, str) and file.endswith(".py") and file.startswith(self.root):
                files.add(file)
        self.add(files)

    def changed(self) -> "list[str]":
        return sorted(file for file, stamp in self.stamps.items() if self.stamp(file) != stamp)

    @staticmethod
    def stamp(file: str) -> "tuple[int, int] | None":
        try:
            status = os.stat(file)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size


def code_lines(code: types.CodeType) -> "set[int]":
    """Return the lines of a file on which code starts."""
    lines = {line for _, line in dis.findlinestarts(code) if line}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            lines |= code_lines(constant)
    return lines


def continues_block(lines: "list[str]") -> bool:
    """Return whether the lines after a complete statement begin with more of it."""
    line = next((line for line in lines if line.strip()), "")
    words = line.replace(":", " ").split()
    return line[:1].isspace() or (bool(words) and words[0] in ("else", "elif", "except", "finally"))


TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, ContextManager, Iterator, Literal, NoReturn

    from .channel import DebuggerChannel

    Items = list[dict[str, Any]]
    Told = tuple[Items, list[str]]


class Breakpoints(pdb.Pdb):
    """A `pdb` whose breakpoints outlive the process."""

    prompt = property(lambda _: "", lambda *_: None)  # the reply is the prompt

    def __init__(self, channel: "DebuggerChannel", watch: "Watch", stdin: "Any") -> None:
        pdb.Pdb.__init__(self, stdin=stdin, stdout=channel.screen, nosigint=True, readrc=False)
        self.use_rawinput = False
        self.channel = channel
        self.watch = watch
        self.start_folder = os.getcwd()
        self.naming_places = False
        self.failed = False
        self.notes: list[str] = []

    def breakpoint_list(self) -> "Items":
        return [
            {
                "number": point.number,
                "file": point.file,
                "line": point.line,
                "condition": point.cond,
                "enabled": bool(point.enabled),
                "temporary": bool(point.temporary),
                "ignore": point.ignore,
                "hits": point.hits,
                "function": point.funcname,
                "commands": self.commands.get(point.number, []),
                "silent": self.commands_silent.get(point.number, False),
                "prompts": self.commands_doprompt.get(point.number, True),
            }
            for point in bdb.Breakpoint.bpbynumber
            if point
        ]

    def save(self) -> None:
        """Send what the host does not know yet: what runs next may not return."""
        breakpoints, rest = self.breakpoint_list(), self.to_come()
        news = (kept(breakpoints), rest)
        if news != self.channel.told and not self.commands_defining:
            self.channel.told = news
            self.channel.reply(state="running", breakpoints=breakpoints, rest=rest)

    def to_come(self) -> "list[str]":
        """Return the commands that were not run yet."""
        queued = [line for line in self.cmdqueue if not line.startswith("_pdbcmd")]  # pdb's own, from 3.13 on
        return queued + self.channel.lines

    def restore(self, breakpoints: "Items") -> None:
        numbers = bdb.Breakpoint.bpbynumber
        for item in breakpoints:
            number = item["number"]
            numbers.extend([None] * (number - len(numbers)))
            bdb.Breakpoint.next = number
            problem = self.set_break(item["file"], item["line"], item["temporary"], item["condition"], item["function"])
            if problem:
                self.notes.append("Breakpoint {} was dropped: {}.".format(number, problem))
                continue
            point: Any = numbers[-1]
            point.enabled, point.ignore = item["enabled"], item["ignore"]
            if item["commands"]:
                self.commands[number] = item["commands"]
                self.commands_silent[number] = item["silent"]
                self.commands_doprompt[number] = item["prompts"]

    def do_break(self, arg: str, temporary: "Literal[0, 1] | bool" = 0) -> None:
        """As in pdb; a condition that is no expression and a line without code are told in every version."""
        if not self.is_condition(arg.partition(",")[2]):
            return
        before = len(bdb.Breakpoint.bpbynumber)
        with self.places():
            pdb.Pdb.do_break(self, arg, temporary)
        for point in filter(None, bdb.Breakpoint.bpbynumber[before:]):
            self.warn_without_code(point.file, point.line)
        self.failed = self.failed or (bool(arg) and len(bdb.Breakpoint.bpbynumber) == before)
        for frame, _ in self.stack:  # they run already, perhaps untraced
            if self.break_anywhere(frame) and not frame.f_trace:
                frame.f_trace = self.trace_dispatch

    do_b = do_break

    def do_condition(self, arg: str) -> None:
        if self.is_condition(arg.partition(" ")[2]):
            pdb.Pdb.do_condition(self, arg)

    def is_condition(self, text: str) -> bool:
        try:
            compile(text.strip() or "True", "<condition>", "eval")
        except (SyntaxError, ValueError) as error:
            self.error("Invalid condition {}: {!r}".format(text.strip(), error))
            return False
        return True

    def warn_without_code(self, file: str, line: int) -> None:
        source = "".join(linecache.getlines(file))
        try:
            lines = code_lines(compile(source, file, "exec", dont_inherit=True))
        except (SyntaxError, ValueError):
            return
        if line not in lines:
            later = [number for number in lines if number > line]
            hint = "the next line with code is {}".format(min(later)) if later else "no code follows"
            self.message("*** No code starts on line {}, so the program never stops there: {}.".format(line, hint))

    def do_clear(self, arg: str) -> None:
        """Clear all breakpoints without asking where no argument is given: nobody could answer."""
        with self.places():
            if arg:
                pdb.Pdb.do_clear(self, arg)
                return
            points = [point for point in bdb.Breakpoint.bpbynumber if point]
            self.clear_all_breaks()
            for point in points:
                self.message("Deleted {}".format(point))

    do_cl = do_clear

    def do_enable(self, arg: str) -> None:
        with self.places():
            pdb.Pdb.do_enable(self, arg)

    def do_disable(self, arg: str) -> None:
        with self.places():
            pdb.Pdb.do_disable(self, arg)

    def lookupmodule(self, filename: str) -> "str | None":
        """Find files from the folder where the session started and from the workdir too."""
        for folder in (self.start_folder, self.watch.root):
            for name in (filename, filename + ".py"):
                path = os.path.join(folder, name)
                if os.path.isfile(path):
                    return path
        return pdb.Pdb.lookupmodule(self, filename)

    def canonic(self, filename: str) -> str:
        """Return one name for a file, whatever links lead to it."""
        known = self.fncache.get(filename)
        if known is None:
            known = filename if filename[:1] + filename[-1:] == "<>" else os.path.realpath(filename)
            self.fncache[filename] = known
        return known

    def error(self, msg: str) -> None:
        self.failed = True
        pdb.Pdb.error(self, msg)

    @contextlib.contextmanager
    def switched(self, name: str) -> "Iterator[None]":
        """Set a flag meanwhile."""
        outer = getattr(self, name)
        setattr(self, name, True)
        try:
            yield
        finally:
            setattr(self, name, outer)

    def places(self) -> "ContextManager[None]":
        """Print file names without the root meanwhile, as in the reply."""
        return self.switched("naming_places")

    def message(self, msg: object, *arguments: "Any", **options: "Any") -> None:
        text = str(msg).replace(self.watch.root, "") if self.naming_places else str(msg)
        pdb.Pdb.message(self, text, *arguments, **options)


def kept(breakpoints: "Items") -> "Items":
    """Return the part of breakpoints that the next session needs."""
    return [{key: value for key, value in item.items() if key not in ("hits", "ignore")} for item in breakpoints]


CONTEXT = 5
"""Source lines shown before and after the current one."""

STATEMENT = re.compile(r"[A-Za-z_]\w*(?:\s*[-+*/%&|^@<>!]?=|[.\[])")
"""The start of a statement whose first word may be a command: `c = 1`, `n.x`, `a[0]`."""

PRINTING = re.compile(r"(pp?|whatis)(?=\()")

MAX_LINE = 10000


class Prompt(Breakpoints):
    """A `pdb` that is driven by requests and describes in each reply where it stands."""

    def __init__(self, channel: "DebuggerChannel", watch: "Watch", nested: bool = False) -> None:
        Breakpoints.__init__(self, channel, watch, Typed(self.next_line))
        self.nested = nested
        self.evaluating = False
        self.showing_entries = False
        self.fresh = not nested
        self.reasons: dict[int, str] = {}
        self.exception = ""

    def next_line(self) -> str:
        """Return the next line of the request; if none is left, reply and wait for the next request."""
        if self.evaluating:
            return ""
        while not self.channel.lines:
            self.watch.add_loaded()
            self.channel.reply(**self.describe("stopped"))
            self.failed, self.notes = False, []
            self.channel.request()
            self.channel.told = (kept(self.breakpoint_list()), [])
            changed = self.watch.changed()
            if changed:
                self.leave("stale", changed=changed)
        return self.channel.lines.pop(0) + "\n"

    def leave(self, state: str, **fields: object) -> "NoReturn":
        """Reply for the last time and exit at once: the program could catch an exception."""
        self.channel.reply(state=state, breakpoints=self.breakpoint_list(), rest=self.to_come(), **fields)
        os._exit(0)

    def describe(self, state: str) -> "dict[str, Any]":
        frame, line = self.stack[self.curindex]
        self.watch.add({item[0].f_code.co_filename for item in self.stack if self.is_ours(item[0].f_code.co_filename)})
        breakpoints = self.breakpoint_list()
        self.watch.add({item["file"] for item in breakpoints})
        thread = threading.current_thread()
        first, context = self.context(frame, line)
        return {
            "state": state,
            "runner": module_name(frame).partition(".")[0] if self.fresh and harness(frame) else "",
            "reason": self.reasons.get(threading.get_ident(), ""),
            "file": self.canonic(frame.f_code.co_filename),
            "line": line,
            "function": frame.f_code.co_name,
            "frame": self.curindex + 1,
            "frames": len(self.stack),
            "thread": "" if thread is threading.main_thread() else thread.name,
            "first": first,
            "context": context,
            "exception": self.exception,
            "returning": self.returning(frame),
            "defining": self.commands_bnum if self.commands_defining else None,
            "breakpoints": breakpoints,
            "rest": self.channel.dropped,
            "notes": self.notes,
            "failed": self.failed,
        }

    def is_ours(self, file: str) -> bool:
        return file.startswith(self.watch.root) and os.path.isfile(file)

    def context(self, frame: "types.FrameType", line: int) -> "tuple[int, list[str]]":
        lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
        first = max(1, line - CONTEXT)
        return first, [text.rstrip("\r\n")[: MAX_LINE + 1] for text in lines[first - 1 : line + CONTEXT]]

    def returning(self, frame: "types.FrameType") -> "str | None":
        """Return what the frame is about to return, if it stopped for that."""
        if self.frame_returning is not frame:
            return None
        try:
            return reprlib.repr(self.frame_locals()["__return__"])
        except Exception:  # noqa: BLE001  a `__repr__` may raise anything
            return None

    def frame_locals(self) -> "dict[str, Any]":
        """Return the locals of the current frame; those of the frame itself lack changes made at the prompt."""
        frame: Any = self.curframe
        changed: dict[str, Any] = getattr(self, "curframe_locals", None) or frame.f_locals
        return changed

    def precmd(self, line: str) -> str:
        try:
            line = pdb.Pdb.precmd(self, "" if line.lstrip().startswith("#") else line)
        except Exception as error:  # noqa: BLE001  an alias for nothing
            self.show_exception(error)
            line = ""
        self.save()
        if self.commands_defining:
            return line
        return "!" + line if STATEMENT.match(line) else PRINTING.sub(r"\1 ", line, 1)

    def onecmd(self, line: str) -> bool:
        """Run a command. An error of pdb itself, in any version, must not end the program."""
        try:
            return pdb.Pdb.onecmd(self, line)
        except Exception as error:  # noqa: BLE001  see above
            self.show_exception(error)
            return False

    def emptyline(self) -> bool:
        """Do nothing: among several lines, an empty one does not repeat a command."""
        return False

    def default(self, line: str) -> None:
        """Run a statement, with the lines of the request that belong to it."""
        statement = self.whole_statement(line[1:].lstrip() if line[:1] == "!" else line)
        with self.switched("evaluating"):
            pdb.Pdb.default(self, statement)

    def whole_statement(self, text: str) -> str:
        lines = self.channel.lines
        while lines:
            try:
                complete = codeop.compile_command(text + "\n", HERE, "single")
            except (SyntaxError, ValueError, OverflowError):
                break
            if complete and not continues_block(lines):
                break
            text += "\n" + lines.pop(0)
        return text + "\n" if "\n" in text else text

    def handle_command_def(self, line: str) -> bool:
        """Add a command to a breakpoint's list. One that resumes the program ends the list: drop an `end` after it."""
        ended = pdb.Pdb.handle_command_def(self, line)
        if ended and line.strip() != "end" and [text.strip() for text in self.channel.lines[:1]] == ["end"]:
            self.channel.lines.pop(0)
        return ended

    def do_quit(self, arg: str) -> "bool | None":
        return pdb.Pdb.do_quit(self, arg) if self.nested else self.leave("quit")

    do_q = do_exit = do_EOF = do_quit

    def do_run(self, arg: str) -> None:
        try:
            arguments = shlex.split(arg) if arg else None
        except ValueError as error:
            self.error("Cannot run {}: {}".format(arg, error))
            return
        self.leave("restart", arguments=arguments)

    do_restart = do_run

    def do_interact(self, arg: str) -> None:
        """Refuse: it would read the program's standard input."""
        self.error("interact is not available. Statements of several lines work at this prompt.")

    def do_debug(self, arg: str) -> None:
        """Step through a statement with a debugger that speaks through the same channel."""
        sys.settrace(None)
        inner = type(self)(self.channel, self.watch, nested=True)
        for name in ("commands", "commands_silent", "commands_doprompt"):
            setattr(inner, name, getattr(self, name))
        self.message("ENTERING RECURSIVE DEBUGGER")
        try:
            frame: Any = self.curframe
            sys.call_tracing(inner.run, (arg, frame.f_globals, self.frame_locals()))
        except Exception as error:  # noqa: BLE001  any error of the statement is shown
            self.show_exception(error)
        self.message("LEAVING RECURSIVE DEBUGGER")
        sys.settrace(self.trace_dispatch)

    def do_p(self, arg: str) -> None:
        self.show(arg, repr)

    def do_pp(self, arg: str) -> None:
        self.show(arg, pprint.pformat)

    def show(self, arg: str, form: "Callable[[object], str]") -> None:
        """Print a value, or an error if its `__repr__` fails, which old versions of pdb do not."""
        try:
            value = self._getval(arg)
        except BaseException:  # noqa: BLE001  pdb has shown it
            return
        try:
            self.message(form(value))
        except BaseException as error:  # noqa: BLE001  a `__repr__` may raise anything
            self.show_exception(error)

    def show_exception(self, error: BaseException) -> None:
        self.error(summary(error))

    def preloop(self) -> None:
        """Print the position only if commands wait; otherwise the reply shows it."""
        if self.to_come() and not self.commands_defining:
            with self.switched("showing_entries"):
                self.print_stack_entry(self.stack[self.curindex])
        pdb.Pdb.preloop(self)

    def print_stack_trace(self) -> None:
        with self.switched("showing_entries"):
            pdb.Pdb.print_stack_trace(self)

    def print_stack_entry(self, *arguments: "Any") -> None:
        if self.showing_entries:
            with self.places():
                pdb.Pdb.print_stack_entry(self, *arguments)
