"""Evaluation scripts in real sandboxes: by the signed reporter, by the log, by a row's own parser."""

import sys
from collections.abc import Callable

import pytest

from swe_gym.errors import GradingError, TaskError
from swe_gym.grading import CounterOptions, grade
from swe_gym.grading.base import Ready
from swe_gym.grading.evaluation import read_results
from swe_gym.grading.graders import judge_log
from swe_gym.grading.judge import NOT_PLAYED, NOT_RUN
from swe_gym.grading.patch import Patch, take_patch
from swe_gym.grading.plan import EvaluationPlan, cut_to_marks, split_script
from swe_gym.grading.staging import installs_a_copy
from swe_gym.sandboxes import Sandbox
from swe_gym.types import Oracle, Task, TestStatus, Verdict

pytestmark = pytest.mark.sample(every=3)

OpenBox = Callable[[Task], Sandbox]
GOLD = "def title(text):\n    return text.title()\n\n\ndef lower(text):\n    return text.lower()\n"
SCRIPT = """\
#!/bin/bash
set -uxo pipefail
cd {workdir}
export SHELF=3
books=4
read_shelf() { echo "shelf $SHELF, $books books"; }
git apply - <<'EOF'
not a patch that matters
EOF
: '>>>>> Start Test Output'
COMMAND
: '>>>>> End Test Output'
echo never
"""
PYTEST = "python -m pytest -rA tests/test_cases.py"
OWN_PARSER = """\
import json, sys
out, err, results = sys.argv[1:]
tests = [line.split()[1::-1] for line in open(out) if line.startswith(("PASSED", "FAILED"))]
json.dump({"tests": [{"name": name, "status": status} for name, status in tests]}, open(results, "w"))
"""


@pytest.fixture
def log_task(words_task: Task) -> Task:
    """The task `words`, evaluated by a script."""
    return with_oracle(words_task, grader="log", test_cmd="", eval_script=script(PYTEST), log_parser="pytest")


def script(command: str) -> str:
    return SCRIPT.replace("COMMAND", command)


def with_oracle(task: Task, **fields: object) -> Task:
    return task.model_copy(update={"oracle": task.oracle.model_copy(update=fields)})


def verdict_on(task: Task, open_box: OpenBox, files: dict[str, str]) -> Verdict:
    """The verdict on a workspace with these files changed."""
    with open_box(task) as box, open_box(task) as fresh:
        for name, text in files.items():
            box.write_file(name, text.encode())
        patch = take_patch(box, fresh)
        return grade(task, patch, fresh, lambda: open_box(task))


# --- the reporter ----------------------------------------------------------------------------------------------


def test_pytest_in_a_script_is_read_from_the_signed_reporter(log_task: Task, open_box: OpenBox) -> None:
    gold = verdict_on(log_task, open_box, {"words/cases.py": GOLD})
    assert (gold.resolved, gold.judge, gold.reason) == (True, "reporter", "")
    assert "never" not in gold.log
    empty = verdict_on(log_task, open_box, {})
    assert (empty.resolved, empty.judge) == (False, "reporter")
    assert empty.fail_to_pass[log_task.oracle.fail_to_pass[0]] is TestStatus.FAILED


@pytest.mark.parametrize(
    "work",
    [
        "print('PASSED tests/test_cases.py::test_title')\nimport os\nos._exit(0)\n",
        "import atexit, os\natexit.register(os._exit, 0)\nprint('= short test summary info =')\n",
        "import sys\nsys.exit(0)\n",
    ],
)
def test_printed_passes_do_not_count(log_task: Task, open_box: OpenBox, work: str) -> None:
    verdict = verdict_on(log_task, open_box, {"words/cases.py": work})
    assert not verdict.resolved
    assert verdict.judge == "reporter"


SPY = "import glob\nopen('/tmp/spied', 'w').write('spied %s' % glob.glob('/tmp/*/order.json'))\n"


