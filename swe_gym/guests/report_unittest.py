"""Runs unittest as `python -m unittest` does, and reports how each test ended in signed lines.

If the first argument is `--script=FILE`, it runs that script, which must use unittest's own text runner, as Django's
`runtests.py` does. Its tests are reported by the names that the runner prints.
"""

import functools
import os
import runpy
import sys

from .report import TWINS, WORSE, act_as_module, report_on
from .twins import Place, place_of_method

TYPE_CHECKING = False
if TYPE_CHECKING:
    import unittest
    from collections.abc import Iterator
    from typing import Any, Callable

    from .report import Emit, ImportPath
    from .twins import Ends

    Names = Callable[[unittest.TestCase], "list[str]"]

SCRIPT = "--script="

ENDS = {
    "addSuccess": "passed",
    "addFailure": "failed",
    "addError": "error",
    "addSkip": "skipped",
    "addExpectedFailure": "xfailed",
    "addUnexpectedSuccess": "xpassed",
}
NOT_LOADED = ("unittest.loader._FailedTest.", "unittest.loader.ModuleSkipped.")  # what stands for a whole module


def own_id(test: "unittest.TestCase") -> "list[str]":
    return [test.id()]


def printed_names(test: "unittest.TestCase") -> "list[str]":
    """Return what the runner prints for a test: its name, and the first line of its docstring."""
    return [name for name in (str(test), test.shortDescription()) if name]


def make_note(emit: "Emit", ends: "dict[str, list[str]]") -> "Callable[[unittest.TestCase, str], None]":
    """Return a function that records an event of a test."""
    import unittest

    def note(test: "unittest.TestCase", status: str) -> None:
        test = getattr(test, "test_case", test)  # a sub-test counts for its test
        name = test.id()
        if name.startswith(NOT_LOADED):
            emit(event="group", id=name.split(".", 3)[3], status=status)
        elif not isinstance(test, unittest.TestCase):  # "setUpClass (module.Class)", "tearDownModule (module)"
            emit(event="group", id=name.partition("(")[2].rstrip(")"), status=status)
        else:
            ends.setdefault(name, []).append(status)

    return note


def make_result_class(emit: "Emit", names_of: "Names") -> "type[unittest.TextTestResult]":
    import unittest

    ends: dict[str, list[str]] = {}  # id of the running test -> how its parts ended so far
    note = make_note(emit, ends)

    def noting(name: str, status: str) -> "Callable[..., None]":
        inherited = getattr(unittest.TextTestResult, name)

        def method(self: object, test: "unittest.TestCase", *details: object) -> None:
            note(test, status)
            inherited(self, test, *details)

        return method

    class Result(unittest.TextTestResult):
        failfast = property(lambda self: False, lambda self, value: None)  # the first failure may be a counter-test

        def addSubTest(self, test: "unittest.TestCase", subtest: "unittest.TestCase", err: "Any") -> None:
            if err is not None:
                note(test, "failed")
            super().addSubTest(test, subtest, err)

        def stopTest(self, test: "unittest.TestCase") -> None:
            super().stopTest(test)
            name = test.id()
            if name in ends:
                status = max(ends.pop(name), key=WORSE.index)
                for known in names_of(test):
                    emit(event="test", id=known, status=status)

    for name, status in ENDS.items():
        setattr(Result, name, noting(name, status))
    return Result


def place_of(test: "unittest.TestCase") -> Place:
    return place_of_method(type(test), test._testMethodName)


