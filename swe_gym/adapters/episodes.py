"""Whole episodes for frameworks that only ask for the result. An episode that the infrastructure lost is no error.

def make_policy(env, seed):
    return TokenPolicy(env, generator, template, seed=seed)

for episode in play_episodes([Slot("rota-month-end", seed=0)], make_env, make_policy, workers=64):
    episode.reward  # None: leave it out
"""

import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import gymnasium

from ..envs import SweEnv
from ..errors import TaskError
from ..rollout import EpisodeJob, EpisodePool
from ..rollout.policies import Policy
from ..trajectories import Trajectory
from .rows import Row, segment_row

logger = logging.getLogger(__name__)

RETRIES = 1
"""Further tries at an episode that the infrastructure lost."""

MakeEnv = Callable[[], gymnasium.Env[str, str]]
"""Makes an environment; nothing is started before its `reset`."""

MakePolicy = Callable[[gymnasium.Env[str, str], int | None], Policy]
"""Makes the policy of one episode, given its environment and seed."""


class Slot(NamedTuple):
    """An episode to play.

    Attributes:
        task_id: Task id.
        seed: Seed of the episode: attempts at one task differ by it.
    """

    task_id: str
    seed: int | None = None


class Episode(NamedTuple):
    """A played episode.

    Attributes:
        trajectory: Its record, without the oracle.
        failure: Why it does not count, for example "SandboxLost (oom)", or "no turn (context)" if its first prompt does
            not fit into the context; empty if it counts.
    """

    trajectory: Trajectory
    failure: str = ""

    @property
    def reward(self) -> float | None:
        """The reward; None if the episode does not count: it has no reward, not even 0."""
        return None if self.failure else self.trajectory.reward

    @property
    def rows(self) -> list[Row]:
        """One row for each segment to train on, in order; none if nothing was sampled."""
        return [segment_row(segment) for segment in self.trajectory.trained_segments]


class EpisodeBatch:
    """Episodes that are played together. Those that the infrastructure loses are retried.

    Args:
        slots: The episodes.
        make_env: Makes an environment for each try. The batch closes it.
        make_policy: Makes its policy, in the thread of the try.
        workers: Episodes that run at once.
        wall_clock: Seconds after which an episode is cancelled.
        retries: Further tries at an episode that the infrastructure lost.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        make_env: MakeEnv,
        make_policy: MakePolicy,
        *,
        workers: int = 1,
        wall_clock: float = math.inf,
        retries: int = RETRIES,
    ) -> None:
        self._slots = slots
        self._make_env, self._make_policy = make_env, make_policy
        self._losses: list[list[Trajectory]] = [[] for _ in slots]
        self._pool = EpisodePool(self._make_job, workers=workers, retries=retries, wall_clock=wall_clock)

    def play(self) -> list[Episode]:
        """Play every episode once, and return them in the order of the slots.

        Raises:
            UsageError: The configuration is invalid, or a task is unknown; then no episode has started.
            Exception: Another mistake in a policy's constructor, a grader or a reward.
        """
        self._check_slots()
        episodes: dict[int, Episode] = {}
        with self._pool:
            for job in self._pool.run(range(len(self._slots))):
                record, failure = job.outcome()
                if failure is None or not (failure.retry and self._pool.retry(job)):
                    name = failure.name if failure else _explain_no_turn(record)
                    _report(record, name)
                    episodes[job.key] = Episode(record.without_oracle(), name)
        return [episodes.get(index) or self._make_unplayed(index) for index in range(len(self._slots))]

    def cancel(self) -> None:
        """End every episode soon; `play` returns. May be called from any thread."""
        self._pool.cancel("cancelled")

    def _check_slots(self) -> None:
        """Raise the error of an unknown task."""
        with contextlib.closing(self._make_env()) as env, contextlib.suppress(TaskError):  # its episode reports that
            if isinstance(env.unwrapped, SweEnv):
                source = env.unwrapped.source
                ids = source.ids()  # may be long and computed: nothing iterates over it
                for task_id in {slot.task_id for slot in self._slots}:
                    if task_id not in ids:
                        source.get(task_id)

    def _make_job(self, index: int, number: int) -> EpisodeJob[int]:
        slot = self._slots[index]
        return EpisodeJob(
            index,
            number,
            self._make_env(),
            lambda env: self._make_policy(env, slot.seed),
            task_id=slot.task_id,
            seed=slot.seed,
            losses=self._losses[index],
        )

    def _make_unplayed(self, index: int) -> Episode:
        """Return the episode of a slot that was cancelled before it began, or before its retry."""
        with contextlib.closing(self._make_job(index, 1)) as job:
            job.cancelled, job.abandoned = "cancelled", True
            record, _ = job.outcome()
        return Episode(record.without_oracle(), job.cancelled)


def _explain_no_turn(record: Trajectory) -> str:
    """Return why an episode without a turn does not count; empty if it has turns."""
    return "" if record.turns else f"no turn ({record.reason})"


def _report(record: Trajectory, failure: str) -> None:
    """Log an episode that does not count: its framework may show no more than a smaller batch."""
    if failure == "no turn (context)":
        failure = "its first prompt does not fit into the context"
    if failure:
        logger.warning("task %s is left out: %s", record.task_id, failure)


def play_episodes(
    slots: Sequence[Slot],
    make_env: MakeEnv,
    make_policy: MakePolicy,
    *,
    workers: int = 1,
    wall_clock: float = math.inf,
) -> list[Episode]:
    """Play episodes, several at once. Arguments, result and errors are those of `EpisodeBatch`."""
    return EpisodeBatch(slots, make_env, make_policy, workers=workers, wall_clock=wall_clock).play()
