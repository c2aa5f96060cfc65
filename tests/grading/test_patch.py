"""The work as data: taken, written as a git diff, and put into a fresh workspace."""

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swe_gym.errors import DiffError, SandboxLost, TaskError
from swe_gym.grading.diff import file_diff
from swe_gym.grading.patch import (
    EXECUTABLE,
    LINK,
    READ_AHEAD,
    REGULAR,
    DiffReader,
    FileChange,
    Patch,
    PatchLimits,
    apply_diff,
    apply_patch,
    list_work,
    take_patch,
)
from swe_gym.sandboxes import Sandbox, SandboxSpec, open_sandbox
from swe_gym.sandboxes.fake import FakeSandbox, Fault
from swe_gym.types import FilesWorkspace, FolderWorkspace

Tree = dict[str, tuple[int, bytes]]
OpenSandbox = Callable[..., Sandbox]

ALPHABET = "ab \\\"'\t\né中-."
NAMES = st.text(ALPHABET, min_size=1, max_size=6).filter(lambda name: name not in (".", ".."))
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
LINES = st.lists(st.sampled_from(["a", "b", "", "x" * 70, "é", "--- a/b", "tail\r"]), max_size=12)
TEXTS = st.tuples(LINES, st.sampled_from(["\n", "\r\n"]), st.booleans()).map(
    lambda parts: (parts[1].join(parts[0]) + (parts[1] if parts[2] else "")).encode()
)
CONTENTS = TEXTS | st.binary(max_size=200) | st.just(b"")
FILES = st.tuples(st.sampled_from([REGULAR, EXECUTABLE]), CONTENTS)
# Names hold no "q": git cannot replace a link that leads to itself by a folder.
LINKS = st.tuples(st.just(LINK), st.sampled_from([b"target", "zié l".encode(), b"q/r"]))


def as_tree(entries: dict[str, tuple[int, bytes]]) -> Tree:
    """Without paths that lie under another file's path: no file system could hold both."""
    tree: Tree = {}
    for path in sorted(entries):
        parts = path.split("/")
        if not any("/".join(parts[:count]) in tree for count in range(1, len(parts))):
            tree[path] = entries[path]
    return tree


TREES = st.dictionaries(PATHS, FILES | LINKS, max_size=6).map(as_tree)


@st.composite
def edited_trees(draw: st.DrawFn) -> tuple[Tree, Tree]:
    """A tree and what became of it: some files kept, some changed, some gone, some new."""
    before = draw(TREES)
    after = dict(draw(TREES))
    for path, entry in before.items():
        if draw(st.booleans()):
            after[path] = entry
    return before, as_tree(after)


def write_tree(folder: Path, tree: Tree) -> None:
    for name, (mode, data) in tree.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if mode == LINK:
            path.symlink_to(data.decode())
        else:
            path.write_bytes(data)
            path.chmod(mode & 0o777)


def read_tree(folder: Path) -> Tree:
    tree: Tree = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            tree[name] = (LINK, str(path.readlink()).encode())
        elif path.is_file():
            tree[name] = (EXECUTABLE if path.stat().st_mode & 0o100 else REGULAR, path.read_bytes())
    return tree


def patch_between(before: Tree, after: Tree) -> Patch:
    changes = []
    for path in sorted({*before, *after}):
        old, new = before.get(path), after.get(path)
        if old != new:
            changes.append(
                FileChange(
                    path=path,
                    old=old and old[1],
                    new=new and new[1],
                    old_mode=old and old[0],
                    new_mode=new and new[0],
                )
            )
    return Patch(changes=tuple(changes))


