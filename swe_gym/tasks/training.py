"""Rows for trainers: the prompt and which task to open, without the oracle."""

import json
from collections.abc import Sequence

from ..types import JsonMapping, JsonObject, Task, ToolSpec

AGENT_NAME = "swe_gym"
"""Name under which verl finds the agent loop of `swe_gym.adapters.verl`."""


def task_columns(task: Task, source: str, source_options: JsonMapping) -> JsonObject:
    """Return the columns that open a task.

    `source_options` is JSON text, so that all sources share one schema.
    """
    return {
        "task_id": task.task_id,
        "repo": task.repo,
        "difficulty": task.difficulty,
        "image": task.image or "",
        "source": source,
        "source_options": json.dumps(dict(source_options), sort_keys=True),
    }


def verl_row(task: Task, index: int, source: str, source_options: JsonMapping) -> JsonObject:
    """Return a task as verl's `RLHFDataset` reads it.

    Returns:
        `data_source`, `prompt` (a list of messages), `ability`, `reward_model`, `agent_name` and `extra_info`, which
        holds the columns that open the task.
    """
    return {
        "data_source": f"swe_gym/{source}",
        "agent_name": AGENT_NAME,
        "prompt": [{"role": "user", "content": task.problem_statement}],
        "ability": "software engineering",
        "reward_model": {"style": "environment", "ground_truth": ""},
        "extra_info": {"index": index, **task_columns(task, source, source_options)},
    }


def rllm_row(task: Task, index: int, source: str, source_options: JsonMapping) -> JsonObject:
    """Return a task as a row of rLLM's datasets: `data_source`, `instruction` and the columns that open the task."""
    return {
        "data_source": f"swe_gym/{source}",
        "index": index,
        "instruction": task.problem_statement,
        **task_columns(task, source, source_options),
    }


def nemo_row(task: Task, tools: Sequence[ToolSpec], *, system: str = "", agent: str = "swe_agent") -> JsonObject:
    """Return a task as a row of NeMo Gym. The environment adds the issue as the first message.

    Args:
        task: The task.
        tools: The tools of the environment.
        system: System prompt; empty for none.
        agent: Name of the agent in NeMo Gym's configuration.
    """
    return {
        "responses_create_params": {
            "input": [{"role": "system", "content": system}] if system else [],
            "tools": [{"type": "function", "strict": False, **tool.model_dump()} for tool in tools],
        },
        "verifier_metadata": {"task_id": task.task_id},
        "agent_ref": {"type": "responses_api_agents", "name": agent},
    }
