import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from runs_on_disk import failed, trajectory, write_run

from swe_gym.curation import AuditRecord
from swe_gym.curation.audit import AuditFinding
from swe_gym.curation.validation import TaskRecord, digest
from swe_gym.files import append_lines, scan_table
from swe_gym.tasks import load_source
from swe_gym.tasks.file import FileSource
from swe_gym.types import JsonMapping, Task


def test_tasks_are_listed_one_per_line(cli) -> None:
    result = cli("tasks", "list")
    assert (result.status, result.err) == (0, "")
    header, *lines = result.out.splitlines()
    assert header.split() == ["task", "level", "repository", "tags", "issue"]
    assert [line.split()[0] for line in lines] == list(load_source("toy").ids())
    assert "Overwriting a key in a full cache throws out somebody else's entry" in result.out


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (["--match", "l*"], ["larder-overwrite-evicts", "ledgerline-failed-batch"]),
        (["--match", "l*", "--difficulty", "easy"], ["larder-overwrite-evicts"]),
        (["--tag", "debugger", "--tag", "merge"], ["threeway-lines-return"]),
    ],
)
def test_tasks_are_selected(cli, options: list[str], ids: list[str]) -> None:
    lines = cli("tasks", "list", *options).out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == ids


def test_the_oracle_is_shown_only_on_request(cli, toy: Task) -> None:
    plain = cli("tasks", "show", toy.task_id).out
    assert plain.startswith(toy.task_id)
    assert toy.problem_statement in plain
    assert "5 to make pass, 12 to keep passing." in plain
    for secret in (*toy.oracle.fail_to_pass, "move_to_end"):
        assert secret not in plain
    full = cli("tasks", "show", toy.task_id, "--oracle").out
    assert toy.oracle.gold_patch in full
    for test in (*toy.oracle.fail_to_pass, *toy.oracle.pass_to_pass):
        assert f"    {test}\n" in full


def test_of_a_workspace_of_files_only_the_paths_are_shown(cli) -> None:
    shown = cli("tasks", "show", "micro-2-0", "--source", "micro", "--source-option", "difficulty=2").out
    (line,) = [line for line in shown.splitlines() if line.startswith("workspace")]
    kind, *paths = line.split()[1:]
    assert kind == "files"
    assert paths == [*load_source("micro", difficulty=2).get("micro-2-0").workspace.files]


def test_markup_in_tasks_is_printed_literally(cli, toy: Task, tmp_path: Path) -> None:
    from swe_gym.tasks.file import write_tasks

    text = "# [bold]Odd[/bold] :smile: \\[x] `[/]`"
    odd = toy.model_copy(update={"problem_statement": text, "repo": "[red]a[/]", "tags": ("[b]",)})
    write_tasks([odd], tmp_path / "odd.json")
    for command in (["list"], ["show", toy.task_id]):
        out = cli("tasks", *command, "--source", "odd.json").out
        assert text.lstrip("# ") in out
        assert "[red]a[/]" in out


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
def test_exported_tasks_can_be_loaded(cli, tmp_path: Path, suffix: str) -> None:
    result = cli("tasks", "export", f"new/folder/some{suffix}", "--match", "l*")
    assert (result.status, result.out) == (0, f"2 tasks in new/folder/some{suffix}\n")
    path = tmp_path / f"new/folder/some{suffix}"
    assert list(FileSource(str(path)).ids()) == ["larder-overwrite-evicts", "ledgerline-failed-batch"]
    assert "larder-overwrite-evicts" in cli("tasks", "list", "-s", path).out


@pytest.mark.slow
@pytest.mark.network
def test_a_real_task_is_built_validated_and_added(cli, task_file: Path) -> None:
    """The one test that makes a task of a package on the index."""
    words = ["--from-pypi", "pathspec", "0.12.0", "0.12.1", "--times", "1", "--requirement", "toolz"]
    result = cli("tasks", "new", *words, task_file)
    assert (result.status, result.err) == (0, "")
    assert "pypi__pathspec-0.12.1 is valid and was added to" in result.out
    tasks = FileSource(str(task_file))
    assert list(tasks.ids()) == ["larder-overwrite-evicts", "useless-gold", "pypi__pathspec-0.12.1"]
    task = tasks.get("pypi__pathspec-0.12.1")
    assert len(task.oracle.fail_to_pass) == 1
    assert len(task.oracle.pass_to_pass) > 100
    assert task.python is not None
    assert any(line.startswith("toolz==") for line in task.python.requirements)
    assert "match_file() returns None since 0.12.0" in task.problem_statement


