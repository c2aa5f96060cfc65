"""Run folders as a rollout writes them."""

from pathlib import Path
from typing import Any

from swe_gym.trajectories.run_folder import RunFolder, RunInfo
from swe_gym.trajectories.trajectory import Trajectory, Turn, Usage
from swe_gym.types import TestStatus, Verdict

SECRET_TEST = "tests/test_hidden.py::test_secret"


def run_info(**changes: Any) -> RunInfo:
    fields: dict[str, Any] = {
        "experiment": "first",
        "config": {"policy": "baseline"},
        "config_hash": "abc",
        "tasks": ("a-1", "b-2"),
        "attempts": 2,
        "created": "2026-11-20T10:00:00.000+00:00",
    }
    return RunInfo.model_validate(fields | changes)


def turn(number: int = 1, **changes: Any) -> Turn:
    fields: dict[str, Any] = {
        "action": "```\n<call>\n```",
        "thought": f"thought {number}",
        "tool": "bash",
        "arguments": {"command": f"echo {number}"},
        "observation": f"observation {number}",
        "info": {"outcome": "running", "exit_code": 0, "tool_ok": True, "cheat_signs": 0},
        "seconds": 0.5,
        "policy_seconds": 1.0,
        "usage": Usage(prompt_tokens=100, completion_tokens=10, calls=1, cost=0.01),
    }
    return Turn.model_validate(fields | changes)


def trajectory(
    task: str = "a-1", attempt: int = 0, *, resolved: bool = False, turns: int = 2, **changes: Any
) -> Trajectory:
    played = tuple(turn(number) for number in range(1, turns + 1))
    fields: dict[str, Any] = {
        "task_id": task,
        "repo": f"toy/{task[0]}",
        "attempt": attempt,
        "config_hash": "abc",
        "observation": f"The issue of {task}",
        "started": f"2026-11-20T10:00:00.{attempt:03}+00:00",
        "turns": played,
        "outcome": "submitted",
        "reason": "submit",
        "reward_valid": True,
        "resolved": resolved,
        "reward": float(resolved),
        "info": {"cheat_signs": 0, "invalid_actions": 0, "reward_components": {"resolved": float(resolved)}},
        "patch": "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-old = 1\n+new = 2\n"
        if resolved
        else "",
        "usage": sum((one.usage for one in played), Usage()),
        "seconds": {
            "start": 1.0,
            "tools": 0.5 * turns,
            "grading": 2.0,
            "policy": 1.0 * turns,
            "total": 4.0 + 1.5 * turns,
        },
        "verdict": Verdict(
            resolved=resolved, fail_to_pass={SECRET_TEST: TestStatus.PASSED if resolved else TestStatus.FAILED}
        ),
    }
    return Trajectory.model_validate(fields | changes)


def failed(task: str = "a-1", attempt: int = 0, **changes: Any) -> Trajectory:
    fields = {
        "outcome": "infra_failed",
        "reason": "SandboxLost (oom)",
        "failure": f"the sandbox of {SECRET_TEST} is gone",
        "reward_valid": False,
        "verdict": None,
    }
    return trajectory(task, attempt, **(fields | changes))


def write_run(path: Path, *records: Trajectory, **info: Any) -> Path:
    """Write a run folder with these episodes, which its last call asked for unless `info` says otherwise."""
    default = run_info()
    info.setdefault("tasks", tuple(dict.fromkeys([*default.tasks, *(record.task_id for record in records)])))
    info.setdefault("attempts", max([default.attempts, *(record.attempt + 1 for record in records)]))
    with RunFolder(path, run_info(**info)) as folder:
        for record in records:
            if record.reward_valid:
                folder.add(record)
            else:
                folder.fail(record)
    return path
