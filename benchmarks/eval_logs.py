"""Grade published evaluation logs again, and compare the verdicts with the published ones.

    python benchmarks/eval_logs.py DATA

DATA is a folder with

    eval_logs.tar.xz                            SOURCE/INSTANCE/{test_output.txt,report.json} of SWE-bench Verified
    swebench/SWE-bench_Verified-test.parquet    its rows
    swesmith/test_logs/run_evaluation/INSTANCE/
    r2e/

Prints a table and every disagreement. Exits with status 1 if more than 0.5 % are unexplained. A disagreement is
explained if one of these holds:

* Every test ends as in the report, and only the dataset's lists of tests differ from the report's.
* The report's verdict contradicts its own tests.
* For each test that ends differently, the log confirms our result or does not name the test.
"""

import json
import re
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet
from common import show

from swe_gym.grading.graders import difference, judge_log
from swe_gym.grading.log_parsers import load_parser
from swe_gym.grading.log_parsers.lines import clean_lines
from swe_gym.tasks.swebench import task_from_row
from swe_gym.types import Oracle, TestStatus

ALLOWED = 0.005
PASSING = re.compile(r"\bPASSED\b|\.\.\. ok$|^ok\b|\bXFAIL\b| ok$")
FAILING = re.compile(r"\bFAILED\b|\bERROR\b|\bFAIL\b|\bSKIPPED\b|\bskipped\b| [EF]$")


class Log(NamedTuple):
    """A log and its published report.

    Attributes:
        source: Name of the evaluation.
        name: Name of the instance.
        text: The log.
        oracle: Oracle with the dataset's lists of tests.
        resolved: Verdict of the report.
        lists: The report's lists of tests, as fields of an oracle.
        tests: Test of the report -> whether it passed.
    """

    source: str
    name: str
    text: str
    oracle: Oracle
    resolved: bool
    lists: Mapping[str, tuple[str, ...]]
    tests: Mapping[str, bool]


def main() -> None:
    """Grade every log and print the comparison."""
    data = Path(sys.argv[1])
    judged, agreed, tests = Counter[str](), Counter[str](), Counter[str]()
    disagreements: list[tuple[str, str, str]] = []
    different = 0
    for log in [*swebench_logs(data), *swesmith_logs(data)]:
        verdict, other = judge_log(log.oracle, log.text), different_tests(log)
        judged[log.source] += 1
        tests[log.source] += len(log.tests)
        different += len(other)
        if verdict.resolved is log.resolved:
            agreed[log.source] += 1
        else:
            what = f"published {words(log.resolved)}, here {words(verdict.resolved)}"
            disagreements.append((f"{log.source}/{log.name}", what, explanation(log, other)))
    for source, name, same in r2e_logs(data):
        judged[source] += 1
        agreed[source] += same
        if not same:
            disagreements.append((f"{source}/{name}", "differs from the expected map", ""))
    report(judged, agreed, tests, different, disagreements)


def words(resolved: bool) -> str:
    """Name a verdict."""
    return "resolved" if resolved else "not resolved"


def different_tests(log: Log) -> dict[str, TestStatus]:
    """Return the tests of the report that end differently here, with their status."""
    verdict = judge_log(log.oracle.model_copy(update=log.lists), log.text)
    found = {**verdict.fail_to_pass, **verdict.pass_to_pass}
    return {test: found[test] for test, passed in log.tests.items() if (found[test] is TestStatus.PASSED) is not passed}


def explanation(log: Log, other: Mapping[str, TestStatus]) -> str:
    """Explain a disagreement from the report and the log; empty if they do not prove it."""
    if all(log.tests.values()) is not log.resolved:
        return "the report's verdict contradicts its own tests"
    if not other:
        return list_difference(log)
    lines = clean_lines(log.text)
    missing = [test for test, end in other.items() if end is TestStatus.MISSING and not named(lines, test)]
    proofs = [proof(lines, test, FAILING if log.tests[test] else PASSING) for test in other if test not in missing]
    if not all(proofs):
        return ""
    parts = [f"{len(missing)} tests are missing from the log, such as {missing[0]!r}"] if missing else []
    if proofs:
        says = "failed and were published as passed" if log.resolved else "passed and were published as failed"
        parts.append(f"by the log, {len(proofs)} tests {says}: {proofs[0]!r}")
    return "; ".join(parts)


def list_difference(log: Log) -> str:
    """Describe how the report's lists differ from the dataset's; empty if they are equal."""
    required = {*log.oracle.fail_to_pass, *log.oracle.pass_to_pass}
    sides = {"report": log.tests.keys() - required, "dataset": required - log.tests.keys()}
    parts = [f"{len(tests)} only in the {side}, such as {min(tests)!r}" for side, tests in sides.items() if tests]
    return f"the lists of tests differ: {', '.join(parts)}" if parts else ""


def named(lines: list[str], test: str) -> bool:
    """Return whether a line contains the test's own name."""
    name = test.rpartition("::")[2]
    own = name if "[" in name else name.split()[0]
    return any(own in line for line in lines)


