"""`SweVectorEnv`: many environments, one thread each, in this process or in workers."""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
from gymnasium import logger
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from ..errors import UsageError, unknown_name
from ..sandboxes import WarmPool
from ..spaces import AnyEnv, Array, Info, ResetResult
from ..types import JsonMapping
from .batches import (
    InfoBatcher,
    ObservationMode,
    common_action_space,
    join_observations,
    observation_spaces,
    split_actions,
)
from .slot import (
    CallFailed,
    EnvSlot,
    Requests,
    ResultsNotReady,
    SlotAnswer,
    Ticket,
    Tickets,
    close_all,
    make_all,
    make_pool,
    shut_down,
)
from .workers import LAUNCHERS, WorkerHandle, close_workers, start_workers

Batch = tuple[Any, Array, Array, Array, Info]
"""Observations, rewards (float64), terminations (bool), truncations (bool), infos."""

Seeds = int | Sequence[int | None] | None


EXECUTORS = ("threads", *LAUNCHERS)
"""Where environments run."""

OWN = ("autoreset_mode", "warm", "executor", "processes", "executor_options")
"""Arguments that `make_vec` takes beside those of the environment."""

FOR_PROCESSES = ("shared_memory", "copy", "context", "daemon")
"""Arguments of Gymnasium's vector environments that have no meaning for threads."""


