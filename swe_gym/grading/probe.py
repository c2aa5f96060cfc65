"""Finds out what the untouched repository does in tests that must start passing: what passes, what comes instead.

Work that changes nothing can do the same. It knows that a text is changed if an assertion fails there that it passes
otherwise, so the texts of a function differ where the untouched repository fails. A text whose expectation is farther
from the result than others looks changed too, so the texts differ from the result as the original does.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..cache import cache_folder
from ..errors import FileError, GradingError, SandboxError
from ..files import write_text
from ..guests import PARSING
from ..sandboxes import Sandbox
from ..tasks import digest
from ..types import Frozen, Task, TestStatus
from .base import Grader
from .counter import CounterPlan, CounterText
from .counter.results import are_alike
from .counter.singles import find_singles, noting
from .matching import match_tests
from .patch import Patch
from .reporter import PlayedText, TwinGroup, TwinOrder, make_folder
from .staging import Stage

FORMAT = 1
"""Version of the files that keep what a probe found. Others are not read."""

MOST_NOTES = 1 << 20
"""Bytes of notes about one group."""

LONGEST = 4_000
"""Characters of a value: longer ones are not compared."""


class Found(Frozen):
    """What the untouched repository does in tests that must start passing.

    Attributes:
        passing: Test -> lines of its assertions that it passes.
        returned: Test -> line of an assertion that it fails -> `repr` of the value that is expected, and of its own.
    """

    passing: dict[str, tuple[int, ...]] = {}
    returned: dict[str, dict[int, tuple[str, str]]] = {}


def known(task: Task) -> Found:
    """Return what an earlier probe on this machine found out about a task. Nothing if there was none."""
    try:
        return Found.model_validate_json(_file(task).read_bytes())
    except (OSError, ValueError):
        return Found()


def forget(task: Task) -> None:
    """Remove what is known about a task."""
    _file(task).unlink(missing_ok=True)


def _keep(task: Task, found: Found) -> None:
    file = _file(task)
    with contextlib.suppress(OSError):  # a full disk, or a read-only one: the next process finds out itself
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, found.model_dump_json())


def _file(task: Task) -> Path:
    return cache_folder() / "probes" / f"{FORMAT}-{digest(task)}.json"


@dataclass(frozen=True)
class _Single:
    """A text of a group in which only the assertion of one line can fail. Without a line, it is the original.

    Attributes:
        line: The line.
        sources: Source of each function of the group.
        notes: Whether it writes down what its assertion compares.
    """

    line: int | None
    sources: tuple[str, ...]
    notes: bool = False


def probe(task: Task, plan: CounterPlan, grader: Grader, stage: Stage, timeout: float) -> Found:
    """Play singles of the functions that must start passing, with the untouched repository, in one run.

    The result is kept in the cache, for all processes of this machine.

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
    with stage.open_fresh() as fresh:
        ready = stage.prepare(Patch(), fresh)
        folder = make_folder(fresh)
        singles = [tuple(_draw_singles(plan, number, f"{folder}/{number}")) for number in numbers]
        ready = replace(ready, twins=_order(plan, numbers, singles), timeout=timeout)
        try:
            twins = grader.run(ready, fresh).twins
        except GradingError:  # the tests cannot run without work: it passes no assertion
            twins = {}
        notes = [_notes(fresh, f"{folder}/{number}") for number in numbers]
    passing: dict[str, tuple[int, ...]] = {}
    returned: dict[str, dict[int, tuple[str, str]]] = {}
    for place, number in enumerate(numbers):
        tests = plan.groups[number].tests
        passing |= _passing(tests, singles[place], twins.get(place, {}))
        returned |= dict.fromkeys(tests, notes[place])
    found = Found(passing=passing, returned={test: values for test, values in returned.items() if values})
    _keep(task, found)
    return found


def _order(plan: CounterPlan, numbers: Sequence[int], singles: Sequence[Sequence[_Single]]) -> TwinOrder:
    groups = [plan.groups[number] for number in numbers]
    return TwinOrder(
        groups=tuple(
            TwinGroup(places=group.places, texts=tuple(single.sources for single in texts), original=0)
            for group, texts in zip(groups, singles, strict=True)
        ),
        stops=False,
        only=tuple(place for group in groups for place in group.places),
    )


def _draw_singles(plan: CounterPlan, number: int, notes: str) -> Iterator[_Single]:
    """Yield the original and the singles of a group. Of functions that call each other, one is changed at a time."""
    places = plan.groups[number].places
    yield _Single(None, tuple(plan.snippets(number, CounterText(((),) * len(places)))))
    for changed, place in enumerate(places):
        source = plan.sources[place.path]
        function = source.function(place.names)
        found = [(*single, False) for single in find_singles(function, source)]
        found += [(*single, True) for single in noting(function, source, notes)]
        for line, edits, is_noting in found:
            row = CounterText(tuple(edits if other == changed else () for other in range(len(places))))
            texts = tuple(plan.snippets(number, row))
            if all(map(_parses, texts)):
                yield _Single(line, texts, is_noting)


def _notes(sandbox: Sandbox, path: str) -> dict[int, tuple[str, str]]:
    """The first two values that an assertion found unequal, for each line, if they are alike."""
    found: dict[int, tuple[str, str]] = {}
    with contextlib.suppress(SandboxError, FileError):  # a timeout ends the sandbox, and then nothing is known
        for note in sandbox.read_file(path, max_bytes=MOST_NOTES).decode(errors="replace").splitlines():
            with contextlib.suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                line, right, wrong = ast.literal_eval(note)
                values = [ast.literal_eval(text) for text in (right, wrong) if len(text) < LONGEST]
                if len(values) == 2 and are_alike(*values):
                    found.setdefault(line, (right, wrong))
    return found


def _parses(text: str) -> bool:
    """Whether a text is still Python: what it drops may be indented by a tab or by one blank only."""
    try:
        with PARSING:
            ast.parse(text)
    except SyntaxError:
        return False
    return True


def _passing(
    tests: Sequence[str], found: Sequence[_Single], ends: Mapping[int, PlayedText]
) -> dict[str, tuple[int, ...]]:
    """Return the lines of the singles that passed, for each test; none if no test needs work."""
    lines: dict[str, set[int | None]] = {test: set() for test in tests}
    for number, end in ends.items():
        if found[number].notes:
            continue
        for test, status in match_tests(tests, end.statuses).statuses.items():
            if status is TestStatus.PASSED:
                lines[test].add(found[number].line)
    if all(None in passed for passed in lines.values()):
        return dict.fromkeys(tests, ())
    return {test: tuple(sorted(line for line in passed if line is not None)) for test, passed in lines.items()}
