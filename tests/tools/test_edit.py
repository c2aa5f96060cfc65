import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_gym.errors import MissingFile, ToolError
from swe_gym.tools import ToolContext
from swe_gym.tools.edit import Edit, EditHistory

CODE = b"def f(x):\r\n\treturn x  # caf\xe9\r\n\r\nprint(f(1))"


def test_a_text_is_replaced_and_the_lines_around_are_shown(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"pkg/f.py": CODE})

    result = Edit().run(context, "str_replace", "pkg/f.py", old_str="return x  # café", new_str="return x + 1  # thé")

    assert result.text == (
        "The file pkg/f.py was changed. It now reads:\n"
        "     1\tdef f(x):\n     2\t\treturn x + 1  # thé\n     3\t\n     4\tprint(f(1))\n"
    )
    assert context.sandbox.read_file("pkg/f.py") == CODE.replace(b"return x  # caf\xe9", b"return x + 1  # th\xe9")


def test_without_a_new_text_the_old_one_is_deleted(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"f": "one two\n"})

    Edit().run(context, "str_replace", "f", old_str=" two")

    assert context.sandbox.read_file("f") == b"one\n"


def test_lines_are_inserted(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"f.py": CODE})

    Edit().run(context, "insert", "f.py", new_str="a\nb", insert_line=4)

    assert context.sandbox.read_file("f.py") == CODE + b"\r\na\r\nb"


def test_create_does_not_overwrite_a_file(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"old.py": "x = 1\n"})
    edit = Edit()

    assert edit.run(context, "create", "new/f.py", file_text="\ty\r\n").text == "The file new/f.py was created."
    assert context.sandbox.read_file("new/f.py") == b"\ty\r\n"
    for path in ("old.py", "new/f.py"):
        with pytest.raises(ToolError, match="exists already, and nothing was changed"):
            edit.run(context, "create", path, file_text="z")
    with pytest.raises(ToolError, match="'new' is not a regular file"):
        edit.run(context, "create", "new", file_text="z")
    assert context.sandbox.read_file("old.py") == b"x = 1\n"


def test_changes_are_undone_one_by_one_for_each_file(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"f.py": CODE, "g.py": "one\n"})
    edit = Edit()
    edit.run(context, "str_replace", "f.py", old_str="return x", new_str="return y")
    edit.run(context, "str_replace", "g.py", old_str="one", new_str="two")
    edit.run(context, "insert", "/testbed/f.py", new_str="# top", insert_line=0)
    edit.run(context, "create", "h.py", file_text="new")

    assert edit.run(context, "undo", "f.py").text == "The last change of f.py was undone."
    assert context.sandbox.read_file("f.py") == CODE.replace(b"return x", b"return y")
    edit.run(context, "undo", "f.py")
    assert context.sandbox.read_file("f.py") == CODE
    assert edit.run(context, "undo", "h.py").text == "The last change of h.py was undone: it does not exist any more."
    with pytest.raises(MissingFile):
        context.sandbox.read_file("h.py")
    assert context.sandbox.read_file("g.py") == b"two\n"
    with pytest.raises(ToolError, match="nothing to undo"):
        edit.run(context, "undo", "f.py")


def test_undo_refuses_if_something_else_changed_the_file(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"f": "one\n"})
    edit = Edit()
    edit.run(context, "str_replace", "f", old_str="one", new_str="two")
    context.sandbox.exec("echo three >> f")

    with pytest.raises(ToolError, match="changed by something else"):
        edit.run(context, "undo", "f")
    assert context.sandbox.read_file("f") == b"two\nthree\n"
    context.sandbox.exec("rm f")
    with pytest.raises(ToolError, match="changed by something else"):
        edit.run(context, "undo", "f")


def test_reset_clears_the_history(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"f": "one\n"})
    edit = Edit()
    edit.run(context, "str_replace", "f", old_str="one", new_str="two")

    edit.reset()

    with pytest.raises(ToolError, match="nothing to undo"):
        edit.run(context, "undo", "f")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"command": "str_replace", "new_str": "x"}, "needs old_str"),
        ({"command": "insert", "new_str": "x"}, "needs insert_line"),
        ({"command": "insert", "insert_line": 0}, "needs insert_line"),
        ({"command": "create"}, "needs file_text"),
        ({"command": "view"}, "no command 'view'"),
        ({"command": "str_replace", "old_str": "nowhere"}, "does not occur"),
        ({"command": "str_replace", "old_str": "o", "new_str": "\ud800"}, "lone surrogate"),
    ],
)
def test_an_invalid_call_changes_nothing(
    context_for: Callable[..., ToolContext], arguments: dict[str, object], message: str
) -> None:
    context = context_for({"f": "one\n"})

    with pytest.raises(ToolError, match=message):
        Edit().run(context, path="f", **arguments)
    assert context.sandbox.read_file("f") == b"one\n"


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=6))
def test_any_series_of_contents_can_be_undone(contents: list[bytes]) -> None:
    history = EditHistory()
    states: list[bytes | None] = [None, *contents]
    for before, after in itertools.pairwise(states):
        assert after is not None
        history.record("f", before, after)

    for expected, current in zip(reversed(states[:-1]), reversed(contents), strict=True):
        assert history.before_last("f", current) == expected
        history.drop_last("f")
    with pytest.raises(ToolError, match="nothing to undo"):
        history.before_last("f", b"")
