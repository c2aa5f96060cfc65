"""A slot: one environment and the thread that runs it. Tickets: numbered requests to slots, each answered once."""

from __future__ import annotations

import abc
import contextlib
import copy
import dataclasses
import itertools
import math
import multiprocessing
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

import gymnasium
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.utils import create_zero_array

from ..envs import WORLD_ERRORS, SweEnv, ToolEnv
from ..errors import SandboxClosed, SweGymError, UsageError
from ..sandboxes import WarmPool
from ..spaces import AnyEnv, Info, ResetResult

_SLICE = 0.5
"""Seconds of one wait. A signal just before a wait does not interrupt it, so no wait is endless."""
_WAKES = 16
"""Threads that a request wakes at once; each wakes the next. See `Tickets.hand_over`."""


class ResultsNotReady(multiprocessing.TimeoutError, TimeoutError):
    """Results were not ready in time. Nothing is lost: call again.

    It is both the error of `AsyncVectorEnv` and the built-in `TimeoutError`.
    """


@dataclasses.dataclass(slots=True, eq=False)
class Ticket:
    """One request to one slot.

    Attributes:
        number: Serial number in the vector environment.
        slot: Index of the slot.
        inbox: Queue of the slot's thread.
        work: Function that the thread runs; it never raises.
        answered: Whether `answer` is final.
        answer: Result of `work`.
        raised: Whether the error in the answer was raised to the caller.
    """

    number: int
    slot: int
    inbox: SimpleQueue[Ticket | None]
    work: Callable[[], object]
    answered: bool = False
    answer: Any = None
    raised: bool = False


Requests = Mapping[int, tuple[SimpleQueue[Ticket | None], Callable[[], object]]]
"""Slot -> queue of its thread, and the work."""


