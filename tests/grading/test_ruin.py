"""Work that loops, floods, forks, exits, kills, stops or fills gets a verdict without a reward, and never an error."""

import pytest
from _pytest.mark import ParameterSet
from small_tasks import RUNNERS, Small, assert_refused, three

from swe_gym.errors import GradingError
from swe_gym.types import Verdict

TIMEOUT = 8.0

HEAD = """
import atexit, gc, os, resource, signal, subprocess, sys, tempfile, threading, time

def others():
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in (1, os.getpid())]

def each(action):
    for pid in others():
        try:
            action(pid)
        except OSError:
            pass

def bomb():
    for _ in range(60):
        if not os.fork():
            time.sleep(20)
            os._exit(0)

def fill():
    with tempfile.TemporaryFile() as file:
        for _ in range(64):
            file.write(b"x" * (1 << 20))
    for number in range(300):
        open(os.path.join(tempfile.gettempdir(), "fill-%d" % number), "w").write("x" * 1000)

def reports():
    for folder, _, names in os.walk(tempfile.gettempdir()):
        for name in names:
            if name in ("report", "order"):
                yield os.path.join(folder, name)

def endless():
    return endless() + endless()

def catch():
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass

"""

QUICK = {
    "exits": "os._exit(0)",
    "exits with 1": "os._exit(1)",
    "exits by SystemExit": "raise SystemExit(0)",
    "interrupts": "raise KeyboardInterrupt",
    "exits from a thread": "threading.Thread(target=os._exit, args=(0,)).start(); time.sleep(0.5)",
    "exits at exit": "atexit.register(os._exit, 0)",
    "raises at exit": "atexit.register(lambda: 1 / 0)",
    "recurses": "endless()",
    "breaks recursion": "sys.setrecursionlimit(60)",
    "floods": "[os.write(1, b'x' * 65536) for _ in range(1000)]",
    "floods both": "[(os.write(1, b'\\xff' * 65536), os.write(2, b'\\0' * 65536)) for _ in range(200)]",
    "floods by print": "print('x' * (1 << 24), flush=True)",
    "kills itself": "os.kill(os.getpid(), signal.SIGKILL)",
    "aborts": "os.abort()",
    "kills its parent": "os.kill(os.getppid(), signal.SIGKILL)",
    "kills its group": "os.killpg(0, signal.SIGKILL)",
    "kills all by a scan": "each(lambda pid: os.kill(pid, signal.SIGKILL))",
    "kills all": "os.kill(-1, signal.SIGKILL)",
    "terminates all": "each(lambda pid: os.kill(pid, signal.SIGTERM))",
    "eats memory": "data = bytearray(300 << 20); del data",
    "has no more memory": "resource.setrlimit(resource.RLIMIT_AS, (1 << 27, 1 << 27)); bytearray(1 << 28)",
    "may open no files": "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3)); open('x')",
    "may write no files": "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))",
    "has no more time": "resource.setrlimit(resource.RLIMIT_CPU, (1, 1))",
    "closes all files": "os.closerange(0, 1024)",
    "closes its output": "os.close(1); os.close(2)",
    "fills the disk": "fill()",
    "deletes the report": "[os.unlink(path) for path in reports()]",
    "writes into the report": "[open(path, 'ab').write(b'x' * 200 + b'\\n') for path in reports()]",
    "makes the report a folder": "[(os.unlink(path), os.mkdir(path)) for path in reports()]",
    "makes the report endless": "[(os.unlink(path), os.symlink('/dev/zero', path)) for path in reports()]",
    "makes the report a pipe": "[(os.unlink(path), os.mkfifo(path)) for path in reports()]",
    "deletes the tests": "[os.unlink(name) for name in os.listdir('.') if name.startswith('test')]",
    "removes the current folder": "import shutil; shutil.rmtree(os.getcwd(), ignore_errors=True)",
    "leaves processes": "[subprocess.Popen(['sleep', '30'], start_new_session=True) for _ in range(5)]",
    "leaves threads": "[threading.Thread(target=time.sleep, args=(30,), daemon=True).start() for _ in range(20)]",
    "forks and goes on": "os.fork()",
    "bombs": "bomb()",
    "runs another program": "os.execv('/bin/true', ['true'])",
    "runs the tests again": "os.execv(sys.executable, [sys.executable, '-m', 'pytest'])",
    "breaks json": "import json; json.dumps = json.loads = None",
    "breaks os": "os.fork = os.pipe = os.read = os.waitpid = None",
    "breaks select": "import select; select.select = None",
    "breaks gc": "gc.get_objects = lambda *_: 1 / 0",
    "ignores its children": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
}
SLOW = {
    "loops": "while True: pass",
    "waits": "time.sleep(600)",
    "waits whatever happens": "catch()",
    "waits for a thread": "threading.Thread(target=time.sleep, args=(600,)).start()",
    "waits at exit": "atexit.register(time.sleep, 600)",
    "floods without end": "while True: os.write(1, b'x' * 65536)",
    "stops itself": "os.kill(os.getpid(), signal.SIGSTOP)",
    "stops its parent": "os.kill(os.getppid(), signal.SIGSTOP)",
    "stops all": "each(lambda pid: os.kill(pid, signal.SIGSTOP))",
    "deadlocks": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "bombs and waits": "bomb(); time.sleep(600)",
}


