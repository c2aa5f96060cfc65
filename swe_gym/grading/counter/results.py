"""Draws expected values that differ from the result of wrong work as much as the right one does.

Wrong work often returns nearly the right value. An expectation that was changed where both agree is farther from that
result than the original, which gives it away. So what differs between both values is changed, and nothing else: it gets
another place, or other words and numbers.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from functools import partial
from operator import itemgetter
from random import Random
from typing import Any, NamedTuple, TypeAlias

from .language import TOKEN, Language, Scores, choose_fitting, token_classes

Value: TypeAlias = Any
"""A number, a text, or a list, tuple or dictionary of such."""

Returned: TypeAlias = Mapping[int, tuple[str, str]]
"""Line of an assertion -> the `repr` of the value that it expects, and of the one that wrong work returns."""

BRACKETS = frozenset("()[]{}")
BRACKETED = re.compile(r"\([^][(){}]*\)|\[[^][(){}]*\]|\{[^][(){}]*\}")
STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
"""A string in the `repr` of a value."""

Measure: TypeAlias = Callable[[Sequence[Value]], list[Scores]]

MOST_TOKENS = 1_600
LONG = 1_000
LEAST_SHARED = 0.25
"""Similarity of two values below which they share too little for a change to be seen against it."""

MOST_VARIED = 3
"""Differences between both values that vary. The others stay in all texts."""

VARIANTS = 8
"""Variants of one difference."""

OMITTED = 4
"""Weight of a difference that a value does not have, among its variants."""

PARTS = 4
"""Other values of one element of a list or a dictionary."""

MOST = 10**15
"""Largest number that is changed."""

TRIES = 24
"""Draws for each value that is wanted: many are equal, or do not nest."""

KNOWN_SHARE = 0.6
"""Share of changed numbers that stand elsewhere in the test."""

PLAUSIBLE = 6
"""Candidates kept per wanted value: those that look least artificial, and are as near to the wrong value."""


class ResultDifference(NamedTuple):
    """A part of a wrong value, from `start` up to `end`, and the tokens of the right value in its place."""

    start: int
    end: int
    tokens: tuple[Value, ...]


def other_results(
    right: Value,
    wrong: Value,
    language: Language,
    rng: Random,
    count: int,
) -> list[Value]:
    """Draw values that are neither the right nor the wrong one, and differ from the wrong one as the right one does.

    About as many of them are nearer to the wrong value as chance decides, so the place of the right one tells nothing.
    """
    original, found = find_results(right, wrong, language, rng, count)
    return choose_fitting(original, found, rng, count)


def find_results(
    right: Value,
    wrong: Value,
    language: Language,
    rng: Random,
    count: int,
    measure: Measure | None = None,
) -> tuple[Scores, list[tuple[Scores, Value]]]:
    """Find values to choose from, several for each that is wanted: see `other_results`.

    Args:
        right: The value that a test expects.
        wrong: The value that wrong work returns.
        language: Words of the test file.
        rng: Random number generator.
        count: Number of values wanted. There may be fewer, or none if both values have little in common.
        measure: Measures how well values fit where the right one stands.

    Returns:
        The measures of the right value, the last one its nearness to the wrong one, and each other value with its own.
    """
    if not are_alike(right, wrong):
        return (), []
    if isinstance(right, int | float):
        found = _other_numbers(right, wrong, count)
        nearness = [-abs(value - wrong) for value in found]
        return _measured(found, nearness, right, -abs(right - wrong), rng, count, measure)
    drawn = {repr(value): value for value in _draw(right, wrong, language, rng, TRIES * count)}
    texts = [text for text, value in drawn.items() if value not in (right, wrong)]
    strangeness = language.strangeness(texts)
    ordered = [texts[place] for place in sorted(range(len(texts)), key=strangeness.__getitem__)]
    plausible = (_find_nesting(ordered) if _find_nesting([repr(right)]) else ordered)[: PLAUSIBLE * count]
    *nearness, mine = _similarities([*plausible, repr(right)], repr(wrong))
    return _measured([drawn[text] for text in plausible], nearness, right, mine, rng, count, measure)


def are_alike(right: Value, wrong: Value) -> bool:
    """Whether a right and a wrong value have so much in common that a changed expectation may be seen against it."""
    if type(right) is not type(wrong) or isinstance(right, bool) or right == wrong:
        return False
    if isinstance(right, str | bytes):
        return _similarities([_letters(right)], _letters(wrong))[0] >= LEAST_SHARED
    return isinstance(right, int | float) or bool(wrong)


def _measured(
    found: Sequence[Value],
    nearness: Sequence[float],
    right: Value,
    mine: float,
    rng: Random,
    count: int,
    measure: Measure | None,
) -> tuple[Scores, list[tuple[Scores, Value]]]:
    """Measure the values that are about as near to the wrong value as the right one, nearer ones and others.

    Args:
        found: The values.
        nearness: Nearness of each to the wrong value.
        right: The right value.
        mine: Nearness of the right value.
        rng: Random number generator.
        count: Number of values wanted.
        measure: Measures how well values fit where the right one stands.
    """
    distances = [abs(score - mine) for score in nearness]
    places = sorted(rng.sample(range(len(found)), len(found)), key=distances.__getitem__)
    nearer = [place for place in places if nearness[place] > mine]
    others = [place for place in places if nearness[place] <= mine]
    most = PLAUSIBLE * count // 2
    near = [*nearer[:most], *others[:most]]
    values = [right, *[found[place] for place in near]]
    fits = measure(values) if measure else [()] * len(values)
    nearnesses = [mine, *[nearness[place] for place in near]]
    original, *scores = [(*fit, one) for fit, one in zip(fits, nearnesses, strict=True)]
    return original, list(zip(scores, values[1:], strict=True))


def _similarities(texts: Sequence[str], other: str) -> list[float]:
    """Numbers from 0 to 1: by letters, or by tokens of long texts, which take too long otherwise."""
    split: Callable[[str], Sequence[str]] = TOKEN.findall if len(other) + max(map(len, texts)) >= LONG else str
    matcher = SequenceMatcher(None, "", split(other), False)
    found = []
    for text in texts:
        matcher.set_seq1(split(text))
        found.append(matcher.ratio())
    return found


def _letters(text: str | bytes) -> str:
    return text.decode("latin-1") if isinstance(text, bytes) else text


def _other_numbers(right: float, wrong: float, count: int) -> list[float]:
    """Numbers as round as the right one, around the wrong one."""
    decimals = len(repr(right).partition(".")[2]) if isinstance(right, float) else 0
    if "e" in repr(right) or "e" in repr(wrong) or max(abs(right), abs(wrong)) > MOST:
        return []
    step = 10.0**-decimals if decimals else 1
    while right and not decimals and right % (10 * step) == 0:
        step *= 10
    reach = int(2 * abs(right - wrong) / step) + count
    places = range(-reach, reach + 1) if reach <= 500 else Random(reach).sample(range(-reach, reach + 1), 500)
    found = []
    for place in places:
        value = round(right + step * place, decimals) if decimals else type(right)(right + step * place)
        if value not in (right, wrong) and (value >= 0 or right < 0 or wrong < 0):
            found.append(value)
    return found


# --- texts and containers ---------------------------------------------------------------------------------------------


def _draw(right: Value, wrong: Value, language: Language, rng: Random, count: int) -> list[Value]:
    """Draw values; none if the two share too little, or are too large."""
    if isinstance(right, bytes):
        return [text.encode("latin-1") for text in _draw(_letters(right), _letters(wrong), language, rng, count)]
    of, join = _tokens(right)
    wrong_tokens = _tokens(wrong)[0]
    if of is None or wrong_tokens is None or len(of) + len(wrong_tokens) > MOST_TOKENS:
        return []
    matcher = SequenceMatcher(None, [repr(token) for token in wrong_tokens], [repr(token) for token in of], False)
    differences = [
        ResultDifference(first, last, tuple(of[begin:stop]))
        for tag, *places in matcher.get_opcodes()
        for first, last, begin, stop in (_split(*places) if tag != "equal" else ())
    ]
    varied = set(rng.sample(range(len(differences)), min(len(differences), MOST_VARIED)))
    variants = [
        [difference, *_variants(difference, wrong_tokens, language, rng)] if number in varied else [difference]
        for number, difference in enumerate(differences)
    ]
    if len(differences) > 1:  # a value that is wrong in one place
        for number in varied:
            start, end, _ = differences[number]
            variants[number] += [ResultDifference(start, end, tuple(wrong_tokens[start:end]))] * OMITTED
    return list(map(join, _combine(variants, wrong_tokens, rng, count)))


def _split(start: int, end: int, begin: int, stop: int) -> list[tuple[int, int, int, int]]:
    """Split a difference of as many tokens on both sides into differences of one token."""
    if end - start != stop - begin:
        return [(start, end, begin, stop)]
    return [(start + n, start + n + 1, begin + n, begin + n + 1) for n in range(end - start)]


def _tokens(value: Value) -> tuple[list[Value] | None, Callable[[list[Value]], Value]]:
    """Split a value, and return what joins it."""
    match value:
        case str():
            return TOKEN.findall(value), "".join
        case list() | tuple():
            return list(value), type(value)
        case dict():
            return list(value.items()), dict
    return None, repr


def _combine(
    variants: Sequence[Sequence[ResultDifference]], wrong: Sequence[Value], rng: Random, count: int
) -> list[list[Value]]:
    """Draw one variant of each difference, and apply them to the wrong value's tokens, unless two of them collide."""
    drawn = []
    for _ in range(count):
        parts: list[Value] = []
        done = 0
        for start, end, tokens in sorted(map(rng.choice, variants), key=itemgetter(0, 1)):
            if start < done:
                break
            parts += [*wrong[done:start], *tokens]
            done = end
        else:
            drawn.append([*parts, *wrong[done:]])
    return drawn


