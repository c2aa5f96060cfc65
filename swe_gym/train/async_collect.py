"""Plays groups of episodes while the trainer trains. An episode lives across weight updates until it ends.

Groups are trained as they become complete, not in the order in which they were drawn. A slow group stays in flight over
several updates; none is discarded.
"""

import dataclasses
import itertools
import threading
from collections.abc import Collection, Sequence

from ..rollout import CLOSE_TIMEOUT, Failure
from ..trajectories import Trajectory
from .collect import ACTIVITIES, Collector, PlayedBatch, TrainEpisodeJob, TrainSlot, activities

End = Trajectory | Failure | None
"""How an episode ended; None while it is in flight."""


@dataclasses.dataclass(slots=True)
class _DrawnEpisode:
    """An episode that was drawn and not trained on yet."""

    slot: TrainSlot
    end: End = None
    losses: list[Trajectory] = dataclasses.field(default_factory=list)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)


class AsyncCollector:
    """Plays the episodes of one collector in a thread of its own.

    Args:
        collector: Makes the episodes.
        temperature: Sampling temperature.
    """

    def __init__(self, collector: Collector, temperature: float) -> None:
        self._collector, self._temperature = collector, temperature
        self._changed = threading.Condition()
        self._entries: dict[int, _DrawnEpisode] = {}  # in the order of the draw
        self._numbers = itertools.count()
        self._closed = False
        self._error: BaseException | None = None
        self._pool = collector.pool(self._make)
        self._thread = threading.Thread(target=self._run, name="episodes-in-flight", daemon=True)
        self._thread.start()

    @property
    def groups(self) -> int:
        """Number of groups that were added and not taken."""
        with self._changed:
            return len({entry.slot.group for entry in self._entries.values()})

    def add(self, slots: Sequence[TrainSlot], ends: Sequence[End] = ()) -> None:
        """Queue the episodes of slots, whole groups at a time.

        Args:
            slots: The slots.
            ends: How the episodes ended in an earlier process. Those without an end start from their seed.
        """
        entries = [_DrawnEpisode(slot, end) for slot, end in itertools.zip_longest(slots, ends)]
        with self._changed:
            keyed = {next(self._numbers): entry for entry in entries}
            self._entries |= keyed
            self._changed.notify_all()
            if not self._closed:
                self._pool.add(key for key, entry in keyed.items() if entry.end is None)

    def take(self, count: int, chosen: Collection[int] = ()) -> PlayedBatch:
        """Wait until groups are complete, and remove them.

        Args:
            count: Number of groups; the first drawn of those that are complete.
            chosen: Wait for these groups instead.

        Raises:
            Exception: A mistake in the configuration, a policy or a reward, which ended an episode.
        """
        with self._changed:
            while not (wanted := self._choose_groups(count, chosen)):
                if self._error is not None:
                    raise self._error
                self._changed.wait()
            taken = [self._entries.pop(key) for key, one in list(self._entries.items()) if one.slot.group in wanted]
        return self._make_batch(taken)

    def _choose_groups(self, count: int, chosen: Collection[int]) -> list[int]:
        """Return the groups to take now; empty if they are not complete."""
        complete: dict[int, bool] = {}
        for entry in self._entries.values():
            group = entry.slot.group
            complete[group] = complete.get(group, True) and entry.end is not None
        found = [group for group, whole in complete.items() if whole and (not chosen or group in chosen)]
        return found[:count] if len(found) >= (len(chosen) or count) else []

    def _make_batch(self, taken: Sequence[_DrawnEpisode]) -> PlayedBatch:
        seconds = {name: sum(entry.seconds.get(name, 0.0) for entry in taken) for name in ACTIVITIES}
        return PlayedBatch.of(
            [(entry.slot, entry.end) for entry in taken if entry.end is not None],
            {"all": sum(seconds.values()) / self._collector.workers, **seconds, "idle": 0.0},
        )

    def in_flight(self) -> list[tuple[TrainSlot, End]]:
        """Return the episodes that were added and not taken, for a checkpoint."""
        with self._changed:
            return [(entry.slot, entry.end) for entry in self._entries.values()]

    def close(self) -> None:
        """End every episode. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._pool.cancel("closed")
        self._pool.join(CLOSE_TIMEOUT)

    def _run(self) -> None:
        try:
            with self._pool:
                while self._has_work():
                    for episode in self._pool.run(()):
                        self._finish(episode)
        except BaseException as error:  # noqa: BLE001  `take` raises it
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _has_work(self) -> bool:
        """Wait for slots. Returns False once the collector is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or any(one.end is None for one in self._entries.values()))
            return not self._closed

    def _make(self, key: int, number: int) -> TrainEpisodeJob:
        entry = self._entries[key]
        return self._collector.episode(key, number, entry.slot, entry.losses, self._temperature)

    def _finish(self, episode: TrainEpisodeJob) -> None:
        record, failure = episode.outcome()
        entry = self._entries[episode.key]
        for name, spent in activities(episode, record if failure is None else None).items():
            entry.seconds[name] = entry.seconds.get(name, 0.0) + spent
        if failure is not None and failure.retry and self._pool.retry(episode):
            return
        with self._changed:
            entry.end = failure or record.without_oracle()
            self._changed.notify_all()
