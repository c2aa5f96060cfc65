"""Log parsers and judges on real logs: outputs of every runner, and evaluations with their published verdicts."""

import json
import re
import sys
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from swe_gym.grading.graders import difference, judge_log
from swe_gym.grading.log_parsers import load_parser
from swe_gym.grading.log_parsers.unittest import last_name
from swe_gym.tasks.swebench import parser_name
from swe_gym.types import Oracle, TestStatus

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
SAMPLE = 40
EVALUATOR_COULD_NOT_READ = ("astropy__astropy-7166", "astropy__astropy-7336")
"""Published as not resolved by a harness that did not read lines with the status at their end."""

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the real logs are not on this machine: ../shared/data")


def fixture(name: str) -> str:
    return (DATA / "log_parser_fixtures" / name).read_text()


def counts(parser: str, name: str) -> Counter[TestStatus]:
    return Counter(load_parser(parser)(fixture(name)).values())


@pytest.mark.parametrize("number", range(1, 6))
def test_django_outputs_name_every_test_that_ran(number: int) -> None:
    log = fixture(f"django_output_{number}.txt")
    found = {test: end for test, end in load_parser("django")(log).items() if last_name(test) == test}
    ran = re.findall(r"^Ran (\d+) tests", log, re.MULTILINE)[-1]
    assert len(found) == int(ran)
    failures = re.findall(r"(failures|errors|skipped)=(\d+)", log)
    ends = Counter(found.values())
    for kind, number_of in failures:
        assert ends[{"failures": TestStatus.FAILED, "errors": TestStatus.ERROR}.get(kind, TestStatus.SKIPPED)] == int(
            number_of
        )


@pytest.mark.parametrize(
    ("parser", "name", "path"),
    [
        ("matplotlib", "matplotlib_output_1.txt", ""),
        ("matplotlib", "matplotlib_output_2.txt", ""),
        ("matplotlib", "matplotlib_output_3.txt", ""),
        ("pytest", "pytest_output_2.txt", ""),
        ("pytest", "pytest_output_3.txt", "testing/"),  # pytest's own tests print what inner runs printed
        ("pytest_v2", "pytest_output_4.txt", ""),
        ("pytest", "pytest_output_5.txt", "testing/"),
        ("pytest", "pytest_output_6.txt", "testing/"),
        ("seaborn", "seaborn_output_1.txt", ""),
        ("seaborn", "seaborn_output_2.txt", ""),
    ],
)
def test_pytest_outputs_agree_with_their_last_line(parser: str, name: str, path: str) -> None:
    log = fixture(name)
    last = re.findall(r"^=+ (.* in .*) =+$", log, re.MULTILINE)[-1]
    said = {kind: int(number) for number, kind in re.findall(r"(\d+) (passed|failed|xfailed|xpassed)", last)}
    found = Counter(end for test, end in load_parser(parser)(log).items() if test.startswith(path))
    assert {kind: found[TestStatus(kind)] for kind in said} == said


def test_outputs_with_colours_or_without_results() -> None:
    assert counts("pytest_v2", "sphinx_output_2.txt") == {TestStatus.FAILED: 1}, "it names failures only"
    assert counts("pytest_v2", "sphinx_output_1.txt") == {TestStatus.ERROR: 1}, "a file that was not collected"
    assert counts("pytest", "pytest_output_1.txt") == {TestStatus.PASSED: 6, TestStatus.FAILED: 5}
    for parser, name in (("django", "syntax_error"), ("pytest", "syntax_error_2"), ("sympy", "sympy_output_4")):
        assert not counts(parser, f"{name}.txt")


@pytest.mark.parametrize("number", [1, 2])
def test_sympy_outputs_agree_with_their_last_line(number: int) -> None:
    log = fixture(f"sympy_output_{number}.txt")
    found = Counter(end for test, end in load_parser("sympy")(log).items() if ":" in test)
    passed, failed = re.findall(r"tests finished: (\d+) passed, (\d+) failed", log)[0]
    assert (found[TestStatus.PASSED], found[TestStatus.FAILED]) == (int(passed), int(failed))