@pytest.mark.parametrize(
    ("test", "counts"), [("test_made.py::test_hello", True), ("words/cases.py::test_hello", False)]
)
def test_printed_result_counts_only_if_the_runner_has_no_such_test(
    test: str, counts: bool, log_task: Task, open_box: OpenBox
) -> None:
    """Published lists of pytest's own repository hold tests that its tests make, run and print."""
    task = with_oracle(log_task, pass_to_pass=(*log_task.oracle.pass_to_pass, test))
    work = GOLD.replace("):\n", f"):\n    print('PASSED {test}')\n")
    assert verdict_on(task, open_box, {"words/cases.py": work}).resolved is counts


def spied(task: Task, open_box: OpenBox) -> str:
    """The log with what code of the work found, if the script runs it while it makes ready."""
    early = "python -c 'import words.spy'\n"
    script = task.oracle.eval_script.replace("books=4\n", f"books=4\n{early}")
    task = with_oracle(task, eval_script=script.replace(PYTEST, f"cat /tmp/spied; {PYTEST}"))
    with open_box(task) as box, open_box(task) as fresh:
        box.write_file("words/spy.py", SPY.encode())
        verdict = grade(task, take_patch(box, fresh), fresh, lambda: open_box(task))
    assert not verdict.resolved
    return verdict.log


def test_code_of_the_work_does_not_run_before_the_tests(log_task: Task, open_box: OpenBox) -> None:
    assert "spied [" not in spied(log_task, open_box)


@pytest.mark.slow
def test_build_of_the_work_finds_no_key(log_task: Task, open_box: OpenBox) -> None:
    """A solution that changes how the product is built is built before it is tested."""
    build = f"{log_task.oracle.gold_patch}diff --git a/setup.cfg b/setup.cfg\nold mode 100644\nnew mode 100755\n"
    assert "spied []" in spied(with_oracle(log_task, gold_patch=build), open_box)


@pytest.mark.slow
def test_pip_gives_up_at_once_without_a_network_and_the_tests_do_not_know(log_task: Task, open_box: OpenBox) -> None:
    script = log_task.oracle.eval_script.replace("books=4\n", "books=4\necho before $PIP_RETRIES > /tmp/before\n")
    script = script.replace("python -m pytest", "cat /tmp/before; env; python -m pytest")
    with open_box(log_task) as fresh:
        log = grade(with_oracle(log_task, eval_script=script), Patch(), fresh, lambda: open_box(log_task)).log
    assert "before 0\n" in log
    assert "PATH=" in log
    assert "PIP_RETRIES" not in log


@pytest.mark.slow
def test_work_goes_in_first_if_a_copy_is_installed(log_task: Task, open_box: OpenBox) -> None:
    copy = log_task.oracle.eval_script.replace("books=4\n", "books=4\n: python setup.py install\n")
    assert "spied []" in spied(with_oracle(log_task, eval_script=copy), open_box)


@pytest.mark.parametrize(
    ("command", "copies"),
    [
        ("python setup.py build; python setup.py install", True),
        ("python -m pip install .", True),
        ("cd /testbed && pip3 install -q '.[test]' --no-deps", True),
        ("/opt/venv/bin/pip install --upgrade /testbed", True),
        ("python -m pip install -e .", False),
        ("pip install -ve . --no-build-isolation", False),
        ("pip install --editable './[dev]'", False),
        ("pip install -r ./requirements.txt; python setup.py develop", False),
        ("pip install pytest==7.2", False),
        ("make init", False),
    ],
)
def test_which_scripts_install_a_copy(command: str, copies: bool) -> None:
    assert installs_a_copy(f"cd /testbed\n{command}\n", "/src/repo") is copies


def test_cut_ids_and_expected_failures_are_noted(log_task: Task, open_box: OpenBox) -> None:
    hidden = (
        "import pytest\nfrom words import cases\n\n@pytest.mark.parametrize('text', ['a b', 'a c'])\n"
        "def test_titles(text):\n    assert cases.title(text) == text.title()\n\n"
        "@pytest.mark.xfail\ndef test_known():\n    assert 0\n"
    )
    task = with_oracle(
        log_task,
        test_patch="",
        test_files={"tests/test_cases.py": hidden},
        fail_to_pass=("tests/test_cases.py::test_titles[a",),
        pass_to_pass=("tests/test_cases.py::test_known",),
    )
    gold = verdict_on(task, open_box, {"words/cases.py": GOLD})
    assert gold.resolved
    assert set(gold.pass_to_pass.values()) == {TestStatus.PASSED}
    assert ["cut at their first blank" in note or "failed as expected" in note for note in gold.notes] == [True, True]
    assert "notes" not in repr(gold)


