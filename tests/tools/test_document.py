import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_gym.errors import ToolError
from swe_gym.tools.files import Document

some_bytes = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=80).map(lambda text: text.encode("utf-8", "replace")),
    st.text(max_size=80).map(lambda text: codecs.BOM_UTF16_LE + text.encode("utf-16-le", "replace")),
    st.text("a\nb\r\n# coding: latin-1\n\xe9\xff", max_size=80).map(lambda text: text.encode("latin-1")),
    st.sampled_from(["shift_jis", "gbk", "cp1252", "utf-16-le", "rot13", "unicode_escape", "utf-7", "cp037"]).flatmap(
        lambda name: st.binary(max_size=60).map(lambda tail: b"# -*- coding: " + name.encode() + b" -*-\n" + tail)
    ),
)


@given(some_bytes, st.data(), st.text("ab\n\t", max_size=10))
def test_a_splice_keeps_every_byte_outside_of_the_replaced_part(data: bytes, draw: st.DataObject, new: str) -> None:
    document = Document.of(data)
    start = draw.draw(st.integers(0, len(document.text)))
    end = draw.draw(st.integers(start, len(document.text)))

    spliced = document.splice(start, end, new)

    before = document.bom + document.text[:start].encode(document.encoding)
    after = document.text[end:].encode(document.encoding)
    assert data.startswith(before)
    assert data.endswith(after)
    assert spliced == before + new.encode(document.encoding) + after


@given(some_bytes)
def test_every_content_round_trips_through_its_text(data: bytes) -> None:
    document = Document.of(data)

    assert document.bom + document.text.encode(document.encoding) == data
    assert document.splice(0, 0, "") == data


@given(some_bytes)
def test_lines_are_those_between_line_feeds(data: bytes) -> None:
    document = Document.of(data)
    lines = document.lines(1, document.line_count)

    expected = document.text.split("\n")
    expected = expected[:-1] if expected[-1] == "" else expected
    assert lines == [line.removesuffix("\r") for line in expected]
    assert document.line_count == len(expected)


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        ("é".encode(), "utf-8"),
        (b"caf\xe9", "latin-1"),
        (b"# coding: cp1252\n\x80", "cp1252"),
        (b"#!/usr/bin/python\n# vim: set fileencoding=koi8-r :\n\xc1", "koi8-r"),
        (b"x = 1\ny = 2\n# coding: cp1252\n", "utf-8"),
        (b"# coding: no-such-thing\n", "utf-8"),
        (b"# coding: utf-7\n+AOk-", "utf-8"),
        (codecs.BOM_UTF8 + b"x", "utf-8"),
        (codecs.BOM_UTF16_BE + "hé".encode("utf-16-be"), "utf-16-be"),
        (codecs.BOM_UTF32_LE + b"x\0\0\0", "utf-32-le"),
        (codecs.BOM_UTF16_LE + b"odd", "latin-1"),
    ],
)
def test_the_encoding_is_the_declared_one_if_it_fits(data: bytes, encoding: str) -> None:
    assert Document.of(data).encoding == encoding


def test_a_byte_order_mark_is_not_part_of_the_text() -> None:
    document = Document.of(codecs.BOM_UTF8 + b"first\n")

    assert document.text == "first\n"
    assert document.splice(0, 5, "last") == codecs.BOM_UTF8 + b"last\n"


@pytest.mark.parametrize(
    ("data", "binary"),
    [
        (b"\x7fELF\x00\x01", True),
        (b"# coding: latin-1\n\x00", True),
        (codecs.BOM_UTF16_LE + "text".encode("utf-16-le"), False),
        (b"caf\xe9", False),
        (b"", False),
    ],
)
def test_a_file_with_nul_bytes_is_binary_unless_its_encoding_has_them(data: bytes, binary: bool) -> None:
    assert Document.of(data).is_binary is binary


@pytest.mark.parametrize(
    ("data", "newline"),
    [(b"a\r\nb\r\n", "\r\n"), (b"a\r\nb", "\r\n"), (b"a\r\nb\n", "\n"), (b"a\n", "\n"), (b"a", "\n"), (b"", "\n")],
)
def test_line_ends_are_crlf_only_if_all_are(data: bytes, newline: str) -> None:
    assert Document.of(data).newline == newline


def test_a_character_missing_in_the_encoding_is_named_in_the_error() -> None:
    with pytest.raises(ToolError, match=r"latin-1 text, which has no '→' \(U\+2192\)"):
        Document.of(b"caf\xe9").splice(0, 0, "→")
    with pytest.raises(ToolError, match=r"a lone surrogate \(U\+D800\)"):
        Document.of(b"").splice(0, 0, "\ud800")