class Tickets:
    """All requests whose answers were not fetched yet.

    Each ticket is answered once and fetched once. Any thread may call. After an interrupt (Ctrl-C) at any point, both
    `wait` and `close` work.
    """

    def __init__(self) -> None:
        self.closed = False
        self._numbers = itertools.count()
        self._changed = threading.Condition()  # its lock is re-entrant: a signal handler may call close
        self._kind = ""
        self._open: dict[int, Ticket] = {}
        self._to_hand: dict[int, Ticket] = {}  # not yet given to a thread
        self._answered: dict[int, Ticket] = {}
        self._needed = math.inf  # answers that a waiting caller needs; fewer wake nobody

    def __len__(self) -> int:
        return len(self._open)

    def issue(self, kind: str, requests: Requests) -> list[int]:
        """Issue all requests, or none if that is impossible.

        Args:
            kind: "reset", "step" or "call", one of which may be open at a time, or "send", one per slot.
            requests: Work of each slot.

        Returns:
            The tickets' numbers.

        Raises:
            AlreadyPendingCallError: Earlier results were not fetched yet.
            ClosedEnvironmentError: The vector environment is closed.
        """
        with self._changed:
            if self.closed:
                raise ClosedEnvironmentError("the vector environment is closed: make a new one")
            self._check_free(kind, requests)
            tickets = [Ticket(next(self._numbers), slot, *request) for slot, request in requests.items()]
            new = {ticket.number: ticket for ticket in tickets}
            self._kind = kind
            # Both or none: an interrupt cannot fall between two plain stores.
            self._open, self._to_hand = {**self._open, **new}, {**self._to_hand, **new}
        self._wake_some()
        return list(new)

    def wait(self, kind: str, least: float = math.inf, timeout: float | None = None) -> list[Ticket]:
        """Return the answered tickets, oldest first, once `least` of the open ones (or all) are answered.

        After `timeout` seconds, return those answered by then. Tickets stay until `fetch` takes them.

        Raises:
            NoAsyncCallError: No ticket of this kind is open.
            AlreadyPendingCallError: Tickets of another kind are open.
            ClosedEnvironmentError: No ticket is open and the vector environment is closed.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        self._wake_some()  # an interrupt may have prevented it in `issue`
        with self._changed:
            while True:
                self._check_open(kind)
                needed = min(least, len(self._open))
                left = deadline - time.monotonic()
                if len(self._answered) >= needed or left <= 0:
                    return sorted(self._answered.values(), key=lambda ticket: ticket.number)
                self._needed = min(self._needed, needed)
                self._changed.wait(min(left, _SLICE))

    def fetch(self, tickets: list[Ticket]) -> bool:
        """Remove answered tickets. Return False and remove none if another thread has taken one."""
        gone = {ticket.number for ticket in tickets}
        with self._changed:
            if not gone <= self._answered.keys():
                return False
            still_open = {number: ticket for number, ticket in self._open.items() if number not in gone}
            answered = {number: ticket for number, ticket in self._answered.items() if number not in gone}
            self._open, self._answered = still_open, answered
            self._changed.notify_all()
            return True

    def answer(self, ticket: Ticket, answer: object) -> None:
        """Answer a ticket. Only the first answer counts."""
        with self._changed:
            if ticket.answered:
                return
            ticket.answer, ticket.answered = answer, True
            self._answered[ticket.number] = ticket
            if len(self._answered) >= self._needed:
                self._needed = math.inf
                self._changed.notify_all()

    def hand_over(self) -> None:
        """Give the next ticket to its thread. Every thread calls it when it starts on a ticket.

        Threads thus start one after another. Hundreds woken at once would all wait for the interpreter's lock and poll
        it every few milliseconds, which costs more than their work.
        """
        with self._changed:
            for number, ticket in self._to_hand.items():
                ticket.inbox.put(ticket)  # after an interrupt here the ticket is given twice, but its work runs once
                del self._to_hand[number]
                return

    def waiting(self) -> list[Ticket]:
        """Return the tickets without an answer."""
        with self._changed:
            return [ticket for ticket in self._open.values() if not ticket.answered]

    def slots(self) -> set[int]:
        """Return the slots that have an open ticket."""
        with self._changed:
            return {ticket.slot for ticket in self._open.values()}

    def pending(self) -> str:
        """Return the kind of the open tickets; empty if there are none."""
        return self._kind if self._open else ""

    def close(self) -> None:
        """Refuse further requests."""
        with self._changed:
            self.closed = True

    def _wake_some(self) -> None:
        for _ in range(_WAKES):
            self.hand_over()

    def _check_free(self, kind: str, slots: Mapping[int, object]) -> None:
        if not self._open:
            return
        if kind == self._kind == "send":
            busy = sorted(self.slots() & set(slots))
            if busy:
                raise AlreadyPendingCallError(f"slots {busy} have results that were not received: call recv()", kind)
        else:
            raise _pending(kind if kind == "send" else f"{kind}_async", self._kind)

    def _check_open(self, kind: str) -> None:
        caller = "recv" if kind == "send" else f"{kind}_wait"
        if not self._open and self.closed:
            raise ClosedEnvironmentError("the vector environment is closed and holds no more results")
        if not self._open:
            before = "send" if kind == "send" else f"{kind}_async"
            raise NoAsyncCallError(f"Calling `{caller}` without any prior call to `{before}`.", kind)
        if self._kind != kind:
            raise _pending(caller, self._kind)


def _pending(caller: str, kind: str) -> AlreadyPendingCallError:
    """Return the error; its message starts with Gymnasium's wording, which programs may match."""
    advice = "recv() or drain()" if kind == "send" else f"{kind}_wait()"
    return AlreadyPendingCallError(
        f"Calling `{caller}` while waiting for a pending call to `{kind}` to complete. Call {advice} first.", kind
    )


FAILED = {"outcome": "infra_failed", "reward_valid": False}
"""Info of a failed slot, with the keys of `SweEnv`."""


_rendering = threading.Lock()
"""Held while an environment renders: some import a library at the first call, which must not happen in two threads."""


@dataclasses.dataclass(frozen=True, slots=True)
class SlotAnswer:
    """The answer of a slot: one row of a batch.

    Attributes:
        observation: Element of the environment's observation space.
        info: Info of the environment.
        reward: Reward; 0.0 after a reset.
        terminated: Whether the environment terminated the episode.
        truncated: Whether the environment truncated the episode, or the slot failed.
        final: With SAME_STEP, the last observation and info of the episode that ended.
        episode: Number of the slot's episode, counted from 1.
        error: Error raised by the environment.
    """

    observation: Any
    info: Info
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    final: ResetResult[Any] | None = None
    episode: int = 0
    error: BaseException | None = None

    @property
    def is_mistake(self) -> bool:
        """Whether the error is not an infrastructure failure, and must be raised to the caller."""
        return self.error is not None and not isinstance(self.error, WORLD_ERRORS)