def test_maven_outputs() -> None:
    assert counts("maven_classes", "success.txt") == {TestStatus.PASSED: 2}
    assert load_parser("maven_classes")(fixture("test_failure.txt")) == {
        "com.example.SuccessTest": TestStatus.PASSED,
        "com.example.FailTest": TestStatus.FAILED,
        "com.example.FailTest#testSomething": TestStatus.FAILED,
        "com.example.ErrorTest": TestStatus.ERROR,
        "com.example.ErrorTest#testWithError": TestStatus.ERROR,
    }
    assert counts("maven_classes", "spring_context_error.txt") == {TestStatus.ERROR: 2}
    for name in ("command_failure", "compilation_error", "compilation_error_line_only"):
        assert not counts("maven_classes", f"{name}.txt")


def test_a_sample_of_published_verdicts() -> None:
    """`benchmarks/eval_logs.py` judges all of them."""
    parsers = repository_parsers()
    judged = 0
    with tarfile.open(DATA / "eval_logs.tar.xz") as archive:
        texts = {member.name: read(archive, member) for member in archive if wanted(member.name)}
    for name, log in texts.items():
        report = texts.get(name.replace("test_output.txt", "report.json"))
        instance = name.split("/")[2].partition(".")[0]
        if name.endswith(".json") or report is None or instance in EVALUATOR_COULD_NOT_READ:
            continue
        published = next(iter(json.loads(report).values()))
        if "tests_status" not in published:
            continue
        lists = {kind: [*ends["success"], *ends["failure"]] for kind, ends in published["tests_status"].items()}
        oracle = Oracle(
            log_parser=parsers[instance.partition("__")[0]],
            fail_to_pass=lists["FAIL_TO_PASS"],
            pass_to_pass=lists["PASS_TO_PASS"],
        )
        assert judge_log(oracle, log).resolved is published["resolved"], name
        judged += 1
    assert judged >= SAMPLE


def wanted(name: str) -> bool:
    """A part of the archive's files, with repositories of every kind."""
    chosen = ("astropy", "pytest", "sympy", "pylint", "psf", "xarray", "seaborn", "django__django-13", "sphinx")
    return name.endswith((".json", "output.txt")) and any(part in name for part in chosen)


def read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    content = archive.extractfile(member)
    assert content is not None
    return content.read().decode("utf-8", "replace")


def repository_parsers() -> dict[str, str]:
    """Owner -> log parser, as the rows of SWE-bench Verified say."""
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = parquet.read_table(DATA / "swebench" / "SWE-bench_Verified-test.parquet", columns=["repo", "log_parser"])
    return {row["repo"].partition("/")[0]: parser_name(row["log_parser"]) for row in columns.to_pylist()}


def test_r2e_logs_match_their_maps_only_after_the_fix() -> None:
    for line in (DATA / "r2e" / "rows_rebuilt.jsonl").read_text().splitlines():
        row = json.loads(line)
        expected = {name: TestStatus[end] for name, end in json.loads(row["expected_output_json"]).items()}
        run = json.loads(row["execution_result_content"])
        found = {side: load_parser("r2e")(run[f"{side}_commit_res_stdout"]) for side in ("new", "old")}
        assert difference(expected, found["new"]) == ""
        assert difference(expected, found["old"])


def test_every_parser_that_rows_name_is_there() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    names = set()
    for file in (DATA / "swebench").glob("*.parquet"):
        table = parquet.read_table(file)
        names |= set(table["log_parser"].to_pylist()) if "log_parser" in table.column_names else set()
    assert len(names) > 40
    for name in names:
        assert load_parser(name)("") == {}, name
    assert sys.modules.get("swebench") is None
