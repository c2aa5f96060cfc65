"""Parts of tests of the environment: actions, a task source and a backend, named by dotted path."""

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from swe_gym.errors import unknown_name
from swe_gym.sandboxes import SandboxSpec
from swe_gym.sandboxes.fake import FakeSandbox
from swe_gym.tools import Tool, ToolContext
from swe_gym.types import Oracle, Reward, Task, ToolResult, Verdict


def call(tool: str, **arguments: Any) -> str:
    """Return an action."""
    return json.dumps({"name": tool, "arguments": arguments})


SUBMIT = call("submit")
FIX = call("bash", command="sed -i 's/a - b/a + b/' calc.py")
"""Solves the project of the `project` fixture."""

SECRETS = ("run-the-hidden-tests", "the-gold-patch", "test_that_is_hidden")


class ManySource:
    """Three tasks without a workspace, for fake sandboxes, judged by the exit code of a command."""

    def ids(self) -> Sequence[str]:
        return ("one", "two", "three")

    def get(self, task_id: str) -> Task:
        if task_id not in self.ids():
            raise unknown_name("task", task_id, self.ids())
        test_cmd, gold_patch, test = SECRETS
        oracle = Oracle(test_cmd=test_cmd, grader="exit_code", gold_patch=gold_patch, fail_to_pass=(test,))
        return Task(task_id=task_id, problem_statement=f"Solve problem {task_id}.", oracle=oracle)


class CountedSandbox(FakeSandbox):
    """A fake that records its instances. Only the `strikes`-th one has faults: 2 is the first grader's."""

    started: ClassVar[list["CountedSandbox"]] = []

    def __init__(self, spec: SandboxSpec) -> None:
        options = dict(spec.options)
        strikes = options.pop("strikes", 1)
        if len(self.started) + 1 != strikes:
            options.pop("faults", None)
        super().__init__(spec.model_copy(update={"options": options}))

    def _start(self, deadline: float) -> None:
        self.started.append(self)
        super()._start(deadline)


class Careless(Tool):
    """A tool that reads a file and handles no error."""

    def run(self, context: ToolContext, path: str) -> ToolResult:
        """Read a file."""
        return ToolResult(text=context.sandbox.read_file(path).decode())


def not_a_number(_: Verdict) -> Reward:
    """A custom reward function that returns NaN."""
    return Reward(value=float("nan"), components={})


def only_a_number(verdict: Verdict) -> float:
    """A custom reward function that returns a float."""
    return float(verdict.resolved)


class OnlyText(Careless):
    """Returns text instead of a result."""

    def run(self, context: ToolContext, path: str) -> ToolResult:
        return super().run(context, path).text  # type: ignore[return-value]  # as users do
