"""`EpisodePool`: runs many jobs at once, retries them, enforces their deadlines and outlives those that hang.

One thread, the caller's, starts jobs, cancels them and decides what becomes of each; an `Executor` runs them.
"""

import abc
import collections
import contextlib
import heapq
import itertools
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Generic, Protocol, Self, TypeVar

from ..logs import log_as
from ..remote import NodeLost

logger = logging.getLogger(__name__)

TICK = 0.2
"""Seconds between two checks of deadlines."""

CLOSE_TIMEOUT = 10.0
"""Seconds that the sandboxes of cancelled and dropped jobs have to close when the pool exits."""

Key = TypeVar("Key", bound=Hashable)


class DriverLink(Protocol):
    """The connection of a job on a node with its twin at the driver."""

    def emit(self, event: object) -> None:
        """Send an event to `Job.receive` of the twin. Returns at once."""
        ...

    def ask(self, question: object) -> Any:
        """Send a question to `Job.receive` of the twin, and wait for the answer.

        Raises:
            PolicyError: The job was cancelled.
            Exception: An error of `receive`.
        """
        ...

    def once(self, key: str, make: Callable[[], Any]) -> Any:
        """Return what `make` returned at the first call with this key on this node. Errors are raised, not kept."""
        ...


class Work(Protocol):
    """A job as picklable data, for a node."""

    def make(self, link: DriverLink) -> "Job[Any]":
        """Make the job on the node."""
        ...


class Job(abc.ABC, Generic[Key]):
    """One try at one episode, or at other work that needs sandboxes. `run` stores the result on the job.

    An executor with nodes calls `work` instead of `run`. Its node makes the same kind of job and runs that. The job at
    the driver receives the events and finally takes the result.

    Args:
        key: The episode. All tries at it have the same key.
        number: Number of the try, from 1.

    Attributes:
        error: The exception that `run` raised.
        cancelled: Reason for cancelling the job; empty if it was not cancelled.
        abandoned: Whether the pool gave up waiting for a cancelled job. Its `run` may still be running.
        seconds: Wall-clock time of `run`.
        sandbox_id: The sandbox that the job works in; "-" before there is one.
        lost: The loss of its node; None if it was not lost. Then there is no result.
    """

    lost: NodeLost | None = None

    def __init__(self, key: Key, number: int = 1) -> None:
        self.key = key
        self.number = number
        self.error: BaseException | None = None
        self.cancelled = ""
        self.abandoned = False
        self.started = self.cancelled_at = time.monotonic()
        self.seconds = 0.0
        self.sandbox_id = "-"

    @property
    def name(self) -> str:
        """Name of the episode in logs."""
        return str(self.key)

    @property
    def ids(self) -> dict[str, str]:
        """The `extra` of log records about this job."""
        return {"episode": self.name, "sandbox": self.sandbox_id}

    def prepare(self) -> None:
        """Begin to start the sandbox that the job will need.

        The pool calls it before `run`, or not at all. It calls `close` in place of `run` if the job is dropped.
        """

    @abc.abstractmethod
    def run(self) -> None:
        """Do the work, and close every sandbox before returning. The pool calls it once."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close the job's sandboxes so that `run` ends soon. Called from another thread; may block."""

    def more_seconds(self) -> float:
        """Return the seconds that it may take beyond the pool's `wall_clock`. It is asked once these are over."""
        return 0.0

    def work(self) -> Work | None:
        """Return the job as data for a node; None if it can run in this process only."""
        return None

    def result(self) -> object:
        """Return what `run` has stored, on the node. It must be picklable."""

    def take(self, result: Any) -> None:
        """Store the result of the job on the node, at the driver."""

    def receive(self, event: Any) -> object:
        """Handle an event of the job on the node, at the driver, and return the answer to a question."""


AnyJob = TypeVar("AnyJob", bound=Job)  # type: ignore[type-arg]  # of any key


class Closable(Protocol):
    """Sandboxes that are open, or other things to close."""

    def close(self) -> None:
        """Close them; from any thread."""
        ...


Outcome = TypeVar("Outcome")


