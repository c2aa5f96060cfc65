"""The debugger inside the sandbox: a `pdb` whose prompt is a channel to the `pdb` tool.

A guest program: standard library only, Python 3.6 syntax, sent as text and run by `pdb_session.BOOT` on a
pseudo-terminal. Requests and replies are lines of JSON on that terminal. Every request brings a fresh random nonce and
the reply stands between two marks made of it, so nothing that the program prints can be taken for a reply. The terminal
is moved to a descriptor of its own for this; the program finds an empty standard input.
"""

import sys

STARTED_WITH = set(sys.modules)  # what is imported from here on is ours and not the program's

import bdb
import builtins
import codeop
import contextlib
import dis
import fcntl
import functools
import importlib.machinery
import json
import linecache
import os
import pdb
import pprint
import re
import reprlib
import runpy
import shlex
import signal
import termios
import threading
import traceback
import types
import unittest

HERE = "<debugger>"  # what BOOT compiles this text as
OWN_FILES = (HERE, bdb.__file__, pdb.__file__)
HARNESS = ("bdb", "pdb", "pytest", "_pytest", "pluggy", "unittest", "importlib", HERE)
"""Packages whose frames at the old end of the stack are no news to anybody."""

CONTEXT = 5
"""Source lines shown before and after the current one."""

STATEMENT = re.compile(r"[A-Za-z_]\w*(?:\s*[-+*/%&|^@<>!]?=|[.\[])")
"""How a statement begins, though its first word may be a command: `c = 1`, `n.x`, `a[0]`."""

PRINTING = re.compile(r"(pp?|whatis)(?=\()")

MAX_LINE = 10000
MAX_EXCEPTION = 1000
PLUGIN = "_debugger_pytest_plugin"


class Channel:
    """The terminal as a line of requests and replies, and what all debuggers of this process share.

    Attributes:
        lines: The lines of the current request that were not yet taken.
        dropped: Those that an interrupt took away.
        told: The breakpoints and the commands to come, as the host heard of them last.
        waiting: No request is being worked on: an interrupt that comes now comes too late or too early.
        interrupted: The current request was interrupted already; once is enough.
        prompting: The thread that runs the commands of the current request, None while the program runs.
    """

    def __init__(self, nonce):
        self.fd = own_descriptor()
        self.screen = os.fdopen(own_descriptor(), "w", encoding="utf-8", errors="backslashreplace", buffering=1)
        self.nonce = nonce
        self.unread = b""
        self.lines = []
        self.dropped = []
        self.told = None
        self.waiting = True
        self.interrupted = False
        self.prompting = None
        self.lock = threading.RLock()

    def request(self):
        """The next request. The end of the terminal ends the process."""
        while b"\n" not in self.unread:
            data = os.read(self.fd, 1 << 16)
            if not data:
                os._exit(1)
            self.unread += data
        line, self.unread = self.unread.split(b"\n", 1)
        request = json.loads(line.decode("ascii"))
        self.nonce, self.lines = request["nonce"], request["lines"]
        self.interrupted = self.waiting = False
        self.dropped = []
        return request

    def reply(self, **block):
        """Write one reply in one piece, after everything that was printed before."""
        self.waiting = True  # an interrupt now would tear the reply
        flush()
        self.screen.flush()
        self.set_raw()
        data = "<{0}:{1}:{0}>".format(self.nonce, json.dumps(block)).encode("ascii")
        while data:
            data = data[os.write(self.fd, data) :]
        self.waiting = block.get("state") != "running"

    def set_raw(self):
        """No echo, no line length limit, no translation, whatever the program did to the terminal."""
        mode = termios.tcgetattr(self.fd)
        mode[0] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR | termios.IXON | termios.ISTRIP)
        mode[1] &= ~termios.OPOST
        mode[3] &= ~(termios.ICANON | termios.ECHO | termios.ECHONL | termios.IEXTEN)
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self.fd, termios.TCSANOW, mode)


def own_descriptor():
    """The terminal under a number that programs, and the children that they start, leave alone."""
    return fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 100)


def flush():
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the program may have put anything there
            stream.flush()


