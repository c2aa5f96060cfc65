"""Selection of tasks: sizes of patches, and splits that share no repository."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_gym.errors import UsageError
from swe_gym.files import write_table
from swe_gym.tasks import load_source
from swe_gym.tasks.base import changed_lines, split_by_repository
from swe_gym.tasks.exporters import verl_row


def test_lines_of_a_patch_are_counted_without_its_headers() -> None:
    old = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n-a\n--- b\n+c\n d\n"
    new = "diff --git a/y b/y\nnew file mode 100644\n--- /dev/null\n+++ b/y\n@@ -0,0 +1 @@\n+e\n"
    diff = old + new
    assert changed_lines(diff) == 4
    assert changed_lines("") == 0


@given(
    st.dictionaries(st.text(max_size=5), st.sampled_from(["a/a", "A/A", "b/b", "c/c", "d/d", "e/e", ""]), min_size=7),
    st.dictionaries(st.text(max_size=3), st.floats(0.1, 10), min_size=1, max_size=3),
    st.integers(),
)
def test_every_task_is_in_one_part_and_no_repository_in_two(
    repos: dict[str, str], parts: dict[str, float], seed: int
) -> None:
    if len({repo.lower() or task for task, repo in repos.items()}) < len(parts):
        return
    found = split_by_repository(repos, parts, seed=seed)
    assert sorted(task for tasks in found.values() for task in tasks) == sorted(repos)
    assert all(found.values())
    owners = [{repos[task].lower() or task for task in tasks} for tasks in found.values()]
    assert sum(map(len, owners)) == len(set().union(*owners))
    assert split_by_repository(repos, parts, seed=seed) == found


def test_shares_are_met_approximately() -> None:
    repos = {f"t{number}": f"r{number % 10}" for number in range(100)}
    found = split_by_repository(repos, {"train": 0.8, "test": 0.2})
    assert {name: len(tasks) for name, tasks in found.items()} == {"train": 80, "test": 20}
    assert split_by_repository(repos, {"train": 0.8, "test": 0.2}, seed=1) != found


def test_impossible_parts_are_refused() -> None:
    with pytest.raises(UsageError, match="1 repositories cannot be split into 2 parts"):
        split_by_repository({"a": "r", "b": "R"}, {"train": 1, "test": 1})
    for share in (0, -1, math.nan, math.inf):
        with pytest.raises(UsageError, match="positive"):
            split_by_repository({"a": "r"}, {"train": share})


@pytest.mark.parametrize("suffix", ["jsonl", "json", "parquet"])
def test_rows_for_trainers_open_the_task_and_hold_no_oracle(tmp_path: Path, suffix: str) -> None:
    source = load_source("toy")
    tasks = [source.get(task_id) for task_id in source.ids()[:2]]
    rows = [verl_row(task, number, "toy", {}) for number, task in enumerate(tasks)]
    path = tmp_path / f"rows.{suffix}"
    write_table(rows, path)
    if suffix == "parquet":
        import pyarrow.parquet

        found = pyarrow.parquet.read_table(path).to_pylist()
    else:
        text = path.read_text()
        found = json.loads(text) if suffix == "json" else [json.loads(line) for line in text.splitlines()]
    assert found == rows
    assert rows[1]["extra_info"]["task_id"] == tasks[1].task_id
    assert rows[0]["prompt"] == [{"role": "user", "content": tasks[0].problem_statement}]
    assert tasks[0].oracle.fail_to_pass[0] not in json.dumps(rows)


def test_rows_need_a_known_format(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must end in"):
        write_table([], tmp_path / "rows.csv")
    assert list(tmp_path.iterdir()) == []
