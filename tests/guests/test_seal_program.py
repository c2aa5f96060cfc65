"""The sealing program, run on the host on repositories in a temporary folder."""

import os
import subprocess
from pathlib import Path

import pytest

from swe_gym.guests.seal import GitFailed, seal

IDENTITY = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}


def git(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, **IDENTITY, "GIT_CONFIG_GLOBAL": os.devnull}
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, env=environment).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Three commits, the last of which only a reflog, a tag and a remote branch know."""
    folder = tmp_path / "work"
    folder.mkdir()
    git(folder, "-c", "init.defaultBranch=main", "init", "-q")
    for number in range(3):
        (folder / "code.py").write_text(f"version = {number}\n")
        (folder / "test_hidden.py").write_text("def test(): pass\n")
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", f"commit {number}")
    git(folder, "tag", "newer")
    git(folder, "remote", "add", "origin", "https://example.org/x.git")
    git(folder, "update-ref", "refs/remotes/origin/main", "HEAD")
    git(folder, "reset", "-q", "--hard", "HEAD~1")
    return folder


def order(folder: Path, hidden: tuple[str, ...] = (), start_patch: str = "") -> dict[str, object]:
    return {"workdir": str(folder), "hidden": [str(folder / name) for name in hidden], "start_patch": start_patch}


def subjects(folder: Path) -> list[str]:
    return git(folder, "log", "--all", "--format=%s").splitlines()


def test_newer_commits_are_gone_and_history_stays(repository: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    seal(order(repository))
    assert git(repository, "rev-parse", "HEAD") == head
    assert subjects(repository) == ["commit 1", "commit 0"]
    assert git(repository, "for-each-ref", "--format=%(refname)") == "refs/heads/main\n"
    assert "origin" not in (repository / ".git" / "config").read_text()
    assert git(repository, "fsck", "--full", "--unreachable") == ""
    assert git(repository, "status", "--porcelain") == ""


def test_a_hidden_file_leaves_disk_index_and_history(repository: Path) -> None:
    cache = repository / "__pycache__"
    cache.mkdir()
    (cache / "test_hidden.cpython-311.pyc").write_bytes(b"compiled")
    seal(order(repository, hidden=("test_hidden.py",)))
    assert not (repository / "test_hidden.py").exists()
    assert list(cache.iterdir()) == []
    assert git(repository, "ls-files") == "code.py\n"
    assert subjects(repository) == ["commit 1"]
    assert git(repository, "log", "-1", "--format=%an") == "a\n"


def test_the_start_patch_becomes_part_of_the_only_commit(repository: Path) -> None:
    (repository / "code.py").write_text("version = 'bug'\n")
    seal(order(repository, start_patch=git(repository, "diff")))
    assert git(repository, "status", "--porcelain") == ""
    assert git(repository, "show", "HEAD:code.py") == "version = 'bug'\n"
    assert len(subjects(repository)) == 1


def test_a_work_tree_and_a_detached_head_become_whole_repositories(repository: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    git(repository, "worktree", "add", "-q", "--detach", str(tree), "HEAD~1")
    seal(order(tree))
    assert (tree / ".git").is_dir()
    assert subjects(tree) == [] or subjects(tree) == ["commit 0"]
    assert git(tree, "log", "--format=%s", "HEAD") == "commit 0\n"
    assert git(tree, "status", "--porcelain") == ""


def test_borrowed_objects_are_copied(repository: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--shared", str(repository), str(clone))
    seal(order(clone))
    assert not (clone / ".git" / "objects" / "info" / "alternates").exists()
    assert git(clone, "log", "--format=%s", "HEAD") == "commit 1\ncommit 0\n"


def test_a_broken_repository_is_an_error(repository: Path) -> None:
    (repository / ".git" / "HEAD").unlink()
    with pytest.raises(GitFailed, match="git cannot read the repository"):
        seal(order(repository))
