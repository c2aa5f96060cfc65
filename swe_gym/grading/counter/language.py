"""Measures how well a changed test fits its surroundings, and chooses changes among which the original fits by chance.

What a person wrote fits the issue and the rest of the test file: its neighbouring words are neighbours elsewhere
too, numbers come again. A change that was drawn at random fits worse, which gives the original away. So for each
measure, a random number of the chosen changes fit better than the original.
"""

import ast
import copy
import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import filterfalse, pairwise, repeat
from operator import add, gt, itemgetter, lt, mul, sub
from random import Random
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from .source import Function, Source, remembered

TOKEN = re.compile(r"[^\W\d_]+|\d+|[^\S\n]+|.", re.DOTALL)

WORD, LETTER, DIGITS = re.compile(r"[^\W\d_]{2,}|[^\S\n]{2,}"), re.compile(r"[^\W\d_]"), re.compile(r"\d+")

PART = re.compile(r"\w+|[^\w\s]")
"""Words, numbers and marks, as readers compare neighbours."""

NUMBER = re.compile(r"[0-9]{1,12}")

QUOTE = re.compile(r"([`'\"])([^`'\"\n]{1,80})\1")
"""A text in quotes in an issue."""

LARGEST_COUNTED = 1 << 17
"""Bytes of a file and characters of an issue whose words are counted."""

FIRST, LAST = itemgetter(0), itemgetter(-1)

LOGS = {number: math.log(0.1 + max(0, number)) for number in range(-1_000, 2_000)}
"""Weights of numbers of occurrences."""

MANY = repeat(max(LOGS.values()))
"""The weight of larger numbers."""

AROUND = 32
"""Characters before and after a change that are measured with it."""

STEPS = 160
"""Exchanges that are tried to give the original its ranks."""

Scores: TypeAlias = tuple[float, ...]
"""Measures of one text, higher for a better fit; then its length and its largest number."""

Signs: TypeAlias = tuple[int, ...]
"""For each measure: 1 if a text fits better than the original, 0 if as well, -1 if worse."""

Parts: TypeAlias = tuple[Counter[Any], ...]
"""Counts, whatever they count."""

FITS = 7
"""Number of the measures of fit: the others get ranks of their own."""

T = TypeVar("T")


class Counts(NamedTuple):
    """How often the parts of a text occur: words and marks, their neighbours, first letters and groups of letters."""

    tokens: Counter[str]
    pairs: Counter[tuple[str, str]]
    initials: Counter[tuple[str, str]]
    twos: Counter[tuple[str, str]]
    threes: Counter[tuple[str, str, str]]


def _count(text: str) -> Counts:
    parts = PART.findall(text)
    initials = pairwise(map(FIRST, parts))
    threes = zip(text, text[1:], text[2:], strict=False)
    return Counts(*map(Counter, (parts, pairwise(parts), initials, pairwise(text), threes)))


_count_issue = functools.lru_cache(maxsize=4)(_count)  # each test of a task asks for the same


def _add(one: Counts, other: Counts) -> Counts:
    """The counts of two texts, in counters of their own."""
    parts: Parts = one
    found = Counts(*map(Counter, parts))
    _change(found, other, Counter.update)
    return found


def _change(counts: Parts, by: Parts, change: Callable[[Counter[Any], Counter[Any]], None]) -> None:
    """Add or subtract counts in place."""
    for number, counter in enumerate(by):
        change(counts[number], counter)


