"""Other literals: of the same type, another value, and drawn anew every time."""

import ast
import warnings
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_gym.grading.counter.literals import any_number, changeable, draw_other_literal, draw_whole_other_text

UNTIMED = settings(deadline=None)
"""Other tests run beside these: how long an example takes says nothing."""

WORDS = ("alpha", "beta", "gamma", "delta")
SEEDS = st.integers(0, 2**32)
NUMBERS = st.one_of(
    st.integers(0).map(repr),
    st.integers(0).map(hex),
    st.integers(0).map(oct),
    st.integers(0).map(bin),
    st.floats(0, allow_nan=False, allow_infinity=False).map(repr),
    st.floats(0, 1e300).map("{:.3e}".format),
    st.floats(0, allow_nan=False, allow_infinity=False).map("{!r}j".format),
    st.sampled_from(["1e999", "1e999j", "5.", ".5", "1_000", "1_0.0_1", "0XfF", "0B1", "00"]),
)
TEXTS = st.one_of(
    st.text().map(repr),
    st.binary().map(repr),
    st.text().map(ascii),
    st.text(st.characters(exclude_characters="\\\0\r", exclude_categories=["Cs"])).map(
        lambda text: "r'''" + text.replace("'", "") + "'''"
    ),
    st.tuples(st.text(), st.text()).map(lambda parts: f"{parts[0]!r} {parts[1]!r}"),
    st.tuples(st.text(), st.text()).map(lambda parts: f"{parts[0]!r}  # a 'comment'\n    {parts[1]!r}"),
    st.sampled_from(
        [
            '"""a\n  b\n"""',
            "u'a'",
            "Rb'a'",
            "B''",
            "'%d'",
            "'%(name)s'",
            "'{}'",
            "'{a!r:>5}'",
            "'''\\\n'''",
            "'\\\n'",
            "'\\N{EN DASH}'",
            "'\\19'",
            "'\f'",
        ]
    ),
)
ATOMS = st.one_of(NUMBERS, TEXTS, st.sampled_from(["None", "True", "False", "-1", "+2.5", "...", "x", "f(1)", "*y"]))


def bracketed(items: list[str]) -> st.SearchStrategy[str]:
    inner = ", ".join(items)
    pairs = ", ".join(f"{index}: {item.lstrip('*')}" for index, item in enumerate(items))
    choices = [f"[{inner}]", f"({inner}{',' if items else ''})", f"[{inner}\n  # end ]\n]", f"{{{pairs}}}"]
    return st.sampled_from([*choices, f"{{{inner}}}"] if items else choices)


CONTAINERS = st.recursive(
    st.lists(ATOMS, max_size=3).flatmap(bracketed), lambda inner: st.lists(inner, max_size=3).flatmap(bracketed)
)


def parsed(text: str) -> ast.expr:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of invalid escapes
        return ast.parse(f"({text}\n)", mode="eval").body


def value(text: str) -> object:
    return ast.literal_eval(parsed(text))


def prefix(text: str) -> str:
    return text[: min(text.index(quote) for quote in "'\"" if quote in text)]


@UNTIMED
@given(NUMBERS, SEEDS)
def test_another_number_has_the_same_type_and_notation(text: str, seed: int) -> None:
    other = draw_other_literal(parsed(text), text, WORDS, Random(seed))
    assert type(value(other)) is type(value(text))
    assert value(other) != value(text)
    based = text[:2].lower() in ("0x", "0o", "0b")
    assert other[:2].lower() == text[:2].lower() if based else other[:1] in "0123456789"


@UNTIMED
@given(TEXTS, SEEDS)
def test_another_text_has_the_same_type_and_prefix(text: str, seed: int) -> None:
    other = draw_other_literal(parsed(text), text, WORDS, Random(seed))
    assert type(value(other)) is type(value(text))
    assert value(other) != value(text)
    assert prefix(other) == prefix(text)
    assert len(value(other)) <= len(value(text)) + 9  # type: ignore[arg-type]
    assert other.count("\n") == text.count("\n")


@UNTIMED
@given(CONTAINERS, SEEDS)
def test_changed_literals_parse(text: str, seed: int) -> None:
    tree = parsed(text)
    found = changeable(tree)
    assert found is not None
    segment = ast.get_source_segment(f"({text}\n)", found)
    assert segment
    other = draw_other_literal(found, segment, WORDS, Random(seed))
    assert ast.dump(parsed(other)) != ast.dump(parsed(segment))
    whole = text.replace(segment, other) if text.count(segment) == 1 else other
    parsed(whole)


@pytest.mark.parametrize(
    "text", ["None", "True", "-1", "'two'", "b'two'", "f'{x} two'", "[]", "{}", "()", "{x}", "12.5"]
)
def test_changes_are_random(text: str) -> None:
    found = changeable(parsed(text))
    assert found is not None
    segment = ast.get_source_segment(f"({text}\n)", found)
    assert segment
    drawn = [draw_other_literal(found, segment, WORDS, Random(seed)) for seed in range(40)]
    assert drawn == [draw_other_literal(found, segment, WORDS, Random(seed)) for seed in range(40)]
    assert len(set(drawn)) == 1 if text == "True" else len(set(drawn)) > 3


@UNTIMED
@given(SEEDS, st.sampled_from(["'a b'", "'ab'", "b'a'", "rb'''a b'''", "re.escape(x)", "x"]))
def test_whole_other_text_consists_of_the_files_words(seed: int, text: str) -> None:
    other = value(draw_whole_other_text(text, WORDS, Random(seed)))
    assert isinstance(other, bytes if "b'" in text[:3] else str)
    joined = other.decode() if isinstance(other, bytes) else str(other)
    assert set(joined.replace("_", " ").split()) <= set(WORDS)
    assert joined not in text
    assert (" " in joined) is (" " in text)


def test_any_number_looks_like_a_number_of_a_test() -> None:
    drawn = {int(any_number(Random(seed))) for seed in range(200)}
    assert len(drawn) > 150
    assert min(drawn) >= 1000
    assert max(drawn) < 100_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1, x, 'a']", "'a'"),
        ("[1, [2, y]]", "2"),
        ("{'a': 1, 'b': x}", "1"),
        ("-2", "2"),
        ("x + 'a'", "'a'"),
        ("'a' + x", "'a'"),
        ("x + None", None),
        ("'a %s' % x", "'a %s'"),
        ("7 % 3", None),
        ("np.array([1])", "1"),
        ("approx(1)", "1"),
        ("set([1])", "1"),
        ("'a'.encode()", "'a'"),
        ("', '.join(['a'])", "'a'"),
        ("', '.join(x)", None),
        # what the product is given is no expectation
        ("cache.set('a')", None),
        ("item.encode('a')", None),
        ("client.get('a').strip()", None),
        ("parse('a')", None),
        ("parse('a') * 2", None),
        ("...", None),
        ("x", None),
        ("x.y[0]", None),
        ("lambda: 1", None),
        ("[a for a in 'ab']", None),
    ],
)
def test_which_literal_of_an_expression_changes_its_value(text: str, expected: str | None) -> None:
    found = changeable(parsed(text))
    assert (found and ast.get_source_segment(f"({text}\n)", found)) == expected
