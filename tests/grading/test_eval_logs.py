"""Disagreements that the benchmark of published logs calls explained, and those that it must not."""

import pytest

from swe_gym.types import Oracle

eval_logs = pytest.importorskip("eval_logs")  # needs pyarrow

TEXT = "PASSED t.py::test_a\nPASSED t.py::test_b\nFAILED t.py::test_c\nran test_d\n"


@pytest.mark.parametrize(
    ("published", "resolved", "reason"),
    [
        ({"a": True}, True, "the lists of tests differ: 1 only in the dataset, such as 't.py::test_c'"),
        ({"a": True, "b": True, "c": False}, False, "the lists of tests differ: 1 only in the report"),
        ({"a": True, "c": False}, True, "the report's verdict contradicts its own tests"),
        ({"a": False, "c": False}, False, "by the log, 1 tests passed and were published as failed"),
        ({"a": True, "c": True}, True, "by the log, 1 tests failed and were published as passed"),
        ({"a": True, "e": True}, True, "1 tests are missing from the log, such as 't.py::test_e'"),
        ({"a": True, "d": True}, True, ""),  # the log has it, and we did not read it
        ({"a": True, "c": False}, False, ""),  # nothing differs: our own verdict is wrong
    ],
)
def test_report_and_log_explain_a_disagreement(published: dict[str, bool], resolved: bool, reason: str) -> None:
    tests = {f"t.py::test_{name}": passed for name, passed in published.items()}
    oracle = Oracle(log_parser="pytest", fail_to_pass=("t.py::test_a",), pass_to_pass=("t.py::test_c",))
    lists = {"fail_to_pass": tuple(tests), "pass_to_pass": ()}
    log = eval_logs.Log("source", "name", TEXT, oracle, resolved, lists, tests)
    found = eval_logs.explanation(log, eval_logs.different_tests(log))
    assert found.startswith(reason) if reason else found == ""
