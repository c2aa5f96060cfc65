"""One try at one episode, as a job of a pool: it ends, fails or is cancelled, and always leaves a record.

A lost sandbox is excused once; a second loss by the same actions counts against the policy.
"""

import contextlib
import functools
import logging
import re
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

import gymnasium

from ..envs import EpisodeCheckpoint, shared_source
from ..errors import PolicyError, ReplayError, SandboxClosed, SandboxError, TaskError, UsageError
from ..grading.in_place import judging_seconds
from ..sandboxes import SandboxSpec, WarmPool
from ..trajectories import MAX_DROPPED, PolicyInfo, Trajectory, Turn, Usage
from ..trajectories.run_folder import EpisodeKey
from ..types import JsonObject, Verdict
from .episode import make_episode
from .plan import Plan, without_secrets
from .policies import (
    EpisodeSettings,
    HostedPolicy,
    Player,
    Policy,
    PolicyFactory,
    ReportingPolicy,
    check_resumes,
    make_players,
)
from .policies.base import Phase, RunningEpisode, answer_for
from .pool import DriverLink, Job, Key
from .progress import Failure, RolloutBudget

logger = logging.getLogger(__name__)


class EpisodeJob(Job[Key]):
    """One try at one episode.

    Args:
        key: The episode.
        number: Number of the try, from 1.
        env: A `SweEnv`, wrapped or not. The job closes it.
        make_policy: Makes the policy.
        task_id: The task.
        seed: Seed of the episode.
        budget: What the policy may use.
        losses: Records of earlier tries at this episode that lost their sandboxes in a call of the policy. The job
            adds its own.
        warm: Starts the sandbox ahead, if the pool of episodes prepares the job.
        point: Point of another episode at which it starts; None for the start of the task.

    Attributes:
        record: The trajectory, once `run` has returned. Its `failure` may quote hidden tests.
        failure: Why it does not count; None if it does.
    """

    record: Trajectory
    failure: Failure | None = None
    _hosted: Policy | None = None  # the policy of an episode that runs on a node
    _phase: Phase = "reset"  # of an episode that runs on a node

    def __init__(
        self,
        key: Key,
        number: int,
        env: gymnasium.Env[str, str],
        make_policy: Callable[[gymnasium.Env[str, str]], Policy | Player],
        *,
        task_id: str,
        seed: int | None = None,
        budget: RolloutBudget | None = None,
        losses: list[Trajectory] | None = None,
        warm: WarmPool | None = None,
        point: EpisodeCheckpoint | None = None,
    ) -> None:
        super().__init__(key, number)
        self._env: Any = env
        self._make_policy = make_policy
        self._task_id = task_id
        self._seed = seed
        self._budget = budget or RolloutBudget()
        self._losses = [] if losses is None else losses
        self._warm = warm
        self._wanted: SandboxSpec | None = None  # the sandbox that starts ahead, until it is used
        self._point = point
        self._episode: RunningEpisode | None = None

    def prepare(self) -> None:
        """Begin to start the sandbox. An error is left to `run`, which meets it again."""
        env = self._env.unwrapped
        if self._warm is not None:
            env.use_pool(self._warm)
            with contextlib.suppress(Exception):
                spec = env.spec_of(self._task_id)
                self._wanted = spec if self._warm.want(spec) else None

    @property
    def phase(self) -> Phase:
        """What the episode waits for."""
        return self._episode.phase if self._episode else self._phase

    def run(self) -> None:
        """Play the episode. The sandboxes are closed when it returns or raises.

        Raises:
            Exception: A mistake in the configuration, a policy's constructor, a grader or a reward.
        """
        failure: Failure | None = None
        try:
            with contextlib.closing(self._env):
                policy = self._make_policy(self._env)
                settings = EpisodeSettings(self._budget, self._begin, self._add_turn, self._add_usage)
                self._episode = make_episode(self._env, policy, settings)
                branch = {"checkpoint": self._point} if self._point else {}
                record = self._episode.play(seed=self._seed, options={"task_id": self._task_id, **branch})
                if not record.reward_valid:
                    failure = _failure_in_step(record, self._env.unwrapped.stats["failure"])
        except Exception as error:
            failure = self.understand(error) or (self.cancellation() if self.cancelled else None)
            if failure is None:
                raise
            record = self.so_far()
        finally:
            self._unwant()
        self._decide(record, failure)

    def _decide(self, record: Trajectory, failure: Failure | None) -> None:
        """Set `record` and `failure`: a loss that repeats an earlier one counts, with reward 0."""
        if failure is None:
            self.record = self._sign(record)
            return
        self.failure = self.cancellation() if self.cancelled else failure
        self.record = self.failed_record(record, self.failure)
        failure = self.failure
        logger.warning("%s in %s: %s", failure.name, failure.call, failure.message, extra=self.ids)
        if self.cancelled or not lost_in_a_call(self.record):
            return
        if lost_by_policy(self.record, self._losses):
            logger.warning("the same actions lost the sandbox twice: reward 0")
            self.record, self.failure = charge(self.record), None
        else:
            self._losses.append(self.record)

    def close(self) -> None:
        """Close the environment, and a sandbox that was started ahead and not used."""
        self._env.close()
        self._unwant()

    def _unwant(self) -> None:
        wanted, self._wanted = self._wanted, None
        if wanted is not None and self._warm is not None:
            self._warm.unwant(wanted)

    def cancellation(self) -> Failure:
        """Return the failure of a cancelled try."""
        return Failure(self.cancelled, self.phase, f"cancelled: {self.cancelled}", retry=False, counts=False)

    def understand(self, error: Exception) -> Failure | None:
        """Return what an exception means for the try; None if it is a mistake that must be raised."""
        return understand(error, self.phase)

    def outcome(self) -> tuple[Trajectory, Failure | None]:
        """Return the record of a try that has ended or was abandoned, and why it does not count."""
        if not (self.abandoned or self.error or self.lost):
            return self.record, self.failure
        failure = self.cancellation()
        if self.lost and not self.cancelled:  # whatever the node did, the episode and the policy did not do it
            failure = Failure(f"NodeLost ({self.lost.reason})", self.phase, str(self.lost), counts=False)
        elif self.error and not self.abandoned:
            failure = Failure(type(self.error).__name__, self.phase, str(self.error), retry=False, counts=False)
        return self.failed_record(self.so_far(), failure), failure

    # --- an episode that runs on a node ------------------------------------------------------------------------

    def result(self) -> object:
        """Return the record and why it does not count."""
        return self.record, self.failure

    def take(self, result: tuple[Trajectory, Failure | None]) -> None:
        """Store the record. The conversation comes from the policy, if that is at the driver."""
        self.record, self.failure = result
        policy: object = self._hosted
        if isinstance(policy, ReportingPolicy):
            report = policy.report()
            parts = {"segments": report.segments, "messages": report.messages}
            self.record = self.record.model_copy(update=parts)
        if self.failure is not None and not self.cancelled and lost_in_a_call(self.record):
            self._losses.append(self.record)

    def receive(self, event: Any) -> object:
        """Handle an event of the episode, or a question to its policy."""
        match event:
            case ("phase", phase):
                self._phase = phase
            case ("reset", info):
                policy = self._make_policy(self._env)
                if isinstance(policy, Player):
                    raise UsageError("an agent whose model is in this process plays with executor='threads' only")
                policy.reset(info)
                self._hosted = policy
            case ("resume", turns, tokens):
                check_resumes(self._hosted).resume(turns, tokens)
            case ("act", observation):
                return answer_for(self._hosted, observation)
        return None

    # --- records ----------------------------------------------------------------------------------------------

    def so_far(self) -> Trajectory:
        """Return the record as far as it got. May be called from any thread."""
        with contextlib.suppress(UsageError):  # not reset yet
            if self._episode is not None:
                return self._episode.trajectory
        config: JsonObject = {}
        with contextlib.suppress(SandboxError):  # that of a server that cannot be reached
            config = self._env.unwrapped.config
        return Trajectory(
            task_id=self._task_id,
            env=config,
            observation="",
            turns=(),
            outcome="running",
            reward_valid=False,
            resolved=False,
            reward=0.0,
            seconds={"total": time.monotonic() - self.started},
        )

    def failed_record(self, record: Trajectory, failure: Failure) -> Trajectory:
        """Return the record of a try that does not count."""
        return self._sign(
            record,
            outcome="running" if self.cancelled else "infra_failed",
            reason=failure.name,
            failure=failure.message,
            reward_valid=False,
            resolved=False,
            reward=0.0,
        )

    def _sign(self, record: Trajectory, **changes: object) -> Trajectory:
        return record.model_copy(update={"tries": self.number, "seed": self._seed, **changes})

    def _begin(self, beginning: Trajectory) -> None:  # noqa: ARG002  a subclass keeps it
        self.sandbox_id = self._env.unwrapped.stats["sandbox_id"]
        self._wanted = None
        self._leave_if_cancelled()

    def _add_turn(self, turn: Turn) -> None:
        if not (turn.terminated or turn.truncated):
            self._leave_if_cancelled()

    def _add_usage(self, usage: Usage) -> None:  # noqa: ARG002  a subclass counts it
        self._leave_if_cancelled()

    def _leave_if_cancelled(self) -> None:
        """End a try that was cancelled before there was a sandbox to close."""
        if self.cancelled:
            raise SandboxClosed(f"cancelled: {self.cancelled}")


