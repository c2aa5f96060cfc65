"""Tests of the texts of test functions: what tells the original from the others."""

import re
from collections import Counter
from itertools import pairwise, product
from random import Random
from textwrap import dedent

import pytest

from swe_gym.grading.counter.language import FITS, choose_fitting, share_told
from swe_gym.grading.counter.source import Source
from swe_gym.grading.counter.texts import _window, draw_texts

COUNT = 8


def drawn(body: str, seed: int) -> tuple[list[str], int]:
    """The changed texts of a function, and the effective number of texts."""
    source = Source(f"def test_one():\n    {body}\n".encode())
    found = draw_texts(source.function(("test_one",)), source, Random(seed), COUNT)
    return [source.apply_edits(text.edits).decode() for text in found.texts], found.effective


@pytest.mark.parametrize("value", [0, 1, 7, 8, 12, 640, 1000, 70_300])
def test_every_number_of_a_window_has_the_same_window(value: int) -> None:
    """Else the place of a number among the others tells how likely it is the original."""
    window = {value, *_window(value, COUNT)}
    assert len(window) == COUNT
    step = min(abs(value - other) for other in window - {value})
    for other in window:
        if other % (10 * step):
            assert {other, *_window(other, COUNT)} == window


@pytest.mark.parametrize(
    "body", ["assert f() == 12", 'assert f() == "a gate"', 'assert f() == ["2024-02-29", "2024-03-31"]']
)
def test_an_equation_with_a_literal_is_not_only_negated(body: str) -> None:
    """Wrong work passes what is negated, and so finds the original."""
    for seed in range(20):
        texts, effective = drawn(body, seed)
        assert effective >= COUNT // 2
        assert any("==" in text and dedent(body) not in text for text in texts)


def test_words_are_replaced_by_words_of_the_file() -> None:
    words = "alpha beta gamma delta epsilon zeta theta kappa"
    source = Source(f'WORDS = "{words}"\n\n\ndef test_one():\n    assert f() == "one gate"\n'.encode())
    for seed in range(20):
        found = draw_texts(source.function(("test_one",)), source, Random(seed), COUNT)
        new = {edit.text for text in found.texts for edit, kind in zip(text.edits, text.kinds, strict=False)}
        assert new & set(words.split())


def test_a_text_without_letters_gets_a_word_that_does_not_count() -> None:
    for seed in range(20):
        assert drawn('assert f() == "{}"', seed)[1] == 1


def test_texts_that_hide_the_original_come_before_opposites() -> None:
    """Wrong work tells opposites: they take no place of a text that it cannot tell."""
    for seed in range(20):
        texts, effective = drawn('assert f() == "x" and g() is True', seed)
        assert effective >= COUNT // 2
        assert sum("is True" in text for text in texts) >= COUNT - 1


ISSUE = "`render docs` prints 12 lines, as `render index` does. It should print 14."
NEIGHBOURS = (
    "def test_two():\n"
    + "".join(
        f'    assert f("{verb}") == "{verb} {name} {number}"\n'
        for verb, name, number in product(("render", "check", "build"), ("docs", "index", "pages"), (11, 12, 14, 16))
        if (verb, name, number) != ("render", "docs", 12)
    )
    + '\n\ndef test_one():\n    assert f("all") == "render docs 12"\n'
)
WORDS_AND_MARKS = re.compile(r"\w+|[^\w\s]")


def count_unknown_pairs(text: str, known: str) -> int:
    pairs = pairwise(WORDS_AND_MARKS.findall(text))
    return len(set(pairs) - set(pairwise(WORDS_AND_MARKS.findall(known))))


def test_the_original_is_seldom_the_text_whose_words_are_neighbours_elsewhere() -> None:
    source = Source(NEIGHBOURS.encode())
    function = source.function(("test_one",))
    known = ISSUE + NEIGHBOURS.partition("def test_one")[0]
    won = 0.0
    for seed in range(60):
        drawn_texts = draw_texts(function, source, Random(seed), COUNT, room=3 * COUNT, issue=ISSUE)
        texts = [drawn_texts.common, *(text.edits for text in drawn_texts.texts if "near-case" not in text.kinds)]
        scores = [count_unknown_pairs(source.cut(*source.span(function), edits), known) for edits in texts]
        best = [score == min(scores) for score in scores]
        won += best[0] / sum(best)  # a guess among equal ones
    assert won <= 20


def test_the_rank_of_the_original_among_the_chosen_is_random() -> None:
    candidates = [((float(number),) * FITS + (float(-number), 0.0), number) for number in range(-30, 31) if number]
    ranks = Counter(
        sum(number > 0 for number in choose_fitting((0.0,) * (FITS + 2), candidates, Random(seed), 7))
        for seed in range(400)
    )
    assert set(ranks) == set(range(8))
    assert max(ranks.values()) <= 100


def test_where_the_original_fits_best_equal_ones_are_chosen() -> None:
    original = (1.0,) * (FITS + 2)
    candidates = [(original, "equal")] * 3 + [((0.0,) * (FITS + 2), "worse")] * 20
    for seed in range(20):
        chosen = choose_fitting(original, candidates, Random(seed), 7)
        assert chosen.count("equal") >= 2
        assert share_told(original, [(0.0,) * (FITS + 2)]) == 1
        assert share_told(original, [original]) == 0.5
        assert share_told(original, [original, (2.0,) * (FITS + 2)]) == 0
