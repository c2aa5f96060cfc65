import codecs
from collections.abc import Callable

import pytest

from swe_gym.errors import ToolError
from swe_gym.tools import ToolContext
from swe_gym.tools.view import view as view_tool


def view(context: ToolContext, path: str, **more: int) -> str:
    return view_tool.run(context, path, **more).text


def test_a_file_is_shown_with_line_numbers(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"pkg/mod.py": "import os\n\n\tx = 1\n"})

    assert view(context, "pkg/mod.py") == (
        "pkg/mod.py, lines 1-3 of 3:\n     1\timport os\n     2\t\n     3\t\tx = 1\n"
    )


def test_a_range_is_shown_and_the_end_of_the_file_has_two_names(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"f": "a\nb\nc\nd"})

    assert view(context, "f", start=2, end=3) == "f, lines 2-3 of 4:\n     2\tb\n     3\tc\n"
    for end in (4, 99, -1):
        assert view(context, "f", start=3, end=end) == "f, lines 3-4 of 4:\n     3\tc\n     4\td\n"


def test_an_absolute_path_and_a_relative_one_are_the_same_file(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"sub/f": "a\n"})

    assert view(context, "/testbed/sub/f") == view(context, "sub/../sub/f") == view(context, "sub/f")


@pytest.mark.parametrize(
    ("start", "end", "message"),
    [(0, 1, "has lines 1 to 3"), (-2, None, "has lines 1 to 3"), (4, 4, "has lines 1 to 3"), (3, 2, "before start")],
)
def test_lines_that_do_not_exist_are_refused(
    context_for: Callable[..., ToolContext], start: int, end: int | None, message: str
) -> None:
    context = context_for({"f": "a\nb\nc\n"})

    with pytest.raises(ToolError, match=message):
        view_tool.run(context, "f", start, end)


def test_a_long_file_is_shown_in_windows_that_lead_through_all_of_it(context_for: Callable[..., ToolContext]) -> None:
    lines = [f"line number {number}" for number in range(1, 301)]
    context = context_for({"long.txt": "\n".join(lines) + "\n"}, max_output=3000)

    seen: list[str] = []
    start = 1
    while start:
        text = view(context, "long.txt", start=start)
        assert len(text) <= 3000
        seen += [line.split("\t")[1] for line in text.splitlines() if "\t" in line]
        start = int(text.rsplit("start=", 1)[1].split(" ")[0]) if "start=" in text else 0

    assert seen == lines


def test_a_very_long_line_is_cut_and_counted(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"min.js": "x" * 50_000 + "\nnext\n"})

    text = view(context, "min.js")

    assert "[... 48,000 more characters]\n     2\tnext\n" in text
    assert len(text) < 3000


def test_a_folder_is_listed(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"a.py": "", "sub/b.py": ""})

    assert view(context, ".") == "./\n  a.py\n  sub/\n"
    assert view(context, "sub") == "sub/\n  b.py\n"


def test_a_missing_file_is_found_elsewhere(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"src/pkg/mod.py": "", "tests/mod.py": "", "src/it's [odd]*.py": ""})

    with pytest.raises(ToolError, match=r"no file 'mod.py'. Of that name there are: src/pkg/mod.py, tests/mod.py\."):
        view(context, "mod.py")
    with pytest.raises(ToolError, match=r"Of that name there are: src/it's \[odd\]\*.py"):
        view(context, "it's [odd]*.py")
    with pytest.raises(ToolError, match=r"no file 'nothing.py'\.$"):
        view(context, "nothing.py")


@pytest.mark.parametrize("path", ["a\0b", "\ud800", "f/below"])
def test_an_invalid_path_is_an_error(context_for: Callable[..., ToolContext], path: str) -> None:
    with pytest.raises(ToolError):
        view(context_for({"f": ""}), path)


def test_a_binary_file_is_refused_with_its_size(context_for: Callable[..., ToolContext]) -> None:
    with pytest.raises(ToolError, match=r"'data.bin' is a binary file of 5 bytes"):
        view(context_for({"data.bin": b"\x7fE\0LF"}), "data.bin")


def test_a_file_that_is_too_big_is_an_error(context_for: Callable[..., ToolContext]) -> None:
    context = context_for()
    context.sandbox.exec("truncate -s 6M big.log")

    with pytest.raises(ToolError, match=r"'big.log' cannot be used: .*larger than 5242880 bytes"):
        view(context, "big.log")


def test_text_in_other_encodings_is_readable_and_named(context_for: Callable[..., ToolContext]) -> None:
    context = context_for(
        {
            "latin.txt": b"caf\xe9\n",
            "wide.txt": codecs.BOM_UTF16_LE + "né\r\n".encode("utf-16-le"),
            "dos.txt": b"a\r\nb\r\n",
            "empty.txt": b"",
        }
    )

    assert view(context, "latin.txt") == "latin.txt, lines 1-1 of 1 (latin-1 text):\n     1\tcafé\n"
    assert view(context, "wide.txt") == (
        "wide.txt, lines 1-1 of 1 (utf-16-le text, lines end with CRLF):\n     1\tné\n"
    )
    assert view(context, "dos.txt") == "dos.txt, lines 1-2 of 2 (lines end with CRLF):\n     1\ta\n     2\tb\n"
    assert view(context, "empty.txt") == "empty.txt is empty.\n"


def test_control_characters_in_a_file_are_visible(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"f": b"\x1b[31mred\rx\x0cy\n"})

    assert view(context, "f").endswith("     1\t\u241b[31mred\u240dx\x0cy\n")
