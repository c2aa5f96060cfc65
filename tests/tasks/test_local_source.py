"""A local folder and a test command as a task."""

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from swe_gym.commands import run_command
from swe_gym.envs.families import LocalEnv
from swe_gym.envs.swe_env import SweEnv
from swe_gym.errors import TaskError, UsageError
from swe_gym.tasks import TaskSource, digest, load_source
from swe_gym.tasks.local import LocalSource
from swe_gym.types import (
    FolderWorkspace,
    GitWorkspace,
    ImageBuild,
    Oracle,
    PythonEnv,
    RewardScript,
    SandboxNeeds,
    TarWorkspace,
    Task,
    VerifierSandbox,
    Workspace,
)


def test_a_folder_and_a_command_make_a_task(tmp_path: Path) -> None:
    folder = tmp_path / "my project"
    folder.mkdir()
    source = load_source("local", path=str(folder), test_cmd="python -m unittest", test_paths=["tests/*"])
    assert isinstance(source, TaskSource)
    assert list(source.ids()) == ["my-project"]
    task = source.get("my-project")
    assert task.workspace == FolderWorkspace(path=str(folder))
    assert task.python == PythonEnv(no_deps=False)
    assert "python -m unittest" in task.problem_statement
    assert task.eval_cmd == task.oracle.test_cmd == "python -m unittest"
    assert task.oracle.grader == "exit_code"
    assert task.oracle.test_paths == ("tests/*",)


def test_all_arguments_reach_the_task(tmp_path: Path) -> None:
    source = LocalSource(
        str(tmp_path),
        "make check",
        "Repair the parser.",
        python="3.12",
        requirements=["pytest"],
        env={"MODE": "test"},
        timeout=7,
    )
    task = source.get(source.ids()[0])
    assert task.problem_statement == "Repair the parser."
    assert task.python == PythonEnv(version="3.12", requirements=("pytest",), no_deps=False)
    assert task.env == {"MODE": "test"}
    assert task.eval_timeout == task.oracle.timeout == 7


