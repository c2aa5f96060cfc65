"""`TaskCurriculum`: the choice of the next task."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import RecordConstructorArgs

from ..envs import SweEnv
from ..errors import UsageError, unknown_name
from ..sandboxes import WarmPool
from ..spaces import AnyEnv, AnyWrapper, Info, ResetResult, StepResult
from ..tasks import ShuffledOrder


class Curriculum:
    """Chooses tasks and records their results. Environments may share one; it is thread-safe.

    Args:
        task_ids: Tasks to choose from.
        order: "uniform" draws tasks with equal probability. "round_robin" plays every task once before any twice, in
            the order of `task_ids`. "shuffled" does so in random order, another one in each pass: it draws without
            replacement.
            "pass_rate" prefers tasks that are sometimes solved: a task with pass rate p has the weight 4p(1-p), at
            least 0.05, and a new task counts as solved half the time.

    Raises:
        UsageError: There are no tasks, or the order is unknown.
    """

    def __init__(self, task_ids: Sequence[str], order: str = "uniform") -> None:
        if order not in ORDERS:
            raise unknown_name("curriculum order", order, ORDERS)
        if not task_ids:
            raise UsageError("a curriculum needs at least one task")
        self._task_ids = tuple(task_ids)
        self._choose = ORDERS[order]
        self._lock = threading.Lock()
        self._solved = dict.fromkeys(self._task_ids, 0)
        self._played = dict.fromkeys(self._task_ids, 0)
        self._chosen = 0
        self._shuffle: ShuffledOrder | None = None

    def __deepcopy__(self, memo: object) -> Curriculum:
        """Return itself: Gymnasium copies the arguments of wrappers to record them."""
        return self

    def next(self, rng: np.random.Generator) -> str:
        """Return the next task, drawn with `rng`."""
        with self._lock:
            task_id = self._choose(self, rng)
            self._chosen += 1
            return task_id

    def restart(self) -> None:
        """Let "shuffled" start over, with an order that the next choice draws."""
        with self._lock:
            if self._shuffle is not None:
                self._shuffle, self._chosen = None, 0

    def played(self, task_id: str, *, resolved: bool) -> None:
        """Record the result of a graded episode. Tasks outside the curriculum are ignored."""
        with self._lock:
            if task_id in self._played:
                self._played[task_id] += 1
                self._solved[task_id] += resolved

    def pass_rates(self) -> dict[str, float]:
        """Return the share of resolved episodes of each task played so far."""
        with self._lock:
            return {task: self._solved[task] / played for task, played in self._played.items() if played}

    def _uniform(self, rng: np.random.Generator) -> str:
        return self._task_ids[int(rng.integers(len(self._task_ids)))]

    def _round_robin(self, rng: np.random.Generator) -> str:  # noqa: ARG002  the others need it
        return self._task_ids[self._chosen % len(self._task_ids)]

    def _draw_shuffled(self, rng: np.random.Generator) -> str:
        if self._shuffle is None:
            self._shuffle = ShuffledOrder(len(self._task_ids), int(rng.integers(1 << 31)))
        return self._task_ids[self._shuffle[self._chosen]]

    def _pass_rate(self, rng: np.random.Generator) -> str:
        solved = np.array([self._solved[task] for task in self._task_ids], dtype=float)
        played = np.array([self._played[task] for task in self._task_ids], dtype=float)
        share = (solved + 1) / (played + 2)  # a prior of one success and one failure
        weights = np.maximum(4 * share * (1 - share), 0.05)
        return self._task_ids[int(rng.choice(len(self._task_ids), p=weights / weights.sum()))]


ORDERS: dict[str, Callable[[Curriculum, np.random.Generator], str]] = {
    "uniform": Curriculum._uniform,
    "round_robin": Curriculum._round_robin,
    "shuffled": Curriculum._draw_shuffled,
    "pass_rate": Curriculum._pass_rate,
}
"""Functions that choose the next task."""


class TaskCurriculum(AnyWrapper, RecordConstructorArgs):
    """Chooses the task of every episode for which `reset` names none.

    `reset(seed=...)` seeds the choice. In the vector version all environments share one curriculum, and the order in
    which they reset decides who gets the next task.

    Args:
        env: A `SweEnv`, wrapped or not.
        order: "uniform", "round_robin", "shuffled" or "pass_rate"; see `Curriculum`.
        task_ids: Tasks to choose from; None for all tasks of the source.
        curriculum: A shared curriculum, instead of `order` and `task_ids`.

    Raises:
        UsageError: There are no tasks, the order is unknown, or the environment is not a `SweEnv`.

    Attributes:
        curriculum: The curriculum in use.

    Change logs:
        * v0: Initial version.
    """

    def __init__(
        self,
        env: AnyEnv,
        order: str = "uniform",
        task_ids: Sequence[str] | None = None,
        curriculum: Curriculum | None = None,
    ) -> None:
        RecordConstructorArgs.__init__(self, order=order, task_ids=task_ids, curriculum=curriculum)
        gymnasium.Wrapper.__init__(self, env)
        self.curriculum = curriculum or make_curriculum(env, order, task_ids)
        self._shared = curriculum is not None
        self._rng = np.random.default_rng()
        self._next: str | None = None

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> ResetResult[Any]:
        """Start an episode with the next task, with `options["task_id"]`, or with that of `options["checkpoint"]`."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
            self._next = None
            if not self._shared:
                self.curriculum.restart()
        given = options or {}
        if given.get("task_id") is None and given.get("checkpoint") is None:
            options = {**(options or {}), "task_id": self._choose()}
            self._next = None
        return self.env.reset(seed=seed, options=options)

    def step(self, action: object) -> StepResult[Any]:
        """Take a step. At the end of the episode, record the result."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._count(info)
        return observation, float(reward), terminated, truncated, info

    def end(self, limit: str) -> StepResult[Any]:
        """End the episode as `SweEnv.end` does, and record the result."""
        result: StepResult[Any] = self.env.get_wrapper_attr("end")(limit)
        self._count(result[-1])
        return result

    def _count(self, info: Info) -> None:
        if info["reward_valid"]:
            self.curriculum.played(info["task_id"], resolved=info["resolved"])

    def prepare_next(self, pool: WarmPool) -> None:
        """Choose the next task and let `pool` start its sandbox; see `SweEnv.prepare_next`."""
        self.env.get_wrapper_attr("prepare_next")(pool, self._choose())

    def _choose(self) -> str:
        if self._next is None:
            self._next = self.curriculum.next(self._rng)
        return self._next


def make_curriculum(env: AnyEnv, order: str, task_ids: Sequence[str] | None) -> Curriculum:
    """Return a curriculum of these tasks, by default all tasks of the environment's source."""
    if not isinstance(env.unwrapped, SweEnv):
        raise UsageError(f"TaskCurriculum needs a SweEnv, not {type(env.unwrapped).__name__}")
    return Curriculum(env.unwrapped.source.ids() if task_ids is None else task_ids, order)
