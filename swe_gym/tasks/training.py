"""Rows for trainers: the prompt and which task to open, without the oracle.

The columns are those that the data loaders of verl and rLLM read.
"""

import json

from ..types import JsonMapping, JsonObject, Task


def training_row(task: Task, index: int, source: str, source_options: JsonMapping) -> JsonObject:
    """Return a task as a row.

    Args:
        task: The task.
        index: Position of the row.
        source: Name of the task source.
        source_options: Arguments of the task source.

    Returns:
        `data_source`, `prompt` (a list of messages), `ability`, `reward_model` and `extra_info`, which holds the
        arguments of `SweEnv` for this task. `source_options` is JSON text, so that all sources share one schema.
    """
    return {
        "data_source": f"swe_gym/{source}",
        "prompt": [{"role": "user", "content": task.problem_statement}],
        "ability": "software engineering",
        "reward_model": {"style": "environment", "ground_truth": ""},
        "extra_info": {
            "index": index,
            "task_id": task.task_id,
            "repo": task.repo,
            "difficulty": task.difficulty,
            "image": task.image or "",
            "source": source,
            "source_options": json.dumps(dict(source_options), sort_keys=True),
        },
    }
