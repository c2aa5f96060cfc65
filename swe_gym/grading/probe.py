"""Finds out what the untouched repository does in tests that must start passing: what passes, what comes instead.

Work that changes nothing can do the same. It knows that a text is changed if an assertion fails there that it passes
otherwise, so the texts of a function differ where the untouched repository fails. A text whose expectation is farther
from the result than others looks changed too, so the texts differ from the result as the original does.

It plays two *surveys* of each function: texts in which no assertion fails the test, because whatever it raises is
dropped. One notes which assertions pass, the other what expected values are compared with.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..cache import cache_folder
from ..cache import digest as cache_key
from ..errors import FileError, GradingError, SandboxError
from ..files import write_text
from ..sandboxes import Sandbox
from ..syntax import evaluate, parse
from ..tasks import digest
from ..types import Frozen, Task, TestStatus
from .base import Grader
from .counter import CounterPlan, CounterText
from .counter.changes import asserting, expected_value
from .counter.finding import NESTED
from .counter.results import are_alike
from .counter.source import Function, Source, TextEdit
from .ids import match_tests
from .patch import Patch
from .reporter import PlayedText, TwinGroup, TwinOrder, name_folder
from .staging import Stage

ORIGINAL = 0
"""Number of the original among the texts of a survey."""

FORMAT = 3
"""Version of the files that keep what a probe found. Others are not read."""

MOST_NOTES = 1 << 20
"""Bytes of notes about one group."""

LONGEST = 4_000
"""Characters of a value: longer ones are not compared."""


class Found(Frozen):
    """What the untouched repository does in tests that must start passing.

    Attributes:
        passing: Test -> lines of assertions in its function that pass, for any of its parameters.
        returned: Test -> line of an assertion that it fails -> `repr` of the value that is expected, and of its own.
    """

    passing: dict[str, tuple[int, ...]] = {}
    returned: dict[str, dict[int, tuple[str, str]]] = {}


def known(task: Task, image: str) -> Found:
    """Return what an earlier probe on this machine found out about a task in an image. Nothing if there was none."""
    try:
        return Found.model_validate_json(_file(task, image).read_bytes())
    except (OSError, ValueError):
        return Found()


def forget(task: Task) -> None:
    """Remove what is known about a task, in any image."""
    for file in (cache_folder() / "probes").glob(f"{FORMAT}-{digest(task)}*.json"):
        file.unlink(missing_ok=True)


def _keep(task: Task, image: str, found: Found) -> None:
    file = _file(task, image)
    with contextlib.suppress(OSError):  # a full disk, or a read-only one: the next process finds out itself
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, found.model_dump_json())


def _file(task: Task, image: str) -> Path:
    of_image = f"-{cache_key(image)}" if image else ""
    return cache_folder() / "probes" / f"{FORMAT}-{digest(task)}{of_image}.json"


def probe(task: Task, plan: CounterPlan, grader: Grader, stage: Stage, timeout: float) -> Found:
    """Play surveys of the functions that must start passing, with the untouched repository, in one run.

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
        image = fresh.image_digest
        ready = stage.prepare(Patch(), fresh)
        folder = name_folder(fresh)
        fresh.write_file(f"{folder}/notes", b"")
        texts = [tuple(_draw_surveys(plan, number, f"{folder}/{number}")) for number in numbers]
        try:
            twins = grader.run(replace(ready, twins=_order(plan, numbers, texts), timeout=timeout), fresh).twins
        except GradingError:  # the tests cannot run without work: it passes no assertion
            twins = {}
        read = [_read_survey(fresh, f"{folder}/{number}") for number in numbers]
    passing: dict[str, tuple[int, ...]] = {}
    returned: dict[str, dict[int, tuple[str, str]]] = {}
    for place, number in enumerate(numbers):
        tests, (lines, values) = plan.groups[number].tests, read[place]
        needs_work = not _passes(tests, twins.get(place, {}))
        passing |= dict.fromkeys(tests, tuple(sorted(lines)) if needs_work else ())
        returned |= dict.fromkeys(tests, values)
    found = Found(passing=passing, returned={test: values for test, values in returned.items() if values})
    _keep(task, image, found)
    return found


def _passes(tests: Sequence[str], ends: Mapping[int, PlayedText]) -> bool:
    """Whether all tests of a group pass without work."""
    if ORIGINAL not in ends:
        return False
    found = match_tests(tests, ends[ORIGINAL].statuses).statuses
    return all(status is TestStatus.PASSED for status in found.values())


def _order(plan: CounterPlan, numbers: Sequence[int], texts: Sequence[Sequence[tuple[str, ...]]]) -> TwinOrder:
    groups = [plan.groups[number] for number in numbers]
    return TwinOrder(
        groups=tuple(
            TwinGroup(
                places=group.places,
                required=group.tests,
                texts=tuple(found),
                plain=found[ORIGINAL],
                passing=(ORIGINAL,),
            )
            for group, found in zip(groups, texts, strict=True)
        ),
        stops=False,
        only=tuple(place for group in groups for place in group.places),
    )


