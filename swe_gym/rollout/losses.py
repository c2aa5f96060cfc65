"""Sandboxes that a policy loses: once that is the machine's doing, twice in the same way it is the policy's."""

from __future__ import annotations

from collections.abc import Iterable

from ..trajectories.trajectory import Trajectory

LIMIT = "sandbox_lost"
"""The limit that ends an episode whose sandbox the policy lost twice."""

NOT_BY_A_COMMAND = "SandboxLost (expired)"
"""The sandbox's time to live was over."""


def lost_in_a_call(record: Trajectory) -> bool:
    """Whether a sandbox that had started was lost while it carried out a call of the policy's, grading included."""
    return bool(record.turns) and record.reason.startswith("SandboxLost") and record.reason != NOT_BY_A_COMMAND


def lost_by_policy(record: Trajectory, earlier: Iterable[Trajectory]) -> bool:
    """Whether a try lost its sandbox at the same point of the same actions as an earlier try of the episode.

    Args:
        record: The record of the try.
        earlier: The records of earlier tries for which `lost_in_a_call` holds.
    """
    return lost_in_a_call(record) and any(_actions(record) == _actions(one) for one in earlier)


def _actions(record: Trajectory) -> list[str]:
    return [turn.action for turn in record.turns]


def charged(record: Trajectory) -> Trajectory:
    """The record of a lost sandbox as one that counts: reward 0, ended by the limit "sandbox_lost"."""
    info = {**record.info, "outcome": "agent_limit", "limit": LIMIT, "reward_valid": True}
    last = record.turns[-1].model_copy(update={"info": info})
    return record.model_copy(
        update={
            "turns": (*record.turns[:-1], last),
            "outcome": "agent_limit",
            "reason": LIMIT,
            "reward_valid": True,
            "resolved": False,
            "reward": 0.0,
            "info": info,
        }
    )
