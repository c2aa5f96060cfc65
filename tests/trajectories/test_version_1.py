"""Run folders of version 1, whose records are one line each: they are read, shown, exported and resumed."""

import json
import os
import shutil
from pathlib import Path

import pytest

from swe_gym.trajectories.comparison import compare, read_results
from swe_gym.trajectories.formats import export_trajectories
from swe_gym.trajectories.run_folder import (
    FAILED,
    TRAJECTORIES,
    RunFolder,
    open_trajectories,
    read_episodes,
    read_failed,
    read_index,
    read_indexed,
    read_live,
    read_run,
)
from swe_gym.trajectories.trajectory import Trajectory, Turn
from swe_gym.viewer.episode import episode_page
from swe_gym.viewer.index import RunIndex
from swe_gym.viewer.results import write_results

DATA = Path(__file__).parent.parent / "data"


@pytest.fixture(params=["version_1", "version_1_killed"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = Path(shutil.copytree(DATA / request.param, tmp_path / request.param))
    os.utime(path / "progress.json", (0, 0))  # its process is over
    return path


def as_written(path: Path) -> list[Trajectory]:
    """Parse whole lines with nothing of what is tested."""
    whole = path.read_text().split("\n")[:-1]
    return [Trajectory.model_validate(json.loads(line)) for line in whole]


def test_its_episodes_are_read(run: Path, tmp_path: Path) -> None:
    (graded,) = as_written(run / TRAJECTORIES)
    assert list(open_trajectories(run)) == [graded]
    assert [read_indexed(run, entry) for entry in read_index(run)] == [graded]
    before = read_episodes(run)
    (run / "index.jsonl").unlink()
    assert read_episodes(run) == before
    assert [one.reason for one in read_failed(run)] == [one.reason for one in as_written(run / FAILED)]
    assert export_trajectories(open_trajectories(run), "swe-gym", tmp_path / "out.jsonl") == 1
    assert as_written(tmp_path / "out.jsonl") == [graded.without_oracle()]
    assert list(Trajectory.read(tmp_path / "out.jsonl")) == [graded.without_oracle()]


def test_its_numbers_are_compared(run: Path) -> None:
    played = [*as_written(run / TRAJECTORIES), *as_written(run / FAILED)]
    found = read_results(run).summary
    assert (found.graded, found.failed_tries, found.resolved) == (1, len(played) - 1, 0.0)
    assert found.prompt_tokens == sum(one.usage.prompt_tokens for one in played)
    assert found.all_turns == len(played[0].turns)
    assert compare([run, DATA / "version_1"]).pairs[0].tasks == 1
    assert write_results(run)["graded"] == 1


def test_it_is_shown(run: Path) -> None:
    index = RunIndex(run)
    index.read_all()
    assert index.problems == []
    played = [*as_written(run / TRAJECTORIES), *as_written(run / FAILED)]
    for row, one in zip(index.rows, played, strict=True):
        assert index.trajectory(row.id) == one
        turns = index.turns(row.id)
        assert tuple(turns.turn(number + 1) for number in range(len(turns.turns))) == one.turns
        assert episode_page(turns)["verdict"] == (one.verdict and one.verdict.model_dump())
    for row in index.live:
        assert (row.state, row.turns, len(index.turns(row.id).turns)) == ("left", 1, 1)


def test_it_is_resumed(run: Path) -> None:
    before = (run / TRAJECTORIES).read_bytes()
    whole = before[: before.rindex(b"\n") + 1]
    (graded,), failed = as_written(run / TRAJECTORIES), as_written(run / FAILED)
    running = list(read_live(run))
    old = read_run(run)
    with RunFolder(run, old.model_copy(update={"version": 2})) as folder:
        assert [key.task_id for key in folder.finished] == [graded.task_id]
        assert folder.left_behind == len(running) == (run.name == "version_1_killed")
        more = graded.model_copy(update={"attempt": 1, "turns": (Turn(action="new", observation="o"),)})
        folder.add(more)
    assert (run / TRAJECTORIES).read_bytes().startswith(whole)
    assert list(open_trajectories(run)) == [read_indexed(run, entry) for entry in read_index(run)] == [graded, more]
    killed = [one.model_copy(update={"reason": "killed"}) for one in running]
    assert list(open_trajectories(run / FAILED)) == [*failed, *killed]
    assert (old.version, read_run(run).version) == (1, 2)
