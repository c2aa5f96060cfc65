"""Parquet: the columns of the format "rows", and text that parquet can hold."""

from __future__ import annotations

from typing import Any

from ...tables import load_arrow


def encodable(value: Any) -> Any:
    """Return the value with text that UTF-8 can encode: a model may write half a surrogate pair."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {key: encodable(part) for key, part in value.items()}
    if isinstance(value, list) and value and not isinstance(value[0], int | float):
        return [encodable(part) for part in value]
    return value


def row_schema() -> Any:
    """Return the pyarrow schema of `to_rows`. It cannot be derived from rows: an empty list has no item type."""
    pa = load_arrow()
    text, integer, real, truth = pa.string(), pa.int64(), pa.float64(), pa.bool_()
    turn = {
        **dict.fromkeys(("action", "thought", "tool", "observation"), text),
        "reward": real,
        **dict.fromkeys(("terminated", "truncated"), truth),
        "seconds": real,
        **dict.fromkeys(("arguments", "info"), text),
        "policy_seconds": real,
        **dict.fromkeys(("prompt_tokens", "completion_tokens"), integer),
    }
    segment = {
        "token_ids": pa.list_(pa.int32()),
        "loss_mask": pa.list_(pa.int8()),
        "logprobs": pa.list_(real),
        "versions": pa.list_(pa.int32()),
        "temperature": real,
    }
    columns = {
        **dict.fromkeys(("task_id", "repo"), text),
        **dict.fromkeys(("attempt", "tries"), integer),
        **dict.fromkeys(("config_hash", "experiment", "env_id"), text),
        "seed": integer,
        **dict.fromkeys(("started", "observation", "outcome", "reason"), text),
        **dict.fromkeys(("reward_valid", "resolved"), truth),
        "reward": real,
        **dict.fromkeys(("patch", "policy", "model", "sampling"), text),
        **dict.fromkeys(("prompt_tokens", "completion_tokens"), integer),
        **dict.fromkeys(("cost", "total_seconds"), real),
        **dict.fromkeys(("env", "info", "tools", "messages"), text),
        "turns": pa.list_(pa.struct(list(turn.items()))),
        "segments": pa.list_(pa.struct(list(segment.items()))),
    }
    return pa.schema(list(columns.items()))
