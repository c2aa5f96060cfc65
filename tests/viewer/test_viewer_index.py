"""The index of a run folder as it grows, with incomplete and invalid lines."""

import os
import shutil
from pathlib import Path

import pytest
from runs_on_disk import failed, run_info, trajectory, turn, write_run

from swe_gym.errors import UsageError
from swe_gym.trajectories.run_folder import FAILED, INDEX, TRAJECTORIES, RunFolder, read_index
from swe_gym.viewer.index import COLUMNS, EpisodeRow, RunIndex


def read(index: RunIndex) -> list[tuple[str, int, str]]:
    index.refresh()
    return [(row.task_id, row.attempt, row.state) for row in index.rows]


def only(index: RunIndex) -> EpisodeRow:
    index.refresh()
    (row,) = index.rows
    return row


def test_finished_and_failed_episodes_are_rows(tmp_path: Path) -> None:
    write_run(tmp_path, trajectory(resolved=True), trajectory(attempt=1), failed("b-2"))
    index = RunIndex(tmp_path)
    assert read(index) == [("a-1", 0, "resolved"), ("a-1", 1, "unresolved"), ("b-2", 0, "failed")]
    assert index.name == "first"
    row = index.rows[0]
    assert (row.reason, row.reward, row.turns, row.usage.tokens, row.repo) == ("submit", 1.0, 2, 220, "toy/a")
    assert index.rows[2].reason == "SandboxLost (oom)"
    for row in index.rows:
        assert index.trajectory(row.id).task_id == row.task_id
    assert index.trajectory(index.rows[0].id) == trajectory(resolved=True)


def test_new_rows_are_appended(tmp_path: Path) -> None:
    with RunFolder(tmp_path, run_info()) as folder:
        index = RunIndex(tmp_path)
        assert read(index) == []
        folder.add(trajectory())
        first = only(index)
        folder.fail(failed(attempt=1))
        folder.add(trajectory(attempt=1, resolved=True))
        assert read(index) == [("a-1", 0, "unresolved"), ("a-1", 1, "resolved"), ("a-1", 1, "failed")]
        assert index.rows[0] is first


def test_a_page_gets_only_new_rows(tmp_path: Path) -> None:
    write_run(tmp_path, trajectory(), trajectory(attempt=1))
    index = RunIndex(tmp_path)
    index.refresh()
    news = index.news()
    assert news["start"] == 0
    assert dict(zip(COLUMNS, news["rows"][1], strict=True)) == {
        "id": index.rows[1].id,
        "state": "unresolved",
        "task": "a-1",
        "repo": "toy/a",
        "attempt": 1,
        "tries": 1,
        "reason": "submit",
        "reward": 0.0,
        "turns": 2,
        "read": 200,
        "written": 20,
        "cost": 0.02,
        "signs": 0,
        "started": "2026-11-20T10:00:00.001+00:00",
        "start": 1.0,
        "policy": 2.0,
        "tools": 1.0,
        "grading": 2.0,
        "total": 7.0,
    }
    assert index.news(news["generation"], 1)["rows"] == news["rows"][1:]
    assert index.news(news["generation"], 2)["rows"] == []
    assert index.news("of another server", 2)["rows"] == news["rows"]


def test_an_incomplete_line_is_not_read(tmp_path: Path) -> None:
    write_run(tmp_path, trajectory(), trajectory(attempt=1))
    path = tmp_path / TRAJECTORIES
    whole = path.read_bytes()
    middle = read_index(tmp_path)[0].end + 500
    (tmp_path / INDEX).unlink()
    path.write_bytes(whole[:middle])
    index = RunIndex(tmp_path)
    assert len(read(index)) == 1
    with path.open("ab") as file:
        file.write(whole[middle:-1])
        file.flush()
        assert len(read(index)) == 1
        file.write(b"\n")
    assert len(read(index)) == 2
    assert index.trajectory(index.rows[1].id).attempt == 1


@pytest.mark.parametrize("lines", [0, 1, 2])
def test_an_index_that_lags_loses_nothing(tmp_path: Path, lines: int) -> None:
    write_run(tmp_path, trajectory(), trajectory(attempt=1))
    known = (tmp_path / INDEX).read_bytes().splitlines(keepends=True)
    (tmp_path / INDEX).write_bytes(b"".join(known[:lines]))
    index = RunIndex(tmp_path)
    assert len(read(index)) == 2
    (tmp_path / INDEX).write_bytes(b"".join(known))  # the index may lag or be rebuilt
    assert len(read(index)) == 2
    with RunFolder(tmp_path, run_info()) as folder:
        folder.add(trajectory("b-2"))
    assert read(index)[2:] == [("b-2", 0, "unresolved")]


def test_a_wrong_index_is_ignored(tmp_path: Path) -> None:
    write_run(tmp_path, trajectory(), trajectory(attempt=1))
    path = tmp_path / INDEX
    path.write_bytes(b"no json\n" + path.read_bytes())
    assert len(read(RunIndex(tmp_path))) == 2


def test_an_invalid_line_is_reported_and_skipped(tmp_path: Path) -> None:
    write_run(tmp_path, trajectory(), failed("b-2"))
    with (tmp_path / TRAJECTORIES).open("ab") as file:
        file.write(b'{"version": 7}\n\xff\n')
    index = RunIndex(tmp_path)
    assert len(read(index)) == 2
    assert len(index.problems) == 2
    assert index.problems[0].startswith(f"{TRAJECTORIES}, byte ")
    assert index.news()["unreadable"] == 2


