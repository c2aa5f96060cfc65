"""Twins: what they cannot play is told and proven otherwise, and no work talks its way through them."""

import json

import pytest
from small_tasks import (
    OLD,
    RUNNERS,
    Small,
    assert_alarm,
    assert_refused,
    assert_resolved,
    f2,
    in_turn,
    pytest_file,
    three,
    unittest_file,
)
from test_grade import signed

from swe_gym.grading.reporter import SignedReport, TwinGroup, TwinOrder, read_report
from swe_gym.types import TestStatus

pytestmark = pytest.mark.sample(every=3)

KEY = b"key"
PASSED = TestStatus.PASSED
EVERYWHERE = """
import os, sys

def fds():
    return [fd for fd in range(3, 64) if os.path.exists("/proc/self/fd/%d" % fd)]

def pipes():
    return [fd for fd in fds() if os.readlink("/proc/self/fd/%d" % fd).startswith("pipe:")]

def write(*messages):
    import json
    for fd in pipes():
        os.set_blocking(fd, False)
        for message in messages:
            data = message if isinstance(message, bytes) else json.dumps(message).encode()
            try:
                os.write(fd, data if isinstance(message, bytes) else b"%08x" % len(data) + data)
            except OSError:
                pass

"""
PASSES = {"ends": {f"test_m.py::test_{name}": "passed" for name in "abc"}, "error": ""}


# --- what twins cannot play -------------------------------------------------------------------------------------------

UNLIKE_THE_FILE = """
import m

def made():
    names = {"m": m}
    exec(compile("def test_a():\\n    x = m.f(1)\\n    assert x == 2\\n", __file__, "exec"), names)
    return names["test_a"]

def test_a():
    assert m.f(1) == 2

locals()["test_a"] = made()
"""
CLOSURE = """
import m

def make():
    want = 2
    def test_a():
        assert m.f(1) == 2 and want == 2
    return test_a

test_a = make()
"""
LAMBDA = """
import m

def test_a():
    check = lambda value: m.f(value)
    assert check(1) == 2
    assert [check(x) for x in (1, 2)] == [2, 3]
"""
DEFAULTS = """
import m, functools, pytest

def wraps_nothing(function):
    def run():
        return function()
    return run

def test_b():
    assert m.f(2) == 3

@wraps_nothing
def test_a():
    assert m.f(1) == 2

@functools.cache
def test_c():
    assert m.f(3) == 4
"""
CELL = """
import unittest, m

class Base(unittest.TestCase):
    def setUp(self):
        self.ready = 2

class T(Base):
    def setUp(self):
        super().setUp()

    def test_a(self):
        __class__
        self.assertEqual(m.f(1), self.ready)
        self.assertEqual(m.f(2), 3)
"""


@pytest.mark.parametrize(
    ("tests", "names", "forks"),
    [
        (LAMBDA, ("test_a",), True),
        (DEFAULTS, ("test_a", "test_b", "test_c"), None),
        (CELL, ("T::test_a",), True),
        (CLOSURE, ("test_a",), False),
        (UNLIKE_THE_FILE, ("test_a",), None),
    ],
    ids=["lambda", "decorators", "cell", "closure", "exec"],
)
def test_right_work_is_resolved_however_its_tests_are_made(
    tests: str, names: tuple[str, ...], forks: bool | None
) -> None:
    small = Small(f2(), tests, names)
    verdict = small.judge(f2("1 + x"))
    assert_resolved(verdict)
    found = verdict.counter_tests
    if forks is not None:
        assert (set(found.unforkable) == set()) is forks
        assert (found.runs == 1) is forks
    assert not small.judge(f2("x")).resolved


@pytest.mark.slow
def test_a_function_that_cannot_be_swapped_is_proven_by_a_second_run() -> None:
    tests = """
import types, m

def test_a():
    assert m.f(1) == 2

kept = 3
def outer():
    inner = 2
    def test_a():
        assert m.f(1) == 2 and inner == 2
    return test_a

test_a.__code__ = outer().__code__.replace(co_freevars=()) if False else test_a.__code__
globals()["test_a"] = types.FunctionType(
    compile("def test_b(): assert m.f(1) == 2", __file__, "exec").co_consts[0], globals(), "test_a"
)
"""
    small = Small(f2(), tests, ("test_a",))
    verdict = small.judge(small.gold)
    assert_resolved(verdict)
    assert verdict.counter_tests.unforkable == (small.name("test_a"),)
    assert verdict.counter_tests.runs >= 2


# --- twins that end badly ------------------------------------------------------------------------------------------

