"""Environments for the rows that `swe-gym tasks export --to NAME` writes."""

import json
from collections.abc import Mapping
from typing import Any

import gymnasium

from ..envs.swe_env import SweEnv
from ..errors import UsageError


def make_env(row: Mapping[str, Any], env_args: Mapping[str, Any], env_id: str | None = None) -> Any:
    """Make the environment of a row; nothing is started before its `reset`.

    Args:
        row: Its `source` and `source_options` name the task source.
        env_args: Arguments of `SweEnv`, such as `backend`, `tools` and `max_turns`.
        env_id: Registered environment id to make instead, with the same arguments.

    Raises:
        UsageError: An argument is invalid, or the row names no task source.
    """
    if env_id:
        return gymnasium.make(env_id, disable_env_checker=True, **env_args)
    if "source" not in row:
        raise UsageError("the row names no task source: export it with `swe-gym tasks export`, or set env_id")
    return SweEnv(row["source"], json.loads(row.get("source_options") or "{}"), **env_args)
