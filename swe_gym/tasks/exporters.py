"""Exporters: how the tasks of a source become the files and rows that a trainer's data loader reads."""

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path

from ..errors import UsageError
from ..files import write_table, write_text
from ..registry import Registry
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


REGISTRY_VERSION = 2
"""Version of rLLM's dataset registry."""

TaskExporter = Callable[[Sequence[Task], Path, str, JsonMapping], None]
"""Writes the rows of tasks to a file, given the name of their source and the source's arguments."""

TASK_EXPORTERS = Registry[TaskExporter](
    "trainer",
    {"rllm": "swe_gym.tasks.exporters:write_rllm", "verl": "swe_gym.tasks.exporters:write_verl"},
    group="swe_gym.task_exporters",
)
"""Trainer -> its exporter."""


def by_image(tasks: Iterable[Task]) -> list[Task]:
    """Return tasks in the order of their images, so that those with one image are neighbours."""
    return sorted(tasks, key=lambda task: task.image or "")


def write_verl(tasks: Sequence[Task], file: Path, source: str, source_options: JsonMapping) -> None:
    """Write the table that verl reads.

    Args:
        tasks: The tasks.
        file: The table: .parquet, .jsonl or .json.
        source: Name of the task source.
        source_options: Arguments of the task source.
    """
    write_table((verl_row(task, number, source, source_options) for number, task in enumerate(tasks)), file)


def write_rllm(tasks: Sequence[Task], file: Path, source: str, source_options: JsonMapping) -> None:
    """Write a split of a dataset into rLLM's registry, as its `DatasetRegistry.register_dataset` does.

    Args:
        tasks: The tasks.
        file: `FOLDER/NAME/SPLIT.parquet`, where FOLDER is `$RLLM_HOME/datasets`, by default `~/.rllm/datasets`.
        source: Name of the task source.
        source_options: Arguments of the task source.

    Raises:
        UsageError: The file has another name, or the registry there has another format.
    """
    if file.suffix != ".parquet" or file.absolute().parent.parent.name != "datasets":
        raise UsageError(
            f"{file}: rLLM finds a split of a dataset at datasets/NAME/SPLIT.parquet below its home: write, for "
            f"example, ~/.rllm/datasets/{source}/train.parquet"
        )
    folder = file.absolute().parent.parent
    registry = _read_registry(folder / "registry.json")
    rows = [rllm_row(task, number, source, source_options) for number, task in enumerate(tasks)]
    write_table(rows, file)
    placeholder = {
        "prompt": [{"role": "user", "content": "placeholder"}],
        "reward_model": {"style": "rule", "ground_truth": None},
    }
    write_table(({**placeholder, "extra_info": row} for row in rows), file.with_name(f"{file.stem}_verl.parquet"))
    dataset = registry["datasets"].setdefault(file.absolute().parent.name, {"metadata": {}, "splits": {}})
    dataset["splits"][file.stem] = {
        "path": str(file.absolute().relative_to(folder)),
        "num_examples": len(rows),
        "fields": list(dict.fromkeys(chain.from_iterable(rows))),
    }
    write_text(folder / "registry.json", json.dumps(registry, indent=2))


def _read_registry(file: Path) -> JsonObject:
    if not file.exists():
        return {"version": REGISTRY_VERSION, "datasets": {}}
    try:
        registry = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{file} is not JSON: {error}") from None
    if not isinstance(registry, dict) or registry.get("version") != REGISTRY_VERSION:
        raise UsageError(f"{file} is not a dataset registry of version {REGISTRY_VERSION}: let rLLM convert it first")
    return registry
