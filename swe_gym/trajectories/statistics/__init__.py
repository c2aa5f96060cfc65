"""Estimates of how good a policy is and how much two policies differ, with confidence intervals; frames of runs."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import MissingDependency, UsageError
from ...types import JsonObject
from ..run_folder import FAILED, IndexLine, index_line, open_trajectories, read_episodes, read_failed, read_run
from ..trajectory import Trajectory, Usage

if TYPE_CHECKING:
    import pandas

EXACT = 50_000_000
"""Maximum additions of an exact test, about a tenth of a second."""

DRAWS = 100_000
"""Random sign flips of a test that is not exact."""


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


class PassAtK(NamedTuple):
    """pass@k of a run.

    Attributes:
        k: Number of attempts.
        value: Unbiased estimate of pass@k, averaged over the tasks.
        tasks: Number of tasks with at least `k` attempts.
    """

    k: int
    value: float
    tasks: int


def pass_curve(outcomes: Mapping[str, Sequence[bool]]) -> list[PassAtK]:
    """Return pass@k for each k up to the largest number of attempts at a task.

    Args:
        outcomes: Whether each graded attempt is resolved, by task. pass@k skips tasks with fewer than k attempts.
    """
    counts = [(len(tried), sum(tried)) for tried in outcomes.values()]
    points = []
    for k in range(1, max((n for n, _ in counts), default=0) + 1):
        values = [pass_at_k(n, c, k) for n, c in counts if n >= k]
        points.append(PassAtK(k, sum(values) / len(values), len(values)))
    return points


def wilson(resolved: float, attempts: float, z: float = 1.96) -> tuple[float, float]:
    """Return the Wilson score interval of a rate, 95 % by default."""
    if not attempts:
        return 0.0, 1.0
    rate, square = resolved / attempts, z * z
    middle = (rate + square / (2 * attempts)) / (1 + square / attempts)
    half = z / (1 + square / attempts) * math.sqrt(rate * (1 - rate) / attempts + square / (4 * attempts**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def mean_interval(by_task: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the mean reward, averaged over the tasks.

    Attempts at one task are not independent, so the variance is that of the tasks' means, or of the attempts if there
    is one task. If every reward is 0 or 1, it is Wilson's interval of as many independent attempts as have this
    variance (the effective sample size; Dean and Pagano 2015, Sankhya B 77, 48-66): at least one per task, at most all.
    With one attempt per task, that is Wilson's interval of the attempts. For other rewards, it is the normal interval.

    Args:
        by_task: Rewards of each task's attempts.
    """
    rewards = [reward for attempts in by_task for reward in attempts]
    if not rewards:
        return 0.0, 1.0
    if len(by_task) == 1:
        by_task = [[reward] for reward in rewards]
    means = [sum(attempts) / len(attempts) for attempts in by_task]
    middle = sum(means) / len(means)
    variance = sum((mean - middle) ** 2 for mean in means) / max(1, len(means) - 1) / len(means)
    if any(reward not in (0.0, 1.0) for reward in rewards):
        half = 1.96 * math.sqrt(variance)
        return middle - half, middle + half
    alone = middle * (1 - middle)  # variance of one independent attempt
    effective = alone / variance if variance else len(rewards) if alone else 0
    units = min(len(rewards), max(len(means), effective))
    return wilson(middle * units, units)


# --- the difference of two policies on the same tasks -------------------------------------------------------


def difference_interval(differences: Sequence[Fraction], attempts: int | None = None) -> tuple[float, float]:
    """Return the 95 % confidence interval of the mean difference between two policies on the same tasks.

    It is the adjusted Wald interval of Bonett and Price (2012, Journal of Educational and Behavioral Statistics 37,
    479-488): the normal interval with one more task that each policy alone resolves. With k attempts per task, the
    adjustment is divided by the square root of k, as the spread of a difference is. So few tasks, or tasks that all
    differ alike, never give an interval without width. Without tasks, it is -1 to 1.

    Args:
        differences: Difference of the share of resolved attempts, by task.
        attempts: Attempts per task; None: the largest denominator of a difference.
    """
    attempts = attempts or max((difference.denominator for difference in differences), default=1)
    values = [*map(float, differences), attempts**-0.5, -(attempts**-0.5)]
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    half = 1.96 * math.sqrt(variance / len(values))
    return max(-1.0, mean - half), min(1.0, mean + half)


