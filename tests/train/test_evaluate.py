"""Estimates and confidence intervals of an evaluation, and its choice of tasks."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_gym.train.collect import PlayedBatch, draw_held_out_tasks, evaluation_slots, summarize
from swe_gym.train.config import EvaluationConfig
from swe_gym.trajectories.statistics import mean_interval, pass_at_k, wilson
from swe_gym.trajectories.trajectory import Trajectory


@pytest.mark.parametrize("attempts", range(1, 7))
def test_pass_at_k_is_the_share_of_all_subsets(attempts: int) -> None:
    for resolved in range(attempts + 1):
        outcomes = [i < resolved for i in range(attempts)]
        for k in range(1, attempts + 1):
            choices = list(itertools.combinations(outcomes, k))
            share = sum(any(choice) for choice in choices) / len(choices)
            assert pass_at_k(attempts, resolved, k) == pytest.approx(share)


@given(st.integers(1, 12), st.integers(1, 12), st.floats(0, 1))
def test_pass_at_k_is_unbiased(attempts: int, k: int, chance: float) -> None:
    """Over all outcomes of `attempts` tries, its mean is the chance that one of `k` new ones is resolved."""
    k = min(k, attempts)
    mean = sum(
        math.comb(attempts, c) * chance**c * (1 - chance) ** (attempts - c) * pass_at_k(attempts, c, k)
        for c in range(attempts + 1)
    )
    assert mean == pytest.approx(1 - (1 - chance) ** k, abs=1e-9)


def test_pass_at_k_supports_many_attempts_and_refuses_contradictions() -> None:
    assert pass_at_k(10_000, 1, 5_000) == pytest.approx(0.5)
    for nonsense in ((3, 1, 4), (3, 4, 1), (3, 1, 0), (3, -1, 1)):
        with pytest.raises(ValueError, match="pass@"):
            pass_at_k(*nonsense)


def test_wilson_at_the_edges() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    low, high = wilson(0, 64)
    assert (low, round(high, 3)) == (0.0, 0.057)
    assert wilson(64, 64) == pytest.approx((1 - high, 1.0))
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)


def test_the_interval_of_a_mean_reward() -> None:
    assert mean_interval([[1.0], [0.0], [1.0]]) == wilson(2, 3)
    assert mean_interval([]) == (0.0, 1.0)
    assert mean_interval([[1.0, 0.0, 1.0]]) == wilson(2, 3)  # one task: its attempts are the sample
    assert mean_interval([[1.0] * 8] * 2) == pytest.approx(wilson(2, 2))  # 16 attempts, but two tasks
    assert mean_interval([[1.0, 0.0], [0.0, 1.0]]) == pytest.approx(wilson(2, 4))  # equal tasks: never without width
    # means 1, 1/2 and 1/2: 2/9 / (1/12 / 3) = 8 attempts, of which there are 6
    assert mean_interval([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]]) == pytest.approx(wilson(4, 6))
    low, high = mean_interval([[0.2, 0.4], [0.5, 0.7]])  # means 0.3 and 0.6, deviation 0.2121
    assert (low + high) / 2 == pytest.approx(0.45)
    assert (high - low) / 2 == pytest.approx(1.96 * 0.2121 / 2**0.5, abs=1e-3)


def test_attempts_at_one_task_are_not_independent_samples() -> None:
    """If half of the tasks are always solved and half never, 40 attempts tell no more than 10 tasks."""
    episodes = [
        Trajectory(
            task_id=f"task-{task}",
            attempt=attempt,
            observation="",
            turns=(),
            outcome="submitted",
            reward_valid=True,
            resolved=task < 5,
            reward=float(task < 5),
        )
        for task in range(10)
        for attempt in range(4)
    ]
    facts = summarize(PlayedBatch(tuple(episodes), tuple(range(40)), (), {}, frozenset()), ks=(1, 4))
    assert (facts["resolved"], facts["pass@1"], facts["pass@4"]) == (0.5, 0.5, 0.5)
    assert (facts["resolved_low"], facts["resolved_high"]) == (facts["reward_low"], facts["reward_high"])
    low, high = wilson(20, 40)
    assert facts["resolved_high"] - facts["resolved_low"] > 1.5 * (high - low)


def test_held_out_tasks_are_drawn_without_replacement() -> None:
    ids = [f"task-{number}" for number in range(50)]
    drawn = draw_held_out_tasks(ids, 40)
    assert len(set(drawn)) == 40
    assert drawn == draw_held_out_tasks(ids, 40)
    assert sorted(draw_held_out_tasks(ids, 64)) == sorted(ids)  # there are no more
    slots = evaluation_slots(ids, EvaluationConfig(tasks=64, attempts=2))
    assert len({(slot.task_id, slot.group) for slot in slots}) == 50
    assert len({slot.seed for slot in slots}) == len(slots) == 100
