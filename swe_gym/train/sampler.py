"""The generator of a run: shared by episodes and weight syncs, and checked against the trainer's log-probabilities."""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from ..errors import PolicyError, SweGymError
from ..rollout.tokens import ChatTemplate, Completion, TokenConversation
from .batch import Batch, segments_batch
from .generators import TrainGenerator, WeightsLost, announce_learning
from .learner import Learner, OldLogprobs
from .objective import ess, kl

logger = logging.getLogger(__name__)

SYNC_TIMEOUT = 1800.0
"""Seconds that a weight sync waits for running answers, and an answer for a weight sync."""

RESTORES = 2
"""Number of times that an answer is asked for again because the sampler lost the weights."""


class TrainingStopped(SweGymError):
    """Training cannot continue; the message says why. The last checkpoint is intact."""


class SyncedSampler:
    """A `TrainGenerator` whose weights may be synced while episodes run.

    A sync waits for the answers that are being sampled, and new answers wait for the sync. Tools, tests and sandboxes
    continue. So all tokens of one answer come from one version of the weights.

    If the generator lost the weights, they are sent again and the answer is asked for again: the episode continues.

    Args:
        generator: The generator. `close` closes it.
    """

    def __init__(self, generator: TrainGenerator) -> None:
        self._generator = generator
        self._changed = threading.Condition()
        self._running = 0
        self._syncing = self._learning = self._closed = False
        self._version = self._syncs = 0
        self._gone: TrainingStopped | None = None
        self._busy, self._since = 0.0, time.monotonic()

    def generate(self, prompt: Sequence[int], *, max_tokens: int, temperature: float, seed: int | None) -> Completion:
        """See `Generator`.

        Raises:
            TrainingStopped: The generator lost the weights and does not take them again.
        """
        for left in reversed(range(RESTORES + 1)):
            with self._changed:
                self._wait_until(lambda: not self._syncing)
                self._count(1)
                syncs = self._syncs
            try:
                return self._generator.generate(prompt, max_tokens=max_tokens, temperature=temperature, seed=seed)
            except WeightsLost as error:
                if not left:
                    raise
                lost = error
            finally:
                with self._changed:
                    self._count(-1)
            self._restore(lost, syncs)
        raise AssertionError("unreachable")

    def begin_learning(self) -> None:
        """Announce that the model's weights change until the next sync: what was lost waits for that sync.

        Raises:
            PolicyError: The generator failed to free its memory.
        """
        with self._changed:
            self._learning = True
        announce_learning(self._generator)

    def sync_weights(self, version: int) -> None:
        """Sync the weights between two answers; see `TrainGenerator`."""
        with self._changed:
            self._wait_until(lambda: not self._syncing)
            self._syncing = True
        self._send(version)

    def _restore(self, lost: WeightsLost, syncs: int) -> None:
        """Send the weights again, unless they were synced since the answer was asked for."""
        with self._changed:
            self._wait_until(lambda: self._syncs != syncs or not (self._syncing or self._learning))
            if self._syncs != syncs:
                return
            self._syncing = True
        logger.warning("%s. Sending weights %d again", lost, self._version)
        try:
            self._send(self._version)
        except PolicyError as error:
            with self._changed:
                if self._closed:
                    raise
                self._gone = TrainingStopped(f"the sampler lost weights {self._version} and did not take them: {error}")
                self._changed.notify_all()
                raise self._gone from error

    def _send(self, version: int) -> None:
        try:
            with self._changed:
                self._wait_until(lambda: not self._running)
            self._generator.sync_weights(version)
            with self._changed:
                self._version, self._learning = version, False
                self._syncs += 1
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
        if not self._changed.wait_for(lambda: self._closed or self._gone or condition(), SYNC_TIMEOUT):
            raise PolicyError(
                f"a weight sync and running answers waited {SYNC_TIMEOUT:.0f} s for each other", reason="timeout"
            )
        if self._closed:
            raise PolicyError("the generator was closed", reason="closed")
        if self._gone is not None:
            raise self._gone


_QUESTION = "What is two and two?"


def mismatch(batch: Batch, old: OldLogprobs) -> dict[str, float]:
    """Compare the log-probabilities of sampler and trainer under the same weights.

    Returns:
        Metrics: the mean and largest absolute difference, the k3 estimate of the KL divergence, and the effective
        sample size of the importance weights as a share. Empty without sampled tokens.
    """
    if not batch.tokens:
        return {}
    difference = old.logprobs - batch.sampler
    return {
        "logprob_diff": float(difference.abs().mean()),
        "logprob_diff_max": float(difference.abs().max()),
        "sampler_kl": float(kl(batch.sampler, old.logprobs).mean()),
        "ess": ess(difference.exp()),
    }


def check_logprob_diff(difference: float, limit: float, update: int) -> None:
    """Check that a mean difference of log-probabilities is finite and within its limit.

    Raises:
        TrainingStopped: It is not.
    """
    if not difference <= limit:  # NaN compares false
        raise TrainingStopped(
            f"after update {update}: the mean log-probabilities of sampler and trainer differ by {difference:.2f}, "
            f"more than generation.max_logprob_diff = {limit}: their weights or their precision differ, or the "
            "sampler modifies the logits"
        )


def sync_weights(
    generator: TrainGenerator, learner: Learner, template: ChatTemplate, *, version: int, limit: float
) -> float:
    """Sync the weights to the generator, then check its log-probabilities of an answer to a fixed question.

    Args:
        generator: The generator.
        learner: The learner that has the weights.
        template: The chat template of the model.
        version: The number of the weights.
        limit: The largest mean difference to accept.

    Returns:
        The mean absolute difference between sampler and trainer.

    Raises:
        TrainingStopped: The difference is above the limit: the weights did not arrive.
        PolicyError: The generator failed.
    """
    learner.gather()
    generator.sync_weights(version)
    conversation = TokenConversation(template, [{"role": "user", "content": _QUESTION}])
    prompt = conversation.prompt
    conversation.answer(generator.generate(prompt, max_tokens=16, temperature=1.0, seed=0), 1.0)
    batch = segments_batch([conversation.segments])
    difference = mismatch(batch, learner.compute_logprobs(batch)).get("logprob_diff", 0.0)
    check_logprob_diff(difference, limit, version)
    return difference
