"""Chooses the test functions that get counter-tests, and draws their texts."""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from random import Random
from typing import Literal, get_args

from ...errors import UsageError, unknown_name
from ...tasks import TaskRecord
from .finding import Finder, FunctionPlace
from .grammars import LANGUAGES, NO_PARSER, ForeignTests, WrittenTest, read_test_file
from .results import Returned
from .source import Source, TextEdit, name_of
from .texts import Drawn, Text, draw_texts, neutral_edit

Scope = Literal["few", "all"]
"""Tests that must keep passing and get a counter-test too: a few, if few tests must start passing; or all."""

FEW = 4
"""With fewer test functions that must start passing, `few` draws others."""

MOST_TEXTS = 8
"""Texts of a function that look alike. Work that has to guess which is the original is right once in so many times."""

TWINS = 24
"""Forks of one run, about 4 to 30 ms each, for functions that must start passing. Many functions share them, and then
have fewer texts: work has to guess right for each."""

FEWEST_TEXTS = 3
"""Texts of a function that shares the forks with many, or that must keep passing: honest work passes it anyway."""

NOT_FOUND, NO_CHANGE = "its source was not found", "nothing in it can be changed"
NOT_PARSED = "its source was not found, and {} cannot be parsed"
NO_LANGUAGE = "counter-tests read tests in Python, JavaScript, TypeScript and Go, not in {} files"


@dataclass(frozen=True)
class CounterOptions:
    """Scope of the counter-tests.

    Attributes:
        counter: Which tests that must keep passing get a counter-test too: "few" or "all".
        runs: Runs of the tests on resolved work of which twins prove not everything, at least 2.
        unfit: Test -> kinds of changes that right work is known to survive, from the record of `swe-gym validate`.
        unforkable: Tests that fail in a fork of the test process, from the same record. A second run proves them.
        passing: Test that must start passing -> lines of its assertions that pass without work, from the same record.
            The judge finds out about tests that are missing here before it believes that they pass.
        returned: Test that must start passing -> line of an assertion -> `repr` of the value that it expects, and of
            the one that comes without work.
        seed: Seed of the random choices. None draws it afresh, which keeps it secret.

    Raises:
        UsageError: `counter` is unknown, or `runs` is not an integer of at least 2.
    """

    counter: Scope = "few"
    runs: int = 2
    unfit: Mapping[str, Collection[str]] = field(default_factory=dict)
    unforkable: Collection[str] = ()
    passing: Mapping[str, Collection[int]] = field(default_factory=dict)
    returned: Mapping[str, Returned] = field(default_factory=dict)
    seed: bytes | None = None

    def __post_init__(self) -> None:
        if self.counter not in get_args(Scope):
            raise unknown_name("counter", self.counter, get_args(Scope))
        if isinstance(self.runs, bool) or not isinstance(self.runs, int) or self.runs < 2:
            raise UsageError(f"judge_runs must be an integer of at least 2, not {self.runs!r}")

    def of_record(self, record: TaskRecord) -> CounterOptions:
        """Return the options with what a record of the task knows."""
        names = ("unfit", "unforkable", "passing", "returned")
        return replace(self, **{name: getattr(record, name) for name in names})

    def knowing(self, passing: Mapping[str, Collection[int]], returned: Mapping[str, Returned]) -> CounterOptions:
        """Return the options with more knowledge about tests that they do not know."""
        return replace(self, passing={**passing, **self.passing}, returned={**returned, **self.returned})


@dataclass(frozen=True)
class CounterText:
    """One text of a group.

    Attributes:
        edits: For each place of the group, the edits that make its text.
        kinds: Kinds of the changes that right work must fail; empty for texts that it passes.
        softening: For each place, the edits of twins' texts after which some statements fail nothing.
        own: The edits, without those of statements that fail nothing.
    """

    edits: tuple[tuple[TextEdit, ...], ...]
    kinds: tuple[str, ...] = ()
    softening: tuple[tuple[TextEdit, ...], ...] = ()
    own: tuple[tuple[TextEdit, ...], ...] = ()

    @cached_property
    def played(self) -> tuple[tuple[TextEdit, ...], ...]:
        """The edits of each place, as twins play them: what softens a statement stands first in it."""
        found = list(self.edits)
        for column, softening in enumerate(self.softening):
            starts = set(map(attrgetter("start"), softening))
            found[column] = (*[edit for edit in found[column] if edit.start not in starts], *softening)
        return tuple(found)


