"""Texts of test functions: right work fails every changed one, and only a guess finds the original among them."""

import ast
import builtins
import itertools
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_changes import ALTERNATIVES, ASSERTIONS, run

from swe_gym.grading.counter.finding import Finder
from swe_gym.grading.counter.plan import TWINS, CounterGroup, CounterOptions, CounterText, plan_counters
from swe_gym.grading.counter.source import Source
from swe_gym.grading.counter.texts import FORGIVEN, Drawn, draw_texts, neutral_edit
from swe_gym.sandboxes.fake import FakeSandbox
from swe_gym.types import Oracle

COUNT = 8


def source_of(body: str) -> Source:
    kind = "async def" if "await " in body or "async " in body else "def"
    lines = body.replace("\n", "\n    ")
    return Source(f"{kind} test(self):\n    {lines}\n".encode())


def draw(source: Source, seed: int, count: int = COUNT, unfit: tuple[str, ...] = ()) -> Drawn:
    return draw_texts(source.function(("test",)), source, Random(seed), count, unfit)


def kinds_of(body: str, seeds: int = 60) -> Counter[str]:
    """Kind -> number of draws in which a text has it."""
    source = source_of(body)
    return Counter(
        kind for seed in range(seeds) for kind in {kind for text in draw(source, seed).texts for kind in text.kinds}
    )


def changed(body: str, seeds: int, kind: str = "") -> Iterator[str]:
    """The texts of some draws, all or those with a kind of change."""
    source = source_of(body)
    for seed in range(seeds):
        for text in draw(source, seed).texts:
            if kind and kind not in text.kinds:
                continue
            yield source.apply_edits(text.edits).decode()


def group_of(text: str, seed: int) -> CounterGroup:
    sandbox = FakeSandbox(files={"t.py": text})
    sandbox.start()
    finder = Finder(Oracle(test_files={"t.py": text}), sandbox)
    (group,) = plan_counters(finder, ["t.py::test"], [], Random(seed), CounterOptions()).groups
    return group


# --- right work -----------------------------------------------------------------------------------------------------


def assert_all_fail(body: str, seeds: int, **product: object) -> None:
    source = source_of(body)
    for seed in range(seeds):
        for text in draw(source, seed).texts:
            data = source.apply_edits(text.edits)
            try:
                run(data, product)
            except (KeyboardInterrupt, SyntaxError) as error:
                raise AssertionError(data.decode()) from error
            except BaseException:  # noqa: BLE001  every end but a pass is a failure
                continue
            raise AssertionError(f"passed: {data.decode()}")


@pytest.mark.sample(every=4)
@pytest.mark.parametrize("body", [body for body, _ in ASSERTIONS])
def test_right_work_fails_every_text(body: str) -> None:
    assert_all_fail(body, 6)


@pytest.mark.sample(every=3)
@pytest.mark.parametrize(("body", "products"), ALTERNATIVES, ids=[body for body, _ in ALTERNATIVES])
def test_other_right_work_fails_every_text_too(body: str, products: list[object]) -> None:
    for product in products:
        assert_all_fail(body, 12, f=lambda product=product: product)


