"""Verdicts on right work of all kinds, on wrong work, and on work that changes its judge."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from small_tasks import (
    MISSING,
    PASSED,
    RUNNERS,
    THREE_UNITTEST,
    UNITTEST,
    Small,
    assert_alarm,
    assert_refused,
    assert_resolved,
    f2,
    pytest_file,
    three,
    unittest_file,
)

from swe_gym.errors import GradingError
from swe_gym.grading import CounterOptions
from swe_gym.grading.base import Ready, Results
from swe_gym.grading.graders import TESTS
from swe_gym.grading.judge import ALARM, NOT_IN_TWINS
from swe_gym.sandboxes import Sandbox
from swe_gym.types import ExecResult, Task, TestStatus, Verdict

# --- right work -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runner", RUNNERS)
def test_right_work_is_resolved_by_one_run(runner: str) -> None:
    small = three(runner)
    verdict = small.judge(small.gold)
    assert_resolved(verdict)
    found = verdict.counter_tests
    assert (set(found.kinds), set(found.kept)) == (set(map(small.name, small.starting)), {small.name("test_c")})
    assert set(found.texts) == small.names
    assert min(found.texts[small.name(test)] for test in small.starting) == 8
    assert (found.uncovered, found.unfit, found.unforkable, found.runs) == ({}, {}, (), 1)
    assert len(small.opened) == 1


HONEST_OLD = "def f(): pass\n"
HONEST_GOLD = """
import random

def error(): raise ValueError("bad y")
def words(): return ["ok"]
def choice(): return random.choice([1, 2])
class Any:
    def __eq__(self, other): return True
def flaky(): return random.choice([1, 1, 1, 2])
def wide(): return 10.0
def number(): return 1
def key(): raise KeyError(1)
"""
HONEST_OTHER = """
import random

def error(): raise ValueError("bad x")
def words(): return []
def choice(): return random.choice([2, 1])
class Any:
    def __eq__(self, other): return not None
def flaky(): return random.choice([1, 1, 2])
def wide(): return 14.0
def number(): return 2
def key(): raise KeyError(2)
"""
HONEST_TESTS = """
import m, pytest

def test_alternatives_in_a_pattern():
    with pytest.raises(ValueError, match="bad x|bad y"):
        m.error()

def test_loop_over_results():
    for word in m.words():
        assert word == "ok"

def test_chance():
    assert m.choice() in (1, 2)

def test_chance_twice():
    assert m.choice() == m.choice() or True
    assert m.choice() is not None

def test_equal_by_design():
    assert m.Any() == 3

def test_retry():
    for _ in range(50):
        try:
            assert m.flaky() == 1
            break
        except AssertionError:
            pass
    else:
        raise AssertionError

def test_tolerance():
    assert m.wide() == pytest.approx(10, abs=5)
    assert abs(m.wide() - 10) < 9

def test_wide_tolerance():
    assert m.wide() == pytest.approx(10, rel=2)

def test_condition():
    number = m.number()
    assert number
    if number == 1:
        assert number + 1 == 2

def test_handler():
    try:
        m.key()
    except KeyError as error:
        assert error.args in ((1,), (2,))
    else:
        assert 0
"""


@pytest.mark.sample(every=2)
@pytest.mark.parametrize(("work", "seed"), [(HONEST_OTHER, b"2"), (HONEST_GOLD, b"1")], ids=["other", "gold"])
def test_other_right_work_is_resolved(work: str, seed: bytes) -> None:
    """Wherever a test leaves a choice, and where its change cannot matter."""
    starting = tuple(re.findall(r"def (test_\w+)", HONEST_TESTS))
    small = Small(HONEST_GOLD, HONEST_TESTS, starting, old=HONEST_OLD)
    verdict = small.judge(work, seed=seed)
    assert_resolved(verdict)
    found = verdict.counter_tests
    assert set(found.unfit) == {small.name("test_equal_by_design")}
    assert (set(found.kinds), found.unforkable, found.runs) == (set(map(small.name, starting)), (), 1)


STATE = """
import m

STATE = {}

def test_a():
    STATE["k"] = 1
    assert m.f(1) == 2
    del STATE["k"]

