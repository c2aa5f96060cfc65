"""One try at one episode of a rollout: it is played, cancelled or broken off, and always leaves a record."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from ..errors import PolicyError, SandboxClosed, SandboxError, TaskError, UsageError
from ..trajectories.run_folder import EpisodeKey, LiveFile, RunInfo
from ..trajectories.trajectory import MAX_DROPPED, PolicyInfo, Trajectory, Turn
from ..types import Verdict
from .episode import LiveEpisode, Phase
from .plan import Plan
from .policy import PolicyFactory
from .progress import Failure


class Try:
    """One try at one episode. A thread plays it, and another may look at it, cancel it and let go of it.

    Args:
        plan: What is played.
        run: The run that it belongs to.
        key: The episode.
        number: Of the try, from 1.
        start_file: Makes the file that the turns are written to, from the record of the beginning.

    Attributes:
        env: Its environment, which has no sandbox before `play` and none after it.
        started: When it began, by the monotonic clock.
        cancelled: Why it was cancelled; empty where it was not.
        cancelled_at: When, by the monotonic clock.
    """

    def __init__(
        self, plan: Plan, run: RunInfo, key: EpisodeKey, number: int, start_file: Callable[[Trajectory], LiveFile]
    ) -> None:
        self.key = key
        self.env = plan.make_env()
        self.started = time.monotonic()
        self.cancelled = ""
        self.cancelled_at = 0.0
        self._plan = plan
        self._run = run
        self._number = number
        self._date = now()
        self._start_file = start_file
        self._file: LiveFile | None = None
        self._episode: LiveEpisode | None = None
        self._claimed = False
        self._mutex = threading.Lock()

    @property
    def phase(self) -> Phase:
        """What it waits for."""
        return self._episode.phase if self._episode else "reset"

    def play(self, factory: PolicyFactory) -> tuple[Trajectory, Failure | None]:
        """Play it to its end. When it returns or raises, its sandboxes are gone.

        Returns:
            The record, and why it does not count, where it does not.

        Raises:
            Exception: Only for mistakes: of the plan, or in a policy's constructor, a grader or a reward.
        """
        seed = self._plan.episode_seed(self.key)
        failure: Failure | None = None
        try:
            policy = factory(self.env, seed=seed)
            self._episode = LiveEpisode(
                self.env, policy, budget=self._plan.budget, on_start=self._begin, on_turn=self._add_turn
            )
            record = self._episode.play(seed=seed, options={"task_id": self.key.task_id})
            if not record.reward_valid:
                failure = _failure_in_step(record, self.env.stats["failure"])
        except Exception as error:
            failure = self.cancellation() if self.cancelled else understand(error, self.phase)
            if failure is None:
                raise
            record = self.so_far()
        finally:
            self.env.close()
            if self._file is not None:
                self._file.close()
        if failure is None:
            return self._signed(record, verdict=_bounded(self.env.verdict)), None
        if self.cancelled:
            failure = self.cancellation()
        return self.failed_record(record, failure), failure

    def _begin(self, beginning: Trajectory) -> None:
        self._leave_if_cancelled()
        self._file = self._start_file(self._signed(beginning))

    def _add_turn(self, turn: Turn) -> None:
        if not (turn.terminated or turn.truncated):
            self._leave_if_cancelled()
        if self._file is not None:
            self._file.add(turn)

    def _leave_if_cancelled(self) -> None:
        """For a try that was cancelled before its sandbox was there to be closed."""
        if self.cancelled:
            raise SandboxClosed(f"cancelled: {self.cancelled}")

    def cancel(self, why: str) -> None:
        """End it soon. Returns at once: closing waits for a running tool to notice."""
        with self._mutex:
            if self.cancelled:
                return
            self.cancelled, self.cancelled_at = why, time.monotonic()
        threading.Thread(target=self.env.close, name="cancel", daemon=True).start()

    def cancellation(self) -> Failure:
        """That it was cancelled, as what it does not count for."""
        return Failure(self.cancelled, self.phase, f"cancelled: {self.cancelled}", retry=False, counts=False)

    def claim(self) -> bool:
        """True for the first who asks: whoever that is writes down its end."""
        with self._mutex:
            claimed, self._claimed = self._claimed, True
            return not claimed

    # --- records ----------------------------------------------------------------------------------------------

    def so_far(self) -> Trajectory:
        """The record as far as it got; from any thread."""
        try:
            if self._episode is not None:
                return self._episode.trajectory
        except UsageError:
            pass  # it was not reset yet
        return Trajectory(
            task_id=self.key.task_id,
            env=self.env.config,
            observation="",
            turns=(),
            outcome="running",
            reward_valid=False,
            resolved=False,
            reward=0.0,
            seconds={"total": time.monotonic() - self.started},
        )

    def failed_record(self, record: Trajectory, failure: Failure) -> Trajectory:
        """A record of a try that does not count."""
        return self._signed(
            record,
            outcome="running" if self.cancelled else "infra_failed",
            reason=failure.name,
            failure=failure.message,
            reward_valid=False,
            resolved=False,
            reward=0.0,
        )

    def _signed(self, record: Trajectory, **changes: Any) -> Trajectory:
        """With everything in it that only the run knows."""
        known = record.policy if record.policy.name else PolicyInfo(name=self._plan.policy)
        return record.model_copy(
            update={
                "attempt": self.key.attempt,
                "tries": self._number,
                "config_hash": self.key.config_hash,
                "experiment": self._run.experiment,
                "policy": known,
                "seed": self._plan.episode_seed(self.key),
                "started": self._date,
                **changes,
            }
        )


def _bounded(verdict: Verdict | None) -> Verdict | None:
    """A verdict as a record keeps it: a policy decides how much of its work was dropped."""
    if verdict is None or len(verdict.dropped) <= MAX_DROPPED:
        return verdict
    more = f"[... {len(verdict.dropped) - MAX_DROPPED} more]"
    return verdict.model_copy(update={"dropped": (*verdict.dropped[:MAX_DROPPED], more)})


def now() -> str:
    """Date and time (UTC, ISO 8601)."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def understand(error: Exception, phase: Phase) -> Failure | None:
    """What an exception means for the try; None where it is somebody's mistake and must be heard of."""
    reason = getattr(error, "reason", "")
    name = f"{type(error).__name__} ({reason})" if reason not in ("", "unknown") else type(error).__name__
    if isinstance(error, PolicyError):
        return Failure(name, "policy", str(error), retry=error.retryable)
    if phase == "policy" and not isinstance(error, UsageError):
        return Failure(name, "policy", str(error))
    if phase == "reset" and isinstance(error, SandboxError):
        return Failure(name, "reset", str(error), retry=error.retryable)
    if phase == "reset" and isinstance(error, TaskError):
        return Failure(name, "reset", str(error), retry=False, counts=False)
    return None


def _failure_in_step(record: Trajectory, message: str) -> Failure:
    """What the environment says of a step that failed."""
    broken_task = record.reason.startswith("TaskError")
    in_grading = record.seconds.get("grading", 0.0) > 0
    tool = record.turns[-1].tool if record.turns else ""
    call = "grading" if in_grading else f"step {tool}".rstrip()
    return Failure(record.reason, call, message, retry=not broken_task, counts=not broken_task)
