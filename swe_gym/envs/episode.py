"""One live episode: what `SweEnv` keeps between `reset` and the end, and what it says about it in `info`."""

from __future__ import annotations

import collections
import dataclasses
import re
import time
from typing import Any, Literal

from ..errors import GradingError, SandboxError, TaskError
from ..grading.patch import Patch
from ..sandboxes import Sandbox
from ..tools.base import ToolContext
from ..tools.text import shorten
from ..types import Action, Reward, Task, TestStatus, ToolResult, Verdict
from .group import SandboxGroup

Outcome = Literal["running", "submitted", "agent_limit", "infra_failed"]
"""How an episode stands: `submitted` and `agent_limit` were graded, `infra_failed` could not be."""

WORLD_ERRORS = (SandboxError, GradingError, TaskError)
"""What ends an episode as `infra_failed` when it happens inside `step`: none of it is the policy's doing."""

MAX_SET_BACK = 50
"""How many paths `info["set_back"]` holds."""

MAX_PATH = 300
"""Characters of a path in `info["set_back"]`."""

SHOWN_TURNS = 12
"""How many of the last turns the render modes can show."""


@dataclasses.dataclass(frozen=True, slots=True)
class ShownTurn:
    """What a render mode shows of one turn: 0 is the reset, which has no action."""

    number: int
    action: str
    observation: str


@dataclasses.dataclass(slots=True)
class Episode:
    """The state of one episode. Counters and results only; `SweEnv` does the work.

    Attributes:
        task: The problem.
        group: Everything to close.
        sandbox: Where the policy works.
        context: What tools get.
        max_turns: The limits, as `SweEnv` describes them.
        max_invalid: Likewise.
        turn: Steps taken.
        invalid_actions: Steps that did nothing because the action was no valid call or the tool refused.
        invalid_row: How many of the last steps in a row were such.
        outcome: How it stands.
        limit: Which limit ended it, where its outcome is `agent_limit`: "turns", "time", "invalid" or the caller's.
        failure: What of the world failed, short and free of host paths.
        failure_detail: The same in full, for logs.
        action: The last action, where it was understood.
        result: What the last tool gave back.
        verdict: What the grader found.
        reward: What became of the verdict.
        patch: The work that was judged.
        signs: Kinds of signs of cheating, one entry for each action and for each kind in the judged work.
        shown: The last turns.
        seconds: Wall-clock time by activity: "start", "tools", "grading".
    """

    task: Task
    group: SandboxGroup
    sandbox: Sandbox
    context: ToolContext
    max_turns: int
    max_invalid: int | None
    turn: int = 0
    invalid_actions: int = 0
    invalid_row: int = 0
    outcome: Outcome = "running"
    limit: str = ""
    failure: str = ""
    failure_detail: str = ""
    action: Action | None = None
    result: ToolResult | None = None
    verdict: Verdict | None = None
    reward: Reward | None = None
    patch: Patch | None = None
    signs: list[str] = dataclasses.field(default_factory=list)
    shown: collections.deque[ShownTurn] = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=SHOWN_TURNS)
    )
    seconds: dict[str, float] = dataclasses.field(default_factory=lambda: {"start": 0.0, "tools": 0.0, "grading": 0.0})

    def reward_value(self) -> float:
        """What `step` returns: 0.0 until the work was judged."""
        return float(self.reward.value) if self.reward else 0.0

    def limit_reached(self) -> str:
        """The first limit that the episode has run into, else an empty string."""
        if self.turn >= self.max_turns:
            return "turns"
        if time.monotonic() >= self.context.deadline:
            return "time"
        if self.max_invalid is not None and self.invalid_row >= self.max_invalid:
            return "invalid"
        return ""

    def failed(self, error: Exception) -> None:
        """End it without a reward: the world let the policy down."""
        self.outcome = "infra_failed"
        self.limit = ""
        self.verdict = self.reward = None
        self.failure = describe_failure(error, self.sandbox)
        self.failure_detail = f"{type(error).__name__}: {error}"

    def set_back(self) -> list[str]:
        """The files that the policy wrote and that did not count, sorted. Deleted files are not among them.

        A path that the policy did not write may be that of a hidden test.
        """
        if self.patch is None or self.verdict is None:
            return []
        written = {change.path for change in self.patch.changes if change.new is not None}
        written |= {entry.path for entry in self.patch.dropped}
        return sorted(written.intersection(self.verdict.dropped))

    def info(self) -> dict[str, Any]:
        """The `info` of `reset` and `step`: new, JSON-native, every key always there and of one type."""
        verdict = self.verdict or Verdict(resolved=False)
        exit_code = self.result.exit_code if self.result else None
        return {
            "task_id": self.task.task_id,
            "turn": self.turn,
            "outcome": str(self.outcome),
            "reward_valid": self.outcome in ("submitted", "agent_limit"),
            "resolved": verdict.resolved,
            "tool": self.action.call.name if self.action else "",
            "tool_ok": self.result is not None and self.result.ok,
            "exit_code": -1 if exit_code is None else exit_code,
            "invalid_actions": self.invalid_actions,
            "cheat_signs": len(self.signs),
            "set_back": [shorten(path, MAX_PATH) for path in self.set_back()[:MAX_SET_BACK]],
            "limit": self.limit,
            "failure": self.failure,
            "reward_components": {k: float(v) for k, v in self.reward.components.items()} if self.reward else {},
            "fail_to_pass_passed": -1 if verdict.partial else _passed(verdict.fail_to_pass),
            "fail_to_pass_total": len(verdict.fail_to_pass),
            "pass_to_pass_passed": -1 if verdict.partial else _passed(verdict.pass_to_pass),
            "pass_to_pass_total": len(verdict.pass_to_pass),
            "counter_tests": len(verdict.counter_tests.kinds),
        }


def _passed(statuses: dict[str, TestStatus]) -> int:
    return sum(status is TestStatus.PASSED for status in statuses.values())


def describe_failure(error: Exception, sandbox: Sandbox, limit: int = 300) -> str:
    """An infrastructure error in one line, without the sandbox's id and without paths of the host.

    What a grader or a broken task has to say may quote the hidden tests: it stands in `SweEnv.stats` only.
    """
    if isinstance(error, GradingError | TaskError):
        return f"{type(error).__name__}: the work could not be judged"
    reason = getattr(error, "reason", "")
    first = (str(error).splitlines() or [""])[0].replace(sandbox.id, "...")
    first = re.sub(r"(?<![\w.])/[\w.@+-]+(?:/[\w.@+-]*)+", _hide_path(sandbox.spec.workdir), first)
    name = f"{type(error).__name__} ({reason})" if reason not in ("", "unknown") else type(error).__name__
    return f"{name}: {first}"[:limit]


def _hide_path(workdir: str) -> Any:
    """A replacement for `re.sub` that keeps paths below the workdir."""
    return lambda match: match[0] if (match[0] + "/").startswith(workdir + "/") else "<path>"