def git_apply(folder: Path, diff: str) -> None:
    subprocess.run(
        ["git", "apply", "--whitespace=nowarn", "-"],
        cwd=folder,
        env={"GIT_DIR": "/nonexistent", "PATH": "/usr/local/bin:/usr/bin:/bin"},
        input=diff.encode(),
        check=True,
        timeout=30,
    )


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(edited_trees())
def test_git_apply_of_the_diff_gives_the_same_tree(
    tmp_path_factory: pytest.TempPathFactory, trees: tuple[Tree, Tree]
) -> None:
    before, after = trees
    folder = tmp_path_factory.mktemp("tree")
    write_tree(folder, before)
    patch = patch_between(before, after)
    if patch.changes:
        git_apply(folder, patch.diff())
    assert read_tree(folder) == after


@settings(max_examples=30)
@given(edited_trees())
def test_a_patch_survives_json(trees: tuple[Tree, Tree]) -> None:
    patch = patch_between(*trees)
    assert Patch.model_validate_json(patch.model_dump_json()) == patch


# --- in sandboxes ---------------------------------------------------------------------------------------

FILES = {"kept.txt": "kept\n", "pkg/a.py": "a = 1\n", "pkg/b.py": "b = 1\n", "gone.txt": "gone\n", "run.sh": "#!\n"}


def take(sandbox_factory: OpenSandbox, script: str, **limits: int) -> Patch:
    """What a policy that ran `script` on `FILES` has to show."""
    box, fresh = sandbox_factory(FILES), sandbox_factory(FILES)
    result = box.exec(script)
    assert result.ok, result.error_text
    return take_patch(box, fresh, limits=PatchLimits(**limits))


def test_work_is_taken_and_put_into_a_fresh_workspace(sandbox_factory: OpenSandbox) -> None:
    box, fresh = sandbox_factory(FILES), sandbox_factory(FILES)
    script = """
        echo 'a = 2' > pkg/a.py; rm gone.txt; chmod +x run.sh; mkdir -p new/deep; printf 'x\\0y' > new/deep/bin
        ln -s deep/bin new/link; rm pkg/b.py; mkdir pkg/b.py; echo in > 'pkg/b.py/in side'
        rm kept.txt; ln -s pkg/a.py kept.txt; touch empty
    """
    assert box.exec(script).ok
    patch = take_patch(box, fresh)
    changed = ["empty", "gone.txt", "kept.txt", "new/deep/bin", "new/link", "pkg/a.py", "pkg/b.py", "run.sh"]
    assert sorted(patch.paths) == sorted([*changed, "pkg/b.py/in side"])
    apply_patch(patch, fresh)
    assert take_patch(box, fresh) == Patch()
    other = sandbox_factory(FILES)
    apply_diff(other, patch.diff())
    assert take_patch(box, other) == Patch()


def test_an_untouched_workspace_gives_an_empty_patch(sandbox_factory: OpenSandbox) -> None:
    patch = take(
        sandbox_factory,
        "touch kept.txt; mkdir -p .git __pycache__ empty .aider.tags.cache.v4; touch .git/x __pycache__/a.pyc b.pyc; "
        "touch .aider.tags.cache.v4/cache.db",
    )
    assert patch == Patch()
    assert patch.diff() == ""


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "pkg/../../outside", "/testbed2/a.py"])
def test_links_out_of_the_workspace_are_dropped(sandbox_factory: OpenSandbox, target: str) -> None:
    patch = take(sandbox_factory, f"ln -s {target} link; echo 'a = 2' > pkg/a.py")
    assert patch.paths == ("pkg/a.py",)
    assert [(entry.path, "leads out" in entry.reason) for entry in patch.dropped] == [("link", True)]


def test_link_that_leaves_through_another_link_is_dropped(sandbox_factory: OpenSandbox) -> None:
    patch = take(sandbox_factory, "ln -s . here; ln -s here/../outside out; ln -s ../kept.txt pkg/inside")
    assert patch.paths == ("here", "pkg/inside")
    assert [entry.path for entry in patch.dropped] == ["out"]


def test_a_virtual_environment_is_not_part_of_the_work(sandbox_factory: OpenSandbox) -> None:
    make = "mkdir -p env/lib env/bin; touch env/pyvenv.cfg env/bin/python env/lib/x.py; echo new > new.py"
    patch = take(sandbox_factory, make)
    assert patch.paths == ("new.py",)
    assert [entry.path for entry in patch.dropped] == ["env"]


