"""The record of one episode, as one line of JSON."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ValidationError

from ..errors import UsageError, wrong_fields
from ..types import Frozen


class Turn(Frozen):
    """One step: what the policy said, what the environment made of it, what came back.

    Attributes:
        action: The policy's text.
        thought: The text around the tool call.
        tool: The tool that was called; empty where there was no valid call.
        arguments: What it was called with.
        observation: What came back.
        reward: Of this step.
        terminated: As `step` returned it.
        truncated: As `step` returned it.
        info: As `step` returned it.
        seconds: Wall-clock time of the step, without the policy's.
    """

    action: str
    thought: str = ""
    tool: str = ""
    arguments: dict[str, Any] = {}
    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    seconds: float


class Trajectory(Frozen):
    """The record of one episode. It holds nothing of the task's oracle, and is the same after a round trip.

    Attributes:
        version: Of this format.
        task_id: The task.
        env_id: The registered id, empty where the environment was made by its class.
        env: The environment's arguments: `SweEnv(**trajectory.env)` makes it again.
        sandbox: What the sandbox offered: backend, isolation and so on.
        seed: What `reset` was given.
        observation: What `reset` returned.
        turns: The steps, in order.
        outcome: As in `info`: "running" where the episode was left before its end.
        reward_valid: False where the episode must be left out of training and of averages.
        resolved: All required hidden tests passed.
        reward: Sum over the turns.
        info: Of the last step; of `reset` where there was none.
        patch: The judged work as a git diff; empty where none was taken.
        seconds: Wall-clock time of the environment by activity: "start", "tools", "grading".
    """

    version: Literal[1] = 1
    task_id: str
    env_id: str = ""
    env: dict[str, Any]
    sandbox: dict[str, Any] = {}
    seed: int | None = None
    observation: str
    turns: tuple[Turn, ...]
    outcome: str
    reward_valid: bool
    resolved: bool
    reward: float
    info: dict[str, Any]
    patch: str = ""
    seconds: dict[str, float] = {}

    def to_json(self) -> str:
        """One line of ASCII JSON."""
        return json.dumps(self.model_dump())

    @classmethod
    def from_json(cls, line: str) -> Self:
        """The trajectory of a line that `to_json` wrote.

        Raises:
            UsageError: The line is no trajectory of this version.
        """
        try:
            return cls.model_validate(json.loads(line))
        except ValidationError as error:
            raise UsageError(f"not a trajectory of version 1: {wrong_fields(error)}") from error
        except ValueError as error:
            raise UsageError(f"not a trajectory of version 1: {error}") from error

    def append(self, path: str | os.PathLike[str]) -> None:
        """Add it to a file, one line per trajectory. Threads and processes may write to the same file."""
        append_line(path, self.to_json())

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Iterator[Self]:
        """The trajectories of a file, one by one.

        Raises:
            UsageError: A line is no trajectory; the message names file and line.
        """
        with Path(path).open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    yield cls.from_json(line)
                except UsageError as error:
                    raise UsageError(f"{path}, line {number}: {error}") from error


def append_line(path: str | os.PathLike[str], line: str) -> None:
    """Add a line to a file, whole, whoever else writes to it. Missing folders are made."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(line.encode("ascii") + b"\n")
