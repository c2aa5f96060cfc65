"""SWE-bench predictions: what its harness judges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ...errors import UsageError
from ..trajectory import Trajectory


def to_predictions(trajectories: Iterable[Trajectory]) -> Iterator[dict[str, Any]]:
    """`instance_id`, `model_name_or_path` and `model_patch`, one row per task.

    A patch of which only the beginning was kept cannot be applied: its row has an empty `model_patch`.

    Raises:
        UsageError: Two attempts at one task: the harness takes one.
    """
    seen: set[str] = set()
    for one in trajectories:
        if one.task_id in seen:
            raise UsageError(f"{one.task_id} was attempted more than once: export one attempt at a time")
        seen.add(one.task_id)
        yield {
            "instance_id": one.task_id,
            "model_name_or_path": one.policy.model or one.policy.name or "swe-gym",
            "model_patch": "" if one.patch_bytes else one.patch,
        }
