"""Sealing removes hidden files and history, keeps git working, and does not count as a deletion."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from swe_gym.envs.group import apply_start
from swe_gym.errors import MissingInterpreter, TaskError
from swe_gym.grading import grade
from swe_gym.grading.patch import Patch, take_patch
from swe_gym.grading.seal import checkouts, hidden_places, seal_for_grading, seal_workspace
from swe_gym.sandboxes import Sandbox
from swe_gym.sandboxes.contents.pythons import find_interpreter
from swe_gym.types import Oracle, Task

Open = Callable[..., Sandbox]

PLANT = """\
set -eu
git() { command git -c user.name=a -c user.email=a@localhost -c init.defaultBranch=main "$@"; }
rm -rf .git
git init -q .
mkdir tests
echo 'x = 1' > a.py; echo 'assert 1' > tests/test_h.py; git add -A; git commit -qm first
echo 'x = 2' > a.py; git commit -qam base
echo 'x = 3' > a.py; git commit -qam fix; git rev-parse HEAD > /tmp/fix
git tag v2; git branch next; git notes add -m 'the fix'; git gc -q
echo 'x = 4' > a.py; git commit -qam later; echo 'x = 5' > a.py; git stash -q
git reset -q --hard HEAD~2
git remote add origin https://git.example/x.git; git update-ref refs/remotes/origin/main $(cat /tmp/fix)
git config branch.main.remote origin; git config user.name somebody
"""
REACHED = """\
git rev-list --all --reflog --not HEAD; git fsck --unreachable --no-reflogs --lost-found 2>&1
git remote; git tag; git stash list; git reflog; git cat-file -t $(cat /tmp/fix) 2> /dev/null
git config --get-regexp 'remote|branch'; ls .git | grep -vE '^(HEAD|config|description|hooks|index|info|objects|refs)$'
"""


def task(*, image: str | None = "some/image", **oracle: object) -> Task:
    return Task(task_id="t", problem_statement="x", image=image, oracle=Oracle.model_validate(oracle))


@pytest.fixture
def planted(sandbox_factory: Open) -> Sandbox:
    box = sandbox_factory({"a.py": ""})
    result = box.exec(PLANT, merge=True)
    assert result.ok, result.text
    return box


def run(box: Sandbox, command: str) -> str:
    return box.exec(command, merge=True).text


def test_nothing_newer_than_the_base_is_left_and_the_past_stays(planted: Sandbox) -> None:
    base = run(planted, "git rev-parse HEAD")
    seal_workspace(task(), planted)
    assert run(planted, REACHED) == ""
    assert run(planted, "git rev-parse HEAD") == base
    assert run(planted, "git log --format=%s; git status --short; git diff; git branch") == "base\nfirst\n* main\n"
    assert run(planted, "git fsck; git show HEAD~1:a.py; git config user.name") == "x = 1\nsomebody\n"
    assert planted.exec(
        "echo 'x = 9' > a.py && git -c user.email=b@localhost commit -qam mine && git stash list && git gc -q"
    ).ok


def test_sealing_twice_changes_nothing(planted: Sandbox) -> None:
    seal_workspace(task(), planted)
    listed = run(planted, "find .git -type f | sort | xargs sha256sum | grep -v index")
    seal_workspace(task(), planted)
    assert run(planted, "find .git -type f | sort | xargs sha256sum | grep -v index") == listed


def test_uncommitted_files_stay(planted: Sandbox) -> None:
    run(planted, "echo staged > b.txt; git add b.txt; echo announced > c.txt; git add -N c.txt; echo 'x = 0' > a.py")
    before = run(planted, "git status --short; git diff; git diff --cached")
    seal_workspace(task(), planted)
    assert run(planted, "git status --short; git diff; git diff --cached") == before


def test_a_detached_head_stays_detached(planted: Sandbox) -> None:
    run(planted, "git checkout -q --detach HEAD~1")
    seal_workspace(task(), planted)
    assert run(planted, "git log --format=%s; git symbolic-ref -q HEAD; git for-each-ref") == "first\n"
    assert run(planted, REACHED) == ""


def test_a_repository_without_a_commit(planted: Sandbox) -> None:
    run(planted, "git checkout -q --orphan empty")
    seal_workspace(task(), planted)
    assert run(planted, "git rev-list --all") == ""
    assert "A  a.py" in run(planted, "git status --short")


def test_work_trees_and_submodules_are_repositories_of_their_own(planted: Sandbox) -> None:
    run(planted, "cp -a . /tmp/other && git worktree add -q ../tree v2 2>&1")
    run(planted, "git -c protocol.file.allow=always submodule --quiet add /tmp/other sub")
    run(planted, "git -c user.email=b@localhost commit -qm 'a module'")
    assert run(planted, "cat sub/.git").startswith("gitdir: ")
    module = run(planted, "git -C sub rev-parse HEAD")
    seal_workspace(task(), planted)
    assert run(planted, "git status --short; git worktree list | tail -n +2; git -C sub status --short") == ""
    assert run(planted, "git -C sub rev-parse HEAD") == module
    assert run(planted, "cd sub && " + REACHED) == ""


def test_objects_that_are_borrowed_are_kept_and_the_lender_is_forgotten(planted: Sandbox) -> None:
    run(planted, "mv .git /tmp/lender && git clone -q --bare --shared /tmp/lender .git && git config core.bare false")
    run(planted, "git reset -q")
    seal_workspace(task(), planted)
    run(planted, "rm -rf /tmp/lender")
    assert run(planted, "git log --format=%s; git status --short; git fsck") == "base\nfirst\n"


def test_hidden_files_are_gone_from_the_disk_and_from_git(planted: Sandbox) -> None:
    run(planted, "mkdir /tmp/hidden tests/__pycache__; touch /tmp/hidden/x tests/__pycache__/test_h.cpython-39.pyc")
    hidden = task(hidden_paths=("/tmp/hidden", "tests/test_h.py", "no/such/file"))
    seal_workspace(hidden, planted)
    assert (
        run(planted, "find . /tmp/hidden -name '*test_h*' 2> /dev/null; git log --all --format= --name-only")
        == "a.py\n"
    )
    assert run(planted, "git log --format=%s; git status --short") == "base\n"
    assert run(planted, REACHED) == ""


def test_the_start_is_a_commit_and_does_not_show_its_bug(planted: Sandbox) -> None:
    bug = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x = 2\n+x = 1\n"
    smith = task(start_patch=bug)
    apply_start(smith, planted)
    seal_workspace(smith, planted)
    assert (
        run(planted, "cat a.py; git status --short; git log --format=%s; git show HEAD:a.py") == "x = 1\nbase\nx = 1\n"
    )
    assert run(planted, REACHED) == ""


def test_the_same_workspace_has_the_same_commit_once_it_is_sealed(sandbox_factory: Open) -> None:
    commits = set()
    for _ in range(2):
        box = sandbox_factory({"a.py": "", "t.py": ""})
        seal_workspace(task(hidden_paths=("t.py",)), box)
        commits.add(run(box, "git rev-parse HEAD"))
    assert len(commits) == 1


def test_workspace_without_an_image_is_not_sealed(sandbox_factory: Open) -> None:
    box = sandbox_factory({"a.py": ""})
    before = run(box, "find .git -type f -printf '%p %T@\\n' | sort")
    seal_workspace(task(image=None), box)
    assert run(box, "find .git -type f -printf '%p %T@\\n' | sort") == before


def test_a_broken_repository_is_the_tasks_fault(planted: Sandbox) -> None:
    run(planted, "rm .git/HEAD")
    with pytest.raises(TaskError, match="git cannot read the repository"):
        seal_workspace(task(), planted)


@pytest.mark.parametrize("path", ["/", ".", "/testbed", "../testbed"])
def test_hidden_paths_cannot_contain_the_workspace(sandbox_factory: Open, path: str) -> None:
    with pytest.raises(TaskError, match="must not contain the workspace"):
        seal_workspace(task(hidden_paths=(path,)), sandbox_factory({"a.py": ""}))


def test_hidden_files_count_neither_as_deleted_nor_as_work(sandbox_factory: Open) -> None:
    files: dict[str, str | bytes] = {"a.py": "x = 1\n", "run_tests.sh": "true\n", "held/t.py": ""}
    box, fresh = sandbox_factory(files), sandbox_factory(files)
    hidden = task(hidden_paths=("run_tests.sh", "held"))
    seal_workspace(hidden, box)
    run(box, "echo 'x = 2' > a.py; echo exit 0 > run_tests.sh")
    patch = take_patch(box, fresh, hidden=hidden_places(hidden, fresh))
    assert patch.paths == ("a.py",)
    assert [entry.path for entry in patch.dropped] == ["run_tests.sh"]


LATER_TESTS = """\
set -eu
git() { command git -c user.name=a -c user.email=a@localhost "$@"; }
git tag v1 HEAD~1; git tag -a -m annotated v1.1
git checkout -q $(cat /tmp/fix); mkdir -p tests/data; echo new > tests/test_new.py; echo d > tests/data/d
echo secret > product.py; git add -A; git commit -qm 'tests of the fix'; git rev-parse HEAD > /tmp/tests
git checkout -q main
"""


@pytest.fixture
def graded(planted: Sandbox) -> Sandbox:
    result = planted.exec(LATER_TESTS, merge=True)
    assert result.ok, result.text
    return planted


def test_the_work_cannot_read_the_future_in_a_grading_sandbox(graded: Sandbox) -> None:
    hidden = task(hidden_paths=("tests/test_h.py",), eval_script="git status; git diff $(git rev-parse HEAD)")
    base = run(graded, "git rev-parse HEAD")
    seal_for_grading(hidden, graded)
    assert run(graded, "git cat-file -t $(cat /tmp/fix) 2> /dev/null; git fsck --unreachable; git stash list") == ""
    assert run(graded, "git rev-parse HEAD; git log --format=%s; git tag; cat tests/test_h.py") == (
        f"{base}base\nfirst\nv1\nv1.1\nassert 1\n"
    )
    assert run(graded, "git describe; git status --short") == "v1.1\n"


@pytest.mark.parametrize("in_image", [False, True])
def test_the_evaluation_still_takes_its_tests_from_a_later_commit(graded: Sandbox, in_image: bool) -> None:
    later = run(graded, "cat /tmp/tests").strip()
    script = f"git reset -q --hard HEAD && git checkout {later} -- tests/test_new.py tests/data"
    graded.write_file("/eval.sh", script.encode())
    known = {"hidden_paths": ("/eval.sh",)} if in_image else {"eval_script": script}
    seal_for_grading(task(**known), graded)
    assert graded.exec(script).ok
    assert run(graded, "cat tests/test_new.py tests/data/d; git status --short") == (
        "new\nd\nA  tests/data/d\nA  tests/test_new.py\n"
    )
    for path in ("product.py", "a.py"):
        assert not graded.exec(f"git show {later}:{path}").ok
    assert not graded.exec("git cat-file -e $(cat /tmp/fix)").ok


def test_the_start_does_not_show_its_bug_to_the_work_that_is_graded(planted: Sandbox) -> None:
    bug = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x = 2\n+x = 1\n"
    smith = task(start_patch=bug)
    apply_start(smith, planted)
    seal_for_grading(smith, planted)
    assert run(planted, "cat a.py; git status --short; git log --format=%s; git show HEAD:a.py") == (
        "x = 1\nbase\nx = 1\n"
    )
    assert run(planted, REACHED) == ""


def test_a_grader_of_ones_own_finds_everything(graded: Sandbox) -> None:
    before = run(graded, "find .git -type f | sort | xargs sha256sum")
    seal_for_grading(task(own_grader="some.module:Grader"), graded)
    assert run(graded, "find .git -type f | sort | xargs sha256sum") == before


FIX = "0123abcd" * 5


@pytest.mark.parametrize(
    ("script", "found"),
    [
        (f"git checkout {FIX} -- a/b.py 'c d.js'", [(FIX, ["a/b.py", "c d.js"])]),
        (f"cd x && git checkout {FIX} a.py > /dev/null; true", [(FIX, ["a.py"])]),
        (f"git restore --source={FIX} -- tests", [(FIX, ["tests"])]),
        (f"git show {FIX}:a/b.py > b.py", [(FIX, ["a/b.py"])]),
        (f"git checkout {FIX}\ngit diff {FIX[:9]} --stat", [(FIX, []), (FIX[:9], [])]),
        (f"git cherry-pick {FIX}", [(FIX, [])]),
        (f"echo {FIX}; git status", []),
        (f"git checkout 'open quote {FIX} a.py", [(FIX, ["a.py"])]),
    ],
)
def test_commits_that_a_script_names(script: str, found: list[tuple[str, list[str]]]) -> None:
    assert list(checkouts(script)) == found


def test_grading_sandbox_is_set_up_first(sandbox_factory: Open) -> None:
    oracle = {"grader": "exit_code", "setup_cmd": "echo ready > {workdir}/state", "test_cmd": "grep ready state"}
    assert grade(task(**oracle), Patch(), sandbox_factory({"a.py": ""}), lambda: sandbox_factory({"a.py": ""})).resolved
    with pytest.raises(TaskError, match="setup_cmd failed"):
        grade(
            task(**{**oracle, "setup_cmd": "false"}),
            Patch(),
            sandbox_factory({"a.py": ""}),
            lambda: sandbox_factory({}),
        )


@pytest.mark.parametrize("version", ["3.6", "3.13"])
def test_the_program_runs_on_old_and_new_pythons(tmp_path: Path, version: str) -> None:
    try:
        found = find_interpreter(version, timeout=60).executable
    except MissingInterpreter as error:
        pytest.skip(str(error))
    program = Path(__file__).parents[2] / "swe_gym" / "guests" / "seal.py"
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    order = f'{{"workdir": "{tmp_path}", "hidden": [], "start_patch": ""}}'
    subprocess.run([found, "-I", "-S", program], input=order.encode(), check=True)
    assert (tmp_path / ".git" / "refs" / "heads").is_dir()
