"""Finds out which assertions the untouched repository passes, in tests that must start passing.

Work that changes nothing can do the same. It knows that a text is changed if an assertion fails there that it passes
otherwise, so the texts of a function differ where the untouched repository fails.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ..errors import GradingError
from ..guests import PARSING
from ..tasks.record import digest
from ..types import Task, TestStatus
from .base import Grader
from .counter import CounterPlan, Row
from .counter.singles import singles
from .matching import match_tests
from .patch import Patch
from .reporter import Played, TwinGroup, TwinOrder
from .staging import Stage

Lines: TypeAlias = Mapping[str, tuple[int, ...]]
"""Test -> lines of its assertions that pass without work."""

KNOWN: dict[str, Lines] = {}
"""Digest of a task -> what this process found out."""

MOST_KNOWN = 10_000
"""Tasks in `KNOWN`, about 1 kB each, before it starts over."""


def known_lines(task: Task) -> Lines:
    """Return what this process found out about a task."""
    return KNOWN.get(digest(task), {})


@dataclass(frozen=True)
class _Single:
    """A text of a group in which only the assertion of one line can fail. Without a line, it is the original."""

    line: int | None
    sources: tuple[str, ...]


def probe(task: Task, plan: CounterPlan, grader: Grader, stage: Stage, timeout: float) -> Lines:
    """Play singles of the functions that must start passing, with the untouched repository, in one run.

    Args:
        task: The task.
        plan: Its counter-tests.
        grader: Runs the tests.
        stage: Prepares the sandbox.
        timeout: Time limit of the run in seconds. Assertions that were not played by then count as failed.

    Raises:
        SandboxError: The sandbox failed.
    """
    numbers = [number for number, group in enumerate(plan.groups) if group.starts and group.forks]
    groups = [plan.groups[number] for number in numbers]
    found = [tuple(_singles(plan, number)) for number in numbers]
    order = TwinOrder(
        groups=tuple(
            TwinGroup(places=group.places, texts=tuple(single.sources for single in texts), original=0)
            for group, texts in zip(groups, found, strict=True)
        ),
        stops=False,
        only=tuple(place for group in groups for place in group.places),
    )
    with stage.open_fresh() as fresh:
        ready = replace(stage.prepare(Patch(), fresh), twins=order, timeout=timeout)
        try:
            twins = grader.run(ready, fresh).twins
        except GradingError:  # the tests cannot run without work: it passes no assertion
            twins = {}
    lines: dict[str, tuple[int, ...]] = {}
    for number, (group, texts) in enumerate(zip(groups, found, strict=True)):
        lines |= _passing(group.tests, texts, twins.get(number, {}))
    if len(KNOWN) >= MOST_KNOWN:
        KNOWN.clear()
    KNOWN[digest(task)] = lines
    return lines


def _singles(plan: CounterPlan, number: int) -> Iterator[_Single]:
    """Yield the original and the singles of a group. Of functions that call each other, one is changed at a time."""
    places = plan.groups[number].places
    yield _Single(None, tuple(plan.snippets(number, Row(((),) * len(places)))))
    for changed, place in enumerate(places):
        source = plan.sources[place.path]
        for line, edits in singles(source.function(place.names), source):
            row = Row(tuple(edits if other == changed else () for other in range(len(places))))
            texts = tuple(plan.snippets(number, row))
            if all(map(_parses, texts)):
                yield _Single(line, texts)


def _parses(text: str) -> bool:
    """Whether a text is still Python: what it drops may be indented by a tab or by one blank only."""
    try:
        with PARSING:
            ast.parse(text)
    except SyntaxError:
        return False
    return True


def _passing(tests: Sequence[str], found: Sequence[_Single], ends: Mapping[int, Played]) -> dict[str, tuple[int, ...]]:
    """Return the lines of the singles that passed, for each test; none if no test needs work."""
    lines: dict[str, set[int | None]] = {test: set() for test in tests}
    for number, end in ends.items():
        for test, status in match_tests(tests, end.statuses).statuses.items():
            if status is TestStatus.PASSED:
                lines[test].add(found[number].line)
    if all(None in passed for passed in lines.values()):
        return dict.fromkeys(tests, ())
    return {test: tuple(sorted(line for line in passed if line is not None)) for test, passed in lines.items()}
