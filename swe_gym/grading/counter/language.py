"""Measures how well a changed test fits its surroundings, and chooses changes among which the original fits by chance.

What a person wrote fits the issue and the rest of the test file: words stand beside words that they stand beside
elsewhere too, numbers come again. A change that was drawn at random fits worse, which gives the original away. So for
each measure, a random number of the chosen changes fit better than the original.
"""

import ast
import functools
import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import filterfalse, pairwise
from random import Random
from typing import NamedTuple, TypeAlias, TypeVar

from .source import Function, Source, remembered

TOKEN = re.compile(r"[^\W\d_]+|\d+|[^\S\n]+|.", re.DOTALL)

WORD, LETTER, DIGITS = re.compile(r"[^\W\d_]{2,}|[^\S\n]{2,}"), re.compile(r"[^\W\d_]"), re.compile(r"\d+")

PART = re.compile(r"\w+|[^\w\s]")
"""Words, numbers and marks, as readers compare neighbours."""

NUMBER = re.compile(r"[0-9]{1,12}")

QUOTE = re.compile(r"([`'\"])([^`'\"\n]{1,80})\1")
"""A text in quotes in an issue."""

LARGEST = 1 << 17
"""Characters of a file or an issue that are read."""

AROUND = 32
"""Characters before and after a change that are measured with it."""

STEPS = 80
"""Exchanges that are tried to give the original its ranks."""

Scores: TypeAlias = tuple[float, ...]
"""Measures of one text, higher for a better fit; then its length and its largest number."""

FITS = 7
"""Number of the measures of fit: the others get ranks of their own."""

T = TypeVar("T")


class Counts(NamedTuple):
    """How often the parts of a text occur, and which of them stand beside each other."""

    tokens: Counter[str]
    pairs: Counter[tuple[str, str]]
    initials: Counter[tuple[str, str]]
    letters: Counter[str]


def _count(text: str) -> Counts:
    parts = PART.findall(text)
    pairs = list(pairwise(parts))
    letters = Counter([text[place : place + 3] for place in range(len(text) - 2)])
    letters.update([text[place : place + 2] for place in range(len(text) - 1)])
    return Counts(Counter(parts), Counter(pairs), Counter([(one[0], other[0]) for one, other in pairs]), letters)


def _add(one: Counts, other: Counts) -> Counts:
    return Counts(
        one.tokens + other.tokens,
        one.pairs + other.pairs,
        one.initials + other.initials,
        one.letters + other.letters,
    )