IN_TWINS = """
import os, signal, sys, time

PID = os.getpid()

def f(x=None):
    if os.getpid() != PID:
        {}
    return x + 1
"""
ENDS = {
    "hangs": "time.sleep(600)",
    "exits": "os._exit(0)",
    "dies": "os.kill(os.getpid(), signal.SIGKILL)",
    "stops": "os.kill(os.getpid(), signal.SIGSTOP)",
    "floods": "[os.write(1, b'x' * 65536) for _ in range(2000)]; raise ValueError",
    "recurses": "(lambda g: g(g))(lambda g: g(g))",
    "interrupts": "raise KeyboardInterrupt",
    "leaves": "sys.exit(0)",
    "forks": "os.fork(); raise ValueError",
    "kills its group": "os.killpg(0, signal.SIGKILL)",
    "closes": "os.closerange(3, 256)",
    "another group": "os.setsid(); time.sleep(600)",
}


@pytest.mark.slow
@pytest.mark.parametrize(("runner", "action"), in_turn(RUNNERS, ENDS))
def test_work_that_ends_its_twins_earns_nothing(runner: str, action: str) -> None:
    small = three(runner, timeout=12.0)
    verdict = small.judge(IN_TWINS.format(action))
    assert_refused(verdict, small)


@pytest.mark.slow
@pytest.mark.parametrize("action", ["os._exit(0)", "raise ValueError"])
@pytest.mark.parametrize("runner", RUNNERS)
def test_tests_that_end_their_twins_with_the_gold_patch_too_are_proven_by_a_second_run(
    runner: str, action: str
) -> None:
    small = three(runner)
    small.gold = IN_TWINS.format(action)
    verdict = small.judge(small.gold)
    assert_resolved(verdict)
    assert verdict.counter_tests.unforkable
    assert verdict.counter_tests.runs >= 3


# --- work that talks to the keeper ------------------------------------------------------------------------------------

TALK = {
    "nonsense": "write(b'\\x00' * 500, b'zzzzzzzz', b'0000000g{}', b'00000005hello')",
    "endless message": "write(b'ffffffff{', b'7fffffff' + b'x' * 4096)",
    "wrong types": "write([], 3, 'x', None, {'event': 3}, {'event': {}}, {'played': 'a'}, {'text': 99}, {'begin': -9},"
    " {'settle': []}, {'event': {'event': 'test'}}, {'event': {'event': 'group', 'id': 3, 'status': 'x'}})",
    "event of a twin": "write({'event': {'event': 'twin', 'group': 0, 'text': 0, 'ends': {}, 'error': ''}})",
    "events": "write({'event': {'event': 'unsettled', 'group': 77, 'error': 'x'}},"
    " {'event': {'event': 'unsettled', 'group': -99, 'error': 'x'}},"
    " {'event': {'event': 'end', 'exit_code': float('inf')}},"
    " {'event': {'event': 'unsettled', 'group': 'a', 'error': 'x'}},"
    " {'event': {'event': 'end', 'exit_code': 'x'}}, {'event': {'event': 'test', 'id': [], 'status': []}})",
    "answers": f"write(*[dict({PASSES!r}, played=group) for group in range(4) for _ in range(9)])",
    "asks": "write(*[{'text': group, 'nonce': 'n'} for group in range(4) for _ in range(9)])",
    "bad answers": "write(*[{'played': group, 'ends': ends, 'error': ''} for group in (0, 1, 'x', -1, 99)"
    " for ends in (3, None, [], {'a': 3}, {3: 'a'}, 'x')])",
    "closes pipes": "[os.close(fd) for fd in pipes()]",
    "drains": "[(os.set_blocking(fd, False), os.read(fd, 4096)) for fd in pipes() if fd % 2]",
    "ends early": "write({'event': {'event': 'end', 'exit_code': 0}}); os._exit(0)",
}


def doing(action: str, where: str) -> str:
    """A module that does something when it is imported, or at each call of its function."""
    line = f"try:\n        {action}\n    except (OSError, ValueError): pass\n"
    if where == "import":
        return f"if 1:\n    {line}\ndef f(x=None): return None\n"
    return f"def f(x=None):\n    {line}    return None\n"


@pytest.mark.parametrize(("where", "talk"), in_turn(["import", "call"], TALK))
def test_work_that_talks_to_the_keeper_earns_nothing(talk: str, where: str) -> None:
    work = EVERYWHERE + doing(talk, where)
    small = three(timeout=12.0)
    assert_refused(small.judge(work), small)


ANSWERS_FOR_ITS_TWINS = (
    EVERYWHERE
    + """
import json

PASSES = {passes!r}

class Yes:
    def __eq__(self, other): return True
    __hash__ = None

def f(x=None):
    data = json.dumps({answer}).encode()
    for fd in pipes():
        try:
            os.write(fd, b"%08x" % len(data) + data)
        except OSError:
            pass
    {then}
    return Yes()
"""
)


