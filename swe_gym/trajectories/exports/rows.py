"""One flat row per trajectory: for tables, Parquet files and Hugging Face datasets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from ..trajectory import Trajectory

_SCALARS = (
    "task_id",
    "repo",
    "attempt",
    "tries",
    "config_hash",
    "experiment",
    "env_id",
    "seed",
    "started",
    "observation",
    "outcome",
    "reason",
    "reward_valid",
    "resolved",
    "reward",
    "patch",
)
_TURN_SCALARS = ("action", "thought", "tool", "observation", "reward", "terminated", "truncated", "seconds")


def as_they_are(trajectories: Iterable[Trajectory]) -> Iterator[dict[str, Any]]:
    """The trajectories themselves, without what only the owner of the run may see."""
    for trajectory in trajectories:
        yield trajectory.without_oracle().model_dump()


def to_rows(trajectories: Iterable[Trajectory]) -> Iterator[dict[str, Any]]:
    """Columns of one type each; what may hold anything (`env`, `info`, `messages`, arguments) is JSON text."""
    for one in trajectories:
        row: dict[str, Any] = {name: getattr(one, name) for name in _SCALARS}
        row |= {
            "policy": one.policy.name,
            "model": one.policy.model,
            "sampling": json.dumps(one.policy.sampling),
            "prompt_tokens": one.usage.prompt_tokens,
            "completion_tokens": one.usage.completion_tokens,
            "cost": one.usage.cost,
            "total_seconds": one.seconds.get("total", 0.0),
            "env": json.dumps(one.env),
            "info": json.dumps(one.info),
            "tools": json.dumps([tool.openai() for tool in one.tools]),
            "messages": json.dumps(one.messages),
            "turns": [
                {name: getattr(turn, name) for name in _TURN_SCALARS}
                | {
                    "arguments": json.dumps(turn.arguments),
                    "info": json.dumps(turn.info),
                    "policy_seconds": turn.policy_seconds,
                    "prompt_tokens": turn.usage.prompt_tokens,
                    "completion_tokens": turn.usage.completion_tokens,
                }
                for turn in one.turns
            ],
            "segments": [
                {
                    "token_ids": list(segment.token_ids),
                    "loss_mask": list(segment.loss_mask),
                    "logprobs": list(segment.logprobs),
                    "versions": list(segment.versions),
                    "temperature": segment.temperature,
                }
                for segment in one.segments
            ],
        }
        yield row