@dataclass(frozen=True)
class CounterGroup:
    """Test functions that are changed together: one, or several of which one calls another by `super()`.

    Attributes:
        places: The functions.
        tests: Required tests that run them: more than one if a function is parametrised or inherited.
        rows: The texts, in the order in which twins play them.
        original: The text of every other play. It is one of `rows`, unless statements are proven alone.
        cover: The text that lies on disk while twins play: none of theirs, if the functions have that many.
        effective: Number of texts among which only a guess finds the original, also for work that is right but for one
            statement. Functions that change together have 1: work that is right in one of them knows its texts.
        starts: Whether a test of the group must start passing.
        forks: Whether twins can play the group. If not, a second run proves it.
    """

    places: tuple[FunctionPlace, ...]
    tests: tuple[str, ...]
    rows: tuple[CounterText, ...]
    original: CounterText
    cover: CounterText
    effective: int
    starts: bool = True
    forks: bool = True

    @property
    def kind(self) -> str:
        """The kinds of its changes in one word."""
        return "+".join(sorted(set().union(*map(attrgetter("kinds"), self.rows))))

    @cached_property
    def passing(self) -> tuple[int, ...]:
        """Numbers of the texts that right work passes."""
        return tuple([number for number, row in enumerate(self.rows) if not row.kinds])

    def changed(self, rng: Random) -> CounterText:
        """Draw a changed text for a run in which no statement is softened."""
        row = rng.choice([row for row in self.rows if row.kinds])
        return replace(row, edits=row.own, softening=())


@dataclass(frozen=True)
class CounterPlan:
    """The counter-tests of one task.

    Attributes:
        groups: Test functions with counter-tests.
        uncovered: Tests that must start passing and have no counter-test -> why.
        sources: Path of each Python file that holds one -> its source.
        foreign: Path of each file in another language that holds one -> its tests. No fork plays them.
    """

    groups: tuple[CounterGroup, ...] = ()
    uncovered: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict)
    foreign: Mapping[str, ForeignTests] = field(default_factory=dict)

    def files(self, texts: Mapping[int, CounterText]) -> dict[str, bytes]:
        """Return all files of the plan: path -> content.

        Files without a change are included: the time at which a file was written must not tell which has one.

        Args:
            texts: Number of a group -> its text. Other groups have the original.
        """
        files: dict[str, Source | ForeignTests] = {**self.sources, **self.foreign}
        edits: dict[str, list[TextEdit]] = {path: [] for path in files}
        for number, group in enumerate(self.groups):
            row = texts.get(number, group.original)
            for place, made in zip(group.places, row.edits, strict=True):
                edits[place.path] += made
        return {path: file.apply_edits(edits[path]) for path, file in files.items()}

    def snippets(self, number: int, rows: Sequence[CounterText]) -> tuple[tuple[str, ...], ...]:
        """Return, for each text, the source of each function of a group, enough to compile the function alone."""
        columns = [
            _snippets(self.sources[place.path], place, [row.played[column] for row in rows])
            for column, place in enumerate(self.groups[number].places)
        ]
        return tuple(zip(*columns, strict=True))

    def callers(self, number: int) -> tuple[FunctionPlace, ...]:
        """Return the functions that mention a function of a group by its name in the same file: they may call it."""
        found = set()
        for place in self.groups[number].places:
            for names in self.sources[place.path].mentioning(place.names[-1]):
                found.add(FunctionPlace(place.path, names))
        return tuple(sorted(found.difference(self.groups[number].places)))

    def is_nested(self, number: int) -> bool:
        """Whether a function of a group exists only while another one runs."""
        places = self.groups[number].places
        return any(place.path in self.sources and place.names in self.sources[place.path].nested for place in places)

    def unforked(self, numbers: Collection[int]) -> CounterPlan:
        """Return the plan in which no twins play these groups."""
        groups = [
            replace(group, forks=False) if number in numbers else group for number, group in enumerate(self.groups)
        ]
        return replace(self, groups=tuple(groups))


