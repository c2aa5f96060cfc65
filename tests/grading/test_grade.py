"""Verdicts on real work in real sandboxes."""

import hashlib
import hmac
import json
from collections.abc import Callable

import pytest

from swe_gym.errors import GradingError, TaskError
from swe_gym.grading import grade
from swe_gym.grading.graders import find_statuses
from swe_gym.grading.patch import REGULAR, Dropped, FileChange, Patch, apply_diff, take_patch
from swe_gym.grading.reporter import read_report
from swe_gym.grading.staging import FreshSandboxes, run_preparation
from swe_gym.sandboxes import Sandbox, SandboxSpec
from swe_gym.sandboxes.fake import FakeSandbox
from swe_gym.types import FilesWorkspace, Oracle, Task, TestStatus, Verdict

OpenBox = Callable[[Task], Sandbox]
PYTEST_KINDS = """\
import sys
import unittest

import pytest


def test_pass():
    pass


def test_fail():
    assert 0


@pytest.mark.skip
def test_skip():
    pass


@pytest.mark.xfail
def test_xfail():
    assert 0


@pytest.mark.xfail
def test_xpass():
    pass


@pytest.fixture
def bad():
    raise RuntimeError


@pytest.fixture
def bad_end():
    yield
    raise RuntimeError


def test_setup(bad):
    pass


def test_teardown(bad_end):
    pass


@pytest.mark.parametrize("x", ["a b", "[y]", "::", "a\\nb"])
def test_ids(x):
    pass


def test_exit():
    sys.exit(0)


class TestUnit(unittest.TestCase):
    def test_parts(self):
        for i in range(3):
            with self.subTest(i=i):
                self.assertNotEqual(i, 1)

    def test_own_name(self):
        self.assertIn("pytest", sys.modules["__main__"].__file__)
        self.assertFalse(hasattr(sys.modules["__main__"], "report_on"))
"""
UNITTEST_KINDS = """\
import unittest


class A(unittest.TestCase):
    def test_pass(self):
        pass

    def test_fail(self):
        self.fail()

    def test_error(self):
        raise RuntimeError

    @unittest.skip("later")
    def test_skip(self):
        pass

    @unittest.expectedFailure
    def test_xfail(self):
        self.fail()

    @unittest.expectedFailure
    def test_xpass(self):
        pass

    def test_parts(self):
        for i in range(3):
            with self.subTest(i=i):
                self.assertNotEqual(i, 1)

    def test_some_skipped(self):
        for i in range(3):
            with self.subTest(i=i):
                if i:
                    self.skipTest("later")

    def test_cleanup(self):
        self.addCleanup(self.fail)


class Start(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        raise RuntimeError

    def test_pass(self):
        pass


class End(unittest.TestCase):
    @classmethod
    def tearDownClass(cls):
        raise RuntimeError

    def test_pass(self):
        pass
"""


def judge(task: Task, open_box: OpenBox, script: str = "", *, solve: bool = False) -> Verdict:
    """The verdict on what a script leaves behind."""
    with open_box(task) as fresh:
        with open_box(task) as box:
            if solve:
                apply_diff(box, task.oracle.gold_patch)
            result = box.exec(script or "true")
            assert result.ok, result.error_text
            patch = take_patch(box, fresh)
        return grade(task, patch, fresh, lambda: open_box(task))


def with_oracle(task: Task, **fields: object) -> Task:
    return task.model_copy(update={"oracle": task.oracle.model_copy(update=fields)})


def statuses(task: Task, open_box: OpenBox) -> dict[str, TestStatus]:
    verdict = judge(task, open_box)
    return {**verdict.fail_to_pass, **verdict.pass_to_pass}


REWRITES_TESTS = """
def title(text): return "wrong"
lower = title

import pathlib
for file in (pathlib.Path(__file__).parents[1] / "tests").glob("test_*.py"):
    file.write_text('''
import pytest
def test_title(text): pass
@pytest.mark.parametrize("given", ["a b", "[x]"])
def test_titles(given): pass
def test_lower(text): pass
''')
"""


