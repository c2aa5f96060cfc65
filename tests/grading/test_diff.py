"""Diffs of files, read back by git itself."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swe_gym.grading import diff
from swe_gym.grading.diff import file_diff

few_lines = st.lists(st.sampled_from(["a\n", "b\n", "\n", "c\r\n"]), max_size=24).map("".join)
texts = st.tuples(few_lines, st.sampled_from(["", "a", "\u00e9", "b\x0c"])).map("".join).map(str.encode)


def assert_applies(folder: Path, old: bytes, new: bytes) -> None:
    """Git makes the new content of the old one, between other lines too."""
    (folder / "file").write_bytes(old)
    command = ["git", "apply", "--whitespace=nowarn", "-"]
    env = {"PATH": "/usr/bin:/bin:/usr/local/bin", "GIT_DIR": "/nonexistent"}
    text = file_diff("file", old, new, 0o100644, 0o100644)
    done = subprocess.run(command, cwd=folder, env=env, input=text.encode(), capture_output=True)
    assert done.returncode == 0, (done.stderr.decode(), text)
    assert (folder / "file").read_bytes() == new


@given(texts, texts)
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_git_makes_the_new_of_the_old(tmp_path: Path, old: bytes, new: bytes) -> None:
    if old != new:
        assert_applies(tmp_path, old, new)
        assert_applies(tmp_path, b"1\n2\n3\n4\n5\n" + old, b"1\n2\n3\n4\n5\n" + new)


def test_an_addition_that_repeats_the_lines_around_it_keeps_its_context(tmp_path: Path) -> None:
    block = b"    assert one\n    assert two\n\n"
    old = b"first\n" * 9 + block + b"def last():\n" + block
    new = b"first\n" * 9 + block + b"def added():\n" + block + b"def last():\n" + block
    assert_applies(tmp_path, old, new)
    assert file_diff("file", old, new, 0o100644, 0o100644).rstrip("\n").splitlines()[-1].startswith(" ")


def test_far_changes_are_hunks_of_their_own(tmp_path: Path) -> None:
    old = b"".join(b"%d\n" % number for number in range(40))
    new = old.replace(b"\n3\n", b"\nthree\n").replace(b"\n9\n", b"\nnine\n").replace(b"\n30\n", b"\n")
    assert file_diff("file", old, new, 0o100644, 0o100644).count("\n@@ ") == 2
    assert_applies(tmp_path, old, new)


def test_large_differences_are_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diff, "MAX_COMPARED", 3)
    assert_applies(tmp_path, b"1\n2\n3\n4\n5\n6\n7\n8\n9\n", b"1\n2\n3\n4\nfive\n6\nseven\n8\n9\n")