class OutcomeJob(Job[Key], Generic[Key, Outcome]):
    """A job that sends nothing but its result. `run_outcomes` runs such jobs.

    Attributes:
        outcome: The result, once `run` has returned.
        retryable: Whether another try may have another result.
    """

    outcome: Outcome
    retryable = False
    _open: Closable | None = None

    def result(self) -> tuple[Outcome, bool]:
        """Return what `run` has stored."""
        return self.outcome, self.retryable

    def take(self, result: tuple[Outcome, bool]) -> None:
        """Store the result."""
        self.outcome, self.retryable = result

    def close(self) -> None:
        """Close the sandboxes that are open."""
        if self._open is not None:
            self._open.close()


AnyOutcomeJob = TypeVar("AnyOutcomeJob", bound=OutcomeJob)  # type: ignore[type-arg]  # of any key and result


class Executor(Protocol):
    """Runs the jobs of a pool: in threads of this process (`Threads`), or on other machines."""

    def has_room(self, wanted: int) -> bool:
        """Return whether another job may start now.

        Args:
            wanted: Jobs that could start now, perhaps none; a cluster may grow for them.

        Raises:
            SweGymError: There never will be room.
        """
        ...

    def start(self, job: AnyJob, ended: Callable[[AnyJob], None]) -> None:
        """Run a job in the background, set its `error` and `seconds`, and call `ended` once, from any thread."""
        ...

    def cancel(self, job: AnyJob) -> None:
        """End a running job soon. Returns at once."""
        ...

    def join(self, jobs_left: bool) -> None:
        """Wait until cancelled jobs are closed and, unless some are left behind, all jobs have ended."""
        ...


class Threads:
    """Runs each job in a thread of its own."""

    def __init__(self) -> None:
        self._running: list[threading.Thread] = []
        self._closing: list[threading.Thread] = []

    def has_room(self, wanted: int) -> bool:  # noqa: ARG002  as many as are wanted
        """Return True: a thread needs no room."""
        return True

    def start(self, job: AnyJob, ended: Callable[[AnyJob], None]) -> None:
        """Run a job in a new thread."""

        def run() -> None:
            with log_as(episode=job.name):
                logger.debug("started")
                try:
                    job.run()
                except BaseException as error:  # noqa: BLE001  the pool's caller raises it
                    job.error = error
            job.seconds = time.monotonic() - job.started
            ended(job)

        self._running = [*(one for one in self._running if one.is_alive()), _start(run, "episode")]

    def cancel(self, job: AnyJob) -> None:
        """Close the job's sandboxes in a new thread: closing waits for a running tool to notice."""
        self._closing = [*(one for one in self._closing if one.is_alive()), _start(job.close, "cancel")]

    def join(self, jobs_left: bool) -> None:
        """Wait for the threads, at most `CLOSE_TIMEOUT` seconds."""
        _join(self._closing if jobs_left else self._closing + self._running)


