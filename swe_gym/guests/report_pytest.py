"""Runs pytest as `python -m pytest` does and reports, signed, how each test ended. See `report` for the rules."""

from .report import WORSE, act_as_module, report_on


def status_of(report):
    """How one phase of a test ended."""
    expected = hasattr(report, "wasxfail")
    if report.outcome == "skipped":
        return "xfailed" if expected else "skipped"
    if report.outcome == "passed":
        return "xpassed" if expected else "passed"
    return "failed" if report.when == "call" else "error"


def merge(seen):
    """How a test ended, by its phases. One that was set up and not called did not end: a plugin may repeat it."""
    complete = "call" in seen or seen.get("setup") != "passed"
    return max(seen.values(), key=WORSE.index) if complete else None


class Phases:
    """The phases of the running tests, so far."""

    def __init__(self):
        self.seen = {}  # node id -> {phase: status}

    def note(self, report):
        """Take a phase down; returns how the test ended with its last one."""
        if report.outcome == "rerun":  # of a plugin that repeats flaky tests: this attempt does not count
            self.seen.pop(report.nodeid, None)
            return None
        seen = self.seen.setdefault(report.nodeid, {})
        status = status_of(report)
        if not hasattr(report, "context") or status == "failed":  # a part of a test counts where it failed
            seen[report.when] = max(status, seen.get(report.when, "passed"), key=WORSE.index)
        return merge(self.seen.pop(report.nodeid)) if report.when == "teardown" else None


def make_plugin(pytest, emit, path):
    """The plugin."""
    phases = Phases()

    class Reporter(object):
        @pytest.hookimpl(tryfirst=True)
        def pytest_load_initial_conftests(self):
            path.restore()  # pytest and its plugins are loaded; from here on code of the workspace is

        @pytest.hookimpl(trylast=True)
        def pytest_configure(self, config):
            config.option.maxfail = 0  # all tests run: the first failure may be a counter-test

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_logreport(self, report):
            status = phases.note(report)
            if status:
                emit(event="test", id=report.nodeid, status=status)

        @pytest.hookimpl(tryfirst=True)
        def pytest_collectreport(self, report):
            if report.outcome != "passed":
                status = "skipped" if report.outcome == "skipped" else "error"
                emit(event="group", id=report.nodeid, status=status)

    return Reporter()


def prepare(emit, path):
    import pytest

    act_as_module("pytest", pytest.__file__.replace("__init__.py", "__main__.py"))
    path.prefer_installed()
    return lambda: int(pytest.main(plugins=[make_plugin(pytest, emit, path)]))


report_on("pytest", prepare)
