"""In which order an evaluation script and the work go into the sandbox that judges.

Most scripts of Python datasets install the product before they test it, which runs code of the workspace as root:
`setup.py`, build backends, hooks. With the work in place that would be the policy's code, free to change the installed
test runner or to leave a process behind that rewrites the tests. So the script's first part runs on the original, and
the work goes in after it. What a compiler reads goes in first all the same: it is compiled, and not run.
"""

from __future__ import annotations

import itertools
import posixpath
import re

from ..sandboxes.base import Sandbox
from ..types import Task
from .base import OpenSandbox, Ready
from .evaluation import begin, builds_python
from .patch import Patch, apply_diff, apply_patch
from .protect import touched_files
from .script import split_script

COMPILED = (".c", ".h", ".cc", ".cpp", ".cxx", ".hh", ".hpp", ".pyx", ".pxd", ".f", ".f90")
"""Ends of the names of files that a build compiles and does not run."""

BUILD_FILES = ("setup.py", "setup.cfg", "pyproject.toml", "MANIFEST.in", "meson.build", "CMakeLists.txt", "Makefile")

NOT_PRODUCTS = ("-r", "--requirement", "-c", "--constraint", "--editable")
"""Options of pip before a path that is not installed as a copy. So is what ends in "e", as `-e` and `-ve` do."""


def put_tests_in(task: Task, sandbox: Sandbox) -> None:
    """Put the hidden tests into a fresh sandbox, unless the task's evaluation script does, as SWE-bench's do.

    Raises:
        TaskError: They do not go in.
        SandboxError: The sandbox failed.
    """
    oracle = task.oracle
    if oracle.test_patch.strip() not in oracle.eval_script:
        apply_diff(sandbox, oracle.test_patch, what=f"task {task.task_id}: the test patch")
    for path, text in oracle.test_files.items():
        sandbox.write_file(path, text.encode())


def put_in(task: Task, work: Patch | str, sandbox: Sandbox, open_fresh: OpenSandbox) -> Ready:
    """Put work into a fresh sandbox, after the first part of the task's evaluation script where possible.

    A task whose own solution changes how the product is built gets its work first, for the build is then part of what
    is judged. So does one whose script installs a copy of the product, for the copy is what is tested. The gold patch
    always goes first.

    Args:
        task: The task.
        work: The part of the policy's work that counts, or the gold patch.
        sandbox: Fresh, with the hidden tests in it unless the script brings them.
        open_fresh: Opens further sandboxes of the task.

    Raises:
        GradingError: The script did not reach its tests.
        TaskError: The gold patch does not apply.
        SandboxError: The sandbox failed.
    """
    if isinstance(work, str):
        apply_diff(sandbox, work, what=f"task {task.task_id}: the gold patch")
        return begin(task, sandbox, open_fresh)
    built_from_work = changes_the_build(task.oracle.gold_patch) or installs_a_copy(task.oracle.eval_script)
    if not builds_python(task) or built_from_work:
        apply_patch(work, sandbox)
        return begin(task, sandbox, open_fresh)
    compiled = tuple(change for change in work.changes if change.path.endswith(COMPILED))
    apply_patch(work.model_copy(update={"changes": compiled}), sandbox)
    ready = begin(task, sandbox, open_fresh)
    apply_patch(work.model_copy(update={"changes": tuple(c for c in work.changes if c not in compiled)}), sandbox)
    return ready


def changes_the_build(diff: str) -> bool:
    """Whether a diff touches a file that says how a product is built."""
    return any(posixpath.basename(path) in BUILD_FILES for path in touched_files(diff))


def installs_a_copy(script: str) -> bool:
    """Whether what a script does before its tests installs the workspace by copying it, as `pip install .` does."""
    commands = re.split(r"[\n;&|]+", split_script(script).before)
    return any(_copies([word.strip("'\"") for word in command.split()]) for command in commands)


def _copies(words: list[str]) -> bool:
    if "install" not in words:
        return False
    place = words.index("install")
    tool, arguments = words[:place], words[place:]
    if "setup.py" in tool:
        return True
    if not any(posixpath.basename(word).startswith("pip") for word in tool):
        return False
    pairs = itertools.pairwise(arguments)
    return any(
        re.match(r"\.(?:$|/|\[)|/testbed|\{workdir\}", word)
        and option not in NOT_PRODUCTS
        and not re.fullmatch(r"-\w*e", option)
        for option, word in pairs
    )
