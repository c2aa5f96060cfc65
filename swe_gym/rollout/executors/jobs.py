"""`JobHost`: the program that runs jobs on a node, for an executor elsewhere."""

import dataclasses
import pickle
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from ...errors import PolicyError, portable
from ...logs import log_as
from ...threads import SerialThread
from ..pool import CLOSE_TIMEOUT, Job, Work


class Question(NamedTuple):
    """An event that waits for an answer."""

    asked: object


class Ended(NamedTuple):
    """The last event of a job."""

    result: Any
    error: BaseException | None
    seconds: float


class HostAnswer(NamedTuple):
    """The answer to a question."""

    value: Any = None
    error: BaseException | None = None


class Events(NamedTuple):
    """The answer of `JobHost.poll`.

    Attributes:
        events: Job and event, in order.
        phases: Job -> what it waits for, for jobs that have a phase.
    """

    events: list[tuple[int, object]]
    phases: dict[int, str]


@dataclasses.dataclass(slots=True)
class _HostedJob:
    """A job on this node; None before it is made."""

    job: Job[Any] | None = None
    cancelled: str = ""
    answers: queue.SimpleQueue[HostAnswer] = dataclasses.field(default_factory=queue.SimpleQueue)
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def set(self, job: Job[Any]) -> None:
        with self.lock:
            self.job, job.cancelled = job, self.cancelled

    def cancel(self, why: str) -> None:
        with self.lock:
            self.cancelled, job = self.cancelled or why, self.job
        self.answers.put(HostAnswer(error=PolicyError(f"cancelled: {why}", reason="closed")))
        if job is not None:
            job.cancelled = job.cancelled or why
            threading.Thread(target=job.close, name="cancel", daemon=True).start()


class JobHost:
    """Runs jobs for a driver, each in a thread of its own. The driver numbers them."""

    def __init__(self) -> None:
        self._running: dict[int, _HostedJob] = {}
        self._shared: dict[str, Future[Any]] = {}
        self._events: list[tuple[int, object]] = []
        self._urgent = False
        self._changed = threading.Condition()
        self._polling = SerialThread("poll")

    def start(self, ident: int, work: bytes) -> None:
        """Start a job, given its pickled `Work`."""
        running = _HostedJob()
        with self._changed:
            self._running[ident] = running
        threading.Thread(target=self._run, args=(ident, work, running), name=f"job-{ident}", daemon=True).start()

    def cancel(self, ident: int, why: str) -> None:
        """Cancel a job, if it still runs."""
        if (running := self._running.get(ident)) is not None:
            running.cancel(why)

    def answer(self, ident: int, answer: HostAnswer) -> None:
        """Answer the question of a job, if it still runs."""
        if (running := self._running.get(ident)) is not None:
            running.answers.put(answer)

    def poll(self, seconds: float) -> Future[Events]:
        """Return the next events after `seconds`, or at once if the driver must act on one."""

        def collect() -> Events:
            with self._changed:
                self._changed.wait_for(lambda: self._urgent, seconds)
                found, self._events, self._urgent = self._events, [], False
                jobs = {ident: one.job for ident, one in self._running.items() if one.job is not None}
            return Events(found, {ident: job.phase for ident, job in jobs.items() if hasattr(job, "phase")})

        return self._polling.submit(collect)

    def end(self) -> None:
        """Cancel all jobs, and wait until they have closed their sandboxes, at most `CLOSE_TIMEOUT` seconds."""
        with self._changed:
            for running in self._running.values():
                running.cancel("cut off")
            self._changed.wait_for(lambda: not self._running, CLOSE_TIMEOUT)

    def emit(self, ident: int, event: object) -> None:
        """Queue an event for the driver."""
        with self._changed:
            self._events.append((ident, event))
            self._urgent = self._urgent or isinstance(event, Ended | Question)
            self._changed.notify_all()

    def once(self, key: str, make: Callable[[], Any]) -> Any:
        """Return what `make` returned at the first call with this key. After an error the next call tries again."""
        with self._changed:
            future = self._shared.get(key)
            mine = future is None
            future = self._shared.setdefault(key, Future())
        if mine:
            try:
                future.set_result(make())
            except BaseException as error:  # noqa: BLE001  those who wait get it too
                with self._changed:
                    del self._shared[key]
                future.set_exception(error)
        return future.result()

    def _run(self, ident: int, data: bytes, running: _HostedJob) -> None:
        """Run a job. Its last event is `Ended`, whatever happens."""
        started, result, error = time.monotonic(), None, None
        try:
            work: Work = pickle.loads(data)
            job = work.make(_JobLink(self, ident, running.answers))
            running.set(job)
            with log_as(episode=job.name):
                job.run()
            result = job.result()
        except BaseException as raised:  # noqa: BLE001  the driver raises it
            error = portable(raised)
        with self._changed:
            del self._running[ident]
        self.emit(ident, Ended(result, error, time.monotonic() - started))


class _JobLink(NamedTuple):
    """A `DriverLink`."""

    host: JobHost
    ident: int
    answers: queue.SimpleQueue[HostAnswer]

    def emit(self, event: object) -> None:
        self.host.emit(self.ident, event)

    def ask(self, question: object) -> Any:
        self.emit(Question(question))
        answer = self.answers.get()
        if answer.error is not None:
            raise answer.error
        return answer.value

    def once(self, key: str, make: Callable[[], Any]) -> Any:
        return self.host.once(key, make)
