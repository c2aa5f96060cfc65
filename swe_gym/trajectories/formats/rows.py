"""One row per trajectory: swe_gym's own format, flat rows for tables and parquet, and predictions for SWE-bench."""

import json
from collections.abc import Iterable, Iterator

from ...errors import UsageError
from ...files import load_arrow
from ...types import Json, JsonObject
from ..trajectory import Trajectory

_SCALARS = (
    "task_id repo attempt tries config_hash experiment env_id seed started observation outcome reason reward_valid "
    "resolved reward patch patch_bytes"
).split()
_TURN_SCALARS = ("action", "thought", "tool", "observation", "reward", "terminated", "truncated", "seconds", "parent")


def as_they_are(trajectories: Iterable[Trajectory]) -> Iterator[JsonObject]:
    """Yield the trajectories unchanged, except for the fields that only the owner of the run may see."""
    for trajectory in trajectories:
        yield trajectory.without_oracle().model_dump()


def from_swe_gym(row: JsonObject, name: str) -> Trajectory:  # noqa: ARG001  the row names its task
    """Return the trajectory of a row in swe_gym's own format."""
    return Trajectory.from_lines([row])


def to_rows(trajectories: Iterable[Trajectory]) -> Iterator[JsonObject]:
    """Yield flat rows with one type per column. Free-form fields (`env`, `info`, `messages`, ...) are JSON text."""
    for one in trajectories:
        row: JsonObject = {name: getattr(one, name) for name in _SCALARS}
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
                    "side_call": segment.side_call,
                }
                for segment in one.segments
            ],
        }
        yield row


def encodable(value: Json) -> Json:
    """Return the value with text that UTF-8 can encode: a model may write half a surrogate pair."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {key: encodable(part) for key, part in value.items()}
    if isinstance(value, list) and value and not isinstance(value[0], int | float):
        return [encodable(part) for part in value]
    return value


def row_schema() -> object:
    """Return the pyarrow schema of `to_rows`. It cannot be derived from rows: an empty list has no item type."""
    pa = load_arrow()
    text, integer, real, truth = pa.string(), pa.int64(), pa.float64(), pa.bool_()
    turn = {
        **_make_types(text, "action thought tool observation"),
        "reward": real,
        **_make_types(truth, "terminated truncated"),
        "seconds": real,
        **_make_types(text, "arguments info"),
        "policy_seconds": real,
        **_make_types(integer, "parent prompt_tokens completion_tokens"),
    }
    segment = {
        "token_ids": pa.list_(pa.int32()),
        "loss_mask": pa.list_(pa.int8()),
        "logprobs": pa.list_(real),
        "versions": pa.list_(pa.int32()),
        "temperature": real,
        "side_call": truth,
    }
    columns = {
        **_make_types(text, "task_id repo"),
        **_make_types(integer, "attempt tries"),
        **_make_types(text, "config_hash experiment env_id"),
        "seed": integer,
        **_make_types(text, "started observation outcome reason"),
        **_make_types(truth, "reward_valid resolved"),
        "reward": real,
        "patch": text,
        "patch_bytes": integer,
        **_make_types(text, "policy model sampling"),
        **_make_types(integer, "prompt_tokens completion_tokens"),
        **_make_types(real, "cost total_seconds"),
        **_make_types(text, "env info tools messages"),
        "turns": pa.list_(pa.struct(list(turn.items()))),
        "segments": pa.list_(pa.struct(list(segment.items()))),
    }
    return pa.schema(list(columns.items()))


def _make_types(kind: object, names: str) -> JsonObject:
    return dict.fromkeys(names.split(), kind)


def to_predictions(trajectories: Iterable[Trajectory]) -> Iterator[JsonObject]:
    """Yield `instance_id`, `model_name_or_path` and `model_patch`, one row per task.

    If only the beginning of a patch was recorded, it cannot be applied and `model_patch` is empty. Episodes that
    started from a checkpoint are omitted: a part of their work is another policy's.

    Raises:
        UsageError: A task has two attempts; the harness accepts one.
    """
    seen: set[str] = set()
    for one in trajectories:
        if one.parent:
            continue
        if one.task_id in seen:
            raise UsageError(f"{one.task_id} was attempted more than once: export a single attempt (--attempt 0)")
        seen.add(one.task_id)
        yield {
            "instance_id": one.task_id,
            "model_name_or_path": one.policy.model or one.policy.name or "swe-gym",
            "model_patch": "" if one.patch_bytes else one.patch,
        }
