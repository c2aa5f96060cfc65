import codecs
import difflib
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from swe_gym.errors import ToolError
from swe_gym.tools.editing import (
    insert_after,
    new_file,
    replace_all,
    replace_lines,
    replace_once,
    snippet,
    unified_diff,
)
from swe_gym.tools.files import Document

file_bytes = st.one_of(
    st.binary(max_size=120),
    st.lists(st.sampled_from([b"a", b"\tb", b"", b"c  ", b"\xe9", "é€".encode()]), max_size=12).flatmap(
        lambda lines: st.sampled_from([b"\n", b"\r\n", b"\r"]).map(lambda end: end.join(lines))
    ),
    st.text(max_size=40).map(lambda text: codecs.BOM_UTF16_LE + text.encode("utf-16-le", "replace")),
)
plain = st.text("xyz \t", min_size=1, max_size=8)


@given(file_bytes, plain, plain, file_bytes)
def test_the_only_occurrence_is_replaced_and_every_other_byte_stays(
    head: bytes, old: str, new: str, tail: bytes
) -> None:
    document = Document.of(head + b"<<" + old.encode() + b">>" + tail)
    assume(document.encoding in ("utf-8", "latin-1") and not document.bom)
    assume(document.text.count(f"<<{old}>>") == 1 and old != new)

    change = replace_once(document, f"<<{old}>>", f"<<{new}>>")

    assert change.after.data == head + b"<<" + new.encode() + b">>" + tail


@given(file_bytes, st.text("ab\r\n\xe9", max_size=12), st.data())
def test_inserted_lines_leave_the_other_lines_byte_for_byte(data: bytes, text: str, draw: st.DataObject) -> None:
    document = Document.of(data)
    line = draw.draw(st.integers(0, document.line_count))
    assume(text)

    after = insert_after(document, line, text).after

    position = document.line_starts[line]
    before, behind = document.text[:position], document.text[position:]
    assert after.data == document.bom + after.text.encode(document.encoding)
    assert after.text.startswith(before)
    assert after.text.endswith(behind)
    inserted = after.text[len(before) : len(after.text) - len(behind)]
    assert inserted.replace("\r\n", "\n").strip("\r\n") == text.replace("\r\n", "\n").strip("\r\n")
    assert inserted.endswith("\n") or not behind


@given(file_bytes, st.text("ab\n", max_size=12), st.data())
def test_replaced_lines_leave_the_other_lines_byte_for_byte(data: bytes, text: str, draw: st.DataObject) -> None:
    document = Document.of(data)
    first = draw.draw(st.integers(1, document.line_count + 1))
    last = draw.draw(st.integers(first, document.line_count + 5))
    try:
        after = replace_lines(document, first, last, text).after
    except ToolError:  # the text is what stands there: see test_an_edit_that_changes_nothing_is_refused
        assume(False)
    starts = [*document.line_starts, len(document.text)]
    assert after.text.startswith(document.text[: starts[first - 1]])
    assert after.text.endswith(document.text[starts[min(last, document.line_count)] :])
    assert after.data == document.bom + after.text.encode(document.encoding)


def edit(data: bytes, old: str, new: str) -> bytes:
    return replace_once(Document.of(data), old, new).after.data


def test_old_text_may_leave_out_carriage_returns() -> None:
    assert edit(b"one\r\ntwo\r\nthree\r\n", "one\ntwo", "1\n2") == b"1\r\n2\r\nthree\r\n"
    assert edit(b"one\r\ntwo\r\n", "two", "2\n3") == b"one\r\n2\r\n3\r\n"


def test_mixed_line_ends_match_the_replaced_part() -> None:
    mixed = b"one\r\ntwo\r\nthree\nfour\n"

    assert edit(mixed, "one\ntwo", "1\n2") == b"1\r\n2\r\nthree\nfour\n"
    assert edit(mixed, "three\nfour", "3\n4") == b"one\r\ntwo\r\n3\n4\n"
    assert edit(mixed, "two\r\nthree", "2\n3") == b"one\r\n2\n3\nfour\n"