def test_b():
    assert m.f(2) == 3
    assert STATE == {}

def test_c():
    assert STATE == {}

def test_d():
    assert "k" not in STATE
"""


@pytest.mark.sample(every=2)
@pytest.mark.parametrize("seed", [b"1", b"2"])
def test_tests_that_clean_up_at_their_end_are_not_disturbed_by_changed_ones(seed: bytes) -> None:
    small = Small(f2(), STATE, ("test_a", "test_b"), ("test_c", "test_d"))
    verdict = small.judge(f2("1 + x"), seed=seed)
    assert_resolved(verdict)
    assert len(small.opened) == 1


@pytest.mark.slow
def test_a_change_that_cannot_matter_is_unfit() -> None:
    tests = pytest_file("assert m.f(1) == 2", "assert m.f(None) == 5")
    gold = "class Any:\n    def __eq__(self, other): return True\ndef f(x):\n    return x + 1 if x else Any()\n"
    small = Small(gold, tests, ("test_a", "test_b"))
    verdict = small.judge(gold.replace("return True", "return bool(1)"))
    assert_resolved(verdict)
    assert set(verdict.counter_tests.unfit) == {small.name("test_b")}
    assert len(small.opened) == 3, "the gold patch confirms it twice"
    kinds = verdict.counter_tests.unfit[small.name("test_b")].split("+")
    known = CounterOptions(unfit={small.name("test_b"): kinds}, seed=b"1")
    found = small.judge(gold, options=known).counter_tests
    assert not set(kinds) & set(found.kinds.get(small.name("test_b"), "").split("+"))


def test_generated_tests_have_counter_tests() -> None:
    tests = """
import unittest

import m

class T(unittest.TestCase):
    pass

def add(value):
    def run(self):
        self.assertEqual(m.f(value), value + 1)
    setattr(T, f"test_{value}", run)

for value in range(3):
    add(value)
"""
    small = Small(f2(), tests, ("test_0", "test_1", "test_2"), command=UNITTEST)
    verdict = small.judge(small.gold)
    assert_resolved(verdict)
    assert set(verdict.counter_tests.kinds) == small.names
    assert verdict.counter_tests.runs in (2, 3)
    assert set(verdict.counter_tests.unforkable) == small.names, "their function exists only while another one runs"
    assert not small.judge(f2("x")).counter_tests.alarms
    changed = CounterOptions(runs=6, seed=b"1")  # the coin decides in each whether they are changed
    assert_alarm(small.judge(UNITTEST_PASSES_ALL, options=changed), small)


# --- wrong work -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runner", RUNNERS)
def test_wrong_work_takes_one_run_and_raises_no_alarm(runner: str) -> None:
    small = three(runner)
    verdict = small.judge(f2("x"), complete=False)
    assert (verdict.resolved, verdict.counter_tests.alarms, verdict.counter_tests.runs) == (False, {}, 1)
    assert len(small.opened) == 1
    assert verdict.reason == "2 of 2 tests that had to start passing did not pass"


@pytest.mark.sample(every=2)
@pytest.mark.parametrize(("runner", "seed"), [("unittest", b"1"), ("pytest", b"2")])
def test_complete_verdict_on_wrong_work_has_the_status_of_every_test(runner: str, seed: bytes) -> None:
    small = three(runner)
    verdict = small.judge(f2("2"), seed=seed)
    assert {**verdict.fail_to_pass, **verdict.pass_to_pass} == {
        small.name("test_a"): PASSED,
        small.name("test_b"): TestStatus.FAILED,
        small.name("test_c"): PASSED,
    }
    assert verdict.reason == "1 of 2 tests that had to start passing did not pass"
    assert not verdict.counter_tests.alarms


@pytest.mark.sample(every=3)
@pytest.mark.parametrize("seed", [b"1", b"2", b"3"])
def test_wrong_work_that_passes_a_changed_test_raises_no_alarm(seed: bytes) -> None:
    """It may give by chance what the changed test expects: it fails the test as it is."""
    tests = pytest_file("assert m.f(1) is True", "assert m.f(1) is not None", "assert m.f.__name__ == 'f'")
    small = Small(f2("True"), tests, ("test_a", "test_b"), ("test_c",))
    verdict = small.judge(f2("False"), seed=seed)
    assert (verdict.resolved, verdict.counter_tests.alarms) == (False, {})
    assert verdict.fail_to_pass[small.name("test_a")] is TestStatus.FAILED


# --- work that changes its judge --------------------------------------------------------------------------------

ALWAYS_EQUAL = """
class Yes:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 1