def test_a_broken_task_file_fails_before_the_build(cli, tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text("nonsense\n")
    result = cli("tasks", "new", "--from-pypi", "no-such-package-at-all", "1", "2")
    assert result.status == 2
    assert "tasks.jsonl has broken rows" in result.err


def test_releases_in_the_wrong_order_are_named(cli) -> None:
    result = cli("tasks", "new", "--from-pypi", "sqlparse", "0.5.2", "0.5.1")
    assert result.status == 2
    assert "name the older release first: sqlparse 0.5.1 0.5.2" in result.err


COMMITS = [  # code, and what the tests expect of 1 + 0 and of 1 + 1
    ("return a - b", 1, 0),
    ("return a + b", 1, 2),
    ("return a + b", 1, 2, "only tests"),
    ("return b + a  # only code", 1, 2, "only tests"),
    ("return sum([a, b])", 1, 2, "both, and no test fails before"),
]


@pytest.fixture
def calc(tmp_path: Path) -> Path:
    """A repository of a few commits."""
    folder = tmp_path / "calc"
    (folder / "tests").mkdir(parents=True)
    (folder / "tests" / "__init__.py").touch()
    for code, zero, one, *comment in COMMITS:
        (folder / "calc.py").write_text(f"def add(a, b):\n    {code}\n")
        (folder / "tests" / "test_calc.py").write_text(
            f"import unittest\nimport calc  # {comment}\n\nclass TestCalc(unittest.TestCase):\n"
            f"    def test_zero(self):\n        self.assertEqual(calc.add(1, 0), {zero})\n"
            f"    def test_one(self):\n        self.assertEqual(calc.add(1, 1), {one})\n"
            "    def test_subtracts(self):\n        self.assertEqual(calc.add(3, 1), 2)\n"
        )
        for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "Add adds"]):
            command = ["git", "-c", "user.name=a", "-c", "user.email=a@localhost", *arguments]
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


NEW = ["tasks", "new", "own.jsonl", "--times", "1", "--tests", "python -m unittest discover -s tests -t ."]


def test_dropped_tests_are_named_with_their_reason(cli, calc: Path, tmp_path: Path) -> None:
    (tmp_path / "issue.md").write_text("Sums are wrong.\n")
    result = cli(*NEW, "--from-git", calc, "HEAD~3", "--statement", "issue.md")
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith(
        "1 tests were dropped:\n  1 failed with the gold patch\n    tests.test_calc.TestCalc.test_subtracts\n"
    )
    source = FileSource(str(tmp_path / "own.jsonl"))
    (task,) = map(source.get, source.ids())
    assert task.oracle.fail_to_pass == ("tests.test_calc.TestCalc.test_one",)
    assert task.problem_statement == "Sums are wrong.\n"
    assert set(task.metadata) == {"commit"}  # a policy may know it


