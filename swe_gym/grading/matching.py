"""Matches the ids of published lists with the tests of a run. Many lists hold ids cut at their first blank."""

import functools
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from ..types import Frozen, TestStatus
from .log_parsers.lines import RANK
from .log_parsers.pytest import short_path

CUT = re.compile(r".*::|\[", re.DOTALL)
"""Start of ids that may be cut: pytest's node ids, and progress. "works" is not a cut form of "works twice"."""

DATE = re.compile(r"\d{4}-\d\d-\d\d|(?<!\d)20\d{6}(?!\d)")
DURATION = re.compile(
    r" \[ *\d+(?:\.\d+)? *m?s *\] *$"  # PHPUnit's; without the blank before it, it is a parameter
    r"| \( *\d+(?:\.\d+)? *m?s *\) *$"
    r"| in \d+(?:\.\d+)? m?sec\b",
    re.IGNORECASE,
)
"""A duration within a test's name."""


class Matched(Frozen):
    """The results of required tests.

    Attributes:
        statuses: Required id -> status; `MISSING` if the run does not name it.
        cut: Cut ids, which stand for all tests that they begin.
        timed: Ids with another day's date, another run's duration, or another machine's folder.
    """

    statuses: dict[str, TestStatus]
    cut: tuple[str, ...] = ()
    timed: tuple[str, ...] = ()


def match_tests(required: Iterable[str], found: Mapping[str, TestStatus]) -> Matched:
    """Look up required tests in the results of a run.

    An id means the test with that id. Failing that, it means the tests that differ only in blanks; then, for pytest's
    node ids, the tests whose id it is up to the first blank; then the tests that differ only in dates, durations and
    the folder of a path, and that are not required themselves. If it means several, the worst status counts, and
    skipped ones only if all are skipped.
    """
    required = tuple(required)
    index = _ResultIndex(found, frozenset(required))
    statuses: dict[str, TestStatus] = {}
    cut, timed = [], []
    for test in required:
        if test in found:
            statuses[test] = found[test]
        elif ends := index.spaced.get(" ".join(test.split())):
            statuses[test] = max(ends, key=RANK.__getitem__)
        elif CUT.match(test) and (ends := index.cut.get(test)):
            statuses[test] = max(ends, key=RANK.__getitem__)
            cut.append(test)
        elif ends := index.timeless.get(_timeless(test)):
            statuses[test] = max(ends, key=RANK.__getitem__)
            timed.append(test)
        else:
            statuses[test] = TestStatus.MISSING
    return Matched(statuses=statuses, cut=tuple(cut), timed=tuple(timed))


def _timeless(test: str) -> str:
    return short_path(DURATION.sub("", DATE.sub("DATE", test)))


class _ResultIndex:
    """The results of a run, indexed by parts of their ids."""

    def __init__(self, found: Mapping[str, TestStatus], required: Collection[str]) -> None:
        self._found = found
        self._required = required
        self.spaced: dict[str, list[TestStatus]] = defaultdict(list)
        self.cut: dict[str, list[TestStatus]] = defaultdict(list)
        for test, status in found.items():
            words = test.split(None, 1)
            if len(words) > 1:
                self.cut[words[0]].append(status)
                self.spaced[" ".join(test.split())].append(status)

    @functools.cached_property
    def timeless(self) -> dict[str, list[TestStatus]]:
        """Statuses by ids without dates, durations and folders. Few lists need it."""
        results: dict[str, list[TestStatus]] = defaultdict(list)
        for test, status in self._found.items():
            if test not in self._required:
                results[_timeless(test)].append(status)
        return results