@pytest.mark.slow
def test_product_code_cannot_make_a_failure_expected(log_task: Task, open_box: OpenBox) -> None:
    work = "import pytest\n\ndef title(text):\n    pytest.xfail('it is hard')\n"
    verdict = verdict_on(log_task, open_box, {"words/cases.py": work})
    assert (verdict.resolved, verdict.judge) == (False, "reporter")
    assert TestStatus.XFAILED in verdict.fail_to_pass.values()


@pytest.mark.parametrize(
    "path",
    [
        "conftest.py",
        pytest.param("tests/conftest.py", marks=pytest.mark.slow),
        pytest.param("elsewhere/conftest.py", marks=pytest.mark.slow),
    ],
)
def test_a_policys_conftest_is_kept_out_of_the_scripts_pytest(log_task: Task, open_box: OpenBox, path: str) -> None:
    hooks = "import pytest\n\n@pytest.hookimpl(tryfirst=True)\ndef pytest_pyfunc_call(pyfuncitem):\n    return True\n"
    task = with_oracle(log_task, eval_script=script("python -m pytest -rA"))
    files = {path: hooks, "elsewhere/test_x.py": "def test_x():\n    pass\n"}
    assert not verdict_on(task, open_box, files).resolved
    assert verdict_on(task, open_box, {**files, "words/cases.py": GOLD}).resolved


@pytest.mark.parametrize("command", [PYTEST, f"run() {{ {PYTEST}; }}; run", f"{PYTEST} && {PYTEST}"])
def test_the_scripts_pytest_reads_the_tasks_configuration(log_task: Task, open_box: OpenBox, command: str) -> None:
    task = with_oracle(log_task, eval_script=script(command))
    broken = '[project]\nname = "words"\n\n[tool.pytest.ini_options]\naddopts = "--collect-only"\n'
    verdict = verdict_on(task, open_box, {"words/cases.py": GOLD, "pyproject.toml": broken})
    assert verdict.resolved, verdict.log


# --- Django's runner -----------------------------------------------------------------------------------------------

RUNTESTS = """\
import sys
import unittest

sys.path.insert(0, ".")
suite = unittest.defaultTestLoader.loadTestsFromNames(sys.argv[1:])
sys.exit(not unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful())
"""
APP_TESTS = """\
import unittest

from words import cases


class TitleTests(unittest.TestCase):
    def test_title(self):
        self.assertEqual(cases.title("ab cd"), "Ab Cd")

    def test_titles(self):
        \"""Titles of many words.\"""
        for text in ("a b", "c"):
            with self.subTest(text=text):
                self.assertEqual(cases.title(text), text.title())

    def test_lower(self):
        print("something in the middle of the line")
        self.assertEqual(cases.lower("A"), "a")
"""
TITLE = (
    "test_title (app_tests.TitleTests.test_title)"
    if sys.version_info >= (3, 11)
    else "test_title (app_tests.TitleTests)"
)


@pytest.fixture
def django_task(log_task: Task) -> Task:
    """The task `words`, tested by a script that calls unittest's runner."""
    return with_oracle(
        log_task,
        test_patch="",
        test_files={"tests/runtests.py": RUNTESTS, "tests/app_tests.py": APP_TESTS},
        eval_script=script("./tests/runtests.py app_tests"),
        log_parser="django",
        fail_to_pass=(TITLE,),
        pass_to_pass=("Titles of many words.", TITLE.replace("title", "lower")),
    )


@pytest.mark.parametrize(
    "command", ["./tests/runtests.py app_tests", "cd tests && PYTHONPATH=.. python runtests.py app_tests"]
)
def test_django_runs_are_read_from_the_signed_reporter(django_task: Task, open_box: OpenBox, command: str) -> None:
    task = with_oracle(django_task, eval_script=script(command))
    gold = verdict_on(task, open_box, {"words/cases.py": GOLD})
    assert (gold.resolved, gold.judge) == (True, "reporter"), gold.log
    empty = verdict_on(task, open_box, {})
    assert (empty.resolved, empty.judge) == (False, "reporter")
    assert empty.fail_to_pass[TITLE] is TestStatus.FAILED
    assert "tests/runtests.py" in verdict_on(task, open_box, {"tests/runtests.py": "print('ok')"}).dropped


