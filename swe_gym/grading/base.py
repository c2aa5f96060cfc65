"""The parts that all graders share: prepared sandboxes, results of a run, and the two functions of a grader."""

import shlex
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ..sandboxes import Sandbox
from ..types import ExecResult, Frozen, JsonObject, Task, TestStatus, Verdict
from .plan import EvaluationPlan
from .reporter import PlayedText, TwinOrder

OpenSandbox: TypeAlias = Callable[[], AbstractContextManager[Sandbox]]
"""Opens a fresh sandbox of the task, in which nothing has run. It is closed at the end of the block."""

LOG_CHARS = 20_000
"""Characters of a log that a verdict keeps: its end."""


class Results(Frozen):
    """The results of one test run.

    Attributes:
        judge: Source of the results, as in `Verdict.judge`.
        statuses: Status of each test.
        ran: Whether the runner finished and counted tests.
        reason: Why the run does not count; empty if it counts.
        result: Result of the command that ran the tests.
        twins: Number of a group -> number of a text -> how its twin ended.
        unsettled: Group into whose functions the session could not put the original -> why.
        forked: False if the tests did not run, because the reporter, which plays twins, cannot run them.
    """

    judge: Literal["reporter", "log", "own_parser", "exit_code"]
    statuses: dict[str, TestStatus] = {}
    ran: bool = False
    reason: str = ""
    result: ExecResult
    twins: dict[int, dict[int, PlayedText]] = {}
    unsettled: dict[int, str] = {}
    forked: bool = True

    def facts(self) -> JsonObject:
        """Return the fields of a `Verdict` that do not depend on the task's lists."""
        return {
            "exit_code": self.result.exit_code,
            "timed_out": self.result.timed_out,
            "judge": self.judge,
            "duration": self.result.duration,
            "log": self.result.text[-LOG_CHARS:],
        }


@dataclass(frozen=True)
class Ready:
    """A sandbox that holds the hidden tests and the work, ready to run the tests.

    Attributes:
        task: The task.
        plan: Its plan, whose preparation has run.
        open_fresh: Opens further sandboxes of the task.
        state: Shell commands that restore variables, functions and folder of the preparation.
        options: Options for every call of pytest.
        twins: The twins to play.
        timeout: Time limit of the run in seconds; None is the task's.
    """

    task: Task
    plan: EvaluationPlan
    open_fresh: OpenSandbox
    state: bytes = b""
    options: tuple[str, ...] = ()
    twins: TwinOrder = field(default_factory=TwinOrder)
    timeout: float | None = None

    @property
    def limit(self) -> float:
        """Time limit of the tests in seconds."""
        return self.task.oracle.timeout if self.timeout is None else self.timeout

    @property
    def command(self) -> str:
        """The test command. However it calls pytest, pytest gets the options."""
        command, call = self.plan.command, self.plan.runner
        if not self.options:
            return command
        options = shlex.join(self.options)
        if call is not None and call.module == "pytest":  # the command may set PYTEST_ADDOPTS for its one call
            end = len(command) - len(call.after)
            command = f"{command[:end]} {options}{command[end:]}"
        return f'export PYTEST_ADDOPTS="${{PYTEST_ADDOPTS-}} "{shlex.quote(options)}\n{command}'


@dataclass(frozen=True)
class Grader:
    """A way to judge work by its tests. The tests may run more than once.

    Attributes:
        run: Runs the tests in a prepared sandbox. Raises `GradingError` if no verdict is possible and the work is not
            to blame, and `SandboxError` if the sandbox failed.
        decide: Returns the verdict on the merged results of one or more runs.
        counted: Whether results name single tests, so that counter-tests are possible.
    """

    run: Callable[[Ready, Sandbox], Results]
    decide: Callable[[Task, Results], Verdict]
    counted: bool = True


PlainGrader: TypeAlias = Callable[[Task, Sandbox], Verdict]
"""A grader of your own: a function that runs the tests once and returns its verdict. It has no counter-tests."""
