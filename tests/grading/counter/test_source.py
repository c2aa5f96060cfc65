"""Edits of test files change what they say and nothing else, whatever the file's encoding and line ends."""

import ast

import pytest

from swe_gym.grading.counter import source as module
from swe_gym.grading.counter.source import LEAST_COUNTED, MOST_KEPT, Source, TextEdit, parse

TEXT = """\
import m


class TestA:
    '''é😀'''

    def test_b(self):
        x = "é😀"; assert m.f("é😀") == "é😀 b"


def test_c():
    assert m.f() == 3
"""


def change_strings(source: Source) -> bytes:
    """The file, in which the last side of every assertion is another."""
    edits = []
    for function in source.functions.values():
        assertion = next(node for node in function.body if isinstance(node, ast.Assert))
        assert isinstance(assertion.test, ast.Compare)
        edits.append(TextEdit(*source.span(assertion.test.comparators[-1]), "'new'"))
    return source.apply_edits(edits)


def expected(text: str) -> str:
    return text.replace('== "é😀 b"', "== 'new'").replace("== 3", "== 'new'")


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("indentation", ["    ", "\t", "  \t"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_an_edit_keeps_the_rest_of_the_file(line_end: str, indentation: str, bom: bytes) -> None:
    text = TEXT.replace("    ", indentation).replace("\n", line_end)
    assert change_strings(Source(bom + text.encode())) == bom + expected(text).encode()


@pytest.mark.parametrize(
    ("cookie", "encoding"),
    [
        ("# -*- coding: latin-1 -*-\n", "latin-1"),
        ("#!/usr/bin/python\n# vim: set fileencoding=cp1252 :\n", "cp1252"),
        ("# coding: utf-8\n", "utf-8"),
        ("# coding: shift-jis\n", "shift-jis"),
    ],
)
def test_an_edit_keeps_the_encoding(cookie: str, encoding: str) -> None:
    text = cookie + TEXT.replace("é😀", "ソ" if encoding == "shift-jis" else "é")
    data = text.encode(encoding)
    new = text.replace('== "é b"', "== 'new'").replace('== "ソ b"', "== 'new'").replace("== 3", "== 'new'")
    assert change_strings(Source(data)) == new.encode(encoding)


def test_only_git_line_ends_split_lines() -> None:
    text = 'def test_a():\n    x = "\x0b\x1c\u2028\x85"\n\f\n    assert x == """\u2028\f""" # \u2029\n'
    source = Source(text.encode())
    assertion = source.functions[("test_a",)].body[-1]
    assert source.text_of(assertion) == 'assert x == """\u2028\f"""'
    assert source.apply_edits([TextEdit(*source.span(assertion), "pass")]).decode() == text.replace(
        'assert x == """\u2028\f"""', "pass"
    )


def test_several_edits_do_not_interfere() -> None:
    source = Source(b"a = 1\nb = 2\n")
    assert (
        source.apply_edits([TextEdit(4, 5, "100"), TextEdit(10, 11, ""), TextEdit(0, 0, "# x\n")])
        == b"# x\na = 100\nb = \n"
    )
    assert source.apply_edits([]) == b"a = 1\nb = 2\n"


NESTED = """\
import sys

class A(Base):
    class B:
        def test_inner(self): pass
    def test_a(self):
        def no_test(): pass
    if sys.platform == "linux":
        def test_if(self): pass
    else:
        def test_else(self): pass

try:
    def test_try(): pass
    async def test_coroutine(): pass
except ImportError:
    pass
finally:
    def test_finally(): pass

with x:
    def test_with(): pass

class Child(m.A, Other[int]):
    pass

class GrandChild(Child): pass
class Loop(Loop): pass
"""


def test_functions_are_found_by_name() -> None:
    assert [".".join(names) for names in Source(NESTED.encode()).functions] == [
        "A.B.test_inner",
        "A.test_a",
        "A.test_if",
        "A.test_else",
        "test_try",
        "test_coroutine",
        "test_finally",
        "test_with",
    ]


def test_inherited_functions_are_found_in_the_file() -> None:
    source = Source(NESTED.encode())
    assert source.find(("GrandChild", "test_a")) == ("A", "test_a")
    assert source.find(("A", "test_a")) == ("A", "test_a")
    assert source.find(("GrandChild", "test_none")) is None
    assert source.find(("Loop", "test_a")) is None
    assert source.find(("test_with",)) == ("test_with",)


def test_the_last_of_two_functions_of_a_name_counts() -> None:
    source = Source(b"def test_a():\n    return 1\ndef test_a():\n    return 2\n")
    assert source.text_of(source.functions[("test_a",)].body[0]) == "return 2"


@pytest.mark.parametrize(
    "data",
    [
        b"print 'two'\n",
        b"def (:\n",
        b"\xff\xfe",
        b"# coding: nothing\n",
        b"x = '\xe9'\n",
        b"x = 1\0\n",
        b"(" * 5000,
        b"-" * 100_000 + b"1",
    ],
)
def test_only_python_3_parses(data: bytes) -> None:
    assert parse(data) is None
    with pytest.raises(ValueError, match=r"not Python 3|null byte|codec"):
        Source(data)


def test_large_files_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST_PARSED", 3)
    with pytest.raises(ValueError, match="too large to parse: 4 bytes"):
        Source(b"a=12")


def test_invalid_escapes_do_not_warn() -> None:
    assert parse(b"x = '\\d'\n")  # warnings are errors here


def test_words_are_those_of_the_file() -> None:
    assert Source(b"alpha = beta.Gamma  # alpha the test_name\n").words == ("alpha", "beta")
    assert Source(b"x = 1\n").words == ("other",)


def test_functions_within_functions_that_assert_are_found() -> None:
    source = Source(
        b"def load(cls):\n    def attach(n):\n        def method(self):\n            self.assertEqual(n, 1)\n"
        b"        setattr(cls, n, method)\n    def helper():\n        return 1\n"
    )
    assert list(source.nested) == [("load", "method")]
    assert source.function(("load", "method")).name == "method"


def test_what_is_remembered_depends_on_all_arguments() -> None:
    @module.remembered
    def find(_: ast.Module, __: Source, first: int = 0, second: int = 0) -> tuple[int, int]:
        return first, second

    source = Source(b"")
    for _ in range(2):
        assert find(source.tree, source, first=1) == (1, 0)
        assert find(source.tree, source, second=1) == (0, 1)
        assert find(source.tree, source, 1) == (1, 0)


def test_the_files_used_last_are_kept_up_to_a_size() -> None:
    small = [f"x = {number}".encode() for number in range(4)]
    large = b"y = 1" + b" " * (MOST_KEPT - 2 * LEAST_COUNTED)
    first = [parse(data) for data in (*small, large)]
    assert parse(small[3]) is first[3]
    assert parse(small[0]) is not first[0]
    assert parse(b"x" * (MOST_KEPT + 1)) is None
    assert parse(small[3]) is not first[3]
