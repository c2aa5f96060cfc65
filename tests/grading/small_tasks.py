"""Tasks of one module and one test file, and their verdicts. Several tests of grading judge work on them."""

import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from swe_gym.grading import CounterOptions, grade
from swe_gym.grading.diff import file_diff
from swe_gym.grading.judge import ALARM
from swe_gym.grading.patch import REGULAR, FileChange, Patch
from swe_gym.sandboxes import Sandbox, SandboxSpec, open_sandbox
from swe_gym.types import FilesWorkspace, Oracle, Task, TestStatus, Verdict

OLD = "def f(x=None):\n    return None\n"
PASSED, MISSING = TestStatus.PASSED, TestStatus.MISSING


@dataclass
class Small:
    """A task of one module and one test file.

    Attributes:
        gold: The module as the gold patch leaves it.
        tests: The test file.
        starting: Names of the tests that must start passing.
        keeping: Names of the tests that must keep passing.
        command: The test command.
        old: The module before.
        timeout: Seconds that one run may take.
        grader: Name of the grader.
        has_gold: Whether the task has a gold patch.
        known: Whether a record says that no assertion passes without work.
        more: Further hidden files: path -> text.
        opened: The sandboxes opened so far.
    """

    gold: str
    tests: str
    starting: tuple[str, ...]
    keeping: tuple[str, ...] = ()
    command: str = "python -m pytest"
    old: str = OLD
    timeout: float = 30.0
    grader: str = "tests"
    has_gold: bool = True
    known: bool = True
    more: Mapping[str, str] = field(default_factory=dict)
    opened: list[Sandbox] = field(default_factory=list)

    @property
    def task(self) -> Task:
        gold = file_diff("m.py", self.old.encode(), self.gold.encode(), REGULAR, REGULAR)
        return Task(
            task_id="small",
            problem_statement="f returns nothing",
            workspace=FilesWorkspace(files={"m.py": self.old}),
            env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"},
            oracle=Oracle(
                gold_patch=gold if self.has_gold else "",
                test_files={"test_m.py": self.tests, **self.more},
                test_cmd=self.command,
                fail_to_pass=tuple(map(self.name, self.starting)),
                pass_to_pass=tuple(map(self.name, self.keeping)),
                timeout=self.timeout,
                grader=self.grader,
            ),
        )

    def name(self, test: str) -> str:
        if "unittest" not in self.command:
            return f"test_m.py::{test}"
        return f"test_m.{test.replace('::', '.') if '::' in test else f'T.{test}'}"

    @property
    def names(self) -> set[str]:
        return set(map(self.name, (*self.starting, *self.keeping)))

    @contextmanager
    def open(self) -> Iterator[Sandbox]:
        task = self.task
        spec = SandboxSpec(workspace=task.workspace, env=task.env, options={"python_prefix": sys.prefix})
        with open_sandbox(spec) as sandbox:
            self.opened.append(sandbox)
            yield sandbox

    def judge(
        self, new: str, *, complete: bool = True, seed: bytes | None = b"1", options: CounterOptions | None = None
    ) -> Verdict:
        """The verdict on work that leaves the module with this content."""
        change = FileChange(path="m.py", old=self.old.encode(), new=new.encode(), old_mode=REGULAR, new_mode=REGULAR)
        counter = options or CounterOptions(seed=seed)
        if self.known:
            counter = replace(counter, passing={**dict.fromkeys(self.names, ()), **counter.passing})
        with self.open() as fresh:
            return grade(self.task, Patch(changes=(change,)), fresh, self.open, complete=complete, counter=counter)


def f2(gold: str = "x + 1") -> str:
    return f"def f(x=None):\n    return {gold}\n"


def pytest_file(*bodies: str) -> str:
    names = "abcdefgh"
    tests = "\n\n".join(f"def test_{name}():\n    {body}\n" for name, body in zip(names, bodies, strict=False))
    return f"import pytest\n\nimport m\n\n\n{tests}"


def unittest_file(*bodies: str) -> str:
    tests = "\n".join(
        f"    def test_{name}(self):\n        {body}\n" for name, body in zip("abcdefgh", bodies, strict=False)
    )
    return f"import unittest\n\nimport m\n\n\nclass T(unittest.TestCase):\n{tests}"


THREE = pytest_file("assert m.f(1) == 2", "assert m.f(2) == 3", "assert m.f.__name__ == 'f'")
UNITTEST = "python -m unittest test_m"
THREE_UNITTEST = unittest_file(
    "self.assertEqual(m.f(1), 2)", "self.assertEqual(m.f(2), 3)", "self.assertEqual(m.f.__name__, 'f')"
)
RUNNERS = {"pytest": ("python -m pytest", THREE), "unittest": (UNITTEST, THREE_UNITTEST)}


def three(runner: str = "pytest", **fields: Any) -> Small:
    """A task of two tests that must start passing and one that must keep passing."""
    command, tests = RUNNERS[runner]
    given: dict[str, Any] = {"command": command, "tests": tests, **fields}
    return Small(f2(), starting=("test_a", "test_b"), keeping=("test_c",), **given)


def in_turn(ways: Collection[str], works: Mapping[str, str]) -> list[ParameterSet]:
    """Parameters: each way with each work. All ways of a work but one, in turn, are thorough; most works are slow."""
    found = []
    for number, (name, work) in enumerate(works.items()):
        for at, way in enumerate(ways):
            marks = [pytest.mark.slow] * (number % 4 > 0) + [pytest.mark.thorough] * (at != number % len(ways))
            found.append(pytest.param(way, work, marks=marks, id=f"{name}-{way}"))
    return found


def assert_resolved(verdict: Verdict) -> None:
    assert verdict.resolved, (verdict.reason, verdict.counter_tests, verdict.log)
    assert (verdict.reason, verdict.counter_tests.alarms, verdict.partial) == ("", {}, False)
    assert {*verdict.fail_to_pass.values(), *verdict.pass_to_pass.values()} <= {PASSED}


def assert_refused(verdict: Verdict, small: Small) -> None:
    """The work gets no reward, and the reason names no test."""
    assert not verdict.resolved, verdict.counter_tests
    assert verdict.reason
    assert not any(name in verdict.reason for name in (*small.names, *small.starting, *small.keeping))


def assert_alarm(verdict: Verdict, small: Small) -> None:
    assert_refused(verdict, small)
    assert verdict.reason == ALARM, (verdict.counter_tests, verdict.log)
    assert set(verdict.fail_to_pass.values()) == {MISSING}
    assert set(verdict.pass_to_pass.values()) <= {MISSING}
    assert set(verdict.fail_to_pass) == set(map(small.name, small.starting))
    assert set() < set(verdict.counter_tests.alarms) <= small.names
