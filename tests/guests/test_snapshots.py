"""Snapshots of random trees after random edits, taken and restored by the runner's own functions."""

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swe_gym.guests.runner.snapshots import COARSE_CLOCK, Snapshots

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
    """Mark the start once the clock of file systems has moved, so that nothing is dated after it."""
    now = time.time()
    while time.clock_gettime(COARSE_CLOCK) <= now:  # it is late by some milliseconds
        pass
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