class Language:
    """What the texts of a test are made of.

    Args:
        function: The test.
        source: Its file.
        issue: Text of the issue.

    Attributes:
        source: The file.
        words: Words of the file.
        numbers: Numbers of the test, as they are written. Others look made.
        own_words: Parts of the test itself.
        known_words: Words of the file and of the issue, in any case.
        known_numbers: Numbers of the file and of the issue.
        texts: Texts of the file's strings, and those in quotes in the issue.
        pairs: Shapes of neighbouring tokens in the file's strings. A text with other neighbours looks made.
    """

    def __init__(self, function: Function, source: Source, issue: str = "") -> None:
        text = source.text_of(function)
        self.source = source
        self.words = source.words
        self.numbers = sorted(set(re.findall(r"\d+", text)))
        self.pairs = _pairs_of(source.tree, source)
        self._text, self._places, self._before = text.encode(), source.span(function), 0
        known = _find_known(source, issue[:LARGEST_COUNTED])
        self._known = Counts(*map(Counter, cast("Parts", known.counts)))  # its own: `measure` changes it
        self.own_words = sorted(set(PART.findall(text)))
        self.known_words, self.known_numbers = known.words, known.numbers
        texts = {*source.strings, *[match[2] for match in QUOTE.finditer(issue[:LARGEST_COUNTED])]}
        self.texts = sorted([text for text in texts if "\0" not in text])

    def inline(self, start: int, end: int, value: ast.expr) -> "Language":
        """Return the language of the test in which a value of the file stands in place of a name.

        Its places are those of the value where the file has it.
        """
        before, _, after = self._split(start, end)
        first, last = self.source.span(value)
        inlined = copy.copy(self)
        inlined._text = before + self.source.inlined(value).encode() + after
        inlined._places, inlined._before = (first, last), len(before) + 1
        return inlined

    def strangeness(self, texts: Sequence[str]) -> list[int]:
        """Return, for each text, the number of neighbours that the file does not have."""
        shapes = _shape("\0".join(texts)).split("\0")
        return [len(list(filterfalse(self.pairs.__contains__, pairwise(shape)))) for shape in shapes]

    def alike(self, text: str) -> list[str]:
        """Return the texts of the file and the issue that have the shape of one."""
        shape = _shape(text)
        return [other for other, its in zip(self.texts, self._shapes, strict=False) if its == shape]

    @functools.cached_property
    def _shapes(self) -> list[str]:
        return _shape("\0".join(self.texts)).split("\0")

    def neighbours(self, start: int, end: int) -> list[str]:
        """Return the words and numbers that stand elsewhere beside what stands beside a place of the test."""
        before, _, after = self._around(start, end)
        return self.between("".join(PART.findall(before)[-1:]), "".join(PART.findall(after)[:1]))

    def between(self, before: str, after: str) -> list[str]:
        """Return the parts that stand elsewhere after one part or before another; first those that do both."""
        pairs = self._known.pairs
        first = {other for one, other in pairs if one == before}
        last = {one for one, other in pairs if other == after}
        return [*sorted(first & last), *sorted(first ^ last)]

    def measure(self, start: int, end: int, texts: Sequence[str]) -> list[Scores]:
        """Measure how well texts fit a place of the test, as if what stands there was unknown.

        Raises:
            ValueError: The place is not in the test.
        """
        before, old, after = self._around(start, end)
        in_test = {*PART.findall(before), *PART.findall(after), *self.own_words}.difference(PART.findall(old))
        found = []
        none, weigh, is_unknown = repeat(0), LOGS.get, (0).__ge__
        known = self._known
        own = _count(f"{before}{old}{after}" if end <= LARGEST_COUNTED else "")
        _change(known, own, Counter.subtract)
        try:
            for text in texts:
                whole = f"{before}{text}{after}"
                parts = PART.findall(whole)
                pairs = list(map(known.pairs.get, pairwise(parts), none))
                threes = list(map(known.threes.get, zip(whole, whole[1:], whole[2:], strict=False), none))
                twos = map(known.twos.get, pairwise(whole), none)
                initials = map(known.initials.get, pairwise(map(FIRST, parts)), none)
                scores = (
                    -sum(map(is_unknown, pairs)),
                    sum(map(weigh, pairs, MANY)),
                    sum(map(weigh, map(known.tokens.get, parts, none), MANY)),
                    sum(map(weigh, threes, MANY)) - sum(map(weigh, twos, MANY)),
                    -sum(map(is_unknown, threes)),
                    sum(map(weigh, initials, MANY)),
                    sum(map(in_test.__contains__, PART.findall(text))),
                    len(text),
                    max(map(int, NUMBER.findall(text)), default=0),
                )
                found.append(tuple(map(round, scores, repeat(6))))
        finally:
            _change(known, own, Counter.update)
        return found

    def _around(self, start: int, end: int) -> tuple[str, str, str]:
        """The end of the text before a place of the test, the text of the place, and the beginning of that after it."""
        before, old, after = self._split(start, end)
        width = 4 * AROUND  # bytes of as many characters; one may be cut
        near, far = before[-width:].decode(errors="ignore"), after[:width].decode(errors="ignore")
        return near[-AROUND:], old.decode(errors="replace"), far[:AROUND]

    def _split(self, start: int, end: int) -> tuple[bytes, bytes, bytes]:
        """The bytes of the test before a place, those of the place, and those after it."""
        first, last = self._places
        if not first <= start <= end <= last:
            raise ValueError(f"bytes {start} to {end} of the file are not in the test, which has {first} to {last}")
        shift = self._before - first
        return self._text[: start + shift], self._text[start + shift : end + shift], self._text[end + shift :]


