"""Runs pytest as `python -m pytest` does, and reports how each test ended in signed lines."""

import contextlib
import functools
import os

from .report import TWINS, WORSE, act_as_module, report_on
from .twins import Place, place_of_function, place_of_method

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    import pytest

    from .report import Emit, ImportPath
    from .twins import Ends


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


def place_of(item: "Any") -> Place:
    """Return where an item's function is defined."""
    name = getattr(item, "originalname", None) or item.name.partition("[")[0]
    cls, module = getattr(item, "cls", None), getattr(item, "module", None)
    if cls is not None:
        return place_of_method(cls, name)
    return Place([]) if module is None else place_of_function(module, name)


class Tail(object):
    """Stands for the item after the last one of a twin, so that only the fixtures of its function are torn down."""

    def __init__(self, item: "Any") -> None:
        self._item = item

    def __getattr__(self, name: str) -> "Any":
        return getattr(self._item, name)

    def listchain(self) -> "list[Any]":
        return list(self._item.listchain()[:-1])


class Start(object):
    """Stands for an item before which only these collectors are set up."""

    def __init__(self, collectors: "list[Any]") -> None:
        self.listchain = lambda: collectors


def tear_down(state: "Any", following: object) -> None:
    """Tear down what an item does not need. A twin goes on if that fails."""
    import pytest

    arguments = [following] if hasattr(pytest, "version_tuple") else [None, following]  # before pytest 7
    with contextlib.suppress(BaseException):
        state.teardown_exact(*arguments)


def play_items(items: "list[Any]", ends: "Ends") -> "Ends":
    """Run items in a twin, and tear down what it set up."""
    import _pytest.assertion.util

    state, config = items[0].session._setupstate, items[0].config
    before = list(state.stack)
    config.option.tbstyle = "no"  # nobody reads why a twin failed
    vars(_pytest.assertion.util)["assertrepr_compare"] = lambda *_, **__: []
    writer = getattr(config.pluginmanager.get_plugin("terminalreporter"), "_tw", None)
    if writer is not None:
        writer._file = open(os.devnull, "w")
    tear_down(state, items[0])  # the session may stand among the tests of another file
    for item, following in zip(items, [*items[1:], Tail(items[-1])]):  # noqa: B905  Python 3.6 has no `strict`
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    tear_down(state, Start(before))
    return ends


def left_first(items: "list[Any]") -> "Any":
    """Return the collector that is torn down between the first of some items and another one; None if none is."""
    chains = [item.listchain()[:-1] for item in items]
    for place, collector in enumerate(chains[0]):
        if any(chain[place : place + 1] != [collector] for chain in chains):
            return collector
    return None


def wide_parameters(item: "Any") -> "set[tuple[str, int]]":
    """Return the parameters of an item's fixtures that outlive it: name and number of the value."""
    indices = getattr(getattr(item, "callspec", None), "indices", {})
    fixtures = item._fixtureinfo.name2fixturedefs if indices else {}
    return {
        (name, number)
        for name, number in indices.items()
        if any(fixture.scope != "function" for fixture in fixtures.get(name) or ())
    }


def shares_early(group: "list[Any]") -> "Callable[[Any], bool] | None":
    """Return a test for items that set up what twins of a group would tear down; None if twins tear down nothing."""
    collector, first = left_first(group), wide_parameters(group[0])
    if collector is not None:
        return lambda item: collector in item.listchain()
    if first and any(wide_parameters(item) != first for item in group):
        return lambda item: item.parent in group[0].listchain() and not first.isdisjoint(wide_parameters(item))
    return None


def find_early(items: "list[Any]", members: "dict[Any, list[Any]]") -> "dict[Any, list[int]]":
    """Find the groups that twins play before an item of another function.

    Args:
        items: All items of the session.
        members: Number of a group, or None -> its items.

    Returns:
        Item -> groups.
    """
    early: dict[Any, list[int]] = {}
    for number, group in members.items():
        shares = None if number is None else shares_early(group)
        if shares is not None:
            early.setdefault(next(filter(shares, items)), []).append(number)
    return early


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


def make_player(ends: "Ends") -> object:
    """Return the plugin that has tests play their twins before they run."""
    import pytest

    members: dict[Any, list[pytest.Item]] = {}
    early: dict[Any, list[int]] = {}

    class TwinPlayer(object):
        @pytest.hookimpl(tryfirst=True)
        def pytest_cmdline_main(self, config: "pytest.Config") -> None:
            if getattr(config.option, "numprocesses", None):  # twins are forks of the one test process
                config.option.numprocesses, config.option.dist, config.option.tx = 0, "no", []

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, items: "list[pytest.Item]") -> None:
            if TWINS.only is not None:
                items[:] = [item for item in items if TWINS.selects(place_of(item))]

        @pytest.hookimpl(trylast=True)
        def pytest_collection_finish(self, session: "pytest.Session") -> None:
            for item in session.items:
                members.setdefault(TWINS.group_of(place_of(item)), []).append(item)
            early.update(find_early(session.items, members))

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_runtest_protocol(self, item: "pytest.Item") -> "Any":
            for number in filter(TWINS.waits, early.get(item, ())):
                TWINS.play(number, functools.partial(play_items, members[number], ends))
            for number in TWINS.due(place_of(item), members):
                TWINS.play(number, functools.partial(play_items, members[number], ends))
            yield

    return TwinPlayer()


def prepare(emit: "Emit", path: "ImportPath") -> "Callable[[], object]":
    import pytest

    act_as_module("pytest", pytest.__file__.replace("__init__.py", "__main__.py"))
    path.prefer_installed()
    ends: Ends = {}

    def emit_or_note(**event: "Any") -> None:
        """Report an event; in a twin, note how a test ended."""
        if not TWINS.is_twin:
            emit(**event)
        elif event["event"] == "test":
            ends[event["id"]] = max(event["status"], ends.get(event["id"], "passed"), key=WORSE.index)

    plugins = [make_plugin(emit_or_note, path), *([make_player(ends)] if TWINS else [])]
    return lambda: int(pytest.main(plugins=plugins))


report_on("pytest", prepare)
