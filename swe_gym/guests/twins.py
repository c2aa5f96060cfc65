"""Plays counter-tests in forks of the test process: one for each text of a test function.

All twins of a function start from the same moment. Each gets its text, puts it into the loaded function, plays all
tests that run the function, says how they ended, and dies. Then the session goes on with the original.
"""

import contextlib
import gc
import os
import select
import shutil
import signal
import sys
import time
import types
import warnings
from os import listdir  # tests replace it

from .keeper import Link, receive, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container
    from typing import Any, Callable

    Key = tuple[str, tuple[str, ...]]
    Ends = dict[str, str]


REAL: "dict[str, str]" = {}

NO_TEXT = "there is no text"

PATIENCE = 4
"""Time limit of a twin by the clock, as a multiple of its CPU time limit: a busy machine lets it wait."""


def real(path: str) -> str:
    """Return the real path, with a cache: each of thousands of tests asks."""
    if path not in REAL:
        REAL[path] = os.path.realpath(path)
    return REAL[path]


class SwapError(Exception):
    """A text cannot be put into its function."""


class Twins(object):
    """The functions with counter-tests of one session.

    Args:
        link: Link to the keeper.
        known: `groups`, each with `places` and `callers` (pairs of path and names); `deadline` of a twin in
            seconds of CPU time; `only`, the places of the only tests to run, or None.
        workdir: The workspace.
    """

    def __init__(self, link: Link, known: "dict[str, Any]", workdir: str) -> None:
        self._link = link
        self._deadline = known["deadline"]
        self._groups = [
            [self._key(workdir, path, names) for path, names in group["places"]] for group in known["groups"]
        ]
        self._of_key = {key: number for number, keys in enumerate(self._groups) for key in keys}
        self._callers: dict[Key, list[int]] = {}
        for number, group in enumerate(known["groups"]):
            for path, names in group["callers"]:
                self._callers.setdefault(self._key(workdir, path, names), []).append(number)
        only = known["only"]
        self.only = None if only is None else {self._key(workdir, path, names) for path, names in only}
        self._functions: dict[Key, list[types.FunctionType]] = {}
        self._begun: set[int] = set()
        self.is_twin = False

    @staticmethod
    def _key(workdir: str, path: str, names: "list[str]") -> "Key":
        return real(os.path.join(workdir, path)), tuple(names)

    def __bool__(self) -> bool:
        """Whether tests play twins, or only some tests run."""
        return bool(self._groups) or self.only is not None

    def group_of(self, place: "Place") -> "int | None":
        """Return the number of a test's group."""
        return next((self._of_key[key] for key in place.own if key in self._of_key), None)

    def selects(self, place: "Place") -> bool:
        """Whether a test is to run."""
        return self.only is None or not self.only.isdisjoint(place.own)

    def due(self, place: "Place", members: "Container[int]") -> "list[int]":
        """Return the groups to play before a test, of those with tests in this session.

        They are the groups that its function may call, then its own.
        """
        if self.is_twin:
            return []
        due = [self._of_key[key] for key in place.inherited if key in self._of_key]
        for key in place.own:
            due += self._callers.get(key, [])
        own = self.group_of(place)
        due = [number for number in due if number != own] + ([] if own is None else [own])
        return [number for number in dict.fromkeys(due) if number in members and self.waits(number)]

    def waits(self, number: int) -> bool:
        """Whether the twins of a group are still to be played."""
        return not self.is_twin and number not in self._begun

    def play(self, number: int, run: "Callable[[], Ends]") -> None:
        """Play the twins of a group, then put the original into its functions.

        Args:
            number: The group.
            run: Runs the group's tests and returns how each ended. Called in each twin.
        """
        self._begun.add(number)
        self._find(number)
        for _ in range(self._link.ask(begin=number)):
            if not self._play_next(number, run):
                break
        plain = self._link.ask(settle=number)
        if plain is not None:
            try:
                self._swap(number, plain)
            except SwapError as error:
                self._link.tell(event="unsettled", group=number, error=str(error))

    def _play_next(self, number: int, run: "Callable[[], Ends]") -> bool:
        """Fork for the next text of a group, and tell the keeper how its tests ended.

        Returns:
            Whether there may be another text: there is none once there is nothing left to prove.
        """
        sys.stdout.flush(), sys.stderr.flush()
        out, into = os.pipe()
        before = Entries()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # threads are not copied
            pid = os.fork()
        if not pid:
            try:
                os.close(out)
                os.setpgid(0, 0)
                self._be_twin(number, run, into)
            finally:
                os._exit(0)
        os.close(into)
        end = time.monotonic() + PATIENCE * self._deadline
        try:
            hangs = not answers(out, pid, self._deadline, end)
            said = None if hangs else receive(out, end)
            said = said or {"ends": {}, "error": "hung" if hangs or time.monotonic() >= end else "died"}
        except Exception:  # noqa: BLE001  nonsense: code of the work wrote into the pipe
            said = {"ends": {}, "error": "nonsense"}
        os.close(out)
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)  # a twin that hangs, and whatever it started
        os.waitpid(pid, 0)
        before.restore()
        self._link.answer(number, said["ends"], said["error"])
        return bool(said["error"] != NO_TEXT)

    def _be_twin(self, number: int, run: "Callable[[], Ends]", into: int) -> None:
        self.is_twin = True
        gc.disable()  # a collection would copy the memory of all objects
        silence()
        hasten()
        try:
            self._swap(number, self._link.ask(text=number))
        except SwapError as error:
            send(into, {"ends": {}, "error": str(error)})
            return
        try:
            ends = run()
        except BaseException:  # noqa: BLE001  such as KeyboardInterrupt, which ends a run: no test of this text passed
            ends = {}
        send(into, {"ends": ends, "error": ""})

    # --- texts --------------------------------------------------------------------------------------------------

    def _find(self, number: int) -> None:
        """Find the loaded functions of a group, whatever decorators wrap them."""
        if all(key in self._functions for key in self._groups[number]):
            return
        self._functions.clear()
        names = {key[1][-1] for key in self._of_key}
        for function in [thing for thing in gc.get_objects() if type(thing) is types.FunctionType]:
            if function.__code__.co_name in names:
                key = real(function.__code__.co_filename), tuple(function.__qualname__.split("."))
                if key in self._of_key:
                    self._functions.setdefault(key, []).append(function)

    def _swap(self, number: int, texts: "list[str] | None") -> None:
        """Put a text into the functions of a group: their code objects are replaced."""
        for place, key in enumerate(self._groups[number]):
            if texts is None or key not in self._functions:
                raise SwapError("the function is not loaded" if texts else NO_TEXT)
            for function in self._functions[key]:
                old = function.__code__
                rewritten = "@py_builtins" in function.__globals__
                try:
                    new = inner(compiled(texts[place], old.co_filename, rewritten), key[1])
                except Exception as error:  # a SyntaxError, or one of pytest: the session goes on
                    raise SwapError("it cannot be compiled: %r" % error) from error
                if new is None or new.co_freevars != old.co_freevars:
                    raise SwapError("the function is not the one of the file")
                function.__code__ = new


