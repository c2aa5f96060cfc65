"""Estimates of how good a policy is, with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence


def pass_at_k(attempts: int, resolved: int, k: int) -> float:
    """Return the unbiased estimate of pass@k, 1 - C(n-c, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374).

    Args:
        attempts: Number n of attempts at a task.
        resolved: Number c of resolved attempts.
        k: Number of attempts that pass@k is about, from 1 to n.

    Raises:
        ValueError: The numbers contradict each other.
    """
    if not 0 <= resolved <= attempts or not 1 <= k <= attempts:
        raise ValueError(f"pass@{k} is undefined for {attempts} attempts, {resolved} of them resolved")
    return 1.0 - math.comb(attempts - resolved, k) / math.comb(attempts, k)


def wilson(resolved: int, attempts: int, z: float = 1.96) -> tuple[float, float]:
    """Return the Wilson score interval of a rate, 95 % by default."""
    if not attempts:
        return 0.0, 1.0
    rate, square = resolved / attempts, z * z
    middle = (rate + square / (2 * attempts)) / (1 + square / attempts)
    half = z / (1 + square / attempts) * math.sqrt(rate * (1 - rate) / attempts + square / (4 * attempts**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def is_wilson(by_task: Sequence[Sequence[float]]) -> bool:
    """Return whether `mean_interval` is Wilson's interval for these rewards."""
    rewards = [reward for attempts in by_task for reward in attempts]
    independent = len(by_task) == 1 or len(rewards) == len(by_task) or len(set(rewards)) < 2
    return independent and all(reward in (0.0, 1.0) for reward in rewards)


def mean_interval(by_task: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the mean reward.

    Attempts at one task are not independent, so the spread is that of the tasks' means, or of the attempts if there is
    one task. If every reward is 0 or 1 and the attempts are independent or all alike, it is Wilson's interval.

    Args:
        by_task: Rewards of each task's attempts.
    """
    rewards = [reward for attempts in by_task for reward in attempts]
    if is_wilson(by_task):
        return wilson(int(sum(rewards)), len(rewards))
    if len(by_task) == 1:
        by_task = [[reward] for reward in rewards]
    means = [sum(attempts) / len(attempts) for attempts in by_task]
    middle = sum(means) / len(means)
    variance = sum((mean - middle) ** 2 for mean in means) / max(1, len(means) - 1)
    half = 1.96 * math.sqrt(variance / len(means))
    return middle - half, middle + half
