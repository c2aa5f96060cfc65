from pathlib import Path

from swe_gym.curation.validation import read_records


def test_invalid_tasks_are_reported_with_reasons(cli, task_file: Path) -> None:
    result = cli("validate", task_file, "--times", 1)
    assert result.status == 1
    assert result.err == ""
    lines = result.out.splitlines()
    valid = next(place for place, line in enumerate(lines) if line.startswith("valid "))
    assert lines[valid].startswith("valid    larder-overwrite-evicts  gold 1/1, empty 0/1, ")
    assert lines[valid + 1].startswith("         counter-tests for 5 of 5 tests: ")
    invalid = next(place for place, line in enumerate(lines) if line.startswith("invalid "))
    assert lines[invalid].startswith("invalid  useless-gold  gold 0/1, empty 0/1, ")
    assert lines[invalid + 1].startswith("         gold does not pass: ")
    assert lines[invalid + 2].endswith(": failed with the gold patch")
    assert result.out.splitlines()[-1] == "1 valid, 1 invalid"


def test_a_second_run_resumes_from_the_record(cli, task_file: Path, tmp_path: Path) -> None:
    command = ["validate", task_file, "-k", 1, "--record", "records/r.jsonl"]
    assert cli(*command, "--match", "larder*").status == 0
    (first,) = read_records(tmp_path / "records/r.jsonl")
    result = cli(*command)
    assert result.status == 1
    assert f"valid    larder-overwrite-evicts  gold 1/1, empty 0/1, recorded {first.date}\n" in result.out
    assert result.out.count("recorded") == 1
    again = read_records(tmp_path / "records/r.jsonl")
    assert [record.task_id for record in again] == ["larder-overwrite-evicts", "useless-gold"]
    assert again[0] == first


def test_infrastructure_failures_are_errors(cli) -> None:
    options = '{"files": {"a": ""}, "faults": [{"at": "start", "error": "SandboxStartError", "nth": "every"}]}'
    result = cli(
        "validate", "toy", "-m", "larder*", "-k", 1, "--backend", "fake", "--sandbox-option", f"options={options}"
    )
    assert result.status == 1
    assert result.out.startswith("error    larder-overwrite-evicts")
    assert "SandboxStartError" in result.out
    assert result.out.endswith("1 error\n")
