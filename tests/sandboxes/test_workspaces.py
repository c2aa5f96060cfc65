"""Workspaces of every kind become complete folders under git, built once and kept."""

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest

from swe_gym.cache import build_once, cache_folder
from swe_gym.errors import MissingDependency, SandboxStartError, TaskError
from swe_gym.sandboxes.contents.workspaces import prepare_workspace, unpack_sdist
from swe_gym.types import FilesWorkspace, FolderWorkspace, GitWorkspace, SdistWorkspace, TarWorkspace, Workspace


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with everything that is easy to lose: ignored, odd, empty, executable and linked files."""
    root = tmp_path / "project"
    (root / "src" / "empty").mkdir(parents=True)
    (root / ".gitignore").write_text("*.log\n")
    (root / ".gitattributes").write_text("* text=auto eol=lf\nsecret export-ignore\n")
    (root / "kept.log").write_text("ignored by git, part of the project\n")
    (root / "secret").write_text("export-ignore\n")
    (root / "src" / "crlf.txt").write_bytes(b"one\r\ntwo\r\n")
    (root / "src" / "na\\me \u00e9\n").write_bytes(b"\x00\xff")
    (root / "src" / "run.sh").write_text("#!/bin/sh\n")
    (root / "src" / "run.sh").chmod(0o700)
    (root / "src" / "link").symlink_to("run.sh")
    (root / "src" / "dangling").symlink_to("nowhere")
    return root


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
    return subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def content(root: Path) -> dict[str, bytes | str]:
    """Relative path -> content, or target of a link; without `.git`."""
    found: dict[str, bytes | str] = {}
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name != ".git"]
        for name in files:
            path = Path(folder, name)
            found[str(path.relative_to(root))] = os.readlink(path) if path.is_symlink() else path.read_bytes()
    return found


def archived(root: Path, path: Path, top: str = "top") -> Path:
    with tarfile.open(path, "w" if path.suffix == ".tar" else f"w:{path.suffix[1:]}") as tar:
        tar.add(root, arcname=top)
    return path


def prepare(workspace: Workspace) -> Path:
    return prepare_workspace(workspace, timeout=60)


def assert_is_a_fresh_repository(tree: Path) -> None:
    assert git(tree, "rev-list", "--all", "--count") == "1"
    assert git(tree, "log", "-1", "--format=%an %s %ad", "--date=iso") == "swe_gym base 2020-01-01 00:00:00 +0000"
    assert git(tree, "status", "--porcelain", "--ignored") == ""
    assert git(tree, "remote") == ""
    assert git(tree, "for-each-ref", "--format=%(refname)") == "refs/heads/main"
    tracked = git(tree, "ls-files", "-z").split("\0")
    assert sorted(filter(None, tracked)) == sorted(content(tree))


def test_a_folder_comes_over_byte_for_byte(project: Path) -> None:
    (project / "absolute").symlink_to("/etc/passwd")
    tree = prepare(FolderWorkspace(path=str(project)))
    assert tree.is_absolute()
    assert content(tree) == content(project)
    assert (tree / "src" / "empty").is_dir()
    assert_is_a_fresh_repository(tree)
    assert git(tree, "cat-file", "blob", "HEAD:src/crlf.txt") == "one\r\ntwo".replace("\r\n", "\n")
    assert git(tree, "cat-file", "-s", "HEAD:src/crlf.txt") == "10"


def test_modes_and_times_are_the_same_everywhere(project: Path) -> None:
    tree = prepare(FolderWorkspace(path=str(project)))
    assert (tree / "src" / "run.sh").stat().st_mode & 0o7777 == 0o755
    assert (tree / "kept.log").stat().st_mode & 0o7777 == 0o644
    times = {path.lstat().st_mtime for path in [tree, *tree.rglob("*")] if ".git" not in path.parts}
    assert len(times) == 1


def test_version_control_caches_and_virtual_environments_stay_behind(project: Path) -> None:
    git(project, "init", "--quiet")
    git(project, "commit", "--quiet", "--allow-empty", "--message=future")
    git(project, "remote", "add", "origin", "https://example.org/leak.git")
    (project / "src" / "nested").mkdir()
    git(project / "src" / "nested", "init", "--quiet")
    for name in ("__pycache__", ".pytest_cache", "my-venv"):
        (project / "src" / name).mkdir()
        (project / "src" / name / "pyvenv.cfg").write_text("home = /usr/bin\n")
    os.mkfifo(project / "pipe")
    tree = prepare(FolderWorkspace(path=str(project)))
    assert sorted(path.name for path in (tree / "src").iterdir() if path.is_dir()) == ["empty", "nested"]
    assert not (tree / "src" / "nested" / ".git").exists()
    assert not (tree / "pipe").exists()
    assert_is_a_fresh_repository(tree)


def test_the_commit_depends_on_the_content_only(project: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", project, copy], check=True)
    (copy / "src" / "run.sh").chmod(0o755)
    trees = [
        prepare(FolderWorkspace(path=str(project))),
        prepare(FolderWorkspace(path=str(copy))),
        prepare(TarWorkspace(path=str(archived(project, tmp_path / "p.tar")))),
        prepare(TarWorkspace(path=str(archived(project, tmp_path / "p.xz")))),
        prepare(TarWorkspace(path=str(archived(project, tmp_path / "p.gz", top=".")), strip=0)),
    ]
    assert len(set(trees)) == 5
    assert len({git(tree, "rev-parse", "HEAD") for tree in trees}) == 1


def test_an_unchanged_folder_is_not_built_again_and_a_changed_one_is(project: Path) -> None:
    workspace = FolderWorkspace(path=str(project))
    first = prepare(workspace)
    assert prepare(workspace) == first
    (project / "kept.log").write_text("changed\n")
    second = prepare(workspace)
    assert second != first
    assert (second / "kept.log").read_text() == "changed\n"
    assert (first / "kept.log").read_text() != "changed\n"
    (project / "src" / "run.sh").chmod(0o600)
    (project / "src" / "link").unlink()
    third = prepare(workspace)
    assert third not in (first, second)
    assert_is_a_fresh_repository(third)


def test_an_empty_folder_is_a_workspace(tmp_path: Path) -> None:
    tree = prepare(FolderWorkspace(path=str(tmp_path)))
    assert content(tree) == {}
    assert git(tree, "rev-list", "--count", "HEAD") == "1"


@pytest.mark.parametrize(
    "workspace", [FolderWorkspace(path="/nowhere/at/all"), TarWorkspace(path="/nowhere/a.tar"), GitWorkspace(url="/")]
)
def test_a_workspace_that_is_not_there_is_a_broken_task(workspace: Workspace) -> None:
    with pytest.raises(TaskError):
        prepare(workspace)


def tar_of(member: tarfile.TarInfo, path: Path) -> Path:
    with tarfile.open(path, "w") as tar:
        tar.addfile(member, io.BytesIO(b"x" * member.size))
    return path


@pytest.mark.parametrize("name", ["top/../../evil", "../evil", "/evil", "top/a/../../../evil"])
def test_an_archive_cannot_lead_out_of_its_folder(tmp_path: Path, name: str) -> None:
    member = tarfile.TarInfo(name)
    member.size = 1
    with pytest.raises(TaskError, match="out of"):
        prepare(TarWorkspace(path=str(tar_of(member, tmp_path / "a.tar"))))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as zipped:
        zipped.writestr(name, "x")
    with pytest.raises(TaskError, match="out of"):
        unpack_sdist(tmp_path / "a.zip", tmp_path, deadline=float("inf"))


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_an_archive_with_devices_is_refused(tmp_path: Path, kind: bytes) -> None:
    member = tarfile.TarInfo("top/device")
    member.type = kind
    with pytest.raises(TaskError, match="device"):
        prepare(TarWorkspace(path=str(tar_of(member, tmp_path / "a.tar"))))


def test_an_archive_with_a_link_to_the_outside_is_refused(tmp_path: Path) -> None:
    member = tarfile.TarInfo("top/link")
    member.type = tarfile.SYMTYPE
    member.linkname = "../../../etc/passwd"
    with pytest.raises(TaskError, match="outside"):
        prepare(TarWorkspace(path=str(tar_of(member, tmp_path / "a.tar"))))


def test_hard_links_in_an_archive_are_followed_below_the_stripped_folder(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text")
    os.link(tmp_path / "a", tmp_path / "b")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(tmp_path / "a", "top/a")
        tar.add(tmp_path / "b", "top/b")
    assert content(prepare(TarWorkspace(path=str(tmp_path / "a.tar")))) == {"a": b"text", "b": b"text"}


@pytest.mark.parametrize("damage", [b"", b"not an archive", b"\x1f\x8b\x08\x00"])
def test_a_damaged_archive_is_a_broken_task_and_leaves_nothing(
    tmp_path: Path, damage: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWE_GYM_CACHE", str(tmp_path / "cache"))  # others build in the common one meanwhile
    (tmp_path / "a.tar.gz").write_bytes(damage)
    with pytest.raises(TaskError, match="cannot unpack"):
        prepare(TarWorkspace(path=str(tmp_path / "a.tar.gz")))
    left = (tmp_path / "cache" / "workspaces").iterdir()
    assert not [path for path in left if path.suffix != ".lock"]


def test_a_zip_comes_without_its_top_folder(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a-1.zip", "w") as zipped:
        zipped.mkdir("a-1/folder")
        zipped.writestr("a-1/setup.py", "x = 1\n")
        script = zipfile.ZipInfo("a-1/run.sh")
        script.external_attr = 0o100755 << 16
        zipped.writestr(script, "#!/bin/sh\n")
    (tmp_path / "tree").mkdir()
    unpack_sdist(tmp_path / "a-1.zip", tmp_path / "tree", deadline=float("inf"))
    assert content(tmp_path / "tree") == {"setup.py": b"x = 1\n", "run.sh": b"#!/bin/sh\n"}
    assert os.access(tmp_path / "tree" / "run.sh", os.X_OK)
    assert (tmp_path / "tree" / "folder").is_dir()


def test_a_commit_of_a_repository_comes_without_its_history(project: Path) -> None:
    (project / "absolute").symlink_to("/etc/passwd")
    git(project, "init", "--quiet")
    git(project, "add", "--all", "--force")
    git(project, "commit", "--quiet", "--message=one")
    git(project, "tag", "first")
    first = git(project, "rev-parse", "HEAD")
    (project / "later.py").write_text("future = True\n")
    git(project, "add", "later.py")
    git(project, "commit", "--quiet", "--message=two")
    later = git(project, "rev-parse", "HEAD:later.py")

    expected = {name: data for name, data in content(project).items() if name != "later.py"}
    expected["src/crlf.txt"] = b"one\ntwo\n"  # so the project's own .gitattributes had it committed
    for ref in ("first", first, first[:10], "HEAD~1"):
        tree = prepare(GitWorkspace(url=str(project), ref=ref))
        assert content(tree) == expected
        assert_is_a_fresh_repository(tree)
        assert subprocess.run(["git", "cat-file", "-e", later], cwd=tree, capture_output=True).returncode
    assert "later.py" in content(prepare(GitWorkspace(url=str(project))))
    by_url = prepare(GitWorkspace(url=f"file://{project}", ref="first"))
    assert content(by_url) == expected

    (project / "later.py").write_text("future = False\n")
    git(project, "commit", "--quiet", "--all", "--message=three")
    assert content(prepare(GitWorkspace(url=str(project))))["later.py"] == b"future = False\n"


@pytest.mark.parametrize("ref", ["no-such-branch", "--upload-pack=touch evil", "0" * 40])
def test_a_reference_that_does_not_exist_is_a_broken_task(project: Path, ref: str) -> None:
    git(project, "init", "--quiet")
    git(project, "commit", "--quiet", "--allow-empty", "--message=one")
    for url in (str(project), f"file://{project}"):
        with pytest.raises(TaskError, match=str(project)):
            prepare(GitWorkspace(url=url, ref=ref))


def test_many_at_once_build_one(project: Path) -> None:
    workspace = FolderWorkspace(path=str(project))
    trees: list[Path] = []
    threads = [threading.Thread(target=lambda: trees.append(prepare(workspace))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(trees) == 8
    assert len(set(trees)) == 1
    assert_is_a_fresh_repository(trees[0])


def test_the_leftovers_of_a_dead_builder_are_rebuilt() -> None:
    left = cache_folder() / "things" / "half"
    (left / "content").mkdir(parents=True)
    (left / "content" / "partial").touch()
    built = build_once("things", "half", lambda folder: (folder / "whole").touch(), deadline=float("inf"))
    assert [path.name for path in built.iterdir()] == ["whole"]


def test_a_failed_build_leaves_nothing_and_is_tried_again() -> None:
    def fail(folder: Path) -> None:
        (folder / "partial").touch()
        raise OSError("disk full")

    with pytest.raises(SandboxStartError, match="disk full") as caught:
        build_once("things", "failing", fail, deadline=float("inf"))
    assert caught.value.retryable
    assert not (cache_folder() / "things" / "failing").exists()
    assert build_once("things", "failing", Path.touch, deadline=float("inf")).is_dir()


def test_waiting_for_another_builder_has_a_deadline() -> None:
    building, release = threading.Event(), threading.Event()

    def slow(folder: Path) -> None:
        building.set()
        assert folder.is_dir()
        assert release.wait(60)

    thread = threading.Thread(target=build_once, args=("things", "slow", slow), kwargs={"deadline": float("inf")})
    thread.start()
    try:
        assert building.wait(60)
        with pytest.raises(SandboxStartError, match="still building") as caught:
            build_once("things", "slow", slow, deadline=0)
        assert caught.value.reason == "timeout"
    finally:
        release.set()
        thread.join()


def test_a_deadline_in_the_past_builds_nothing(project: Path) -> None:
    with pytest.raises(SandboxStartError) as caught:
        prepare_workspace(FolderWorkspace(path=str(project)), timeout=0)
    assert caught.value.reason == "timeout"
    with pytest.raises(SandboxStartError):
        prepare_workspace(TarWorkspace(path=str(archived(project, project.parent / "p.gz"))), timeout=0)


def test_the_user_chooses_the_folder_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWE_GYM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "swe-gym"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "swe-gym"
    monkeypatch.setenv("SWE_GYM_CACHE", "~/mine")
    assert cache_folder() == Path.home() / "mine"


def test_an_unwritable_cache_is_an_error_with_a_fix(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for cache in ("/proc/nowhere", str(project / "a_file")):
        (project / "a_file").touch()
        monkeypatch.setenv("SWE_GYM_CACHE", cache)
        with pytest.raises(SandboxStartError, match=f"cannot use the cache: .*{cache}.* Set SWE_GYM_CACHE to"):
            prepare(FolderWorkspace(path=str(project)))


def test_without_git_the_error_says_what_to_install(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(project))
    with pytest.raises(MissingDependency, match="apt-get install git"):
        prepare(FolderWorkspace(path=str(project)))


def test_a_folder_that_always_changes_is_a_broken_task(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = shutil.copy

    def copy_and_touch(source: Path, target: Path) -> None:
        copy(source, target)
        with (project / "kept.log").open("a") as file:
            file.write("more\n")

    monkeypatch.setattr(shutil, "copy", copy_and_touch)
    with pytest.raises(TaskError, match="changes while it is copied"):
        prepare(FolderWorkspace(path=str(project)))


def test_a_file_that_vanishes_meanwhile_is_not_an_error(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = shutil.copy

    def copy_and_remove(source: Path, target: Path) -> None:
        (project / "secret").unlink(missing_ok=True)
        copy(source, target)

    monkeypatch.setattr(shutil, "copy", copy_and_remove)
    assert "secret" not in content(prepare(FolderWorkspace(path=str(project))))


def test_a_source_release_comes_from_the_index_once(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "simple" / "my-pkg" / "index.html"
    page.parent.mkdir(parents=True)
    archive = archived(project, page.with_name("my_pkg-1.0.gz"), top="my_pkg-1.0")
    archive = archive.rename(page.with_name("my_pkg-1.0.tar.gz"))
    page.write_text(f"<a href='{archive.name}'>{archive.name}</a>")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    workspace = SdistWorkspace(name="my-pkg", version="1.0", filename=archive.name, sha256=sha256)
    tree = prepare(workspace)
    assert content(tree) == content(project)
    assert_is_a_fresh_repository(tree)
    shutil.rmtree(tmp_path / "simple")
    assert prepare(workspace) == tree
    with pytest.raises(TaskError, match="no package index"):
        prepare(workspace.model_copy(update={"sha256": "0" * 64}))


def test_given_files_are_a_workspace() -> None:
    tree = prepare_workspace(FilesWorkspace(files={"a.txt": "one\r\n", "sub/b.py": ""}), timeout=30)
    assert (tree / "a.txt").read_bytes() == b"one\r\n"
    assert (tree / "sub" / "b.py").read_bytes() == b""
    assert (tree / ".git").is_dir()


@pytest.mark.parametrize("name", ["../a", "/etc/a", "sub/../../a", ".git/config", "."])
def test_given_files_stay_in_the_workspace(name: str) -> None:
    with pytest.raises(TaskError, match="relative path"):
        prepare_workspace(FilesWorkspace(files={name: ""}), timeout=30)


@pytest.mark.parametrize(
    "files", [{"a": "", "a/b": ""}, {"a/b": "", "a": ""}, {"a\0b": ""}, {"a": "half of \ud83d"}], ids=range(4)
)
def test_files_that_cannot_be_created_are_a_task_error(files: dict[str, str]) -> None:
    with pytest.raises(TaskError, match="cannot create the workspace file"):
        prepare_workspace(FilesWorkspace(files=files), timeout=30)