def f(x=None):
    return Yes()
"""
READS_THE_TEST = """
import ast, linecache, sys

def f(x=None):
    frame = sys._getframe(1)
    for node in ast.walk(ast.parse("".join(linecache.getlines(frame.f_code.co_filename)))):
        if isinstance(node, ast.Compare) and node.lineno == frame.f_lineno:
            return ast.literal_eval(node.comparators[0])
        if isinstance(node, ast.Call) and node.lineno == frame.f_lineno and len(node.args) == 2:
            return ast.literal_eval(node.args[1])
"""
UNITTEST_PASSES_ALL = """
import unittest

def f(x=None):
    return None

unittest.TestCase.assertEqual = lambda *given, **named: None
"""
UNITTEST_RESULTS = """
import gc, unittest

def passes(self, test, *given):
    self.addSuccess(test)

def f(x=None):
    for kind in gc.get_objects():
        if isinstance(kind, type) and issubclass(kind, unittest.TestResult):
            kind.addFailure = kind.addError = passes
    return None
"""
PYTEST_HOOK = """
import _pytest.python

_pytest.python.Function.runtest = lambda self: None

def f(x=None):
    return None
"""


@pytest.mark.sample(every=4)
@pytest.mark.parametrize(
    ("runner", "work"),
    [
        ("pytest", ALWAYS_EQUAL),
        ("unittest", ALWAYS_EQUAL),
        ("unittest", UNITTEST_PASSES_ALL),
        ("unittest", UNITTEST_RESULTS),
        ("pytest", PYTEST_HOOK),
    ],
)
def test_work_that_makes_changed_tests_pass_raises_the_alarm(runner: str, work: str) -> None:
    small = three(runner)
    assert_alarm(small.judge(work), small)


@pytest.mark.parametrize("runner", RUNNERS)
def test_work_that_reads_its_answers_from_the_test_file_reads_a_changed_one(runner: str) -> None:
    small = three(runner)
    assert_refused(small.judge(READS_THE_TEST), small)


def test_single_test_is_proven_in_one_run() -> None:
    small = Small(f2(), unittest_file("self.assertEqual(m.f(1), 2)"), ("test_a",), command=UNITTEST)
    verdict = small.judge(f2("1 + x"))
    assert_resolved(verdict)
    assert (verdict.counter_tests.runs, len(small.opened)) == (1, 1)
    assert_alarm(small.judge(ALWAYS_EQUAL), small)


@pytest.mark.sample(every=2)
@pytest.mark.parametrize(("runner", "seed"), [("unittest", b"1"), ("pytest", b"2")])
def test_work_that_is_right_but_for_one_test_raises_the_alarm(runner: str, seed: bytes) -> None:
    small = three(runner)
    work = ALWAYS_EQUAL.replace("return Yes()", "return Yes() if x == 2 else x + 1")
    verdict = small.judge(work, seed=seed)
    assert_alarm(verdict, small)
    assert set(verdict.counter_tests.alarms) == {small.name("test_b")}


NEAR_ENOUGH = """
class Near(str):
    def __eq__(self, other):
        return {test}

def f(x=None):
    return Near("{text}")
