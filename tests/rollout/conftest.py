"""Small real tasks, valid and invalid ones."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from swe_gym.envs.registration import register_families
from swe_gym.envs.swe_env import SweEnv
from swe_gym.errors import TaskError, unknown_name
from swe_gym.tasks.file import write_tasks
from swe_gym.types import PythonEnv, Task

register_families()


class SmallSource:
    """Tasks made from what the test wants."""

    def __init__(self, tasks: dict[str, Task | Exception]) -> None:
        self.tasks = tasks

    def ids(self) -> Sequence[str]:
        return tuple(self.tasks)

    def get(self, task_id: str) -> Task:
        if task_id not in self.tasks:
            raise unknown_name("task", task_id, self.tasks)
        task = self.tasks[task_id]
        if isinstance(task, Exception):
            raise task
        return task


@pytest.fixture
def env_of_adder(adder: Task, tmp_path: Path) -> Iterator[Callable[..., SweEnv]]:
    """Environments on the good task, closed after the test."""
    path = tmp_path / "tasks.jsonl"
    write_tasks([adder], path)
    made: list[SweEnv] = []

    def make(**arguments: Any) -> SweEnv:
        made.append(SweEnv("file", {"path": str(path)}, **arguments))
        return made[-1]

    yield make
    for env in made:
        env.close()


@pytest.fixture
def source(adder: Task) -> SmallSource:
    """One good task, and one of every kind of bad one."""
    gold = adder.oracle.gold_patch

    def variant(task_id: str, **oracle: object) -> Task:
        return adder.model_copy(update={"task_id": task_id, "oracle": adder.oracle.model_copy(update=oracle)})

    return SmallSource(
        {
            "adder": adder,
            "wrong-gold": variant("wrong-gold", gold_patch=gold.replace("a + b", "a * b")),
            "no-gold": variant("no-gold", gold_patch=""),
            "stale-gold": variant("stale-gold", gold_patch=gold.replace("a - b", "b - a")),
            "empty-passes": variant(
                "empty-passes", fail_to_pass=("tests.test_add.AddTest.test_nothing",), pass_to_pass=()
            ),
            "other-python": adder.model_copy(update={"task_id": "other-python", "python": PythonEnv(version="2.9")}),
            "bad-row": TaskError("row 6: no workspace"),
        }
    )
