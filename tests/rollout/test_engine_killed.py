"""Rollouts that are interrupted or killed: no episode is lost or played twice, and no process is left."""

import collections
import contextlib
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGINT, SIGTERM

import pytest

from swe_gym.tasks import load_source
from swe_gym.testing.sandbox_contract.case import eventually
from swe_gym.trajectories.run_folder import FAILED, TRAJECTORIES, read_index, read_indexed
from swe_gym.trajectories.trajectory import Trajectory

pytestmark = pytest.mark.slow

HERE = str(Path(__file__).parent)
KILLS = 2
"""In CI; `benchmarks/rollout.py kill` does twenty."""

PLAY = """
import sys
from swe_gym.rollout.engine import RolloutOptions, rollout
from swe_gym.rollout.plan import Plan

folder, attempts, executor, gate = sys.argv[1:]
policy = {"policy": "node_parts:GatedGold", "policy_options": {"gate": gate}} if gate else {"policy": "gold"}
rollout(Plan(source="toy", attempts=int(attempts), **policy), folder, RolloutOptions(workers=4, executor=executor))
"""


@contextlib.contextmanager
def start(
    folder: Path, attempts: int = 1, executor: str = "threads", gate: Path | str = ""
) -> Iterator[subprocess.Popen[str]]:
    """A rollout of all toy tasks by their gold patches; killed at the end of the block where it still runs.

    With a `gate`, policies act once this file exists.
    """
    env = {**os.environ, "TMPDIR": str(folder.parent), "PYTHONPATH": os.pathsep.join([HERE, *sys.path])}
    command = [sys.executable, "-c", PLAY, str(folder), str(attempts), executor, str(gate)]
    with subprocess.Popen(command, env=env, text=True, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    """Until it is so, or the process has ended."""
    eventually(lambda: condition() or process.poll() is not None, 60, "the rollout got there")


def size(folder: Path) -> int:
    """Bytes that the run has written so far."""
    return sum(path.stat().st_size for path in (folder / TRAJECTORIES, folder / FAILED) if path.exists()) + sum(
        1000 for _ in (folder / "live").glob("*")
    )


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def boxes_of(pid: int) -> list[int]:
    """Processes that a process has started, and theirs."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found, todo = [], [pid]
    while todo:
        children = [child for child, parent in parents.items() if parent in todo]
        found += children
        todo = children
    return found


@pytest.mark.parametrize("executor", ["threads", "process"])
def test_a_rollout_survives_kills(tmp_path: Path, executor: str) -> None:
    folder = tmp_path / "run"
    wanted = len(load_source("toy").ids())
    chance = random.Random(os.urandom(8))
    for _ in range(KILLS):
        before = size(folder)
        more = chance.randrange(1, 100_000)
        with start(folder, executor=executor) as process:
            wait_for(process, lambda before=before, more=more: size(folder) >= before + more)  # type: ignore[misc]
            boxes = boxes_of(process.pid)
            process.kill()
        eventually(lambda boxes=boxes: not any(alive(pid) for pid in boxes), 60, "its sandboxes are gone")  # type: ignore[misc]
        done = [(one.task_id, one.attempt) for one in Trajectory.read(folder / TRAJECTORIES)]
        assert len(set(done)) == len(done)
        list(Trajectory.read(folder / FAILED))
    with start(folder, executor=executor) as process:
        assert process.wait(300) == 0
    entries = read_index(folder)
    counts = collections.Counter((entry.task_id, entry.attempt) for entry in entries)
    assert len(counts) == wanted
    assert set(counts.values()) == {1}
    assert all(read_indexed(folder, entry).reward == 1.0 for entry in entries)
    assert list((folder / "live").iterdir()) == []
    eventually(lambda: not list(tmp_path.glob("swe-gym-*")), 60, "no temporary folder is left")


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    folder, gate = tmp_path / "run", tmp_path / "gate"
    with start(folder, gate=gate) as first:
        wait_for(first, lambda: size(folder) > 0)
        with start(folder) as second:
            assert second.wait(60) != 0
            assert second.stderr is not None
            assert f"another process writes to this run folder (process {first.pid})" in second.stderr.read()
        gate.touch()
        assert first.wait(300) == 0


@pytest.mark.parametrize(
    ("signals", "stops", "executor"),
    [
        ([SIGINT], "graceful", "threads"),
        ([SIGINT, SIGINT], "firm", "threads"),
        ([SIGTERM], "firm", "threads"),
        ([SIGTERM], "firm", "process"),
    ],
)
def test_ctrl_c_ends_a_rollout(tmp_path: Path, signals: list[int], stops: str, executor: str) -> None:
    folder = tmp_path / "run"
    with start(folder, attempts=30, executor=executor) as process:
        wait_for(process, lambda: (folder / "index.jsonl").exists() and len(read_index(folder)) >= 2)
        for number in signals:
            process.send_signal(number)
            wait_for(process, lambda: any("interrupted" in path.read_text() for path in folder.glob("progress.json")))
        assert process.wait(300) != 0
        assert process.stderr is not None
        assert "KeyboardInterrupt" in process.stderr.read()
    done = list(Trajectory.read(folder / TRAJECTORIES))
    failed = list(Trajectory.read(folder / FAILED))
    assert 2 <= len(done) < 30 * 14
    assert all(one.reward_valid for one in done)
    assert {one.reason for one in failed} <= {"interrupted"}
    assert len(failed) <= (0 if stops == "graceful" else 4)
    assert list((folder / "live").iterdir()) == []
