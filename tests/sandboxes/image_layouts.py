"""Images in the layouts of public datasets, with what such images carry: later commits, stashes, hidden tests."""

import dataclasses
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from swe_gym.sandboxes import SandboxSpec
from swe_gym.sandboxes.docker.build import build_image
from swe_gym.types import FolderWorkspace

WRONG = "def add(a, b):\n    return a - b\n"
RIGHT = "def add(a, b):\n    return a + b\n"
OLD_TEST = "import adder\n\n\ndef test_zero():\n    assert repr(adder.add(0, 0)) == '0'\n"
NEW_TEST = (
    "import adder\n\n\ndef test_add():\n    assert repr(adder.add(2, 1)) == '3'\n\n\n"
    "def test_zero():\n    assert repr(adder.add(0, 0)) == '0'\n"
)
FIX = """\
diff --git a/adder.py b/adder.py
--- a/adder.py
+++ b/adder.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
"""
BUG = FIX.replace("-    return a - b\n+    return a + b", "-    return a + b\n+    return a - b")
NEW_FILE = "new file mode 100644\n--- /dev/null\n+++ b/tests/test_add.py\n"
ADDED = "".join(f"+{line}\n" for line in NEW_TEST.splitlines())
TEST_PATCH = (
    f"diff --git a/tests/test_add.py b/tests/test_add.py\n{NEW_FILE}@@ -0,0 +1,{len(NEW_TEST.splitlines())} @@\n{ADDED}"
)
CONDA = 'conda() { export PATH="/opt/miniconda3/envs/$2/bin:$PATH" CONDA_DEFAULT_ENV="$2"; }\n'
PYTEST = "import sys\n\nimport pytest\n\nsys.exit(pytest.console_main())\n"


@dataclasses.dataclass(frozen=True)
class Planted:
    """A repository that knows more than its base commit.

    Attributes:
        folder: Its files, at the base commit.
        base: The base commit.
        future: Commits and blobs that a policy must not be able to reach.
    """

    folder: Path
    base: str
    future: tuple[str, ...]