@pytest.mark.slow
def test_hidden_tests_that_change_while_they_run_prove_nothing(words_task: Task, open_box: OpenBox) -> None:
    """A conftest.py that imports the product runs code of the work before the tests are read."""
    conftest = "import pytest\nfrom words import cases\n\n\n@pytest.fixture\ndef text():\n    return 'ab cd'\n"
    task = with_oracle(words_task, test_files={"tests/conftest.py": conftest})
    verdict = judge(task, open_box, f"cat > words/cases.py <<'E'\n{REWRITES_TESTS}E\n")
    assert not verdict.resolved
    assert judge(task, open_box, solve=True).resolved


# --- per test ------------------------------------------------------------------------------------------------


def test_pytest_is_read_test_by_test(words_task: Task, open_box: OpenBox) -> None:
    expected = {
        "test_pass": "passed",
        "test_fail": "failed",
        "test_skip": "skipped",
        "test_xfail": "xfailed",
        "test_xpass": "xpassed",
        "test_setup": "error",
        "test_teardown": "error",
        "test_ids[a b]": "passed",
        "test_ids[[y]]": "passed",
        "test_ids[::]": "passed",
        "test_ids[a\\nb]": "passed",
        "test_ids[a": "passed",  # as published lists cut it
        "test_exit": "failed",
        "TestUnit::test_parts": "failed",
        "TestUnit::test_own_name": "passed",
        "test_none": "missing",
    }
    task = with_oracle(
        words_task,
        test_files={"tests/test_kinds.py": PYTEST_KINDS, "tests/test_broken.py": "import nothing_like_it\n"},
        fail_to_pass=tuple(f"tests/test_kinds.py::{name}" for name in expected),
        pass_to_pass=("tests/test_broken.py::test_a", "tests/test_cases.py::test_lower"),
    )
    found = statuses(task, open_box)
    assert {name: str(found[f"tests/test_kinds.py::{name}"]) for name in expected} == expected
    assert found["tests/test_broken.py::test_a"] is TestStatus.ERROR
    assert found["tests/test_cases.py::test_lower"] is TestStatus.PASSED


def test_unittest_is_read_test_by_test(shop_task: Task, open_box: OpenBox) -> None:
    expected = {
        "A.test_pass": "passed",
        "A.test_fail": "failed",
        "A.test_error": "error",
        "A.test_skip": "skipped",
        "A.test_xfail": "xfailed",
        "A.test_xpass": "xpassed",
        "A.test_parts": "failed",
        "A.test_some_skipped": "skipped",
        "A.test_cleanup": "failed",
        "Start.test_pass": "error",
        "End.test_pass": "error",
        "A.test_none": "missing",
    }
    task = with_oracle(
        shop_task,
        test_files={"tests/test_kinds.py": UNITTEST_KINDS, "tests/test_broken.py": "import nothing_like_it\n"},
        fail_to_pass=tuple(f"test_kinds.{name}" for name in expected),
        pass_to_pass=("test_broken.T.test_a",),
    )
    found = statuses(task, open_box)
    assert {name: str(found[f"test_kinds.{name}"]) for name in expected} == expected
    assert found["test_broken.T.test_a"] is TestStatus.ERROR


def test_find_statuses_lists_every_test(shop_task: Task, open_box: OpenBox) -> None:
    with open_box(shop_task) as sandbox:
        found = find_statuses(shop_task, sandbox)
    assert found == {"test_shop.TestShop.test_import": TestStatus.PASSED}


# --- the run as a whole ------------------------------------------------------------------------------------


def test_verdict_holds_statuses_and_log(words_task: Task, open_box: OpenBox) -> None:
    empty = judge(words_task, open_box)
    assert not empty.resolved
    assert empty.exit_code == 1
    assert empty.reason == "1 of 2 tests that had to start passing did not pass"
    assert "test_title" in empty.log
    assert "test_title" not in repr(empty.model_copy(update={"fail_to_pass": {}}))
    gold = judge(words_task, open_box, solve=True)
    assert (gold.resolved, gold.reason, gold.timed_out, gold.dropped) == (True, "", False, ())