def test_each_commit_of_a_range_is_tried_once(cli, calc: Path, tmp_path: Path) -> None:
    words = [*NEW, "--from-git", calc, "HEAD~4..HEAD"]
    result = cli(*words)
    assert (result.status, result.err) == (0, "")
    assert "Of 4 commits without a task so far, 1 made a valid one." in result.out.replace("\n", " ")
    source = FileSource(str(tmp_path / "own.jsonl"))
    (task,) = map(source.get, source.ids())
    assert task.oracle.fail_to_pass == ("tests.test_calc.TestCalc.test_one",)
    records = [json.loads(line) for line in (tmp_path / "own.records.jsonl").read_text().splitlines()]
    reasons = ["", "changes no Python code", "changes no tests", "no test fails before the change and passes after it"]
    assert all(reason in one["reason"] for one, reason in zip(records, reasons, strict=True))
    assert f"{records[1]['task_id']}: invalid: commit " in result.out
    append_lines(tmp_path / "own.records.jsonl", json.dumps(records[0] | {"cpu_seconds": 2.0}))
    told = cli(*words).out
    assert "1 in all" in told
    assert "own.records.jsonl, 1 of 4 tried are valid (" in told
    assert "2 s of CPU time, 2.0 s a valid task, without 3 of which it is not known" in told.replace("\n", " ")
    append_lines(tmp_path / "own.records.jsonl", json.dumps(records[0] | {"cpu_seconds": None}))
    assert "CPU time" not in cli(*words).out
    assert len((tmp_path / "own.records.jsonl").read_text().splitlines()) == len(records) + 2
    again = cli(*words[:-1], "HEAD~1..HEAD", "--tests", "true")  # its results cannot be read
    assert "1 is not decided: mend what the records say" in again.out.replace("\n", " ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--from-git", ".", "A..B", "--tests", "x", "--statement", "x.md"], "--statement is for one task"),
        (["--from-pypi", "a", "1", "ALL", "--statement", "x.md"], "--statement is for one task"),
        (["--mutate", "a", "1", "2"], "a is a folder: pass the command that runs its tests"),
        (["--from-pypi", "a", "1", "2", "--workers", "3"], "--workers goes with --mutate"),
        (["--from-git", ".", "A..B", "--tests", "python -m unittest"], "not a git repository"),
    ],
)
def test_ranges_that_cannot_be_tried_are_refused(cli, tmp_path: Path, words: list[str], message: str) -> None:
    (tmp_path / "x.md").touch()
    (tmp_path / "a").mkdir()
    result = cli("tasks", "new", *words)
    assert result.status != 0
    assert message in result.err.replace("\n", " ")


# --- datasets -------------------------------------------------------------------------------------------------


def instance(task_id: str, repo: str, lines: int = 1, **columns: object) -> dict[str, object]:
    patch = f"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -0,0 +1,{lines} @@\n" + "+y\n" * lines
    return {
        "instance_id": task_id,
        "repo": repo,
        "base_commit": "abc",
        "patch": patch,
        "test_patch": "",
        "problem_statement": f"The issue of {task_id}",
        "FAIL_TO_PASS": ["secret_test"],
        "PASS_TO_PASS": [],
        "eval_script": "true",
        "log_parser": "pytest",
        "image": "x:1",
        **columns,
    }


@pytest.fixture
def rows(tmp_path: Path) -> list[object]:
    """Options that select a dataset of six tasks and a broken row."""
    dataset = [instance(f"t{number}", f"owner/r{number % 3}", lines=number + 1) for number in range(6)]
    dataset.append(instance("broken", "owner/r0", patch=None))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in dataset))
    return ["--source", "swebench", "--source-option", "path=rows.jsonl"]


def listed(result) -> list[str]:
    return [line.split()[0] for line in result.out.splitlines()[1:]]


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ([], ["t0", "t1", "t2", "t3", "t4", "t5"]),
        (["--repo", "Owner/r1"], ["t1", "t4"]),
        (["--repo", "owner/r0", "--repo", "owner/r1", "--lines", ":3"], ["t0", "t1"]),
        (["--lines", "5:"], ["t4", "t5"]),
        (["--limit", "2"], ["t0", "t1"]),
    ],
)
def test_tasks_of_a_dataset_are_selected_and_broken_rows_are_named(
    cli, rows: list[object], options: list[str], ids: list[str]
) -> None:
    result = cli("tasks", "list", *rows, *options)
    assert (result.status, listed(result)) == (0, ids)
    assert "--limit" in options or "skipped 1 broken tasks:" in result.err
    assert "--limit" in options or "rows.jsonl, line 7: patch: " in result.err