def test_a_template_of_a_virtual_environment_is_product(sandbox_factory: OpenSandbox) -> None:
    patch = take(sandbox_factory, "mkdir -p pkg/template; touch pkg/template/pyvenv.cfg pkg/template/x.py")
    assert patch.paths == ("pkg/template/pyvenv.cfg", "pkg/template/x.py")


def test_files_of_the_original_count_also_in_a_virtual_environment(sandbox_factory: OpenSandbox) -> None:
    patch = take(
        sandbox_factory, "mkdir pkg/bin; touch pkg/pyvenv.cfg pkg/bin/python; echo 'a = 2' > pkg/a.py; rm pkg/b.py"
    )
    assert patch.paths == ("pkg/a.py", "pkg/b.py")


@pytest.mark.parametrize(
    ("path", "target", "taken"),
    [
        ("link", "$PWD/pkg/a.py", b"pkg/a.py"),
        ("pkg/deep/link", "$PWD/kept.txt", b"../../kept.txt"),
        ("link", "$PWD", b"."),
        ("pkg/link", "$PWD/", b"../"),
    ],
)
def test_an_absolute_link_into_the_workspace_becomes_a_relative_one(
    sandbox_factory: OpenSandbox, path: str, target: str, taken: bytes
) -> None:
    patch = take(sandbox_factory, f'mkdir -p pkg/deep; ln -s "{target}" {path}')
    assert [(change.path, change.new) for change in patch.changes] == [(path, taken)]


@pytest.mark.parametrize("target", ["$PWD/../outside", "$PWD-other/a", "$PWD/pkg/../a"])
def test_an_absolute_link_that_may_lead_out_is_dropped(sandbox_factory: OpenSandbox, target: str) -> None:
    patch = take(sandbox_factory, f'ln -s "{target}" link')
    assert (patch.paths, [entry.path for entry in patch.dropped]) == ((), ["link"])


@pytest.mark.parametrize(
    ("script", "limits", "reason"),
    [
        ("touch 1 2 3", {"max_files": 2}, "the work changes 3 files; at most 2 are graded"),
        ("head -c 11 /dev/zero > big", {"max_file_bytes": 10}, "big has 11 bytes; at most 10 are graded"),
        ("head -c 6 /dev/zero | tee 1 > 2", {"max_total_bytes": 10}, "the changed files have 12 bytes"),
    ],
)
def test_too_much_work_is_rejected_with_a_reason(
    sandbox_factory: OpenSandbox, script: str, limits: dict[str, int], reason: str
) -> None:
    patch = take(sandbox_factory, script, **limits)
    assert patch.changes == ()
    assert reason in patch.rejected


def test_leftovers_of_a_build_do_not_reject_the_work() -> None:
    original = FilesWorkspace(files={"a.py": "a = 1\n", ".gitignore": "target/\n*.so\n", "lib.so": "kept\n"})
    script = """
        echo 'a = 2' > a.py; echo 'b = 1' > b.py; echo changed > lib.so; echo built > new.so
        mkdir -p target/debug/deps; head -c 2000 /dev/zero > target/debug/app; touch target/debug/deps/1
    """
    with open_sandbox(SandboxSpec(workspace=original)) as box, open_sandbox(SandboxSpec(workspace=original)) as fresh:
        assert box.exec(script).ok
        small = take_patch(box, fresh)
        large = take_patch(box, fresh, limits=PatchLimits(max_total_bytes=1000))
        assert "3 files" in take_patch(box, fresh, limits=PatchLimits(max_files=2)).rejected
    assert "target/debug/app" in small.paths, "it fits, so all of it is work"
    assert large.paths == ("a.py", "b.py", "lib.so"), "git knows that file"
    assert [entry.path for entry in large.dropped] == ["new.so", "target"]


