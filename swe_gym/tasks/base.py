"""The protocol of task sources, the base of those that list their tasks, and choices: splits, random orders."""

from __future__ import annotations

import abc
import difflib
import functools
import hashlib
import io
import math
from collections.abc import Mapping, Sequence
from typing import Generic, Protocol, TypeVar, runtime_checkable

import numpy as np

from ..errors import TaskError, UsageError, unknown_name
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


def split_lines(text: str) -> list[str]:
    """Return the lines of a text with their ends. Only a newline ends one, as in a diff."""
    return list(io.StringIO(text, newline="\n"))


def write_diff(path: str, before: str | None, after: str) -> str:
    """Return a git diff of one file; `before` is None if it is new. Texts must end with a newline."""
    head = f"diff --git a/{path} b/{path}\n" + ("new file mode 100644\n" if before is None else "")
    old, new = ("/dev/null" if before is None else f"a/{path}"), f"b/{path}"
    return head + "".join(difflib.unified_diff(split_lines(before or ""), split_lines(after), old, new))


def changed_lines(diff: str) -> int:
    """Return the number of lines that a git diff adds and removes."""
    count, in_hunk = 0, False
    for line in diff.split("\n"):
        if line.startswith("@@"):
            in_hunk = True
        elif line.startswith("diff --git "):
            in_hunk = False
        elif in_hunk and line.startswith(("+", "-")):
            count += 1
    return count


def split_by_repository(
    repos: Mapping[str, str], parts: Mapping[str, float], *, seed: int = 0
) -> dict[str, tuple[str, ...]]:
    """Split tasks so that no repository is in two parts: a policy trained on one part has never seen the others.

    Repositories stay whole, so shares are approximate: from the largest to the smallest, each goes to the part that
    misses most tasks. The same tasks, parts and seed give the same result on every machine.

    Args:
        repos: Task id -> repository. A task without a repository counts as one of its own.
        parts: Name -> share, in any unit: `{"train": 8, "test": 2}`.
        seed: Seed that orders repositories of equal size.

    Returns:
        Name -> task ids, in the order of `repos`.

    Raises:
        UsageError: A share is not positive, or there are fewer repositories than parts.
    """
    if not parts or not all(0 < share < math.inf for share in parts.values()):
        raise UsageError(f"the share of every part must be a positive number: {dict(parts)}")
    members: dict[str, list[str]] = {}
    for task_id, repo in repos.items():
        members.setdefault(repo.lower() or f"task {task_id}", []).append(task_id)
    if len(members) < len(parts):
        raise UsageError(f"{len(members)} repositories cannot be split into {len(parts)} parts")
    total, shares = len(repos), sum(parts.values())
    missing = {name: total * share / shares for name, share in parts.items()}
    part_of: dict[str, str] = {}
    rank = {repo: hashlib.sha256(f"{seed} {repo}".encode()).hexdigest() for repo in members}
    for repo in sorted(members, key=lambda repo: (-len(members[repo]), rank[repo])):
        empty = {name for name in parts if name not in part_of.values()}
        left = len(members) - len(part_of)
        name = max(empty if left == len(empty) else parts, key=missing.__getitem__)
        part_of[repo] = name
        missing[name] -= len(members[repo])
    return {
        name: tuple(task for task, repo in repos.items() if part_of[repo.lower() or f"task {task}"] == name)
        for name in parts
    }


class ShuffledOrder:
    """Numbers tasks in random order: each task once before any twice, and each pass in another order.

    A place of the order depends on count and seed only, so whoever resumes needs no more than the next place.

    Args:
        count: Number of tasks.
        seed: Seed of the order, 0 or more.
    """

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed = count, seed
        self._pass = -1
        self._numbers = np.arange(0)

    def __getitem__(self, place: int) -> int:
        """Return the number of the task at a place, from 0."""
        number, inside = divmod(place, self.count)
        if number != self._pass:
            self._pass = number
            self._numbers = np.random.default_rng([self.seed, number]).permutation(self.count)
        return int(self._numbers[inside])
