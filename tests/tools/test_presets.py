from collections.abc import Callable

import pytest

from swe_gym.errors import ToolError
from swe_gym.tools import Tool, ToolContext, make_tools
from swe_gym.tools.files import Document
from swe_gym.tools.presets.r2e import condense

CODE = "import os\n\n\ndef f(x):\n    return x\n"


def tool(preset: str, name: str) -> Tool:
    return next(tool for tool in make_tools(preset) if tool.name == name)


# --- R2E-Gym --------------------------------------------------------------------------------------------


def test_r2e_bash_shows_the_exit_code_and_both_streams(context_for: Callable[..., ToolContext]) -> None:
    result = tool("r2e", "execute_bash").run(context_for(), cmd="echo out; echo err >&2; exit 2")

    assert result.text == (
        "Exit code: 2\nExecution output of [execute_bash]:\n[STDOUT]\n\nout\n\n\n[STDERR]\n\nerr\n\n"
    )
    assert (result.ok, result.exit_code) == (False, 2)


def test_r2e_bash_is_bounded_in_both_streams(context_for: Callable[..., ToolContext]) -> None:
    context = context_for(max_output=3000)

    text = tool("r2e", "execute_bash").run(context, cmd="seq 100000; seq 100000 >&2; echo last >&2").text

    assert len(text) <= 3000
    assert text.count(" cut ...]") == 2
    assert text.endswith("last\n\n")


def test_r2e_search_counts_by_file_and_shows_lines_of_one_file(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"pkg/a.py": "x(1)\ny\nx(2)\n", "pkg/b.txt": "x(3)\n"})
    search = tool("r2e", "search")

    assert search.run(context, search_term="x(", path="/testbed/pkg").text == (
        "Execution output of [search]:\n"
        'Found 3 matches for "x(" in /testbed/pkg:\n'
        "./pkg/a.py (2 matches)\n./pkg/b.txt (1 matches)\n"
        'End of matches for "x(" in /testbed/pkg\n'
    )
    assert "b.txt" not in search.run(context, search_term="x(", python_only=True).text
    assert search.run(context, search_term="x(", path="pkg/a.py").text == (
        "Execution output of [search]:\n1:x(1)\n3:x(2)\n"
    )
    assert search.run(context, search_term="nothing").text.endswith('No matches for "nothing" in .\n')


def test_r2e_search_in_too_many_files_asks_to_narrow(context_for: Callable[..., ToolContext]) -> None:
    context = context_for()
    context.sandbox.exec("for i in $(seq 101); do echo hit > f$i; done")

    text = tool("r2e", "search").run(context, search_term="hit").text

    assert text == 'Execution output of [search]:\n101 files hold matches for "hit" in .: narrow the search\n'


def test_r2e_finish_ends_the_episode(context_for: Callable[..., ToolContext]) -> None:
    result = tool("r2e", "finish").run(context_for(), command="submit", result="Fixed.")

    assert (result.text, result.submitted) == ("<<< Finished >>>", True)


LONG = """\
import os
class C:
    def method(self):
        def inner():
            a = 1
            b = 2
            c = 3
            d = 4
            e = 5
            f = 6
        return inner

    def short(self):
        return 1

async def work(
    x,
):
    b = '''
  not code:
def nothing():
'''
    return b
VALUE = [
    1,
]
""" + "".join(f"c{n} = {n}\n" for n in range(100))


def test_r2e_shows_a_long_python_file_without_the_bodies_of_its_functions(
    context_for: Callable[..., ToolContext],
) -> None:
    context = context_for({"long.py": LONG, "short.py": CODE, "long.txt": LONG})
    editor = tool("r2e", "file_editor")

    text = editor.run(context, command="view", path="/testbed/long.py").text

    assert text.startswith("Execution output of [file_editor]:\nHere is /testbed/long.py, condensed; ")
    assert "     3\t    def method(self):\n     4\t... lines 4-11 elided ...\n    12\t\n    13\t    def short" in text
    assert "return inner" not in text
    assert "    14\t        return 1\n" in text
    assert "    18\t):\n    19\t... lines 19-23 elided ...\n    24\tVALUE = [\n" in text
    assert "   126\tc99 = 99\n" in text
    for whole in (
        {"path": "long.py", "concise": False},
        {"path": "long.py", "view_range": [1, -1]},
        {"path": "long.txt"},
    ):
        assert "return inner" in editor.run(context, command="view", **whole).text
    assert "     5\t    return x\n" in editor.run(context, command="view", path="short.py").text