IGNORING: dict[str, str | bytes] = {
    "a.py": "a = 1\n",
    ".gitignore": "build/\n*.o\n",
    "build/tracked.py": "b = 1\n",
    "build/gone.py": "c = 1\n",
    "build/same.py": "d = 1\n",
}


@pytest.mark.sample(every=2)
@pytest.mark.parametrize(
    "flood",
    [
        "mkdir build/o; cd build/o; seq 25000 | xargs touch",
        "seq 25000 | sed s/$/.o/ | xargs touch",
        "mkdir env env/bin; touch env/pyvenv.cfg env/bin/python; cd env; seq 25000 | xargs touch",
        "truncate -s 3G build/huge.bin",
    ],
)
def test_ignored_files_do_not_reject_the_work(sandbox_factory: OpenSandbox, flood: str) -> None:
    box, fresh = sandbox_factory(IGNORING), sandbox_factory(IGNORING)
    assert box.exec(f"echo 'b = 2' > build/tracked.py; rm build/gone.py; echo 'a = 2' > a.py; {flood}").ok
    patch = take_patch(box, fresh)
    assert (patch.paths, patch.rejected) == (("a.py", "build/gone.py", "build/tracked.py"), "")


def test_the_policys_own_gitignore_counts(sandbox_factory: OpenSandbox) -> None:
    patch = take(sandbox_factory, "echo /out > .gitignore; mkdir out; touch out/1 out/2 out/3", max_files=2)
    assert patch.paths == (".gitignore",)
    assert [entry.path for entry in patch.dropped] == ["out"]


def test_a_flood_that_nothing_ignores_is_rejected(sandbox_factory: OpenSandbox) -> None:
    assert "more than" in take(sandbox_factory, "mkdir x; cd x; seq 21000 | xargs touch").rejected


@pytest.fixture
def nothing_is_hashed_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swe_gym.grading.patch.HASHED_AHEAD", 0)


@pytest.mark.usefixtures("nothing_is_hashed_ahead")
def test_files_beyond_the_hashing_limit_are_compared(sandbox_factory: OpenSandbox) -> None:
    box, fresh = sandbox_factory(FILES), sandbox_factory(FILES)
    assert box.exec("echo 'a = 2' > pkg/a.py; echo 'b = 22' > pkg/b.py; echo new > new; rm gone.txt").ok
    listing = list_work(box)
    assert {entry.digest for entry in listing.files.values()} == {""}
    patch = take_patch(box, fresh, listing=listing)
    assert patch.paths == ("gone.txt", "new", "pkg/a.py", "pkg/b.py")


@pytest.mark.usefixtures("nothing_is_hashed_ahead")
def test_only_files_as_large_as_the_originals_are_hashed(sandbox_factory: OpenSandbox) -> None:
    box, fresh = sandbox_factory(FILES), sandbox_factory(FILES)
    assert box.exec("mkdir f; cd f; seq 3000 | xargs truncate -s 3G").ok  # what would take hours to hash
    assert "the work changes 3000 files" in take_patch(box, fresh).rejected