def test_a_record_selects_valid_tasks(cli, rows: list[object], tmp_path: Path) -> None:
    source = load_source("swebench", path=str(tmp_path / "rows.jsonl"))
    records = [
        TaskRecord(task_id="t0", status="valid", backend="docker", digest=digest(source.get("t0"))),
        TaskRecord(task_id="t1", status="invalid", backend="docker", digest=digest(source.get("t1"))),
        TaskRecord(task_id="t2", status="valid", backend="docker", digest="of an older row"),
    ]
    (tmp_path / "record.jsonl").write_text("".join(record.model_dump_json() + "\n" for record in records))
    result = cli("tasks", "list", *rows, "--record", "record.jsonl")
    assert listed(result) == ["t0"]
    assert "left out 1 task that changed since record.jsonl was made: run `swe-gym validate` again: t2" in result.err


@pytest.fixture
def rated(rows: list[object], tmp_path: Path) -> list[object]:
    """Write a record of four tasks, one of them invalid, and two runs; return the options that choose the tasks."""
    tasks = load_source("swebench", path=str(tmp_path / "rows.jsonl"))
    for name in ("t0", "t1", "t2", "t3"):
        status = "invalid" if name == "t3" else "valid"
        append_record(tmp_path / "r.jsonl", task_id=name, status=status, digest=digest(tasks.get(name)))
    for model, other in (("small", "t9"), ("org/large", "t1")):
        ends = [("t0", True), ("t0", True), ("t1", True), ("t1", False), ("t3", True), ("t3", False), (other, False)]
        attempts = [trajectory(name, number, resolved=end) for number, (name, end) in enumerate(ends)]
        lost = [failed("t1", 7), failed("t2", 8)]
        config = {"policy": "llm", "policy_options": {"model": model}}
        write_run(tmp_path / model.rpartition("/")[2], *attempts, *lost, config=config)
    return [*rows, "--record", "r.jsonl", "--pass-rate"]


def append_record(path: Path, **fields: Any) -> None:
    append_lines(path, TaskRecord(backend="docker", **fields).model_dump_json())


def test_tasks_are_chosen_by_the_pass_rates_of_runs(cli, rated: list[object], tmp_path: Path) -> None:
    done = cli("tasks", "rate", "r.jsonl", "small")
    assert [line.split() for line in done.out.splitlines()[1:]] == [
        ["t0", "small", "2/2", "1.00", "0.34", "to", "1.00"],
        ["t1", "small", "1/2", "0.50", "0.09", "to", "0.91"],
        ["t3", "small", "1/2", "0.50", "0.09", "to", "0.91"],
    ]
    assert done.err == (
        "left out 1 task that r.jsonl does not hold for the runs' backend and sandbox options; "
        "validate them first: t9\n"
    )
    assert listed(cli("tasks", "list", *rated, "0.2:0.8")) == ["t1"]  # t2 was not graded, and t3 is invalid
    assert listed(cli("tasks", "list", *rated, "small=0.5:")) == ["t0", "t1"]

    append_lines(tmp_path / "local.jsonl", TaskRecord(task_id="t0", status="valid", backend="local").model_dump_json())
    config = {"policy": "llm", "env": {"backend": "docker"}}
    write_run(tmp_path / "engine", trajectory("t0", 0, resolved=True), config=config)
    refused = cli("tasks", "rate", "local.jsonl", "engine").err.replace("\n", " ")
    assert "engine: task t0 was validated with backend 'local' and played with 'docker': validate" in refused

    before = (tmp_path / "r.jsonl").read_text()
    (first, *_) = json.loads(cli("tasks", "rate", "r.jsonl", "small", "--json").out)
    assert first == {"task_id": "t0", "rates": {"small": {"resolved": 2, "attempts": 2, "low": 0.3424, "high": 1.0}}}
    assert (tmp_path / "r.jsonl").read_text() == before

    cli("tasks", "rate", "r.jsonl", "large")
    assert listed(cli("tasks", "list", *rated, "org/large=:0.4")) == ["t1"]
    assert listed(cli("tasks", "list", *rated, "small=0.2:0.8")) == ["t1"]
    assert "has pass rates of 'org/large', 'small': name one" in cli("tasks", "list", *rated, "0:1").err
    assert "not of 'tiny'" in cli("tasks", "list", *rated, "tiny=0:1").err


