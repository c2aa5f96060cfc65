"""The data types: invalid tasks are refused when they are read, and oracles have one evaluation."""

import math
from typing import Any

import pytest
from pydantic import ValidationError

from swe_gym.types import ExitCode, ExpectedMap, LogScript, Oracle, ParserProgram, Task, TestCommand, TestStatus


@pytest.mark.parametrize("workdir", ["", "repo", "./repo", "/a\0b"])
def test_workdir_is_absolute(workdir: str) -> None:
    with pytest.raises(ValidationError, match="workdir"):
        Task(task_id="t", problem_statement="p", workdir=workdir)


@pytest.mark.parametrize("timeout", [0, -1, math.inf, math.nan])
def test_timeout_of_hidden_tests_is_positive_and_finite(timeout: Any) -> None:
    with pytest.raises(ValidationError, match="timeout"):
        Oracle(timeout=timeout)


def test_the_flat_form_of_files_becomes_one_evaluation_and_is_written_back() -> None:
    flat = {"grader": "log", "eval_script": "run", "log_parser": "import json\n", "fails_only": True, "timeout": 3.0}
    oracle = Oracle.model_validate({**flat, "test_cmd": "ignored"})
    assert oracle.evaluation == LogScript(eval_script="run", log_parser=ParserProgram("import json\n"), fails_only=True)
    written = oracle.model_dump()
    assert flat.items() <= written.items()
    assert written["test_cmd"] == ""
    assert Oracle.model_validate_json(oracle.model_dump_json()) == oracle


@pytest.mark.parametrize(
    ("flat", "evaluation", "grader"),
    [
        ({}, TestCommand(), "tests"),
        ({"test_cmd": "pytest"}, TestCommand(test_cmd="pytest"), "tests"),
        ({"grader": "exit_code", "test_cmd": "make"}, ExitCode(test_cmd="make"), "exit_code"),
        ({"log_parser": "django"}, LogScript(log_parser="django"), "log"),
        ({"expected": {"a": "failed"}}, ExpectedMap(expected={"a": TestStatus.FAILED}), "expected"),
        ({"grader": "my.module:grade", "test_cmd": "make"}, TestCommand(test_cmd="make"), "my.module:grade"),
    ],
)
def test_each_flat_form_has_its_evaluation(flat: dict[str, Any], evaluation: object, grader: str) -> None:
    oracle = Oracle.model_validate(flat)
    assert (oracle.evaluation, oracle.grader) == (evaluation, grader)
    assert Oracle.model_validate(oracle.model_dump()) == oracle


def test_a_copy_takes_flat_fields_and_is_validated() -> None:
    oracle = Oracle(evaluation=TestCommand(test_cmd="a"), fail_to_pass=("t",))
    assert oracle.model_copy(update={"test_cmd": "b"}).evaluation == TestCommand(test_cmd="b")
    assert oracle.model_copy(update={"grader": "exit_code"}).evaluation == ExitCode(test_cmd="a")
    assert oracle.model_copy(update={"evaluation": LogScript()}).fail_to_pass == ("t",)
    with pytest.raises(ValidationError):
        oracle.model_copy(update={"test_command": "b"})


def test_evaluations_are_as_silent_as_their_oracle() -> None:
    oracle = Oracle(evaluation=ExpectedMap(log_parser="a\nsecret", expected={"secret": TestStatus.PASSED}))
    assert (
        "secret"
        not in f"{oracle!r} {oracle} {oracle.evaluation!r} {oracle.evaluation} {oracle.evaluation.log_parser!r}"
    )
