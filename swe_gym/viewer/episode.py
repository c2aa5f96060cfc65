"""A trajectory as JSON for a page."""

from __future__ import annotations

from typing import Any

from ..trajectories.imports.chat import text_of
from ..trajectories.trajectory import Trajectory


def as_page(trajectory: Trajectory, *, first_turn: int = 0) -> dict[str, Any]:
    """Return a trajectory as plain JSON, with counts in place of tokens and the system prompt in place of messages.

    Args:
        trajectory: The trajectory.
        first_turn: Index of the first turn to return.
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