def sign_flip_test(differences: Sequence[Fraction]) -> float:
    """Return the two-sided p-value of "neither policy is better", from their differences on the same tasks.

    It is Fisher's permutation test of paired data (1935, The Design of Experiments, section 21): if neither policy is
    better, the difference on each task is as likely to have the other sign. The p-value is the share of all sign flips
    whose sum is at least as far from 0 as the observed one. The tasks are the unit, so attempts at one task need not be
    independent. With one attempt per task, it equals the exact test of McNemar (1947, Psychometrika 12, 153-157).

    The result is exact and deterministic. If the attempts per task are so many and so different that the exact sum
    is too expensive, 100,000 sign flips are drawn with a fixed seed, and the observed one counts as one of them
    (Phipson and Smyth 2010, arXiv 1603.05766).

    Args:
        differences: Difference of the share of resolved attempts, by task.
    """
    unequal = [difference for difference in differences if difference]
    scale = math.lcm(*(difference.denominator for difference in unequal))
    whole = [int(difference * scale) for difference in unequal]
    common = math.gcd(*whole) or 1
    sizes, observed = [abs(size) // common for size in whole], abs(sum(whole)) // common
    if sum(sizes) * len(sizes) > EXACT:
        return _draw_share(np.array(sizes, dtype=np.float64), observed)
    chances = np.ones(1)  # of each sum of the sizes whose sign is negative
    for size in sizes:
        grown = np.zeros(len(chances) + size)
        grown[: len(chances)] = chances
        grown[size:] += chances
        chances = grown / 2
    total = sum(sizes)
    sums = total - 2 * np.arange(total + 1)
    return min(1.0, float(chances[abs(sums) >= observed].sum()))


def _draw_share(sizes: NDArray[np.float64], observed: int) -> float:
    """Return the share of random sign flips whose sum is at least as far from 0 as the observed one."""
    draw = np.random.default_rng(0)
    extreme = 0
    for _ in range(DRAWS // 1000):
        signs = 2.0 * draw.integers(0, 2, (1000, len(sizes))) - 1.0
        extreme += int((abs(signs @ sizes) >= observed).sum())  # whole numbers below 2**53: exact
    return (extreme + 1) / (DRAWS + 1)


# --- choosing among attempts --------------------------------------------------------------------------------


def expected_choice(scores: Sequence[float], values: Sequence[float], k: int) -> float:
    """Return the expected value of the attempt with the best score among k random ones. Ties are broken at random.

    It is exact: the mean over all subsets of k attempts. If the scores are the values, it is the expected maximum; of
    values 0 and 1 that is pass@k.

    Args:
        scores: Score of each attempt, which does not depend on the other attempts.
        values: Value of each attempt.
        k: Size of the subsets, from 1 to the number of attempts.
    """
    total, worse = 0.0, 0
    for score in sorted(set(scores)):
        tied = [value for value, own in zip(values, scores, strict=True) if own == score]
        chosen = math.comb(worse + len(tied), k) - math.comb(worse, k)  # subsets whose best attempts are among these
        total += chosen * sum(tied) / len(tied)
        worse += len(tied)
    return total / math.comb(len(scores), k)


def pairwise_auc(groups: Sequence[tuple[Sequence[float], Sequence[bool]]]) -> float | None:
    """Return how often a resolved attempt scores above an unresolved one of the same task. Equal scores count half.

    Args:
        groups: Scores and outcomes of the attempts at each task.

    Returns:
        The share of all such pairs: 0.5 is chance. None if there is no pair.
    """
    pairs = [
        (good > bad) + (good == bad) / 2
        for scores, resolved in groups
        for good in (score for score, one in zip(scores, resolved, strict=True) if one)
        for bad in (score for score, one in zip(scores, resolved, strict=True) if not one)
    ]
    return sum(pairs) / len(pairs) if pairs else None


class ScoreBin(NamedTuple):
    """Attempts with similar scores.

    Attributes:
        score: Their mean score.
        resolved: Share of them that is resolved.
        attempts: Their number.
    """

    score: float
    resolved: float
    attempts: int


def score_bins(scores: Sequence[float], resolved: Sequence[bool], bins: int = 10) -> list[ScoreBin]:
    """Return the attempts by score, in bins of equal width from 0 to 1. Empty bins are left out."""
    found: dict[int, list[tuple[float, bool]]] = {}
    for score, one in zip(scores, resolved, strict=True):
        found.setdefault(min(bins - 1, max(0, int(score * bins))), []).append((score, one))
    return [
        ScoreBin(sum(s for s, _ in row) / len(row), sum(r for _, r in row) / len(row), len(row))
        for _, row in sorted(found.items())
    ]


def calibration_error(bins: Sequence[ScoreBin]) -> float | None:
    """Return the expected calibration error (Naeini et al. 2015): mean distance of score and share resolved, by bin.

    None if there is no attempt.
    """
    attempts = sum(one.attempts for one in bins)
    return sum(one.attempts * abs(one.score - one.resolved) for one in bins) / attempts if attempts else None


Row = JsonObject


def frame(
    folder: str | os.PathLike[str], per: Literal["episode", "turn"] = "episode", *, failed: bool = False
) -> pandas.DataFrame:
    """Return a run as a pandas data frame with one row per episode or per turn.

    Episodes of a run folder are read from its index, so a frame of 10,000 episodes takes well under a second. Turns are
    read from the trajectories, with their whole texts. To join several runs, use `pandas.concat`.

    Columns of both: `run` (name of the folder or file), `task_id`, `attempt` (from 0), `reward_valid` (whether the
    episode counts), `reward`, `prompt_tokens` (cached ones included), `cached_tokens`, `completion_tokens`, `calls`
    (answered requests), `cost` (US dollars; NaN if no price is known).

    Columns of an episode: `repo`, `tries` (failed ones included), `outcome`, `reason`, `resolved`, `turns`,
    `cheat_signs` (number), `start_seconds`, `policy_seconds`, `tools_seconds`, `grading_seconds`, `total_seconds`
    (wall-clock; NaN if not recorded), `started` (UTC).

    Columns of a turn: `turn` (from 1), `parent` (`turn` that it continues or starts from; 0 if it starts a conversation
    of its own), `tool` (empty if the call was invalid), `arguments` (a dict), `action`, `thought`, `observation`,
    `terminated`, `truncated`, `seconds` (wall-clock time of the step), `policy_seconds` (that of the policy).

    Args:
        folder: Run folder, or trajectory file.
        per: What a row is.
        failed: Also return failed tries: infrastructure failures, cancelled and killed episodes. Their `reward_valid`
            is False; leave them out of averages.

    Raises:
        UsageError: The run is missing, a line is invalid, or `per` is unknown.
        MissingDependency: pandas is not installed.
    """
    if per not in ("episode", "turn"):
        raise UsageError(f"per must be 'episode' or 'turn', not {per!r}")
    try:
        import pandas
    except ImportError as error:
        raise MissingDependency(f"data frames need pandas: pip install 'swe-gym[pandas]' ({error})") from error
    path = Path(folder)
    rows = _episode_rows(path, failed) if per == "episode" else _turn_rows(path, failed)
    columns = _EPISODE if per == "episode" else _TURN
    made = pandas.DataFrame.from_records(list(rows), columns=columns)
    made.insert(0, "run", path.resolve().name if path.is_dir() else path.stem)
    if per == "episode":
        made["started"] = pandas.to_datetime(made["started"], utc=True, format="ISO8601")
    return made


_SHARED = ["task_id", "attempt", "reward_valid", "reward"]
_SECONDS = ["start", "policy", "tools", "grading", "total"]
_USAGE = list(Usage.model_fields)
_OF_EPISODE = ["repo", "tries", "outcome", "reason", "resolved", "turns", "cheat_signs", "started"]
_OF_TURN = ["tool", "arguments", "action", "thought", "observation", "terminated", "truncated"]
_EPISODE = [*_SHARED, *_OF_EPISODE, *_USAGE, *(f"{name}_seconds" for name in _SECONDS)]
_TURN = [*_SHARED, "turn", "parent", *_OF_TURN, *_USAGE, "seconds", "policy_seconds"]


def _episode_rows(path: Path, failed: bool) -> Iterator[Row]:
    if path.is_dir():
        read_run(path)
        yield from (_episode_row(entry, True) for entry in read_episodes(path))
        if failed:
            yield from (_episode_row(entry, False) for entry in read_failed(path))
        return
    for trajectory in _trajectories(path, failed):
        yield _episode_row(index_line(trajectory, 0, 0), trajectory.reward_valid)


def _turn_rows(path: Path, failed: bool) -> Iterator[Row]:
    for trajectory in _trajectories(path, failed):
        shared = {name: getattr(trajectory, name) for name in _SHARED}
        for number, turn in enumerate(trajectory.turns, 1):
            own = {name: getattr(turn, name) for name in (*_OF_TURN, "reward", "seconds", "policy_seconds")}
            parent = number - 1 if turn.parent is None else turn.parent + 1
            yield {**shared, **own, **_usage(turn.usage), "turn": number, "parent": parent}


def _trajectories(path: Path, failed: bool) -> Iterator[Trajectory]:
    if path.is_dir():
        read_run(path)
    yield from (one for one in open_trajectories(path) if one.reward_valid or failed)
    if failed and path.is_dir() and (path / FAILED).exists():
        yield from open_trajectories(path / FAILED)


def _episode_row(entry: IndexLine, reward_valid: bool) -> Row:
    own = {name: getattr(entry, name) for name in ("task_id", "attempt", "reward", *_OF_EPISODE)}
    seconds = {f"{name}_seconds": entry.seconds.get(name, math.nan) for name in _SECONDS}
    return {**own, "started": entry.started or None, **_usage(entry.usage), **seconds, "reward_valid": reward_valid}


def _usage(usage: Usage) -> Row:
    unknown = math.nan if usage.calls or usage.tokens else 0.0
    return {**usage.model_dump(), "cost": unknown if usage.cost is None else usage.cost}
