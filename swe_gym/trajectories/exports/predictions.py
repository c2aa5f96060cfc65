"""Predictions for SWE-bench's harness."""

from collections.abc import Iterable, Iterator

from ...errors import UsageError
from ...types import JsonObject
from ..trajectory import Trajectory


def to_predictions(trajectories: Iterable[Trajectory]) -> Iterator[JsonObject]:
    """Yield `instance_id`, `model_name_or_path` and `model_patch`, one row per task.

    If only the beginning of a patch was recorded, it cannot be applied and `model_patch` is empty.

    Raises:
        UsageError: A task has two attempts; the harness accepts one.
    """
    seen: set[str] = set()
    for one in trajectories:
        if one.task_id in seen:
            raise UsageError(f"{one.task_id} was attempted more than once: export a single attempt (--attempt 0)")
        seen.add(one.task_id)
        yield {
            "instance_id": one.task_id,
            "model_name_or_path": one.policy.model or one.policy.name or "swe-gym",
            "model_patch": "" if one.patch_bytes else one.patch,
        }