def _variants(
    difference: ResultDifference, wrong: Sequence[Value], language: Language, rng: Random
) -> list[ResultDifference]:
    """Draw other differences of the same shape: at another place, or with other tokens."""
    start, end, tokens = difference
    found = _elsewhere(difference, wrong, rng) if not tokens or start == end else []
    places = rng.sample(range(len(tokens)), min(len(tokens), MOST_VARIED))
    near = wrong[start:end] if end - start == len(tokens) else [None] * len(tokens)
    pools = [_others(tokens[place], near[place], language, rng) or [tokens[place]] for place in places]
    pools = [
        [*_beside(difference, place, wrong, language, rng), *rng.sample(pool, len(pool))]
        for place, pool in zip(places, pools, strict=True)
    ]
    for number in range(4 * VARIANTS if tokens else 0):
        new = list(tokens)
        for place, pool in zip(places, pools, strict=True):
            new[place] = pool[number % len(pool)]
        if tuple(new) != tokens:
            found.append(ResultDifference(start, end, tuple(new)))
    if end - start == len(tokens) == 1 and _same_letters(wrong[start], tokens[0]):
        found += [
            ResultDifference(place, place + 1, (like(token),))
            for place, token in enumerate(wrong)
            for like in (str.title, str.upper, str.lower)
            if isinstance(token, str) and like(token) != token
        ]
    return found