"""


@pytest.mark.slow
def test_work_that_equals_what_looks_like_its_values_raises_the_alarm() -> None:
    text = "no such name: Alpha 12 in beta"
    test = pytest_file(f"assert m.f() == {text!r}")
    small = Small(NEAR_ENOUGH.format(test="str(self) == other", text=text), test, ("test_a",))
    assert_resolved(small.judge(small.gold))
    for lenient in ("self.lower() == other.lower()", "len(self) == len(other)"):
        work = NEAR_ENOUGH.format(test=lenient, text=text)
        assert any(small.judge(work, seed=bytes([seed])).reason == ALARM for seed in range(4))


PID = "import os\n\nPID = os.getpid()\n\n\ndef f(x=None):\n    return x + 1 if os.getpid() == PID else {}\n"


def test_work_that_passes_only_in_the_session_is_refuted() -> None:
    small = three("unittest")
    verdict = small.judge(PID.format("None"))
    assert_refused(verdict, small)
    assert verdict.reason == NOT_IN_TWINS.format(2)
    assert {verdict.fail_to_pass[small.name(test)] for test in small.starting} == {TestStatus.FAILED}
    assert verdict.counter_tests.alarms == {}


@pytest.mark.slow
def test_tests_that_fail_in_forks_with_the_gold_patch_too_are_proven_by_a_second_run() -> None:
    small = replace(three(), gold=PID.format("None"))
    verdict = small.judge(small.gold)
    assert_resolved(verdict)
    assert set(map(small.name, small.starting)) <= set(verdict.counter_tests.unforkable)
    assert verdict.counter_tests.runs in (3, 4), "with twins, without them, the proof"
    known = CounterOptions(unforkable=verdict.counter_tests.unforkable, seed=b"1")
    assert small.judge(small.gold, options=known).counter_tests.runs in (2, 3)
    assert not small.judge(ALWAYS_EQUAL, options=replace(known, runs=6)).resolved


slow_runs: set[int] = set()
ran: list[str] = []


def run_on_a_slow_machine(ready: Ready, sandbox: Sandbox) -> Results:
    ran.append(sandbox.read_file("test_m.py").decode())
    if len(ran) in slow_runs:
        return Results(judge="reporter", reason="too slow", result=ExecResult(exit_code=None, timed_out=True))
    return TESTS.run(ready, sandbox)


SLOW_MACHINE = replace(TESTS, run=run_on_a_slow_machine)


@pytest.mark.parametrize(("slow", "resolved"), [({2, 4}, False), ({2}, True)])
def test_a_further_run_that_fails_with_the_work_alone_is_repeated_once(slow: set[int], resolved: bool) -> None:
    small = three("unittest", grader=f"{__name__}:SLOW_MACHINE")
    ran.clear()
    slow_runs.clear()
    slow_runs.update(slow)
    options = CounterOptions(unforkable=[small.name(test) for test in (*small.starting, *small.keeping)], seed=b"1")
    verdict = small.judge(small.gold, options=options)
    assert verdict.resolved is resolved, (verdict.reason, verdict.log)
    assert ran[1] == ran[2] == ran[3], "the work, the gold patch and the work again, with the same texts"
    assert verdict.counter_tests.runs == len(ran) - len(slow)


def test_without_a_gold_patch_an_alarm_counts_and_an_original_that_fails_in_its_twin_does_not() -> None:
    small = three("unittest", has_gold=False)
    assert_resolved(small.judge(small.gold))
    assert_alarm(small.judge(ALWAYS_EQUAL), small)
    verdict = small.judge(PID.format("None"))
    assert_resolved(verdict)
    assert verdict.counter_tests.unforkable


# --- work that breaks the run -------------------------------------------------------------------------------------

AT_A_FAILURE = """
import os, time, unittest

def f(x=None):
    return x + 1

unittest.TestCase.assertEqual = lambda self, first, second: None if first == second else {}
"""


@pytest.mark.sample(every=4)
@pytest.mark.parametrize("action", ["os._exit(0)", "time.sleep(60)"], ids=["ends", "hangs"])
@pytest.mark.parametrize("alone", [False, True])
def test_work_that_breaks_only_at_failures_is_refuted(action: str, alone: bool) -> None:
    small = three("unittest", timeout=8.0)
    if alone:
        small = replace(small, starting=("test_a",), keeping=(), opened=[])
    verdict = small.judge(AT_A_FAILURE.format(action))
    assert_refused(verdict, small)
    assert not verdict.timed_out


HANGS = "import time\n\n\ndef f(x=None):\n    time.sleep(600)\n"


@pytest.mark.sample(every=2)
@pytest.mark.parametrize("grader", ["exit_code", "tests"])
def test_work_that_always_hangs_is_not_resolved(grader: str) -> None:
    small = three("unittest", timeout=8.0, grader=grader)
    verdict = small.judge(HANGS)
    assert (verdict.resolved, verdict.timed_out) == (False, True)
    assert verdict.reason.startswith("the hidden tests ran into their timeout of")  # the second try has less
    assert not verdict.counter_tests.alarms
    assert len(small.opened) == 3  # the first run, the gold patch, the work once more


LEAVES_PROCESSES = """
import os, subprocess
class Everything:
    __name__ = "f"
    def __call__(self, x): return self
    def __eq__(self, other): return True
    __hash__ = None