def test_original_link_with_a_binary_target_can_be_deleted(sandbox_factory: OpenSandbox, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to(os.fsdecode(b"caf\xe9"))
    folder = FolderWorkspace(path=str(tmp_path / "folder"))
    box, fresh = sandbox_factory(workspace=folder), sandbox_factory(workspace=folder)
    box.exec(["rm", "link"])
    patch = take_patch(box, fresh)
    assert [(change.path, change.old) for change in patch.changes] == [("link", b"caf\xe9")]
    apply_diff(fresh, patch.diff())
    assert take_patch(box, fresh) == Patch()


def take_from_fake(fault: Fault) -> Patch:
    """What comes of a policy's workspace in which something goes wrong while it is read."""
    with FakeSandbox(files={"a": "old"}) as fresh, FakeSandbox(files={"a": "new"}, faults=[fault]) as box:
        return take_patch(box, fresh)


@pytest.mark.parametrize("fault", [Fault(at="read", truncate=1), Fault(at="read", error="NoPermission")])
def test_a_file_that_changes_while_it_is_read_is_dropped(fault: Fault) -> None:
    patch = take_from_fake(fault)
    assert (patch.changes, [entry.path for entry in patch.dropped]) == ((), ["a"])


def test_unreadable_workspace_is_rejected_work() -> None:
    assert "cannot be read" in take_from_fake(Fault(at="manifest", error="FileError")).rejected


@pytest.mark.parametrize("at", ["manifest", "read"])
def test_lost_sandbox_raises(at: Literal["manifest", "read"]) -> None:
    with pytest.raises(SandboxLost):
        take_from_fake(Fault(at=at, error="SandboxLost"))


def test_a_diff_that_does_not_apply_is_the_tasks_fault(sandbox_factory: OpenSandbox) -> None:
    with pytest.raises(TaskError, match="the gold patch does not apply"):
        apply_diff(
            sandbox_factory({"a": "1\n"}),
            "diff --git a/b b/b\n--- a/b\n+++ b/b\n@@ -1 +1 @@\n-1\n+2\n",
            what="the gold patch",
        )


def diff_of(path: str, old: str | None, new: str | None) -> str:
    before, after = (None if text is None else text.encode() for text in (old, new))
    return file_diff(path, before, after, before and REGULAR, after and REGULAR)


def test_diffs_are_read_in_one_sandbox_as_if_each_had_its_own(sandbox_factory: OpenSandbox) -> None:
    opened: list[Sandbox] = []

    @contextlib.contextmanager
    def open_sealed() -> Iterator[Sandbox]:
        opened.append(sandbox_factory(FILES))
        yield opened[-1]

    changed, added = diff_of("pkg/a.py", "a = 1\n", "a = 2\n"), diff_of("new/deep/c.py", None, "c = 1\n")
    rest = diff_of("gone.txt", "gone\n", None) + diff_of("pkg/__pycache__/a.txt", None, "left\n")
    wrong, at_its_place = diff_of("pkg/a.py", "a = 3\n", "a = 4\n"), diff_of("new", None, "a file\n")
    paths = {
        changed: ["pkg/a.py"],
        added: ["new/deep/c.py"],
        added + changed: ["new/deep/c.py", "pkg/a.py"],
        rest: ["gone.txt"],
        "": [],
        at_its_place: ["new"],
    }
    fresh, reader = sandbox_factory(FILES), DiffReader([added, changed, added + changed, rest, "", wrong, at_its_place])
    for diff, wanted in paths.items():
        patch = reader.read(diff, open_sealed, fresh)
        assert list(patch.paths) == wanted
        assert patch.diff() == diff.partition("diff --git a/pkg/__pycache__")[0]
    with pytest.raises(DiffError):
        reader.read(wrong, open_sealed, fresh)
    assert len(opened) <= 4  # one more after what cannot be taken back, one after an error, one for what fails


def test_few_diffs_are_read_while_others_wait(sandbox_factory: OpenSandbox) -> None:
    opened: list[Sandbox] = []

    @contextlib.contextmanager
    def open_sealed() -> Iterator[Sandbox]:
        opened.append(sandbox_factory({}))
        yield opened[-1]

    diffs = ["\n" * number for number in range(READ_AHEAD + 2)]
    fresh, reader = sandbox_factory({}), DiffReader(diffs)
    assert [len(opened) for diff in diffs if reader.read(diff, open_sealed, fresh)] == [1] * (READ_AHEAD + 1) + [2]


def test_attributes_of_the_workspace_change_no_byte_of_a_diff(sandbox_factory: OpenSandbox) -> None:
    box = sandbox_factory({".gitattributes": "* text eol=crlf\n", "a.txt": "1\n"})
    assert box.exec("git init -q .").ok
    apply_diff(box, "diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-1\n+2\n")
    assert box.read_file("a.txt") == b"2\n"
