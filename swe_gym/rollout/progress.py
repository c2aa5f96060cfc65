"""`Progress` and `Tally`: how far a rollout is. Budgets of tokens, money and time, for one episode or a whole run."""

import collections
import hashlib
import time
from collections.abc import Iterable
from typing import NamedTuple

from pydantic import Field

from ..errors import UsageError
from ..grading import Patch
from ..trajectories import Prices, Trajectory, Usage
from ..trajectories.run_folder import IndexLine
from ..types import Frozen

WINDOW = 50
"""Number of last tries that the failure rate is computed from."""

FEWEST = 20
"""Number of tries before the failure rate is computed."""


class Progress(Frozen):
    """The state of a rollout. Counts include earlier processes in the same folder; rates do not.

    Attributes:
        experiment: Run name.
        total: Episodes of the plan, without those that are settled.
        settled: Episodes that `early_stop` leaves out: the votes on their tasks are certain.
        done: Graded episodes.
        resolved: Graded episodes that resolved their task.
        done_before: Graded episodes when this process started.
        running: Episodes that run now.
        sandboxes: Running episodes whose sandbox has started.
        waiting: Running episodes by what they wait for: "reset", "policy" or "step".
        given_up: Episodes that failed in this process; the next run retries them.
        outcomes: Graded episodes by stop reason, for example "submit", "turns" or "tokens".
        failures: Failed tries of this process by name, for example "SandboxLost (oom)".
        first_failures: First message of each name. It may quote hidden tests and is not in `progress.json`.
        turns: Sum of the turns of the graded episodes.
        usage: Usage of all tries so far: graded, failed and running ones.
        seconds: Seconds since this process started.
        tokens_per_second: Prompt and completion tokens per second in this process.
        per_hour: Episodes that this process grades per hour; 0 before the first.
        eta: Seconds until the end at this rate; None if unknown.
        stopping: Why no more episodes start; empty while they do.
    """

    experiment: str
    total: int
    settled: int = 0
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
        """Mean number of turns of the graded episodes."""
        return self.turns / self.done if self.done else 0.0

    @property
    def resolved_rate(self) -> float:
        """Share of the graded episodes that resolved their task."""
        return self.resolved / self.done if self.done else 0.0

    @property
    def failed_tries(self) -> int:
        """Number of failed tries."""
        return sum(self.failures.values())


class Failure(NamedTuple):
    """Why a try does not count.

    Attributes:
        name: Name under which it is counted, for example "SandboxStartError (image)".
        call: The call that failed: "reset", "step bash", "grading" or "policy".
        message: Full message.
        retry: Whether another try may succeed.
        counts: Whether it counts towards the failure rate. Cancelled episodes and broken tasks do not.
    """

    name: str
    call: str
    message: str
    retry: bool = True
    counts: bool = True