def proof(lines: list[str], test: str, word: re.Pattern[str]) -> str:
    """Return the line that reports how a test ended."""
    return next((line for line in lines if test in line and word.search(line.rstrip())), "")


def report(
    judged: Counter[str],
    agreed: Counter[str],
    tests: Counter[str],
    different: int,
    disagreements: list[tuple[str, str, str]],
) -> None:
    """Print the table and the disagreements; exit with status 1 if too many are unexplained."""
    rows = [
        (source, str(number), f"{agreed[source]} ({agreed[source] / number:.1%})", str(tests[source] or "-"))
        for source, number in judged.items()
    ]
    show("published evaluation logs", ("source", "logs", "same verdict", "tests"), rows)
    for name, what, why in disagreements:
        print(f"{name}: {what}: {why or 'UNEXPLAINED'}")
    total, unexplained = judged.total(), sum(not why for *_, why in disagreements)
    print(
        f"{agreed.total()} of {total} verdicts agree. {unexplained} of {len(disagreements)} disagreements are "
        f"unexplained ({unexplained / total:.2%} of all logs). "
        f"{different} of {tests.total()} required tests end differently."
    )
    if unexplained > ALLOWED * total:
        raise SystemExit(1)


# --- the logs -------------------------------------------------------------------------------------------------------


def swebench_logs(data: Path) -> Iterator[Log]:
    """Read two evaluations of SWE-bench Verified, by two generations of its harness."""
    rows = pyarrow.parquet.read_table(data / "swebench" / "SWE-bench_Verified-test.parquet").to_pylist()
    oracles = {row["instance_id"]: task_from_row(row).oracle for row in rows}
    files: dict[tuple[str, str], dict[str, str]] = {}
    with tarfile.open(data / "eval_logs.tar.xz") as archive:
        for member in archive:
            _, *parts = Path(member.name).parts
            if len(parts) == 3 and parts[2] in ("report.json", "test_output.txt"):
                content = archive.extractfile(member)
                assert content is not None
                files.setdefault((parts[0], parts[1]), {})[parts[2]] = content.read().decode("utf-8", "replace")
    for (source, name), found in sorted(files.items()):
        if len(found) == 2:  # some evaluations have no report
            instance = name.partition(".")[0]
            published = next(iter(json.loads(found["report.json"]).values()))
            yield _log(source, name, found["test_output.txt"], oracles[instance], published)


def swesmith_logs(data: Path) -> Iterator[Log]:
    """Read the logs that SWE-smith publishes with reports."""
    for folder in sorted((data / "swesmith" / "test_logs" / "run_evaluation").glob("*/")):
        published = json.loads((folder / "report.json").read_text())
        lists = {kind: tuple(test for part in ends.values() for test in part) for kind, ends in _statuses(published)}
        oracle = Oracle(
            log_parser="swesmith_pytest", fail_to_pass=lists["FAIL_TO_PASS"], pass_to_pass=lists["PASS_TO_PASS"]
        )
        yield _log("swesmith", folder.name, (folder / "test_output.txt").read_text(), oracle, published)


def _statuses(published: Mapping[str, dict[str, dict[str, list[str]]]]) -> list[tuple[str, dict[str, list[str]]]]:
    return [item for item in published.get("tests_status", {}).items() if item[0] in ("FAIL_TO_PASS", "PASS_TO_PASS")]


def _log(source: str, name: str, text: str, oracle: Oracle, published: dict) -> Log:  # type: ignore[type-arg]  # JSON
    statuses = _statuses(published)
    lists = {kind.lower(): (*ends["success"], *ends["failure"]) for kind, ends in statuses}
    tests = {test: end == "success" for _, ends in statuses for end in ("success", "failure") for test in ends[end]}
    return Log(source, name, text, oracle, published["resolved"], lists, tests)


def r2e_logs(data: Path) -> Iterator[tuple[str, str, bool]]:
    """Compare R2E-Gym's logs with their maps: logs after the fix must match, logs before it must not."""
    parse = load_parser("r2e")
    for line in (data / "r2e" / "rows_rebuilt.jsonl").read_text().splitlines():
        row = json.loads(line)
        run = json.loads(row["execution_result_content"])
        expected = expected_map(row["expected_output_json"])
        for side, same in (("new", True), ("old", False)):
            found = difference(expected, parse(run[f"{side}_commit_res_stdout"])) == ""
            yield "r2e", f"{row['repo_name']}-{row['commit_hash'][:8]}, {side} commit", found is same
    for file in sorted((data / "r2e").glob("*_partial_row.json")):
        row = json.loads(file.read_text())
        expected = expected_map(
            row.get("expected_output_json") or row["expected_output_json_derived_from_resolved_log"]
        )
        log = file.parent / (row.get("eval_log_file") or row["test_log_file"])
        yield "r2e", file.name, difference(expected, parse(log.read_text())) == ""


def expected_map(text: str) -> dict[str, TestStatus]:
    """Parse a map of R2E-Gym, without the reasons that follow test names."""
    return {name.partition(" - ")[0]: TestStatus[status] for name, status in json.loads(text).items()}


if __name__ == "__main__":
    main()