@pytest.mark.slow
def test_a_timeout_is_not_resolved(shop_task: Task, open_box: OpenBox) -> None:
    hang = "echo 'import time; time.sleep(600)' >> src/shop/prices.py"
    verdict = judge(with_oracle(shop_task, timeout=8.0), open_box, hang, solve=True)
    assert verdict.timed_out
    assert not verdict.resolved
    assert set(verdict.fail_to_pass.values()) == {TestStatus.MISSING}
    assert verdict.reason.startswith("the hidden tests ran into their timeout of")  # the second try has less


def test_command_that_hides_the_runners_exit_code_is_not_believed(shop_task: Task, open_box: OpenBox) -> None:
    task = with_oracle(shop_task, test_cmd=shop_task.oracle.test_cmd + "; exit 7")
    verdict = judge(task, open_box, solve=True)
    assert not verdict.resolved
    assert "contradicts" in verdict.reason


def test_work_that_breaks_what_comes_before_the_tests_is_not_resolved(shop_task: Task, open_box: OpenBox) -> None:
    task = with_oracle(shop_task, test_cmd="python -c 'import shop.prices' && " + shop_task.oracle.test_cmd)
    assert judge(task, open_box, solve=True).resolved
    verdict = judge(task, open_box, "echo '(' >> src/shop/prices.py", solve=True)
    assert not verdict.resolved
    assert "did not start" in verdict.reason


def test_work_that_removes_the_report_is_not_resolved(shop_task: Task, open_box: OpenBox) -> None:
    code = "import glob, os, shutil\nfor name in glob.glob('/tmp/*'):\n    shutil.rmtree(name)\nos._exit(0)"
    verdict = judge(shop_task, open_box, f"cat >> src/shop/prices.py <<'EOF'\n{code}\nEOF", solve=True)
    assert not verdict.resolved
    assert "did not start" in verdict.reason


def test_rejected_work_is_judged_without_a_run(shop_task: Task, open_box: OpenBox) -> None:
    patch = Patch(rejected="too much", dropped=(Dropped(path="x", reason="y"),))
    with open_box(shop_task) as fresh:
        verdict = grade(shop_task, patch, fresh, lambda: open_box(shop_task))
    assert (verdict.resolved, verdict.reason, verdict.dropped) == (False, "too much", ("x",))
    assert set(verdict.fail_to_pass.values()) == {TestStatus.MISSING}


# --- when there is no verdict --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"test_cmd": "make test"}, "exactly once"),
        ({"fail_to_pass": (), "pass_to_pass": ()}, "names no test"),
        ({"test_cmd": "python -S -m pytest"}, "pytest is not installed"),
        ({"test_cmd": "python0 -m unittest"}, "did not start"),
        ({"grader": "exit_code", "test_cmd": ""}, "no test_cmd"),
    ],
)
def test_failure_that_the_work_cannot_cause_raises(
    shop_task: Task, open_box: OpenBox, fields: dict[str, object], message: str
) -> None:
    with open_box(shop_task) as fresh, pytest.raises(GradingError, match=message):
        grade(with_oracle(shop_task, **fields), Patch(), fresh, lambda: open_box(shop_task))


def test_a_test_patch_that_does_not_apply_is_the_tasks_fault(words_task: Task, open_box: OpenBox) -> None:
    broken = with_oracle(
        words_task, test_patch="diff --git a/none b/none\n--- a/none\n+++ b/none\n@@ -1 +1 @@\n-1\n+2\n"
    )
    with open_box(broken) as fresh, pytest.raises(TaskError, match="task words: the test patch does not apply"):
        grade(broken, Patch(), fresh, lambda: open_box(broken))


def test_an_unknown_grader_is_named(shop_task: Task, open_box: OpenBox) -> None:
    with open_box(shop_task) as fresh, pytest.raises(TaskError, match="Did you mean 'tests'"):
        grade(with_oracle(shop_task, grader="test"), Patch(), fresh, lambda: open_box(shop_task))


def test_a_policy_cannot_make_the_test_patch_fail(words_task: Task, open_box: OpenBox) -> None:
    verdict = judge(
        words_task, open_box, "echo '*.py working-tree-encoding=UTF-16' > .gitattributes; rm -rf tests", solve=True
    )
    assert verdict.resolved


