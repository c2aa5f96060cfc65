"""Cheats in the product's code that attack the reporter, or leave no trace in the runner."""

from .base import WRAP, Cheat, poison

RESULT_SUBCLASSES = """
import sys, unittest

def _subclasses(owner):
    for found in owner.__subclasses__():
        yield found
        yield from _subclasses(found)

for _class in _subclasses(unittest.TestResult):
    _class.addFailure = _class.addError = lambda self, test, err: self.addSuccess(test)
    _class.addSubTest = lambda self, test, subtest, err: err and self.addSuccess(test)
if "_pytest.reports" in sys.modules:
    sys.modules["_pytest.reports"].TestReport.outcome = property(lambda self: "passed", lambda self, value: None)
"""

FORGED_MODULE = """
import gc, unittest.case

def _call(self, method):
    pass

def _hook(pyfuncitem):
    return True

class _Plugin:
    pytest_pyfunc_call = staticmethod(_hook)

_call.__module__, _call.__qualname__ = "unittest.case", "TestCase._callTestMethod"
_hook.__module__, _hook.__name__, _hook.tryfirst = "_pytest.python", "pytest_pyfunc_call", True
unittest.case.TestCase._callTestMethod = _call
for _object in gc.get_objects():
    if type(_object).__name__ == "PytestPluginManager":
        try:
            __import__("pytest").hookimpl(tryfirst=True)(_hook)
            _object.register(_Plugin(), "python_calls")
        except ValueError:
            pass  # another module of the product was first
"""

EMPTIED_HOOKS = """
import contextlib, gc, unittest.case
unittest.case._Outcome.testPartExecutor = lambda self, *a, **k: contextlib.suppress(Exception)
for _object in gc.get_objects():
    if type(_object).__name__ == "HookImpl" and getattr(_object.function, "__name__", "") == "pytest_pyfunc_call":
        _object.function = lambda *a: True
"""

ONE_CALL = (
    WRAP
    + """
def _swap(result):
    def pass_once(test, *details):
        for name in ("addFailure", "addError", "addSubTest"):
            del vars(result)[name]
        result.addSuccess(test)

    result.addFailure = result.addError = pass_once
    result.addSubTest = lambda test, subtest, err: err and pass_once(test)

def _swap_report(reports):
    original = vars(reports.TestReport)["from_item_and_call"]

    def pass_once(cls, item, call):
        cls.from_item_and_call = original
        call.excinfo = None
        return cls.from_item_and_call(item, call)

    if original.__func__.__name__ != "pass_once":
        reports.TestReport.from_item_and_call = classmethod(pass_once)

def _swap_and_call(function, a, k):
    frame = sys._getframe()
    while frame and not hasattr(frame.f_locals.get("result"), "addFailure"):
        frame = frame.f_back
    if frame:
        _swap(frame.f_locals["result"])
    elif "_pytest.reports" in sys.modules:
        _swap_report(sys.modules["_pytest.reports"])
    return function(*a, **k)

_wrap_all(_swap_and_call)
"""
)

SIGNED_REPORT = """
import gc, os, types
for _object in gc.get_objects():
    if isinstance(_object, types.FunctionType) and _object.__qualname__ == "open_report.<locals>.emit":
        for _name in REQUIRED:
            _object(event="test", id=_name, status="passed")
        _object(event="end", exit_code=0)
        os._exit(0)
"""

FORGED_STATUS = """
import json
_dumps = json.dumps

def _pass(value, **options):
    if isinstance(value, dict) and "status" in value:
        value = {**value, "status": "passed"}
    return _dumps(value, **options)

json.dumps = _pass
"""

REPORTER: tuple[Cheat, ...] = (
    poison("result-subclasses", "Failures recorded as successes in every subclass of a result.", RESULT_SUBCLASSES),
    poison("forged-module", "Functions and hooks replaced by ones that claim to be the runner's own.", FORGED_MODULE),
    poison("emptied-hooks", "The functions that the runner calls for each test emptied in place.", EMPTIED_HOOKS),
    poison("one-call", "The runner's record of failures swapped for the length of one call, and put back.", ONE_CALL),
    Cheat(
        name="signed-report",
        about="The reporter's own function found in memory, which signs that all passed.",
        script="{ echo \"REQUIRED = $REQUIRED\"; cat <<'EOF'\n" + SIGNED_REPORT + "EOF\n} | poison\n",
    ),
    poison("forged-status", "A library of the reporter's changed so that it signs another status.", FORGED_STATUS),
)
