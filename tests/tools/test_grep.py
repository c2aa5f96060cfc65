from collections.abc import Callable

import pytest

from swe_gym.errors import ToolError
from swe_gym.sandboxes.fake import FakeSandbox, Reply
from swe_gym.tools import ToolContext
from swe_gym.tools.grep import as_extended
from swe_gym.tools.grep import grep as grep_tool

FILES: dict[str, str | bytes] = {
    "pkg/b.py": "import os\n\ndef second(x):\n    return x\n",
    "pkg/a.py": "def first(x):\n    return x + 1\n",
    "pkg/deep/c.pyx": "def third(x):\n",
    "notes.txt": "def in the notes, caf\u00e9\n",
    "latin.txt": b"def caf\xe9\n",
    "data.bin": b"def\0binary\n",
    ".git/config": "def hidden\n",
    ".hidden/d.py": "def fourth():\n",
    "-dash.txt": "def dash\n",
    "odd name: 1.txt": "def odd\n",
}


def grep(context: ToolContext, pattern: str, path: str = ".", **more: object) -> str:
    return grep_tool.run(context, pattern, path, **more).text


def test_matching_lines_are_sorted_by_path_and_line(context_for: Callable[..., ToolContext]) -> None:
    context = context_for(FILES)

    assert grep(context, "^def ") == (
        "-dash.txt:1:def dash\n"
        ".hidden/d.py:1:def fourth():\n"
        "latin.txt:1:def café\n"
        "notes.txt:1:def in the notes, café\n"
        "odd name: 1.txt:1:def odd\n"
        "pkg/a.py:1:def first(x):\n"
        "pkg/b.py:3:def second(x):\n"
        "pkg/deep/c.pyx:1:def third(x):\n"
    )


@pytest.mark.parametrize(
    ("path", "include", "files"),
    [
        ("pkg", "", ["pkg/a.py", "pkg/b.py", "pkg/deep/c.pyx"]),
        ("/testbed/pkg/deep/", "", ["pkg/deep/c.pyx"]),
        ("pkg/a.py", "", ["pkg/a.py"]),
        ("-dash.txt", "", ["-dash.txt"]),
        (".", "*.py", [".hidden/d.py", "pkg/a.py", "pkg/b.py"]),
        (".", "*.{py,pyx}", [".hidden/d.py", "pkg/a.py", "pkg/b.py", "pkg/deep/c.pyx"]),
        (".", "pkg/*.py", ["pkg/a.py", "pkg/b.py"]),
        (".", "pkg/**/*.pyx", ["pkg/deep/c.pyx"]),
        (".", "**/a.py", ["pkg/a.py"]),
        ("pkg", "deep/*", ["pkg/deep/c.pyx"]),
    ],
)
def test_the_search_is_narrowed_by_path_and_glob(
    context_for: Callable[..., ToolContext], path: str, include: str, files: list[str]
) -> None:
    found = grep(context_for(FILES), "^def ", path, include=include)

    assert [line.split(":")[0] for line in found.splitlines()] == files


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        (r"\d+", True),
        (r"[\d]", True),
        (r"x[\s\d]*=", True),
        (r"(?:one|x) = 4", True),
        (r"(?i)VALUE", True),
        (r"VALUE", False),
        (r"\bvalue\b", True),
        (r"\bvalu\b", False),
        (r"alue *x\.y", True),
        (r"[[:digit:]]{2}", True),
        (r"[]x]", True),
        (r"é", True),
        (r"x = \D", False),
    ],
)
def test_perl_style_patterns_work(context_for: Callable[..., ToolContext], pattern: str, matches: bool) -> None:
    found = grep(context_for({"f": "value x.y é\nx = 42\n"}), pattern)

    assert found.startswith("f:") is matches


def test_perl_classes_are_translated() -> None:
    assert as_extended(r"(?:a|b)\d[\w.]\\d[^]\d]") == r"(a|b)[0-9][[:alnum:]_.]\\d[^]0-9]"


