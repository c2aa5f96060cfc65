"""Objects that plans name by dotted path."""

from swe_gym.types import Reward, Verdict


def broken_reward(verdict: Verdict) -> Reward:
    return Reward(value=1 / len(verdict.dropped), components={})