def test_a_folder_of_only_odd_characters_still_has_an_id(tmp_path: Path) -> None:
    (tmp_path / "...").mkdir()
    assert list(LocalSource(str(tmp_path / "..."), "true").ids()) == ["local"]


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="folder not found"):
        LocalSource(str(tmp_path / "missing"), "true")
    for wrong in (" ", ["true"]):
        with pytest.raises(UsageError, match="test_cmd must be a command"):
            LocalSource(str(tmp_path), wrong)  # type: ignore[arg-type]  # as users do
    with pytest.raises(UsageError, match="unknown task 'other'"):
        LocalSource(str(tmp_path), "true").get("other")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test_paths": "tests/*"}, r"test_paths must be a list, such as \['tests/\*'\]"),
        ({"requirements": "pytest"}, r"requirements must be a list, such as \['pytest'\]"),
        ({"python": 3.12}, "task source 'local': version: Input should be a valid string"),
        ({"env": {"SEED": 1}}, "task source 'local': env.SEED: Input should be a valid string"),
        ({"timeout": "long"}, "task source 'local': timeout: Input should be a valid number"),
    ],
)
def test_arguments_of_a_wrong_type_are_named(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SweEnv("local", {"path": str(tmp_path), "test_cmd": "true", **options}).reset()
    with pytest.raises(UsageError, match=message):
        LocalEnv(str(tmp_path), "true", **options).reset()


def test_a_task_has_the_digest_of_its_code_wherever_it_lies(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    (one / "sub").mkdir(parents=True)
    (one / "a.py").write_text("A = 1\n")
    (one / "run").symlink_to("a.py")
    shutil.copytree(one, two, symlinks=True)
    for folder in (one, two):
        (folder / ".git").mkdir()
        (folder / ".git" / "HEAD").write_text(folder.name)
    task = Task(task_id="t", problem_statement="p", workspace=FolderWorkspace(path=str(one)))
    moved = with_code(task, FolderWorkspace(path=str(two)))
    first = digest(task)
    assert digest(moved) == first
    seen = [first]
    for change in (
        lambda: (two / "a.py").write_text("A = 2\n"),
        lambda: (two / "a.py").chmod(0o755),
        lambda: (two / "b.py").touch(),
        lambda: (two / "run").rename(two / "walk"),
        (two / "sub").rmdir,
    ):
        change()
        seen.append(digest(moved, strict=True))
    assert len({*seen}) == len(seen)


def test_a_task_has_the_digest_of_its_commit_or_archive(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        run_command(["git", "-C", tmp_path, *words], deadline=time.monotonic() + 60, failure="git")

    git("init", "-q")
    commit = ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m")
    task = Task(task_id="t", problem_statement="p", workspace=GitWorkspace(url=str(tmp_path)))
    git(*commit, "one")
    one = digest(task)
    git(*commit, "two")
    pinned = with_code(task, GitWorkspace(url=str(tmp_path), ref="HEAD~1"))
    assert digest(task) != one == digest(pinned, strict=True)

    archive = tmp_path / "a.tar"
    named = with_code(task, TarWorkspace(path=str(archive)))
    digests = []
    for content in (b"one", b"two", b"one"):
        archive.write_bytes(content)
        os.utime(archive, (len(digests), 0))
        digests.append(digest(named))
    assert digests[0] == digests[2] != digests[1]


@pytest.mark.parametrize(
    ("workspace", "why"),
    [
        (FolderWorkspace(path="/no/such/folder"), "/no/such/folder is not a folder"),
        (FolderWorkspace(path="~nobody-at-all/a"), "home directory"),
        (TarWorkspace(path="/no/such.tar"), "No such file"),
    ],
)
def test_code_that_cannot_be_identified_counts_by_its_place_or_is_refused(workspace: Workspace, why: str) -> None:
    task = Task(task_id="t", problem_statement="p", workspace=workspace)
    assert digest(task) == digest(task)
    with pytest.raises(TaskError, match=f"the code of task t cannot be identified: .*{why}"):
        digest(task, strict=True)


def test_a_repository_elsewhere_counts_by_its_commit_or_by_the_name_of_its_branch() -> None:
    task = Task(task_id="t", problem_statement="p")
    refs = ("main", "v1", "a" * 40, "A" * 40, "b" * 64)
    first = [digest(with_code(task, GitWorkspace(url="https://a.test/a", ref=ref)), strict=True) for ref in refs]
    assert len({*first}) == 4
    other = [digest(with_code(task, GitWorkspace(url="https://b.test/a", ref=ref)), strict=True) for ref in refs]
    assert [one == two for one, two in zip(first, other, strict=True)] == [False, False, True, True, True]


@pytest.mark.parametrize("name", ["own/image", "swe-gym/harbor-a:0123456789abcdef"])
def test_a_build_counts_by_its_context_wherever_it_lies(tmp_path: Path, name: str) -> None:
    def build(place: str, content: str) -> str:
        (tmp_path / place).mkdir()
        (tmp_path / place / "Dockerfile").write_text(content)
        needs = SandboxNeeds(build=ImageBuild(context=str(tmp_path / place)))
        verifier = VerifierSandbox(image=name, workdir="/", needs=needs)
        oracle = Oracle(evaluation=RewardScript(verifier=verifier))
        return digest(Task(task_id="t", problem_statement="p", image=name, needs=needs, oracle=oracle), strict=True)

    first = build("a", "FROM x")
    assert build("b", "FROM x") == first
    assert (build("c", "FROM y") == first) == (name != "own/image")  # the other name would have another digest


def test_code_that_changes_whenever_it_is_read_is_refused() -> None:
    """Reading this folder opens a file in it, which is gone afterwards."""
    task = Task(task_id="t", problem_statement="p", workspace=FolderWorkspace(path="/proc/self/fdinfo"))
    with pytest.raises(TaskError, match="fdinfo changes while it is read: stop the program that writes to it"):
        digest(task, strict=True)


def test_variables_of_a_hook_do_not_choose_another_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m")
    for name in ("one", "two"):
        for words in (("init", "-q", name), ("-C", name, *commit, name)):
            run_command(["git", *words], cwd=tmp_path, deadline=time.monotonic() + 60, failure="git")
    task = Task(task_id="t", problem_statement="p", workspace=GitWorkspace(url=str(tmp_path / "one")))
    first = digest(task)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "two" / ".git"))
    assert digest(task) == first
    assert digest(with_code(task, GitWorkspace(url=f"file://{tmp_path}/one")), strict=True) == first


def with_code(task: Task, workspace: Workspace) -> Task:
    return task.model_copy(update={"workspace": workspace})