f = Everything()
if not os.path.exists("left"):
    open("left", "w").close()
    for _ in range(3):
        subprocess.Popen(["sleep", "907"], start_new_session=True)
"""


@dataclass
class Watched(Small):
    """A task whose sandboxes are counted in which the work still runs when another one opens."""

    busy: int = 0

    @contextmanager
    def open(self) -> Iterator[Sandbox]:
        self.busy += sum(
            box.exec("grep -alz '^90[7]$' /proc/[0-9]*/cmdline").ok for box in self.opened if not box.closed
        )
        with super().open() as sandbox:
            yield sandbox


def test_nothing_of_the_work_runs_while_the_gold_patch_confirms_an_alarm() -> None:
    """It could slow the gold patch down until its tests time out, and so void the alarm."""
    small = Watched(f2(), THREE_UNITTEST, ("test_a", "test_b"), ("test_c",), command=UNITTEST)
    verdict = small.judge(LEAVES_PROCESSES)
    assert_alarm(verdict, small)
    assert (len(small.opened), small.busy) == (3, 0)


@dataclass
class Starved(Small):
    """A task on a machine without time for the first sandboxes.

    Attributes:
        slow: Number of sandboxes whose tests start after their timeout.
    """

    slow: int = 1

    @contextmanager
    def open(self) -> Iterator[Sandbox]:
        with super().open() as sandbox:
            if len(self.opened) <= self.slow:
                sandbox.write_file("slow", b"")
            yield sandbox


def starved(slow: int, **fields: Any) -> Starved:
    command = f"test ! -e slow || sleep 60; {UNITTEST}"
    return Starved(f2(), THREE_UNITTEST, ("test_a", "test_b"), command=command, timeout=8.0, slow=slow, **fields)


@pytest.mark.slow
@pytest.mark.parametrize("work", [pytest.param(f2(), marks=pytest.mark.thorough), HANGS], ids=["right", "hangs"])
def test_no_work_is_judged_on_a_machine_on_which_the_gold_patch_times_out_too(work: str) -> None:
    small = starved(2)
    with pytest.raises(GradingError, match=r"with the gold patch they take \d+\.\d of 8 s now") as error:
        small.judge(work)
    assert (error.value.reason, len(small.opened)) == ("starved", 2)
    assert all(sandbox.closed for sandbox in small.opened)


CUT_OFF = """
import os, time
SESSION = os.getpid()
def f(x=None):
    if os.getpid() != SESSION and os.path.exists("slow"):
        {}
    return x + 1
"""


@pytest.mark.sample(every=4)
@pytest.mark.parametrize("end", ["os._exit(3)", "time.sleep(600)"], ids=["die", "hang"])
@pytest.mark.parametrize(("slow", "runs"), [(1, 2), (2, 4)], ids=["once", "with the gold patch too"])
def test_right_work_whose_twins_were_cut_off_gets_its_reward(end: str, slow: int, runs: int) -> None:
    small = Starved(
        CUT_OFF.format(end), THREE_UNITTEST, ("test_a", "test_b"), command=UNITTEST, timeout=10.0, slow=slow
    )
    verdict = small.judge(small.gold)
    assert_resolved(verdict)
    assert verdict.counter_tests.runs == runs


def test_work_that_always_ends_its_twins_runs_twice_and_is_refused() -> None:
    small = three("unittest")
    work = CUT_OFF.format("os._exit(3)").replace(' and os.path.exists("slow")', "")
    verdict = small.judge(work)
    assert_refused(verdict, small)
    assert verdict.counter_tests.runs == 2


@dataclass
class Staged(Small):
    """A task on a machine that differs from sandbox to sandbox.

    Attributes:
        marks: Number of a sandbox, from 1 -> file that is written into it.
    """

    marks: Mapping[int, str] = field(default_factory=dict)

    @contextmanager
    def open(self) -> Iterator[Sandbox]:
        with super().open() as sandbox:
            if mark := self.marks.get(len(self.opened)):
                sandbox.write_file(mark, b"")
            yield sandbox


DIES_AND_HANGS = """
import os, time
SESSION = os.getpid()
def f(x=None):
    if os.getpid() != SESSION and os.path.exists("die"):
        os._exit(3)
    while os.path.exists("hang"):
        time.sleep(0.1)
    return x + 1
