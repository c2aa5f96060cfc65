"""The generator of a run, shared by episodes and weight syncs, with the time that it was in use."""

import threading
import time
from collections.abc import Callable, Sequence

from ..errors import PolicyError
from ..rollout.tokens import Completion
from .generators import TrainGenerator

SYNC_TIMEOUT = 1800.0
"""Seconds that a weight sync waits for running answers, and an answer for a weight sync."""


class SyncedSampler:
    """A `TrainGenerator` whose weights may be synced while episodes run.

    A sync waits for the answers that are being sampled, and new answers wait for the sync. Tools, tests and sandboxes
    continue. So all tokens of one answer come from one version of the weights.

    Args:
        generator: The generator. `close` closes it.
    """

    def __init__(self, generator: TrainGenerator) -> None:
        self._generator = generator
        self._changed = threading.Condition()
        self._running = 0
        self._syncing = self._closed = False
        self._busy, self._since = 0.0, time.monotonic()

    def generate(self, prompt: Sequence[int], *, max_tokens: int, temperature: float, seed: int | None) -> Completion:
        """See `Generator`."""
        with self._changed:
            self._wait_until(lambda: not self._syncing)
            self._count(1)
        try:
            return self._generator.generate(prompt, max_tokens=max_tokens, temperature=temperature, seed=seed)
        finally:
            with self._changed:
                self._count(-1)

    def sync_weights(self, version: int) -> None:
        """Sync the weights between two answers; see `TrainGenerator`."""
        with self._changed:
            self._syncing = True
        try:
            with self._changed:
                self._wait_until(lambda: not self._running)
            self._generator.sync_weights(version)
        finally:
            with self._changed:
                self._syncing = False
                self._changed.notify_all()

    def busy_seconds(self) -> float:
        """Return the wall-clock time during which at least one answer was being sampled, since the start."""
        with self._changed:
            self._count(0)
            return self._busy

    def close(self) -> None:
        """End waiting calls, and close the generator."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._generator.close()

    def _count(self, change: int) -> None:
        now = time.monotonic()
        if self._running:
            self._busy += now - self._since
        self._since = now
        self._running += change
        self._changed.notify_all()

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        if not self._changed.wait_for(lambda: self._closed or condition(), SYNC_TIMEOUT):
            raise PolicyError(
                f"a weight sync and running answers waited {SYNC_TIMEOUT:.0f} s for each other", reason="timeout"
            )
        if self._closed:
            raise PolicyError("the generator was closed", reason="closed")