def _left(known: Counter[T], own: Counter[T]) -> dict[T, int]:
    """How often parts occur elsewhere."""
    return {part: max(0, known.get(part, 0) - number) for part, number in own.items()}


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
        self._function, self._start = text.encode(), source.span(function)[0]
        self._known = _add(_counts_of(source.tree, source), _count_issue(issue[:LARGEST]))
        known = self._known.tokens
        self.own_words = sorted(set(PART.findall(text)))
        self.known_words = sorted([part for part in known if part.isalpha() and part.isascii()])
        self.known_numbers = sorted([part for part in known if part.isdecimal() and part.isascii()])
        self.texts = sorted({*source.strings, *[match[2] for match in QUOTE.finditer(issue[:LARGEST])]})

    def strangeness(self, texts: Sequence[str]) -> list[int]:
        """Return, for each text, the number of neighbours that the file does not have."""
        shapes = _shape("\0".join(texts)).split("\0")
        return [len(list(filterfalse(self.pairs.__contains__, pairwise(shape)))) for shape in shapes]

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
        """Measure how well texts fit a place of the test, as if what stands there was unknown."""
        before, old, after = self._around(start, end)
        own = _count(f"{before}{old}{after}")
        known = self._known
        tokens = _left(known.tokens, own.tokens)
        pairs = _left(known.pairs, own.pairs)
        initials = _left(known.initials, own.initials)
        letters = _left(known.letters, own.letters)
        in_test = {*PART.findall(before), *PART.findall(after)}.union(self.own_words) - {*PART.findall(old)}
        found = []
        for text in texts:
            whole = f"{before}{text}{after}"
            parts = PART.findall(whole)
            both = list(pairwise(parts))
            seen = [pairs[pair] if pair in pairs else known.pairs.get(pair, 0) for pair in both]
            words = [tokens[part] if part in tokens else known.tokens.get(part, 0) for part in parts]
            starts = [(one[0], other[0]) for one, other in both]
            begun = [initials[pair] if pair in initials else known.initials.get(pair, 0) for pair in starts]
            threes = [whole[place : place + 3] for place in range(len(whole) - 2)]
            three = [letters[one] if one in letters else known.letters.get(one, 0) for one in threes]
            two = [letters[one[:2]] if one[:2] in letters else known.letters.get(one[:2], 0) for one in threes]
            numbers = [int(number) for number in NUMBER.findall(text)]
            scores = (
                -seen.count(0),
                sum([math.log(0.1 + number) for number in seen]),
                sum([math.log(0.1 + number) for number in words]),
                sum([math.log((0.1 + one) / (0.1 + other)) for one, other in zip(three, two, strict=True)]),
                -three.count(0),
                sum([math.log(0.1 + number) for number in begun]),
                len([part for part in PART.findall(text) if part in in_test]),
                len(text),
                max(numbers, default=0),
            )
            found.append(tuple([round(score, 6) for score in scores]))
        return found

    def _around(self, start: int, end: int) -> tuple[str, str, str]:
        """The text before a place of the test, that of the place, and the text after it."""
        before, old = self._function[: start - self._start], self._function[start - self._start : end - self._start]
        after = self._function[end - self._start :]
        return before.decode()[-AROUND:], old.decode(), after.decode()[:AROUND]


@remembered
def _counts_of(_module: ast.Module, source: Source) -> Counts:
    return _count(source.beginning(LARGEST))


_count_issue = functools.lru_cache(maxsize=16)(_count)


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
    order = rng.sample(range(len(candidates)), len(candidates))
    signs = _compare(original, [candidates[number][0] for number in order])
    goals = _draw_goals(signs, rng, count)
    chosen, left = list(range(min(count, len(order)))), list(range(count, len(order)))
    sums = [sum([signs[number][place] for number in chosen]) for place in range(len(goals))]
    cost = sum([(one - goal) ** 2 for one, goal in zip(sums, goals, strict=True)])
    for _ in range(STEPS if left else 0):
        old, new = rng.randrange(len(chosen)), rng.randrange(len(left))
        out, into = signs[chosen[old]], signs[left[new]]
        other = [one - less + more for one, less, more in zip(sums, out, into, strict=True)]
        now = sum([(one - goal) ** 2 for one, goal in zip(other, goals, strict=True)])
        if now <= cost:
            chosen[old], left[new], sums, cost = left[new], chosen[old], other, now
    return [candidates[order[number]][1] for number in chosen]


def _draw_goals(signs: Sequence[tuple[int, ...]], rng: Random, count: int) -> list[int]:
    """Draw how many more of the chosen ones are to be better than worse, for each measure.

    If the original is at one end, as many as possible are to be equal.
    """
    shared, *own = [2 * rng.randint(0, count) - count for _ in range(1 + len(signs[0] if signs else ()))]
    goals = [shared if place < FITS else goal for place, goal in enumerate(own)]
    sides = zip(*signs, strict=True)
    return [0 if max(side) == 0 or min(side) == 0 else goal for goal, side in zip(goals, sides, strict=False)]


def share_told(original: Scores, others: Sequence[Scores]) -> float:
    """Return how often the best by a measure of fit is the original, if a guess decides among equal ones."""
    sides = list(zip(*_compare(original, others), strict=True))
    return sum([1 / (1 + side.count(0)) for side in sides[:FITS] if max(side) <= 0]) / FITS


def _compare(original: Scores, others: Sequence[Scores]) -> list[tuple[int, ...]]:
    """For each score of the others: 1 if it is higher than the original's, 0 if it is equal, -1 if it is lower."""
    return [tuple([(one > own) - (one < own) for one, own in zip(two, original, strict=True)]) for two in others]