@remembered
def _count_file(_module: ast.Module, source: Source) -> Counts:
    """The counts of a file."""
    return _count(source.beginning(LARGEST_COUNTED))


class Known(NamedTuple):
    """What a file and the issue that was asked for last hold together: counts, words and numbers."""

    issue: str
    counts: Counts
    words: list[str]
    numbers: list[str]


def _find_known(source: Source, issue: str) -> Known:
    """Return what a file and an issue hold. A file keeps it for one issue: thousands of tasks may share it."""
    known = source.findings.get((Known,))
    if not isinstance(known, Known) or known.issue != issue:
        counts = _add(_count_file(source.tree, source), _count_issue(issue))
        parts = [part for part in counts.tokens if part.isascii()]
        words, numbers = (sorted(filter(kind, parts)) for kind in (str.isalpha, str.isdecimal))
        source.findings[Known,] = known = Known(issue, counts, words, numbers)
    return known


@remembered
def _pairs_of(_module: ast.Module, source: Source) -> frozenset[tuple[str, str]]:
    """The neighbours in all strings of a file."""
    return frozenset([pair for pair in pairwise(_shape("\0".join(source.strings))) if "\0" not in pair])


def _shape(text: str) -> str:
    """Return a text with one letter for each token that has several, or that other letters can replace."""
    return DIGITS.sub("\1", LETTER.sub("\2", WORD.sub("\3", text)))


def token_classes(tokens: Sequence[object]) -> list[str]:
    """Return the class of each token. Tokens of one class can replace each other."""
    classes = []
    for token in tokens:
        if not isinstance(token, str):
            classes.append(type(token).__name__)
        elif token.isdigit():
            classes.append("digits")
        elif len(token) > 1:
            classes.append("word")
        else:
            classes.append("letter" if token.isalpha() else token)
    return classes


# --- choice -----------------------------------------------------------------------------------------------------------


def choose_fitting(original: Scores, candidates: Sequence[tuple[Scores, T]], rng: Random, count: int) -> list[T]:
    """Choose candidates among which the rank of the original by each measure is random, in random order."""
    signs = compare(original, map(FIRST, candidates))
    return list(map(LAST, map(candidates.__getitem__, choose_places(signs, rng, count))))


def choose_places(signs: Sequence[Signs], rng: Random, count: int) -> list[int]:
    """Choose the places of candidates, given their signs, as `choose_fitting` does."""
    shuffled = rng.sample(range(len(signs)), len(signs))
    if len(shuffled) <= count:
        return shuffled
    chosen, left = shuffled[:count], shuffled[count:]
    goals = _draw_goals(signs, rng, count)
    sums = list(map(sum, zip(*map(signs.__getitem__, chosen), strict=True)))
    away = list(map(sub, sums, goals))
    cost = sum(map(mul, away, away))
    for _ in range(STEPS):
        if not cost:
            break
        old, new = int(rng.random() * len(chosen)), int(rng.random() * len(left))
        other = list(map(sub, map(add, sums, signs[left[new]]), signs[chosen[old]]))
        away = list(map(sub, other, goals))
        now = sum(map(mul, away, away))
        if now <= cost:
            chosen[old], left[new], sums, cost = left[new], chosen[old], other, now
    return chosen


def _draw_goals(signs: Sequence[Signs], rng: Random, count: int) -> list[int]:
    """Draw how many more of the chosen ones are to be better than worse, for each measure.

    If the original is at one end, as many as possible are to be equal.
    """
    shared = 2 * rng.randint(0, count) - count
    goals = []
    for place, side in enumerate(zip(*signs, strict=True)):
        goal = shared if place < FITS else 2 * rng.randint(0, count) - count
        goals.append(0 if max(side) == 0 or min(side) == 0 else goal)
    return goals


def share_told(signs: Sequence[Signs]) -> float:
    """Return how often the best by a measure of fit is the original, if a guess decides among equal ones."""
    told = 0.0
    for side in list(zip(*signs, strict=True))[:FITS]:
        told += 1 / (1 + side.count(0)) if max(side) <= 0 else 0
    return told / FITS


def compare(original: Scores, others: Iterable[Scores]) -> list[Signs]:
    """For each score of the others: 1 if it is higher than the original's, 0 if it is equal, -1 if it is lower."""
    found = []
    for other in others:
        found.append(tuple(map(sub, map(gt, other, original), map(lt, other, original))))
    return found
