"""What wrappers and policies use of an environment; an episode's state, its `info`, and its turns as text and image."""

from __future__ import annotations

import dataclasses
import math
import re
import textwrap
import time
from collections.abc import Sequence
from typing import Literal

import gymnasium
import numpy as np
import numpy.typing as npt

from ..errors import GradingError, MissingDependency, ReplayError, SandboxError, TaskError
from ..grading import Patch
from ..sandboxes import Sandbox
from ..spaces import Info, StepResult
from ..tools import ToolContext, shorten
from ..types import Action, JsonObject, Reward, Task, TestStatus, ToolResult, ToolSpec, Verdict
from .group import SandboxGroup

Outcome = Literal["running", "submitted", "agent_limit", "infra_failed"]
"""State of an episode: `submitted` and `agent_limit` were graded, `infra_failed` could not be."""

WORLD_ERRORS = (SandboxError, GradingError, TaskError, ReplayError)
"""Errors of `reset` and `step` that end an episode as `infra_failed`."""

MAX_SET_BACK = 50
"""Maximum number of paths in `info["set_back"]`."""

MAX_PATH = 300
"""Maximum length of a path in `info["set_back"]`."""

SHOWN_TURNS = 12
"""Number of turns that the render modes show."""


UNJUDGED = Verdict(resolved=False)
"""Verdict in the `info` of an episode without one."""


@dataclasses.dataclass(frozen=True, slots=True)
class ShownTurn:
    """One turn as rendered. Turn 0 is the reset and has no action."""

    number: int
    action: str
    observation: str


@dataclasses.dataclass(slots=True)
class EpisodeState:
    """The state of one episode. Counters and results only; `SweEnv` does the work.

    Attributes:
        task: The task.
        group: All sandboxes of the episode.
        sandbox: The policy's sandbox, with all rights.
        context: Context of the tools.
        max_turns: Steps until truncation.
        max_invalid: Consecutive invalid actions until truncation.
        ends: `time.monotonic()` at which its time limit is reached. That of a step of the task may come before.
        turn: Steps taken.
        invalid_actions: Steps without effect: no valid call, or the tool refused it.
        invalid_row: Consecutive invalid actions up to now.
        outcome: State of the episode.
        limit: Limit that ended an `agent_limit` episode: "turns", "time", "invalid" or the caller's.
        failure: Infrastructure failure, short and without host paths.
        failure_detail: Infrastructure failure in full, for logs.
        action: Last action, if it was valid.
        result: Result of the last tool call.
        verdict: Verdict of the grader.
        reward: Reward of the verdict.
        patch: The graded work.
        steps: Verdicts on the steps of the task that were judged before its end.
        already_passes: Whether the unchanged folder of a user's own task earns the reward.
        signs: Kinds of cheat signs, one entry per action and one per kind in the graded work.
        turns: All turns since the start of the task, of which a policy without tools has none.
        seed: Seed of `reset`.
        began: `time.monotonic()` at its start, less the time that was used before its checkpoint.
        parent: Point that it started from, as in `Trajectory`; empty if that was the start of the task.
        branch_turn: Turns before that checkpoint.
        seconds: Wall-clock seconds by activity: "start", "tools", "grading".
    """

    task: Task
    group: SandboxGroup
    sandbox: Sandbox
    context: ToolContext
    max_turns: int
    max_invalid: int | None
    ends: float = math.inf
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
    steps: list[Verdict] = dataclasses.field(default_factory=list)
    already_passes: bool = False
    signs: list[str] = dataclasses.field(default_factory=list)
    turns: list[ShownTurn] = dataclasses.field(default_factory=list)
    seed: int | None = None
    began: float = 0.0
    parent: str = ""
    branch_turn: int = 0
    seconds: dict[str, float] = dataclasses.field(default_factory=lambda: {"start": 0.0, "tools": 0.0, "grading": 0.0})

    def reward_value(self) -> float:
        """Return the reward of the last step: 0.0 until the work is graded."""
        return float(self.reward.value) if self.reward else 0.0

    def pause(self, seconds: float) -> None:
        """Leave out seconds of its time limits that the policy did not use."""
        self.began += seconds
        self.ends += seconds
        self.context.deadline += seconds

    def limit_reached(self) -> str:
        """Return the first limit of the whole episode that is reached; empty if there is none."""
        if self.turn >= self.max_turns:
            return "turns"
        if time.monotonic() >= self.ends:
            return "time"
        if self.max_invalid is not None and self.invalid_row >= self.max_invalid:
            return "invalid"
        return ""

    def step_is_over(self) -> bool:
        """Whether the time of the running step of the task is over."""
        return time.monotonic() >= self.context.deadline

    def failed(self, error: Exception) -> None:
        """End the episode without a reward after an infrastructure failure."""
        self.outcome = "infra_failed"
        self.limit = ""
        self.verdict = self.reward = None
        self.failure = describe_failure(error, self.sandbox)
        self.failure_detail = f"{type(error).__name__}: {error}"

    def set_back(self) -> list[str]:
        """Return the files that the policy wrote and that grading reset, sorted, without deleted ones.

        A path that the policy did not write may be that of a hidden test, so it is left out.
        """
        if self.patch is None or self.verdict is None:
            return []
        written = {change.path for change in self.patch.changes if change.new is not None}
        written |= {entry.path for entry in self.patch.dropped}
        return sorted(written.intersection(self.verdict.dropped))

    def info(self) -> Info:
        """Return the `info` of `reset` and `step`: a new dict of plain JSON with fixed keys and types."""
        verdict = self.verdict or UNJUDGED
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
            "fail_to_pass_passed": _count_passed(verdict.fail_to_pass),
            "fail_to_pass_total": len(verdict.fail_to_pass),
            "pass_to_pass_passed": _count_passed(verdict.pass_to_pass),
            "pass_to_pass_total": len(verdict.pass_to_pass),
            "counter_tests": len(verdict.counter_tests.kinds),
            "alarms": len(verdict.counter_tests.alarms),
            "unproven": self.verdict.unproven if self.verdict else "",
            "already_passes": self.already_passes,
        }