def _beside(
    difference: ResultDifference, place: int, wrong: Sequence[Value], language: Language, rng: Random
) -> list[Value]:
    """Draw tokens of the same class that stand elsewhere beside the neighbours of one."""
    start, end, tokens = difference
    if not isinstance(tokens[place], str) or not tokens[place].isalnum():
        return []
    before = [one for one in (*wrong[:start], *tokens[:place]) if isinstance(one, str) and not one.isspace()]
    after = [one for one in (*tokens[place + 1 :], *wrong[end:]) if isinstance(one, str) and not one.isspace()]
    found = language.between(before[-1] if before else "", after[0] if after else "")
    (kind,) = token_classes([tokens[place]])
    fitting = [one for one in found if one != tokens[place] and token_classes([one]) == [kind]]
    return rng.sample(fitting, min(len(fitting), 2 * VARIANTS))


def _elsewhere(difference: ResultDifference, wrong: Sequence[Value], rng: Random) -> list[ResultDifference]:
    """Draw the same insertion or omission at other places; omissions also of another length."""
    start, end, tokens = difference
    size = end - start
    shapes = token_classes(wrong)
    places = [place for place in range(len(wrong) - size + 1) if place != start]
    fits = [place for place in places if shapes[place : place + size] == shapes[start:end]] or places
    if not size:
        alike = [place for place in places if shapes[place : place + 1] == shapes[start : start + 1]]
        fits = alike + rng.sample(places, min(len(places), VARIANTS))
    found = [ResultDifference(place, place + size, tokens) for place in rng.sample(fits, min(len(fits), 2 * VARIANTS))]
    for _ in range(4 * VARIANTS if size and not tokens else 0):
        first = rng.randrange(len(wrong))
        found.append(ResultDifference(first, min(len(wrong), first + rng.randint(max(1, size // 2), 2 * size)), ()))
    return found


def _same_letters(one: Value, other: Value) -> bool:
    return isinstance(one, str) and isinstance(other, str) and one.isalpha() and one.lower() == other.lower()


def _others(token: Value, near: Value, language: Language, rng: Random) -> list[Value]:
    """Draw other tokens of the same kind; none if there are none."""
    if not isinstance(token, str):
        return _other_parts(token, near, language, rng)
    if token.isdigit() and len(token) > 2 and token[0] == "0":
        return ["".join(rng.sample(token, len(token))) for _ in range(VARIANTS)]
    if token.isdigit() and token.isascii():
        return _other_digits(token, near, language, rng)
    if token.isalpha():
        like = str.title if token.istitle() else str.upper if token.isupper() else str
        words = [like(word) for word in language.words if abs(len(word) - len(token)) < 3] or [*language.words]
        known = [word for word in language.known_words if like(word) == word and abs(len(word) - len(token)) < 3]
        return [*words, *known] if len(token) > 1 else [word for word in known if len(word) == 1] or words
    if token.isspace() and "\n" not in token:
        return [token[0] * max(1, len(token) + more) for more in (-1, 1, 2)]
    if TOKEN.fullmatch(token):
        return []
    found = other_results(token, near, language, rng, PARTS) if isinstance(near, str) else []
    return found or _other_texts(token, language, rng)


def _other_digits(token: str, near: Value, language: Language, rng: Random) -> list[Value]:
    """Draw known numbers that have about as many digits, and numbers around the one that wrong work has there."""
    numbers = {*language.numbers, *language.known_numbers}
    known = sorted(number for number in numbers if abs(len(number) - len(token)) < 2 and number != token)
    centre = int(near) if isinstance(near, str) and near.isdecimal() else int(token)  # not ²
    reach = max(6, 2 * abs(int(token) - centre))
    width = len(token) if token[0] == "0" or len(token) == 2 else 1
    found = []
    for _ in range(4 * VARIANTS):
        seen = known and rng.random() < KNOWN_SHARE
        found.append(rng.choice(known) if seen else str(max(0, centre + rng.randint(-reach, reach))).zfill(width))
    return found


def _other_texts(text: str, language: Language, rng: Random) -> list[Value]:
    """Draw texts with another word or number; none if it has none."""
    tokens = TOKEN.findall(text)
    places = [place for place, token in enumerate(tokens) if token.isalnum()]
    found = []
    for place in rng.sample(places, min(len(places), PARTS)):
        others = _others(tokens[place], None, language, rng)
        found += ["".join([*tokens[:place], other, *tokens[place + 1 :]]) for other in others]
    return found


def _other_parts(part: Value, near: Value, language: Language, rng: Random) -> list[Value]:
    """Draw other elements of a list or items of a dictionary."""
    if isinstance(part, bool):
        return [True, False]
    if isinstance(part, tuple) and len(part) == 2 and isinstance(near, tuple) and len(near) == 2 and part[0] == near[0]:
        return [(part[0], value) for value in other_results(part[1], near[1], language, rng, PARTS)]
    if type(part) is type(near):
        return other_results(part, near, language, rng, PARTS)
    if isinstance(part, int | float):
        return [part + more for more in (-2, -1, 1, 2, 3)]
    return []


def _find_nesting(texts: Sequence[str]) -> list[str]:
    """The texts whose brackets nest, and whose quotes come in pairs."""
    found = []
    for text in texts:
        left = text
        while BRACKETED.search(left):
            left = BRACKETED.sub("", left)
        if BRACKETS.isdisjoint(left) and text.count("'") % 2 == text.count('"') % 2 == 0:
            found.append(text)
    return found


# --- source text ------------------------------------------------------------------------------------------------------


def write_values(values: Iterable[Value], quote: str) -> list[str]:
    """Return the source text of each value, with quotes of one kind."""
    found = []
    for value in values:
        text = repr(value)
        if quote != "'" and "'" in text:  # without the other quote, no text holds one
            text = STRING.sub(partial(_quoted, quote), text) if '"' in text else text.replace("'", quote)
        found.append(text)
    return found


def written(value: Value, quote: str) -> str:
    """Return the source text of a value, with quotes of one kind."""
    (text,) = write_values([value], quote)
    return text


def _quoted(quote: str, string: re.Match[str]) -> str:
    """Change the quotes of a string, unless it holds some."""
    return string[0] if '"' in string[0] else f"{quote}{string[0][1:-1]}{quote}"