def plan_counters(
    finder: Finder,
    starting: Collection[str],
    keeping: Collection[str],
    rng: Random,
    options: CounterOptions,
    issue: str = "",
) -> CounterPlan:
    """Find the functions of required tests and draw their texts.

    Args:
        finder: Finds test functions.
        starting: Tests that must start passing.
        keeping: Tests that must keep passing.
        rng: Random number generator.
        options: Scope of the counter-tests.
        issue: Text of the issue.
    """
    uncovered: dict[str, str] = {}
    by_place: dict[FunctionPlace, list[str]] = defaultdict(list)
    for test in starting:
        place = finder.place(test)
        if place is None:
            uncovered[test] = NOT_FOUND
        else:
            by_place[place].append(test)
    functions = len(by_place)
    kept = _draw_kept(finder, keeping, by_place, rng, options)
    named = re.compile("|".join(re.escape(place.names[-1]) for place in (*by_place, *kept)) or "(?!)")
    for test in keeping:  # a function may have tests of both lists
        place = finder.place(test) if named.search(test) else None
        if place in by_place or place in kept:
            by_place[place].append(test)
    sources = {place.path: source for place in by_place if (source := finder.source(place.path))}
    draw = _Drawing(sources, rng, options, set(starting), room=TWINS // max(1, functions), issue=issue)
    groups = []
    for places in _join(sources, by_place):
        group = draw.group(places, sorted({test for place in places for test in by_place[place]}))
        if group is not None:
            groups.append(group)
        else:
            tests = {test for place in places for test in by_place[place]}
            uncovered |= dict.fromkeys(tests.intersection(starting), NO_CHANGE)
    paths = {place.path for group in groups for place in group.places}
    plan = CounterPlan(tuple(groups), uncovered, {path: sources[path] for path in sorted(paths)})
    lost = sorted(test for test, why in uncovered.items() if why == NOT_FOUND)
    return _plan_foreign(plan, finder, lost, rng, options) if lost else plan


def _plan_foreign(
    plan: CounterPlan, finder: Finder, tests: Sequence[str], rng: Random, options: CounterOptions
) -> CounterPlan:
    """Add the counter-tests of tests that are not in Python files."""
    suffixes = {posixpath.splitext(path)[1] for path in finder.hidden}
    if not suffixes & LANGUAGES.keys():
        others = ", ".join(sorted(suffixes - {".py", ""}))
        said = dict.fromkeys(tests, NO_LANGUAGE.format(others)) if others and ".py" not in suffixes else {}
        return replace(plan, uncovered={**plan.uncovered, **said})
    contents = {path: finder.read(path) for path in finder.hidden if posixpath.splitext(path)[1] in LANGUAGES}
    try:
        read = {path: read_test_file(path, data) for path, data in contents.items() if data is not None}
    except ImportError:
        return replace(plan, uncovered={**plan.uncovered, **dict.fromkeys(tests, NO_PARSER)})
    files = {path: file for path, file in read.items() if file is not None}
    broken = ", ".join(sorted(read.keys() - files.keys()))
    why = dict.fromkeys(tests, NOT_PARSED.format(broken) if broken else NOT_FOUND)
    found: dict[tuple[str, int], WrittenTest] = {}
    by_test: dict[tuple[str, int], list[str]] = defaultdict(list)
    for test in tests:
        path, written = _find_foreign(files, test)
        if written is not None:
            found[path, id(written)] = written
            by_test[path, id(written)].append(test)
            why[test] = NO_CHANGE
    groups = []
    for (path, number), ids in by_test.items():
        written = found[path, number]
        group = _draw_foreign(files[path], FunctionPlace(path, written.names), written, ids, rng, options)
        groups += [group] if group else []
    covered = {test for group in groups for test in group.tests}
    uncovered = {test: said for test, said in {**plan.uncovered, **why}.items() if test not in covered}
    used = {place.path for group in groups for place in group.places}
    foreign = {path: files[path] for path in sorted(used)}
    return replace(plan, groups=(*plan.groups, *groups), uncovered=uncovered, foreign=foreign)


def _find_foreign(files: Mapping[str, ForeignTests], test: str) -> tuple[str, WrittenTest | None]:
    """Find a test, and its file: of tests of one name, that of the file whose path the id names best."""
    words = set(re.findall(r"\w+", test))
    best: tuple[tuple[int, int], str, WrittenTest | None] = (0, 0), "", None
    for path, file in files.items():
        score, written = file.find(test)
        rank = score, len(words.intersection(re.findall(r"\w+", path)))
        if score and rank > best[0]:
            best = rank, path, written
    return best[1:]


def _draw_foreign(
    file: ForeignTests,
    place: FunctionPlace,
    written: WrittenTest,
    ids: Sequence[str],
    rng: Random,
    options: CounterOptions,
) -> CounterGroup | None:
    """Draw the texts of a test in another language. Return None if it has no change."""
    unfit = {kind for test in ids for kind in options.unfit.get(test, ())}
    word = rng.choice(file.words or ("x",))
    extra = [TextEdit(written.start, written.start, f" /* {word} */")] if written.start >= 0 else []
    rows, natural, covered = [], True, set(ids)
    for _ in range(FEWEST_TEXTS):
        edits, kinds, failing = file.draw(written, ids, unfit, rng)
        text = (tuple([*extra, *edits]),)
        rows.append(CounterText(text, tuple(sorted(kinds)), own=text))
        natural, covered = natural and kinds == {"literal"}, covered & failing
    if not covered:
        return None
    original = CounterText((tuple(extra),))
    return CounterGroup(
        places=(place,),
        tests=tuple(sorted(covered)),
        rows=tuple(rows),
        original=original,
        cover=original,
        effective=2 if natural else 1,
        forks=False,
    )


def _draw_kept(
    finder: Finder, keeping: Collection[str], taken: Collection[FunctionPlace], rng: Random, options: CounterOptions
) -> set[FunctionPlace]:
    """Draw functions that must keep passing. A small sample leaves out those that cost another run or seconds."""
    every = options.counter == "all"
    missing = len(keeping) if every else max(0, FEW - len(taken))
    usable = sorted(keeping if every else set(keeping).difference(options.unforkable))
    found: set[FunctionPlace] = set()
    for test in rng.sample(usable, len(usable) if every else min(len(usable), 4 * missing)):
        place = finder.place(test) if len(found) < missing else None
        if place is not None and place not in taken and (every or not _explores(finder, place)):
            found.add(place)
    return found


def _explores(finder: Finder, place: FunctionPlace) -> bool:
    """Whether Hypothesis plays a function: if a changed text fails, it takes long to find a small example."""
    source = finder.source(place.path)
    decorators = source.function(place.names).decorator_list if source else ()
    return any(name_of(decorator) == "given" for decorator in decorators)


def _join(sources: Mapping[str, Source], places: Iterable[FunctionPlace]) -> Iterator[Sequence[FunctionPlace]]:
    """Join functions of one name in one file if any of them calls another one by `super()`."""
    by_name: dict[tuple[str, str], list[FunctionPlace]] = defaultdict(list)
    for place in places:
        by_name[place.path, place.names[-1]].append(place)
    for members in by_name.values():
        source = sources[members[0].path]
        if len(members) > 1 and any([source.calls_super(place.names) for place in members]):
            yield members
        else:
            yield from zip(members)


@dataclass(frozen=True)
class _Drawing:
    """Draws the texts of groups."""

    sources: Mapping[str, Source]
    rng: Random
    options: CounterOptions
    starting: Set[str]
    room: int
    issue: str

    def group(self, places: Sequence[FunctionPlace], tests: Sequence[str]) -> CounterGroup | None:
        """Draw the texts of a group. Return None if one of its functions has no change."""
        unfit: set[str] = set()
        passing: set[int] = set()
        returned: dict[int, tuple[str, str]] = {}
        for test in tests:
            unfit |= set(self.options.unfit.get(test, ()))
            passing |= set(self.options.passing.get(test, ()))
            returned |= self.options.returned.get(test, {})
        starts = not self.starting.isdisjoint(tests)
        room = self.room if starts else FEWEST_TEXTS
        found = [self._draw(place, unfit, passing, returned, room, alone=len(places) == 1) for place in places]
        drawn, extras = zip(*found, strict=True)
        rows = [_row(texts, extras) for texts in zip(*map(attrgetter("texts"), drawn), strict=False)]
        if not rows:
            return None
        original = CounterText(extras)
        if all(row.kinds for row in rows):
            rows.insert(self.rng.randrange(len(rows) + 1), original)
        covers = list(filter(None, map(attrgetter("cover"), drawn)))
        return CounterGroup(
            places=tuple(places),
            tests=tuple(tests),
            rows=tuple(rows),
            original=original,
            cover=_row(covers, extras) if len(covers) == len(drawn) else self.rng.choice(rows),
            effective=min(len(rows), drawn[0].effective) if len(places) == 1 else 1,
            starts=starts,
            forks=not any(map(self._is_nested, places)) and not set(tests).intersection(self.options.unforkable),
        )

    def _draw(
        self,
        place: FunctionPlace,
        unfit: Collection[str],
        passing: Collection[int],
        returned: Returned,
        room: int,
        *,
        alone: bool,
    ) -> tuple[Drawn, tuple[TextEdit, ...]]:
        """The texts of a function, and an edit without effect for all of them."""
        source = self.sources[place.path]
        function = source.function(place.names)
        count = max(FEWEST_TEXTS, min(MOST_TEXTS, room))
        try:
            drawn = draw_texts(
                *(function, source, self.rng, count, unfit, passing, room, returned, self.issue),
                alone=alone,
                shares=self.options.seed is None,
            )
        except RecursionError:  # an expression of thousands of parts
            return Drawn(), ()
        texts = (*drawn.texts, drawn.cover or Text())
        extra = neutral_edit(function, source, self.rng)
        if extra is None or any([edit.start <= extra.start <= edit.end for text in texts for edit in text.all_edits]):
            return drawn, drawn.common
        return drawn, (*drawn.common, extra)

    def _is_nested(self, place: FunctionPlace) -> bool:
        return place.names in self.sources[place.path].nested


def _row(texts: Sequence[Text], extras: Sequence[tuple[TextEdit, ...]]) -> CounterText:
    """A changed text of several functions, and the edits without effect that all their texts have."""
    edits, own = [], []
    kinds: dict[str, None] = {}
    for text, extra in zip(texts, extras, strict=True):
        edits.append(_at_each_place((*extra, *text.edits, *text.still)))
        own.append(_at_each_place((*extra, *text.edits)) if text.still else edits[-1])
        kinds |= dict.fromkeys(text.kinds)
    return CounterText(tuple(edits), tuple(kinds), tuple(map(attrgetter("softening"), texts)), tuple(own))


def _at_each_place(edits: Sequence[TextEdit]) -> tuple[TextEdit, ...]:
    """The last edit of each place."""
    return tuple(dict(zip(map(attrgetter("start", "end"), edits), edits, strict=True)).values())


def _snippets(source: Source, place: FunctionPlace, texts: Iterable[Iterable[TextEdit]]) -> list[str]:
    """The texts of one function after edits, in classes of the same names and on the same line."""
    function = source.function(place.names)
    start, end = source.span(function)
    pad = source.before(function)
    pad = pad[: len(pad) - len(pad.lstrip())]
    classes = [f"{' ' * depth}class {name}:" for depth, name in enumerate(place.names[:-1])]
    head = "\n".join([*source.future, *(classes or (["if 1:"] if pad else [])), ""])
    before = "\n" * max(0, function.lineno - 1 - head.count("\n")) + head + pad
    return [f"{before}{source.cut(start, end, edits)}\n" for edits in texts]