def test_a_rollout_plays_the_tasks_of_a_pass_rate(cli, tmp_path: Path) -> None:
    tasks = load_source("toy")
    for resolved, name in enumerate(tasks.ids()[:5]):
        rates = {"small": {"resolved": resolved, "attempts": 4, "low": 0.0, "high": 1.0}}
        append_record(tmp_path / "r.jsonl", task_id=name, status="valid", digest=digest(tasks.get(name)), rates=rates)
    checked = cli("rollout", "toy", "--policy", "gold", "--record", "r.jsonl", "--pass-rate", "0.25:0.75", "--check")
    assert (checked.status, checked.out.splitlines()[0]) == (0, "tasks   3 from toy, backend local")


@pytest.mark.usefixtures("rated")
def test_runs_of_one_model_count_together(cli, tmp_path: Path) -> None:
    write_run(tmp_path / "more", trajectory("t0"), config={"policy": "llm", "policy_options": {"model": "small"}})
    for name, options in (("elsewhere", {"backend": "local"}), ("open", {"sandbox_options": {"network": "open"}})):
        write_run(tmp_path / name, trajectory("t0"), config={"policy": "llm", "env": {"backend": "docker", **options}})
    runs = ("small", "more", "elsewhere", "open")
    (first, *_) = json.loads(cli("tasks", "rate", "r.jsonl", *runs, "--json").out)
    assert (first["rates"]["small"]["resolved"], first["rates"]["small"]["attempts"]) == (2, 3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["list", "--pass-rate", "0.2:0.8"], "--pass-rate 0.2:0.8 needs a record with pass rates: add --record FILE"),
        (["list", "--record", "r.jsonl", "--pass-rate", "20:80"], "a pass rate is a share from 0 to 1, as in 0.2:0.8"),
        (["list", "--record", "r.jsonl", "--pass-rate", "0.5"], "--pass-rate '0.5' is invalid: write MIN:MAX"),
        (["list", "--record", "r.jsonl", "--pass-rate", "0:1"], "r.jsonl has no pass rates: add them with `swe-gym ta"),
        (["list", "--lines", "9:5"], "--lines '9:5' is invalid: write MIN:MAX, MIN: or :MAX"),
        (["rate", "r.jsonl", "other"], "r.jsonl holds no task of the runs"),
        (["rate", "r.jsonl", "empty"], "the runs have no graded attempt"),
        (["rate", "r.jsonl", "small", "small"], "a run is given twice"),
        (["rate", "r.jsonl", "branch"], "branch continues an episode (small/t0/0:3), so its rates are not those of"),
    ],
)
@pytest.mark.usefixtures("rated")
def test_rates_that_mean_nothing_are_refused(cli, tmp_path: Path, words: list[str], said: str) -> None:
    write_run(tmp_path / "other", trajectory("x"))
    write_run(tmp_path / "empty", failed("t0"))
    write_run(tmp_path / "branch", trajectory("t0"), config={"checkpoint": {"origin": "small/t0/0:3"}})
    refused = cli("tasks", *words)
    assert refused.status == 2
    assert said in refused.err


def test_a_dataset_is_exported_and_shown(cli, rows: list[object], tmp_path: Path) -> None:
    assert cli("tasks", "export", "some.jsonl", *rows, "--repo", "owner/r2").out == "2 tasks in some.jsonl\n"
    assert list(FileSource(str(tmp_path / "some.jsonl")).ids()) == ["t2", "t5"]
    shown = cli("tasks", "show", "t2", *rows)
    assert "The issue of t2" in shown.out
    assert "secret_test" not in shown.out
    assert "secret_test" in cli("tasks", "show", "t2", *rows, "--oracle").out


def test_rows_for_trainers_hold_no_oracle(cli, rows: list[object], tmp_path: Path) -> None:
    assert cli("tasks", "export", "rows.parquet", *rows, "--to", "verl").out == "6 tasks in rows.parquet\n"
    cli("tasks", "export", "train.jsonl", *rows, "--to", "verl", "--limit", "1")
    (row,) = map(json.loads, (tmp_path / "train.jsonl").read_text().splitlines())
    assert row["prompt"] == [{"role": "user", "content": "The issue of t0"}]
    assert row["agent_name"] == "swe_gym"
    assert json.loads(row["extra_info"]["source_options"]) == {"path": str(tmp_path / "rows.jsonl")}
    assert "secret_test" not in json.dumps(row)