@pytest.mark.parametrize(
    ("data", "old", "new", "expected"),
    [
        (b"\tif x:\n\t\tpass\n", "\t\tpass", "\t\treturn", b"\tif x:\n\t\treturn\n"),
        (b"no newline", "newline", "end", b"no end"),
        (b"caf\xe9 \x80\xff", "é", "è", b"caf\xe8 \x80\xff"),
        ("# -*- coding: euc-jp -*-\nx = '日本'\n".encode("euc-jp"), "日", "月", None),
        (codecs.BOM_UTF16_BE + "a\nb\n".encode("utf-16-be"), "b", "é", codecs.BOM_UTF16_BE + b"\0a\0\n\0\xe9\0\n"),
        (b"a\x0cb\x0bc\r", "b", "", b"a\x0c\x0bc\r"),
    ],
)
def test_unreplaced_bytes_are_kept(data: bytes, old: str, new: str, expected: bytes | None) -> None:
    expected = expected or "# -*- coding: euc-jp -*-\nx = '月本'\n".encode("euc-jp")

    assert edit(data, old, new) == expected


def test_a_text_that_occurs_twice_is_refused_with_its_lines() -> None:
    with pytest.raises(ToolError, match=r"occurs 2 times, at lines 1, 3, and nothing was changed"):
        edit(b"x = 1\ny = 2\nx = 1\n", "x = 1", "x = 2")
    with pytest.raises(ToolError, match="occurs 2 times"):
        edit(b"aaa", "aa", "b")
    with pytest.raises(ToolError, match="occurs 100 times or more"):
        edit(b"a" * 5000, "a", "b")


def test_a_text_that_does_not_occur_is_refused_with_the_nearest_line() -> None:
    with pytest.raises(ToolError, match=r"Its first line stands at line 2, .* Line 2 is '\\treturn 1'"):
        edit(b"def f():\n\treturn 1\n", "    return 1\n", "    return 2\n")
    with pytest.raises(ToolError, match="leave out the line numbers"):
        edit(b"def f():\n\treturn 1\n", "     1\tdef f():\n     2\t\treturn 1", "")
    with pytest.raises(ToolError, match="view the file and copy the text exactly"):
        edit(b"def f():\n", "def g():", "def h():")


def test_an_edit_that_changes_nothing_is_refused() -> None:
    with pytest.raises(ToolError, match="old_str is empty"):
        edit(b"a", "", "b")
    with pytest.raises(ToolError, match="nothing would change"):
        edit(b"a", "a", "a")
    with pytest.raises(ToolError, match="nothing would change"):
        replace_lines(Document.of(b"a\n"), 1, 1, "a")
    with pytest.raises(ToolError, match="nothing would change"):
        replace_all(Document.of(b"a\n"), "a\n")
    with pytest.raises(ToolError, match="nothing would change"):
        insert_after(Document.of(b"a\n"), 1, "")


@pytest.mark.parametrize(
    ("data", "line", "text", "expected"),
    [
        (b"a\nb\n", 0, "x", b"x\na\nb\n"),
        (b"a\nb\n", 1, "x\ny", b"a\nx\ny\nb\n"),
        (b"a\nb\n", 2, "x\n", b"a\nb\nx\n"),
        (b"a\nb", 2, "x", b"a\nb\nx"),
        (b"a\nb", 2, "x\n", b"a\nb\nx\n"),
        (b"", 0, "x", b"x\n"),
        (b"a\r\nb\r\n", 1, "x\ny", b"a\r\nx\r\ny\r\nb\r\n"),
    ],
)
def test_lines_are_inserted_whole(data: bytes, line: int, text: str, expected: bytes) -> None:
    assert insert_after(Document.of(data), line, text).after.data == expected


@pytest.mark.parametrize(
    ("data", "first", "last", "text", "expected"),
    [
        (b"a\nb\nc\n", 2, 2, "x", b"a\nx\nc\n"),
        (b"a\nb\nc\n", 2, 3, "x\ny\n", b"a\nx\ny\n"),
        (b"a\nb\nc\n", 1, 2, "", b"c\n"),
        (b"a\nb\nc", 3, 3, "x", b"a\nb\nx"),
        (b"a\nb\nc", 3, 3, "x\n", b"a\nb\nx\n"),
        (b"a\nb\nc\n", 2, 99, "x", b"a\nx\n"),
        (b"a\n", 2, 2, "x", b"a\nx\n"),
        (b"a", 2, 2, "x", b"a\nx"),
        (b"", 1, 1, "x", b"x\n"),
        (b"a\r\nb\r\n", 2, 2, "x\ny", b"a\r\nx\r\ny\r\n"),
    ],
)
def test_lines_are_replaced_whole(data: bytes, first: int, last: int, text: str, expected: bytes) -> None:
    assert replace_lines(Document.of(data), first, last, text).after.data == expected