def test_only_python_is_condensed() -> None:
    assert condense(Document.of(b"def f(:\n   ((((\n")) == ""
    assert condense(Document.of(b"def f():\n        x\n    y\n")) == ""


def test_r2e_lists_a_folder_two_levels_deep(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"a/b/c.py": "", "a/b/deep/x.py": "", "a/.hidden/y.py": "", "a/notes.txt": ""})
    editor = tool("r2e", "file_editor")

    text = editor.run(context, command="view", path="/testbed/a").text

    assert text.splitlines()[2:] == ["/testbed/a", "/testbed/a/b/", "/testbed/a/b/c.py", "/testbed/a/b/deep/",
                                     "/testbed/a/notes.txt"]  # fmt: skip
    assert "notes.txt" not in editor.run(context, command="view", path="a", python_only=True).text


def test_r2e_checks_the_syntax_on_request(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"f.py": CODE})
    editor = tool("r2e", "file_editor")
    change = {"command": "str_replace", "path": "f.py"}

    bad = editor.run(context, **change, old_str="f(x):", new_str="f(x:", enable_linting=True)
    good = editor.run(context, **change, old_str="f(x:", new_str="f(y):", enable_linting=True)

    assert "[syntax error: " in bad.text
    assert "syntax" not in good.text


# --- scaffolds around str_replace_editor ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "name", "header"),
    [
        ("r2e", "file_editor", "Execution output of [file_editor]:\n"),
        ("str_replace", "str_replace_editor", ""),
        ("swe_agent", "str_replace_editor", ""),
        ("openhands", "str_replace_editor", ""),
    ],
)
def test_the_editor_views_creates_changes_and_undoes(
    context_for: Callable[..., ToolContext], preset: str, name: str, header: str
) -> None:
    context = context_for({"tabs.py": "if x:\n\tpass\r\n"})
    editor = tool(preset, name)

    def run(command: str, path: str, **more: object) -> str:
        text = editor.run(context, command=command, path=path, **more).text
        assert text.startswith(header)
        return text.removeprefix(header)

    assert run("view", "tabs.py", view_range=[2, -1]) == ("Here is tabs.py, numbered as by `cat -n`:\n     2\t\tpass\n")
    assert run("create", "/testbed/new.py", file_text="a\n") == "The file /testbed/new.py has been created.\n"
    assert run("str_replace", "tabs.py", old_str="\tpass", new_str="\treturn").endswith("     2\t\treturn\n")
    assert run("insert", "tabs.py", insert_line=0, new_str="# top").endswith(
        "     1\t# top\n     2\tif x:\n     3\t\treturn\n"
    )
    assert context.sandbox.read_file("tabs.py") == b"# top\nif x:\n\treturn\r\n"
    run("undo_edit", "tabs.py")
    run("undo_edit", "tabs.py")
    assert context.sandbox.read_file("tabs.py") == b"if x:\n\tpass\r\n"
    editor.reset()
    with pytest.raises(ToolError, match="nothing to undo"):
        run("undo_edit", "new.py")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"command": "view", "path": "f", "view_range": [1]}, "must have two"),
        ({"command": "view", "path": "f", "view_range": [3, 4]}, "lines 1 to 1"),
        ({"command": "view", "path": ".", "view_range": [1, 2]}, "is a folder"),
        ({"command": "create", "path": "f", "file_text": ""}, "exists already"),
        ({"command": "str_replace", "path": "f", "old_str": "nowhere"}, "does not occur"),
        ({"command": "fly", "path": "f"}, "give one of view, create"),
    ],
)
@pytest.mark.parametrize(("preset", "name"), [("r2e", "file_editor"), ("str_replace", "str_replace_editor")])
def test_the_editor_never_reports_an_error_as_a_success(
    context_for: Callable[..., ToolContext], preset: str, name: str, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ToolError, match=message):
        tool(preset, name).run(context_for({"f": "x\n"}), **arguments)


