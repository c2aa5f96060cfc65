"""How far a rollout is, in numbers."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Iterable
from typing import NamedTuple

from pydantic import Field

from ..trajectories.run_folder import IndexLine
from ..trajectories.trajectory import Trajectory, Usage
from ..types import Frozen

WINDOW = 50
"""Tries that the rate of failures is taken from: the last ones."""

FEWEST = 20
"""Tries before which no rate is taken."""


class Progress(Frozen):
    """One count of a rollout. All but the rates include what earlier processes did in the same folder.

    Attributes:
        experiment: The name of the run.
        total: Episodes that are asked for.
        done: Episodes that were judged.
        resolved: Those of them that solved their task.
        done_before: Those of them that were finished when this process began.
        running: Episodes that are being played now.
        sandboxes: Those of them whose sandbox has come up.
        waiting: What the running episodes wait for: "reset", "policy", "step" -> count.
        given_up: Episodes that were tried and are not done, in this process: the next run tries them again.
        outcomes: What ended the judged episodes -> count: "submit", "turns", "tokens" and so on.
        failures: Tries of this process that do not count, by name -> count: "SandboxLost (oom)", "TaskError".
        first_failures: What the first of each name said. It may quote hidden tests, and is not in `progress.json`.
        turns: Of the judged episodes, together.
        usage: Of the judged episodes, and of the failed tries of this process.
        seconds: Since this process began.
        tokens_per_second: Of this process, read and written.
        per_hour: Episodes that this process judges in an hour; 0 before the first.
        eta: Seconds until the end at this rate; None where it cannot be told.
        stopping: Why no more episodes are started; empty where they are.
    """

    experiment: str
    total: int
    done: int
    resolved: int
    done_before: int
    running: int
    sandboxes: int
    waiting: dict[str, int]
    given_up: int
    outcomes: dict[str, int]
    failures: dict[str, int]
    first_failures: dict[str, str] = Field(default={}, exclude=True)
    turns: int
    usage: Usage
    seconds: float
    tokens_per_second: float
    per_hour: float
    eta: float | None
    stopping: str = ""

    @property
    def mean_turns(self) -> float:
        """Of the judged episodes."""
        return self.turns / self.done if self.done else 0.0

    @property
    def resolved_rate(self) -> float:
        """Share of the judged episodes that solved their task."""
        return self.resolved / self.done if self.done else 0.0

    @property
    def failed_tries(self) -> int:
        """Tries that do not count."""
        return sum(self.failures.values())


class Failure(NamedTuple):
    """Why a try does not count.

    Attributes:
        name: Of its kind, for counting: "SandboxStartError (image)".
        call: What was being done: "reset", "step bash", "grading", "policy".
        message: In full.
        retry: Whether playing it again may help.
        counts: Whether it speaks against the infrastructure; a cancelled episode and a broken task do not.
    """

    name: str
    call: str
    message: str
    retry: bool = True
    counts: bool = True


class Tally:
    """Counts what happens. Its methods may be called from any thread.

    Args:
        experiment: The name of the run.
        total: Episodes that are asked for.
        before: Those of them that are finished already.
    """

    def __init__(self, experiment: str, total: int, before: Iterable[IndexLine]) -> None:
        self._experiment = experiment
        self._total = total
        self._mutex = threading.Lock()
        self._started = time.monotonic()
        self._outcomes: collections.Counter[str] = collections.Counter()
        self._failures: collections.Counter[str] = collections.Counter()
        self._examples: dict[str, Failure] = {}
        self._window: collections.deque[bool] = collections.deque(maxlen=WINDOW)
        self._done = self._resolved = self._turns = 0
        self._usage = self._used_here = Usage()
        for entry in before:
            self._count(entry.reason, entry.resolved, entry.turns)
            self._usage += entry.usage
        self._done_before = self._done

    def _count(self, reason: str, resolved: bool, turns: int) -> None:
        self._done += 1
        self._resolved += resolved
        self._turns += turns
        self._outcomes[reason] += 1

    def finished(self, trajectory: Trajectory) -> None:
        """An episode was judged."""
        with self._mutex:
            self._count(trajectory.reason, trajectory.resolved, len(trajectory.turns))
            self._use(trajectory.usage)
            self._window.append(False)

    def failed(self, failure: Failure, usage: Usage) -> None:
        """A try does not count."""
        with self._mutex:
            self._failures[failure.name] += 1
            self._examples.setdefault(failure.name, failure)
            self._use(usage)
            if failure.counts:
                self._window.append(True)

    def _use(self, usage: Usage) -> None:
        self._usage += usage
        self._used_here += usage

    @property
    def usage(self) -> Usage:
        """What was used, by earlier processes too."""
        with self._mutex:
            return self._usage

    @property
    def seconds(self) -> float:
        """Since this process began."""
        return time.monotonic() - self._started

    def too_many_failures(self, limit: float) -> str:
        """What fails, in words, where more than a share of `limit` of the last tries did; else empty."""
        with self._mutex:
            tries, failed = len(self._window), sum(self._window)
            if tries < FEWEST or failed <= limit * tries:
                return ""
            worst = [self._examples[name] for name, _ in self._failures.most_common() if self._examples[name].counts]
            kinds = "; ".join(f"{self._failures[one.name]} x {one.name} in {one.call}" for one in worst[:3])
            return (
                f"{failed} of the last {tries} tries failed, which is more than {limit:.0%}: {kinds}. "
                f"The first of them said: {worst[0].message}"
            )

    def snapshot(self, waiting: Iterable[str], given_up: int, stopping: str) -> Progress:
        """The count now.

        Args:
            waiting: What each running episode waits for; "over" if for nothing.
            given_up: Episodes that this process tried and will not try again.
            stopping: Why no more episodes are started.
        """
        phases = collections.Counter(phase for phase in waiting if phase != "over")
        with self._mutex:
            seconds = self.seconds
            here = self._done - self._done_before
            left = self._total - self._done - given_up
            return Progress(
                experiment=self._experiment,
                total=self._total,
                done=self._done,
                resolved=self._resolved,
                done_before=self._done_before,
                running=sum(phases.values()),
                sandboxes=sum(phases.values()) - phases["reset"],
                waiting={name: phases[name] for name in ("reset", "policy", "step")},
                given_up=given_up,
                outcomes=dict(self._outcomes.most_common()),
                failures=dict(self._failures.most_common()),
                first_failures={name: first.message for name, first in self._examples.items()},
                turns=self._turns,
                usage=self._usage,
                seconds=seconds,
                tokens_per_second=self._used_here.tokens / seconds if seconds else 0.0,
                per_hour=here / seconds * 3600 if seconds else 0.0,
                eta=left * seconds / here if here and not stopping else None,
                stopping=stopping,
            )
