"""Prefix forks: a group that fails starts again from a point of an earlier success of its task.

A group whose episodes all fail has no gradient. Prefix Sampling ("Rollout Pass-Rate Control", arXiv 2605.05112) gives
it a head start: the first k of the n + 1 actions of a success are played again, and each of the G episodes of the new
group continues from there. The signal of a binary reward is largest at a pass rate of 1/2, so k is steered to it. After
a group in which the share s was resolved,

    k' = clip(k - sign(s - 1/2) ceil(n |s - 1/2| / 2), 1, n),

and k = ceil(n / 2) at first. As the policy learns, s rises and the prefix becomes shorter. The advantages of the group
are those of `objective`, over its G episodes alone: all of them start from one point. The prefix is part of the prompt
and has loss mask 0.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..envs import EpisodeCheckpoint
from ..errors import UsageError
from ..trajectories import Trajectory, Turn
from ..types import Json, JsonObject

logger = logging.getLogger(__name__)


def steer_length(length: int, share: float, longest: int) -> int:
    """Return the next length of a prefix: shorter if more than half of its group was resolved, longer if less was.

    Args:
        length: Number of actions of the prefix.
        share: Share of its group that was resolved.
        longest: Largest length: one action less than the success has.
    """
    step = math.ceil(longest * abs(share - 0.5) / 2)
    return max(1, min(longest, length - step if share > 0.5 else length + step))


class EarlierSuccess(NamedTuple):
    """A resolved episode from the start of a task, and the length of the prefix that the next group gets.

    Attributes:
        record: The episode, without what a replay does not need.
        length: Number of its actions that are played again.
    """

    record: Trajectory
    length: int

    @property
    def longest(self) -> int:
        """The largest length: the last action is never given."""
        return len(self.record.turns) - 1


class Prefixes:
    """The successes of a run by task, and how much of each is given.

    Args:
        facts: What `facts` returned, to resume.
        ignore: Regular expressions of text that may differ in a replay.

    Attributes:
        found: Task id -> its success: the shortest one, and of equally short ones the last.
    """

    def __init__(self, facts: Mapping[str, Json] | None = None, ignore: Sequence[str] = ()) -> None:
        self.found = {
            task_id: EarlierSuccess(Trajectory.model_validate(record), length)
            for task_id, (record, length) in (facts or {}).items()
        }
        self.ignore = tuple(ignore)

    def facts(self) -> JsonObject:
        """Return everything as plain JSON."""
        return {task_id: [one.record.model_dump(mode="json"), one.length] for task_id, one in self.found.items()}

    def add(self, trajectories: Iterable[Trajectory]) -> None:
        """Keep the successes among episodes from the start of their tasks, if more than one action made them."""
        for one in trajectories:
            known = self.found.get(one.task_id)
            count = len(one.turns)
            if not one.resolved or one.parent or count < 2 or (known and count > len(known.record.turns)):
                continue
            try:
                EpisodeCheckpoint.of_record(one, count - 1)  # the longest prefix
            except UsageError as error:
                logger.warning("a success of task %s gives no prefixes: %s", one.task_id, error)
                continue
            length = min(known.length, count - 1) if known else math.ceil((count - 1) / 2)
            self.found[one.task_id] = EarlierSuccess(_shorten(one), length)

    def add_demonstrations(self, trajectories: Iterable[Trajectory]) -> None:
        """Keep successes of other policies. Those that cannot be played again are left out, with a warning.

        Raises:
            UsageError: One is of the gold policy, or none can be played again.
        """
        for one in trajectories:
            if one.policy.name == "gold":
                raise UsageError(
                    f"collect.demonstrations: the gold policy applies the patch of {one.task_id} in one command, which "
                    "is what a model would learn from its prefixes: use episodes of another policy"
                )
            self.add([one])
        if not self.found:
            raise UsageError(
                "collect.demonstrations: no episode gives a prefix: it needs two actions from the start of its task "
                "and the environment of its record; the warnings say what is wrong with each"
            )

    def point(self, task_id: str) -> EpisodeCheckpoint:
        """Return the point from which the next group of a task starts.

        Raises:
            KeyError: The task has no success.
        """
        one = self.found[task_id]
        return EpisodeCheckpoint.of_record(one.record, one.length, ignore=self.ignore)

    def forget(self, task_id: str, why: str) -> None:
        """Forget the success of a task, if it has one, and warn."""
        if self.found.pop(task_id, None) is not None:
            logger.warning("the success of task %s is forgotten: %s", task_id, why)

    def steer(self, task_id: str, resolved: Sequence[bool]) -> None:
        """Set the length of the next prefix of a task after a group of it.

        Args:
            task_id: The task.
            resolved: Whether each episode of the group was, at least one.
        """
        one = self.found.get(task_id)
        if one is None:  # two groups of a task started from it, and it was forgotten after the other one
            return
        length = steer_length(one.length, sum(resolved) / len(resolved), one.longest)
        self.found[task_id] = one._replace(length=length)


_KEPT = ("task_id", "env", "seed", "observation", "reward_valid", "resolved", "reward", "outcome")
_KEPT_OF_TURNS = ("action", "observation", "terminated", "truncated", "seconds", "policy_seconds")


def _shorten(one: Trajectory) -> Trajectory:
    """Return what a replay needs of an episode. Checkpoints of the run hold it for every task."""
    turns = tuple(Turn(**{name: getattr(turn, name) for name in _KEPT_OF_TURNS}) for turn in one.turns)
    segments = tuple(
        part.model_copy(update={"logprobs": (0.0,) * len(part.token_ids), "versions": (-1,) * len(part.token_ids)})
        for part in one.segments
    )
    return Trajectory(**{name: getattr(one, name) for name in _KEPT}, turns=turns, segments=segments)


def find_failed(trajectories: Sequence[Trajectory], groups: Sequence[int]) -> dict[int, str]:
    """Return the groups of which no episode was resolved, with their tasks."""
    failed: dict[int, str] = {}
    for one, group in zip(trajectories, groups, strict=True):
        failed.setdefault(group, one.task_id)
    for one, group in zip(trajectories, groups, strict=True):
        if one.resolved:
            failed.pop(group, None)
    return failed
