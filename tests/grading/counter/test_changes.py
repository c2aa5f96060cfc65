"""Every change of a test that right work passes makes right work fail it: executed, one small test after another."""

import asyncio
import collections.abc
import contextlib
import importlib.util
import math
import numbers
import sys
import unittest
import warnings
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from decimal import Decimal
from fnmatch import fnmatch
from fractions import Fraction
from pathlib import Path
from random import Random
from textwrap import dedent
from types import SimpleNamespace
from unittest import mock

import pytest

from swe_gym.grading.counter.changes import NATURAL, Change, changes
from swe_gym.grading.counter.source import Source


def f(value: object = None) -> object:
    """The product: it returns what it is given."""
    return value


async def later(value: object) -> object:
    return value


def bad(message: str = "bad value: 7") -> None:
    raise ValueError(message)


def old(message: str = "old name") -> None:
    warnings.warn(message, DeprecationWarning, stacklevel=2)


class Case(unittest.TestCase):
    """Has assertions that read like Django's, too."""

    def assertContains(self, response: SimpleNamespace, text: str) -> None:
        assert text in response.content

    def assertNotContains(self, response: SimpleNamespace, text: str) -> None:
        assert text not in response.content

    def assertRedirects(self, response: SimpleNamespace, url: str) -> None:
        assert response.url == url

    def assertQuerySetEqual(self, found: object, expected: object) -> None:
        assert found == expected

    def assertTemplateUsed(self, response: SimpleNamespace, name: str) -> None:
        assert name in response.templates

    def assertTemplateNotUsed(self, response: SimpleNamespace, name: str) -> None:
        assert name not in response.templates

    @contextlib.contextmanager
    def assertNumQueries(self, number: int) -> Iterator[None]:
        yield
        assert number == 2

    @contextlib.contextmanager
    def assertRaisesMessage(self, kind: type[Exception], message: str) -> Iterator[None]:
        with pytest.raises(kind, match=message):
            yield