ANSWERS = {
    "passes": "PASSES",
    "of the first": "dict(PASSES, played=0)",
    "of the second": "dict(PASSES, played=1)",
    "no ends": "{'ends': {}, 'error': ''}",
    "number": "3",
}


@pytest.mark.parametrize(
    ("then", "answer"), in_turn(["pass", "os._exit(0)", "os._exit(0) if os.getpid() % 2 else None"], ANSWERS)
)
def test_work_that_answers_for_its_twins_earns_nothing(answer: str, then: str) -> None:
    work = ANSWERS_FOR_ITS_TWINS.replace("{passes!r}", repr(PASSES))
    work = work.replace("{answer}", answer).replace("{then}", then)
    small = three(timeout=12.0)
    assert_refused(small.judge(work), small)


OF_THE_KEEPER = {
    "kills the keeper": "os.kill(os.getppid(), signal.SIGKILL)",
    "stops the keeper": "os.kill(os.getppid(), signal.SIGSTOP)",
    "terminates the keeper": "os.kill(os.getppid(), signal.SIGTERM)",
    "continues it": "os.kill(os.getppid(), signal.SIGSTOP); os.kill(os.getppid(), signal.SIGCONT)",
    "reads its memory": "open('/proc/%d/mem' % os.getppid(), 'rb').read(10)",
    "reads its environment": "open('/proc/%d/environ' % os.getppid(), 'rb').read()",
    "opens its files": "[open('/proc/%d/fd/%d' % (os.getppid(), fd)) for fd in range(9)]",
}


@pytest.mark.parametrize(("where", "action"), in_turn(["import", "call"], OF_THE_KEEPER))
def test_work_that_acts_on_the_keeper_earns_nothing(action: str, where: str) -> None:
    work = "import os, signal\n" + doing(action, where)
    small = three(timeout=12.0)
    assert_refused(small.judge(work), small)


# --- reading what the keeper signed -----------------------------------------------------------------------------------

NONSENSE: list[object] = [
    {},
    [],
    3,
    None,
    "x",
    {"event": None},
    {"event": ["test"]},
    {"event": "test"},
    {"event": "test", "id": "a"},
    {"event": "test", "id": "a", "status": "splendid"},
    {"event": "test", "id": "a", "status": {}},
    {"event": "group", "id": [], "status": []},
    {"event": "twin"},
    {"event": "twin", "group": "x", "text": 0, "ends": {}, "error": ""},
    {"event": "twin", "group": 0, "text": None, "ends": {}, "error": ""},
    {"event": "twin", "group": 0, "text": 0, "ends": {"a": "splendid"}, "error": ""},
    {"event": "twin", "group": 0, "text": 0, "ends": [], "error": ""},
    {"event": "twin", "group": 0, "text": 0, "ends": {}, "error": 3},
    {"event": "unsettled", "group": "x", "error": ""},
    {"event": "unsettled", "group": [], "error": ""},
    {"event": "unsettled"},
    {"event": "end"},
    {"event": "end", "exit_code": "zero"},
    {"event": "end", "exit_code": None},
    {"event": "end", "exit_code": 1e400},
    {"event": "unknown"},
]


@pytest.mark.parametrize("event", NONSENSE, ids=[json.dumps(event)[:60] for event in NONSENSE])
def test_nonsense_that_the_keeper_signed_is_ignored(event: object) -> None:
    data = signed(KEY, {"event": "test", "id": "a", "status": "passed"}, event, {"event": "started"})  # type: ignore[arg-type]
    assert read_report(data, KEY) == SignedReport(started=True, tests={"a": (PASSED,)})


def test_twins_are_read_by_group_and_text() -> None:
    ends = {"a": "passed", "b": "failed"}
    twin = {"event": "twin", "group": 1, "text": 2, "ends": ends, "error": ""}
    report = read_report(signed(KEY, twin, {"event": "unsettled", "group": 0, "error": "why"}), KEY)
    group = TwinGroup(places=(), required=("a", "c"), texts=(), plain=(), passing=(0,))
    played = report.played(SignedReport.statuses, TwinOrder(groups=(group, group)))
    assert played[1][2].statuses == {"a": PASSED, "b": TestStatus.FAILED, "c": TestStatus.MISSING}
    assert report.unsettled == {0: "why"}