def _count_passed(statuses: dict[str, TestStatus]) -> int:
    return list(statuses.values()).count(TestStatus.PASSED)


def describe_failure(error: Exception, sandbox: Sandbox, limit: int = 300) -> str:
    """Return an infrastructure error in one line, without the sandbox's id and host paths.

    The text of grading and task errors may quote hidden tests: it is in `SweEnv.stats` only.
    """
    reason = getattr(error, "reason", "")
    name = f"{type(error).__name__} ({reason})" if reason not in ("", "unknown") else type(error).__name__
    if isinstance(error, GradingError | TaskError):
        return f"{name}: the work could not be judged"
    first = (str(error).splitlines() or [""])[0].replace(sandbox.id, "...")
    workdir = sandbox.spec.workdir + "/"
    first = re.sub(
        r"(?<![\w.])/[\w.@+-]+(?:/[\w.@+-]*)+",
        lambda match: match[0] if (match[0] + "/").startswith(workdir) else "<path>",
        first,
    )
    return f"{name}: {first}"[:limit]


WIDTH, HEIGHT = 960, 640
"""Size of the image in pixels."""

_MARGIN = 12
_CELL = (6, 12)  # a character of Pillow's built-in bitmap font is 6 x 11 pixels
_COLUMNS = (WIDTH - 2 * _MARGIN) // _CELL[0]
_ROWS = (HEIGHT - 2 * _MARGIN) // _CELL[1]
_BACKGROUND, _TEXT, _ACTION = (24, 26, 31), (204, 208, 216), (126, 200, 140)
_LONGEST = 2000  # maximum characters of an action or an observation


def format_turn(turn: ShownTurn) -> str:
    """Return one turn as text: the action after a prompt, then the observation."""
    return "\n".join(text for text, _ in _lines(turn))