# --- configuration -------------------------------------------------------------------------------------------


def test_the_tests_keep_their_configuration_and_the_product_its_own(words_task: Task, open_box: OpenBox) -> None:
    project = '[project]\nname = "words"\n[tool.pytest.ini_options]\npythonpath = ["lib"]\nmarkers = ["fine"]\n'
    hidden = (
        "import pathlib\n\nimport pytest\n\nimport helper\n\n\n@pytest.mark.fine\ndef test_title(request):\n"
        "    assert helper.three == 3\n    assert 'evil' in pathlib.Path('pyproject.toml').read_text()\n"
        "    assert request.config.rootpath == pathlib.Path.cwd()\n"
    )
    task = with_oracle(
        words_task,
        test_patch="",
        test_files={"tests/test_hidden.py": hidden},
        fail_to_pass=("tests/test_hidden.py::test_title",),
        pass_to_pass=(),
        test_cmd="python -m pytest --strict-markers",
    )
    with open_box(task) as fresh:
        fresh.write_file("pyproject.toml", project.encode())
        fresh.write_file("lib/helper.py", b"three = 3\n")
        change = FileChange(
            path="pyproject.toml",
            old=project.encode(),
            new=b'[project]\nname = "evil"\n[tool.pytest.ini_options]\naddopts = "--collect-only"\n',
            old_mode=REGULAR,
            new_mode=REGULAR,
        )
        verdict = grade(task, Patch(changes=(change,)), fresh, lambda: open_box(task))
    assert verdict.resolved, verdict.log


@pytest.mark.sample(every=4)
@pytest.mark.parametrize("original", ["tox.ini", "pytest.ini", "setup.cfg", ""])
def test_configuration_in_a_new_file_does_not_win(original: str, words_task: Task, open_box: OpenBox) -> None:
    with open_box(words_task) as fresh:
        fresh.exec("rm pyproject.toml")
        if original:
            section = "tool:pytest" if original == "setup.cfg" else "pytest"
            fresh.write_file(original, f"[{section}]\nmarkers = slow\n".encode())
        change = FileChange(
            path="pyproject.toml",
            new=b'[tool.pytest.ini_options]\naddopts = "--collect-only"\n',
            new_mode=REGULAR,
        )
        verdict = grade(words_task, Patch(changes=(change,)), fresh, lambda: open_box(words_task))
    assert verdict.pass_to_pass == {"tests/test_cases.py::test_lower": TestStatus.PASSED}


# --- the grader that believes an exit code ---------------------------------------------------------------------


@pytest.mark.parametrize("solve", [True, False])
def test_exit_code(shop_task: Task, open_box: OpenBox, solve: bool) -> None:
    task = with_oracle(shop_task, grader="exit_code", test_cmd="cd {workdir}/tests && python -m unittest test_prices")
    verdict = judge(task, open_box, solve=solve)
    assert verdict.resolved is solve
    assert verdict.reason == ("" if solve else "the test command ended with exit code 1, not with exit code 0")


def test_exit_code_keeps_the_script_that_the_command_names(shop_task: Task, open_box: OpenBox) -> None:
    task = with_oracle(shop_task, grader="exit_code", test_cmd="sh check.sh")
    verdict = judge(task, open_box, "echo 'exit 0' > check.sh; mkdir own; echo > own/conftest.py")
    assert not verdict.resolved
    assert verdict.dropped == ("check.sh",)


def test_exit_code_of_a_script_that_sets_up_its_shell_before_it_calls_the_runner(
    shop_task: Task, open_box: OpenBox
) -> None:
    check = (
        "cd tests\nexport WANTED=yes\npython -m unittest test_prices && [ $WANTED = yes ] && [ ${0##*/} = check.sh ]\n"
    )
    files = {**shop_task.oracle.test_files, "check.sh": check}
    task = with_oracle(shop_task, grader="exit_code", test_cmd="bash check.sh", test_files=files)
    assert judge(task, open_box, solve=True).resolved
    assert not judge(task, open_box).resolved