def test_the_order_tells_the_session_no_text_and_no_key() -> None:
    group = TwinGroup(
        places=(("t.py", ("test",)),),
        required=("id",),
        texts=(("changed",), ("plain",)),
        plain=("plain",),
        passing=(1,),
    )
    text = TwinOrder(groups=(group,)).text(key=KEY, report="/r", workdir="/w", deadline=1.0)
    order = json.loads(text)
    assert (order["groups"][0]["plain"], order["groups"][0]["passing"]) == (["plain"], [1])
    known = json.dumps(order["known"])
    assert not any(secret in known for secret in ("changed", "plain", KEY.hex(), "passing", "/r", "id"))


# --- what a twin leaves ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runner", RUNNERS)
def test_what_a_twin_leaves_in_the_current_folder_is_gone_before_the_next(runner: str) -> None:
    made = "os.mkdir(f'made-{x}')\n    open(f'made-{x}/file', 'w').close()"
    gold = f"import os\n\n\ndef f(x=None):\n    {made}\n    return x + 1\n"
    small = three(runner)
    small.gold, small.old = gold, OLD
    verdict = small.judge(gold)
    assert_resolved(verdict)
    assert verdict.counter_tests.runs == 1


@pytest.mark.slow
def test_tests_that_call_others_play_their_twins_first() -> None:
    tests = pytest_file("assert m.f(1) == 2", "test_a()\n    assert m.f(2) == 3")
    small = Small(f2(), tests, ("test_b", "test_a"))
    verdict = small.judge(small.gold)
    assert_resolved(verdict)
    assert verdict.counter_tests.unforkable == ()
    always = "class Yes:\n    def __eq__(self, other): return True\ndef f(x=None): return Yes()\n"
    assert_alarm(small.judge(always), small)


def test_unittest_methods_that_call_others_play_their_twins_first() -> None:
    bodies = ("self.assertEqual(m.f(1), 2)", "self.test_a()\n        self.assertEqual(m.f(2), 3)")
    small = Small(f2(), unittest_file(*bodies), ("test_a", "test_b"), command="python -m unittest test_m")
    verdict = small.judge(small.gold)
    assert_resolved(verdict)
    assert verdict.counter_tests.unforkable == ()


# --- tests of several classes ---------------------------------------------------------------------------------------

CLASSES = """
import os, shutil, tempfile, unittest, m

STATE = []

class Base:
    @classmethod
    def setUpClass(cls):
        {up}

    @classmethod
    def tearDownClass(cls):
        {down}

    def test_0(self):
        {check}

    def test_a(self):
        self.assertEqual(m.f(1), 2)
        self.assertEqual(m.f(2), 3)
        {check}

    def test_b(self):
        {check}

class T(Base, unittest.TestCase):
    pass

class U(Base, unittest.TestCase):
    pass
"""
FIXTURES = {
    "setting": ("STATE.append(cls)", "STATE.remove(cls)", "self.assertEqual(STATE, [type(self)])"),
    "folder": (
        "cls.folder = tempfile.mkdtemp()",
        "shutil.rmtree(cls.folder)",
        "self.assertTrue(os.path.isdir(self.folder))",
    ),
}


@pytest.mark.parametrize("fixture", FIXTURES)
@pytest.mark.parametrize("runner", RUNNERS)
def test_a_function_of_several_classes_is_played_with_the_fixtures_of_each(runner: str, fixture: str) -> None:
    up, down, check = FIXTURES[fixture]
    tests = CLASSES.format(up=up, down=down, check=check)
    keeping = [f"{cls}::test_{name}" for cls in "TU" for name in "0b"]
    small = Small(f2(), tests, ("T::test_a", "U::test_a"), tuple(keeping), command=RUNNERS[runner][0])
    verdict = small.judge(small.gold)
    assert_resolved(verdict)
    assert verdict.counter_tests.unforkable == ()
    assert verdict.counter_tests.runs == 1


PARAMETERS = """
import os, shutil, tempfile, pytest, m

@pytest.fixture(scope="module", params=[1, 2])
def folder(request):
    made = tempfile.mkdtemp()
    yield made
    shutil.rmtree(made)

def test_0(folder):
    assert os.path.isdir(folder)

def test_a(folder):
    assert m.f(1) == 2
    assert m.f(2) == 3
    assert os.path.isdir(folder)

def test_b(folder):
    assert os.path.isdir(folder)
"""


@pytest.mark.slow
def test_a_function_with_parameters_of_a_module_is_played_with_fixtures_of_its_own() -> None:
    starting = ("test_a[1]", "test_a[2]")
    small = Small(f2(), PARAMETERS, starting, tuple(f"test_{name}[{number}]" for name in "0b" for number in (1, 2)))
    verdict = small.judge(small.gold)
    assert_resolved(verdict)
    assert verdict.counter_tests.unforkable == ()
    assert verdict.counter_tests.runs == 1