class TryWork(NamedTuple):
    """A try as data.

    Attributes:
        plan: The plan without its tasks, as JSON. It may hold keys.
        experiment: Run name.
        key: The episode.
        number: Number of the try.
        losses: As in `EpisodeJob`.
        hosted: Whether the policy is at the driver.
    """

    plan: str
    experiment: str
    key: EpisodeKey
    number: int
    losses: tuple[Trajectory, ...]
    hosted: bool

    def make(self, link: DriverLink) -> "Try":
        """Make the try on a node, whose tries share the task source and the factory of policies."""
        plan, factory, _source = link.once(self.plan, self._open)
        make = factory or _HostedPolicies(link)
        stream = functools.partial(_Stream, link)
        return Try(plan, self.experiment, self.key, self.number, make, stream, list(self.losses))

    def _open(self) -> tuple[Plan, PolicyFactory | None, object]:
        plan = Plan.model_validate_json(self.plan)
        factory = None
        if not self.hosted:
            factory = make_players(plan.policy, plan.policy_options, plan.agent, plan.agent_options)
        return plan, factory, shared_source(plan.source, plan.source_options)


class _HostedPolicies(NamedTuple):
    """A factory of policies at the driver."""

    link: DriverLink

    def __call__(self, env: gymnasium.Env[str, str], *, seed: int | None = None) -> Policy:  # noqa: ARG002  the driver's
        return HostedPolicy(self.link)

    def close(self) -> None: ...


