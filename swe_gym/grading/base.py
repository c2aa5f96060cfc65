"""What a grader is: it runs the tests of prepared work, and it decides by how they ended."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ..sandboxes.base import Sandbox
from ..types import ExecResult, Frozen, Task, TestStatus, Verdict

OpenSandbox: TypeAlias = Callable[[], AbstractContextManager[Sandbox]]
"""Opens a fresh sandbox of the task, in which nothing has run; it is closed at the end of the block."""

LOG_CHARS = 20_000
"""Characters of a log that a verdict keeps: its end."""


class Evaluation(Frozen):
    """How the tests of one run ended.

    Attributes:
        judge: The source of the results, as in `Verdict.judge`.
        statuses: Test id -> how it ended.
        ran: The runner reached its end and counted tests.
        reason: Why nothing in this run counts; empty if it counts.
        result: The result of the command that ran the tests.
    """

    judge: Literal["reporter", "log", "own_parser", "exit_code"]
    statuses: dict[str, TestStatus] = {}
    ran: bool = False
    reason: str = ""
    result: ExecResult

    def facts(self) -> dict[str, Any]:
        """The fields of a `Verdict` that do not depend on the task's lists."""
        return {
            "exit_code": self.result.exit_code,
            "timed_out": self.result.timed_out,
            "judge": self.judge,
            "duration": self.result.duration,
            "log": self.result.text[-LOG_CHARS:],
        }


@dataclass(frozen=True)
class Ready:
    """A sandbox's contents before the tests run.

    Attributes:
        task: The task. Of its evaluation script only the tests are left.
        open_fresh: Opens further sandboxes of the task.
        state: Shell commands that restore what the script's first part set: variables, functions, folder.
    """

    task: Task
    open_fresh: OpenSandbox
    state: bytes = b""


@dataclass(frozen=True)
class Grader:
    """A way to judge work by its tests, which may run more than once.

    Attributes:
        run: Runs the tests in a sandbox that holds them and the work. Raises `GradingError` if no verdict is possible
            and the work is not to blame, and `SandboxError` if the sandbox failed.
        decide: Gives the verdict by the results of one or more runs.
        counted: Whether single tests are told apart, so that they can be countered.
    """

    run: Callable[[Ready, Sandbox], Evaluation]
    decide: Callable[[Task, Evaluation], Verdict]
    counted: bool = True


PlainGrader: TypeAlias = Callable[[Task, Sandbox], Verdict]
"""A grader of the user's own: a function that runs the tests once and returns its verdict. Nothing is countered."""