def test_rllm_finds_a_split_in_its_registry(cli, rows: list[object], tmp_path: Path) -> None:
    for split, more in (("train", ["--repo", "owner/r0"]), ("test", ["--repo", "owner/r1", "--limit", "1"])):
        cli("tasks", "export", f"datasets/issues/{split}.parquet", *rows, *more, "--to", "rllm")
    registry = json.loads((tmp_path / "datasets/registry.json").read_text())
    splits = registry["datasets"]["issues"]["splits"]
    assert (registry["version"], list(splits)) == (2, ["train", "test"])
    found = [(split["path"], split["num_examples"]) for split in splits.values()]
    assert found == [("issues/train.parquet", 2), ("issues/test.parquet", 1)]
    rows_of = {name: read_rows(tmp_path / f"datasets/issues/test{name}.parquet") for name in ("", "_verl")}
    assert rows_of[""][0]["instruction"] == "The issue of t1"
    assert list(rows_of[""][0]) == splits["test"]["fields"]
    assert [row["extra_info"] for row in rows_of["_verl"]] == rows_of[""]
    assert "secret_test" not in json.dumps(rows_of)


def read_rows(path: Path) -> list[Any]:
    return [row for _, row in scan_table(path)]


def test_export_to_harbor(cli, tmp_path: Path) -> None:
    done = cli("tasks", "export", "out", "--to", "harbor", "--source", "micro", "--limit", "2", "--base", "mine:1")
    assert done.status == 0, done.err
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == ["micro-1-0", "micro-1-1"]
    assert (tmp_path / "out/micro-1-0/environment/Dockerfile").read_text().startswith("FROM mine:1\n")


def test_a_wrong_export_writes_nothing(cli, rows: list[object], tmp_path: Path) -> None:
    assert (
        "unknown trainer 'verk'. Did you mean 'verl'?"
        in cli("tasks", "export", "a/x.parquet", *rows, "--to", "verk").err
    )
    assert "--base needs --to harbor" in cli("tasks", "export", "a/x.jsonl", *rows, "--base", "i").err
    assert "cannot be exported to Harbor: " in cli("tasks", "export", "a", *rows, "--to", "harbor").err
    assert "datasets/NAME/SPLIT.parquet" in cli("tasks", "export", "a/x.parquet", *rows, "--to", "rllm").err
    assert "must end in" in cli("tasks", "export", "a/x.csv", *rows).err
    assert not (tmp_path / "a").exists()
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets/registry.json").write_text('{"issues": {"train": "old.parquet"}}')
    refused = cli("tasks", "export", "datasets/issues/train.parquet", *rows, "--to", "rllm")
    assert "not a dataset registry of version 2" in refused.err
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_dataset_is_split_by_repository(cli, rows: list[object], tmp_path: Path) -> None:
    result = cli("tasks", "split", "parts", *rows, "--part", "train=2", "--part", "test.json=1")
    assert result.out == (
        "4 tasks of 2 repositories in parts/train.jsonl\n2 tasks of 1 repository in parts/test.json\n"
    )
    train, test = (FileSource(str(tmp_path / f"parts/{name}")) for name in ("train.jsonl", "test.json"))
    assert not {train.get(name).repo for name in train.ids()} & {test.get(name).repo for name in test.ids()}
    for mistake in ("train", "train=much"):
        assert "expected NAME=SHARE" in cli("tasks", "split", "parts", *rows, "--part", mistake).err
    outside = cli("tasks", "split", "parts", *rows, "--part", "../../train=2")
    assert "'../../train' is a path, not a name" in outside.err
    twice = cli("tasks", "split", "parts", *rows, "--part", "train=2", "--part", "train=1")
    assert "--part train=1: duplicate name train" in twice.err


def test_a_source_option_is_a_pair(cli) -> None:
    assert "--source-option 'path' is not NAME=VALUE" in cli("tasks", "list", "--source-option", "path").err


def write_ids(tasks: Sequence[Task], file: Path, source: str, source_options: JsonMapping) -> None:
    """An exporter of another package."""
    file.write_text(json.dumps([source, dict(source_options), *(task.task_id for task in tasks)]))


