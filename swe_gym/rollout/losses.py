"""Lost sandboxes: a first loss is excused; a second one by the same actions counts against the policy."""

import re
from collections.abc import Iterable

from ..trajectories import Trajectory

LIMIT = "sandbox_lost"
"""Name of the limit that ends an episode whose sandbox the policy lost twice."""

NOT_BY_A_COMMAND = ("SandboxLost (expired)", "SandboxLost (server)")
"""Reasons of losses that no action explains: the end of the sandbox's time to live, and a lost server."""


def lost_in_a_call(record: Trajectory) -> bool:
    """Return whether a sandbox was lost during a call of the policy, grading included."""
    return bool(record.turns) and record.reason.startswith("SandboxLost") and record.reason not in NOT_BY_A_COMMAND


def lost_by_policy(record: Trajectory, earlier: Iterable[Trajectory]) -> bool:
    """Return whether a try lost its sandbox at the same point of the same actions as an earlier try.

    Args:
        record: Record of the try.
        earlier: Records of earlier tries at the episode for which `lost_in_a_call` is true.
    """
    return lost_in_a_call(record) and any(_actions(record) == _actions(one) for one in earlier)


_ID = re.compile(r'"id": "[^"\\]*"')
"""Id of a native tool call, which differs each time. Quotes inside its arguments are escaped."""


def _actions(record: Trajectory) -> list[str]:
    return [_ID.sub("", turn.action) for turn in record.turns]


def charge(record: Trajectory) -> Trajectory:
    """Return the record of a lost sandbox as one that counts, with reward 0 and the limit "sandbox_lost"."""
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
