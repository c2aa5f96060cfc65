"""Runs the command line in this process, in a temporary folder."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from swe_gym.tasks import load_source
from swe_gym.tasks.file import write_tasks
from swe_gym.types import Task
from swe_gym_command import main

TASK = "larder-overwrite-evicts"
"""A small bundled task: its tests take a tenth of a second."""


class Outcome(NamedTuple):
    """How a command ended, and what it said."""

    status: int
    out: str
    err: str


Cli = Callable[..., Outcome]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object, typed: str = "") -> Outcome:
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(int(end.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def doctor(cli, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Checks a training configuration; of Ray, which another program may have started, apart from the rest."""
    monkeypatch.setenv("E2B_API_KEY", "e2b_key")

    def run(config: Path, *changes: str) -> dict[str, Any]:
        outcome = cli("doctor", "--json", "--training", config, *changes)
        found = {finding["what"]: finding for finding in json.loads(outcome.out)}
        failed = {what: finding["fix"] for what, finding in found.items() if not finding["works"]}
        assert outcome.status == (1 if failed else 0)
        ray = failed.pop("Ray", "")
        return {"found": found, "failed": failed, "ray": ray}

    return run


@pytest.fixture
def toy() -> Task:
    return load_source("toy").get(TASK)


@pytest.fixture
def task_file(toy: Task, tmp_path: Path) -> Path:
    """A good task and one whose gold patch repairs nothing."""
    useless = "--- a/README.md\n+++ b/README.md\n@@ -1,2 +1,2 @@\n-# larder\n+# Larder\n \n"
    broken = toy.model_copy(
        update={"task_id": "useless-gold", "oracle": toy.oracle.model_copy(update={"gold_patch": useless})}
    )
    path = tmp_path / "tasks.jsonl"
    write_tasks([toy, broken], path)
    return path
