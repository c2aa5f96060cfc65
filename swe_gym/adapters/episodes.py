"""Whole episodes for frameworks that only ask for the result, and episodes as the rows that trainers take.

    def make_policy(env, seed):
        return TokenPolicy(env, generator, template, seed=seed)

    for episode in play_episodes([Slot("rota-month-end", seed=0)], make_env, make_policy, workers=64):
        episode.reward  # None: leave it out

An episode that the infrastructure lost is no error. One rule for episodes of several segments: each segment is a row,
and all rows carry the episode's reward. A framework that takes one row per prompt plays conversations that only grow
(`TokenPolicy(..., append_only=True)`), which are one segment. So every sampled token stands in exactly one row.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import gymnasium

from ..envs import SweEnv
from ..errors import TaskError
from ..rollout import EpisodeJob, EpisodePool
from ..rollout.policies import Policy
from ..spaces import Info
from ..trajectories import Segment, Trajectory

logger = logging.getLogger(__name__)

TICK = 0.2
"""Seconds of one wait for something that another thread does."""


class Row(NamedTuple):
    """One prompt and the response to it.

    Attributes:
        prompt_ids: Token ids before the first sampled token.
        response_ids: The sampled tokens, and those of the environment between them.
        mask: 1 for sampled tokens of the response, 0 for others.
        logprobs: Log-probabilities of the sampler; 0.0 where the mask is 0.
        versions: Version of the weights that sampled each token; -1 where the mask is 0.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    mask: list[int]
    logprobs: list[float]
    versions: list[int]


def segment_row(segment: Segment) -> Row:
    """Return a segment as a row. Its first sampled token starts the response."""
    start = segment.loss_mask.index(1)
    return Row(
        prompt_ids=list(segment.token_ids[:start]),
        response_ids=list(segment.token_ids[start:]),
        mask=list(segment.loss_mask[start:]),
        logprobs=list(segment.logprobs[start:]),
        versions=list(segment.versions[start:]),
    )


def single_row(rows: Sequence[Row], pad: int, *, masked: bool) -> Row:
    """Return the row of an episode for a framework that needs exactly one for each prompt.

    Args:
        rows: Rows of a conversation that only grew: one, or none if nothing was sampled.
        pad: Token that stands for an episode without a sampled token.
        masked: Whether nothing is trained, because the episode does not count.
    """
    row = rows[0] if rows else Row([pad], [pad], [0], [0.0], [-1])
    return row._replace(mask=[0] * len(row.mask)) if masked else row


OF_A_VERDICT = ("resolved", "fail_to_pass_passed", "fail_to_pass_total", "pass_to_pass_passed", "pass_to_pass_total")
"""Values of the info that only a graded episode has."""

METRICS = ("resolved", "turn", "cheat_signs", "alarms", "fail_to_pass_passed", "fail_to_pass_total")
"""Values of the info that are averaged."""


def known_numbers(info: Info, names: Iterable[str]) -> dict[str, float]:
    """Return values of the info as numbers, without those that are unknown.

    They are unknown if the episode was not graded. Counts of passed tests are also unknown, -1, if the reward did not
    need them; then the totals beside them are left out too.

    Args:
        info: Last info of the episode.
        names: Names of values. Those that the info lacks are left out.
    """
    unknown = set(OF_A_VERDICT) if not info["reward_valid"] else set()
    for kind in ("fail_to_pass", "pass_to_pass"):
        if info.get(f"{kind}_passed", 0) < 0:
            unknown |= {f"{kind}_passed", f"{kind}_total"}
    return {name: float(info[name]) for name in names if name in info and name not in unknown}


def outcome_shares(info: Info) -> dict[str, float]:
    """Return whether the episode ended at a limit or was lost, as numbers whose mean is a share of the episodes.

    Args:
        info: Last info of the episode.
    """
    return {name: float(info["outcome"] == name) for name in ("agent_limit", "infra_failed")}


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