class EnvSlot:
    """One environment of a vector environment.

    Only the slot's thread calls the environment, except in `cut`. The attributes may be read while the slot has no
    unanswered ticket.

    Args:
        index: Index in the batch.
        env: The environment.
        mode: When the next episode starts.
        tickets: Receiver of the answers.
        pool: Pool that starts the sandboxes of later episodes ahead of time.

    Attributes:
        over: Whether the episode ended or could not start.
        unborn: Whether the episode could not start.
        observation: Last observation; None before the first `reset`.
        episode: Number of episodes started.
        busy: Seconds that the environment has worked.
        error: Last error raised by the environment.
    """

    def __init__(self, index: int, env: AnyEnv, mode: AutoresetMode, tickets: Tickets, pool: WarmPool | None) -> None:
        self.index = index
        self.env = env
        self.inbox: SimpleQueue[Ticket | None] = SimpleQueue()
        self.over = self.unborn = False
        self.observation: Any = None
        self.episode = 0
        self.busy = 0.0
        self.error: BaseException | None = None
        self.closing_error: Exception | None = None
        self._mode = mode
        self._tickets = tickets
        self._pool = pool
        self._thread = threading.Thread(target=self._serve, name=f"slot-{index}", daemon=True)
        self._thread.start()

    # --- work, in the slot's thread -------------------------------------------------------------

    def reset(self, seed: int | None, options: Info | None) -> SlotAnswer:
        """Start an episode."""
        return self._begin(lambda: self.env.reset(seed=seed, options=options))

    def step(self, action: object) -> SlotAnswer:
        """Take a step, or start an episode if the last one is over and the mode is not DISABLED."""
        if self.over and self._mode == AutoresetMode.DISABLED:
            return self._fail(self.error)
        if self.over:
            row = self._begin(self.env.reset)
            same_step = row.truncated and self._mode == AutoresetMode.SAME_STEP
            return dataclasses.replace(row, final=(row.observation, row.info)) if same_step else row
        row = self._advance(action)
        self.over = row.terminated or row.truncated
        if self.over:
            prepare_next(self.env, self._pool)
        return self._restart(row) if self.over and self._mode == AutoresetMode.SAME_STEP else row

    def call(self, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Call a method of the environment or read an attribute. Errors are returned as `CallFailed`."""
        return call_env(self.env, name, args, kwargs)

    def _advance(self, action: object) -> SlotAnswer:
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
            self.observation = copy.deepcopy(observation)
            return SlotAnswer(
                self.observation, info, float(reward), bool(terminated), bool(truncated), episode=self.episode
            )
        except BaseException as error:  # noqa: BLE001  a failure must not stop the other slots
            return self._fail(error)

    def _begin(self, reset: Callable[[], ResetResult[Any]]) -> SlotAnswer:
        self.episode += 1
        self.over = self.unborn = False
        try:
            if self._tickets.closed:  # a cancelled step must not start the next episode
                raise self._make_closed_error()
            observation, info = reset()
            self.observation = copy.deepcopy(observation)
        except BaseException as error:  # noqa: BLE001  as in a step
            self.unborn = True
            self.observation = self._nothing()
            return self._fail(error)
        prepare_next(self.env, self._pool)
        return SlotAnswer(self.observation, info, episode=self.episode)

    def _restart(self, last: SlotAnswer) -> SlotAnswer:
        """Start the next episode and return its first observation with the end of the last one."""
        first = self._begin(self.env.reset)
        return dataclasses.replace(
            last,
            observation=first.observation,
            info=first.info,
            final=(last.observation, last.info),
            error=last.error or first.error,
        )

    def _fail(self, error: BaseException | None) -> SlotAnswer:
        self.error = error
        self.over = True
        if self.observation is None:
            self.observation = self._nothing()
        info = {**FAILED, "failure": _describe(error)}
        return SlotAnswer(self.observation, info, truncated=True, episode=self.episode, error=error)

    def _nothing(self) -> Any:
        """Return an empty observation: an empty text, zeros."""
        try:
            return create_zero_array(self.env.observation_space)
        except Exception:  # noqa: BLE001  Gymnasium has no zero for this space; batches are plain tuples
            return None

    # --- the thread -------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while (ticket := self.inbox.get()) is not None:
            self._tickets.hand_over()
            if not ticket.answered:
                started = time.monotonic()
                answer = self.closed_row() if self._tickets.closed else ticket.work()
                self.busy += time.monotonic() - started
                self._tickets.answer(ticket, answer)
                del answer
            del ticket
        try:
            self.env.close()
        except Exception as error:  # noqa: BLE001  `close` raises it after closing the others
            self.closing_error = error

    def cut(self) -> None:
        """Cancel the running call, if the environment can be closed from any thread."""
        cut_env(self.env)

    def closed_row(self) -> SlotAnswer:
        """Return the answer to a request that was cancelled by `close`."""
        observation = self._nothing() if self.observation is None else self.observation
        info = {**FAILED, "failure": "closed"}
        return SlotAnswer(observation, info, truncated=True, episode=self.episode, error=self._make_closed_error())

    def _make_closed_error(self) -> SandboxClosed:
        return SandboxClosed(f"slot {self.index} was closed before it answered")


@dataclasses.dataclass(frozen=True, slots=True)
class CallFailed:
    """The error of a call."""

    error: BaseException


class ProxyEnv(gymnasium.Env[Any, Any], abc.ABC):
    """An environment that is in another process."""

    @abc.abstractmethod
    def call(self, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Call a method of the environment or read an attribute. The result is a copy."""

    @abc.abstractmethod
    def cut(self) -> None:
        """Cancel the running call, if the environment can be closed from any thread."""


def cut_env(env: AnyEnv) -> None:
    """Cancel the running call, if the environment can be closed from any thread."""
    if isinstance(env.unwrapped, ProxyEnv):
        env.unwrapped.cut()
    elif isinstance(env.unwrapped, ToolEnv):
        env.unwrapped.close()


def call_env(env: AnyEnv, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """Call a method of an environment or read an attribute. Errors are returned as `CallFailed`."""
    try:
        if isinstance(env, ProxyEnv):
            return env.call(name, args, kwargs)
        value = env.get_wrapper_attr(name)
        with _rendering if name == "render" else contextlib.nullcontext():
            return value(*args, **kwargs) if callable(value) else value
    except BaseException as error:  # noqa: BLE001  raised to the caller later
        return CallFailed(error)


def make_all(env_fns: Sequence[Callable[[], AnyEnv]]) -> list[AnyEnv]:
    """Make all environments. If one fails, close the others.

    Raises:
        UsageError: `env_fns` is empty.
    """
    envs: list[AnyEnv] = []
    try:
        for env_fn in env_fns:
            envs.append(env_fn())
    except BaseException:
        close_all(envs)
        raise
    if not envs:
        raise UsageError("a vector environment needs at least one environment")
    return envs


def close_all(envs: Sequence[AnyEnv]) -> None:
    """Close environments while another error is on its way to the caller."""
    for env in envs:
        with contextlib.suppress(Exception):
            env.close()


def make_pool(envs: Sequence[AnyEnv], warm: int) -> WarmPool | None:
    """Return the pool that starts sandboxes ahead of time; None if `warm` is 0.

    Raises:
        UsageError: It is impossible.
    """
    if warm < 0:
        raise UsageError(f"warm must be 0 or more sandboxes, not {warm}")
    if not warm:
        return None
    backends = {env.unwrapped.config["backend"] if isinstance(env.unwrapped, SweEnv) else "" for env in envs}
    if "" in backends or len(backends) > 1:
        raise UsageError("warm needs SweEnvs that are all on one backend: leave it out")
    return WarmPool(backends.pop(), ready=warm, starting=min(warm, 16))


def prepare_next(env: AnyEnv, pool: WarmPool | None) -> None:
    """Start the next sandbox of an environment ahead of time, at the start of an episode and at its end."""
    if pool is not None:
        with contextlib.suppress(SweGymError):  # the next reset reports a broken task
            env.get_wrapper_attr("prepare_next")(pool)


def _describe(error: BaseException | None) -> str:
    """Return the type of an error. Its text may quote a host path or a hidden test: it is in `errors` only."""
    reason = getattr(error, "reason", "")
    return f"{type(error).__name__} ({reason})" if reason else type(error).__name__


def shut_down(slots: Sequence[EnvSlot], tickets: Tickets, pool: WarmPool | None, timeout: float) -> list[int]:
    """Close every environment and stop every thread within `timeout` seconds.

    Returns:
        The slots whose threads still run. They close their environment when they end.
    """
    deadline = time.monotonic() + timeout
    tickets.close()
    helpers = [threading.Thread(target=slots[ticket.slot].cut, daemon=True) for ticket in tickets.waiting()]
    if pool is not None:
        helpers.append(threading.Thread(target=pool.close, daemon=True))
    for helper in helpers:
        helper.start()
    for slot in slots:
        slot.inbox.put(None)
    threads = [slot._thread for slot in slots if slot._thread is not threading.current_thread()]
    for thread in (*threads, *helpers):
        thread.join(max(0.0, deadline - time.monotonic()))
    for ticket in tickets.waiting():
        tickets.answer(ticket, slots[ticket.slot].closed_row())
    return [slot.index for slot in slots if slot._thread.is_alive() and slot._thread is not threading.current_thread()]
