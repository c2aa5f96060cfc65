"""Rewards: finite, in [0, 1], the sum of their parts."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_gym.grading import REWARDS
from swe_gym.types import Reward, TestStatus, Verdict

PASSED, FAILED = TestStatus.PASSED, TestStatus.FAILED
STATUSES = st.dictionaries(st.text(max_size=3), st.sampled_from(TestStatus), max_size=7)


def reward(name: str, verdict: Verdict) -> float:
    given_reward: Reward = REWARDS.load(name)(verdict)
    return given_reward.value


def verdict_of(fail_to_pass: dict[str, TestStatus], pass_to_pass: dict[str, TestStatus]) -> Verdict:
    statuses = [*fail_to_pass.values(), *pass_to_pass.values()]
    return Verdict(
        resolved=all(status is PASSED for status in statuses), fail_to_pass=fail_to_pass, pass_to_pass=pass_to_pass
    )


@pytest.mark.parametrize("name", sorted(REWARDS))
@given(fail_to_pass=STATUSES, pass_to_pass=STATUSES)
def test_a_reward_is_the_sum_of_its_parts_between_0_and_1(
    name: str, fail_to_pass: dict[str, TestStatus], pass_to_pass: dict[str, TestStatus]
) -> None:
    verdict = verdict_of(fail_to_pass, pass_to_pass)
    result: Reward = REWARDS.load(name)(verdict)
    assert result.value == sum(result.components.values())
    assert math.isfinite(result.value)
    assert 0.0 <= result.value <= 1.0
    assert all(part >= 0.0 for part in result.components.values())
    if fail_to_pass or pass_to_pass:
        assert (result.value == 1.0) is verdict.resolved


@pytest.mark.parametrize(
    ("fail_to_pass", "pass_to_pass", "binary", "fraction", "shaped"),
    [
        ({"a": PASSED, "b": PASSED}, {"c": PASSED}, 1.0, 1.0, 1.0),
        ({"a": FAILED, "b": FAILED}, {"c": PASSED}, 0.0, 0.0, 0.0),
        ({"a": PASSED, "b": FAILED}, {"c": PASSED}, 0.0, 0.5, 0.2),
        ({"a": PASSED, "b": FAILED}, {"c": FAILED}, 0.0, 0.0, 0.15),
        ({"a": PASSED, "b": PASSED}, {}, 1.0, 1.0, 1.0),
        ({}, {"c": PASSED}, 1.0, 1.0, 1.0),
        ({"a": TestStatus.SKIPPED}, {}, 0.0, 0.0, 0.0),
        ({"a": TestStatus.XPASSED}, {}, 0.0, 0.0, 0.0),
    ],
)
def test_reward_of_each_verdict(
    fail_to_pass: dict[str, TestStatus],
    pass_to_pass: dict[str, TestStatus],
    binary: float,
    fraction: float,
    shaped: float,
) -> None:
    verdict = verdict_of(fail_to_pass, pass_to_pass)
    worth = [reward(name, verdict) for name in ("binary", "fraction", "shaped")]
    assert worth == pytest.approx([binary, fraction, shaped])


@pytest.mark.parametrize("name", sorted(REWARDS))
@pytest.mark.parametrize("resolved", [True, False])
def test_reward_of_a_verdict_without_lists_follows_resolved(name: str, resolved: bool) -> None:
    assert reward(name, Verdict(resolved=resolved)) == float(resolved)


@pytest.mark.parametrize("name", sorted(REWARDS))
def test_a_grader_may_want_more_than_its_list_says(name: str) -> None:
    """As "expected" does, which wants no other tests than those of its map."""
    assert reward(name, Verdict(resolved=False, pass_to_pass={"a": PASSED})) == 0.0
    assert reward(name, Verdict(resolved=True, pass_to_pass={"a": PASSED})) == 1.0