CHOICES = [
    ("assert f() == [1, 2] or f() == [2, 1]", [[1, 2], [2, 1]]),
    ("assert f() in ([1, 2], [2, 1])", [[1, 2], [2, 1]]),
    ("assert f() in ('a b', 'b a')", ["a b", "b a"]),
    ("assert f() in ('yes', 'Yes', 'YES')", ["yes", "Yes", "YES"]),
    ("assert f() in [10, 11, 12]", [10, 11, 12]),
    ("assert f().lower() == 'ab cd'", ["AB cd", "ab CD"]),
    ("assert set(f()) == {1, 2}", [[1, 2], [2, 1, 1]]),
    ("assert set(f()) == set([1, 2])", [[1, 2], [2, 1, 1]]),
    ("assert sorted(f()) == [1, 2]", [[1, 2], [2, 1]]),
    ("assert sorted(f()) == sorted([2, 1])", [[1, 2], [2, 1]]),
    ("assert frozenset(f()) == frozenset(('a b', 'c'))", [["a b", "c"], ["c", "a b"]]),
    ("self.assertCountEqual(f(), [1, 2])", [[1, 2], [2, 1]]),
    ("self.assertSetEqual(set(f()), set([1, 2]))", [[1, 2], [2, 1]]),
    ("assert f().split() == ['a', 'b']", ["a b", " a  b "]),
    ("assert f().strip() == 'a b'", ["a b", " a b\n"]),
    ("assert ' '.join(f().split()) == 'a b'", ["a b", "a \n b"]),
    ("assert round(f(), 2) == 0.33", [0.33, 1 / 3, 0.3349]),
    ("assert int(f()) == 3", [3, 3.9]),
    ("assert f() // 10 == 3", [30, 39]),
    ("assert round(f(), -2) == 1200", [1200, 1249, 1151]),
    ("assert f() == pytest.approx(1000, rel=1e-2)", [1000, 1009, 991]),
    ("assert f() == pytest.approx(1000.5)", [1000.5, 1000.5004]),
    ("assert f() == pytest.approx([1000, 2000], rel=1e-2)", [[1000, 2000], [1009, 1981]]),
    ("self.assertAlmostEqual(f(), 12.5, places=0)", [12.5, 12.7]),
    ("self.assertAlmostEqual(f(), 12.125)", [12.125, 12.12500001]),
    ("assert dict(f()) == {'a b': 1, 'c': 2}", [{"a b": 1, "c": 2}, {"c": 2, "a b": 1}]),
    ("assert len(f()) == 2 and 'a' in f()", [["a", "b"], ["c", "a"]]),
    ("assert f() == [1, 2]\nassert f()[0] == 1", [[1, 2]]),
    ("for want in (1, 2):\n    assert f(want) == want", [None]),
    ("for given, want in [(1, 1), (2, 2)]:\n    assert f(given) == want", [None]),
]


@pytest.mark.sample(every=3)
@pytest.mark.parametrize(("body", "products"), CHOICES, ids=[body for body, _ in CHOICES])
def test_a_choice_that_the_test_leaves_is_not_held_against_work(body: str, products: list[object]) -> None:
    for product in products:
        if product is None:
            assert_all_fail(body, 12)
        else:
            assert_all_fail(body, 40, f=lambda product=product: product)


# --- texts ----------------------------------------------------------------------------------------------------------

WORDS = st.text("abcXYZ 019_-%{}'\"\\\né", max_size=14)
NUMBERS = st.one_of(
    st.integers(-20, 10**6), st.floats(0, 10**4, allow_nan=False).map(lambda number: round(number, 3)), st.booleans()
)
SCALARS = st.one_of(WORDS, NUMBERS, st.none(), st.binary(max_size=5))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
    ),
    max_leaves=6,
)
FORMS = st.sampled_from(
    [
        "assert f() == {}",
        "assert {} == f()",
        "assert f()['é'] == {}, 'wörds'",
        "self.assertEqual(f(), {})",
        "self.assertEqual({}, f(), 'msg')",
        "want = {}\nassert f() == want",
        "assert f() in ({}, 1)",
        "self.assertIn({}, f())",
        "with pytest.raises(ValueError, match={}):\n    f()",
        "with self.subTest(1):\n    assert f(1) == {}",
        "assert isinstance(f({}), int)",
        "if f():\n    assert g() == {}; h()",
        "assert f() == [\n    {},\n    2,  # two\n]",
        "x = f(); \\\nassert x == {}",
    ]
)
BODIES = st.lists(st.tuples(FORMS, VALUES), min_size=1, max_size=4).map(
    lambda rows: "\n".join(form.replace("{}", repr(value)) for form, value in rows)
)


@settings(max_examples=250, deadline=None)
@given(body=BODIES, seed=st.integers(0, 10**6), count=st.integers(2, 8))
def test_texts_compile_and_differ_and_their_edits_lie_apart(body: str, seed: int, count: int) -> None:
    source = source_of(body)
    function = source.function(("test",))
    start, end = source.span(function)
    drawn = draw(source, seed, count)
    assert len(drawn.texts) <= count
    assert 1 <= drawn.effective <= count
    found = [source.apply_edits(()).decode()]
    for text in drawn.texts:
        assert text.kinds
        edits = sorted(text.edits)
        assert all(start <= edit.start <= edit.end <= end + 1 for edit in edits)
        assert all(one.end <= other.start for one, other in itertools.pairwise(edits))
        found.append(source.apply_edits(edits).decode())
        compile(found[-1], "t.py", "exec")
    dumps = [ast.dump(ast.parse(text)) for text in found]
    assert len(set(dumps)) == len(dumps)


