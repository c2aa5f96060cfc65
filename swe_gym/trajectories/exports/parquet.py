"""Rows as a Parquet file, which `datasets.load_dataset("parquet", data_files=...)` reads too."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...errors import MissingDependency, UsageError

GROUP = 200
"""Rows that are held in memory at a time."""


def write_parquet(rows: Iterable[dict[str, Any]], path: Path) -> int:
    """Write rows to a Parquet file, a few at a time.

    The columns of the form "rows" have fixed types; those of other forms are told from the first rows.

    Returns:
        How many rows were written; where there is none, no file is.

    Raises:
        MissingDependency: pyarrow is not installed.
        UsageError: The rows have no columns of one type each.
    """
    try:
        import pyarrow  # type: ignore[import-untyped]  # it has no stubs
        import pyarrow.parquet  # type: ignore[import-untyped]  # it has no stubs
    except ImportError as error:
        raise MissingDependency("parquet files need pyarrow: pip install 'swe-gym[parquet]'") from error
    remaining = iter(rows)
    count, writer = 0, None
    try:
        while group := list(itertools.islice(remaining, GROUP)):
            group = [_encodable(row) for row in group]
            try:
                if writer is None:
                    schema = _schema(pyarrow) if "turns" in group[0] else pyarrow.Table.from_pylist(group).schema
                    writer = pyarrow.parquet.ParquetWriter(path, schema, compression="zstd")
                writer.write_table(pyarrow.Table.from_pylist(group, schema=schema))
            except pyarrow.ArrowException as error:
                raise UsageError(f"these rows have no columns of one type each ({error}): write .jsonl") from error
            count += len(group)
    finally:
        if writer is not None:
            writer.close()
    return count


def _encodable(value: Any) -> Any:
    """Text that UTF-8 can carry: a model may write half of a surrogate pair."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {key: _encodable(part) for key, part in value.items()}
    if isinstance(value, list) and value and not isinstance(value[0], int | float):
        return [_encodable(part) for part in value]
    return value


def _schema(pa: Any) -> Any:
    """The columns of `to_rows`: an empty list says nothing of what it would hold."""
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
