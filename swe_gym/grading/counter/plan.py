"""Chooses the tests that get a counter-test, the change of each, and the run in which it takes place."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Literal, get_args

from ...errors import UsageError, unknown_name
from ..ids import parse_id
from .changes import Change, changes
from .finding import Finder, Place

Scope = Literal["few", "all"]
"""Tests that must keep passing and get a counter-test too: a few, if few tests must start passing; or all."""

FEW = 4
"""With fewer test functions that must start passing, `few` draws others."""

NOT_FOUND, NO_CHANGE = "its source was not found", "nothing in it can be changed"


@dataclass(frozen=True)
class CounterOptions:
    """Scope of the counter-tests.

    Attributes:
        counter: Which tests that must keep passing get a counter-test too: "few" or "all".
        runs: Mixed runs of resolved work, an even number. Each pair draws its halves anew.
        unfit: Test -> kinds of changes that right work is known to survive, from the record of `swe-gym validate`.
        seed: Seed of the random choices. None draws it afresh, which keeps it secret.

    Raises:
        UsageError: `counter` is unknown, or `runs` is not an even number of at least 2.
    """

    counter: Scope = "few"
    runs: int = 2
    unfit: Mapping[str, Collection[str]] = field(default_factory=dict)
    seed: bytes | None = None

    def __post_init__(self) -> None:
        if self.counter not in get_args(Scope):
            raise unknown_name("counter", self.counter, get_args(Scope))
        if isinstance(self.runs, bool) or not isinstance(self.runs, int) or self.runs < 2 or self.runs % 2:
            raise UsageError(f"judge_runs must be an even number of at least 2, not {self.runs!r}")


@dataclass(frozen=True)
class Counter:
    """A test function that has a counter-test.

    Attributes:
        place: Its place.
        tests: Required tests that it runs: more than one if it is parametrised or inherited.
        change: Change that makes the counter-test.
        starts: Whether its tests must start passing.
    """

    place: Place
    tests: tuple[str, ...]
    change: Change
    starts: bool = True


@dataclass(frozen=True)
class CounterPlan:
    """The counter-tests of one task.

    Attributes:
        counters: Test functions with a counter-test.
        uncovered: Tests that must start passing and have no counter-test -> why.
        finder: Finder of the functions.
    """

    counters: tuple[Counter, ...] = ()
    uncovered: Mapping[str, str] = field(default_factory=dict)
    finder: Finder | None = None

    def split(self, rng: Random) -> tuple[list[Counter], list[Counter]]:
        """Draw two halves. The first has the smaller share of tests that must start passing."""
        first: list[Counter] = []
        second: list[Counter] = []
        for small, large, starts in ((first, second, True), (second, first, False)):
            members = [counter for counter in self.counters if counter.starts is starts]
            rng.shuffle(members)
            small += members[: len(members) // 2]
            large += members[len(members) // 2 :]
        return first, second

    def edited_files(self, counters: Iterable[Counter], rng: Random) -> dict[str, bytes]:
        """Return all test files of the plan, with these functions changed: path -> content.

        Files without a change are included: the time at which a file was written must not tell which has one.
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
        """Return the tests that run a changed function, and whose results therefore say nothing about the work."""
        places = {counter.place for counter in counters}
        names = {place.names[-1] for place in places}
        known = {test for counter in counters for test in counter.tests}
        finder = self.finder
        if finder is None:
            return set()
        if any(place.names in _nested(finder, place) for place in places):  # whatever the names of the tests it becomes
            return {test for test in tests if finder.place(test) in places}
        return {
            test
            for test in tests
            if test in known or (names.intersection(parse_id(test).names[-1:]) and _runs(finder, test, places))
        }


def plan_counters(
    finder: Finder,
    starting: Collection[str],
    keeping: Collection[str],
    rng: Random,
    *,
    counter: Scope = "few",
    unfit: Mapping[str, Collection[str]] | None = None,
) -> CounterPlan:
    """Find the functions of required tests and choose a change for each.

    Args:
        finder: Finds test functions.
        starting: Tests that must start passing.
        keeping: Tests that must keep passing.
        rng: Random number generator.
        counter: Which tests that must keep passing get a counter-test too.
        unfit: Test -> kinds of changes that right work is known to survive.
    """
    unfit = unfit or {}
    uncovered: dict[str, str] = {}
    counters = dict(_counters(finder, starting, unfit, uncovered))
    missing = len(keeping) if counter == "all" else max(0, FEW - len(counters))
    if missing:
        order = rng.sample(sorted(keeping), len(keeping))
        for place, kept in _counters(finder, order if counter == "all" else order[: 4 * missing], unfit, {}):
            if place not in counters and missing:
                counters[place] = replace(kept, starts=False)
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
    """Whether a test runs one of these functions, itself or by a call of the method that it overrides."""
    place = finder.place(test)
    source = finder.source(place.path) if place else None
    return place in places or bool(place and source and source.calls_super(place.names))


def _nested(finder: Finder, place: Place) -> Collection[tuple[str, ...]]:
    source = finder.source(place.path)
    return source.nested if source else ()