@pytest.mark.parametrize(("first", "last"), [(0, 1), (-1, 1), (4, 4), (2, 1)])
def test_missing_lines_are_an_error(first: int, last: int) -> None:
    with pytest.raises(ToolError, match="start"):
        replace_lines(Document.of(b"a\nb\n"), first, last, "x")


def test_inserting_after_a_missing_line_is_an_error() -> None:
    with pytest.raises(ToolError, match="must be from 0 to 2"):
        insert_after(Document.of(b"a\nb\n"), 3, "x")


def test_a_replaced_file_keeps_mark_encoding_and_line_ends() -> None:
    utf16 = codecs.BOM_UTF16_LE + "old\r\n".encode("utf-16-le")

    assert replace_all(Document.of(utf16), "é\nb\n").after.data == codecs.BOM_UTF16_LE + "é\r\nb\r\n".encode(
        "utf-16-le"
    )
    assert replace_all(Document.of(b"a\n"), "no newline").after.data == b"no newline"
    assert new_file("tab\there\r\nno newline").after.data == b"tab\there\r\nno newline"


def test_a_snippet_shows_the_changed_lines_numbered_with_some_around_them() -> None:
    document = Document.of("".join(f"line {n}\n" for n in range(1, 31)).encode())

    shown = snippet(replace_lines(document, 15, 16, "new a\nnew b\nnew c"))

    numbers = [int(line.split("\t")[0]) for line in shown.splitlines()]
    assert numbers == list(range(11, 22))
    assert "    15\tnew a\n    16\tnew b\n    17\tnew c\n    18\tline 17\n" in shown


lines_of_text = st.lists(st.sampled_from(["a", "b", "c", "", "  d"]), max_size=30).flatmap(
    lambda lines: st.sampled_from(["", "\n"]).map(lambda end: "\n".join(lines) + end)
)


@given(before=lines_of_text, after=lines_of_text)
def test_patch_applies_the_diff(before: str, after: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    assume(before and after and before != after)
    folder: Path = tmp_path_factory.mktemp("patched")
    (folder / "f.txt").write_bytes(before.encode())

    diff = unified_diff(replace_all(Document.of(before.encode()), after), "f.txt")

    applied = subprocess.run(
        ["git", "apply", "--unidiff-zero", "-"], cwd=folder, input=diff.encode(), capture_output=True, check=False
    )
    assert applied.returncode == 0, applied.stderr.decode() + diff
    assert (folder / "f.txt").read_bytes() == after.encode()


def test_a_small_diff_equals_difflibs() -> None:
    before = "".join(f"line {n}\n" for n in range(1, 100))
    after = before.replace("line 50\n", "changed\n")

    diff = unified_diff(replace_all(Document.of(before.encode()), after), "pkg/f.py")

    expected = difflib.unified_diff(before.splitlines(True), after.splitlines(True), "a/pkg/f.py", "b/pkg/f.py")
    assert diff == "".join(expected)


def test_a_diff_of_a_file_with_crlf_shows_no_carriage_returns() -> None:
    diff = unified_diff(replace_lines(Document.of(b"a\r\nb\r\n"), 2, 2, "x"), "f")

    assert diff == "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n+x\n"


def test_a_diff_of_many_changed_lines_is_fast() -> None:
    before = "".join(f"{n % 7}\n" for n in range(40_000))
    after = "".join(f"{n % 11}\n" for n in range(40_000))

    started = time.monotonic()
    diff = unified_diff(replace_all(Document.of(before.encode()), after), "f")

    assert time.monotonic() - started < 20
    assert diff.count("\n-") + diff.count("\n+") > 70_000