def _draw_surveys(plan: CounterPlan, number: int, path: str) -> Iterator[tuple[str, ...]]:
    """Yield the original and the surveys of a group. Of functions that call each other, one is changed at a time."""
    places = plan.groups[number].places
    yield from plan.snippets(number, [CounterText(((),) * len(places))])
    for changed, place in enumerate(places):
        source = plan.sources[place.path]
        function = source.function(place.names)
        for edits in (survey_ends(function, source, path), survey_values(function, source, path)):
            row = CounterText(tuple(tuple(edits) if other == changed else () for other in range(len(places))))
            (texts,) = plan.snippets(number, [row])
            if all(map(_parses, texts)):
                yield texts


def _read_survey(sandbox: Sandbox, path: str) -> tuple[set[int], dict[int, tuple[str, str]]]:
    """Return the lines that passed, and for each line the first two values that it found unequal, if they are alike."""
    passed: set[int] = set()
    unequal: dict[int, tuple[str, str]] = {}
    with contextlib.suppress(SandboxError, FileError):  # a timeout ends the sandbox, and then nothing is known
        for note in sandbox.read_file(path, max_bytes=MOST_NOTES).decode(errors="replace").splitlines():
            with contextlib.suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                line, *texts = evaluate(note)
                values = [evaluate(text) for text in texts if len(text) < LONGEST]
                if not texts:
                    passed.add(line)
                elif len(values) == 2 and are_alike(*values):
                    unequal.setdefault(line, (texts[0], texts[1]))
    return passed, unequal


def _parses(text: str) -> bool:
    """Whether a text is still Python: what it drops may be indented by a tab or by one blank only."""
    try:
        parse(text)
    except SyntaxError:
        return False
    return True


# --- surveys --------------------------------------------------------------------------------------------------------


def survey_ends(function: Function, source: Source, path: str) -> list[TextEdit]:
    """Return the edits after which no assertion fails a test, and each that passes writes its line to a file.

    Args:
        function: The function.
        source: The file that holds it.
        path: The file of the sandbox to write to.
    """
    return _soften(function, source, path)


def survey_values(function: Function, source: Source, path: str) -> list[TextEdit]:
    """Return the edits of another survey, in which assertions write down what they compare with known values."""
    edits = _soften(function, source)
    for statement in asserting(function, source):
        expected = expected_value(function, source, statement)
        if expected is not None:
            start, end = source.span(expected)
            edits.append(TextEdit(start, end, _compared(statement.lineno, source.text(start, end), path)))
    return edits


def _soften(function: Function, source: Source, path: str = "") -> list[TextEdit]:
    """Put each assertion into a `try` that drops what it raises. With a path, one that passes writes its line there."""
    found = asserting(function, source)
    awaited = [node for kept in found for node in ast.walk(kept) if node not in found]  # what `raises` waits for
    edits: list[TextEdit] = []
    for one in _find_droppable(function, found):
        if one not in awaited and _is_alone(one, source):
            start, end = source.span(one)
            pad = source.before(one)
            passed = f"\n{pad} {_note(f'({one.lineno},)', path)}" if path and one in found else ""
            edits.append(TextEdit(start, start, f"try:\n{pad} "))
            edits.append(TextEdit(end, end, f"{passed}\n{pad}except BaseException: pass"))
    return edits


def _note(value: str, path: str) -> str:
    """An expression that appends the `repr` of a value to a file, as a line, and is true."""
    file = f"__import__('_io').FileIO({path!r}, 'a')"  # a test may have replaced `open`
    return f"(lambda f: (f.write((repr({value}) + chr(10)).encode('utf-8', 'replace')), f.close()))({file})"


def _compared(line: int, expected: str, path: str) -> str:
    """An expected value that appends line, itself and what it is compared with to a file, if they differ."""
    equal = f"lambda a, b: type(e).__eq__(a, b) is True or not {_note(f'({line}, repr(e), repr(b))', path)}"
    return (
        f"(lambda e: type('Expected', (type(e),), {{'__eq__': {equal}, '__hash__': type(e).__hash__}})(e))({expected})"
    )


def _find_droppable(function: Function, found: Collection[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that do nothing but assert or call, and those that can be changed."""
    todo: list[ast.AST] = [*function.body]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.stmt) and (node in found or isinstance(node, ast.Assert | ast.Expr)):
            yield node
        if not isinstance(node, NESTED):
            todo += ast.iter_child_nodes(node)


def _is_alone(statement: ast.stmt, source: Source) -> bool:
    """Whether no other statement is on the lines of a statement."""
    return not source.before(statement).strip() and not source.after(statement).lstrip().startswith(";")
