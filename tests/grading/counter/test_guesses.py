"""Tests of the texts of test functions: what tells the original from the others."""

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, product
from random import Random
from textwrap import dedent
from typing import cast

import pytest

from swe_gym.grading.counter import language as module
from swe_gym.grading.counter.language import FITS, Language, choose_fitting, share_told
from swe_gym.grading.counter.source import Source
from swe_gym.grading.counter.texts import POOL_USES, Candidates, Drawn, _window, draw_texts

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
        assert share_told([(-1,) * (FITS + 2)]) == 1
        assert share_told([(0,) * (FITS + 2)]) == 0.5
        assert share_told([(0,) * (FITS + 2), (1,) * (FITS + 2)]) == 0


# --- how well a text fits its place -----------------------------------------------------------------------------------

PLACED = """\
NOTE = "a green cup"
{filler}
def test_one():
    assert f("éé😀") == "a green tea"
"""


def language_of(text: str, issue: str = "") -> Language:
    source = Source(text.encode())
    return Language(source.functions["test_one",], source, issue)


def place_of(language: Language, word: str) -> tuple[int, int]:
    start = language.source.beginning(10**6).encode().index(word.encode())
    return start, start + len(word.encode())


def test_a_place_outside_the_test_cannot_be_measured() -> None:
    language = language_of(PLACED)
    for word in ("cup", "NOTE"):
        with pytest.raises(ValueError, match="are not in the test"):
            language.measure(*place_of(language, word), ["cup"])


def test_a_value_of_the_file_is_measured_where_it_is_written_in_place_of_its_name() -> None:
    named = PLACED.replace('"a green tea"', "TEA") + '\n\nTEA = "a green tea"\n'
    written = PLACED.replace('"a green tea"', '("a green tea")') + "\n\nTEA = 1\n"
    language, direct = language_of(named), language_of(written)
    value = language.source.constant("TEA")
    assert value is not None
    inlined = language.inline(*place_of(language, "TEA"), value)
    texts = ["tea", "cup", "gate", "éè"]
    assert inlined.neighbours(*place_of(language, "tea")) == direct.neighbours(*place_of(direct, "tea"))
    measured = inlined.measure(*place_of(language, "tea"), texts)
    for one, other in zip(measured, direct.measure(*place_of(direct, "tea"), texts), strict=True):
        assert (one[0], *one[6:]) == (other[0], *other[6:])
    unknown = [score[0] for score in measured]
    assert unknown == [unknown[1] - 2, unknown[1], unknown[1] - 2, unknown[1] - 2], "the note has a cup"


def test_a_test_beyond_the_part_that_is_counted_takes_nothing_from_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST_COUNTED", 30)
    language = language_of(PLACED.replace("{filler}", "# filler\n" * 9).replace("green tea", "green cup"))
    _, end = place_of(language, '== "a green cup"')
    unknown = [score[0] for score in language.measure(end - 4, end - 1, ["cup", "tea"])]
    assert unknown[0] == unknown[1] + 2, "the counts know the neighbours of one"


def test_what_a_test_holds_more_often_than_the_counts_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'def test_one():\n    assert f() == "tea tea tea"\n'
    place = text.index("tea")
    monkeypatch.setattr(module, "LARGEST_COUNTED", place + 3)  # ends after the first one
    (score,) = language_of(text).measure(place, place + 3, ["tea"])
    assert score[0] <= -3, "tea tea, tea tea, and the quotes"


def test_counts_are_whole_after_an_error() -> None:
    language = language_of(PLACED)
    place = place_of(language, "tea")
    before = language.measure(*place, ["cup"])
    with pytest.raises(TypeError):
        language.measure(*place, cast("list[str]", [1]))
    assert language.measure(*place, ["cup"]) == before


@pytest.mark.parametrize("shares", [False, True])
def test_a_file_remembers_one_issue_at_most(shares: bool) -> None:
    source = Source(PLACED.encode())
    function = source.functions["test_one",]
    draw_texts(function, source, Random(1), COUNT, issue="", shares=shares)
    known = len(source.findings)
    for number in range(20):
        draw_texts(function, source, Random(1), COUNT, issue=f"the {number}. issue", shares=shares)
    assert len(source.findings) == known


def test_plays_share_candidates_for_a_while_and_choose_their_own_texts() -> None:
    source = Source(NEIGHBOURS.encode())
    function = source.functions["test_one",]

    def draw(seed: int, issue: str = ISSUE) -> tuple[Drawn, object]:
        drawn = draw_texts(function, source, Random(seed), COUNT, issue=issue, shares=True)
        return drawn, next(one for one in source.findings.values() if isinstance(one, Candidates)).rows

    drawn, rows = zip(*[draw(seed) for seed in range(POOL_USES + 1)], strict=True)
    assert all(one is rows[0] for one in rows[:-1])
    assert rows[-1] is not rows[0]
    assert len({tuple(sorted(one.texts)) for one in drawn}) > POOL_USES // 2
    assert draw(1, "another issue")[1] is not rows[-1]


def test_texts_that_threads_draw_of_one_file_are_those_of_each_alone() -> None:
    def draw(source: Source, seed: int) -> object:
        return draw_texts(source.functions["test_one",], source, Random(seed), COUNT, issue=ISSUE)

    alone = [draw(Source(NEIGHBOURS.encode()), seed) for seed in range(12)]
    shared = Source(NEIGHBOURS.encode())
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda seed: draw(shared, seed), range(12))) == alone
