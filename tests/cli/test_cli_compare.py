"""`swe-gym compare`."""

import csv
import io
import json
from pathlib import Path

import pytest
from runs_on_disk import failed, trajectory, write_run


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Write two runs of eight tasks: the second resolves six more, and none less; another ninth task failed in it."""
    tasks = tuple(f"t-{number}" for number in range(8))
    paths = []
    for name, resolved, more in (("small", tasks[:1], trajectory("u-1")), ("large", tasks[:7], failed("u-1"))):
        config = {"policy": "llm", "policy_options": {"model": name}, "env": {"max_turns": 30}}
        records = (trajectory(task, resolved=task in resolved) for task in tasks)
        info = {"config": config, "tasks": (*tasks, "u-1"), "attempts": 1}
        paths.append(write_run(tmp_path / "runs" / name, *records, more, **info))
    return paths


def test_compare_prints_runs_differences_and_disagreements(cli, runs: list[Path]) -> None:
    done = cli("compare", *runs)
    assert (done.status, done.err) == (0, "")
    lines = [line.split() for line in done.out.splitlines()]
    assert "small small 9/9 11.1 % 2.0 % to 43.5 % 1,980 $0.18".split() in lines
    assert "large large 8/9 87.5 % 52.9 % to 97.8 % 1,980 $0.18".split() in lines
    assert "small 18 0 0 0 0".split() in lines
    assert "large 16 0 0 0 1".split() in lines
    assert ["difference", "to", "small"] in [line[:3] for line in lines]
    assert "large 8 +75.0 +18.9 to +100.0 0.031 6 0 2".split() in lines
    assert "7 of 9 tasks differ or are missing in a run (resolved of graded):" in done.out
    assert [line for line in lines if line[:1] == ["t-1"]] == [["t-1", "0/1", "1/1"]]
    assert ["u-1", "0/1", "-"] in lines
    assert "Warning: large: 1 of 9 attempts are not graded" in done.out


def test_compare_prints_json(cli, runs: list[Path]) -> None:
    found = json.loads(cli("compare", *runs, "--json").out)
    assert found["pairs"][0]["p_value"] == pytest.approx(2 / 2**6)
    assert [task["task_id"] for task in found["tasks"]] == [*(f"t-{n}" for n in range(1, 7)), "u-1", "t-0", "t-7"]
    assert found["runs"][0]["pass_at_k"] == {"1": pytest.approx(1 / 9)}


@pytest.fixture
def four(runs: list[Path]) -> list[Path]:
    """Add a run of two of the tasks, and one of other tasks."""
    config = {"policy": "llm", "policy_options": {"model": "tiny"}, "env": {"max_turns": 30}}
    some = write_run(runs[0].parent / "some", trajectory("t-0"), trajectory("t-1"), config=config, attempts=1)
    other = write_run(runs[0].parent / "other", trajectory("v-1", resolved=True), config=config, attempts=1)
    return [*runs, some, other]


def test_several_runs_are_compared_with_one_base(cli, four: list[Path]) -> None:
    lines = [line.split() for line in cli("compare", *four).out.splitlines()]
    start = next(place for place, line in enumerate(lines) if line[:3] == ["difference", "to", "small"])
    assert [line[:3] for line in lines[start + 1 : start + 4]] == [["large", "8", "+75.0"], ["some", "2", "-50.0"], []]
    for base in ("large", four[1]):
        lines = [line.split() for line in cli("compare", *four, "--base", base).out.splitlines()]
        start = next(place for place, line in enumerate(lines) if line[:3] == ["difference", "to", "large"])
        assert [line[:3] for line in lines[start + 1 : start + 4]] == [
            ["small", "8", "-75.0"],
            ["some", "2", "-100.0"],
            [],
        ]


def test_a_base_outside_the_runs_is_added(cli, four: list[Path]) -> None:
    found = json.loads(cli("compare", four[1], "--base", four[0], "--json").out)
    assert [run["name"] for run in found["runs"]] == ["small", "large"]


def test_runs_without_common_tasks_are_named(cli, four: list[Path]) -> None:
    done = cli("compare", four[0], four[3])
    assert "difference to" not in done.out
    assert "Warning: other and small have no graded task in common, so they have no paired difference" in done.out
    assert [pair["second"] for pair in json.loads(cli("compare", *four, "--json").out)["pairs"]] == ["large", "some"]


def test_compare_prints_csv(cli, four: list[Path]) -> None:
    rows = list(csv.DictReader(io.StringIO(cli("compare", *four, "--csv").out)))
    assert [row["name"] for row in rows] == ["small", "large", "some", "other"]
    assert {row["base"] for row in rows} == {"small"}
    assert [row["common_tasks"] for row in rows] == ["", "8", "2", "0"]
    assert [float(row["difference"] or 0) for row in rows] == [0, 0.75, -0.5, 0]
    assert rows[1]["difference_p_value"] == str(2 / 2**6)
    assert (rows[0]["pass@1"], rows[0]["cost"], rows[0]["model"]) == (str(1 / 9), "0.18", "small")
    refused = cli("compare", *four, "--csv", "--json")
    assert (refused.status, "--csv and --json" in refused.err) == (2, True)


def test_compare_names_what_is_missing(cli, runs: list[Path]) -> None:
    for arguments, problem in (
        ([runs[0], "runs"], "has no run.json. Run folders in it: large, small"),
        ([runs[0], "nowhere"], "nowhere does not exist"),
        ([runs[0]], "two or more run folders"),
    ):
        refused = cli("compare", *arguments)
        assert (refused.status, problem in refused.err) == (2, True)