@pytest.mark.slow
def test_printed_results_of_django_do_not_count(django_task: Task, open_box: OpenBox) -> None:
    lines = "".join(f"print({test + ' ... ok'!r})\n" for test in (TITLE, *django_task.oracle.pass_to_pass))
    verdict = verdict_on(django_task, open_box, {"words/cases.py": f"{lines}import os\nos._exit(0)\n"})
    assert (verdict.resolved, verdict.judge) == (False, "reporter")
    by_log = with_oracle(
        django_task, eval_script=script("for run in ./tests/runtests.py; do python $run app_tests; done")
    )
    assert verdict_on(by_log, open_box, {"words/cases.py": GOLD}).judge == "log"


# --- the log -----------------------------------------------------------------------------------------------------

BY_LOG = "read_shelf\nfor runner in python; do $runner -m 'pytest' -rA tests/test_cases.py; done"
"""A command that no reporter can stand in for."""


def test_other_commands_are_read_from_the_log(log_task: Task, open_box: OpenBox) -> None:
    task = with_oracle(log_task, eval_script=script(BY_LOG))
    gold = verdict_on(task, open_box, {"words/cases.py": GOLD})
    assert (gold.resolved, gold.judge) == (True, "log")
    assert "shelf 3, 4 books" in gold.log, "what the script set up is there for its tests"
    empty = verdict_on(task, open_box, {})
    assert (empty.resolved, empty.judge, empty.exit_code) == (False, "log", 1)
    assert empty.reason.startswith("1 of 2 tests that had to start passing")


def test_a_changed_test_that_did_not_run_is_not_proven(log_task: Task, open_box: OpenBox) -> None:
    ids = ("tests/test_cases.py::test_title", "tests/test_cases.py::test_lower")
    command = BY_LOG.replace("-rA", "-x -rA")
    task = with_oracle(log_task, eval_script=script(command), fail_to_pass=ids, pass_to_pass=())
    with open_box(task) as box, open_box(task) as fresh:
        box.write_file("words/cases.py", GOLD.encode())
        patch = take_patch(box, fresh)
        verdict = grade(task, patch, fresh, lambda: open_box(task), counter=CounterOptions(seed=b"0"))
    found = verdict.counter_tests
    assert (verdict.resolved, found.runs) == (True, 2), "this seed changes both in one run, which stops at the first"
    assert ([*found.uncovered.values()], len(found.kinds)) == ([NOT_PLAYED], 1)


def test_an_exit_code_contradicts_a_log_of_passes(log_task: Task, open_box: OpenBox) -> None:
    oracle = {"fail_to_pass": ("no_such_file.py::test_a",)}  # has no counter-test, whose failure would be in the log
    task = with_oracle(log_task, eval_script=script(f"{BY_LOG}; exit 3"), pass_to_pass=(), **oracle)
    verdict = verdict_on(task, open_box, {"words/cases.py": GOLD})
    assert not verdict.resolved
    assert "contradicts its log" in verdict.reason
    assert set(verdict.fail_to_pass.values()) == {TestStatus.MISSING}


@pytest.mark.slow
def test_a_timeout_is_a_verdict(log_task: Task, open_box: OpenBox) -> None:
    task = with_oracle(log_task, eval_script=script(BY_LOG), timeout=6)
    verdict = verdict_on(task, open_box, {"words/cases.py": f"import time\n\ntime.sleep(100)\n{GOLD}"})
    assert (verdict.resolved, verdict.timed_out) == (False, True)
    assert "timeout" in verdict.reason


@pytest.mark.parametrize("work", ["import os\nos._exit(0)\n", "def (\n", "raise SystemExit(127)\n"])
def test_work_that_breaks_the_run_is_not_resolved(work: str, log_task: Task, open_box: OpenBox) -> None:
    task = with_oracle(log_task, eval_script=script(BY_LOG))
    assert not verdict_on(task, open_box, {"words/cases.py": work}).resolved


