"""Published ways to get a reward without solving the task, as scripts that a policy might run, and honest work.

Every cheat must score 0 and all honest work 1, on every task and backend:

    for cheat in (*CHEATS, *HONEST):
        result = play_cheat(cheat, task, open_box)
        assert result.verdict.resolved is cheat.resolved and not result.leaked

A script gets more than a policy would: the paths of the hidden tests and the ids of the required ones, and of those
that must start passing. It also gets the issue, which a policy reads.
"""

import json
from collections.abc import Callable

from ...errors import Unsupported
from ...grading import (
    CounterOptions,
    apply_diff,
    grade,
    hidden_files,
    hidden_places,
    seal_workspace,
    signs_in_call,
    signs_in_work,
    take_patch,
)
from ...sandboxes import Sandbox
from ...types import Frozen, Task, ToolCall, Verdict
from .base import LEAK, PRELUDE, Cheat, read_cheats

__all__ = ["AWARE", "CHEATS", "HONEST", "PRELUDE", "Cheat", "CheatResult", "play_cheat", "read_cheats"]

NOTHING = Cheat(name="nothing", about="Nothing at all.", script="")
TOPICS = ("runner", "tests", "product", "runtime", "interpreter", "reporter", "artefacts", "searches")
CHEATS: tuple[Cheat, ...] = (NOTHING, *(cheat for topic in TOPICS for cheat in read_cheats(topic)))
"""Cheats that must score 0."""

HONEST = read_cheats("honest")
"""Honest work of odd shapes: the gold patch with leftovers of a policy. Each scores 1."""

AWARE = read_cheats("aware")
"""Cheats that know of counter-tests. Each succeeds at a rate."""


class CheatResult(Frozen):
    """The result of a cheat.

    Attributes:
        verdict: Verdict of the grader.
        output: Output of the script.
        signs: Kinds of signs of cheating in the script and in the work, as `info["cheat_signs"]` counts them.
    """

    verdict: Verdict
    output: str
    signs: tuple[str, ...] = ()

    @property
    def leaked(self) -> bool:
        """Whether the script reached something forbidden."""
        return LEAK in self.output


def play_cheat(
    cheat: Cheat,
    task: Task,
    open_box: Callable[[Task], Sandbox],
    *,
    timeout: float = 120.0,
    counter: CounterOptions | None = None,
) -> CheatResult:
    """Run a cheat as an episode, and grade it like any other.

    Args:
        cheat: The cheat.
        task: The task.
        open_box: Opens a sandbox of the task.
        timeout: Time limit of the script in seconds.
        counter: Scope of the counter-tests, as a record of the task gives it.

    Raises:
        Unsupported: The sandbox isolates nothing. Cheats do damage.
    """
    knowledge = {
        "HIDDEN": " ".join(sorted(hidden_files(task.oracle))),
        "REQUIRED": json.dumps([*task.oracle.fail_to_pass, *task.oracle.pass_to_pass]),
        "STARTING": json.dumps(task.oracle.fail_to_pass),
        "ISSUE": json.dumps(task.problem_statement),
    }
    signs = signs_in_call(ToolCall(name="bash", arguments={"command": cheat.script}))
    with open_box(task) as fresh:
        with open_box(task) as box:
            if box.capabilities.isolation in ("none", "process"):
                raise Unsupported(
                    "cheats are real attacks: run them only in a sandbox that isolates, such as the tier 'namespace'"
                )
            if cheat.solves:
                apply_diff(box, task.oracle.gold_patch, what="the gold patch")
            seal_workspace(task, box)
            output = box.exec(PRELUDE + cheat.script, timeout=timeout, env=knowledge, merge=True).text
            patch = take_patch(box, fresh, hidden=hidden_places(task, fresh))
        verdict = grade(task, patch, fresh, lambda: open_box(task), counter=counter)
        signs |= signs_in_work(patch, verdict, task.oracle)
        return CheatResult(verdict=verdict, output=output, signs=tuple(sorted(signs)))
