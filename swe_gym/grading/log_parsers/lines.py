"""The parts that all log parsers share: clean lines, and results of which the worst counts."""

import functools
import re
from collections.abc import Callable, Iterator, Mapping

from ...types import TestStatus

LogParser = Callable[[str], dict[str, TestStatus]]
"""Reads the log of a test run: test id -> status. Pure, never raises, linear in the length of the log."""

Results = Iterator[tuple[str, TestStatus]]
"""Tests and their results, in the order of the log."""

ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # colours and cursor movements
    r"|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # titles and links
    r"|[@-Z\\-_])"
    r"|\x9b[0-?]*[ -/]*[@-~]"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f]"  # remains of broken ones
)
EMPTY_LINES = re.compile(r"\n{3,}")
WORSE = ("skipped", "xfailed", "xpassed", "passed", "failed", "error")
RANK = {TestStatus(word): rank for rank, word in enumerate(WORSE)}
TAIL = 40
"""Characters at the end of a line that are searched for a suffix of a name."""


def clean_lines(log: str) -> list[str]:
    """Return the lines of a log without colours. A carriage return ends a line; consecutive empty lines become one."""
    text = ESCAPES.sub("", log).replace("\r\n", "\n").replace("\r", "\n")
    return EMPTY_LINES.sub("\n\n", text).split("\n")


def note(results: dict[str, TestStatus], test: str, status: TestStatus) -> None:
    """Add a result. If several tests share a name, or one ran more than once, the worst counts.

    A skip or an expected failure counts least: published lists hold docstrings that a skipped test shares with one that
    ran.
    """
    known = results.get(test)
    if test and (known is None or RANK[status] > RANK[known]):
        results[test] = status


def worst(read: Callable[[str], Results]) -> LogParser:
    """Make a parser of a generator. If several results share a name, the worst counts, as in `note`."""

    @functools.wraps(read)
    def parse(log: str) -> dict[str, TestStatus]:
        results: dict[str, TestStatus] = {}
        for test, status in read(log):
            note(results, test, status)
        return results

    return parse


def without_end(name: str, pattern: re.Pattern[str]) -> str:
    """Return a name without a suffix that a pattern matches, such as a duration. Fast for names of any length."""
    match = pattern.search(name, max(0, len(name) - TAIL))
    return (name[: match.start()] if match else name).strip()


def by_line(pattern: str, statuses: Mapping[str, TestStatus], suffix: re.Pattern[str] | None = None) -> LogParser:
    """Return a parser for a runner that prints one line per test.

    Args:
        pattern: Pattern of a whole stripped line with the groups `status` and `test`. If a result has two forms, the
            groups of the other are `status2` and `test2`.
        statuses: Word of the group `status` -> status. Lines with other words are ignored.
        suffix: Pattern of a suffix to remove from names.
    """
    matches = re.compile(pattern).fullmatch

    @worst
    def parse(log: str) -> Results:
        for match in filter(None, map(matches, stripped_lines(log))):
            parts = match.groupdict()
            status = statuses.get(parts["status"] or parts.get("status2", ""))
            if status is not None:
                name = (parts["test"] or parts.get("test2") or "").strip()
                yield (without_end(name, suffix) if suffix else name), status

    return parse


def stripped_lines(log: str) -> Iterator[str]:
    """Return the clean lines without surrounding blanks."""
    return (line.strip() for line in clean_lines(log))