@pytest.mark.parametrize(
    "work",
    [
        {"words/cases.py": "import os\nos._exit(127)\n"},
        {"setup.py": "import os\nos.kill(os.getppid(), 9)\n"},
        {"setup.py": "import os\nos.rename('/tmp', '/tmq')\nopen('/tmp', 'w')\n"},
    ],
    ids=["no such command", "ends the script", "takes a folder away"],
)
def test_work_that_keeps_the_tests_from_running_is_not_resolved(
    work: dict[str, str], log_task: Task, open_box: OpenBox
) -> None:
    task = with_oracle(log_task, eval_script=script(BY_LOG).replace("books=4", "books=4; python setup.py install"))
    verdict = verdict_on(task, open_box, work)
    assert (verdict.resolved, verdict.reason) == (False, NOT_RUN)


@pytest.mark.slow
def test_work_that_removes_the_reporter_does_not_choose_its_proof(log_task: Task, open_box: OpenBox) -> None:
    shell = "open(f'/proc/{os.getppid()}/cmdline').read()"
    removes = f"import os, re\n\nos.remove(re.search('[^ ]+report_pytest.py', {shell})[0])\n"
    task = with_oracle(log_task, eval_script=script(f"python setup.py build; {PYTEST}"))
    verdict = verdict_on(task, open_box, {"setup.py": removes, "words/cases.py": GOLD})
    assert (verdict.resolved, verdict.reason) == (False, NOT_RUN)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("no-such-runner tests", "cannot be run"),
        ("echo 'Ran 3 tests in 1 s'", "finds none in the log"),
    ],
)
def test_log_without_results_raises(log_task: Task, open_box: OpenBox, command: str, message: str) -> None:
    task = with_oracle(log_task, eval_script=script(command))
    with open_box(task) as fresh, pytest.raises(GradingError, match=message):
        grade(task, Patch(), fresh, lambda: open_box(task))


def test_script_that_does_not_reach_its_tests_raises(log_task: Task, open_box: OpenBox) -> None:
    task = with_oracle(log_task, eval_script=script(PYTEST).replace("books=4", "exit 1"))
    with open_box(task) as fresh, pytest.raises(GradingError, match="did not reach the tests"):
        grade(task, Patch(), fresh, lambda: open_box(task))


def test_tasks_that_lack_something(log_task: Task, open_box: OpenBox) -> None:
    for fields, error, message in (
        ({"eval_script": ""}, GradingError, "no eval_script"),
        ({"fail_to_pass": (), "pass_to_pass": ()}, GradingError, "names no test"),
        ({"log_parser": "djang", "eval_script": script(BY_LOG)}, TaskError, "'django'"),
    ):
        task = with_oracle(log_task, **fields)  # type: ignore[arg-type]  # values of several kinds
        with open_box(task) as fresh, pytest.raises(error, match=message):
            grade(task, Patch(), fresh, lambda: open_box(log_task))


def test_unnamed_test_passed_if_a_log_names_failures_only(log_task: Task, open_box: OpenBox) -> None:
    silent = with_oracle(
        log_task, fails_only=True, log_parser="marked", fail_to_pass=("New a",), pass_to_pass=("New b",)
    )
    for command, resolved in (
        ("echo '5 specs, 0 failures'", True),
        ("echo '1) New a'; echo '5 specs, 1 failure'; exit 1", False),
        ("echo 'the browser did not start'", False),
        ("echo '5 specs, 0 failures'; exit 1", False),
    ):
        task = with_oracle(silent, eval_script=script(command))
        assert verdict_on(task, open_box, {}).resolved is resolved, command


# --- a row's own parser ----------------------------------------------------------------------------------------------


def test_a_rows_own_parser_runs_in_the_sandbox(log_task: Task, open_box: OpenBox) -> None:
    ids = ("tests/test_cases.py::test_title",)
    task = with_oracle(log_task, log_parser=OWN_PARSER, fail_to_pass=ids, pass_to_pass=())
    gold = verdict_on(task, open_box, {"words/cases.py": GOLD})
    assert (gold.resolved, gold.judge) == (True, "own_parser")
    assert not verdict_on(task, open_box, {}).resolved


