"""Snapshots of random trees after random edits, taken and restored by the runner's own functions."""

import contextlib
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swe_gym.guests.runner.snapshots import Snapshots, date_of_change

NAMES = st.sampled_from(["a", "b", "c", "odd\nname", "\udcff", "x y", "é"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
EDITS = st.one_of(
    st.tuples(st.just("write"), PATHS, st.binary(max_size=20)),
    st.tuples(st.just("append"), PATHS, st.binary(max_size=20)),
    st.tuples(st.just("mkdir"), PATHS),
    st.tuples(st.just("remove"), PATHS),
    st.tuples(st.just("move"), PATHS, PATHS),
    st.tuples(st.just("swap"), PATHS, PATHS),
    st.tuples(st.just("symlink"), PATHS, PATHS),
    st.tuples(st.just("link"), PATHS, PATHS),
    st.tuples(st.just("mode"), PATHS, st.integers(0o600, 0o777)),
    st.tuples(st.just("date"), PATHS, st.integers(0, 2**31)),
    st.tuples(st.just("pipe"), PATHS),
)


def edit(root: str, what: str, path: str, *more: Any) -> None:  # noqa: C901
    """Make one change; what is impossible is left out."""
    place = os.path.join(root, path)
    other = os.path.join(root, more[0]) if more and isinstance(more[0], str) else ""
    with contextlib.suppress(OSError, shutil.Error):
        if what in ("write", "append"):
            os.makedirs(os.path.dirname(place), exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK  # nobody reads from a pipe
            fd = os.open(place, flags | (os.O_TRUNC if what == "write" else os.O_APPEND), 0o644)
            with os.fdopen(fd, "wb") as file:
                file.write(more[0])
        elif what == "mkdir":
            os.makedirs(place)
        elif what == "remove":
            shutil.rmtree(place) if os.path.isdir(place) and not os.path.islink(place) else os.unlink(place)
        elif what == "move":
            os.rename(place, other)
        elif what == "swap":
            os.stat(other)
            os.rename(place, root + "/way")
            os.rename(other, place)
            os.rename(root + "/way", other)
        elif what == "symlink":
            os.symlink(more[0], place)
        elif what == "link":
            os.link(other, place, follow_symlinks=False)
        elif what == "mode" and not os.path.islink(place):
            os.chmod(place, more[0])
        elif what == "date":
            os.utime(place, (more[0], more[0]), follow_symlinks=False)
        elif what == "pipe":
            os.mkfifo(place)


def describe(root: str) -> dict[str, list[object]]:
    found: dict[str, list[object]] = {}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.join(folder, name)
            info = os.lstat(path)
            entry: list[object] = [stat.S_IFMT(info.st_mode), info.st_mtime_ns]
            if stat.S_ISLNK(info.st_mode):
                entry.append(os.readlink(path))
            else:
                entry.append(info.st_mode)
            if stat.S_ISREG(info.st_mode):
                entry += [info.st_nlink, Path(path).read_bytes()]
            found[os.path.relpath(path, root)] = entry
    return found


def carry_out(steps: Generator[None, None, Any]) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


def mark(root: str) -> Snapshots:
    snapshots = Snapshots()
    carry_out(snapshots.mark({"path": root, "age": -1.0, "identified": False, "timeout": 9.0}, b""))
    return snapshots


def take(snapshots: Snapshots, root: str) -> tuple[dict[str, Any], bytes]:
    reply, data = carry_out(
        snapshots.snapshot({"path": root, "max_bytes": 1 << 20, "in_place": {}, "timeout": 9.0}, b"")
    )
    return reply["entries"], data


def restore(root: str, entries: dict[str, Any], data: bytes) -> None:
    carry_out(Snapshots().restore({"path": root, "entries": entries, "timeout": 9.0}, data))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    start=st.lists(EDITS, max_size=8),
    first=st.lists(EDITS, max_size=8),
    second=st.lists(EDITS, max_size=8),
)
def test_random_edits_arrive_in_a_chain_of_forks(
    start: list[Any], first: list[Any], second: list[Any], tmp_path: Path
) -> None:
    roots = [str(tmp_path / name) for name in ("parent", "child", "grandchild")]
    for root in roots:
        shutil.rmtree(root, ignore_errors=True)
        os.mkdir(root)
        for one in start:
            edit(root, *one)
        for place in describe(root):  # as workspaces have it: equal times in all sandboxes
            os.utime(os.path.join(root, place), (10**9, 10**9), follow_symlinks=False)
    marked = [mark(root) for root in roots]
    for number, edits in enumerate((first, second)):
        for one in edits:
            edit(roots[number], *one)
        restore(roots[number + 1], *take(marked[number], roots[number]))
        assert describe(roots[number + 1]) == describe(roots[number])


def test_only_what_was_written_is_taken(tmp_path: Path) -> None:
    root = str(tmp_path)
    for path in ("a/1", "a/2", "b/c/3"):
        edit(root, "write", path, b"old")
    snapshots = mark(root)
    assert take(snapshots, root) == ({}, b"")
    edit(root, "append", "a/1", b"+")
    entries, data = take(snapshots, root)
    assert (list(entries), data) == (["a", "a/1"], b"old+")
    edit(root, "move", "b", "d")
    entries, data = take(snapshots, root)
    assert sorted(entries) == ["", "a", "a/1", "d", "d/c", "d/c/3"]
    assert data in (b"oldold+", b"old+old")


def test_a_clock_that_was_set_back_hides_no_change(tmp_path: Path) -> None:
    root = str(tmp_path)
    edit(root, "write", "a", b"old")
    snapshots = mark(root)
    snapshots.since = (snapshots.since or 0) + 3600 * 10**9  # as if the clock showed an hour more at the start
    snapshots.drift += 3600
    edit(root, "write", "b", b"new")
    assert "b" in take(snapshots, root)[0]


def test_the_start_must_be_marked(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="the start of the sandbox was not marked"):
        take(Snapshots(), str(tmp_path))


def take_while(
    snapshots: Snapshots, root: str, number: int, change: Callable[[], object]
) -> tuple[dict[str, Any], bytes]:
    """Take a snapshot, and make a change between two steps of it."""
    steps = snapshots.snapshot({"path": root, "max_bytes": 1 << 28, "in_place": {}, "timeout": 9.0}, b"")
    for _ in range(number):
        next(steps)
    change()
    reply, data = carry_out(steps)
    return reply["entries"], data


def test_a_file_that_vanishes_takes_nothing_with_it(tmp_path: Path) -> None:
    parent, child = tmp_path / "parent", tmp_path / "child"
    for root in (parent, child):
        for name in ("m", "z"):
            edit(str(root), "write", f"src/{name}", b"old")
    snapshots = mark(str(parent))
    for name in ("big", "j.tmp", "m", "z"):
        edit(str(parent), "write", f"src/{name}", b"new")
    edit(str(parent), "mkdir", "src/j.folder")
    folder = parent / "src"
    entries, data = take_while(
        snapshots, str(parent), 3, lambda: [(folder / "j.tmp").unlink(), (folder / "j.folder").rmdir()]
    )
    assert entries["src"][5] == ["big", "m", "z"]
    restore(str(child), entries, data)
    assert describe(str(child)).keys() == describe(str(parent)).keys()
    assert [(child / "src" / name).read_text() for name in ("big", "m", "z")] == ["new"] * 3


def test_a_folder_that_is_exchanged_for_a_link_is_not_followed(tmp_path: Path) -> None:
    secret, home = tmp_path / "secret", tmp_path / "home"
    edit(str(secret), "write", "c/answer", b"SECRET")
    home.mkdir()
    snapshots = mark(str(tmp_path))
    edit(str(home), "write", "b/0big", bytes(3 << 20))
    edit(str(home), "write", "b/c/answer", b"mine")
    seen = []
    for number in range(1, 9):

        def exchange() -> None:
            (home / "b").rename(home / "b2")
            (home / "b").symlink_to("../secret")

        entries, data = take_while(snapshots, str(tmp_path), number, exchange)
        seen.append(list(entries))
        (home / "b").unlink()
        (home / "b2").rename(home / "b")
        assert b"SECRET" not in data
    assert any("home/b/0big" in names for names in seen)


def test_a_socket_in_the_place_of_a_file_removes_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parent, child = tmp_path / "parent", tmp_path / "child"
    for root in (parent, child):
        edit(str(root), "write", "conf", b"old")
    snapshots = mark(str(parent))
    (parent / "conf").unlink()
    monkeypatch.chdir(parent)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("conf")
        restore(str(child), *take(snapshots, str(parent)))
    assert list(child.iterdir()) == []


def test_what_is_written_just_after_the_start_is_taken(tmp_path: Path) -> None:
    root = str(tmp_path)
    edit(root, "write", "old", b"old")
    before = os.stat(root).st_mtime_ns
    snapshots = Snapshots()
    carry_out(snapshots.mark({"path": root, "age": -1.0, "identified": False, "timeout": 9.0}, b""))
    assert (os.stat(root).st_mtime_ns, os.listdir(root)) == (before, ["old"])
    edit(root, "write", "new", b"new")
    assert "new" in take(snapshots, root)[0]
    assert date_of_change("/proc", 1) == 1


@pytest.fixture
def two_roots() -> Iterator[list[str]]:
    """Folders that every user may use."""
    roots = [tempfile.mkdtemp() for _ in range(2)]
    for root in roots:
        os.chmod(root, 0o777)
    yield roots
    for root in roots:
        shutil.rmtree(root)


def as_nobody(work: Callable[[], object]) -> None:
    """Do something as a user without rights, in a process of its own. It must return something true."""
    child = os.fork()
    if not child:
        try:
            os.setuid(65534)
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_read_only_folders_and_those_of_others_without_root(two_roots: list[str]) -> None:
    def forks_of_a_read_only_folder() -> bool:
        for root in two_roots:
            edit(root, "write", "cache/deep/f", b"old")
            edit(root, "write", "gone/deep/f", b"old")
            for name in ("cache/deep", "gone/deep", "gone", "cache"):
                os.chmod(f"{root}/{name}", 0o555)
        parent, child = two_roots
        snapshots = mark(parent)
        for name in ("gone", "gone/deep", "cache"):
            os.chmod(f"{parent}/{name}", 0o755)
        edit(parent, "write", "cache/new", b"new")
        shutil.rmtree(f"{parent}/gone")
        restore(child, *take(snapshots, parent))
        return {name: row[2] for name, row in describe(parent).items()} == {
            name: row[2] for name, row in describe(child).items()
        }

    def names_a_file_that_it_cannot_read() -> bool:
        snapshots = mark(two_roots[0])
        edit(two_roots[0], "write", "mine", b"mine")
        os.chmod(f"{two_roots[0]}/mine", 0)
        with pytest.raises(OSError, match="/mine: Permission denied"):
            take(snapshots, two_roots[0])
        return True

    as_nobody(forks_of_a_read_only_folder)
    as_nobody(names_a_file_that_it_cannot_read)