"""


@pytest.mark.slow
@pytest.mark.parametrize("hangs", [(3,), (3, 5)], ids=["once", "always"])
def test_a_repeated_run_that_times_out_gets_another_one(hangs: tuple[int, ...]) -> None:
    """Twins of the first run die, so the work runs again (3). It times out, so gold runs (4), and the work (5)."""
    marks = {1: "die", **dict.fromkeys(hangs, "hang")}
    small = Staged(f2(), THREE_UNITTEST, ("test_a", "test_b"), command=UNITTEST, timeout=10.0, marks=marks)
    verdict = small.judge(DIES_AND_HANGS)
    assert (verdict.resolved, verdict.timed_out) == (hangs == (3,), hangs == (3, 5))
    assert len(small.opened) == 5
    assert not verdict.counter_tests.alarms


@pytest.mark.slow
def test_a_repeated_run_that_times_out_gives_no_verdict_on_a_slow_machine() -> None:
    small = Staged(
        f2(), THREE_UNITTEST, ("test_a", "test_b"), command=f"test ! -e slow || sleep 60; {UNITTEST}", timeout=10.0
    )
    small.marks = {1: "die", 3: "hang", 4: "slow"}
    with pytest.raises(GradingError, match="the hidden tests timed out, and with the gold patch they take") as error:
        small.judge(DIES_AND_HANGS)
    assert (error.value.reason, len(small.opened)) == ("starved", 4)


@pytest.mark.slow
@pytest.mark.parametrize("grader", ["tests", "exit_code"])
def test_right_work_that_timed_out_once_gets_its_reward(grader: str) -> None:
    small = starved(1, grader=grader)
    assert_resolved(small.judge(small.gold))


# --- options --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runner", "command"),
    [
        ("pytest", "python -m pytest --maxfail=1"),
        ("pytest", "python -m pytest -x -q"),
        ("unittest", "python -m unittest -f test_m"),
    ],
)
def test_options_that_stop_at_the_first_failure_are_ignored(runner: str, command: str) -> None:
    small = three(runner, command=command)
    for seed in (b"1", b"2"):
        verdict = small.judge(small.gold, seed=seed)
        assert_resolved(verdict)
        assert verdict.counter_tests.runs == 1


@pytest.mark.slow
def test_parallel_runs_of_pytest_are_one_process() -> None:
    tests = "def test_one_process():\n    import os\n    assert 'PYTEST_XDIST_WORKER' not in os.environ\n"
    small = three(
        command="python -m pytest -p xdist.plugin -n 2",
        tests=pytest_file("assert m.f(1) == 2", "assert m.f(2) == 3", "pass") + "\n\n" + tests,
    )
    verdict = small.judge(small.gold)
    assert_resolved(verdict)
    assert verdict.counter_tests.unforkable == ()


def test_seed_reproduces_the_changes() -> None:
    small = three("unittest")
    shows = "print(open('test_m.py').read())\n" + small.gold
    verdicts = [small.judge(shows, seed=seed) for seed in (b"1", b"1", b"2")]
    for verdict in verdicts:
        assert_resolved(verdict)
    first, again, other = (verdict.log.partition("\n...")[0] for verdict in verdicts)
    assert "class T" in first
    assert first == again != other
    assert not any(THREE_UNITTEST in verdict.log for verdict in verdicts), "files hold a changed text"


@pytest.mark.slow
def test_more_second_runs_toss_the_coin_again() -> None:
    tests = "import m\n\ndef test_a():\n    def inner():\n        assert m.f(1) == 2\n    inner()\n"
    small = Small(f2(), tests, ("test_a",))
    verdict = small.judge(small.gold, options=CounterOptions(runs=4, unforkable=[small.name("test_a")]))
    assert_resolved(verdict)
    assert 4 <= verdict.counter_tests.runs == len(small.opened) <= 7


@pytest.mark.slow
def test_scope_all_changes_all_tests_that_must_keep_passing() -> None:
    bodies = ["self.assertEqual(m.f(1), 2)", *["self.assertEqual(m.f.__name__, 'f')"] * 7]
    keeping = tuple(f"test_{name}" for name in "bcdefgh")
    small = Small(f2(), unittest_file(*bodies), ("test_a",), keeping, UNITTEST)
    few = small.judge(small.gold)
    many = small.judge(small.gold, options=CounterOptions("all"))
    assert_resolved(few)
    assert_resolved(many)
    assert [len(verdict.counter_tests.kinds) for verdict in (few, many)] == [1, 1]
    assert [len(verdict.counter_tests.kept) for verdict in (few, many)] == [3, 7]


judged: list[str] = []


def plain_grader(task: Task, sandbox: Sandbox) -> Verdict:
    judged.append(sandbox.read_file("test_m.py").decode())
    resolved = sandbox.exec(["python", "-c", "import m; assert m.f(1) == 2"]).ok
    return Verdict(resolved=resolved, fail_to_pass=dict.fromkeys(task.oracle.fail_to_pass, PASSED), pass_to_pass={})


def test_a_grader_of_the_users_own_judges_once() -> None:
    small = three(grader=f"{__name__}:plain_grader")
    judged.clear()
    verdict = small.judge(small.gold)
    assert (verdict.resolved, verdict.counter_tests.runs, len(small.opened)) == (True, 0, 1)
    assert judged == [small.tests]


@pytest.mark.slow
def test_work_that_hangs_has_the_timeout_as_its_reason() -> None:
    verdict = three("unittest", timeout=8.0).judge(HANGS, complete=False)
    assert verdict.reason.startswith("the hidden tests ran into their timeout of")
    assert not verdict.partial


@pytest.mark.slow
def test_file_times_do_not_tell_changed_tests_apart() -> None:
    """Product code that forces a pass if its own file is newer than the test file."""
    cheat = (
        "import os, sys\n\n\ndef f(x=None):\n    code = sys._getframe(1).f_code\n"
        "    if os.stat(code.co_filename).st_ctime_ns < os.stat(__file__).st_ctime_ns:\n"
        "        class Equal:\n            __eq__ = lambda self, other: True\n        return Equal()\n"
    )
    small = three("pytest")
    assert not any(small.judge(cheat, seed=bytes([seed])).resolved for seed in range(1, 4))


def test_partial_rewards_are_proven_too() -> None:
    tests = "import m, pytest\n\n@pytest.mark.parametrize('x', range(4))\ndef test_a(x):\n    assert m.f(x) == 7\n"
    cheat = (
        "class Equal:\n    def __eq__(self, other):\n        return True\n\n\n"
        "def f(x=None):\n    return Equal() if x else None\n"
    )
    small = Small("def f(x=None):\n    return 7\n", tests, tuple(f"test_a[{x}]" for x in range(4)))
    verdict = small.judge(cheat)
    assert (verdict.reason, set(verdict.fail_to_pass.values())) == (ALARM, {MISSING})


def test_a_test_that_calls_the_one_it_overrides_is_changed_with_it() -> None:
    tests = (
        "import unittest\nimport m\n\n\nclass A(unittest.TestCase):\n    def test_a(self):\n"
        "        self.assertEqual(m.f(1), 2)\n\n\nclass B(A):\n    def test_a(self):\n"
        "        super().test_a()\n        self.assertEqual(m.f(2), 3)\n"
    )
    right = "def f(x=None):\n    return 1 + x\n"
    small = Small(right, tests, ("A::test_a", "B::test_a"))
    verdict = small.judge(right, complete=False)
    assert_resolved(verdict)
    assert (set(verdict.counter_tests.kinds), verdict.counter_tests.runs) == (small.names, 1)
    assert not small.judge(right.replace("1 + x", "2 if x == 1 else None")).resolved
    assert_alarm(small.judge(ALWAYS_EQUAL), small)