def test_tasks_are_written_for_a_trainer_of_another_package(cli) -> None:
    done = cli("tasks", "export", "out.json", "--to", "test_cli_tasks:write_ids", "--match", "l*")
    assert (done.status, done.err) == (0, "")
    assert json.loads(Path("out.json").read_text())[:3] == ["toy", {}, "larder-overwrite-evicts"]


def test_audits_of_a_record_are_printed_and_unstable_tests_are_left_out(cli, tmp_path: Path) -> None:
    source = load_source("toy")
    tasks = [source.get(name) for name in list(source.ids())[:3]]
    unstable = [tasks[0].oracle.pass_to_pass[:1], tasks[1].oracle.fail_to_pass, ()]
    for task, tests in zip(tasks, unstable, strict=True):
        audit = AuditRecord(
            task_id=task.task_id,
            status="audited",
            findings=tuple(AuditFinding(kind="unstable", what=f"{test}: clock") for test in tests[:1]),
            conditions={
                "clock": "changed" if tests else "same",
                "zone": "same",
                "network": "not tried: no run has one",
            },
            unstable=dict.fromkeys(tests, ("clock",)),
            strength=0.75 if tests else 1.0,
            killed=3 if tests else 4,
            tried=4,
            variants=16,
            backend="local",
            sandbox_options={},
            digest=digest(task),
        )
        append_lines(tmp_path / "audits.jsonl", audit.model_dump_json())
    done = cli("tasks", "audit", "toy:3", "repaired.jsonl", "--record", "audits.jsonl")
    assert (done.status, done.err) == (1, "")
    lines = done.out.splitlines()
    assert lines[-1].endswith(f"they cannot do without their unstable tests: {tasks[1].task_id}")
    assert lines[-2:-1] == ["2 tasks in repaired.jsonl"]
    assert lines[-4:-2] == [
        "3 audited, 1 without findings",
        "Read it as a page: swe-gym report audits.jsonl",
    ]
    assert lines[-5:-7:-1] == [
        f"{task.task_id}: unstable: {tests[0]}: clock"
        for task, tests in zip(tasks[1::-1], unstable[1::-1], strict=True)
    ]
    assert [" ".join(line.split()) for line in lines if line.startswith(tasks[2].task_id)] == [
        f"{tasks[2].task_id} 1.00 (4 of 4) 2 of 2 same none"
    ]
    repaired = FileSource(str(tmp_path / "repaired.jsonl"))
    assert repaired.get(tasks[0].task_id).oracle.pass_to_pass == tasks[0].oracle.pass_to_pass[1:]
    assert repaired.get(tasks[2].task_id) == tasks[2]
    as_json = cli("tasks", "audit", "toy:3", "--record", "audits.jsonl", "--match", tasks[2].task_id, "--json")
    assert as_json.status == 0
    assert [one["strength"] for one in json.loads(as_json.out)] == [1.0]
    for option in (["--min-strength", 0.8], ["--harden"]):
        assert cli("tasks", "audit", "toy:3", *option).err.endswith("write swe-gym tasks audit SOURCE FILE\n")
    strong = cli("tasks", "audit", "toy:3", "strong.jsonl", "--record", "audits.jsonl", "--min-strength", 0.8)
    assert strong.out.endswith("1 task in strong.jsonl\nleft out: 2 weak\n")
    none = cli("tasks", "audit", "toy:3", "strong.jsonl", "--record", "audits.jsonl", "--match", tasks[1].task_id)
    assert "no task is left: there is no strong.jsonl\n" in none.out
    assert not (tmp_path / "strong.jsonl").exists()


def test_a_repaired_file_that_cannot_be_written_is_refused_before_any_audit(cli, tmp_path: Path) -> None:
    from swe_gym.tasks.file import write_tasks

    write_tasks([load_source("toy").get("larder-overwrite-evicts")], tmp_path / "tasks.jsonl")
    assert "out.txt: the file name must end in " in cli("tasks", "audit", "toy", "out.txt").err
    assert "is the source: choose another" in cli("tasks", "audit", "tasks.jsonl[0:1]", "tasks.jsonl").err
