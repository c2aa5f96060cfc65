"""Breakpoints: list, hand over, restore, and the commands that set them."""

import bdb
import contextlib
import linecache
import os
import pdb

from .frames import code_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ContextManager, Iterator, Literal

    from .channel import DebuggerChannel
    from .frames import Watch

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
