"""The protocol of task sources, and the base of those that list their tasks."""

import abc
import functools
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar, runtime_checkable

from ..errors import TaskError, unknown_name
from ..types import Task

ItemT = TypeVar("ItemT")


@runtime_checkable
class TaskSource(Protocol):
    """Where tasks come from. Ids are cheap; a task is built on demand.

    Any thread may call both methods.
    """

    def ids(self) -> Sequence[str]:
        """Return the ids of all tasks, in a stable order."""
        ...

    def get(self, task_id: str) -> Task:
        """Return the task of an id.

        Raises:
            UsageError: The id is unknown; the message suggests the nearest.
            TaskError: The task's data is broken; the message names file, row and field.
        """
        ...


class ListedSource(abc.ABC, Generic[ItemT]):
    """Base of task sources that hold one item for each id, from which the task is built."""

    def __init__(self) -> None:
        self._items: dict[str, ItemT] = {}

    def add(self, task_id: str, item: ItemT) -> None:
        """Add an item.

        Raises:
            TaskError: Another item has the id.
        """
        if task_id in self._items:
            raise TaskError(f"{self.place(item)}: {self.place(self._items[task_id])} already has the id {task_id!r}")
        self._items[task_id] = item

    @functools.cached_property
    def _ids(self) -> tuple[str, ...]:
        return tuple(self._items)

    def ids(self) -> Sequence[str]:
        """Return the ids of all tasks."""
        return self._ids

    def get(self, task_id: str) -> Task:
        """Return the task of an id.

        Raises:
            UsageError: The id is unknown; the message suggests the nearest.
            TaskError: The task's data is broken; the message names file and field.
        """
        if task_id not in self._items:
            raise unknown_name("task", task_id, self._items)
        return self.build(task_id, self._items[task_id])

    def place(self, item: ItemT) -> str:
        """Return where an item is, for messages."""
        return str(item)

    @abc.abstractmethod
    def build(self, task_id: str, item: ItemT) -> Task:
        """Build the task of an item."""