class Tally:
    """The counters behind `Progress`.

    Args:
        experiment: Run name.
        total: Episodes of the plan.
        before: Episodes that earlier processes graded.
        spent: Usage of all tries of earlier processes, failed ones included.
    """

    def __init__(self, experiment: str, total: int, before: Iterable[IndexLine], spent: Usage | None = None) -> None:
        self._experiment = experiment
        self._total = total
        self._started = time.monotonic()
        self._outcomes: collections.Counter[str] = collections.Counter()
        self._failures: collections.Counter[str] = collections.Counter()
        self._examples: dict[str, Failure] = {}
        self._window: collections.deque[bool] = collections.deque(maxlen=WINDOW)
        self._done = self._resolved = self._turns = 0
        self._usage, self._used_here = spent or Usage(), Usage()
        for entry in before:
            self._count(entry.reason, entry.resolved, entry.turns)
        self._done_before = self._done

    def _count(self, reason: str, resolved: bool, turns: int) -> None:
        self._done += 1
        self._resolved += resolved
        self._turns += turns
        self._outcomes[reason] += 1

    def finished(self, trajectory: Trajectory) -> None:
        """Count a graded episode."""
        self._count(trajectory.reason, trajectory.resolved, len(trajectory.turns))
        self._use(trajectory.usage)
        self._window.append(False)

    def failed(self, failure: Failure, usage: Usage) -> None:
        """Count a failed try."""
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
        """Usage of the tries that have ended, earlier processes included."""
        return self._usage

    @property
    def seconds(self) -> float:
        """Seconds since this process started."""
        return time.monotonic() - self._started

    def too_many_failures(self, limit: float) -> str:
        """Return what fails if the failure rate of the last tries is above `limit`; else an empty string."""
        tries, failed = len(self._window), sum(self._window)
        if tries < FEWEST or failed <= limit * tries:
            return ""
        worst = [self._examples[name] for name, _ in self._failures.most_common() if self._examples[name].counts]
        kinds = "; ".join(f"{self._failures[one.name]} x {one.name} in {one.call}" for one in worst[:3])
        return (
            f"{failed} of the last {tries} tries failed, more than {limit:.0%}: {kinds}. "
            f"The first message: {worst[0].message}"
        )

    def snapshot(
        self, waiting: Iterable[str], running: Usage, given_up: int, stopping: str, settled: int = 0
    ) -> Progress:
        """Return the state now.

        Args:
            waiting: What each running episode waits for; "over" if nothing.
            running: Usage of the running episodes so far.
            given_up: Episodes that failed and are not tried again by this process.
            stopping: Why no more episodes start.
            settled: Episodes that are left out of the plan.
        """
        phases = collections.Counter(phase for phase in waiting if phase != "over")
        seconds = self.seconds
        here = self._done - self._done_before
        total = self._total - settled
        left = total - self._done - given_up
        return Progress(
            experiment=self._experiment,
            total=total,
            settled=settled,
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
            usage=self._usage + running,
            seconds=seconds,
            tokens_per_second=(self._used_here + running).tokens / seconds if seconds else 0.0,
            per_hour=here / seconds * 3600 if seconds else 0.0,
            eta=left * seconds / here if here and not stopping else None,
            stopping=stopping,
        )


class PatchVotes:
    """The patches of the attempts at each task, which vote as for the selector "votes".

    Args:
        attempts: Number of attempts at each task.
    """

    def __init__(self, attempts: int) -> None:
        self._attempts = attempts
        self._forms: dict[str, list[bytes]] = collections.defaultdict(list)  # digests; empty without work

    def add(self, one: Trajectory) -> None:
        """Count the vote of an attempt. An empty patch has none, and one that was recorded in part equals no other."""
        form = Patch.normalize(one.patch)
        whole = f"{one.attempt}\0{form}" if one.patch_bytes else form
        digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).digest()
        self._forms[one.task_id].append(digest if whole else b"")

    def is_settled(self, task_id: str) -> bool:
        """Return whether no other patch can get as many votes as the one that leads."""
        forms = self._forms[task_id]
        left = self._attempts - len(forms)
        most, second = [*(count for _, count in collections.Counter(filter(None, forms)).most_common(2)), 0, 0][:2]
        return most > second + left


class RolloutBudget(Frozen):
    """Limits on what a policy uses. None means no limit.

    An episode that exhausts its budget ends before the next action and is graded. A run that exhausts its budget
    starts no more episodes; running episodes finish.

    Attributes:
        tokens: Prompt and completion tokens, as the server counts them.
        cost: US dollars. A run without a price is refused.
        seconds: Wall-clock time since the start of the sandbox or the run.
    """

    tokens: int | None = Field(default=None, ge=1)
    cost: float | None = Field(default=None, gt=0)
    seconds: float | None = Field(default=None, gt=0)

    def used_up(self, usage: Usage, seconds: float) -> str:
        """Return the first limit that is reached: "tokens", "cost" or "time"; empty if none is.

        Limits of tokens and cost are reached once the server did not tell the tokens of an answer.
        """
        for name, used, limit in (
            ("tokens", usage.tokens, self.tokens),
            ("cost", usage.cost, self.cost),
            ("time", seconds, self.seconds),
        ):
            if limit is None:
                continue
            if (usage.uncounted and name != "time") or (used is not None and used >= limit):
                return name
        return ""


def check_price(price: Prices | None, what: str, *budgets: RolloutBudget) -> None:
    """Check that a cost which a budget limits can be counted.

    Args:
        price: The prices; None if they are unknown.
        what: What has them, for the message.
        budgets: The budgets.

    Raises:
        UsageError: A budget limits the cost, and there is no price.
    """
    if price is None and any(budget.cost is not None for budget in budgets):
        raise UsageError(
            f"the budget limits the cost, but the price of {what} is unknown: set policy.prices.input "
            "and policy.prices.output, in dollars per million tokens"
        )