@pytest.mark.parametrize("pattern", ["a(", "a[b", "a{2,1}", "x\\"])
def test_a_bad_pattern_is_refused_with_the_reason(context_for: Callable[..., ToolContext], pattern: str) -> None:
    with pytest.raises(ToolError, match=r"no regular expression that grep takes: .+"):
        grep(context_for({"f": "x\n"}), pattern)


@pytest.mark.parametrize("pattern", ["(?=x)", "a(?!x)", "(?P<n>x)"])
def test_look_arounds_are_an_error(context_for: Callable[..., ToolContext], pattern: str) -> None:
    with pytest.raises(ToolError, match="which extended regular expressions have not"):
        grep(context_for({"f": "x\n"}), pattern)


@pytest.mark.parametrize("pattern", ["", "a\nb", "a\0", "\ud800", "[" * 2001])
def test_an_empty_or_long_or_multiline_pattern_is_an_error(
    context_for: Callable[..., ToolContext], pattern: str
) -> None:
    with pytest.raises(ToolError):
        grep(context_for({"f": "x\n"}), pattern)


@pytest.mark.parametrize("path", ["nowhere", "/nowhere/at/all", "f/below"])
def test_a_missing_path_is_refused(context_for: Callable[..., ToolContext], path: str) -> None:
    with pytest.raises(ToolError, match="There is no file or folder"):
        grep(context_for({"f": "x\n"}), "x", path)


def test_no_match_gives_a_hint_on_needless_backslashes(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"f": "one\n"})

    assert grep(context, "two") == "No line of the repository matches `two`.\n"
    assert "| needs no backslash" in grep(context, r"two\|one")


def test_results_are_limited_and_the_rest_is_counted(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({f"{name}.txt": "hit\n" * 60 for name in "cab"})

    lines = grep(context, "hit", max_results=70).splitlines()

    assert lines[0] == "a.txt:1:hit"
    assert lines[69] == "b.txt:10:hit"
    assert lines[70:] == ["[... 110 more matching lines; 180 in 3 files in all ...]"]
    with pytest.raises(ToolError, match="max_results"):
        grep(context, "hit", max_results=0)


def test_a_long_line_is_cut(context_for: Callable[..., ToolContext]) -> None:
    assert grep(context_for({"f": "x" * 1000 + "\n"}), "x") == f"f:1:{'x' * 300} [... 700 more characters]\n"


def test_too_many_matches_to_read_are_counted_by_file(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"small.txt": "x\n"})
    context.sandbox.exec("yes xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx | head -n 60000 > big.txt")

    found = grep(context, "x")

    assert found == (
        "60,001 lines in 2 files match, too many to show: narrow the search. Most are in\n"
        "big.txt: 60,000 lines\nsmall.txt: 1 lines\n"
    )


def test_a_search_does_not_hang_on_a_pipe_or_a_loop_of_links(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"f": "x\n"})
    context.sandbox.exec("mkfifo pipe; ln -s . loop; ln -s nowhere dangling")

    assert grep(context, "x") == "f:1:x\n"


@pytest.mark.timeout(60)  # quadratic time would be many minutes
def test_unexpected_output_of_grep_is_parsed_in_linear_time() -> None:
    """A policy may replace grep by its own program."""
    with FakeSandbox(replies=[Reply(match="^grep", stdout=b"a" * 1_000_000)]) as sandbox:
        assert grep(ToolContext(sandbox), "a").startswith("No line")


def test_all_runs_of_grep_in_one_call_share_a_deadline() -> None:
    flood = Reply(match=" -n ", stdout=b"a\x001:a\n" * 500_000)
    with FakeSandbox(replies=[flood, Reply(match=" -c ", stdout=b"a\x00500000\n")]) as sandbox:
        assert "too many to show" in grep(ToolContext(sandbox), "a")
        first, second = (call.arguments["timeout"] for call in sandbox.calls if call.at == "exec")
    assert second < first
