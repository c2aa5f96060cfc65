"""What a task source is."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from ..types import Task


@runtime_checkable
class TaskSource(Protocol):
    """Where tasks come from. Ids are cheap, a task is built when it is asked for.

    Both methods may be called from any thread.
    """

    def ids(self) -> Sequence[str]:
        """The ids of all tasks, in the source's own, stable order."""
        ...

    def get(self, task_id: str) -> Task:
        """The task of that id.

        Raises:
            UsageError: There is none; the message suggests the nearest.
            TaskError: Its row is broken; the message names file, row and field.
        """
        ...