class _Stream:
    """Sends the beginning and the turns of a try to the driver."""

    def __init__(self, link: DriverLink, beginning: Trajectory) -> None:
        self._link = link
        link.emit(("begin", beginning))

    def add(self, turn: Turn) -> None:
        self._link.emit(("turn", turn))

    def spend(self, usage: Usage) -> None:
        """Send the usage of a search, which has no turns before its end."""
        self._link.emit(("used", usage))

    def close(self) -> None: ...


class TurnFile(Protocol):
    """Takes the turns of a running episode."""

    def add(self, turn: Turn) -> None:
        """Write a turn."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class Try(EpisodeJob[EpisodeKey]):
    """One try at an episode of a plan. Its turns are on disk while it runs.

    Args:
        plan: The plan.
        experiment: Run name.
        key: The episode.
        number: Number of the try, from 1.
        factory: Makes the policy.
        start_file: Opens the file for the turns, given the record of the beginning.
        losses: As in `EpisodeJob`.
        warm: As in `EpisodeJob`.
        hosted: Whether the factory must stay in this process.
        extends: Whether the time that the task's setup and judging may take extends the pool's `wall_clock`.

    Attributes:
        used: Usage of the complete turns. May be read from any thread.
    """

    def __init__(
        self,
        plan: Plan,
        experiment: str,
        key: EpisodeKey,
        number: int,
        factory: PolicyFactory,
        start_file: Callable[[Trajectory], TurnFile],
        losses: list[Trajectory] | None = None,
        warm: WarmPool | None = None,
        *,
        hosted: bool = False,
        extends: bool = False,
    ) -> None:
        seed = plan.episode_seed(key)
        env = plan.make_env()
        env.use_mounts(getattr(factory, "mounts", {}))  # before the sandbox starts ahead
        super().__init__(
            key,
            number,
            env,
            lambda env: factory(env, seed=seed),
            task_id=key.task_id,
            seed=seed,
            budget=plan.budget,
            losses=losses,
            warm=warm,
            point=plan.checkpoint,
        )
        self._plan = plan
        self._policy = plan.policy
        self._experiment = experiment
        self._date = now()
        self._start_file = start_file
        self._file: TurnFile | None = None
        self._is_hosted = hosted
        self._extends = extends
        self._beginning: Trajectory | None = None  # of a try that runs on a node
        self._turns: list[Turn] = []
        self.used = Usage()

    @property
    def name(self) -> str:
        """Task, attempt and try."""
        return f"{self.key.task_id}/{self.key.attempt}/{self.number}"

    def more_seconds(self) -> float:
        """Return the seconds that the task's setup and judging may take."""
        return self._judging if self._extends else 0.0

    @functools.cached_property
    def _judging(self) -> float:
        try:
            return judging_seconds(self._env.unwrapped.source.get(self.key.task_id))
        except (TaskError, UsageError, SandboxError):
            return 0.0

    def run(self) -> None:
        """Play the episode, and close its file."""
        try:
            super().run()
        finally:
            if self._file is not None:
                self._file.close()

    def work(self) -> TryWork:
        """Return the try as data."""
        plan = self._plan.model_copy(update={"tasks": None}).model_dump_json()
        return TryWork(plan, self._experiment, self.key, self.number, tuple(self._losses), self._is_hosted)

    def receive(self, event: Any) -> object:
        """Write what the node streams."""
        match event:
            case ("begin", beginning):
                self._beginning = beginning
                self._file = self._start_file(beginning)
            case ("turn", turn):
                self._turns.append(turn)
                self.used += turn.usage
                if self._file is not None:
                    self._file.add(turn)
            case ("used", usage):
                self.used += usage
            case _:
                return super().receive(event)
        return None

    def outcome(self) -> tuple[Trajectory, Failure | None]:
        """Return the record; see `EpisodeJob`."""
        if self._beginning is not None and self._file is not None:
            self._file.close()
        return super().outcome()

    def so_far(self) -> Trajectory:
        """Return the record as far as it got, also on a node."""
        if self._beginning is None:
            return super().so_far()
        return self._beginning.with_turns(self._turns)

    def _decide(self, record: Trajectory, failure: Failure | None) -> None:
        if failure is None:
            record = record.model_copy(update={"verdict": _shorten_dropped(self._env.unwrapped.verdict)})
        super()._decide(record, failure)

    def _begin(self, beginning: Trajectory) -> None:
        super()._begin(beginning)
        self._file = self._start_file(self._sign(beginning))

    def _add_turn(self, turn: Turn) -> None:
        super()._add_turn(turn)
        self.used += turn.usage
        if self._file is not None:
            self._file.add(turn)

    def _add_usage(self, usage: Usage) -> None:
        super()._add_usage(usage)
        self.used += usage
        if isinstance(self._file, _Stream):
            self._file.spend(usage)

    def _sign(self, record: Trajectory, **changes: object) -> Trajectory:
        """Return the record with everything that only the run knows."""
        return super()._sign(
            record,
            attempt=self.key.attempt,
            config_hash=self.key.config_hash,
            experiment=self._experiment,
            policy=_public(record.policy) if record.policy.name else PolicyInfo(name=self._policy),
            started=self._date,
            **changes,
        )