def compiled(text: str, filename: str, rewritten: bool) -> types.CodeType:
    """Compile a text as pytest does if pytest rewrites the assertions of its file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if rewritten:
            import ast

            from _pytest.assertion.rewrite import rewrite_asserts

            tree = ast.parse(text, filename)
            if "source" in rewrite_asserts.__code__.co_varnames:  # since pytest 5.2
                rewrite_asserts(tree, text.encode())
            else:
                rewrite_asserts(tree)  # type: ignore[call-arg]
            return compile(tree, filename, "exec", dont_inherit=True)
        return compile(text, filename, "exec", dont_inherit=True)


def inner(code: types.CodeType, names: "tuple[str, ...]") -> "types.CodeType | None":
    """Return the code object of nested names in a module's code."""
    for name in names:
        parts = [part for part in code.co_consts if hasattr(part, "co_name") and part.co_name == name]
        if not parts:
            return None
        code = parts[-1]
    return code


# --- tests and places -----------------------------------------------------------------------------------------------


class Place(object):
    """Where a test's function is defined.

    Args:
        own: The places that it may have: it may be imported from another module.
        inherited: Places of the methods that it overrides and may call.
    """

    def __init__(self, own: "list[Key]", inherited: "list[Key] | None" = None) -> None:
        self.own = own
        self.inherited = inherited or []


def place_of_method(cls: type, name: str) -> Place:
    """Return the place of a method, in the class that defines it."""
    found = []
    for owner in cls.__mro__:
        file = getattr(sys.modules.get(owner.__module__), "__file__", None)
        if name in vars(owner) and file:
            found.append((real(file), (*owner.__qualname__.split("."), name)))
    return Place(found[:1], found[1:])


def place_of_function(module: types.ModuleType, name: str) -> Place:
    """Return the place of a module's function."""
    found = [(real(getattr(module, "__file__", None) or ""), (name,))]
    function: Any = getattr(module, name, None)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    return Place(found + ([(real(code.co_filename), (code.co_name,))] if code else []))


# --- the process ----------------------------------------------------------------------------------------------------


def answers(out: int, pid: int, limit: float, end: float) -> bool:
    """Wait until a process writes into a pipe or closes it. Return False if its CPU time or the clock runs out before.

    Args:
        out: The end of the pipe to read from.
        pid: The process, a child of this one.
        limit: Its CPU time limit in seconds.
        end: The latest monotonic time.
    """
    left = limit
    while left > 0:
        if select.select([out], [], [], min(max(left, 0.01), max(0, end - time.monotonic())))[0]:
            return True
        if time.monotonic() >= end:
            return False
        left = limit - cpu_seconds(pid)
    return False


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a child, without its own children; 0 if the kernel does not tell."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # the kernel's number of the clock of a process
    except OSError:
        return 0.0


def silence() -> None:
    """Send the output of a twin nowhere: the log is the session's."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1), os.dup2(nowhere, 2)


def hasten() -> None:
    """Have Hypothesis stop at the first example that fails: nobody reads a smaller one."""
    engine = sys.modules.get("hypothesis.internal.conjecture.engine")
    if engine is not None:
        vars(engine).update(MAX_SHRINKING_SECONDS=0)


class Entries(object):
    """The entries of the current folder. What a twin left there is removed, so that the next one finds it as it was."""

    def __init__(self) -> None:
        self._folder = os.path.realpath(".")
        self._before = self._list()

    def _list(self) -> "set[str]":
        try:
            return set(listdir(self._folder))
        except OSError:  # a test removed it
            return set()

    def restore(self) -> None:
        """Remove new entries."""
        for name in self._list() - self._before if self._before else ():
            path = os.path.join(self._folder, name)
            try:
                os.unlink(path)
            except OSError:
                shutil.rmtree(path, ignore_errors=True)
