"""Runs pytest as `python -m pytest` does, and reports how each test ended in signed lines."""

from .report import WORSE, act_as_module, report_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    import pytest

    from .report import Emit, ImportPath


def status_of(report: "pytest.TestReport") -> str:
    """Return how one phase of a test ended."""
    expected = hasattr(report, "wasxfail")
    if report.outcome == "skipped":
        return "xfailed" if expected else "skipped"
    if report.outcome == "passed":
        return "xpassed" if expected else "passed"
    return "failed" if report.when == "call" else "error"


def merge(seen: "dict[str, str]") -> "str | None":
    """Return how a test ended. One that was set up but not called has not ended: a plugin may repeat it."""
    complete = "call" in seen or seen.get("setup") != "passed"
    return max(seen.values(), key=WORSE.index) if complete else None


class Phases:
    """The phases of the running tests, so far."""

    def __init__(self) -> None:
        self.seen: dict[str, dict[str, str]] = {}  # node id -> {phase: status}

    def note(self, report: "Any") -> "str | None":
        """Record a phase. Return how the test ended if it was the last one."""
        if report.outcome == "rerun":  # a plugin repeats flaky tests: this attempt does not count
            self.seen.pop(report.nodeid, None)
            return None
        seen = self.seen.setdefault(report.nodeid, {})
        status = status_of(report)
        if not hasattr(report, "context") or status == "failed":  # a subtest counts only if it failed
            seen[report.when] = max(status, seen.get(report.when, "passed"), key=WORSE.index)
        return merge(self.seen.pop(report.nodeid)) if report.when == "teardown" else None


def make_plugin(emit: "Emit", path: "ImportPath") -> object:
    import pytest

    phases = Phases()

    class Reporter(object):
        @pytest.hookimpl(tryfirst=True)
        def pytest_load_initial_conftests(self) -> None:
            path.restore()  # pytest and its plugins are loaded; the workspace follows

        @pytest.hookimpl(trylast=True)
        def pytest_configure(self, config: "pytest.Config") -> None:
            config.option.maxfail = 0  # all tests run: the first failure may be a counter-test

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_logreport(self, report: "pytest.TestReport") -> None:
            status = phases.note(report)
            if status:
                emit(event="test", id=report.nodeid, status=status)

        @pytest.hookimpl(tryfirst=True)
        def pytest_collectreport(self, report: "pytest.CollectReport") -> None:
            if report.outcome != "passed":
                status = "skipped" if report.outcome == "skipped" else "error"
                emit(event="group", id=report.nodeid, status=status)

    return Reporter()


def prepare(emit: "Emit", path: "ImportPath") -> "Callable[[], object]":
    import pytest

    act_as_module("pytest", pytest.__file__.replace("__init__.py", "__main__.py"))
    path.prefer_installed()
    return lambda: int(pytest.main(plugins=[make_plugin(emit, path)]))


report_on("pytest", prepare)
