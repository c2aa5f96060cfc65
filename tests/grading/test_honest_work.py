"""Right work earns its reward, whatever the shape of its tests."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from honest_cases import HONEST, Honest

from swe_gym.grading import CounterOptions, grade
from swe_gym.sandboxes import Sandbox, SandboxSpec, open_sandbox
from swe_gym.types import Task, Verdict


def judge(honest: Honest, seed: bytes) -> Verdict:
    task: Task = honest.task
    spec = SandboxSpec(workspace=task.workspace, env=task.env, options={"python_prefix": sys.prefix})

    @contextmanager
    def open_fresh() -> Iterator[Sandbox]:
        with open_sandbox(spec) as sandbox:
            yield sandbox

    with open_fresh() as fresh:
        known = task.oracle.fail_to_pass if honest.recorded else ()
        return grade(task, honest.patch, fresh, open_fresh, counter=CounterOptions(seed=seed, unforkable=known))


RELATED = {
    *("data file", "binary data", "wildcard import", "metaclass and slots", "dataclass and enum", "generators"),
    *("custom exceptions", "warnings", "logging", "seeded random numbers", "weak references and garbage"),
    *("thread pool of the product", "environment variables", "class inheritance", "capture", "super in unittest"),
    *("fixtures of module, class and session", "setup and teardown of nose's kind", "parametrised"),
    *("pattern matching and regular expressions", "approximate numbers", "own base class with own assertions"),
    *("threads within a test", "subprocess of the test", "asyncio", "open is replaced", "clock and deadline"),
    *("folder made and never removed", "sqlite in memory and in a file of the session", "numpy"),
}
"""Shapes that take the way of another one through the judge. They are for a thorough run."""


def marked(number: int, name: str) -> object:
    marks = [pytest.mark.slow] * (HONEST[name].slow or number % 6 > 0) + [pytest.mark.thorough] * (name in RELATED)
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [marked(*one) for one in enumerate(HONEST)])
def test_right_work_earns_its_reward(name: str) -> None:
    if "numpy" in name:
        pytest.importorskip("numpy")
    honest = HONEST[name]
    for seed in (b"1", b"2", b"3") if honest.gold else (b"1",):
        verdict = judge(honest, seed)
        found = verdict.counter_tests
        assert verdict.resolved, (verdict.reason, found, verdict.log[-3000:])
        assert found.alarms == {}
        assert found.kinds.keys() | found.uncovered.keys() == set(honest.task.oracle.fail_to_pass)
        assert bool(found.unforkable) is honest.unforkable, found


def test_there_are_many_shapes() -> None:
    assert len(HONEST) >= 60
    assert HONEST.keys() >= RELATED
