from collections.abc import Callable

import pytest

from swe_gym.errors import ToolError
from swe_gym.tools import ToolContext
from swe_gym.tools.edit import rewrite as rewrite_tool

CODE = "import os\n\n\ndef f(x):\n    return x\n"


def rewrite(context: ToolContext, path: str, new_code: str, **more: int) -> str:
    return rewrite_tool.run(context, path, new_code=new_code, **more).text


def test_lines_are_replaced_and_the_diff_is_shown(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"pkg/mod.py": CODE})

    shown = rewrite(context, "pkg/mod.py", "    return x + 1", start=5)

    assert shown == (
        "The file pkg/mod.py was updated.\n\n"
        "--- a/pkg/mod.py\n+++ b/pkg/mod.py\n"
        "@@ -2,4 +2,4 @@\n \n \n def f(x):\n-    return x\n+    return x + 1\n"
    )
    assert context.sandbox.read_file("pkg/mod.py") == CODE.replace("return x", "return x + 1").encode()


def test_a_range_is_replaced_and_may_be_deleted(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"f": "1\n2\n3\n4\n"})

    rewrite(context, "f", "two\nand three", start=2, end=3)
    assert context.sandbox.read_file("f") == b"1\ntwo\nand three\n4\n"
    rewrite(context, "f", "", start=1, end=3)
    assert context.sandbox.read_file("f") == b"4\n"


def test_a_whole_file_is_written_exactly(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"old.py": CODE})

    assert rewrite(context, "old.py", "x = 1").startswith("The file old.py was updated.")
    assert context.sandbox.read_file("old.py") == b"x = 1"
    assert rewrite(context, "new/deep/f.py", "\ty = 2\n") == (
        "The file new/deep/f.py was created.\n\n--- a/new/deep/f.py\n+++ b/new/deep/f.py\n@@ -0,0 +1 @@\n+\ty = 2\n"
    )
    assert context.sandbox.read_file("new/deep/f.py") == b"\ty = 2\n"
    rewrite(context, "pkg/__init__.py", "")
    assert context.sandbox.read_file("pkg/__init__.py") == b""


def test_the_mode_of_a_file_stays(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"run.sh": "#!/bin/sh\necho old\n"})
    context.sandbox.exec("chmod 755 run.sh")

    rewrite(context, "run.sh", "echo new", start=2)

    assert context.sandbox.exec("./run.sh").text == "new\n"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ({"start": 7}, "the file has 5 lines"),
        ({"start": 0}, "the file has 5 lines"),
        ({"start": 3, "end": 2}, "before start"),
        ({"end": 2}, "without start"),
    ],
)
def test_invalid_lines_change_nothing(
    context_for: Callable[..., ToolContext], lines: dict[str, int], message: str
) -> None:
    context = context_for({"f.py": CODE})

    with pytest.raises(ToolError, match=message):
        rewrite(context, "f.py", "x", **lines)
    assert context.sandbox.read_file("f.py") == CODE.encode()


def test_a_path_that_cannot_be_written_is_refused(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"f": "", "folder/f": ""})

    with pytest.raises(ToolError, match="no file 'missing'"):
        rewrite(context, "missing", "x", start=1)
    with pytest.raises(ToolError, match="'folder' is not a regular file"):
        rewrite(context, "folder", "x")
    with pytest.raises(ToolError, match="'f/below'"):
        rewrite(context, "f/below", "x")
    with pytest.raises(ToolError, match="lone surrogate"):
        rewrite(context, "f", "\ud800")


def test_a_long_diff_is_bounded(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"f": "old\n" * 5000}, max_output=2000)

    shown = rewrite(context, "f", "new\n" * 5000)

    assert len(shown) <= 2000
    assert " cut ...]" in shown
    assert context.sandbox.read_file("f") == b"new\n" * 5000