def format_turns(turns: Sequence[ShownTurn]) -> str:
    """Return turns as text, oldest first."""
    return "\n\n".join(format_turn(turn) for turn in turns)


def format_end(info: Info, reward: float) -> str:
    """Return how an episode ended, as text."""
    if not info["reward_valid"]:
        return f"\nThe episode ended without a reward: {info['failure']}"
    by = {"": "submit"}.get(info["limit"], f"limit {info['limit']!r}")
    said = f"\nThe episode ended by {by} with reward {reward:g}: {'' if info['resolved'] else 'not '}resolved."
    for kind, what in (("fail_to_pass", "must start passing pass"), ("pass_to_pass", "must keep passing still pass")):
        if (passed := info[f"{kind}_passed"]) >= 0 < info[f"{kind}_total"]:
            said += f"\n{passed} of {info[f'{kind}_total']} tests that {what}."
    return said


def draw_turns(turns: Sequence[ShownTurn]) -> npt.NDArray[np.uint8]:
    """Draw the end of the turns as a terminal shows it.

    Returns:
        An image of shape (640, 960, 3).

    Raises:
        MissingDependency: Pillow is not installed.
    """
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise MissingDependency("render mode 'rgb_array' needs Pillow: pip install 'swe-gym[render]'") from error
    picture = Image.new("RGB", (WIDTH, HEIGHT), _BACKGROUND)
    draw = ImageDraw.Draw(picture)
    font = ImageFont.load_default_imagefont()
    lines = [wrapped for turn in turns for line in [*_lines(turn), ("", _TEXT)] for wrapped in _wrap(*line)]
    for row, (text, colour) in enumerate(lines[-_ROWS:]):
        # the built-in font knows Latin-1 only
        drawable = text.encode("latin-1", "replace").decode("latin-1")
        draw.text((_MARGIN, _MARGIN + row * _CELL[1]), drawable, fill=colour, font=font)
    return np.asarray(picture, dtype=np.uint8).copy()


def _lines(turn: ShownTurn) -> list[tuple[str, tuple[int, int, int]]]:
    """Return the lines of a turn and their colours."""
    action = [(f"[{turn.number}] > {_clean(turn.action)}", _ACTION)] if turn.number else []
    return [
        (line, colour)
        for text, colour in [*action, (_clean(turn.observation), _TEXT)]
        for line in (text.splitlines() or [""])
    ]


def _clean(text: str) -> str:
    """Return shortened text without control characters."""
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]}\n[...]\n{text[-_LONGEST // 2 :]}"
    return "".join(c if c == "\n" or c.isprintable() else " " if c == "\t" else "?" for c in text.expandtabs(4))


def _wrap(text: str, colour: tuple[int, int, int]) -> list[tuple[str, tuple[int, int, int]]]:
    parts = textwrap.wrap(text, _COLUMNS, drop_whitespace=False, replace_whitespace=False) or [""]
    return [(part, colour) for part in parts]


class ToolEnv(gymnasium.Env[str, str]):
    """An environment whose actions are tool calls: `SweEnv`, or one on a server.

    `close` may be called from any thread and ends a running call.
    """

    @property
    def config(self) -> JsonObject:
        """The arguments of the environment as plain JSON, among them `action_format`."""
        raise NotImplementedError

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """The tools of the policy, in the form that LLM APIs take."""
        raise NotImplementedError

    @property
    def last_action(self) -> Action | None:
        """The last action as parsed; None if it held no valid call."""
        raise NotImplementedError

    @property
    def stats(self) -> JsonObject:
        """Details beyond `info`: repository, seconds, sandbox and its id, failure, cheat signs, all of `set_back`."""
        raise NotImplementedError

    @property
    def judged_diff(self) -> str:
        """The graded work as a git diff; empty before the end of the episode."""
        raise NotImplementedError

    def end(self, limit: str) -> StepResult[str]:
        """End the episode at a limit that the caller measures, and grade the work as it is."""
        raise NotImplementedError
