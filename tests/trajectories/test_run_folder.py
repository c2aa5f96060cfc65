"""The run folder: consistent after a kill at any moment, with one writer at a time."""

import json
import os
import resource
import signal
from pathlib import Path

import pytest

from swe_gym.errors import UsageError
from swe_gym.trajectories.run_folder import (
    FAILED,
    INDEX,
    TRAJECTORIES,
    RunFolder,
    RunInfo,
    read_failed,
    read_index,
    read_indexed,
    read_live,
    read_run,
)
from swe_gym.trajectories.trajectory import Trajectory, Turn, Usage

RUN = RunInfo(experiment="run", config={"env": {"tools": "default"}}, config_hash="abc", tasks=("a", "b"), attempts=2)


def trajectory(task_id: str = "a", attempt: int = 0, text: str = "hm") -> Trajectory:
    return Trajectory(
        task_id=task_id,
        attempt=attempt,
        config_hash="abc",
        observation="repair it",
        turns=(Turn(action=text, observation="é"),),
        outcome="submitted",
        reason="submit",
        reward_valid=True,
        resolved=True,
        reward=1.0,
        usage=Usage(prompt_tokens=7, calls=1),
    )


def test_the_index_finds_every_episode(tmp_path: Path) -> None:
    accented = trajectory("a", 1).model_copy(update={"repo": "zoë/日本"})
    written = [trajectory("a"), trajectory("b", text="x" * 100_000), accented]
    with RunFolder(tmp_path / "run", RUN) as folder:
        for one in written:
            folder.add(one)
    assert read_run(tmp_path / "run") == RUN
    entries = read_index(tmp_path / "run")
    assert [(one.task_id, one.attempt, one.turns, one.usage.prompt_tokens) for one in entries] == [
        ("a", 0, 1, 7),
        ("b", 0, 1, 7),
        ("a", 1, 1, 7),
    ]
    assert [read_indexed(tmp_path / "run", entry) for entry in reversed(entries)] == written[::-1]
    assert list(Trajectory.read(tmp_path / "run" / TRAJECTORIES)) == written


def test_a_kill_at_any_byte_leaves_a_folder_that_can_be_resumed(tmp_path: Path) -> None:
    """Every pair of lengths that a kill can leave behind: the trajectories are written first, then their index."""
    path = tmp_path / "run"
    with RunFolder(path, RUN) as folder:
        for one in (trajectory("a"), trajectory("b")):
            folder.add(one)
    lines, index = (path / TRAJECTORIES).read_bytes(), (path / INDEX).read_bytes()
    first, first_entry = read_index(path)[0].end, index.index(b"\n") + 1
    states = [(size, first_entry) for size in range(first, len(lines), 37)]
    states += [(len(lines), size) for size in range(first_entry, len(index), 23)]
    states += [(size, 0) for size in range(0, first, 53)] + [(len(lines), 0), (len(lines), len(index)), (0, len(index))]
    for kept, kept_entries in states:
        (path / TRAJECTORIES).write_bytes(lines[:kept])
        (path / INDEX).write_bytes(index[:kept_entries])
        whole = (kept >= first) + (kept >= len(lines))
        assert len(list(Trajectory.read(path / TRAJECTORIES))) == whole
        with RunFolder(path, RUN) as folder:
            assert [key.task_id for key in folder.finished] == ["a", "b"][:whole]
            folder.add(trajectory("c"))
        assert [one.task_id for one in Trajectory.read(path / TRAJECTORIES)] == [*["a", "b"][:whole], "c"]
        assert [read_indexed(path, one).task_id for one in read_index(path)] == [*["a", "b"][:whole], "c"]


def test_a_running_episode_can_be_read_turn_by_turn(tmp_path: Path) -> None:
    one = trajectory()
    with RunFolder(tmp_path, RUN) as folder:
        live = folder.start(one)
        assert [running.turns for running in read_live(tmp_path)] == [()]
        live.add(one.turns[0])
        live.add(one.turns[0])
        (running,) = read_live(tmp_path)
        assert running.turns == one.turns * 2
        live.close()
        folder.add(one)
        assert list(read_live(tmp_path)) == []


def test_running_episodes_of_a_killed_process_become_failed_tries(tmp_path: Path) -> None:
    with RunFolder(tmp_path, RUN) as folder:
        for task_id in ("a", "b"):
            live = folder.start(trajectory(task_id))
            live.add(trajectory().turns[0])
            live.close()
    half = tmp_path / "live" / "b.0.jsonl"
    half.write_bytes(half.read_bytes()[:-10])
    (tmp_path / "live" / "c.0.jsonl").write_bytes(b'{"version": 1, "task')
    with RunFolder(tmp_path, RUN) as folder:
        assert folder.left_behind == 2
        assert folder.finished == {}
    failed = list(Trajectory.read(tmp_path / FAILED))
    assert [(one.task_id, one.reason, len(one.turns)) for one in failed] == [("a", "killed", 1), ("b", "killed", 0)]
    assert list((tmp_path / "live").iterdir()) == []


