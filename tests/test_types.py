"""The data types: invalid tasks are refused when they are read, and oracles have one evaluation."""

import math
from typing import Any

import pytest
from pydantic import ValidationError
from rich.pretty import pretty_repr

from swe_gym.types import (
    ExitCode,
    ExpectedMap,
    FileContent,
    LogScript,
    Oracle,
    ParserProgram,
    RewardScript,
    SandboxNeeds,
    Task,
    TestCommand,
    TestStatus,
)


@pytest.mark.parametrize("workdir", ["", "repo", "./repo", "/a\0b"])
def test_workdir_is_absolute(workdir: str) -> None:
    with pytest.raises(ValidationError, match="workdir"):
        Task(task_id="t", problem_statement="p", workdir=workdir)


def test_files_that_no_sandbox_would_get_are_refused() -> None:
    needs = SandboxNeeds(files={"a": FileContent(data=b"a")})
    with pytest.raises(ValidationError, match=r"needs\.files is for tasks that a script judges"):
        Task(task_id="t", problem_statement="p", needs=needs)
    script = Oracle(evaluation=RewardScript(script="/s", rewards="/r"))
    assert Task(task_id="t", problem_statement="p", needs=needs, oracle=script).needs == needs


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
    assert "secret" not in pretty_repr([oracle, oracle.evaluation, oracle.evaluation.log_parser])


@pytest.mark.parametrize(
    "wrong",
    [
        {"grader": ["tests"]},
        {"grader": 5},
        {"evaluation": 5},
        {"evaluation": None},
        {"evaluation": "tests"},
        {"evaluation": {"kind": "other"}},
        {"evaluation": {"kind": ["tests"]}},
        {"evaluation": {"kind": "tests", "secret": "secret"}},
        {"unknown": "secret"},
    ],
    ids=str,
)
def test_an_oracle_of_the_wrong_form_is_a_validation_error_without_its_values(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        Oracle.model_validate({"test_cmd": "secret", "gold_patch": "secret", **wrong})
    assert "secret" not in str(caught.value).replace("tests.secret", "")


@pytest.mark.parametrize("grader", ["", "tests", "exit_code"])
def test_a_script_beside_a_command_is_refused(grader: str) -> None:
    flat = {"grader": grader, "test_cmd": "pytest", "eval_script": "make\npytest"}
    with pytest.raises(ValidationError, match=r"eval_script: the grader '(tests|exit_code)' runs test_cmd"):
        Oracle.model_validate(flat)
    with pytest.raises(ValidationError, match="eval_script"):
        Oracle(evaluation=TestCommand(test_cmd="pytest")).model_copy(update={"eval_script": "make"})


@pytest.mark.parametrize(
    "evaluation", [TestCommand(test_cmd="a"), ExitCode(test_cmd="a"), LogScript(eval_script="a", log_parser="pytest")]
)
def test_an_oracle_with_a_grader_of_ones_own_is_the_same_in_a_file(evaluation: TestCommand) -> None:
    for oracle in (
        Oracle(evaluation=evaluation, own_grader="my.module:grade"),
        Oracle(evaluation=evaluation).model_copy(update={"grader": "my.module:grade"}),
    ):
        assert oracle.grader == "my.module:grade"
        assert Oracle.model_validate_json(oracle.model_dump_json()) == oracle