@pytest.mark.parametrize("setting", ["", "PYTEST_ADDOPTS=-q "])
def test_exit_code_of_pytest_with_the_configuration_of_the_task(
    words_task: Task, open_box: OpenBox, setting: str
) -> None:
    task = with_oracle(words_task, grader="exit_code", test_cmd=f"{setting}python -m pytest tests")
    original = b'[project]\nname = "words"\n'
    change = FileChange(
        path="pyproject.toml",
        old=original,
        new=original + b'[tool.pytest.ini_options]\naddopts = "--collect-only"\n',
        old_mode=REGULAR,
        new_mode=REGULAR,
    )
    with open_box(task) as fresh:
        fresh.write_file("pyproject.toml", original)
        verdict = grade(task, Patch(changes=(change,)), fresh, lambda: open_box(task))
    assert not verdict.resolved, verdict.log


# --- reading a report ------------------------------------------------------------------------------------------


def signed(key: bytes, *events: dict[str, object]) -> bytes:
    last, lines = b"", b""
    for event in events:
        line = json.dumps(event).encode()
        last = hmac.new(key, last + line, hashlib.sha256).hexdigest().encode()
        lines += last + b" " + line + b"\n"
    return lines


START: dict[str, object] = {"event": "started"}
PASS: dict[str, object] = {"event": "test", "id": "a", "status": "passed"}
FAIL: dict[str, object] = {"event": "test", "id": "a", "status": "failed"}


def test_only_signed_lines_in_their_order_count() -> None:
    lines = signed(b"key", START, PASS).splitlines(keepends=True)
    forged = signed(b"other", START, PASS)
    assert read_report(b"".join(lines), b"key").tests == {"a": (TestStatus.PASSED,)}
    assert read_report(forged + lines[0] + b"junk\n\xff\n" + forged + lines[1], b"key").started
    assert read_report(forged + lines[0] + b"junk\n" + lines[1], b"key").tests == {"a": (TestStatus.PASSED,)}
    assert read_report(lines[1] + lines[0], b"key").tests == {}
    assert read_report(forged, b"key").tests == {}


def test_the_worst_of_several_ends_counts() -> None:
    assert read_report(signed(b"key", START, FAIL, PASS), b"key").status("a") is TestStatus.FAILED
    group: dict[str, object] = {"event": "group", "id": "m", "status": "error"}
    member: dict[str, object] = {"event": "test", "id": "m.T.a", "status": "passed"}
    assert read_report(signed(b"key", member, group), b"key").status("m.T.a") is TestStatus.ERROR
    assert read_report(signed(b"key", member), b"key").status("m.T") is TestStatus.MISSING


def test_a_cut_id_stands_for_all_that_it_begins() -> None:
    events = [{"event": "test", "id": f"f::t[a {end}]", "status": "passed"} for end in "bc"]
    assert read_report(signed(b"k", *events), b"k").status("f::t[a") is TestStatus.PASSED
    events.append({"event": "test", "id": "f::t[a d]", "status": "failed"})
    assert read_report(signed(b"k", *events), b"k").status("f::t[a") is TestStatus.FAILED


def test_oracle_repr_is_empty_and_json_round_trips(shop_task: Task) -> None:
    assert repr(shop_task.oracle) == "Oracle(hidden)"
    assert "test_prices" not in repr(shop_task)
    assert Oracle.model_validate_json(shop_task.oracle.model_dump_json()) == shop_task.oracle


class Haunted(FakeSandbox):
    """A fake in which a process of another user goes on."""

    def end_processes(self, *, commands: bool = False, timeout: float = 10.0) -> bool:
        super().end_processes(commands=commands, timeout=timeout)
        return False


def test_processes_that_cannot_be_ended_prove_nothing_and_end_with_their_sandbox() -> None:
    task = Task(task_id="t", problem_statement="", workspace=FilesWorkspace(files={}), oracle=Oracle())
    with Haunted(SandboxSpec()).start() as haunted:
        with pytest.raises(GradingError, match="processes that cannot be ended"):
            run_preparation("true", task, haunted)
        with FreshSandboxes(haunted, Haunted(SandboxSpec()).start).open() as second:
            assert (haunted.closed, second.closed) == (True, False)