def test_a_killed_try_keeps_the_usage_of_its_turns(tmp_path: Path) -> None:
    paid = Usage(prompt_tokens=1000, completion_tokens=10, calls=1, cost=0.25)
    turn = trajectory().turns[0].model_copy(update={"usage": paid, "seconds": 2.0, "policy_seconds": 3.0})
    with RunFolder(tmp_path, RUN) as folder:
        live = folder.start(trajectory().model_copy(update={"usage": Usage(), "seconds": {"start": 1.0}}))
        for _ in range(10):
            live.add(turn)
        live.close()
    with RunFolder(tmp_path, RUN) as folder:
        (killed,) = folder.failed
    assert (killed.usage.calls, killed.usage.tokens, killed.usage.cost) == (10, 10_100, 2.5)
    assert killed.seconds == {"start": 1.0, "tools": 20.0, "policy": 30.0, "total": 51.0}
    assert read_failed(tmp_path) == [killed]


def test_a_killed_try_of_an_older_version_is_counted_by_its_turns(tmp_path: Path) -> None:
    turn = trajectory().turns[0].model_copy(update={"usage": Usage(prompt_tokens=5, calls=1)})
    left = trajectory().model_copy(update={"turns": (turn, turn), "usage": Usage(), "reason": "killed"})
    with RunFolder(tmp_path, RUN) as folder:
        folder.fail(left)
    assert [one.usage.prompt_tokens for one in read_failed(tmp_path)] == [10]


def test_the_live_file_of_a_graded_episode_is_removed(tmp_path: Path) -> None:
    """A kill between the line and the removal of the live file."""
    with RunFolder(tmp_path, RUN) as folder:
        folder.start(trajectory()).close()
        folder.add(trajectory())
        folder.start(trajectory()).close()
    with RunFolder(tmp_path, RUN) as folder:
        assert folder.left_behind == 0
        assert len(folder.finished) == 1


def test_one_process_writes_at_a_time(tmp_path: Path) -> None:
    with RunFolder(tmp_path, RUN):
        with pytest.raises(UsageError, match=f"another process writes to this run folder .process {os.getpid()}"):
            RunFolder(tmp_path, RUN)
        assert read_run(tmp_path) == RUN
    RunFolder(tmp_path, RUN).close()


def test_a_folder_holds_one_configuration(tmp_path: Path) -> None:
    other = RUN.model_copy(update={"config": {"env": {"tools": "r2e"}}, "config_hash": "def"})
    with RunFolder(tmp_path, other) as folder:
        folder.fail(trajectory())
        folder.start(trajectory("b")).close()
    with RunFolder(tmp_path, RUN) as folder:  # nothing was graded
        assert (folder.run.config, folder.left_behind) == (RUN.config, 0)
        assert not (tmp_path / "failed.jsonl").read_text()
        folder.add(trajectory())
    with pytest.raises(UsageError, match=r'env\.tools: "default", now "r2e"'):
        RunFolder(tmp_path, other)
    more = RUN.model_copy(update={"attempts": 4, "created": "later"})
    with RunFolder(tmp_path, more) as folder:
        assert (folder.run.attempts, folder.run.created) == (4, RUN.created)


def test_invalid_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a run folder"):
        read_run(tmp_path)
    with RunFolder(tmp_path, RUN) as folder:
        folder.add(trajectory())
    index = (tmp_path / INDEX).read_text()
    (tmp_path / INDEX).write_text(index + "{}\n")
    with pytest.raises(UsageError, match=r"index\.jsonl, line 2 is invalid"):
        read_index(tmp_path)
    (tmp_path / INDEX).unlink()
    twice = (tmp_path / TRAJECTORIES).read_text() * 2
    (tmp_path / TRAJECTORIES).write_text(twice)
    with pytest.raises(UsageError, match="an episode twice"):
        RunFolder(tmp_path, RUN)
    (tmp_path / "run.json").write_text(json.dumps({"version": 7}))
    with pytest.raises(UsageError, match="not a run of version 1"):
        read_run(tmp_path)
    (tmp_path / "run.json").unlink()
    (tmp_path / TRAJECTORIES).write_text("")
    RunFolder(tmp_path, RUN).close()  # a refusal does not keep the lock


def test_a_full_disk_leaves_no_incomplete_line(tmp_path: Path) -> None:
    with RunFolder(tmp_path, RUN) as folder:
        folder.add(trajectory("a"))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / TRAJECTORIES).stat().st_size + 100, hard))
        try:
            with pytest.raises(OSError, match="large"):
                folder.add(trajectory("b"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, before)
        folder.add(trajectory("c"))
    assert [one.task_id for one in Trajectory.read(tmp_path / TRAJECTORIES)] == ["a", "c"]