def _public(policy: PolicyInfo) -> PolicyInfo:
    """Leave out what may be a secret, as `run.json` does."""
    return policy.model_copy(
        update={"sampling": without_secrets(policy.sampling), "options": without_secrets(policy.options)}
    )


def _shorten_dropped(verdict: Verdict | None) -> Verdict | None:
    """Shorten a verdict's list of dropped files, whose length the policy controls."""
    if verdict is None or len(verdict.dropped) <= MAX_DROPPED:
        return verdict
    more = f"[... {len(verdict.dropped) - MAX_DROPPED} more]"
    return verdict.model_copy(update={"dropped": (*verdict.dropped[:MAX_DROPPED], more)})


def now() -> str:
    """Return date and time (UTC, ISO 8601)."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def understand(error: Exception, phase: Phase) -> Failure | None:
    """Return what an exception in a phase means for the try; None if it is a mistake that must be raised."""
    reason = getattr(error, "reason", "")
    name = f"{type(error).__name__} ({reason})" if reason not in ("", "unknown") else type(error).__name__
    if isinstance(error, PolicyError):
        return Failure(name, "policy", str(error), retry=error.retryable)
    if phase == "policy" and not isinstance(error, UsageError):
        return Failure(name, "policy", str(error))
    if isinstance(error, ReplayError):
        return Failure(name, "reset", str(error))
    if phase == "reset" and isinstance(error, SandboxError):
        return Failure(name, "reset", str(error), retry=error.retryable)
    if phase == "reset" and isinstance(error, TaskError):
        return Failure(name, "reset", str(error), retry=False, counts=False)
    return None


def _failure_in_step(record: Trajectory, message: str) -> Failure:
    """Return the failure of a step that the environment reports."""
    broken_task = record.reason.startswith("TaskError")
    in_grading = record.seconds.get("grading", 0.0) > 0
    tool = record.turns[-1].tool if record.turns else ""
    call = "grading" if in_grading else f"step {tool}".rstrip()
    return Failure(record.reason, call, message, retry=not broken_task, counts=not broken_task)


LIMIT = "sandbox_lost"
"""Name of the limit that ends an episode whose sandbox the policy lost twice."""

NOT_BY_A_COMMAND = ("SandboxLost (expired)", "SandboxLost (server)")
"""Reasons of losses that no action explains: the end of the sandbox's time to live, and a lost server."""