class Lines:
    """The output of a program, as pytest's own tests read it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def fnmatch_lines(self, lines: list[str]) -> None:
        assert all(fnmatch(self.text, line) for line in lines)


class Item:
    def __init__(self, name: str = "item") -> None:
        self.name = name
        self.tags = ["new"]

    def encode(self, text: str) -> int:
        return len(text)

    def format(self, text: str) -> bool:
        return text.islower()


def namespace() -> dict[str, object]:
    return {
        **{
            "f": f,
            "later": later,
            "bad": bad,
            "old": old,
            "Item": Item,
            "Lines": Lines,
            "abc": collections.abc,
            "numbers": numbers,
            "item": Item(),
            "math": math,
            "mock": mock,
        },
        **{"pytest": pytest, "Decimal": Decimal, "Fraction": Fraction, "OrderedDict": OrderedDict, "deque": deque},
        **{"Path": Path, "dedent": dedent, "warnings": warnings, "contextlib": contextlib, "__name__": "test_small"},
        "response": SimpleNamespace(content="<p>two</p>", url="/next/", templates=["a.html"], status_code=200),
    }


def run(text: bytes, product: Mapping[str, object]) -> None:
    """Run the function `test` of a file."""
    names = {**namespace(), **product}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of comparisons with literals by `is`
        exec(compile(text, "test_small.py", "exec"), names)
        found = names["test"](Case())  # type: ignore[operator]
        if asyncio.iscoroutine(found):
            asyncio.run(found)


def check(body: str, head: str = "", seeds: int = 5, **product: object) -> list[Change]:
    """The changes of a test, every one of which was seen to fail."""
    kind = "async def" if "await " in body or "async " in body else "def"
    lines = body.replace("\n", "\n    ")
    data = f"{head}\n{kind} test(self):\n    {lines}\n".encode()
    source = Source(data)
    run(data, product)
    found = changes(source.functions[("test",)], source)
    for change in found:
        for seed in range(seeds):
            edit = change.edit(Random(seed))
            changed = source.apply_edits([edit])
            assert changed != data, change
            with pytest.raises(BaseException) as failure:  # noqa: PT011 - every end but a pass is a failure
                run(changed, product)
            assert not failure.errisinstance((KeyboardInterrupt, SyntaxError)), changed.decode()
    return found


ASSERTIONS = [
    # numbers
    ("assert f(2) == 2", "literal"),
    ("assert 2 == f(2)", "literal"),
    ("assert f(0) == 0", "literal"),
    ("assert f(-3) == -3", "literal"),
    ("assert f(3) == +3", "literal"),
    ("assert f(0x1F) == 0x1F", "literal"),
    ("assert f(1_000) == 1_000", "literal"),
    ("assert f(0o17) == 0O17", "literal"),
    ("assert f(5) == 0b101", "literal"),
    ("assert f(.5) == .5", "literal"),
    ("assert f(-1.25) == -1.25", "literal"),
    ("assert f(1e-9) == 1e-9", "literal"),
    ("assert f(1e308) == 1e308", "literal"),
    ("assert f(float('inf')) == 1e400", "literal"),
    ("assert f(2j) == 2j", "literal"),
    ("assert f(3) == 1 + 2", "literal"),
    ("assert f(1) == 10 % 3", "number"),
    ("assert f(True) == True", "literal"),
    ("assert f(None) == None", "literal"),
    ("assert f(2) == (2)", "literal"),
    ("assert f(2) == 2, 'two'", "literal"),
    ("assert 1 < f(2) == 2", "literal"),
    # texts
    ("assert f('ab c') == 'ab c'", "literal"),
    ("assert f('') == ''", "literal"),
    ("assert f('--') == '--'", "literal"),
    ("assert f(b'') == b''", "literal"),
    (r"assert f(b'\xff\x00') == b'\xff\x00'", "literal"),
    (r"assert f('\n\t') == '\n\t'", "literal"),
    (r"assert f('\x41\u00e9\N{EN DASH}') == '\x41\u00e9\N{EN DASH}'", "literal"),
    (r"assert f('\19') == '\19'", "literal"),
    (r"assert f(r'\d+') == r'\d+'", "literal"),
    ("assert f('ab') == 'a' 'b'", "literal"),
    ("assert f('ab') == ('a'  # one\n    'b')", "literal"),
    ("assert f('a\\u2028b\\f') == ('''a\u2028b\f''')", "literal"),
    ("assert f('é😀x') == 'é😀x'", "literal"),
    ("assert f('7 a') == f'{f(7)} a'", "literal"),
    ("assert f('7') == f'{f(7)}'", "literal"),
    ("assert f('7 ab') == f'{f(7)} ' 'ab'", "literal"),
    ("assert f('  7') == f'{f(7):{f(3)}}'", "literal"),
    ("assert f('{a}') == f'{{a}}'", "literal"),
    ("assert f('7 a') == '%d a' % 7", "literal"),
    ("assert f('7') == '%d' % 7", "literal"),
    ("assert f('7a') == '{}a'.format(7)", "literal"),
    ("assert f('a') == ', '.join(['a'])", "literal"),
    ("assert f('a') == ', '.join(f(['a']))", "number"),
    ("assert f('a') == dedent('''\\\n    a''')", "literal"),
    ("assert f(b'a') == 'a'.encode()", "literal"),
    ("assert f('a b') == 'a ' + f('b')", "literal"),
    # containers
    ("assert f([]) == []", "literal"),
    ("assert f(()) == ()", "literal"),
    ("assert f({}) == {}", "literal"),
    ("assert f([1, None]) == [1, None]", "literal"),
    ("assert f([[1], []]) == [[1], []]", "literal"),
    ("assert f([7]) == [f(7)]", "literal"),
    ("assert f([7]) == [\n    f(7),  # seven]\n]", "literal"),
    ("assert f([7]) == [\n    f(7)  # seven]\n]", "literal"),
    ("assert f((7,)) == (f(7),)", "literal"),
    ("assert f({7}) == {f(7)}", "literal"),
    ("assert f({1, 2}) == {1, 2}", "literal"),
    ("assert f({'a': 1}) == {'a': 1}", "literal"),
    ("assert f({'a': 7}) == {'a': f(7)}", "literal"),
    ("assert f({'a': 7}) == {**{'a': f(7)}}", "literal"),
    ("assert f(set()) == set()", "number"),
    ("assert f({1}) == set([1])", "literal"),
    ("assert f([1, 2]) == [1] + [2]", "literal"),
    ("assert f([1]) == f([]) + [1]", "literal"),
    ("assert list(f([1])) == [1]", "literal"),
    ("assert dict(f({'a': 1})) == dict([('a', 1)])", "literal"),
    ("assert f(OrderedDict(a=1)) == OrderedDict([('a', 1)])", "literal"),
    ("assert f(deque([1])) == deque([1])", "literal"),
    # numbers within tolerance, and types of their own
    ("assert f(0.1 + 0.2) == pytest.approx(0.3)", "literal"),
    ("assert f(100.0) == pytest.approx(100, rel=0.2)", "number"),
    ("assert f([1.0]) == pytest.approx([1.0])", "literal"),
    ("assert f({'a': 1.0}) == pytest.approx({'a': 1.0}, abs=0.1)", "number"),
    ("assert f(Decimal('0.1')) == Decimal('0.1')", "literal"),
    ("assert f(Fraction(1, 2)) == Fraction(1, 2)", "literal"),
    ("assert f(Path('a/b')) == Path('a/b')", "literal"),
    ("assert math.isclose(f(0.3), 0.3)", "literal"),
    ("assert math.isclose(f(0.3), 0.3, abs_tol=0.1)", "number"),
    # comparisons
    ("assert f(1) != 2", "comparison"),
    ("assert f(1) < 2", "comparison"),
    ("assert f(1) <= 1", "comparison"),
    ("assert f(3) > 2", "comparison"),
    ("assert f(3) >= 3", "comparison"),
    ("assert 0 < f(1) < 2", "comparison"),
    ("assert f(None) is None", "comparison"),
    ("assert f(1) is not None", "comparison"),
    ("assert f(1) is  not  None", "comparison"),
    ("assert (f(None)  # that is it\n    is None)", "comparison"),
    ("assert f(True) is True", "literal"),
    ("assert f(False) is False", "literal"),
    ("assert 'tw' in f('two')", "pattern"),
    ("assert 'a tw' in f('a two')", "pattern"),
    ("assert b'tw' in f(b'two')", "pattern"),
    ("assert 2 in f([1, 2])", "literal"),
    ("assert None in f([None])", "literal"),
    ("assert f(1) in (1, 2)", "comparison"),
    ("assert 3 not in f([1, 2])", "comparison"),
    ("assert 'x' not in f('two')", "comparison"),
    ("assert len(f([1])) == 1", "literal"),
    ("assert f('a') == item.name[0] or f('a') == 'a'", "negation"),
    # truth
    ("assert f(1)", "number"),
    ("assert item.tags", "number"),
    ("assert item.tags[0]", "number"),
    ("x = f(1)\nassert x", "number"),
    ("assert not f(0)", "comparison"),
    ("assert not(f(0))", "comparison"),
    ("assert (not\n    f(0))", "comparison"),
    ("assert f(1) and f(2) == 2", "literal"),
    ("assert f(2) == 2 and not f(0)", "literal"),
    ("assert f(1) or f(2)", "negation"),
    ("assert (x := f(3)) == 3 and x", "literal"),
    ("assert (x := f(3))", "negation"),
    ("assert await later(3) == 3", "literal"),
    ("assert await later(3)", "number"),
    ("assert all(x > 0 for x in f([1]))", "negation"),
    ("assert any(f([1]))", "negation"),
    ("assert isinstance(f(1), int)", "type"),
    ("assert isinstance(f(frozenset()), frozenset)", "type"),
    ("assert isinstance(f(1), (int, range, slice))", "type"),
    ("assert issubclass(type(f(True)), int)", "type"),
    ("assert hasattr(item, 'name')", "pattern"),
    ("assert f('two').startswith('t')", "literal"),
    ("assert f('two').startswith(('a', 't', 'b'))", "number"),
    ("assert f('two').endswith('o', 1)", "negation"),
    ("assert f({1}).issubset({1, 2})", "number"),
    ("assert f('two').isalpha()", "number"),
    # a name for the expectation, and none
    ("want = 2\nassert f(2) == want", "literal"),
    ("want = [1, 2]\nassert f([1, 2]) == want", "literal"),
    ("want = f(7), f(8)\nassert f((7, 8)) == want", "literal"),
    ("want = 2\nassert f(2) == want\nassert f(want)", "number"),
    ("want = f(2)\nassert f(2) == want", "number"),
    ("assert f(item.name) == item.name", "number"),
    ("assert item.encode('ab') == item.encode('cd')", "number"),
    ("assert True == item.format('ab')", "literal"),
    ("assert item.format('cd') == item.format('ab')", "number"),
    ("x = f(2)\nf(x)", "local"),
    ("f(2)", "failure"),
    ("f(2)  # the end", "failure"),
    ("f(2); f(3);", "failure"),
    ("f(2)\nreturn", "failure"),
    ("x = f(2)\nif x == 2:\n    return\nassert x == 3", "local"),
    ("for x in f([1]):\n    f(x)", "failure"),
    # expected exceptions and warnings
    ("with pytest.raises(ValueError):\n    bad()", "exception"),
    ("with pytest.raises((ValueError, EOFError)):\n    bad()", "exception"),
    ("with pytest.raises(ValueError, match='bad'):\n    bad()", "pattern"),
    ("with pytest.raises(ValueError, match=r'bad|good'):\n    bad()", "pattern"),
    ("with pytest.raises(ValueError, match='bad value: %d' % 7):\n    bad()", "pattern"),
    ("pytest.raises(ValueError, bad)", "exception"),
    ("with pytest.raises(ValueError) as e:\n    bad()\nassert str(e.value) == 'bad value: 7'", "literal"),
    ("with pytest.warns(DeprecationWarning, match='old'):\n    old()", "pattern"),
    ("with pytest.warns(DeprecationWarning):\n    old()", "exception"),
    ("with pytest.deprecated_call(match='old'):\n    old()", "pattern"),
    ("with self.assertRaises(ValueError):\n    bad()", "exception"),
    ("with self.assertRaises(ValueError) as e:\n    bad()\nself.assertIn('bad', str(e.exception))", "pattern"),
    ("self.assertRaises(ValueError, bad)", "exception"),
    ("self.assertRaises(ValueError, lambda: bad('x'))", "exception"),
    ("with self.assertRaisesRegex(ValueError, 'bad'):\n    bad()", "pattern"),
    ("self.assertRaisesRegex(ValueError, 'bad', bad)", "pattern"),
    ("with self.assertRaisesMessage(ValueError, 'bad'):\n    bad()", "pattern"),
    ("with self.assertWarns(DeprecationWarning):\n    old()", "exception"),
    ("with self.assertWarnsRegex(DeprecationWarning, 'old'):\n    old()", "pattern"),
    # unittest's assertions
    ("self.assertEqual(f(2), 2)", "literal"),
    ("self.assertEqual(2, f(2))", "literal"),
    ("self.assertEqual(f(2), 2, msg='two')", "literal"),
    ("self.assertEqual(f(item), item)", "comparison"),
    ("self.assertEqual(item, f(item))", "comparison"),
    ("self.assertEqual(await later(2), 2)", "literal"),
    ("self.assertNotEqual(f(1), 2)", "comparison"),
    ("self.assertAlmostEqual(f(0.3), 0.1 + 0.2)", "literal"),
    ("self.assertAlmostEqual(f(0.3), 0.31, places=1)", "comparison"),
    ("self.assertAlmostEqual(f(0.3), 0.3, delta=0.1)", "comparison"),
    ("self.assertNotAlmostEqual(f(1.0), 2.0)", "comparison"),
    ("self.assertCountEqual(f([2, 1]), [1, 2])", "literal"),
    ("self.assertListEqual(f([1]), [1])", "literal"),
    ("self.assertDictEqual(f({'a': 1}), {'a': 1})", "literal"),
    ("self.assertMultiLineEqual(f('a'), 'a')", "literal"),
    ("self.assertTrue(f(1))", "comparison"),
    ("self.assertTrue(f(2) == 2)", "literal"),
    ("self.assertTrue(not f(0), 'a reason')", "comparison"),
    ("self.assertTrue(isinstance(f(1), int))", "type"),
    ("self.assertFalse(f(0))", "comparison"),
    ("self.assertIs(f(True), True)", "literal"),
    ("self.assertIs(f(item), item)", "comparison"),
    ("self.assertIsNot(f(1), None)", "comparison"),
    ("self.assertIsNone(f(None))", "comparison"),
    ("self.assertIsNotNone(f(1))", "comparison"),
    ("self.assertIn('tw', f('two'))", "pattern"),
    ("self.assertIn(2, f([2]))", "literal"),
    ("self.assertIn(f(2), [2])", "comparison"),
    ("self.assertNotIn(3, f([2]))", "comparison"),
    ("self.assertIsInstance(f(1), int)", "type"),
    ("self.assertNotIsInstance(f(1), str)", "comparison"),
    ("self.assertGreater(f(2), 1)", "comparison"),
    ("self.assertGreaterEqual(f(2), 2)", "comparison"),
    ("self.assertLess(f(2), 3)", "comparison"),
    ("self.assertLessEqual(f(2), 2)", "comparison"),
    ("self.assertRegex(f('two'), '^t')", "pattern"),
    ("self.assertNotRegex(f('two'), '^o')", "comparison"),
    ("with self.subTest(i=1):\n    self.assertEqual(f(2), 2)", "literal"),
    # Django's
    ("self.assertContains(response, 'w')", "pattern"),
    ("self.assertNotContains(response, 'three')", "comparison"),
    ("self.assertRedirects(response, '/next/')", "literal"),
    ("self.assertQuerySetEqual(f([1]), [1])", "literal"),
    ("self.assertTemplateUsed(response, 'a.html')", "literal"),
    ("self.assertTemplateNotUsed(response, 'b.html')", "comparison"),
    ("with self.assertNumQueries(2):\n    f()", "literal"),
    ("self.assertEqual(response.status_code, 200)", "literal"),
    # mocks
    ("m = mock.Mock()\nm(1, a='b')\nm.assert_called_with(1, a='b')", "helper"),
    ("m = mock.Mock()\nm('a')\nm.assert_called_once_with('a')", "helper"),
    ("m = mock.Mock()\nm('a')\nm.assert_has_calls([mock.call('a')])", "helper"),
    ("m = mock.Mock()\nm('a')\nm.assert_any_call('a')", "number"),
    ("m = mock.Mock()\nm('a')\nm.assert_called_once()", "comparison"),
    ("m = mock.Mock()\nm.assert_not_called()", "comparison"),
]


if sys.version_info >= (3, 12):
    ASSERTIONS.append(("assert f('7 a') == f'{f'{f(7)} a'}'", "literal"))


@pytest.mark.parametrize(("body", "best"), ASSERTIONS, ids=[body for body, _ in ASSERTIONS])
def test_right_work_fails_every_change(body: str, best: str) -> None:
    assert check(body)[0].kind == best


ALTERNATIVES = [
    ("assert f() == pytest.approx(10, abs=5)", [10, 5, 14.9]),
    ("assert f() == [pytest.approx(10, abs=5)]", [[10], [14.9]]),
    ("assert f() == pytest.approx(10, 0.5)", [10, 14.9, 5.1]),
    ("assert math.isclose(f(), 10, rel_tol=0.4)", [10, 16]),
    ("self.assertAlmostEqual(f(), 10, delta=5)", [10, 14.9]),
    ("self.assertAlmostEqual(f(), 10, -1)", [10, 14.9]),
    ("assert abs(f() - 10) < 5", [10, 14.9]),
    ("assert f() in (1, 2)", [1, 2]),
    ("assert f() in range(5)", [0, 4]),
    ("assert 5 < f() < 10", [6, 9]),
    ("assert f()", [1, True, "x", [0], object(), 0.5]),
    ("assert not f()", [0, "", None, [], {}, 0.0]),
    ("self.assertTrue(f())", [1, "x", object()]),
    ("assert 'a' in f()", ["a", "a b c d e", ["a", "b"], {"a": 1, "c": 2}]),
    ("assert 3 in f()", [[3], range(5), {3: 4}]),
    ("assert f().startswith('a')", ["a", "abc"]),
    ("assert f().startswith(('a', 'b'))", ["a", "b"]),
    ("assert f().endswith('')", ["a", ""]),
    (
        "assert hasattr(f(), 'x')",
        [SimpleNamespace(x=1), SimpleNamespace(**dict.fromkeys("abcdefghijklmnopqrstuvwxyz"))],
    ),
    ("assert isinstance(f(), abc.Iterable)", [[], frozenset(), range(3), bytearray(), iter("a"), deque()]),
    ("assert isinstance(f(), numbers.Number)", [1, 1.5, 2j, Decimal(1), Fraction(1)]),
    ("self.assertIsInstance(f(), object)", [1, type, [], None]),
    ("self.assertRegex(f(), 'a|b')", ["a", "cab", "b"]),
    ("self.assertIn('a', f())", ["abc", ["a"]]),
    (
        "self.assertContains(f(), 'a')",
        [SimpleNamespace(content="a"), SimpleNamespace(content="abcdefghijklmnopqrstuvwxyz")],
    ),
    ("self.assertIs(f(), f())", [None, 1, "a"]),
    (
        "with pytest.raises(Exception):\n    raise f()",
        [ValueError(), EOFError(), OSError(), FloatingPointError(), KeyError(1)],
    ),
    ("with pytest.raises(ValueError, match='a|b'):\n    raise f()", [ValueError("a"), ValueError("b c d")]),
    (
        "with pytest.warns(Warning):\n    warnings.warn(f())",
        [UserWarning("a"), ResourceWarning("a"), FutureWarning("a")],
    ),
    ("m = mock.Mock()\nfor x in f():\n    m(x)\nm.assert_any_call('a')", ["a", "abcdefghijklmnopqrstuvwxyz"]),
    (
        "m = mock.Mock()\nfor x in f():\n    m(x)\nm.assert_has_calls([mock.call('a')])",
        ["a", "abcdefghijklmnopqrstuvwxyz"],
    ),
    ("x = f()\nif x:\n    return\nassert x == 0", [0, 1]),
    ("for x in f():\n    assert x == 1", [[1, 1], []]),
    ("try:\n    x = f()\n    assert x == 1\nexcept AssertionError:\n    assert x == 2", [1, 2]),
    ("with contextlib.suppress(AssertionError):\n    assert f() == 1", [1, 2]),
    ("Lines(f()).fnmatch_lines(['*a*'])", ["xax", "abcdefghijklmnopqrstuvwxyz"]),
]


@pytest.mark.parametrize(("body", "products"), ALTERNATIVES, ids=[body for body, _ in ALTERNATIVES])
def test_other_right_work_fails_every_change_too(body: str, products: list[object]) -> None:
    """A counter-test that only some right work fails would accuse the rest."""
    for product in products:
        check(body, seeds=30, f=lambda product=product: product)


NUMPY = [
    ("np.testing.assert_allclose(f(np.ones(2)), [1.0, 1.0])", "literal"),
    ("np.testing.assert_allclose(f(np.ones(2)), 1.05, 0.1)", "number"),
    ("np.testing.assert_array_equal(f(np.ones(2)), np.array([1, 1]))", "literal"),
    ("np.testing.assert_equal(f(1), 1)", "literal"),
    ("assert np.allclose(f(np.ones(2)), 1)", "literal"),
    ("assert np.allclose(f(np.ones(2)), np.ones(2), 1e-3)", "number"),
    ("assert np.array_equal(f(np.ones(2)), [1, 1])", "literal"),
    ("assert (f(np.ones(2)) == 1).all()", "negation"),
    ("assert f(np.ones(2)).shape == (2,)", "literal"),
    ("assert isinstance(f(np.complex128(1)), np.complexfloating)", "type"),
    ("x = f(np.ones(2))\nnp.sum(x)", "local"),
    ("with np.testing.assert_raises(ValueError):\n    bad()", "exception"),
]


@pytest.mark.skipif(importlib.util.find_spec("numpy") is None, reason="numpy is not installed")
@pytest.mark.parametrize(("body", "best"), NUMPY, ids=[body for body, _ in NUMPY])
def test_right_work_fails_every_change_of_an_assertion_on_arrays(body: str, best: str) -> None:
    assert check(f"import numpy as np\n{body}")[0].kind == best


HELPERS = [
    ("def same(a, b):\n    assert a == b\n", "same(f(1), 1)", "helper"),
    ("def same(a, b):\n    assert b == a\n", "same('a b', f('a b'))", "helper"),
    ("def same(given, expected):\n    assert f(given) == expected\n", "same(1, 1)", "helper"),
    ("class T:\n    def same(self, a, b):\n        assert a == b\nit = T()\n", "it.same(f(1), 1)", "helper"),
    # inputs of the product are no expectations: what it makes of others is not said
    ("def check(text):\n    assert f(text).isalpha()\n", "check('ab')", "failure"),
    ("def check(text):\n    assert f(text) == text\n", "check('ab')", "failure"),
    ("def check(a, b):\n    if a:\n        assert a == b\n", "check(f(1), 1)", "failure"),
    ("def check(a, b=1):\n    b = f(b)\n    assert a == b\n", "check(f(1), 1)", "failure"),
]


@pytest.mark.parametrize(("head", "body", "best"), HELPERS)
def test_an_argument_of_a_helper_changes_only_where_it_is_an_expectation(head: str, body: str, best: str) -> None:
    assert check(body, head)[0].kind == best


def test_helper_of_another_file_is_not_changed() -> None:
    head = "from unittest.mock import Mock\ncheck_valid = Mock()\n"
    assert [change.kind for change in check("check_valid(f(1), 'ab')", head)] == ["failure"]


def test_later_assertions_are_changed_first() -> None:
    source = Source(b"def test():\n    assert f(1) == 1\n    assert f(2) == 2\n    assert f(3)\n")
    first, second = changes(source.functions[("test",)], source)[:2]
    assert (source.text(first.start, first.end), source.text(second.start, second.end)) == ("2", "1")
    assert first.kind in NATURAL


def test_tests_that_cannot_be_changed_have_no_changes() -> None:
    for text in ("def test(): f(1)\n", "def test(\n    x): f(1)\n", "def test():\n    yield f, 1\n"):
        source = Source(text.encode())
        assert changes(source.functions[("test",)], source) == []


@pytest.mark.parametrize("body", ["f(1)", "f(1)\n{}return", "if f(1):\n{}\tf(2)"])
@pytest.mark.parametrize("indentation", ["\t", "  ", "\t  ", "\f    "])
def test_appended_statement_has_the_tests_indentation(body: str, indentation: str) -> None:
    source = Source(f"def test():\n{indentation}{body.format(indentation)}\nx = 1\n".encode())
    for change in changes(source.functions[("test",)], source):
        changed = Source(source.apply_edits([change.edit(Random(1))]))
        assert len(changed.functions[("test",)].body) == len(source.functions[("test",)].body) + 1
        assert len(changed.tree.body) == 2
