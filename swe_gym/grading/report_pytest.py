"""Runs pytest as `python -m pytest` does and reports, signed, how each test ended. See `report` for the rules."""

from report import Watch, act_as_module, root_of, run

WORSE = ("passed", "xpassed", "xfailed", "skipped", "failed", "error")  # a test ends as the worst of its phases


def status_of(report, raised):
    """How one phase of a test ended."""
    expected = hasattr(report, "wasxfail")
    if report.outcome == "skipped":
        return "xfailed" if expected else "skipped"
    if report.outcome == "passed" and not raised:
        return "xpassed" if expected else "passed"
    return "failed" if report.when == "call" else "error"


def make_plugin(pytest, emit, watches):
    """The plugin, whose state only its own functions can reach."""
    phases = {}  # node id -> {phase: status}
    raised = set()  # (node id, phase) of calls that ended in an exception

    class Reporter(object):
        @pytest.hookimpl(tryfirst=True)
        def pytest_load_initial_conftests(self, early_config):
            # The last moment before code of the workspace; the environment's own plugins are loaded already.
            plugins = early_config.pluginmanager.get_plugins()
            names = [getattr(plugin, "__name__", type(plugin).__module__) for plugin in plugins]
            watches.append(Watch(trusted=map(root_of, names)))

        @pytest.hookimpl(tryfirst=True, hookwrapper=True)
        def pytest_runtest_makereport(self, item, call):
            yield
            place = (item.nodeid, call.when)
            raised.discard(place) if call.excinfo is None else raised.add(place)

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_logreport(self, report):
            if report.outcome == "rerun":  # of a plugin that repeats flaky tests: this attempt does not count
                phases.pop(report.nodeid, None)
                return
            seen = phases.setdefault(report.nodeid, {})
            status = status_of(report, (report.nodeid, report.when) in raised)
            if not hasattr(report, "context") or status == "failed":  # a part of a test counts where it failed
                seen[report.when] = max(status, seen.get(report.when, "passed"), key=WORSE.index)
            if report.when == "teardown":
                del phases[report.nodeid]
                missing = [] if "call" in seen or seen.get("setup") != "passed" else ["error"]
                emit(event="test", id=report.nodeid, status=max(list(seen.values()) + missing, key=WORSE.index))
                for watch in watches:
                    watch.look()

        @pytest.hookimpl(tryfirst=True)
        def pytest_collectreport(self, report):
            if report.outcome != "passed":
                emit(event="group", id=report.nodeid, status="skipped" if report.outcome == "skipped" else "error")

    return Reporter()


def prepare(emit):
    import pytest

    act_as_module("pytest", pytest.__file__.replace("__init__.py", "__main__.py"))
    watches = []
    plugin = make_plugin(pytest, emit, watches)
    return (
        lambda: int(pytest.main(plugins=[plugin])),
        lambda: sorted(name for watch in watches for name in watch.look()),
    )


run("pytest", prepare)
