"""`TaskFilter`: which tasks are loaded."""

import pytest

from swe_gym.cli.common import TaskFilter
from swe_gym.cli.rollout_config import TaskConfig
from swe_gym.tasks.micro import MicroSource
from swe_gym.types import Task


class Watched(MicroSource):
    """A million tasks, and the ids of those that were loaded."""

    def __init__(self) -> None:
        super().__init__(difficulty=2)
        self.loaded: list[str] = []

    def get(self, task_id: str) -> Task:
        self.loaded.append(task_id)
        assert len(self.loaded) < 50, "too many tasks are loaded"
        return super().get(task_id)


FIRST = [f"micro-2-{number}" for number in range(3)]


def test_a_slice_of_a_million_tasks_loads_none() -> None:
    source = Watched()
    asked = TaskConfig(slice="0:3", source="micro", source_options={"difficulty": 2})
    assert (asked.ids(source), source.loaded) == (FIRST, [])
    assert (len(asked.model_copy(update={"shuffle": 1}).ids(source)), source.loaded) == (3, [])


@pytest.mark.parametrize("more", [{}, {"difficulty": "2"}, {"shuffle": 1}])
def test_only_the_tasks_that_are_returned_are_loaded(more: dict[str, str | int]) -> None:
    source = Watched()
    found = TaskFilter.model_validate({"slice": "0:3", **more}).tasks(source)
    assert [task.task_id for task in found] == source.loaded
    assert len(found) == 3


def test_a_condition_is_met_before_the_slice_is_taken() -> None:
    source = Watched()
    assert TaskFilter(slice="1:3", lines="1:").ids(source) == FIRST[1:]
    assert TaskFilter(limit=2, lines="1:").ids(source) == FIRST[:2]
    assert TaskFilter(slice="0:9:4", limit=2, lines="1:").ids(source) == ["micro-2-0", "micro-2-4"]
