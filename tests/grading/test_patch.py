"""The work as data: taken, written as a git diff, and put into a fresh workspace."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swe_gym.errors import TaskError
from swe_gym.grading.patch import (
    EXECUTABLE,
    LINK,
    REGULAR,
    FileChange,
    Patch,
    PatchLimits,
    apply_diff,
    apply_patch,
    take_patch,
)
from swe_gym.sandboxes import Sandbox

Tree = dict[str, tuple[int, bytes]]
OpenSandbox = Callable[..., Sandbox]

ALPHABET = 'ab \\"\'\t\né中-.'
NAMES = st.text(ALPHABET, min_size=1, max_size=6).filter(lambda name: name not in (".", ".."))
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
LINES = st.lists(st.sampled_from(["a", "b", "", "x" * 70, "é", "--- a/b", "tail\r"]), max_size=12)
TEXTS = st.tuples(LINES, st.sampled_from(["\n", "\r\n"]), st.booleans()).map(
    lambda parts: (parts[1].join(parts[0]) + (parts[1] if parts[2] else "")).encode()
)
CONTENTS = TEXTS | st.binary(max_size=200) | st.just(b"")
FILES = st.tuples(st.sampled_from([REGULAR, EXECUTABLE]), CONTENTS)
LINKS = st.tuples(st.just(LINK), st.sampled_from([b"target", "zié l".encode(), b"a/b"]))


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


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(edited_trees())
def test_git_apply_of_the_diff_gives_the_very_tree(
    tmp_path_factory: pytest.TempPathFactory, trees: tuple[Tree, Tree]
) -> None:
    before, after = trees
    folder = tmp_path_factory.mktemp("tree")
    write_tree(folder, before)
    patch = patch_between(before, after)
    if patch.changes:
        git_apply(folder, patch.diff())
    assert read_tree(folder) == after


@settings(max_examples=50, deadline=None)
@given(edited_trees())
def test_a_patch_survives_json(trees: tuple[Tree, Tree]) -> None:
    patch = patch_between(*trees)
    assert Patch.model_validate_json(patch.model_dump_json()) == patch