def test_openhands_bash_takes_no_input(context_for: Callable[..., ToolContext]) -> None:
    context = context_for()
    bash = tool("openhands", "execute_bash")

    result = bash.run(context, command="echo hi", is_input="false", timeout=30, security_risk="LOW")

    assert (result.text, result.exit_code) == ("hi\n[exit code 0]", 0)
    with pytest.raises(ToolError, match="No command is running"):
        bash.run(context, command="C-c", is_input="true")


def test_openhands_thinks_and_finishes(context_for: Callable[..., ToolContext]) -> None:
    context = context_for()

    assert not tool("openhands", "think").run(context, thought="Hm.").submitted
    assert tool("openhands", "finish").run(context, message="Done.").submitted


# --- debug-gym ----------------------------------------------------------------------------------------------


def test_debug_gym_bash_says_how_a_command_went(context_for: Callable[..., ToolContext]) -> None:
    context = context_for()
    bash = tool("debug_gym", "bash")

    assert bash.run(context, command="echo hi").text == "hi\n"
    assert bash.run(context, command="true").text == "The command was successful and printed nothing."
    failed = bash.run(context, command="echo oh; exit 4")
    assert (failed.text, failed.ok, failed.exit_code) == (
        "The command failed (exit code 4). Its output:\noh\n",
        False,
        4,
    )
    assert "timed out after 0.3 s" in bash.run(context, command="echo part; sleep 60", timeout=0.3).text
    with pytest.raises(ToolError, match="more than 0"):
        bash.run(context, command="true", timeout=0)


def test_debug_gym_view_shows_lines_in_a_block(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"f.py": CODE})
    view = tool("debug_gym", "view")

    assert view.run(context, path="f.py", start=4).text == (
        "Viewing `f.py`, lines 4-5 of 5 total lines.\n\n```\n     4\tdef f(x):\n     5\t    return x\n```\n"
    )
    plain = view.run(context, path="f.py", end=1, include_line_numbers_and_breakpoints=False).text
    assert plain == "Viewing `f.py`, lines 1-1 of 5 total lines.\n\n```\nimport os\n```\n"
    assert view.run(context, path=".").text == "./\n  f.py\n"


def test_debug_gym_grep_groups_by_file_and_takes_a_glob(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"a.py": "x\n\nx\n", "tests/b.py": "x\n", "c.txt": "x\n"})
    grep = tool("debug_gym", "grep")

    assert grep.run(context, pattern="x", path="*.py").text == (
        "=== a.py ===\n     1 x\n     3 x\n\n=== tests/b.py ===\n     1 x\n\n"
    )
    assert grep.run(context, pattern="x", path="tests/*.py").text == "=== tests/b.py ===\n     1 x\n\n"
    assert grep.run(context, pattern="x", max_results=1).text.endswith(
        "=== a.py ===\n     1 x\n\n[... 3 more matching lines; 4 in 3 files in all ...]\n"
    )
    with pytest.raises(ToolError, match="max_results"):
        grep.run(context, pattern="x", max_results=0)


def test_debug_gym_edit_is_rewrite(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"f.py": CODE})

    text = tool("debug_gym", "edit").run(context, path="f.py", start=5, new_code="    return 1").text

    assert "-    return x\n+    return 1\n" in text


def test_debug_gym_pdb_starts_a_program_by_runner_and_file(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"prog.py": "x = 41\ny = x + 1\nprint(y)\n"})
    pdb = tool("debug_gym", "pdb")

    started = pdb.run(context, command="start", runner="python", file="prog.py")
    pdb.run(context, command="b prog.py:3")
    pdb.run(context, command="c")
    shown = pdb.run(context, command="p y")
    again = pdb.run(context, command="start")
    pdb.reset()

    assert "prog.py:1" in started.text
    assert "42" in shown.text
    assert "prog.py:1" in again.text
