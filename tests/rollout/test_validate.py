"""Validation finds usable tasks, says why others are not, and resumes."""

import json
import threading
from pathlib import Path

import pytest

from swe_gym.curation.validation import TaskRecord, Vouched, read_records, validate
from swe_gym.errors import UsageError
from swe_gym.tasks import TaskSource, load_source
from swe_gym.types import CounterTests, Task, Verdict


def test_every_kind_of_task_gets_its_status(source: TaskSource) -> None:
    records = {record.task_id: record for record in validate(source, times=2, date="2030-01-01")}
    assert list(records) == list(source.ids())
    good = records.pop("adder")
    assert (good.status, good.reason, good.gold, good.empty) == ("valid", "", (True, True), (False, False))
    assert len(good.seconds) == 4
    assert good.isolation
    assert good.date == "2030-01-01"
    assert {task_id: record.status for task_id, record in records.items()} == {
        "wrong-gold": "invalid",
        "no-gold": "invalid",
        "stale-gold": "invalid",
        "empty-passes": "invalid",
        "other-python": "skipped",
        "bad-row": "invalid",
    }
    assert records["wrong-gold"].reason.startswith("gold does not pass: ")
    assert "no gold patch" in records["no-gold"].reason
    assert "the gold patch does not apply" in records["stale-gold"].reason
    assert records["empty-passes"].reason.startswith("empty passes")
    assert "2.9" in records["other-python"].reason
    assert records["bad-row"].reason == "row 6: no workspace"


@pytest.mark.parametrize(
    ("grader", "reason"),
    [
        ("flaky_parts:flaky_gold", "flaky: gold passed 1 of 2 times: the moon"),
        ("flaky_parts:flaky_empty", "flaky: empty passed 1 of 2 times"),
    ],
)
def test_task_with_changing_verdicts_is_flaky(source: TaskSource, adder: Task, grader: str, reason: str) -> None:
    oracle = adder.oracle.model_copy(update={"grader": grader})
    source.tasks["adder"] = adder.model_copy(update={"oracle": oracle})  # type: ignore[attr-defined]  # a SmallSource
    result = validate(source, ["adder"], times=2)[0]
    assert (result.status, result.reason) == ("invalid", reason)


def test_interrupted_validation_resumes(source: TaskSource, tmp_path: Path) -> None:
    record = tmp_path / "runs" / "record.jsonl"
    first = validate(source, ["adder", "no-gold"], times=1, record=record)
    seen: list[TaskRecord] = []
    again = validate(source, ["adder", "no-gold", "empty-passes"], times=1, record=record, on_record=seen.append)
    assert again[:2] == first
    assert [one.task_id for one in seen] == ["adder", "no-gold", "empty-passes"]
    assert len(record.read_text().splitlines()) == 3


def test_changed_task_is_validated_again(source: TaskSource, adder: Task, tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    validate(source, ["adder", "bad-row"], times=1, record=record)
    assert len(validate(source, ["adder"], times=2, record=record)[0].gold) == 2
    source.tasks["adder"] = adder.model_copy(  # type: ignore[attr-defined]  # a SmallSource
        update={"oracle": adder.oracle.model_copy(update={"gold_patch": ""})}
    )
    assert validate(source, ["adder"], times=2, record=record)[0].status == "invalid"
    assert len(record.read_text().splitlines()) == 4
    assert [one.status for one in read_records(record)] == ["invalid", "invalid"]


def test_sandbox_failure_is_recorded_as_an_error(source: TaskSource, tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    options = {"options": {"faults": [{"at": "manifest", "error": "SandboxLost", "reason": "oom"}]}}
    result = validate(source, ["adder"], times=1, backend="fake", sandbox_options=options, record=record)[0]
    assert (result.status, result.reason) == ("error", "SandboxLost: a scripted fault")
    assert validate(source, ["adder"], times=1, record=record)[0].status == "valid"


def test_interrupt_closes_sandboxes_and_keeps_records(source: TaskSource, tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"

    def stop(_: TaskRecord) -> None:
        raise KeyboardInterrupt

    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        validate(source, ["no-gold", "adder", "empty-passes"], workers=3, record=record, on_record=stop)
    assert set(threading.enumerate()) <= before
    assert len(read_records(record)) == 1


def test_error_names_the_broken_record_file_and_line(source: TaskSource, tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    record.write_text(json.dumps({"task_id": "x"}) + "\n")
    with pytest.raises(UsageError, match=r"record\.jsonl, line 1"):
        validate(source, record=record)


def test_errors_of_the_caller_are_raised(source: TaskSource) -> None:
    with pytest.raises(UsageError, match="times"):
        validate(source, times=0)
    with pytest.raises(UsageError, match="Did you mean 'adder'"):
        validate(source, ["ader"], times=1)
    with pytest.raises(UsageError, match="backend"):
        validate(source, ["adder"], backend="nowhere")


def test_toy_tasks_are_valid() -> None:
    toys = load_source("toy")
    records = validate(toys, list(toys.ids())[:3], times=1, workers=2)
    assert {record.task_id: record.reason for record in records if record.status != "valid"} == {}


def test_unknown_grader_makes_a_task_invalid_whatever_its_name(source: TaskSource, adder: Task, tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    oracle = adder.oracle.model_copy(update={"grader": "\u2713\u2028grader"})
    source.tasks["adder"] = adder.model_copy(update={"oracle": oracle})  # type: ignore[attr-defined]  # a SmallSource
    result = validate(source, ["adder"], times=1, record=record)[0]
    assert result.status == "invalid"
    assert "\u2713" in result.reason
    assert read_records(record) == [result]


def test_tests_that_forks_cannot_play_with_gold_are_left_to_second_runs() -> None:
    found = Vouched()
    found.add(Verdict(resolved=True, counter_tests=CounterTests(kinds={"a": "literal"}, unforkable=("a",))))
    assert set(found.options("few").unforkable) == {"a"}
    assert found.facts(1)["unforkable"] == ("a",)


def test_what_passes_without_work_is_recorded_and_used_in_the_next_run() -> None:
    found = Vouched()
    found.add(Verdict(resolved=True, counter_tests=CounterTests(kinds={"a": "literal"}, passing={"a": (3, 5)})))
    assert found.options("few").passing == {"a": (3, 5)}
    assert found.facts(1)["passing"] == {"a": (3, 5)}


def test_records_of_the_first_release_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "record.jsonl"
    file.write_text('{"task_id": "a", "status": "valid", "backend": "local", "disturbing": true}\n')
    assert [record.task_id for record in read_records(file)] == ["a"]


def test_only_changes_that_fail_with_gold_in_every_run_are_vouched_for() -> None:
    found = Vouched()
    found.add(
        Verdict(resolved=True, counter_tests=CounterTests(kinds={"a": "literal", "b": "number"}, unfit={"b": "number"}))
    )
    assert found.pending(2)
    assert found.options("few").unfit == {"b": ("number",)}
    found.add(Verdict(resolved=True, counter_tests=CounterTests(kinds={"a": "literal", "b": "negation"})))
    facts = found.facts(2)
    assert facts["counter_tests"] == {"a": "literal"}
    assert set(facts["uncovered"]) == {"b"}
    assert facts["natural"]