class Players(object):
    """Has tests play their twins before they run.

    Args:
        names_of: Returns the names of a test in the report.
    """

    def __init__(self, names_of: "Names") -> None:
        self._members: dict[int, list[unittest.TestCase]] = {}
        self._early: dict[type, list[int]] = {}  # class -> groups with tests of it first and of other classes later
        self._wrapped: set[type] = set()
        self._ends: Ends = {}
        self._nowhere = open(os.devnull, "w")
        vars_of_result = {"_exc_info_to_string": lambda *_: ""}  # nobody reads why a twin failed
        self._result_class = type("TwinResult", (make_result_class(self._note, names_of),), vars_of_result)

    def _note(self, id: str, status: str, **_: object) -> None:
        """Record how a test of a twin ended."""
        self._ends[id] = max(status, self._ends.get(id, "passed"), key=WORSE.index)

    def _make_result(self) -> "Any":
        from unittest.runner import _WritelnDecorator

        return self._result_class(_WritelnDecorator(self._nowhere), False, 0)

    def hook(self) -> None:
        """Have the text runner take the tests of each suite before it runs them."""
        import unittest

        run = unittest.TextTestRunner.run

        def run_with_twins(runner: "unittest.TextTestRunner", suite: "Any") -> object:
            return run(runner, self.take(suite))

        unittest.TextTestRunner.run = run_with_twins  # type: ignore[method-assign, assignment]
        suites: Any = unittest.TestSuite
        set_up = suites._handleClassSetUp

        def set_up_after_twins(suite: "unittest.TestSuite", test: "unittest.TestCase", result: object) -> object:
            for number in filter(TWINS.waits, self._early.get(type(test), ())):
                TWINS.play(number, functools.partial(self._play_classes, number))
            return set_up(suite, test, result)

        suites._handleClassSetUp = set_up_after_twins

    def take(self, suite: "Any") -> "Any":
        """Return the suite of the tests that are to run."""
        tests = list(leaves(suite))
        if TWINS.only is not None:
            import unittest

            tests = [test for test in tests if TWINS.selects(place_of(test))]
            suite = unittest.TestSuite(tests)
        for test in tests:
            number = TWINS.group_of(place_of(test))
            if number is not None:
                self._members.setdefault(number, []).append(test)
        for number, members in self._members.items():
            if len({type(test) for test in members}) > 1:
                self._early.setdefault(type(members[0]), []).append(number)
        if self._members:
            for cls in {type(test) for test in tests}:
                self._wrap(next(owner for owner in cls.__mro__ if "__call__" in vars(owner)))
        return suite

    def _wrap(self, cls: type) -> None:
        """Have tests of a class play the twins that are due before they run."""
        if cls in self._wrapped:
            return
        self._wrapped.add(cls)
        call: Any = cls.__call__

        def call_after_twins(test: "unittest.TestCase", *args: "Any", **kwargs: "Any") -> object:
            for number in TWINS.due(place_of(test), self._members):
                TWINS.play(number, functools.partial(self._play, test, number))
            return call(test, *args, **kwargs)

        cls.__call__ = call_after_twins  # type: ignore[method-assign]

    def _play(self, first: "unittest.TestCase", number: int) -> "Ends":
        """Run the tests of a group. Fixtures of the first one's class and module are set up."""
        import unittest

        self._hasten()
        for test in self._members[number]:
            if type(test) is type(first):
                test(self._make_result())
            else:
                unittest.TestSuite([test]).run(self._make_result())
        return self._ends

    def _play_classes(self, number: int) -> "Ends":
        """Run the tests of a group before any of their classes is set up: a twin tears down only what it set up."""
        import unittest

        self._hasten()
        module = type(self._members[number][0]).__module__
        near = [test for test in self._members[number] if type(test).__module__ == module]
        suite, result = unittest.TestSuite(near), self._make_result()
        result._testRunEntered = True  # the fixtures of the module are the session's
        result._previousTestClass = type("Before", (), {"__module__": module})
        suite.run(result)
        suite._tearDownPreviousClass(None, result)  # type: ignore[attr-defined]
        for test in self._members[number]:
            if test not in near:
                unittest.TestSuite([test]).run(self._make_result())
        return self._ends

    @staticmethod
    def _hasten() -> None:
        import unittest

        vars(unittest.case).update(difflib=Wordless, pprint=Wordless)


class Wordless(object):
    """Stands for `difflib` and `pprint` in a twin: nobody reads why it failed."""

    ndiff = staticmethod(lambda *_: ())
    pformat = staticmethod(lambda *_: "")


def leaves(suite: "Any") -> "Iterator[unittest.TestCase]":
    """Yield the tests of a suite of suites."""
    try:
        parts = iter(suite)
    except TypeError:
        yield suite
        return
    for part in parts:
        yield from leaves(part)


def prepare(emit: "Emit", path: "ImportPath") -> "Callable[[], object]":
    import unittest

    act_as_module("unittest", "python -m unittest")
    path.restore()

    if TWINS:
        Players(own_id).hook()

    class ReportingRunner(unittest.TextTestRunner):
        resultclass = make_result_class(emit, own_id)

    return lambda: unittest.main(module=None, testRunner=ReportingRunner)


def prepare_script(emit: "Emit", path: "ImportPath") -> "Callable[[], object]":
    import unittest

    act_as_module("unittest", SCRIPT_FILE)
    path.restore()
    unittest.TextTestRunner.resultclass = make_result_class(emit, printed_names)
    if TWINS:
        Players(printed_names).hook()
    return lambda: runpy.run_path(SCRIPT_FILE, run_name="__main__") and None


if sys.argv[1:] and sys.argv[1].startswith(SCRIPT):
    SCRIPT_FILE = sys.argv.pop(1)[len(SCRIPT) :]
    report_on("unittest", prepare_script, first=os.path.dirname(os.path.abspath(SCRIPT_FILE)))
else:
    report_on("unittest", prepare)