def test_a_replaced_run_is_read_again(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", trajectory(), trajectory(attempt=1))
    index = RunIndex(path)
    index.refresh()
    before = index.news()["generation"]
    shutil.rmtree(path)
    write_run(path, *(trajectory("b-2", attempt) for attempt in range(3)), created="2026-11-20T11:00:00.000+00:00")
    assert read(index) == [("b-2", attempt, "unresolved") for attempt in range(3)]
    assert index.news()["generation"] != before
    assert index.news(before, 2)["start"] == 0


def test_a_running_episode_is_followed_turn_by_turn(tmp_path: Path) -> None:
    with RunFolder(tmp_path, run_info()) as folder:
        beginning = trajectory(turns=0, outcome="running", reason="", verdict=None, seconds={"start": 1.5})
        file = folder.start(beginning)
        folder.progress({"running": 1, "total": 4})
        index = RunIndex(tmp_path)
        index.refresh()
        (row,) = index.live
        assert (row.state, row.turns, row.reason, row.seconds["total"]) == ("running", 0, "", 1.5)
        file.add(turn(1))
        file.add(turn(2))
        index.refresh()
        (row,) = index.live
        assert (row.turns, row.usage.tokens, row.seconds["total"]) == (2, 220, 4.5)
        assert [one.observation for one in index.trajectory(row.id).turns] == ["observation 1", "observation 2"]
        with (tmp_path / "live" / "a-1.0.jsonl").open("ab") as half:
            half.write(b'{"action": "')
        index.refresh()
        assert index.live[0].turns == 2
        file.close()
        folder.add(trajectory())
        index.refresh()
        assert (index.live, len(index.rows)) == ([], 1)
        with pytest.raises(UsageError, match="it may have ended"):
            index.trajectory(row.id)


def test_a_retry_in_the_same_file_is_another_episode(tmp_path: Path) -> None:
    with RunFolder(tmp_path, run_info()) as folder:
        first = folder.start(trajectory(turns=0, outcome="running", started="2026-11-20T10:00:00.000+00:00"))
        first.add(turn(1))
        index = RunIndex(tmp_path)
        index.refresh()
        assert index.live[0].turns == 1
        second = folder.start(trajectory(turns=0, outcome="running", started="2026-11-20T10:01:00.000+00:00", tries=2))
        for number in (1, 2, 3):
            second.add(turn(number))
        index.refresh()
        assert [(row.turns, row.tries) for row in index.live] == [(3, 2)]
        first.close()
        second.close()


def test_a_finished_episode_is_not_shown_as_running(tmp_path: Path) -> None:
    with RunFolder(tmp_path, run_info()) as folder:
        folder.start(trajectory(turns=0, outcome="running")).close()
        left = (tmp_path / "live" / "a-1.0.jsonl").read_bytes()
        folder.add(trajectory())
        (tmp_path / "live" / "a-1.0.jsonl").write_bytes(left)  # a state between two writes
        index = RunIndex(tmp_path)
        index.refresh()
        assert (index.live, len(index.rows)) == ([], 1)


def test_a_running_episode_of_another_version_is_skipped(tmp_path: Path) -> None:
    write_run(tmp_path, trajectory())
    (tmp_path / "live" / "a.0.jsonl").write_text('{"version": 7}\n')
    (tmp_path / "live" / "b.0.jsonl").write_text("")
    index = RunIndex(tmp_path)
    index.refresh()
    assert (index.live, len(index.rows)) == ([], 1)


def test_episodes_of_a_killed_process_are_not_running(tmp_path: Path) -> None:
    with RunFolder(tmp_path, run_info()) as folder:
        folder.start(trajectory(turns=0, outcome="running")).close()
        folder.progress({"running": 1})
        index = RunIndex(tmp_path)
        index.refresh()
        assert (index.active, index.live[0].state) == (True, "running")
        os.utime(tmp_path / "progress.json", (0, 0))
        index.refresh()
        assert (index.active, index.live[0].state) == (False, "left")


def test_a_trajectory_file_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    trajectory(resolved=True).append(path)
    failed("b-2").append(path)
    index = RunIndex(path)
    assert read(index) == [("a-1", 0, "resolved"), ("b-2", 0, "failed")]
    assert (index.name, index.live, index.news()["run"]) == ("some", [], {})


def test_other_paths_are_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neither a run folder nor a trajectory file"):
        RunIndex(tmp_path / "nothing")
    write_run(tmp_path / "one")
    write_run(tmp_path / "two")
    with pytest.raises(UsageError, match="Run folders in it: one, two"):
        RunIndex(tmp_path)


@pytest.mark.parametrize(
    "name", ["", "line-1", "line-x", "failed-0", "../run.json", "live-../run.json", "live-run.json"]
)
def test_unknown_episodes_are_refused(tmp_path: Path, name: str) -> None:
    write_run(tmp_path, trajectory())
    index = RunIndex(tmp_path)
    index.refresh()
    with pytest.raises(UsageError, match="unknown episode"):
        index.trajectory(name)
    assert not (tmp_path / FAILED).read_bytes()
