"""Which tests are countered, how, and in which of the two runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from .changes import Change, changes
from .finding import Finder, Place, wanted

FEW = 4
"""With fewer test functions that must start passing, some that must keep passing are countered too."""

NOT_FOUND, NO_CHANGE = "its source was not found", "nothing in it can be changed"


@dataclass(frozen=True)
class Counter:
    """A test function that can be countered.

    Attributes:
        place: Where it stands.
        tests: The required tests that it runs: more than one if it is parametrised or inherited.
        change: What is changed in it.
        starts: Whether its tests must start passing.
    """

    place: Place
    tests: tuple[str, ...]
    change: Change
    starts: bool = True


@dataclass(frozen=True)
class CounterPlan:
    """The test functions of one task that can be countered.

    Attributes:
        counters: These functions.
        uncovered: Tests that must start passing and have no counter-test -> why.
        finder: Found them.
    """

    counters: tuple[Counter, ...] = ()
    uncovered: Mapping[str, str] = field(default_factory=dict)
    finder: Finder | None = None

    def split(self, rng: Random) -> tuple[list[Counter], list[Counter]]:
        """Two random halves. The first counters the smaller share of tests that must start passing."""
        first: list[Counter] = []
        second: list[Counter] = []
        for small, large, starts in ((first, second, True), (second, first, False)):
            members = [counter for counter in self.counters if counter.starts is starts]
            rng.shuffle(members)
            small += members[: len(members) // 2]
            large += members[len(members) // 2 :]
        return first, second

    def edited_files(self, counters: Iterable[Counter], rng: Random) -> dict[str, bytes]:
        """All test files of the plan, with these functions changed: path -> content.

        Files without a change are written too: when a file was written must not tell which.
        """
        by_path: dict[str, list[Counter]] = {counter.place.path: [] for counter in self.counters}
        for counter in counters:
            by_path[counter.place.path].append(counter)
        files = {}
        for path, members in by_path.items():
            source = self.finder and self.finder.source(path)
            if source:
                files[path] = source.edited(counter.change.edit(rng) for counter in members)
        return files

    def changed_tests(self, counters: Iterable[Counter], tests: Iterable[str]) -> set[str]:
        """Those of some tests that run a changed function: how they end then says nothing of the work."""
        places = {counter.place for counter in counters}
        names = {place.names[-1] for place in places}
        known = {test for counter in counters for test in counter.tests}
        finder = self.finder
        if finder is None:
            return set()
        if any(place.names in _nested(finder, place) for place in places):  # whatever the names of the tests it becomes
            return {test for test in tests if finder.place(test) in places}
        return {test for test in tests if test in known or (_name(test) in names and _runs(finder, test, places))}


def plan_counters(
    finder: Finder,
    starting: Collection[str],
    keeping: Collection[str],
    rng: Random,
    *,
    everything: bool = False,
    unfit: Mapping[str, Collection[str]] | None = None,
) -> CounterPlan:
    """Find the functions of required tests and what can be changed in them.

    Args:
        finder: Finds them.
        starting: Tests that must start passing.
        keeping: Tests that must keep passing.
        rng: The source of chance.
        everything: Counter all tests that must keep passing, too.
        unfit: Test -> kinds of changes that right work is known to survive.
    """
    unfit = unfit or {}
    uncovered: dict[str, str] = {}
    counters = dict(_counters(finder, starting, unfit, uncovered))
    missing = len(keeping) if everything else max(0, FEW - len(counters))
    if missing:
        order = rng.sample(sorted(keeping), len(keeping))
        for place, counter in _counters(finder, order if everything else order[: 4 * missing], unfit, {}):
            if place not in counters and missing:
                counters[place] = Counter(place, counter.tests, counter.change, starts=False)
                missing -= 1
    return CounterPlan(tuple(counters.values()), uncovered, finder)


def _counters(
    finder: Finder, tests: Collection[str], unfit: Mapping[str, Collection[str]], uncovered: dict[str, str]
) -> Iterator[tuple[Place, Counter]]:
    by_place: dict[Place, list[str]] = defaultdict(list)
    for test in tests:
        place = finder.place(test)
        if place is None:
            uncovered[test] = NOT_FOUND
        else:
            by_place[place].append(test)
    for place, members in by_place.items():
        change = _best(finder, place, {kind for test in members for kind in unfit.get(test, ())})
        if change is None:
            uncovered.update(dict.fromkeys(members, NO_CHANGE))
        else:
            yield place, Counter(place, tuple(members), change)


def _best(finder: Finder, place: Place, unfit: Collection[str]) -> Change | None:
    source = finder.source(place.path)
    try:
        found: Sequence[Change] = changes(source.function(place.names), source) if source else ()
    except RecursionError:  # an expression of thousands of parts
        return None
    return next((change for change in found if change.kind not in unfit), None)


def _runs(finder: Finder, test: str, places: Collection[Place]) -> bool:
    """Whether a test is one of these functions, or calls the one that it overrides."""
    place = finder.place(test)
    source = finder.source(place.path) if place else None
    return place in places or bool(place and source and source.calls_super(place.names))


def _nested(finder: Finder, place: Place) -> Collection[tuple[str, ...]]:
    source = finder.source(place.path)
    return source.nested if source else ()


def _name(test: str) -> str:
    names = wanted(test).names
    return names[-1] if names else ""