def _join(threads: Iterable[threading.Thread]) -> None:
    """Wait for threads, at most `CLOSE_TIMEOUT` seconds."""
    deadline = time.monotonic() + CLOSE_TIMEOUT
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _start(work: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


class EpisodePool(Generic[Key, AnyJob]):
    """Runs one job for each key, several at once. Leaving its `with` block cancels what still runs.

    Args:
        make_job: Makes the job for a key and the number of its try, in the thread that iterates over `run`.
        workers: Jobs that run at the same time.
        retries: Further tries at one key that `retry` grants.
        wall_clock: Seconds after which a job is cancelled.
        grace: Seconds that a cancelled job has to end before it is abandoned.
        stragglers: Cancel the last jobs once only this many are left.
        warm: Jobs that are made and prepared before a worker is free.
        on_tick: Called about five times a second in the thread that iterates over `run`.
        executor: Runs the jobs; by default `Threads`.

    Attributes:
        running: The jobs that run now.
        stopping: Why no more jobs start; empty while they do.
        dropped: Keys of the retries that were scheduled when the pool stopped, and never start.
    """

    def __init__(
        self,
        make_job: Callable[[Key, int], AnyJob],
        *,
        workers: float,
        retries: int = 0,
        wall_clock: float = math.inf,
        grace: float = 10.0,
        stragglers: int = 0,
        warm: int = 0,
        on_tick: Callable[[], None] = lambda: None,
        executor: Executor | None = None,
    ) -> None:
        self.running: set[AnyJob] = set()
        self.stopping = ""
        self.dropped: list[Key] = []
        self._make_job = make_job
        self._workers, self._retries = workers, retries
        self._wall_clock, self._grace, self._stragglers = wall_clock, grace, stragglers
        self._warm = warm
        self._on_tick = on_tick
        self._executor: Executor = executor or Threads()
        self._waiting: collections.deque[Key] = collections.deque()
        self._prepared: collections.deque[AnyJob] = collections.deque()
        self._delayed: list[tuple[float, int, Key, int]] = []  # a heap: when, tie-break, key, number of the try
        self._innocent: collections.Counter[Key] = collections.Counter()  # tries lost to the fault of others
        self._order = itertools.count()
        self._ended: queue.SimpleQueue[AnyJob | None] = queue.SimpleQueue()
        self._closing: list[threading.Thread] = []
        self._cancelled = ""
        self._jobs_left = False
        self._exited = threading.Event()

    def run(self, keys: Iterable[Key], *, raising: bool = True) -> Iterator[AnyJob]:
        """Yield each job when it has ended or was abandoned: several of one key if `retry` is called.

        Jobs end in any order. The next one starts when the loop asks for the next job: no more start after a call of
        `drain` in the loop.

        Raises:
            BaseException: The error of a job, if `raising` is set.
        """
        self._waiting.extend(keys)
        while self._start_due():
            with contextlib.suppress(queue.Empty):
                job = self._ended.get(timeout=TICK)
                if job in self.running:  # neither a wake-up nor abandoned before
                    self.running.discard(job)
                    if raising and job.error is not None:
                        raise job.error
                    yield job
            self._cancel_due()
            if self._ended.empty():  # else jobs that have ended wait for their turn
                yield from self._abandon_stuck()
            self._on_tick()

    def add(self, keys: Iterable[Key]) -> None:
        """Queue further keys; from any thread. An idle pool starts them with the next `run`, a stopping one never."""
        if not self.stopping:
            self._waiting.extend(keys)
            self._ended.put(None)

    def retry(self, job: AnyJob) -> bool:
        """Schedule another try at a job's key, after a delay. Returns False if there is none left."""
        self._innocent[job.key] += job.lost is not None and not job.lost.blamed
        if job.number - self._innocent[job.key] > self._retries or self.stopping:
            return False
        delay = retry_delay(job.number + 1)
        logger.info("try %d failed; the next one starts in %g s", job.number, delay, extra=job.ids)
        heapq.heappush(self._delayed, (time.monotonic() + delay, next(self._order), job.key, job.number + 1))
        return True

    def drop(self, unwanted: Callable[[Key], bool]) -> None:
        """Never start the jobs of some keys that have not started. Further ones may be added meanwhile."""
        self._close_prepared([job for job in self._prepared if unwanted(job.key)])
        for _ in range(len(self._waiting)):  # in place: `add` extends it in another thread
            key = self._waiting.popleft()
            if not unwanted(key):
                self._waiting.append(key)
        self._delayed = [one for one in self._delayed if not unwanted(one[2])]
        heapq.heapify(self._delayed)

    def drain(self, why: str) -> None:
        """Start no more jobs; those that run are played to their end."""
        if not self.stopping:
            logger.info("no more jobs start: %s", why)
        self.stopping = self.stopping or why
        self.dropped += [key for _, _, key, _ in self._delayed]
        self._delayed.clear()
        self._waiting.clear()
        self._close_prepared(list(self._prepared))

    def _close_prepared(self, jobs: Iterable[AnyJob]) -> None:
        """Close jobs that were prepared and never start, in new threads: closing a sandbox takes a while."""
        for job in jobs:
            self._prepared.remove(job)
            self._closing.append(_start(job.close, "close"))

    def cancel(self, why: str) -> None:
        """Cancel every job and start no more. Returns at once; may be called from any thread."""
        if not self._cancelled:
            self._cancelled = why
            self._ended.put(None)

    def join(self, timeout: float) -> None:
        """Wait until the pool's `with` block is left; for a thread that called `cancel`."""
        self._exited.wait(timeout)

    def _start_due(self) -> bool:
        """Start what may start. Returns whether there is anything to wait for."""
        self._apply_cancel()
        while self._may_start() and (job := self._next()) is not None:
            job.started = time.monotonic()
            self._executor.start(job, self._ended.put)
            self.running.add(job)
        while len(self._prepared) < self._warm and self._waiting:
            job = self._make_job(self._waiting.popleft(), 1)
            job.prepare()
            self._prepared.append(job)
        return bool(self.running or self._delayed or self._prepared or self._waiting)

    def _may_start(self) -> bool:
        due = sum(when <= time.monotonic() for when, *_ in self._delayed)
        free = self._workers - len(self.running)
        wanted = int(min(free, due + len(self._prepared) + len(self._waiting)))
        return free > 0 and not self.stopping and self._executor.has_room(wanted)

    def _next(self) -> AnyJob | None:
        if self._delayed and self._delayed[0][0] <= time.monotonic():
            _, _, key, number = heapq.heappop(self._delayed)
            return self._make_job(key, number)
        if self._prepared:
            return self._prepared.popleft()
        return self._make_job(self._waiting.popleft(), 1) if self._waiting else None

    def _cancel_due(self) -> None:
        """Cancel jobs that are past their deadline, and the last stragglers."""
        late = time.monotonic() - self._wall_clock
        for job in self.running:
            if job.started < late and job.started < late - job.more_seconds():
                self._cancel(job, "wall_clock")
        left = len(self.running) + len(self._delayed)
        if not (self._waiting or self._prepared or self.stopping) and 0 < left <= self._stragglers:
            self.cancel("straggler")
        self._apply_cancel()

    def _apply_cancel(self) -> None:
        if self._cancelled:
            self.drain(self._cancelled)
            for job in self.running:
                self._cancel(job, self._cancelled)

    def _cancel(self, job: AnyJob, why: str) -> None:
        if not job.cancelled:
            logger.info("cancelled: %s", why, extra=job.ids)
            job.cancelled_at, job.cancelled = time.monotonic(), why
            self._executor.cancel(job)

    def _abandon_stuck(self) -> Iterator[AnyJob]:
        """Stop waiting for cancelled jobs that do not end, for example in a policy that never answers."""
        late = time.monotonic() - self._grace
        for job in [one for one in self.running if one.cancelled and one.cancelled_at < late]:
            logger.warning("still running %g s after it was cancelled; abandoned", self._grace, extra=job.ids)
            self.running.discard(job)
            self._jobs_left = job.abandoned = True
            yield job

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._on_tick = lambda: None
        if self.running or self._delayed or self._prepared or self._waiting:
            self.cancel("stopped")
        try:
            for _ in self.run((), raising=False):
                pass
            self._executor.join(self._jobs_left)
            _join(self._closing)
        finally:
            self._exited.set()


def retry_delay(number: int) -> float:
    """Return the seconds to wait before a try: 1, 2, 4, ... from the second on, at most 30."""
    return float(min(30.0, 2.0 ** (number - 2)))


NODE_RETRIES = 5
"""Tries after the first of a job whose node is lost."""


def run_outcomes(
    make_job: Callable[[Key, int], AnyOutcomeJob], keys: Iterable[Key], *, workers: int, executor: Executor
) -> Iterator[AnyOutcomeJob]:
    """Run a job for each key, and yield its last try, also one whose node is `lost`.

    A job whose node is lost is tried again up to `NODE_RETRIES` times, one that is `retryable` once.

    Args:
        make_job: Makes the job for a key and the number of its try.
        keys: The keys.
        workers: Jobs that run at the same time.
        executor: Where they run.
    """
    with EpisodePool(make_job, workers=workers, retries=NODE_RETRIES, executor=executor) as pool:
        retried: set[Key] = set()
        for job in pool.run(keys):
            again = job.lost is not None or (job.retryable and job.key not in retried)
            if job.lost is None:
                retried.add(job.key)
            if not again or not pool.retry(job):
                yield job