@pytest.mark.slow
def test_worst_result_of_a_parser_program_counts() -> None:
    ends = [("a", "PASSED"), ("a", "FAILED"), ("a", "passed"), ("b", "SKIPPED"), ("b", "PASSED"), ("c", "odd")]
    tests = [{"name": name, "status": status} for name, status in ends]
    assert read_results({"tests": tests}) == {"a": TestStatus.FAILED, "b": TestStatus.PASSED}


WRITE = "import sys\nopen(sys.argv[3], 'w').write({})"


@pytest.mark.parametrize("parser", [WRITE.format("'[' * 100_000"), WRITE.format("'[1]'"), "raise SystemExit(\n1)"])
def test_parser_program_that_fails_raises(parser: str, log_task: Task, open_box: OpenBox) -> None:
    task = with_oracle(log_task, log_parser=parser)
    with open_box(task) as fresh, pytest.raises(GradingError, match="its own log parser gave no results"):
        grade(task, Patch(), fresh, lambda: open_box(log_task))


# --- text ----------------------------------------------------------------------------------------------------------


def test_scripts_are_cut_at_their_marks_or_at_the_runner() -> None:
    prepare, command = split_script(script(PYTEST))
    assert command == PYTEST
    assert prepare.endswith("EOF\n")
    assert split_script("cd x\nA=1 pytest -rA a.py\n") == ("cd x\n", "A=1 pytest -rA a.py")
    assert split_script("npm test\nnpm run more\n") == ("", "npm test\nnpm run more")


@pytest.mark.slow
def test_options_reach_every_call_of_pytest(sandbox_factory: Callable[..., Sandbox], log_task: Task) -> None:
    box = sandbox_factory()
    plan = EvaluationPlan(command='echo "<$PYTEST_ADDOPTS>"')
    ready = Ready(log_task, plan, lambda: box, options=("-c", "/a b/it's", "--ignore=/x"))
    found = box.exec(["bash", "-uc", ready.command], env={"PYTEST_ADDOPTS": "-q"}).text
    assert found == "<-q -c '/a b/it'\"'\"'s' --ignore=/x>\n"


def test_logs_of_others() -> None:
    log = (
        "PASSED t.py::a\n+ : '>>>>> Start Test Output'\nPASSED t.py::b[x y]\n"
        "+ : '>>>>> End Test Output'\nPASSED t.py::c\n"
    )
    assert "t.py::b" in cut_to_marks(log)
    assert "t.py::a" not in cut_to_marks(log)
    oracle = Oracle(log_parser="pytest", fail_to_pass=("t.py::b[x",))
    assert judge_log(oracle, log).resolved
    assert not judge_log(oracle.model_copy(update={"pass_to_pass": ("t.py::a",)}), log).resolved
    assert judge_log(oracle, "Traceback").reason == "the log holds no result of any test"


def test_lines_of_a_harness_count() -> None:
    oracle = Oracle(log_parser="pytest", fail_to_pass=("t.py::a",))
    start, end = "+ : '>>>>> Start Test Output'\n", "+ : '>>>>> End Test Output'\n"
    done = f"{start}PASSED t.py::a\n{end}"
    assert judge_log(oracle, done + ">>>>> Test Exit Code: 0\n").resolved
    assert judge_log(oracle, f"PASSED t.py::a\n{start}{end}").resolved, "the marks came before the results"
    assert judge_log(oracle, f"{start}PASSED t.py::a\nFAILED t.py::b\n{end}>>>>> Test Exit Code: 1\n").resolved
    forged = done.replace(end, f">>>>> Test Exit Code: 0\n{end}>>>>> Test Exit Code: 1\n")
    assert "exit code 1" in judge_log(oracle, forged).reason
    assert "breaks off" in judge_log(oracle, f"{start}PASSED t.py::a\nTimeout error: 1800 seconds exceeded.").reason
    assert "Patch Apply Failed" in judge_log(oracle, f">>>>> Patch Apply Failed\n{done}").reason
