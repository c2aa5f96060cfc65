from collections.abc import Callable

import pytest

from swe_gym.errors import ToolError
from swe_gym.tools import ToolContext
from swe_gym.tools.view import MAX_ENTRIES
from swe_gym.tools.view import listdir as listdir_tool


def listdir(context: ToolContext, path: str = ".", depth: int = 1) -> str:
    return listdir_tool.run(context, path, depth).text


def test_a_folder_is_listed_in_order_without_git(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"b.py": "", "a/x.py": "", ".github/ci.yml": "", ".git/HEAD": "", "a/.git/HEAD": ""})
    context.sandbox.exec("ln -s b.py link")

    assert listdir(context) == "./\n  .github/\n  a/\n  b.py\n  link -> b.py\n"
    assert listdir(context, "a", depth=3) == "a/\n  x.py\n"


def test_levels_are_indented(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"a/b/c/d.py": "", "a/z.py": "", "a-b.py": ""})

    assert listdir(context, depth=3) == "./\n  a/\n    b/\n      c/\n    z.py\n  a-b.py\n"
    assert listdir(context, "/testbed/a") == "a/\n  b/\n  z.py\n"


def test_an_empty_folder_says_so(context_for: Callable[..., ToolContext]) -> None:
    context = context_for()
    context.sandbox.exec("mkdir empty")

    assert listdir(context, "empty") == "empty/ is empty.\n"


def test_upper_levels_are_shown_before_lower_ones_and_the_rest_is_counted(
    context_for: Callable[..., ToolContext],
) -> None:
    context = context_for({"zz.py": ""})
    context.sandbox.exec(f"mkdir many && cd many && seq {MAX_ENTRIES + 100} | xargs touch")

    lines = listdir(context, depth=2).splitlines()

    assert lines[:2] == ["./", "  many/"]
    assert lines[-2:] == ["  zz.py", "[... 102 names are not shown, the deepest ones: list a sub-folder ...]"]
    assert len(lines) == MAX_ENTRIES + 2


def test_a_folder_with_too_many_names_is_an_error(context_for: Callable[..., ToolContext]) -> None:
    context = context_for()
    context.sandbox.exec("mkdir many && cd many && seq -f %0200.0f 6000 | xargs touch")

    with pytest.raises(ToolError, match="holds too much to list"):
        listdir(context, depth=2)


@pytest.mark.parametrize(
    ("path", "message"),
    [("f", "not a folder"), ("nowhere", "There is no folder 'nowhere'"), ("a\0", "NUL"), ("\ud800", "surrogate")],
)
def test_listing_a_file_or_a_missing_folder_is_an_error(
    context_for: Callable[..., ToolContext], path: str, message: str
) -> None:
    with pytest.raises(ToolError, match=message):
        listdir(context_for({"f": ""}), path)


@pytest.mark.parametrize("depth", [0, -1, 11])
def test_a_depth_out_of_range_is_an_error(context_for: Callable[..., ToolContext], depth: int) -> None:
    with pytest.raises(ToolError, match="must be from 1 to 10"):
        listdir(context_for(), depth=depth)


def test_odd_names_are_harmless(context_for: Callable[..., ToolContext]) -> None:
    context = context_for()
    context.sandbox.exec(r"touch $'a\nb' $'\e[31m' $'\xff' -- -x")

    assert listdir(context) == "./\n  \u241b[31m\n  -x\n  a\nb\n  \ufffd\n"