@settings(max_examples=100, deadline=None)
@given(body=BODIES, seed=st.integers(0, 10**6))
def test_the_texts_of_a_group_are_whole(body: str, seed: int) -> None:
    source = source_of(body)
    group = group_of(source.apply_edits(()).decode(), seed)
    texts = [source.apply_edits(row.played[0]).decode() for row in group.rows]
    assert len(set(texts)) == len(texts)
    assert len(texts) <= TWINS
    assert list(map(ast.parse, texts))
    assert group.effective <= min(COUNT, len(texts))
    compile(source.apply_edits(group.cover.edits[0]), "t.py", "exec")
    plain = ast.parse(source.apply_edits(group.original.edits[0])).body[0].body  # type: ignore[attr-defined]
    expected = source.tree.body[0].body  # type: ignore[attr-defined]
    assert list(map(ast.dump, plain[-len(expected) :])) == list(map(ast.dump, expected))


@pytest.mark.parametrize("body", ["assert f(1) == 12\nassert f(2) == 13", "assert f() == 'Alpha beta 12'"])
def test_the_cover_is_none_of_the_texts(body: str) -> None:
    source = source_of(body)
    for seed in range(50):
        group = group_of(source.apply_edits(()).decode(), seed)
        assert group.effective == COUNT
        assert group.cover not in group.rows


ASSERTED = {1: 12, 2: "green tea", 3: [30, 41, 52]}
EACH = "\n".join(f"assert f({number}) == {value!r}" for number, value in ASSERTED.items())


def ends(group: CounterGroup, source: Source, product: dict[int, Any]) -> list[bool]:
    """Whether each text passes, given the results of a product."""
    found = []
    for row in group.rows:
        names: dict[str, Any] = {"f": product.get}
        exec(source.apply_edits(row.played[0]), names)
        try:
            names["test"](None)
        except AssertionError:
            found.append(False)
        else:
            found.append(True)
    return found


