"""The ids of tests: takes them apart, and matches those of published lists with the tests of a run.

Lists hold ids of pytest, unittest, Django, sympy and R2E-Gym, many of them cut at their first blank.
"""

import functools
import posixpath
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from ..types import Frozen, TestStatus
from .log_parsers.lines import RANK
from .log_parsers.pytest import short_path

DJANGO = re.compile(r"(?P<name>\w+) \((?P<module>[\w.]+)\)")
DOTTED = re.compile(r"[\w.]+|(?:\w+\.){2,}[^\s.()\[\]]+(?: ?(?:\(.*\)|\[.*\]))?", re.DOTALL)
"""Names with dots. With three parts or more, the last may hold other characters, and parameters may follow."""


class ParsedId(NamedTuple):
    """The parts of a test's id.

    Attributes:
        path: End of the file's path; empty if the id does not name it.
        names: Class and function, or the function alone; empty if the id is the first line of a docstring.
        title: First line of the docstring.
    """

    path: str = ""
    names: tuple[str, ...] = ()
    title: str = ""


@functools.lru_cache(maxsize=4096)
def parse_id(test: str) -> ParsedId:
    """Take the id of a test apart."""
    path, colons, names = test.partition("::")
    if colons:
        return ParsedId(posixpath.normpath(path), tuple(names.partition("[")[0].split("::")))
    match = DJANGO.match(test)
    if match:  # "test_a (package.module.Class)", since Python 3.11 "test_a (package.module.Class.test_a)"
        dotted = match["module"].removesuffix(f".{match['name']}")
        return _read_dotted([*dotted.split("."), match["name"]])
    if DOTTED.fullmatch(test):
        return _read_dotted(re.split(r" ?[(\[]", test, maxsplit=1)[0].split("."))
    return ParsedId(title=test.strip())


def _read_dotted(parts: list[str]) -> ParsedId:
    if len(parts) < 3:
        return ParsedId(names=tuple(parts))
    return ParsedId("/".join(parts[:-2]) + ".py", tuple(parts[-2:]))


# --- ids of lists and tests of a run ----------------------------------------------------------------------------------

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
    if found.keys() >= set(required):
        return Matched(statuses=dict(zip(required, map(found.__getitem__, required), strict=True)))
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
    """The results of a run, by parts of their ids. Most lists need none of these."""

    def __init__(self, found: Mapping[str, TestStatus], required: Collection[str]) -> None:
        self._found = found
        self._required = required

    @functools.cached_property
    def cut(self) -> dict[str, list[TestStatus]]:
        """Statuses by ids up to their first blank."""
        results: dict[str, list[TestStatus]] = defaultdict(list)
        for test, status in self._found.items():
            words = test.split(None, 1)
            if len(words) > 1:
                results[words[0]].append(status)
        return results

    @functools.cached_property
    def spaced(self) -> dict[str, list[TestStatus]]:
        """Statuses by ids with single blanks."""
        results: dict[str, list[TestStatus]] = defaultdict(list)
        for test, status in self._found.items():
            words = test.split()
            if len(words) > 1:
                results[" ".join(words)].append(status)
        return results

    @functools.cached_property
    def timeless(self) -> dict[str, list[TestStatus]]:
        """Statuses by ids without dates, durations and folders."""
        results: dict[str, list[TestStatus]] = defaultdict(list)
        for test, status in self._found.items():
            if test not in self._required:
                results[_timeless(test)].append(status)
        return results
