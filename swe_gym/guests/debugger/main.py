"""The debugger inside the sandbox: a `pdb` whose prompt is a channel to the `pdb` tool.

`pdb_session.BOOT` runs it on a pseudo-terminal under the program's own Python.
"""

from .at_start import STARTED_WITH  # noqa: I001  first: the imports of all others follow

import builtins
import contextlib
import functools
import importlib.machinery
import linecache
import os
import pdb
import runpy
import signal
import sys
import threading
import traceback
import types
import unittest

from .channel import DebuggerChannel, flush
from .prompt import HERE, OWN_FILES, Watch, harness, helper
from .stops import Debugger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any, Callable, Iterator

    import pytest

    Program = tuple[types.CodeType, dict[str, Any], list[str]]

PLUGIN = "_debugger_pytest_plugin"


def prepare_test_runners(debugger: "Debugger", spec: "ModuleSpec | None") -> None:
    """Make the debugger stop at every failed test of the test runner that starts."""
    if spec and spec.name in ("pytest", "pytest.__main__", "py.test"):
        sys.modules[PLUGIN] = pytest_plugin(debugger)
        sys.argv[1:] = ["-p", PLUGIN, "-s"] + [item for item in sys.argv[1:] if item != "--pdb"]
    else:
        watch_unittest(debugger)


def pytest_plugin(debugger: "Debugger") -> types.ModuleType:
    import pytest

    plugin = types.ModuleType(PLUGIN, "PYTEST_DONT_REWRITE")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_load_initial_conftests(early_config: "pytest.Config") -> "Iterator[None]":
        if getattr(early_config.known_args_namespace, "cov_source", None):  # pytest-cov takes our trace function
            early_config.known_args_namespace.cov_source = []
        yield

    def pytest_configure(config: "pytest.Config") -> None:
        if getattr(config.option, "dist", "no") != "no":  # pytest-xdist: other processes cannot be debugged
            config.option.dist, config.option.tx, config.option.numprocesses = "no", [], 0

    def pytest_sessionstart(session: "pytest.Session") -> None:
        catch_set_trace(debugger)  # after pytest set its own
        with contextlib.suppress(AttributeError):  # an old pytest lacks the hook
            session.config.hook.pytest_enter_pdb(config=session.config, pdb=debugger)  # pytest-timeout needs it

    def pytest_exception_interact(call: "Any", report: "pytest.TestReport") -> None:
        error = call.excinfo.value
        if type(error).__name__ in ("CollectError", "ConftestImportFailure"):
            error = error.__cause__ or error.__context__ or error
        sys.stdout.write("\n{}\n{}\n".format(report.nodeid, report.longrepr))
        debugger.post_mortem(error)

    for hook in (pytest_load_initial_conftests, pytest_configure, pytest_sessionstart, pytest_exception_interact):
        setattr(plugin, hook.__name__, hook)
    return plugin


def watch_unittest(debugger: "Debugger") -> None:
    for name in ("addError", "addFailure", "addSubTest"):
        setattr(unittest.TestResult, name, stopping(getattr(unittest.TestResult, name), debugger))


def stopping(method: "Callable[..., None]", debugger: "Debugger") -> "Callable[..., None]":
    """Wrap a method of `TestResult` whose last argument is an exception, to stop at that exception."""

    @functools.wraps(method)
    def wrapper(result: object, *arguments: "Any") -> None:
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
        method(result, *arguments)

    return wrapper


def catch_set_trace(debugger: "Debugger") -> None:
    """Make `breakpoint()` and `pdb.set_trace()` of the program stop in this debugger."""

    def set_trace(*_: object, **__: object) -> None:
        debugger.break_in(sys._getframe(1))

    pdb.set_trace = set_trace
    if hasattr(sys, "breakpointhook"):  # Python 3.7
        sys.breakpointhook = set_trace


def load(arguments: "list[str]") -> "Program":
    """Return the code, the `__main__` namespace and `sys.argv` of `-mMODULE ...`, `-cCODE ...` or `FILE ...`.

    Raises:
        SystemExit: The program is missing; the message is Python's.
        Exception: Compiling it or importing its package failed.
    """
    first, rest = arguments[0], arguments[1:]
    if first.startswith("-m"):
        return load_module(first[2:], rest)
    if first.startswith("-c"):
        return load_text(first[2:], rest)
    return load_file(first, rest)


def load_file(name: str, rest: "list[str]") -> "Program":
    path = os.path.realpath(name)
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        sys.exit("{}: can't open file {!r}: {}".format(sys.executable, name, error.strerror))
    add_to_path(os.path.dirname(path))
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    names = {"__file__": path, "__package__": None, "__spec__": None, "__cached__": None, "__loader__": loader}
    return compile(source, path, "exec", dont_inherit=True), names, [name, *rest]


def load_text(text: str, rest: "list[str]") -> "Program":
    add_to_path("")
    linecache.cache["<string>"] = (len(text), None, text.splitlines(True), "<string>")
    names = {"__package__": None, "__spec__": None}
    return compile(text, "<string>", "exec", dont_inherit=True), names, ["-c", *rest]


def load_module(name: str, rest: "list[str]") -> "Program":
    add_to_path(os.getcwd())
    try:
        _, spec, code = runpy._get_module_details(name)  # type: ignore[attr-defined]
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
    return code, names, [code.co_filename, *rest]


def add_to_path(folder: str) -> None:
    """Put a folder first on the path, as Python does for the program that it starts.

    Modules that only the debugger imported give way to the program's modules of the same name.
    """
    if sys.flags.isolated or getattr(sys.flags, "safe_path", False):
        return
    sys.path.insert(0, folder)
    for name in set(sys.modules) - STARTED_WITH:
        if os.path.exists(os.path.join(folder, name + ".py")):
            del sys.modules[name]


def run(debugger: "Debugger", arguments: "list[str]") -> None:
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
    except BaseException as error:  # noqa: BLE001  any error of the program
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


def main(token: str, arguments: "list[str]") -> None:
    """Take over the terminal, report it, and run the program of the first request."""
    channel = DebuggerChannel(token)
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