def test_work_that_is_right_but_for_one_assertion_guesses_among_all_texts_of_it() -> None:
    """It knows what the other assertions expect. So in the texts of one, these fail nothing, and show random values."""
    source = source_of(EACH)
    shown: Counter[bool] = Counter()
    for seed in range(16):
        group = group_of(source.apply_edits(()).decode(), seed)
        assert len(group.passing) == len(ASSERTED)
        assert ends(group, source, ASSERTED) == [not row.kinds for row in group.rows]
        for number, value in ASSERTED.items():
            nearly = ends(group, source, {**ASSERTED, number: None})
            differ = [one != other for one, other in zip(nearly, ends(group, source, ASSERTED), strict=True)]
            assert sum(differ) == 1, "the original of the assertion that it fails"
            assert all(row.edits[0] for row in (group.original, group.cover)), "neither is the published text"
            own = [row for row in group.rows if len(row.softening[0]) == 2 and not hides(row, source, number)]
            assert len(own) >= TWINS // len(ASSERTED)
            line = f"assert f({number}) == {value!r}"
            texts = [source.apply_edits(row.edits[0]).decode() for row in group.rows if row not in own]
            shown.update([line in text for text in texts])
    assert shown[True] < 2 * shown.total() / (TWINS // len(ASSERTED))


def test_a_softened_assertion_shows_one_value_in_all_texts_of_a_play() -> None:
    """More of them would tell which values it has before it is decided."""
    source = source_of(EACH)
    group = group_of(source.apply_edits(()).decode(), 1)
    for number in ASSERTED:
        texts = [source.apply_edits(row.edits[0]).decode() for row in group.rows if hides(row, source, number)]
        assert len({text.partition(f"f({number}) == ")[2].partition("\n")[0] for text in texts}) == 1


def test_a_run_without_softening_changes_one_assertion() -> None:
    source = source_of(EACH)
    for seed in range(12):
        group = group_of(source.apply_edits(()).decode(), seed)
        row = group.changed(Random(seed))
        text = source.apply_edits(row.edits[0]).decode()
        assert sum(f"assert {line}" not in text for line in EACH.split("assert ")[1:]) == 1
        assert row.played == row.edits, "nothing is softened"


@pytest.mark.parametrize(("count", "effective"), [(2, 8), (4, 6), (12, 2)])
def test_n_is_that_of_the_assertion_with_the_fewest_texts(count: int, effective: int) -> None:
    body = "\n".join(f"assert f({number}) == {number + 31}" for number in range(count))
    assert group_of(source_of(body).apply_edits(()).decode(), 1).effective == effective


@pytest.mark.parametrize(
    ("values", "effective"),
    [([12, 13], 4), (["{a} x 12", "{b} y 13"], 2), ([12, 13, 14], 2), ([12, 13, 14, 15, 16], 1)],
    ids=str,
)
def test_n_of_assertions_that_change_together_is_that_of_work_that_is_right_but_for_one(
    values: list[object], effective: int
) -> None:
    """It knows the other assertions, so it guesses among the texts that have these as they were."""
    lines = [f"assert f({number}) == {value!r} and g" for number, value in enumerate(values)]
    text = source_of("\n".join(lines)).apply_edits(()).decode()
    for seed in range(12):
        group = group_of(text, seed)
        texts = [Source(text.encode()).apply_edits(row.edits[0]).decode() for row in group.rows]
        others = [[line for line in lines if line != left] for left in lines]
        counts = [sum(all(line in one for line in rest) for one in texts) for rest in others]
        assert effective <= group.effective <= min(counts), (seed, counts)
        assert len(texts) == len(set(texts)) <= TWINS
        cover = Source(text.encode()).apply_edits(group.cover.edits[0]).decode()
        assert cover not in texts


def hides(row: CounterText, source: Source, number: int) -> bool:
    """Whether an assertion fails nothing in a text."""
    text = source.apply_edits(row.played[0]).decode()
    return "suppress" in text.partition(f" f({number})")[0].rpartition("\n")[2]


@pytest.mark.parametrize(
    "body",
    [
        "assert f(1) == 12; assert f(2) == 13",
        "with pytest.raises(ValueError, match='green tea') as caught:\n    f(1)\nassert caught.value == 12",
        "with self.assertNumQueries(12):\n    assert f(2) == 13",
        "with (pytest.raises(ValueError, match='green tea')):\n    f(1)\nassert f(2) == 13",
    ],
)
def test_an_assertion_that_cannot_be_softened_alone_is_proven_with_the_others(body: str) -> None:
    source = source_of(body)
    for seed in range(10):
        group = group_of(source.apply_edits(()).decode(), seed)
        assert not any(edits for row in group.rows for edits in row.softening)
        assert len(group.passing) == 1


LATER = "\nassert g(2) == 13\nassert g(3) == 14"
HELPERS = """
def first(self, given, want):
    assert given == want
    assert given.load()

def each(given, want):
    for one in given:
        assert one == want

def last(given, want):
    given = list(given)
    assert given == want
"""


@pytest.mark.parametrize(
    ("body", "softened"),
    [
        ("assert f() == 12 and f(2)", False),
        ("assert f() == 12 if g() else f(2)", False),
        ("assert all(f(one) == 12 for one in (1, 2))", False),
        ("assert 3 == f(12) == g(13)", False),
        ("assert f() == 12, f(3)", False),
        ("assert f() == 12, f'{g} is not {str(f)}: {repr(f)}'", True),
        ("self.first(f(), 12)", False),
        ("each(f(), 12)", False),
        ("last(f(), 12)", True),
        ("with raises(ValueError, match='green tea') as caught:\n    f()", True),
        ("with raises(ValueError, match='green tea') as caught:\n    f()\nprint(caught)", False),
        ("with raises(ValueError, match='green tea') as self.caught:\n    f()", False),
        ("x = f(); \\\nassert x == 12", False),
    ],
)
def test_an_assertion_on_whose_end_others_may_depend_is_not_softened(body: str, softened: bool) -> None:
    text = source_of(body + LATER).apply_edits(()).decode()
    group, source = group_of(text + HELPERS, 1), Source((text + HELPERS).encode())
    start, _ = source.span(source.function(("test",)).body[-3])
    assert any(edit.start == start for row in group.rows for edit in row.softening[0]) is softened


def test_a_statement_that_wrong_work_passes_is_changed_where_the_others_fail_nothing() -> None:
    source = source_of("assert g(2) == 'red cup 2'\nassert f('green tea') == 'GREEN TEA!'")
    function = source.function(("test",))
    _, end = source.span(function.body[0])
    for seed in range(10):
        drawn = draw_texts(function, source, Random(seed), 8, passing=[function.body[0].lineno], room=24, alone=True)
        told = [text for text in drawn.texts if any(edit.start < end for edit in text.edits)]
        assert told
        assert all(len(text.softening) == 1 for text in told)


def test_nothing_is_softened_by_an_import_in_files_that_replace_imports() -> None:
    group = group_of("REPLACED = 'builtins.__import__'\n" + source_of(LATER[1:]).apply_edits(()).decode(), 1)
    assert not any(edits for row in group.rows for edits in row.softening)


def test_near_and_far_changes_occur() -> None:
    text = kinds_of("assert f() == 'Alpha beta 12'", 120)
    assert {"near-word", "near-case", "near-blank"} <= set(text)
    assert {"near-number"} <= set(kinds_of("assert f() == 12"))
    assert {"literal"} <= set(kinds_of("assert f() == [f(1)]"))
    assert {"near-number", "near-order"} <= set(kinds_of("assert f() == [12, 13, 14, 15, 16, 17, 18]"))
    assert {"exception", "near-case"} <= set(kinds_of("with pytest.raises(ValueError, match='some words'):\n    f()"))


@pytest.mark.parametrize(
    ("expected", "kinds"),
    [
        ("teapot", "near-case"),
        ("green-tea", "near-case"),
        ("a big tea", "near-case near-blank"),
        ("Not Found", "near-case near-blank"),
        (["ash", "oak"], "near-case near-order"),
        (["c", "b", "a"], "near-order"),
        ([3, 1, 2], "near-order"),
        (["ash tree", "oak", "elm"], "near-case near-order near-blank"),
    ],
    ids=str,
)
def test_what_values_may_forgive_is_always_played_alone(expected: object, kinds: str) -> None:
    """A product that ignores case, for example, passes texts that differ in nothing else."""
    source = source_of(f"assert f() == {expected!r}")
    for seed in range(60):
        played = draw(source, seed).texts[: COUNT - 1]
        assert set(kinds.split()) <= {text.kinds[0] for text in played if len(text.kinds) == 1}, seed


def test_any_assertion_may_be_changed() -> None:
    body = "\n".join(f"assert f({number}) == {number}00" for number in range(1, 7))
    seen = {
        number
        for text in changed(body, 40)
        for number in range(1, 7)
        if f"assert f({number}) == {number}00\n" not in text
    }
    assert seen == set(range(1, 7))


def test_an_opposite_is_drawn_only_where_nothing_else_is() -> None:
    for body in ("assert f(1) == 2", "self.assertEqual(f(1), 2)", "self.assertIn('some words', f())"):
        assert "comparison" not in kinds_of(body), body
    assert set(kinds_of("assert f() is None")) == {"comparison"}
    assert draw(source_of("assert f() is None"), 1).effective == 1


@pytest.mark.parametrize(
    "body",
    [
        "assert set(f()) == set(['b', 'a'])",
        "assert f() == {'b', 'a'}",
        "assert frozenset(f()) == frozenset(('b', 'a'))",
        "self.assertCountEqual(f(), ['b', 'a'])",
        "self.assertItemsEqual(f(), ['b', 'a'])",
        "assert sorted(f()) == sorted(['b', 'a'])",
        "assert Counter(f()) == Counter(['b', 'a'])",
        "assert f() == dict([('b', 1), ('a', 2)])",
    ],
)
def test_order_that_means_nothing_is_not_changed(body: str) -> None:
    assert "near-order" not in kinds_of(body, 200)
    for text in changed(body, 100):
        words = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
        assert sorted(map(str, words)) != sorted(["b", "a"]), text


@pytest.mark.parametrize("expected", ["ValueError", "KeyError", "OSError", "UnicodeDecodeError", "IsADirectoryError"])
def test_exceptions_are_not_related_to_the_expected_one(expected: str) -> None:
    old = getattr(builtins, expected)
    drawn = set()
    for text in changed(f"with pytest.raises({expected}):\n    f()", 40, "exception"):
        name = next(node.args[0].id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and node.args)  # type: ignore[attr-defined]
        new = getattr(builtins, name)
        assert not issubclass(new, old)
        assert not issubclass(old, new)
        drawn.add(name)
    assert len(drawn) > 15


@pytest.mark.parametrize("expected", ["int", "bool", "str", "list", "(int, float)"])
def test_types_are_not_related_to_the_expected_one(expected: str) -> None:
    old = eval(expected)
    drawn = set()
    for text in changed(f"assert isinstance(f(), {expected})", 40, "type"):
        call = next(node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and len(node.args) == 2)
        name = ast.unparse(call.args[1])
        new = eval(name)
        assert not issubclass(new, old), name
        assert not any(issubclass(one, new) for one in (old if isinstance(old, tuple) else (old,))), name
        drawn.add(name)
    assert len(drawn) > 8


def test_exceptions_of_the_product_meet_no_builtin_that_they_may_derive_from() -> None:
    bases = {"Exception", "LookupError", "KeyError", "ValueError", "OSError", "AssertionError", "TimeoutError"}
    for text in changed("with pytest.raises(Missing):\n    f()", 60, "exception"):
        assert bases.isdisjoint(text.replace("(", " ").replace(")", " ").split())


def test_unfit_kinds_are_left_out() -> None:
    source = source_of("assert f() == 'Alpha beta 12'")
    for seed in range(30):
        kinds = {kind for text in draw(source, seed, unfit=("near-case", "literal")).texts for kind in text.kinds}
        assert kinds
        assert not kinds & {"near-case", "literal"}


def test_neutral_edits_have_no_effect_and_keep_the_function_whole() -> None:
    for body in ("assert f() == 2", "'''Docs.'''\nassert f() == 2", "x = f()\nassert x == 2", "return f()"):
        source = source_of(body)
        for seed in range(5):
            edit = neutral_edit(source.function(("test",)), source, Random(seed))
            assert edit is not None
            tree = Source(source.apply_edits([edit])).tree
            plain = source.tree.body[0].body  # type: ignore[attr-defined]
            found = tree.body[0].body  # type: ignore[attr-defined]
            assert len(found) == len(plain) + 1
            assert ast.get_docstring(tree.body[0]) == ast.get_docstring(source.tree.body[0])  # type: ignore[arg-type]


# --- what wrong work passes -----------------------------------------------------------------------------------------

SEVERAL = "assert f(1) == 12\nassert f(2) == 'Alpha beta'\nassert f(3) == 'gamma delta'\nassert f(4) is None"


@pytest.mark.parametrize("passing", [(2,), (3, 4), (2, 3, 5), (2, 4, 5)])
def test_texts_differ_where_wrong_work_fails(passing: tuple[int, ...]) -> None:
    source = source_of(SEVERAL)
    plain = source.apply_edits(()).decode().splitlines()
    for seed in range(40):
        drawn = draw_texts(source.function(("test",)), source, Random(seed), COUNT, (), passing, TWINS)
        changed = [
            {
                number
                for number, line in enumerate(source.apply_edits(text.edits).decode().splitlines(), 1)
                if line not in plain
            }
            for text in drawn.texts
        ]
        told = [lines for lines in changed if not lines.isdisjoint(passing)]
        assert drawn.effective == (COUNT if len(passing) > 1 else 3), "with two strings, 24 texts less the told ones"
        assert len(told) == COUNT // 2, "they prove the other assertions"
        assert all(len(lines.intersection(passing)) == 1 for lines in told)
        assert len(changed) - len(told) >= COUNT - 1


def test_texts_that_wrong_work_tells_are_like_any_of_the_others_elsewhere() -> None:
    """Wrong work recognises them. If all were like the original elsewhere, they would tell it the original."""
    source = source_of(SEVERAL)
    lines = source.apply_edits(()).decode().splitlines()
    alike: Counter[bool] = Counter()
    for seed in range(100):
        drawn = draw_texts(source.function(("test",)), source, Random(seed), COUNT, (), (3,), TWINS)
        for text in drawn.texts:
            changed = source.apply_edits(text.edits).decode().splitlines()
            if changed[2] != lines[2]:
                alike[changed[:2] + changed[3:] == lines[:2] + lines[3:]] += 1
    assert alike[True] / alike.total() == pytest.approx(1 / COUNT, abs=0.06)


@pytest.mark.parametrize("expected", ["a big tea", "Not Found 12", ["ash tree", "oak", "elm"]], ids=str)
def test_texts_differ_by_what_values_forgive_more_than_once(expected: object) -> None:
    """If a single pair of texts differed by blanks alone, for example, one of the two would be the original."""
    source = source_of(f"assert f() == {expected!r}\nassert f(1) == 12\nassert f(2) == 34")
    for seed in range(40):
        texts = draw_texts(source.function(("test",)), source, Random(seed), COUNT, (), (), TWINS).texts
        played = Counter(kind for text in texts for kind in text.kinds if kind in FORGIVEN)
        assert min(played.values()) >= COUNT // 2, seed


def test_texts_that_wrong_work_tells_fill_the_places_of_missing_ones() -> None:
    source = source_of("assert f(1) == 12\nassert f(2) is None")
    drawn = draw_texts(source.function(("test",)), source, Random(1), COUNT, (), (2,), TWINS)
    assert (len(drawn.texts), drawn.effective) == (COUNT - 1, 1)


def test_a_test_that_fails_only_where_nothing_can_be_changed_has_no_text_that_looks_alike() -> None:
    source = source_of("assert f(1) == 12\nassert f(2) == 13\nif f(3):\n    assert f(4)")
    drawn = draw_texts(source.function(("test",)), source, Random(1), COUNT, (), (2, 3), TWINS)
    assert len(drawn.texts) == COUNT - 1
    assert drawn.effective == 1


def test_a_case_that_a_reader_recognises_needs_more_texts() -> None:
    source = source_of("assert f() == '/invoices/12'")
    drawn = draw_texts(source.function(("test",)), source, Random(1), COUNT, (), (), TWINS)
    assert (len(drawn.texts), drawn.effective) == (2 * COUNT - 1, COUNT)


# --- values by another name -------------------------------------------------------------------------------------------

CONSTANTS = """
def lines(*texts):
    return "\\n".join(texts)

def load(*texts):
    return product(*texts)

WORDS = "some words"
NUMBER = 12
TABLE = lines("name of it", "other one")
LOADED = load("a", "bc")
TWICE = 12
TWICE = 13
LIST = ["some words"]

def test(self):
    assert f() == {}
"""


def texts_of(expected: str, seed: int = 1) -> tuple[CounterGroup, list[str]]:
    text = CONSTANTS.replace("{}", expected)
    group = group_of(text, seed)
    source = Source(text.encode())
    return group, [source.apply_edits(row.edits[0]).decode() for row in group.rows]


@pytest.mark.parametrize("expected", ["WORDS", "NUMBER", "TABLE"])
def test_a_constant_of_the_module_is_changed_as_if_its_value_stood_there(expected: str) -> None:
    for seed in range(20):
        group, texts = texts_of(expected, seed)
        assert (group.effective, len(texts) > 2) == (1, True), "who reads the definition knows the original"
        values: list[dict[str, Any]] = [{"product": str.join} for _ in texts]
        for text, names in zip(texts, values, strict=True):
            exec(text, names)
            assert f"== {expected}" not in text, "no text has the name: it would be the original"
        expressions = [text.partition("assert f() == ")[2] for text in texts]
        found = [eval(part, names) for part, names in zip(expressions, values, strict=True)]
        right = values[0][expected]
        assert [value == right for value in found] == [not row.kinds for row in group.rows]


LONG = "é😀 " * 40


@pytest.mark.parametrize("value", ["12", "1.25", '"some words 12"', '(\n    "some words"\n)'])
@pytest.mark.parametrize("above", [f"# {LONG}\nNAME = {{}}\n\n", "NAME = {}\n", ""])
@pytest.mark.parametrize("below", [f"\n\n# {LONG}\nNAME = {{}}\n", "NAME = {}\n"])
def test_a_constant_may_stand_anywhere_beside_a_test_with_any_letters(value: str, above: str, below: str) -> None:
    body = f'def test(self):\n    "{LONG}"\n    assert f("{LONG}") == NAME  # {LONG}\n'
    text = above.replace("{}", value) + body + ("" if above else below.replace("{}", value))
    source = Source(text.encode())
    for seed in range(4):
        drawn = draw(source, seed)
        assert (drawn.effective, len(drawn.texts) >= COUNT // 2) == (1, True)
        for edits in (drawn.common, *(row.edits for row in drawn.texts)):
            ast.parse(source.apply_edits(edits))


def test_the_result_of_wrong_work_changes_a_constant_too() -> None:
    text = f'def test(self):\n    "{LONG}"\n    assert f() == WORDS\n\n\nWORDS = "gold words {LONG[:4]}"\n'
    source = Source(text.encode())
    right = f"gold words {LONG[:4]}"
    for seed in range(8):
        returned = {3: (repr(right), repr(right.replace("words", "word")))}
        drawn = draw_texts(source.function(("test",)), source, Random(seed), COUNT, returned=returned)
        assert (drawn.effective, len(drawn.texts) >= COUNT // 2) == (1, True)
        texts = [source.apply_edits(edits).decode() for edits in (drawn.common, *(row.edits for row in drawn.texts))]
        expected = [ast.literal_eval(text.partition("f() == ")[2].partition("\n")[0]) for text in texts]
        assert [value == right for value in expected] == [True, *[False] * len(drawn.texts)]


UNICODE = st.text(st.sampled_from("a1 éя😀あ́²"), max_size=6)


@st.composite
def unicode_files(draw: st.DrawFn) -> str:
    """Test files with names, values, comments and texts in any letters, and constants above or below the test."""
    constants = [f"N{number} = {draw(VALUES | UNICODE)!r}  # {draw(UNICODE)}" for number in range(3)]
    sides = st.sampled_from(["N0", "N1", "N2"]) | (VALUES | UNICODE).map(repr)
    body = [
        f"    assert f({draw(UNICODE)!r}) == {draw(sides)}  # {draw(UNICODE)}" for _ in range(draw(st.integers(1, 3)))
    ]
    parts = [constants[0], "\n".join(["def test(self):", *body]), *constants[1:]]
    return "\n".join(draw(st.permutations(parts))) + "\n"


@settings(max_examples=80, deadline=None)
@given(text=unicode_files(), issue=UNICODE, seed=st.integers(0, 99))
def test_texts_of_files_in_any_letters_are_whole(text: str, issue: str, seed: int) -> None:
    source = Source(text.encode())
    drawn = draw_texts(source.function(("test",)), source, Random(seed), 6, issue=issue)
    for edits in (drawn.common, *(row.edits for row in drawn.texts)):
        ast.parse(source.apply_edits(edits))


@pytest.mark.parametrize("expected", ["TWICE", "LIST", "LOADED", "WORDS + WORDS"])
def test_other_names_are_not_changed(expected: str) -> None:
    assert "near" not in texts_of(expected)[0].kind


def test_strings_that_a_function_of_the_file_combines_are_changed() -> None:
    group, texts = texts_of('lines("name of it", "12")')
    assert group.effective == COUNT
    assert sum('== lines("name of it"' in text for text in texts) < len(texts) / 2
    assert "near" not in texts_of('load("name of it", "12")')[0].kind
    assert "near" not in texts_of('lines(str(f()), "12")')[0].kind


def test_words_in_braces_are_changed_unless_they_are_placeholders() -> None:
    assert draw(source_of("assert f() == \"{'one': ['a', 'b']}\""), 1).effective >= COUNT // 2
    assert draw(source_of("assert f() == '{name} {0:>5}'"), 1).effective == 1


def test_a_result_of_a_line_with_two_assertions_is_not_taken_for_the_one_of_either() -> None:
    source = source_of("assert f(1) == 'Alpha beta'; assert f(2) == 'gamma delta'")
    for seed in range(20):
        returned = {2: ("'gamma delta'", "'gamma epsilon'")}
        drawn = draw_texts(source.function(("test",)), source, Random(seed), COUNT, returned=returned)
        assert ast.dump(Source(source.apply_edits(drawn.common)).tree) == ast.dump(source.tree), "right work passes it"
        assert drawn.texts