def write_files(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def plant(folder: Path, states: tuple[dict[str, str], ...], base: int) -> Planted:
    """A repository with a commit for each state, at that of number `base`; the later ones are known in many ways."""

    def git(*arguments: str) -> str:
        dated = {"GIT_AUTHOR_DATE": "2020-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2020-01-01T00:00:00Z"}
        plain = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@localhost", *arguments]
        result = subprocess.run(
            command, cwd=folder, env={**os.environ, **dated, **plain}, check=True, capture_output=True
        )
        return result.stdout.decode().strip()

    folder.mkdir()
    git("init", "--quiet", "--initial-branch=main")
    commits = []
    for number, files in enumerate(states):
        write_files(folder, files)
        git("add", "--all")
        git("commit", "--quiet", "--message", f"state {number}")
        commits.append(git("rev-parse", "HEAD"))
    git("tag", "v9")
    git("branch", "next")
    git("notes", "add", "-m", "the fix")
    git("gc", "--quiet")
    write_files(folder, {"adder.py": "# a stash\n"})
    git("stash", "--quiet")
    stash = git("rev-parse", "stash@{0}")
    write_files(folder, {"adder.py": "# of nobody\n"})
    blob = git("hash-object", "-w", "adder.py")
    git("remote", "add", "origin", "https://git.example/adder.git")
    git("update-ref", "refs/remotes/origin/main", commits[-1])
    git("reset", "--quiet", "--hard", commits[base])
    (folder / ".git/refs/heads/main").write_text(f"{commits[base]}\n")  # not only packed: it goes over another .git
    return Planted(folder=folder, base=commits[base], future=(*commits[base + 1 :], stash, blob))


def python_folder(folder: Path, place: str) -> Path:
    """An environment that shows the base image's own packages, pytest among them."""
    write_files(
        folder,
        {
            "pyvenv.cfg": "home = /usr/bin\ninclude-system-site-packages = true\n",
            "bin/pytest": f"#!{place}/bin/python\n{PYTEST}",
        },
    )
    (folder / "bin/pytest").chmod(0o755)
    for name in ("python", "python3"):
        (folder / "bin" / name).symlink_to("/usr/bin/python3")
    return folder


def image_of(planted: Planted, base_image: str, extra: list[tuple[str, Path]]) -> str:
    """An image with the repository in `/testbed`, all that git knows of it, and more folders."""
    spec = SandboxSpec(workspace=FolderWorkspace(path=str(planted.folder)))
    return build_image(spec, base_image, extra=[("/testbed/.git", planted.folder / ".git"), *extra])


# --- the layouts --------------------------------------------------------------------------------------------


def r2e(folder: Path, base_image: str) -> tuple[dict[str, Any], Planted]:
    """A row of R2E-Gym with its image: tests in `/r2e_tests`, a script that runs them, an environment in `.venv`."""
    planted = plant(folder / "repo", ({"adder.py": WRONG}, {"README": "adder\n"}, {"adder.py": RIGHT}), base=1)
    tests = write_files(folder / "tests", {"test_1.py": NEW_TEST})
    script = ".venv/bin/python -W ignore -m pytest -rA r2e_tests\n"
    told = write_files(folder / "told", {"run_tests.sh": script, "expected_test_output.json": "{}"})
    venv = python_folder(folder / "venv", "/testbed/.venv")
    image = image_of(planted, base_image, [("/r2e_tests", tests), ("/testbed", told), ("/testbed/.venv", venv)])
    lines = [("context", "def add(a, b):"), ("deleted", "    return a - b"), ("added", "    return a + b")]
    hunk = {
        "descriptor": {"old_range": {"start": 1, "length": 2}, "new_range": {"start": 1, "length": 2}, "section": ""},
        "line_group": {"all_lines": [{"type": kind, "content": text} for kind, text in lines]},
    }
    change = {
        "header": {"file": {"path": "adder.py"}, "misc_line": None},
        "is_binary_file": False,
        "minus_file": {"path": "a/adder.py"},
        "plus_file": {"path": "b/adder.py"},
        "hunks": [hunk],
    }
    row = {
        "repo_name": "adder",
        "docker_image": image,
        "commit_hash": planted.future[0],
        "problem_statement": "[ISSUE]\nadd subtracts\n[/ISSUE]",
        "expected_output_json": json.dumps({"test_add": "PASSED", "test_zero": "PASSED"}),
        "parsed_commit_content": json.dumps({"file_diffs": [change]}),
    }
    return row, planted


def swebench(folder: Path, base_image: str) -> tuple[dict[str, Any], Planted]:
    """A row of SWE-bench with its image: an environment of conda, the evaluation as a script."""
    states = ({"adder.py": WRONG}, {"tests/test_old.py": OLD_TEST}, {"adder.py": RIGHT, "tests/test_add.py": NEW_TEST})
    planted = plant(folder / "repo", states, base=1)
    place = "/opt/miniconda3/envs/testbed"
    conda = write_files(folder / "conda", {"bin/activate": CONDA})
    image = image_of(planted, base_image, [("/opt/miniconda3", conda), (place, python_folder(folder / "venv", place))])
    script = [
        "#!/bin/bash",
        "set -uxo pipefail",
        "source /opt/miniconda3/bin/activate",
        "conda activate testbed",
        "cd /testbed",
        "git status",
        "git show",
        f"git -c core.fileMode=false diff {planted.base}",
        "python setup.py --version",  # stands for `pip install`: it runs what the workspace brings
        f"git checkout {planted.base} tests/test_old.py",
        f"git apply -v - <<'EOF_1'\n{TEST_PATCH}EOF_1",
        ": '>>>>> Start Test Output'",
        "pytest -rA tests/test_add.py tests/test_old.py",
        ": '>>>>> End Test Output'",
        f"git checkout {planted.base} tests/test_old.py",
    ]
    row = {
        "instance_id": "example__adder-1",
        "repo": "example/adder",
        "base_commit": planted.base,
        "patch": FIX,
        "test_patch": TEST_PATCH,
        "problem_statement": "add subtracts",
        "FAIL_TO_PASS": json.dumps(["tests/test_add.py::test_add"]),
        "PASS_TO_PASS": json.dumps(["tests/test_add.py::test_zero", "tests/test_old.py::test_zero"]),
        "version": "1.0",
        "image": image,
        "eval_script": "\n".join(script) + "\n",
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
    }
    return row, planted


def swesmith(folder: Path, base_image: str) -> tuple[dict[str, Any], Planted]:
    """A row of SWE-smith with its image, which holds the working repository and the tests that the bug breaks."""
    states = ({"adder.py": RIGHT, "tests/test_old.py": OLD_TEST, "tests/test_add.py": NEW_TEST},)
    planted = plant(folder / "repo", states, base=0)
    place = "/opt/miniconda3/envs/testbed"
    conda = write_files(folder / "conda", {"bin/activate": CONDA})
    image = image_of(planted, base_image, [("/opt/miniconda3", conda), (place, python_folder(folder / "venv", place))])
    row = {
        "instance_id": "example__adder.12345678.lm_rewrite__1",
        "repo": "swesmith/example__adder.12345678",
        "patch": BUG,
        "FAIL_TO_PASS": ["tests/test_add.py::test_add"],
        "PASS_TO_PASS": ["tests/test_add.py::test_zero", "tests/test_old.py::test_zero"],
        "image_name": image,
        "problem_statement": "add subtracts",
    }
    return row, dataclasses.replace(planted, future=(planted.base, *planted.future))


LAYOUTS = {"r2e": r2e, "swebench": swebench, "swesmith": swesmith}
"""Name of the task source -> function that makes a row and its image."""
