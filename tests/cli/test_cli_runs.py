"""`swe-gym runs`."""

import csv
import io
import json
from pathlib import Path

import pytest
from runs_on_disk import failed, run_info, trajectory, write_run

from swe_gym.trajectories.run_folder import RunFolder
from swe_gym.trajectories.trajectory import Usage


def config(model: str, **more: object) -> dict[str, object]:
    env = {"source": "toy"}
    return {"policy": "llm", "policy_options": {"model": model}, "env": env, "agent": more.get("agent", "")}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Write a finished run, an interrupted one, and one whose last process gave an episode up."""
    made = {"tasks": ("a-1", "b-2"), "attempts": 2}
    whole = [trajectory(task, attempt, resolved=task == "a-1") for task in ("a-1", "b-2") for attempt in range(2)]
    for name, day, records, more in (
        ("whole", 1, whole, config("small")),
        ("part", 3, whole[:1], config("large", agent="mini")),
        ("lost", 2, [*whole[:3], failed("b-2", 1)], {"policy": "gold", "env": {"source": "toy"}}),
    ):
        write_run(tmp_path / "runs" / name, *records, config=more, created=f"2026-11-0{day}T10:00:00+00:00", **made)
    last = {"running": 0, "total": 4, "done": 3, "given_up": 1}
    (tmp_path / "runs" / "lost" / "progress.json").write_text(json.dumps(last))
    return tmp_path / "runs"


@pytest.mark.usefixtures("runs")
def test_runs_are_listed_newest_first(cli) -> None:
    done = cli("runs")
    assert (done.status, done.err) == (0, "")
    head, *rows = [line.split() for line in done.out.splitlines()]
    assert head[:2] == ["run", "policy"]
    assert [row[0] for row in rows] == ["part", "lost", "whole"]
    assert rows[0][1:] == (
        "mini with large toy 2 x 2 100.0 % 20.7 % to 100.0 % 0:00:07 220 $0.02 interrupted 1/4 2026-11-03 10:00".split()
    )
    assert " finished 3/4 " in " ".join(rows[1])
    assert " 50.0 % 9.5 % to 90.5 % 0:00:07 880 $0.08 finished 2026" in " ".join(rows[2])


@pytest.mark.usefixtures("runs")
def test_a_run_without_a_model_costs_nothing(cli) -> None:
    record = trajectory(turns=0)
    write_run(Path("runs/free"), record, created="2026-11-09", config={"policy": "empty"}, tasks=("a-1",), attempts=1)
    assert cli("runs").out.splitlines()[1].split()[-4:] == ["0:00:04", "0", "finished", "2026-11-09"]


def test_what_a_server_does_not_tell_or_tells_otherwise_is_told(cli, runs: Path) -> None:
    used = Usage(prompt_tokens=1000, calls=2, uncounted=1, answered_as=("cheaper",))
    record = trajectory("a-1").model_copy(update={"usage": used})
    write_run(runs / "new", record, created="2026-11-09", config=config("large"), tasks=("a-1",), attempts=1)
    assert " 1,000 + unknown unknown finished " in " ".join(cli("runs").out.splitlines()[1].split())
    row = next(csv.DictReader(io.StringIO(cli("runs", "--csv").out)))
    assert (row["uncounted"], row["answered_as"], row["cost"]) == ("1", "cheaper", "")
    compared = cli("compare", runs / "new", runs / "whole").out
    assert " 1,000 + unknown unknown" in " ".join(compared.split())


def test_a_run_that_runs_is_told(cli, runs: Path) -> None:
    with RunFolder(runs / "new", run_info(created="2026-11-05T10:00:00+00:00")) as folder:
        folder.progress({"running": 1, "total": 4, "done": 0, "given_up": 0})
        assert " running 0/4 " in cli("runs").out.splitlines()[1]


def test_runs_are_told_as_csv_and_json(cli, runs: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(cli("runs", runs, "--csv").out)))
    found = json.loads(cli("runs", runs, "--json").out)
    assert [row["name"] for row in rows] == [row["name"] for row in found] == ["part", "lost", "whole"]
    assert [row["state"] for row in rows] == ["interrupted", "finished", "finished"]
    assert (rows[0]["agent"], rows[0]["model"], rows[0]["source"]) == ("mini", "large", "toy")
    assert (rows[2]["graded"], rows[2]["planned"], float(rows[2]["resolved"]), rows[2]["cost"]) == (
        "4",
        "4",
        0.5,
        "0.08",
    )
    assert (float(rows[2]["duration"]), rows[2]["prompt_tokens"]) == (pytest.approx(7.001), "800")


def test_one_run_and_what_is_none(cli, runs: Path, tmp_path: Path) -> None:
    assert cli("runs", runs / "whole").out.splitlines()[1].startswith("whole")
    (runs / "part" / "run.json").write_text("{}")
    done = cli("runs")
    assert (done.status, len(done.out.splitlines())) == (0, 3)
    assert "skipped: " in done.err
    assert "part/run.json is not a run of version 1" in done.err
    for place, said in (("nowhere", "nowhere does not exist"), (tmp_path, "holds no run folder")):
        refused = cli("runs", place)
        assert (refused.status, said in refused.err) == (2, True)