def at_import(action: str) -> str:
    return f"{HEAD}\n{action}\n\n\ndef f(x=None):\n    return None\n"


def in_function(action: str) -> str:
    return f"{HEAD}\n\ndef f(x=None):\n    {action}\n    return None\n"


def in_right_function(action: str) -> str:
    """It gives the right values after it did its harm, but only in forks."""
    fork = f"PID = os.getpid()\n\n\ndef f(x=None):\n    if os.getpid() != PID:\n        {action}\n        return None\n"
    return f"{HEAD}\n{fork}    return x + 1\n"


PLACES = {"import": at_import, "function": in_function, "twin": in_right_function}
WAYS = [(runner, place) for place in PLACES for runner in RUNNERS]


RELATED = {
    *("exits with 1", "interrupts", "raises at exit", "breaks recursion", "floods both", "floods by print", "aborts"),
    *("kills its parent", "kills all by a scan", "terminates all", "may write no files", "closes its output"),
    *("deletes the report", "makes the report endless", "deletes the tests", "leaves threads", "breaks os"),
    *("runs another program", "breaks select", "waits for a thread", "stops its parent", "bombs and waits"),
}
"""Actions that end as another one of the table does. They are for a thorough run."""


def works(actions: dict[str, str]) -> list[ParameterSet]:
    """Return each action in each way; all ways but one, in turn, are for a thorough run."""
    assert {*QUICK, *SLOW} >= RELATED
    found = []
    for number, (name, action) in enumerate(actions.items()):
        for way, (runner, place) in enumerate(WAYS):
            always = way == number % len(WAYS) and name not in RELATED
            marks = [pytest.mark.slow] * (number % 8 > 0) + [pytest.mark.thorough] * (not always)
            found.append(pytest.param(PLACES[place](action), runner, marks=marks, id=f"{name}-{place}-{runner}"))
    return found


def refuse(work: str, runner: str) -> None:
    small = three(runner, timeout=TIMEOUT)
    verdict = judge_with_patience(small, work)
    assert_refused(verdict, small)
    assert not verdict.counter_tests.unforkable


def judge_with_patience(small: Small, work: str) -> Verdict:
    """Judge again if the machine is so busy that right work would time out too, as a rollout does."""
    for _ in range(3):
        try:
            return small.judge(work)
        except GradingError as error:
            if error.reason != "starved":
                raise
    return small.judge(work)


@pytest.mark.parametrize(("work", "runner"), works(QUICK))
def test_work_that_ruins_its_run_earns_nothing(work: str, runner: str) -> None:
    refuse(work, runner)


@pytest.mark.slow
@pytest.mark.parametrize(("work", "runner"), works(SLOW))
def test_work_that_never_ends_earns_nothing(work: str, runner: str) -> None:
    refuse(work, runner)
