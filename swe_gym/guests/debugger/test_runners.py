"""Test runners: stop at every failed test of pytest and unittest."""

import contextlib
import functools
import pdb
import sys
import traceback
import types
import unittest

from .frames import harness, helper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any, Callable, Iterator

    import pytest

    from .stops import Debugger

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
