"""One trajectory as a page takes it."""

from __future__ import annotations

from typing import Any

from ..trajectories.imports.chat import text_of
from ..trajectories.trajectory import Trajectory


def as_page(trajectory: Trajectory, *, first_turn: int = 0) -> dict[str, Any]:
    """What is shown of a trajectory, as plain JSON.

    Rows of tokens are for trainers: of them only the counts are left, and of the conversation only what the policy was
    told before it began. `verdict` and `failure` are passed on where they are there.

    Args:
        trajectory: The record.
        first_turn: Turns before it are left out; the page knows them.
    """
    shown = trajectory.model_dump(exclude={"segments", "messages", "turns", "tools", "env"})
    shown["tools"] = [tool.name for tool in trajectory.tools]
    shown["system"] = [text_of(message) for message in trajectory.messages if message.get("role") == "system"]
    shown["segments"] = [
        {"tokens": len(segment.token_ids), "sampled": sum(segment.loss_mask)} for segment in trajectory.segments
    ]
    shown["first_turn"] = first_turn
    shown["turns"] = [turn.model_dump() for turn in trajectory.turns[first_turn:]]
    return shown