class SweVectorEnv(VectorEnv[Any, Any, Array]):
    """A vector environment with one thread per environment, and two ways to play.

    **Lockstep**, as every Gymnasium vector environment: `reset`, `step`, and their halves `reset_async` and
    `reset_wait`, `step_async` and `step_wait`. Results equal those of `SyncVectorEnv` over the same environments, and a
    step takes as long as the slowest slot.

    **Asynchronous**: `send` actions to some slots and `recv` what is ready; `send_reset` starts episodes. Commands take
    a tenth of a second or a minute, so lockstep mostly waits for the slowest.

    *Bias.* Fast slots answer more often, so short episodes are over-represented among the first to end. `recv` returns
    the longest-waiting results first, but cannot change that. Train on whole sets of episodes: start as many as you
    want to train on, and `drain` or play until all have ended. Never take the first n of more and drop the rest.

    **Failures stay in their slot.** If the infrastructure fails (a sandbox does not start or is lost, a grader cannot
    judge), the slot's row is truncated with reward 0.0, and its info has `outcome` "infra_failed", `reward_valid` False
    and `failure`. The next step or reset starts a new episode. Details are in `SweEnv.stats`, or in `errors` if the
    episode could not start. `step_wait`, `reset_wait` and `recv` raise any other error of an environment once; called
    again they return the batch, with that slot's row as above.

    **No result is lost.** Every request has a ticket that keeps its answer. After `timeout` seconds `step_wait` raises
    `ResultsNotReady`; call it again. An interrupt (Ctrl-C) leaves the same state as a timeout. `close`, from any
    thread, cancels running requests and answers them as failed.

    `options` of `reset` go to every environment, except two: `"reset_mask"`, a bool array of the slots to reset, and
    `"task_ids"`, a sequence with the task of each slot (None lets the slot draw one).

    Args:
        env_fns: Functions that make one environment each, of any kind.
        observation_mode: "same", "different" or (batched space, single space), as in `SyncVectorEnv`.
        autoreset_mode: When a slot starts its next episode: "NextStep", "SameStep" or "Disabled".
        warm: Number of sandboxes to start ahead of time, so that resets need not wait; `num_envs` hides every start.
            The tasks do not change. All environments must be `SweEnv`s on one backend.
        executor: "threads" of this process; or workers that share the environments: "process" if one interpreter is too
            slow, "ray" (actors on a Ray cluster) if one machine is. Everything that passes to a worker is pickled.
        processes: Number of workers; None for one per core, or with "ray" for one per node.
        executor_options: Options of the executor; with "ray" those of `RayLauncher` in `swe_gym.remote`.
        **for_processes: `shared_memory`, `copy`, `context` and `daemon` of Gymnasium's vector environments. They have
            no effect and raise a warning.

    Raises:
        RuntimeError: The environments' spaces differ.
        UsageError: There are no environments, the mode is unknown, or `warm` is impossible.

    Attributes:
        envs: The environments. While a slot has an open ticket, its thread uses its environment.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], AnyEnv]],
        observation_mode: ObservationMode = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        *,
        warm: int = 0,
        executor: str = "threads",
        processes: int | None = None,
        executor_options: JsonMapping | None = None,
        **for_processes: object,
    ) -> None:
        self.closed = True  # until `close` can work: old Gymnasium versions close half-made environments
        mode = _autoreset_mode(autoreset_mode)
        _ignore(for_processes)
        self._workers: list[WorkerHandle] = []
        self.envs = self._make_envs(env_fns, executor, processes, warm, executor_options or {})
        self.num_envs = len(self.envs)
        self._observation_mode = observation_mode
        try:
            self._set_spaces()
            self._pool = None if self._workers else make_pool(self.envs, warm)
        except BaseException:
            close_all(self.envs)
            raise
        self.autoreset_mode = mode
        self.metadata = {**self.envs[0].metadata, "autoreset_mode": mode}
        self.render_mode = self.envs[0].render_mode
        self._tickets = Tickets()
        self._infos = InfoBatcher()
        self._slots = [EnvSlot(index, env, mode, self._tickets, self._pool) for index, env in enumerate(self.envs)]
        self._owner = os.getpid()
        self._closing = threading.RLock()  # re-entrant: a signal handler may call close during close
        # Threads do not keep this object alive. They end when it is collected, or at exit.
        ending = (self._slots, self._tickets, self._pool, self._workers, self._owner)
        self._finalizer = weakref.finalize(self, _finalize, *ending)
        self.closed = False

    def _make_envs(
        self,
        env_fns: Sequence[Callable[[], AnyEnv]],
        executor: str,
        processes: int | None,
        warm: int,
        options: JsonMapping,
    ) -> list[AnyEnv]:
        if executor not in EXECUTORS:
            raise unknown_name("executor", executor, EXECUTORS)
        if executor == "threads" or not env_fns:
            if options:
                raise unknown_name("option of executor 'threads':", next(iter(options)), [])
            return make_all(env_fns)
        self._workers, envs = start_workers(executor, env_fns, processes, warm, options)
        return list(envs)

    # --- lockstep ----------------------------------------------------------------------------------------

    def reset(self, *, seed: Seeds = None, options: Info | None = None) -> ResetResult[Any]:
        """Start an episode in every slot, or in those of `options["reset_mask"]`, and wait for all.

        Args:
            seed: Seed of slot 0, where slot i gets `seed + i`; or a sequence with a seed or None per slot.
            options: Options of the environments, "reset_mask" and "task_ids"; see the class.

        Returns:
            The observations of all slots, and the infos of those that were reset.

        Raises:
            TypeError, ValueError: The mask, the seeds or the task ids do not match the slots.
            AlreadyPendingCallError: Results of an earlier call were not fetched.
            ClosedEnvironmentError: The vector environment is closed.
        """
        self.reset_async(seed=seed, options=options)
        return self.reset_wait()

    def reset_async(self, *, seed: Seeds = None, options: Info | None = None) -> None:
        """Run the first half of `reset`."""
        self._check_usable()
        slots = self._read_mask(options)
        mine = {key: value for key, value in (options or {}).items() if key != "reset_mask"}
        requests = self._resets(range(self.num_envs), seed, mine)
        self._tickets.issue("reset", {index: requests[index] for index in slots})

    def reset_wait(self, timeout: float | None = None) -> ResetResult[Any]:
        """Run the second half of `reset`.

        Raises:
            ResultsNotReady: `timeout` seconds have passed. Call again.
        """
        tickets = self._all("reset", timeout)
        rows = {ticket.slot: ticket.answer for ticket in tickets}
        observations = [
            rows[slot.index].observation if slot.index in rows else slot.observation for slot in self._slots
        ]
        infos = self._infos.batch([rows[index].info if index in rows else {} for index in range(self.num_envs)])
        batch = join_observations(self.single_observation_space, observations), infos
        self._tickets.fetch(tickets)
        return batch

    def step(self, actions: object) -> Batch:
        """Take a step in every slot and wait for all.

        Args:
            actions: One action per slot.

        Returns:
            Observations, rewards of shape (num_envs,), terminations, truncations, infos.

        Raises:
            TypeError, ValueError: The actions do not match the slots. No slot has taken a step.
            ResetNeeded: With autoreset "Disabled", an episode is over. No slot has taken a step.
            AlreadyPendingCallError: Results of an earlier call were not fetched.
            ClosedEnvironmentError: The vector environment is closed.
        """
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: object) -> None:
        """Run the first half of `step`."""
        self._check_usable()
        parts = split_actions(self.action_space, self.single_action_space, actions, self.num_envs)
        self._tickets.issue("step", self._steps(range(self.num_envs), parts))

    def step_wait(self, timeout: float | None = None) -> Batch:
        """Run the second half of `step`.

        Raises:
            ResultsNotReady: `timeout` seconds have passed. Call again.
        """
        tickets = self._all("step", timeout)
        batch = self._batch([ticket.answer for ticket in sorted(tickets, key=lambda ticket: ticket.slot)])
        self._tickets.fetch(tickets)
        return batch

    # --- asynchronous --------------------------------------------------------------------------------

    def send(self, actions: object, env_ids: Sequence[int] | Array | None = None) -> list[int]:
        """Send actions to some slots without waiting.

        Args:
            actions: One action for each of `env_ids`.
            env_ids: Slots; None for all.

        Returns:
            The tickets' numbers; `recv` returns them as `infos["ticket"]`.

        Raises:
            TypeError, ValueError: Numbers or types do not match. Nothing was sent.
            ResetNeeded: See `step`.
            AlreadyPendingCallError: A slot's last result was not received. Nothing was sent.
            ClosedEnvironmentError: The vector environment is closed.
        """
        self._check_usable()
        slots = self._choose_slots(env_ids)
        space = self.action_space if len(slots) == self.num_envs else batch_space(self.single_action_space, len(slots))
        parts = split_actions(space, self.single_action_space, actions, len(slots))
        return self._tickets.issue("send", self._steps(slots, parts))

    def send_reset(
        self,
        env_ids: Sequence[int] | Array | None = None,
        *,
        seed: Seeds = None,
        options: Info | None = None,
    ) -> list[int]:
        """Start episodes in some slots without waiting. `recv` returns their rows, with reward 0.0.

        It raises the errors of `send`.

        Args:
            env_ids: Slots; None for all.
            seed: Seed of the first slot, where the k-th one gets `seed + k`; or a sequence with one per slot.
            options: Options of the environments; `"task_ids"` holds one for each of `env_ids`.

        Returns:
            The tickets' numbers.
        """
        self._check_usable()
        slots = self._choose_slots(env_ids)
        return self._tickets.issue("send", self._resets(slots, seed, options))

    def recv(self, min_ready: int = 1, max_ready: int | None = None, timeout: float | None = None) -> Batch:
        """Return a batch of what is ready, in the order of sending.

        It returns once `min_ready` results, or all outstanding ones, are ready; after `timeout` seconds it returns what
        is ready. See the class for the bias of taking the fastest.

        Args:
            min_ready: Number of results to wait for.
            max_ready: Maximum number of results to return; None for all that are ready.
            timeout: Seconds to wait; None waits as long as the slots take.

        Returns:
            See `step`, with k rows instead of `num_envs`. `infos` has three more arrays of shape (k,): `env_id`, the
            slot; `ticket`, as `send` returned it; and `episode_id`, the slot's episodes counted from 1.

        Raises:
            NoAsyncCallError: No result is outstanding.
            ResultsNotReady: Nothing was ready in time. Call again.
            ClosedEnvironmentError: The vector environment is closed, and all results were received.
        """
        if min_ready < 1 or (max_ready is not None and max_ready < min_ready):
            raise UsageError(f"recv needs 1 <= min_ready <= max_ready, not {min_ready=}, {max_ready=}")
        while True:
            tickets = self._tickets.wait("send", min_ready, timeout)[:max_ready]
            if not tickets:
                raise _not_ready(timeout, self._tickets)
            if (batch := self._receive(tickets)) is not None:
                return batch

    def drain(self, timeout: float | None = None) -> Batch:
        """Wait for all outstanding results and return them as one batch.

        Raises:
            NoAsyncCallError: No result is outstanding.
            ResultsNotReady: `timeout` seconds have passed; nothing was received.
        """
        while True:
            if (batch := self._receive(self._all("send", timeout))) is not None:
                return batch

    def fork(self, slot: int, into: Sequence[int] | Array) -> ResetResult[Any]:
        """Start episodes in other slots from the state of a running one, which continues, and wait for all.

        Args:
            slot: Slot of the running episode. Its environment is a `SweEnv`.
            into: Slots that end their episodes, if they have one, and continue that of `slot`.

        Returns:
            The observations of all slots, and the infos of those in `into`.

        Raises:
            UsageError: The slots are not distinct slots of this vector environment.
            ResetNeeded: `slot` has no running episode, or a slot outside of `into` has none yet.
            Unsupported, FileError, SandboxError: See `SweEnv.checkpoint`.
            AlreadyPendingCallError: Results of an earlier call were not fetched.
            ClosedEnvironmentError: The vector environment is closed.
        """
        self._check_usable()
        slots, known = [int(index) for index in into], range(self.num_envs)
        parent = int(slot)
        if not slots or len({parent, *slots}) <= len(slots) or not all(index in known for index in (parent, *slots)):
            raise UsageError(
                f"`into` must hold at least one slot from 0 to {self.num_envs - 1}, none twice and not `slot` itself: "
                f"slot={parent}, into={slots}"
            )
        mask = np.zeros(self.num_envs, dtype=np.bool_)
        mask[slots] = True
        self._read_mask({"reset_mask": mask})
        source = self._slots[parent]
        if source.over or source.observation is None:
            raise ResetNeeded(f"slot {parent} has no running episode to fork")
        self._tickets.issue("call", {parent: (source.inbox, partial(source.call, "checkpoint", (), {}))})
        (point,) = self.call_wait()
        try:
            return self.reset(options={"reset_mask": mask, "checkpoint": point, "late": True})
        except Exception:
            if self._tickets.pending() == "reset":  # the caller issued none
                self._tickets.fetch(self._tickets.wait("reset"))
            raise

    @property
    def in_flight(self) -> int:
        """Number of requests whose results were not fetched yet."""
        return len(self._tickets)

    # --- the environments -------------------------------------------------------------------------------

    def call(self, name: str, *args: object, **kwargs: object) -> tuple[Any, ...]:
        """Call a method of every environment, each in its own thread, or read an attribute.

        Returns:
            The result of each environment.

        Raises:
            AlreadyPendingCallError: Results of an earlier call were not fetched.
            Exception: The first error of an environment, raised after all calls have ended.
        """
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    def call_async(self, name: str, *args: object, **kwargs: object) -> None:
        """Run the first half of `call`."""
        self._issue_calls(name, [args] * self.num_envs, kwargs)

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Run the second half of `call`.

        Raises:
            ResultsNotReady: `timeout` seconds have passed. Call again.
        """
        tickets = self._all("call", timeout)
        self._tickets.fetch(tickets)
        for ticket in tickets:
            if isinstance(ticket.answer, SlotAnswer):  # the answer of `close` to any request
                raise ClosedEnvironmentError("the vector environment was closed during the call")
            if isinstance(ticket.answer, CallFailed):
                raise _with_note(ticket.answer.error, ticket.slot)
        return tuple(ticket.answer for ticket in tickets)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Read an attribute of every environment; see `call`."""
        return self.call(name)

    def set_attr(self, name: str, values: object) -> None:
        """Set an attribute of every environment.

        Args:
            name: Name of the attribute.
            values: One value for all, or a list or tuple with one per environment.

        Raises:
            ValueError: The list has the wrong length.
            AlreadyPendingCallError: Results of an earlier call were not fetched.
        """
        if not isinstance(values, list | tuple):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise UsageError(f"expected {self.num_envs} values, one per slot, but got {len(values)}")
        self._issue_calls("set_wrapper_attr", [(name, value) for value in values], {})
        self.call_wait()

    def render(self) -> tuple[Any, ...]:
        """Return the result of every environment's `render`."""
        return self.call("render")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]  # as SyncVectorEnv: one per environment
        """Seed of every environment."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]  # read-only, as that of SyncVectorEnv
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]  # as SyncVectorEnv
        """Random number generator of every environment."""
        return self.get_attr("np_random")

    def wrap(self, wrapper: Callable[[AnyEnv], AnyEnv]) -> None:
        """Put a wrapper around every environment, as `swe_gym.wrappers.vector` does, and update the spaces.

        Raises:
            UsageError: An episode has started, or the environments are in workers.
            RuntimeError: The wrapped environments' spaces differ. Nothing was wrapped.
        """
        self._check_usable()
        if self._workers:
            raise UsageError("environments in workers cannot be wrapped here: wrap them in env_fns")
        if self.in_flight or any(slot.observation is not None for slot in self._slots):
            raise UsageError("environments can be wrapped only before the first reset")
        before = self.envs
        self.envs = [wrapper(env) for env in before]
        try:
            self._set_spaces()
        except BaseException:
            self.envs = before
            raise
        for slot, env in zip(self._slots, self.envs, strict=True):
            slot.env = env

    @property
    def errors(self) -> tuple[BaseException | None, ...]:
        """Last error of each slot's environment, in full. For logs only: policies must not see it."""
        return tuple(slot.error for slot in self._slots)

    @property
    def busy_seconds(self) -> tuple[float, ...]:
        """Seconds that each slot has worked; divide by wall-clock time for the utilization."""
        return tuple(slot.busy for slot in self._slots)

    # --- the end ----------------------------------------------------------------------------------------

    def close(self, timeout: float = 10.0) -> None:  # type: ignore[override]  # the arguments of close_extras, named
        """Close every environment and stop the threads. Idempotent, from any thread.

        A running call of a `SweEnv` is cancelled. Another kind of environment is left alone while it works. If it does
        not end in time, a warning is issued, and its thread closes it when it ends.

        Args:
            timeout: Seconds to wait.

        Raises:
            Exception: The first error of an environment's `close`, raised after all are closed.
        """
        with self._closing:
            if self.closed:
                return
            self._finalizer.detach()
            if self._owner != os.getpid():
                self.closed = True  # the threads and sandboxes belong to the parent process
                return
            pending = self._tickets.pending()
            left = shut_down(self._slots, self._tickets, self._pool, timeout)
            if self._workers:
                close_workers(self._workers)
                left = []  # the environments end with their workers
            self.closed = True
        for slot in self._slots:
            if slot.closing_error is not None:
                raise _with_note(slot.closing_error, slot.index)
        if left:
            logger.warn(f"slots {left} did not end within {timeout:g} s: their threads are left behind.")
        if pending in ("reset", "step", "call"):
            logger.warn(f"Calling `close` while waiting for a pending call to `{pending}` to complete.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- internals ---------------------------------------------------------------------------------

    def _set_spaces(self) -> None:
        action_space = common_action_space(self.envs)
        self.observation_space, self.single_observation_space = observation_spaces(self.envs, self._observation_mode)
        self.single_action_space = action_space
        self.action_space = batch_space(action_space, self.num_envs)

    def _check_usable(self) -> None:
        if self._tickets.closed:
            raise ClosedEnvironmentError("the vector environment is closed: make a new one")
        if self._owner != os.getpid():
            raise ClosedEnvironmentError(
                "the vector environment belongs to the parent process: make a new one in this fork"
            )

    def _issue_calls(self, name: str, args: Sequence[tuple[object, ...]], kwargs: dict[str, object]) -> None:
        self._check_usable()
        work = {
            slot.index: (slot.inbox, partial(slot.call, name, own, kwargs))
            for slot, own in zip(self._slots, args, strict=True)
        }
        self._tickets.issue("call", work)

    def _all(self, kind: str, timeout: float | None) -> list[Ticket]:
        """Return all open tickets once they are answered. Raise errors that are not infrastructure failures."""
        tickets = self._tickets.wait(kind, math.inf, timeout)
        if len(tickets) < len(self._tickets):
            raise _not_ready(timeout, self._tickets)
        _raise_mistake(tickets)
        return tickets

    def _receive(self, tickets: list[Ticket]) -> Batch | None:
        """Fetch these results as a batch; None if another thread has taken some of them."""
        _raise_mistake(tickets)
        rows = [ticket.answer for ticket in tickets]
        batch = self._batch(rows)
        batch[4]["env_id"] = np.array([ticket.slot for ticket in tickets])
        batch[4]["ticket"] = np.array([ticket.number for ticket in tickets])
        batch[4]["episode_id"] = np.array([row.episode for row in rows])
        return batch if self._tickets.fetch(tickets) else None

    def _batch(self, rows: Sequence[SlotAnswer]) -> Batch:
        return (
            join_observations(self.single_observation_space, [row.observation for row in rows]),
            np.array([row.reward for row in rows], dtype=np.float64),
            np.array([row.terminated for row in rows], dtype=np.bool_),
            np.array([row.truncated for row in rows], dtype=np.bool_),
            self._infos.batch([_row_info(row) for row in rows]),
        )

    def _steps(self, slots: Sequence[int], actions: Sequence[object]) -> Requests:
        if self.autoreset_mode == AutoresetMode.DISABLED:
            taken = self._tickets.slots()
            free = [self._slots[index] for index in slots if index not in taken]
            over = [slot.index for slot in free if slot.over and not slot.unborn]
            if over:
                raise ResetNeeded(
                    f"episodes in slots {over} have ended: reset them, such as with options['reset_mask']"
                )
        return {
            index: (self._slots[index].inbox, partial(self._slots[index].step, action))
            for index, action in zip(slots, actions, strict=True)
        }

    def _resets(self, slots: Sequence[int], seed: Seeds, options: Info | None) -> Requests:
        """Return a request for each of `slots`, with its seed and its task id."""
        options = dict(options or {})
        if isinstance(seed, int | np.integer):
            seed = [int(seed) + place for place in range(len(slots))]
        seeds = _one_each("seeds", seed, len(slots))
        task_ids = _one_each("task_ids", options.pop("task_ids", None), len(slots))
        requests: dict[int, Any] = {}
        for index, own_seed, task_id in zip(slots, seeds, task_ids, strict=True):
            own = {**options, **({} if task_id is None else {"task_id": task_id})}
            requests[index] = self._slots[index].inbox, partial(self._slots[index].reset, own_seed, own or None)
        return requests

    def _read_mask(self, options: Info | None) -> Sequence[int]:
        """Return the slots of `options["reset_mask"]`. The messages are Gymnasium's."""
        if options is None or "reset_mask" not in options:
            return range(self.num_envs)
        mask = options["reset_mask"]
        if not isinstance(mask, np.ndarray):
            raise TypeError(f"`options['reset_mask']` must be a numpy array, got {type(mask)}")
        if mask.shape != (self.num_envs,):
            raise UsageError(f"`options['reset_mask']` must have shape `({self.num_envs},)`, got {mask.shape}")
        if mask.dtype != np.bool_:
            raise TypeError(f"`options['reset_mask']` must have `dtype=np.bool_`, got {mask.dtype}")
        if not mask.any():
            raise UsageError(
                "`options['reset_mask']` must contain a boolean array with at least one True value, "
                f"got reset_mask={mask}"
            )
        new = [slot.index for slot in self._slots if slot.observation is None and not mask[slot.index]]
        if new:
            raise ResetNeeded(f"slots {new} have no episode yet: they cannot be left out of the first reset")
        return [int(index) for index in np.flatnonzero(mask)]

    def _choose_slots(self, env_ids: Sequence[int] | Array | None) -> list[int]:
        slots = list(range(self.num_envs)) if env_ids is None else [int(index) for index in env_ids]
        if not slots or len(set(slots)) < len(slots) or not all(0 <= index < self.num_envs for index in slots):
            raise UsageError(f"env_ids must be distinct slots from 0 to {self.num_envs - 1}, not {slots}")
        return slots


def _autoreset_mode(mode: str | AutoresetMode) -> AutoresetMode:
    names = [known.value for known in AutoresetMode]
    if not isinstance(mode, AutoresetMode) and mode not in names:
        raise unknown_name("autoreset mode", str(mode), names)
    return AutoresetMode(mode)


def _ignore(for_processes: Iterable[str]) -> None:
    """Warn of arguments that only processes need."""
    for name in for_processes:
        if name not in FOR_PROCESSES:
            raise unknown_name("argument of SweVectorEnv", name, ["observation_mode", *OWN, *FOR_PROCESSES])
    if for_processes:
        logger.warn(f"SweVectorEnv runs its environments in threads and ignores {', '.join(for_processes)}.")


def _finalize(
    slots: Sequence[EnvSlot], tickets: Tickets, pool: WarmPool | None, workers: Sequence[WorkerHandle], owner: int
) -> None:
    """Shut down if `close` was never called."""
    if owner == os.getpid():
        shut_down(slots, tickets, pool, timeout=10.0)
        close_workers(workers)


def _one_each(what: str, values: Any, count: int) -> list[Any]:
    if values is None:
        return [None] * count
    if isinstance(values, str) or len(values) != count:
        raise UsageError(f"{what} must be None or a list with one for each of {count} slots, not {values!r}")
    return list(values)


def _row_info(row: SlotAnswer) -> Info:
    if row.final is None:
        return row.info
    return {"final_obs": row.final[0], "final_info": row.final[1], **row.info}


def _raise_mistake(tickets: Sequence[Ticket]) -> None:
    """Raise the first error that is not an infrastructure failure, once."""
    for ticket in tickets:
        if isinstance(ticket.answer, SlotAnswer) and ticket.answer.is_mistake and not ticket.raised:
            ticket.raised = True
            assert ticket.answer.error is not None
            raise _with_note(ticket.answer.error, ticket.slot)


def _with_note(error: BaseException, slot: int) -> BaseException:
    """Return the error with the slot's number. Errors that would end the program become a `RuntimeError`."""
    if not isinstance(error, Exception):
        wrapped = RuntimeError(f"the environment raised {type(error).__name__}: {error}")
        wrapped.__cause__ = error
        error = wrapped
    error.add_note(f"In slot {slot} of the vector environment. The results of all slots can still be fetched.")
    return error


def _not_ready(timeout: float | None, tickets: Tickets) -> ResultsNotReady:
    missing = f"{len(tickets.waiting())} of {len(tickets)} results were not ready within {timeout} s"
    return ResultsNotReady(f"{missing}: call again to keep waiting")
