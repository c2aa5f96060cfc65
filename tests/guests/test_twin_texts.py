"""Texts of counter-tests are compiled as pytest compiles the test's file, whatever its version; twins have limits."""

import ast
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion import rewrite

from swe_gym.guests.twins import SwapError, Twins, answers, compiled

TEXT = "def test_a():\n    assert 1 == 1\n"


def test_versions_of_pytest_before_5_2_get_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their second parameter is the path of the module, which may be left out."""
    given: list[Any] = []

    def before(mod: ast.Module, module_path: object = None, config: object = None) -> None:
        given.extend([mod.body[0].lineno, module_path, config])

    monkeypatch.setattr(rewrite, "rewrite_asserts", before)
    compiled(TEXT, "test_m.py", rewritten=True)
    assert given == [1, None, None]


def test_later_versions_get_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def since(mod: ast.Module, source: bytes) -> None:
        given.extend([mod.body[0].lineno, source])

    monkeypatch.setattr(rewrite, "rewrite_asserts", since)
    compiled(TEXT, "test_m.py", rewritten=True)
    assert given == [1, TEXT.encode()]


def test_a_text_that_cannot_be_compiled_does_not_end_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(mod: ast.Module, source: bytes) -> None:
        raise AttributeError(f"{mod} {source!r}")

    path = tmp_path / "test_m.py"
    space: dict[str, Any] = {"@py_builtins": None}
    exec(compile(TEXT, str(path), "exec"), space)
    known = {"groups": [{"places": [["test_m.py", ["test_a"]]], "callers": []}], "deadline": 1.0, "only": None}
    twins = Twins(None, known, str(tmp_path))  # type: ignore[arg-type]  # nothing is asked
    twins._find(0)
    monkeypatch.setattr(rewrite, "rewrite_asserts", fails)
    with pytest.raises(SwapError, match="cannot be compiled: AttributeError"):
        twins._swap(0, [TEXT])


@pytest.mark.parametrize(
    ("program", "limit", "clock", "found"),
    [
        ("pass", 60.0, 60.0, True),
        ("while True: pass", 0.2, 600.0, False),
        ("import time; time.sleep(0.5)", 0.4, 60.0, True),
        ("input()", 60.0, 0.1, False),
    ],
    ids=["ends", "loops", "waits longer than its CPU time limit", "hangs"],
)
def test_a_twin_is_limited_by_its_cpu_time_and_less_by_the_clock(
    program: str, limit: float, clock: float, found: bool
) -> None:
    out, into = os.pipe()
    command = [sys.executable, "-I", "-S", "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(into,)) as child, os.fdopen(out):
        os.close(into)
        try:
            assert answers(out, child.pid, limit, time.monotonic() + clock) is found
        finally:
            child.kill()
