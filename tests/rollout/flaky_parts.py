"""Flaky graders, to be named by dotted path."""

import itertools
from collections.abc import Iterator

from swe_gym.sandboxes import Sandbox
from swe_gym.types import Task, Verdict

# validation judges gold and empty in turns
_flaky_gold: Iterator[bool] = itertools.cycle([True, False, False, False])
_flaky_empty: Iterator[bool] = itertools.cycle([True, False, True, True])


def flaky_gold(task: Task, sandbox: Sandbox) -> Verdict:  # noqa: ARG001  a grader's signature
    resolved = next(_flaky_gold)
    return Verdict(resolved=resolved, reason="" if resolved else "the moon")


def flaky_empty(task: Task, sandbox: Sandbox) -> Verdict:  # noqa: ARG001  a grader's signature
    return Verdict(resolved=next(_flaky_empty))
