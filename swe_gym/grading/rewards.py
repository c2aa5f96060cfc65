"""Rewards: functions from a verdict to a finite value in [0, 1] with named parts.

If the task's own script gave a reward, each of them returns it as it is.
"""

import functools
from collections.abc import Callable, Mapping

from ..types import Reward, TestStatus, Verdict


def _own_score(reward: Callable[[Verdict], Reward]) -> Callable[[Verdict], Reward]:
    """Return a reward function that prefers the reward of the task's own script."""

    @functools.wraps(reward)
    def preferring(verdict: Verdict) -> Reward:
        return reward(verdict) if verdict.score is None else _reward(score=verdict.score)

    return preferring


@_own_score
def binary(verdict: Verdict) -> Reward:
    """1 if the task is resolved, else 0."""
    return _reward(resolved=float(verdict.resolved))


@_own_score
def fraction(verdict: Verdict) -> Reward:
    """The share of fail-to-pass tests that pass; 0 if a test that had to keep passing broke."""
    kept = _share(verdict.pass_to_pass) == 1.0
    return _reward(fail_to_pass=_measure_progress(verdict) if kept else 0.0)


@_own_score
def shaped(verdict: Verdict) -> Reward:
    """0.6 for a resolved task, up to 0.3 for fail-to-pass tests, up to 0.1 for tests kept passing.

    The last part also grows with the share of fail-to-pass tests, so that doing nothing is worth 0.
    """
    started = _measure_progress(verdict)
    return _reward(
        fail_to_pass=0.3 * started,
        pass_to_pass=0.1 * started * _share(verdict.pass_to_pass),
        resolved=0.6 * verdict.resolved,
    )


def _measure_progress(verdict: Verdict) -> float:
    """The share of fail-to-pass tests that pass; `resolved` if the verdict lists none."""
    return _share(verdict.fail_to_pass) if verdict.fail_to_pass else float(verdict.resolved)


def _share(statuses: Mapping[str, TestStatus]) -> float:
    """The share of tests that passed; 1 if there are none."""
    if not statuses:
        return 1.0
    return sum(status is TestStatus.PASSED for status in statuses.values()) / len(statuses)


def _reward(**components: float) -> Reward:
    return Reward(value=sum(components.values()), components=components)