def lost_in_a_call(record: Trajectory) -> bool:
    """Return whether a sandbox was lost during a call of the policy, grading included."""
    return bool(record.turns) and record.reason.startswith("SandboxLost") and record.reason not in NOT_BY_A_COMMAND


def lost_by_policy(record: Trajectory, earlier: Iterable[Trajectory]) -> bool:
    """Return whether a try lost its sandbox at the same point of the same actions as an earlier try.

    Args:
        record: Record of the try.
        earlier: Records of earlier tries at the episode for which `lost_in_a_call` is true.
    """
    return lost_in_a_call(record) and any(_actions(record) == _actions(one) for one in earlier)


_ID = re.compile(r'"id": "[^"\\]*"')
"""Id of a native tool call, which differs each time. Quotes inside its arguments are escaped."""


def _actions(record: Trajectory) -> list[str]:
    return [_ID.sub("", turn.action) for turn in record.turns]


def charge(record: Trajectory) -> Trajectory:
    """Return the record of a lost sandbox as one that counts, with reward 0 and the limit "sandbox_lost"."""
    info = {**record.info, "outcome": "agent_limit", "limit": LIMIT, "reward_valid": True}
    last = record.turns[-1].model_copy(update={"info": info})
    return record.model_copy(
        update={
            "turns": (*record.turns[:-1], last),
            "outcome": "agent_limit",
            "reason": LIMIT,
            "reward_valid": True,
            "resolved": False,
            "reward": 0.0,
            "info": info,
        }
    )
