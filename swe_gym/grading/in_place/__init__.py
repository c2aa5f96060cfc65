"""The grader "reward": a script of the task judges the whole sandbox in which the policy worked, and writes a reward.

Everything that the policy left counts: files anywhere, installed packages, running servers. So everything there can
also deceive the script. What it writes is believed. If the script has a sandbox of its own, only the `artifacts` count.
"""

from .artifacts import put_artifacts, take_artifacts
from .script import (
    NoReward,
    begin_in_place,
    begin_step,
    begin_verifier,
    blame,
    clear_step,
    collect,
    for_policy,
    grade_in_place,
    is_last,
    join_steps,
    judging_seconds,
    put_solution,
    run_solution,
    solve_command,
    steps_of,
)

__all__ = [
    "NoReward",
    "begin_in_place",
    "begin_step",
    "begin_verifier",
    "blame",
    "clear_step",
    "collect",
    "for_policy",
    "grade_in_place",
    "is_last",
    "join_steps",
    "judging_seconds",
    "put_artifacts",
    "put_solution",
    "run_solution",
    "solve_command",
    "steps_of",
    "take_artifacts",
]
