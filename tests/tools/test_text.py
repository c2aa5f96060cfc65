import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_gym.tools.text import NOTE_ROOM, bound, bound_output, clean, harmless, shorten

any_text = st.text(st.characters(exclude_categories=()))


@given(any_text, st.integers(0, 400))
def test_bounded_text_never_exceeds_its_limit_and_bounding_again_changes_nothing(text: str, limit: int) -> None:
    once = bound(text * 20, limit)

    assert len(once) <= limit
    assert bound(once, limit) == once


@given(any_text, st.integers(NOTE_ROOM + 40, 600))
def test_bounded_text_begins_and_ends_like_the_text_and_counts_what_is_missing(part: str, limit: int) -> None:
    text = f"first\n{part * 40}\nlast"
    shown = bound(text, limit)

    assert shown.startswith("first")
    assert shown.endswith("last")
    if len(text) > limit:
        head, rest = shown.rsplit("[... ", 1)
        counted = int(rest.split(" characters", 1)[0].replace(",", ""))
        tail = rest.split(" cut ...]\n", 1)[1]
        kept = len(head) + len(tail)
        assert counted in (len(text) - kept, len(text) - kept + 1)  # a line end may have been added before the note


def test_text_is_cut_between_lines_and_the_cut_lines_are_counted() -> None:
    text = "".join(f"line {number:04}\n" for number in range(1000))

    shown = bound(text, 500)

    lines = shown.splitlines()
    note = next(line for line in lines if line.startswith("[..."))
    assert note == f"[... {(1000 - len(lines) + 1) * 10:,} characters in {1000 - len(lines) + 1} lines cut ...]"
    assert all(line.startswith("line ") for line in lines if line != note)
    assert lines[-1] == "line 0999"


def test_the_end_gets_more_room_than_the_beginning() -> None:
    head, tail = bound("a" * 5000 + "b" * 5000, 1100).split("[... ")

    assert head.count("a") == 250
    assert tail.count("b") == 750


def test_the_sandboxs_cut_is_counted_in_place() -> None:
    shown = bound_output(b"a" * 100 + b"z" * 300, dropped=1_234_567, kept=400, limit=1000)

    assert shown == "a" * 100 + "\n[... 1,234,567 bytes cut ...]\n" + "z" * 300


def test_both_cuts_are_counted_together() -> None:
    shown = bound_output(b"a" * 1000 + b"z" * 3000, dropped=5_000, kept=4000, limit=500)

    assert "[... 3,600 characters and 5,000 bytes cut ...]" in shown
    assert len(shown) <= 500


def test_invalid_utf8_becomes_replacement_characters() -> None:
    assert bound_output(b"caf\xe9 \xff\x00.", dropped=0, kept=100, limit=100) == "caf\ufffd \ufffd\u2400."


@pytest.mark.parametrize(
    ("printed", "read"),
    [
        ("\x1b[1;31mred\x1b[0m plain", "red plain"),
        ("\x1b]0;title\x07text \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "text link"),
        ("\x1b(B\x1b=\x1bMx", "x"),
        ("one\r\ntwo\r\n", "one\ntwo\n"),
        ("10 %\r50 %\r100 %\n", "100 %\n"),
        ("working...\r          \rdone\n", "done\n"),
        ("10 %\r\x1b[K100 %\r\n", "100 %\n"),
        ("abcd\b\bxy\n", "abxy\n"),
        ("\b\bx", "x"),
        ("-\b\\\b|\b/\bok", "ok"),
        ("tab\tstays\x0cas does a form feed", "tab\tstays\x0cas does a form feed"),
        ("\x1b", "\u241b"),
        ("a\x07b\x7fc\x9bd", "a\u2407b\u2421c\ufffdd"),
    ],
)
def test_terminal_control_is_settled(printed: str, read: str) -> None:
    assert clean(printed) == read


@given(any_text)
def test_clean_text_is_stable_and_encodable(text: str) -> None:
    once = clean(text)

    assert clean(once) == once
    assert harmless(once) == once
    once.encode("utf-8")
    assert "\0" not in once
    assert "\x1b" not in once


def test_half_a_terminal_sequence_removes_no_text() -> None:
    assert "the rest of the line" in clean("\x1b]0;never closed\nthe rest of the line")
    assert "the rest of the line" in clean("\x1bPnever closed\nthe rest of the line")


def test_a_long_line_says_how_much_more_there_is() -> None:
    assert shorten("x" * 10, 10) == "x" * 10
    assert shorten("x" * 1510, 10) == "x" * 10 + " [... 1,500 more characters]"