class Typed:
    """What the debugger reads commands from: requests. A statement typed at the prompt finds it empty."""

    encoding = "utf-8"

    def __init__(self, debugger):
        self.debugger = debugger

    def readline(self):
        return self.debugger.next_line()

    def isatty(self):
        return False


class Watch:
    """Notices that source files changed on disk after the program loaded them."""

    def __init__(self):
        self.root = ""
        self.stamps = {}

    def add(self, files):
        for file in files - self.stamps.keys():
            self.stamps[file] = self.stamp(file)

    def add_loaded(self):
        """The files of all modules below the root."""
        files = set()
        for module in list(sys.modules.values()):
            try:
                file = object.__getattribute__(module, "__dict__").get("__file__")
            except Exception:  # noqa: BLE001  anything may stand in sys.modules
                continue
            if isinstance(file, str) and file.endswith(".py") and file.startswith(self.root):
                files.add(file)
        self.add(files)

    def changed(self):
        return sorted(file for file, stamp in self.stamps.items() if self.stamp(file) != stamp)

    @staticmethod
    def stamp(file):
        try:
            status = os.stat(file)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size


class Debugger(pdb.Pdb):
    """A `pdb` that is driven by requests and describes in one reply where it stands."""

    prompt = property(lambda _: "", lambda *_: None)  # the reply is the prompt

    def __init__(self, channel, watch, nested=False):
        pdb.Pdb.__init__(self, stdin=Typed(self), stdout=channel.screen, nosigint=True, readrc=False)
        self.use_rawinput = 0
        self.channel = channel
        self.watch = watch
        self.nested = nested
        self.start_folder = os.getcwd()
        self.pid = os.getpid()
        self.stepping_thread = threading.get_ident()
        self.evaluating = False
        self.showing_entries = False
        self.naming_places = False
        self.failed = False
        self.fresh = not nested
        self.reasons = {}
        self.exception = ""
        self.notes = []
        self.reset()

    # --- the conversation -----------------------------------------------------------------------------

    def next_line(self):
        """The next line of the request; where there is none left: reply, and wait for the next request."""
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

    def leave(self, state, **fields):
        """Reply for the last time. The program is not asked: an `except` of its own could hold up an exception."""
        self.channel.reply(state=state, breakpoints=self.breakpoint_list(), rest=self.to_come(), **fields)
        os._exit(0)

    def to_come(self):
        """The commands that were not run yet."""
        queued = [line for line in self.cmdqueue if not line.startswith("_pdbcmd")]  # pdb's own, from 3.13 on
        return queued + self.channel.lines

    def describe(self, state):
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

    def is_ours(self, file):
        return file.startswith(self.watch.root) and os.path.isfile(file)

    def context(self, frame, line):
        lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
        first = max(1, line - CONTEXT)
        return first, [text.rstrip("\r\n")[: MAX_LINE + 1] for text in lines[first - 1 : line + CONTEXT]]

    def returning(self, frame):
        """What the frame is about to return, where it stopped for that."""
        if self.frame_returning is not frame:
            return None
        try:
            return reprlib.repr(self.frame_locals()["__return__"])
        except Exception:  # noqa: BLE001  a `__repr__` of the program's may raise anything
            return None

    def frame_locals(self):
        """The locals of the current frame with what statements at the prompt changed: asking the frame loses that."""
        return getattr(self, "curframe_locals", None) or self.curframe.f_locals

    # --- breakpoints ----------------------------------------------------------------------------------

    def breakpoint_list(self):
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

    def save(self):
        """Hand over what the host does not know yet: what runs next may not come back."""
        breakpoints, rest = self.breakpoint_list(), self.to_come()
        news = (kept(breakpoints), rest)
        if news != self.channel.told and not self.commands_defining:
            self.channel.told = news
            self.channel.reply(state="running", breakpoints=breakpoints, rest=rest)

    def restore(self, breakpoints):
        numbers = bdb.Breakpoint.bpbynumber
        for item in breakpoints:
            number = item["number"]
            numbers.extend([None] * (number - len(numbers)))
            bdb.Breakpoint.next = number
            problem = self.set_break(item["file"], item["line"], item["temporary"], item["condition"], item["function"])
            if problem:
                self.notes.append("Breakpoint {} was dropped: {}.".format(number, problem))
                continue
            point = numbers[-1]
            point.enabled, point.ignore = item["enabled"], item["ignore"]
            if item["commands"]:
                self.commands[number] = item["commands"]
                self.commands_silent[number] = item["silent"]
                self.commands_doprompt[number] = item["prompts"]

    def do_break(self, arg, temporary=0):
        """As in pdb; a condition that is no expression and a line without code are told in every version."""
        if not self.is_condition(arg.partition(",")[2]):
            return
        before = len(bdb.Breakpoint.bpbynumber)
        with self.places():
            pdb.Pdb.do_break(self, arg, temporary)
        for point in bdb.Breakpoint.bpbynumber[before:]:
            self.warn_without_code(point.file, point.line)
        self.failed = self.failed or (bool(arg) and len(bdb.Breakpoint.bpbynumber) == before)
        for frame, _ in self.stack:  # running already, perhaps untraced so far
            if self.break_anywhere(frame) and not frame.f_trace:
                frame.f_trace = self.trace_dispatch

    do_b = do_break

    def do_condition(self, arg):
        if self.is_condition(arg.partition(" ")[2]):
            pdb.Pdb.do_condition(self, arg)

    def is_condition(self, text):
        try:
            compile(text.strip() or "True", "<condition>", "eval")
        except (SyntaxError, ValueError) as error:
            self.error("Invalid condition {}: {!r}".format(text.strip(), error))
            return False
        return True

    def warn_without_code(self, file, line):
        source = "".join(linecache.getlines(file))
        try:
            lines = code_lines(compile(source, file, "exec", dont_inherit=True))
        except (SyntaxError, ValueError):
            return
        if line not in lines:
            later = [number for number in lines if number > line]
            hint = "the next line with code is {}".format(min(later)) if later else "no code follows"
            self.message("*** No code starts on line {}, so the program never stops there: {}.".format(line, hint))

    def do_clear(self, arg):
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

    def do_enable(self, arg):
        with self.places():
            pdb.Pdb.do_enable(self, arg)

    def do_disable(self, arg):
        with self.places():
            pdb.Pdb.do_disable(self, arg)

    def lookupmodule(self, filename):
        """Find files from the folder where the session started and from the workdir too."""
        for folder in (self.start_folder, self.watch.root):
            for name in (filename, filename + ".py"):
                path = os.path.join(folder, name)
                if os.path.isfile(path):
                    return path
        return pdb.Pdb.lookupmodule(self, filename)

    def canonic(self, filename):
        """One name for a file, whatever links lead to it."""
        known = self.fncache.get(filename)
        if known is None:
            known = filename if filename[:1] + filename[-1:] == "<>" else os.path.realpath(filename)
            self.fncache[filename] = known
        return known

    # --- commands that differ from pdb's --------------------------------------------------------------

    def precmd(self, line):
        try:
            line = pdb.Pdb.precmd(self, "" if line.lstrip().startswith("#") else line)
        except Exception as error:  # noqa: BLE001  an alias for nothing
            self.show_exception(error)
            line = ""
        self.save()
        if self.commands_defining:
            return line
        return "!" + line if STATEMENT.match(line) else PRINTING.sub(r"\1 ", line, 1)

    def onecmd(self, line):
        """Run a command. What pdb itself trips over, in any version, must not end the program."""
        try:
            return pdb.Pdb.onecmd(self, line)
        except Exception as error:  # noqa: BLE001  see above
            self.show_exception(error)
            return None

    def emptyline(self):
        """Do nothing: among several lines an empty one is no wish to repeat a command."""

    def default(self, line):
        """Run a statement, with the lines of the request that belong to it."""
        statement = self.whole_statement(line[1:].lstrip() if line[:1] == "!" else line)
        self.evaluating = True
        try:
            pdb.Pdb.default(self, statement)
        finally:
            self.evaluating = False

    def whole_statement(self, text):
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

    def handle_command_def(self, line):
        """A command that resumes the program ends the list by itself: an `end` behind it is not meant for us."""
        ended = pdb.Pdb.handle_command_def(self, line)
        if ended and line.strip() != "end" and [text.strip() for text in self.channel.lines[:1]] == ["end"]:
            self.channel.lines.pop(0)
        return ended

    def do_quit(self, arg):
        return pdb.Pdb.do_quit(self, arg) if self.nested else self.leave("quit")

    do_q = do_exit = do_EOF = do_quit

    def do_run(self, arg):
        try:
            arguments = shlex.split(arg) if arg else None
        except ValueError as error:
            self.error("Cannot run {}: {}".format(arg, error))
            return
        self.leave("restart", arguments=arguments)

    do_restart = do_run

    def do_interact(self, arg):
        """Refuse: it would read the program's standard input."""
        self.error("interact is not available. Statements of several lines work at this prompt.")

    def do_debug(self, arg):
        """Step through a statement with a debugger that speaks through the same channel."""
        sys.settrace(None)
        inner = Debugger(self.channel, self.watch, nested=True)
        for name in ("commands", "commands_silent", "commands_doprompt"):
            setattr(inner, name, getattr(self, name))
        self.message("ENTERING RECURSIVE DEBUGGER")
        try:
            sys.call_tracing(inner.run, (arg, self.curframe.f_globals, self.frame_locals()))
        except Exception as error:  # noqa: BLE001  whatever the statement raises is shown
            self.show_exception(error)
        self.message("LEAVING RECURSIVE DEBUGGER")
        sys.settrace(self.trace_dispatch)

    def do_p(self, arg):
        self.show(arg, repr)

    def do_pp(self, arg):
        self.show(arg, pprint.pformat)

    def show(self, arg, form):
        """Print a value; say so where it cannot be printed, which old versions of pdb do not."""
        try:
            value = self._getval(arg)
        except BaseException:  # noqa: BLE001  pdb has shown it
            return
        try:
            self.message(form(value))
        except BaseException as error:  # noqa: BLE001  a `__repr__` may raise anything
            self.show_exception(error)

    def show_exception(self, error):
        self.error(summary(error))

    def error(self, msg):
        self.failed = True
        pdb.Pdb.error(self, msg)

    # --- stopping -------------------------------------------------------------------------------------

    def trace_dispatch(self, frame, event, arg):
        """As `bdb` does it, with a short way past what cannot be a stop: it makes a program some times faster."""
        if self.stopframe is not None and frame is not self.stopframe and event in ("call", "line"):
            code = frame.f_code
            lines = self.breaks.get(self.fncache.get(code.co_filename) or self.canonic(code.co_filename))
            if not lines:
                return None if event == "call" else self.trace_dispatch
            if event == "line" and frame.f_lineno not in lines and code.co_firstlineno not in lines:
                return self.trace_dispatch
        return pdb.Pdb.trace_dispatch(self, frame, event, arg)

    def stop_here(self, frame):
        """Not in the debugger itself, and single steps stay in the thread that was stopped."""
        if frame.f_code.co_filename in OWN_FILES:
            return False
        if self.stopframe is None and self.stepping_thread != threading.get_ident():
            return False
        return pdb.Pdb.stop_here(self, frame)

    def break_here(self, frame):
        if not pdb.Pdb.break_here(self, frame):
            return False
        self.give_reason("breakpoint {}".format(self.currentbp))
        return True

    def give_reason(self, reason):
        """Say why this thread is about to stop."""
        self.reasons[threading.get_ident()] = reason

    def interaction(self, frame, traceback):
        if os.getpid() != self.pid:  # a forked child: only one process can use the channel
            sys.settrace(None)
            return
        flush()
        with self.at_prompt():
            pdb.Pdb.interaction(self, frame, traceback)
        self.give_reason("")
        self.fresh = False

    def bp_commands(self, frame):
        if getattr(self, "currentbp", 0) not in self.commands:
            return True
        with self.at_prompt():
            self.showing_entries = True
            try:
                return pdb.Pdb.bp_commands(self, frame)
            finally:
                self.showing_entries = False

    @contextlib.contextmanager
    def at_prompt(self):
        """One thread at a time; what it left behind is handed over before the program goes on."""
        with self.channel.lock:
            outer, self.channel.prompting = self.channel.prompting, threading.get_ident()
            self.stepping_thread = threading.get_ident()
            try:
                yield
                self.save()
            finally:
                self.channel.prompting = outer

    def get_stack(self, f, t):
        """Without the frames of the debugger and of a test runner that called everything else.

        After an exception (`f` is None) the current frame is the innermost that is not an assertion helper.
        """
        stack, index = pdb.Pdb.get_stack(self, f, t)
        start = 0
        while start < index and harness(stack[start][0]):
            start += 1
        while f is None and index > start and helper(stack[index][0]):
            index -= 1
        return stack[start:], index - start

    def post_mortem(self, error, final=False):
        """Stop where an exception was raised, tracing off; afterwards the program goes on to the next breakpoint."""
        if os.getpid() != self.pid:
            return
        sys.settrace(None)
        self.exception = summary(error)[:MAX_EXCEPTION]
        self.give_reason("post-mortem, the program is over" if final else "post-mortem of a failed test")
        if isinstance(error, EOFError):
            self.notes.append("The program's standard input is empty: whatever reads it meets its end.")
        try:
            self.interaction(None, error if sys.version_info >= (3, 13) else error.__traceback__)
        finally:
            self.exception = ""
        self.set_continue()
        if self.breaks and not final:
            sys.settrace(self.trace_dispatch)

    def break_in(self, frame):
        """Stop at the next line of the frame or of what it calls."""
        self.stepping_thread = threading.get_ident()
        while frame:
            frame.f_trace = self.trace_dispatch
            frame = frame.f_back
        self.set_step()
        sys.settrace(self.trace_dispatch)

    def on_interrupt(self, number, frame):
        """Stop what is running, in the main thread: a command with an exception, the program with a prompt."""
        if os.getpid() != self.pid or self.channel.waiting or self.channel.interrupted:
            return
        self.channel.interrupted = True
        self.channel.dropped = self.to_come()
        self.channel.lines = []
        del self.cmdqueue[:]
        if self.channel.prompting is not None:
            if self.channel.prompting == threading.get_ident():
                raise KeyboardInterrupt
            return
        self.give_reason("interrupted")
        if self.inside_trace(frame):
            self.break_in(frame)
            return
        # Not at the next line: there may be none for hours, as in time.sleep(10_000).
        sys.settrace(None)
        self.interaction(frame, None)
        if self.breaks or self.stoplineno != -1:
            step = self.stopframe, self.returnframe, self.stoplineno
            self.break_in(frame)
            self._set_stopinfo(*step)

    def inside_trace(self, frame):
        """Whether the frame is the debugger's own work on a trace event."""
        while frame and frame is not self.botframe:
            if frame.f_code.co_filename in OWN_FILES and frame.f_code.co_name == "trace_dispatch":
                return True
            frame = frame.f_back
        return False

    def leave_child(self):
        """A forked child runs on without the debugger."""
        sys.settrace(None)
        for number, default in ((signal.SIGURG, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
            if signal.getsignal(number) == self.on_interrupt:
                signal.signal(number, default)

    # --- printing -------------------------------------------------------------------------------------

    def preloop(self):
        """Say where we are only if commands wait: else the reply says it."""
        if self.to_come() and not self.commands_defining:
            self.showing_entries = True
            self.print_stack_entry(self.stack[self.curindex])
            self.showing_entries = False
        pdb.Pdb.preloop(self)

    def print_stack_trace(self):
        self.showing_entries = True
        try:
            pdb.Pdb.print_stack_trace(self)
        finally:
            self.showing_entries = False

    def print_stack_entry(self, *arguments):
        if self.showing_entries:
            with self.places():
                pdb.Pdb.print_stack_entry(self, *arguments)

    @contextlib.contextmanager
    def places(self):
        """What is printed meanwhile names files: without the root, as in the reply."""
        outer, self.naming_places = self.naming_places, True
        try:
            yield
        finally:
            self.naming_places = outer

    def message(self, msg, *arguments, **options):
        text = str(msg).replace(self.watch.root, "") if self.naming_places else msg
        pdb.Pdb.message(self, text, *arguments, **options)


def summary(error):
    """An exception as the last lines of a traceback show it."""
    try:
        return "".join(traceback.format_exception_only(type(error), error)).strip()
    except Exception:  # noqa: BLE001  its `__str__` may raise anything
        return type(error).__name__


def kept(breakpoints):
    """What matters about breakpoints for the next session."""
    return [{key: value for key, value in item.items() if key not in ("hits", "ignore")} for item in breakpoints]


def code_lines(code):
    """The lines of a file on which code starts."""
    lines = {line for _, line in dis.findlinestarts(code) if line}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            lines |= code_lines(constant)
    return lines


def continues_block(lines):
    """Whether the lines that follow a complete statement begin with more of it."""
    line = next((line for line in lines if line.strip()), "")
    words = line.replace(":", " ").split()
    return line[:1].isspace() or (bool(words) and words[0] in ("else", "elif", "except", "finally"))


def harness(frame):
    """Whether a frame belongs to the debugger or to a test runner."""
    return module_name(frame).partition(".")[0] in HARNESS


def module_name(frame):
    spec = frame.f_globals.get("__spec__")  # of a module that runs as __main__ it has the true name
    return str(getattr(spec, "name", None) or frame.f_globals.get("__name__"))


def helper(frame):
    """Whether a frame is machinery in which an exception was raised on behalf of its caller."""
    hidden = frame.f_locals.get("__tracebackhide__") is True or "__unittest" in frame.f_globals
    return hidden or frame.f_code.co_filename.startswith("<frozen importlib") or harness(frame)


# --- the program -----------------------------------------------------------------------------------------


def load(arguments):
    """The code, the `__main__` namespace and `sys.argv` of `-mMODULE ...`, `-cCODE ...` or `FILE ...`.

    Raises:
        SystemExit: There is no such program, as Python would say it.
        Exception: Whatever compiling it or importing its package raises.
    """
    first, rest = arguments[0], arguments[1:]
    if first.startswith("-m"):
        return load_module(first[2:], rest)
    if first.startswith("-c"):
        return load_text(first[2:], rest)
    return load_file(first, rest)


def load_file(name, rest):
    path = os.path.realpath(name)
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        sys.exit("{}: can't open file {!r}: {}".format(sys.executable, name, error.strerror))
    add_to_path(os.path.dirname(path))
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    names = {"__file__": path, "__package__": None, "__spec__": None, "__cached__": None, "__loader__": loader}
    return compile(source, path, "exec", dont_inherit=True), names, [name] + rest


def load_text(text, rest):
    add_to_path("")
    linecache.cache["<string>"] = (len(text), None, text.splitlines(True), "<string>")
    names = {"__package__": None, "__spec__": None}
    return compile(text, "<string>", "exec", dont_inherit=True), names, ["-c"] + rest


def load_module(name, rest):
    add_to_path(os.getcwd())
    try:
        _, spec, code = runpy._get_module_details(name)
    except ImportError as error:
        if error.__cause__ or error.__context__:
            raise
        sys.exit("{}: {}".format(sys.executable, error))
    names = {
        "__file__": code.co_filename,
        "__package__": spec.parent,
        "__spec__": spec,
        "__loader__": spec.loader,
        "__cached__": spec.cached,
    }
    return code, names, [code.co_filename] + rest


def add_to_path(folder):
    """What Python does for the program that it starts, unless it was told not to.

    A module of the program that has the name of one that only the debugger imported is found by the program.
    """
    if sys.flags.isolated or getattr(sys.flags, "safe_path", False):
        return
    sys.path.insert(0, folder)
    for name in set(sys.modules) - STARTED_WITH:
        if os.path.exists(os.path.join(folder, name + ".py")):
            del sys.modules[name]


def run(debugger, arguments):
    """Run the program as `__main__`, from a stop at its first line to one where an exception was not caught."""
    try:
        code, names, sys.argv[:] = load(arguments)
        prepare_test_runners(debugger, names["__spec__"])
        main = sys.modules["__main__"].__dict__
        main.clear()
        main.update(names, __name__="__main__", __doc__=None, __builtins__=builtins)
        threading.settrace(debugger.trace_dispatch)
        debugger.run(code, main, main)
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001  the program's last word, whatever it is
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename in OWN_FILES:
            trace = trace.tb_next
        flush()
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        if trace:
            debugger.quitting = False
            debugger.post_mortem(error, final=True)
        sys.exit(1)
    finally:
        debugger.quitting = False  # for the threads that live on


def prepare_test_runners(debugger, spec):
    """Have the debugger stop at every failed test of the runner that was started."""
    if spec and spec.name in ("pytest", "pytest.__main__", "py.test"):
        sys.modules[PLUGIN] = pytest_plugin(debugger)
        sys.argv[1:] = ["-p", PLUGIN, "-s"] + [item for item in sys.argv[1:] if item != "--pdb"]
    else:
        watch_unittest(debugger)


def pytest_plugin(debugger):
    import pytest

    plugin = types.ModuleType(PLUGIN, "PYTEST_DONT_REWRITE")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_load_initial_conftests(early_config):
        if getattr(early_config.known_args_namespace, "cov_source", None):  # pytest-cov: it takes our trace function
            early_config.known_args_namespace.cov_source = []
        yield

    def pytest_configure(config):
        if getattr(config.option, "dist", "no") != "no":  # pytest-xdist: tests in other processes cannot be debugged
            config.option.dist, config.option.tx, config.option.numprocesses = "no", [], 0

    def pytest_sessionstart(session):
        catch_set_trace(debugger)  # after pytest put its own in
        with contextlib.suppress(AttributeError):  # an old pytest has no such hook
            session.config.hook.pytest_enter_pdb(config=session.config, pdb=debugger)  # pytest-timeout goes by it

    def pytest_exception_interact(call, report):
        error = call.excinfo.value
        if type(error).__name__ in ("CollectError", "ConftestImportFailure"):
            error = error.__cause__ or error.__context__ or error
        sys.stdout.write("\n{}\n{}\n".format(report.nodeid, report.longrepr))
        debugger.post_mortem(error)

    for hook in (pytest_load_initial_conftests, pytest_configure, pytest_sessionstart, pytest_exception_interact):
        setattr(plugin, hook.__name__, hook)
    return plugin


def watch_unittest(debugger):
    for name in ("addError", "addFailure", "addSubTest"):
        setattr(unittest.TestResult, name, stopping(getattr(unittest.TestResult, name), debugger))


def stopping(method, debugger):
    """A method of `TestResult` that takes an exception last, with a stop at that exception."""

    @functools.wraps(method)
    def wrapper(result, *arguments):
        failure = arguments[-1]
        if failure and isinstance(failure[1], BaseException):
            kind, error, trace = failure
            while trace and trace.tb_next and harness(trace.tb_frame):
                trace = trace.tb_next
            frames = [frame for frame, _ in traceback.walk_tb(trace)]
            limit = max((number for number, frame in enumerate(frames, 1) if not helper(frame)), default=None)
            sys.stderr.write("\n")
            traceback.print_exception(kind, error, trace, limit)
            debugger.post_mortem(error)
        return method(result, *arguments)

    return wrapper


def catch_set_trace(debugger):
    """`breakpoint()` and `pdb.set_trace()` in the program lead here."""

    def set_trace(*_, **__):
        debugger.break_in(sys._getframe(1))

    pdb.set_trace = set_trace
    if hasattr(sys, "breakpointhook"):  # Python 3.7
        sys.breakpointhook = set_trace


def main(token, arguments):
    """Take over the terminal, say so, and run the program as the first request says."""
    channel = Channel(token)
    linecache.clearcache()  # Python 3.13 and later keep the text of BOOT there
    with open(os.devnull) as empty:
        os.dup2(empty.fileno(), 0)
    channel.reply()
    request = channel.request()
    watch = Watch()
    watch.root = os.path.join(os.path.realpath(request["root"]), "")
    debugger = Debugger(channel, watch)
    debugger.restore(request["breakpoints"])
    for number in (signal.SIGURG, signal.SIGINT):
        signal.signal(number, debugger.on_interrupt)
    if hasattr(os, "register_at_fork"):  # Python 3.7
        os.register_at_fork(after_in_child=debugger.leave_child)
    catch_set_trace(debugger)
    if request["arguments"] is not None:
        arguments[1:] = request["arguments"]
    run(debugger, arguments)


if __name__ == HERE:
    main(sys.argv[1], sys.argv[2:])
