"""`Host`: runs jobs on a node for a driver elsewhere, and ends them if the driver falls silent."""

import dataclasses
import pickle
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Literal, NamedTuple

from ...errors import PolicyError, portable
from ...logs import log_as
from ..pool import CLOSE_TIMEOUT, Job, Work


class Message(NamedTuple):
    """A message from the driver: start a job (its pickled `Work`), cancel it (why), or answer its question."""

    kind: Literal["start", "cancel", "answer"]
    ident: int
    value: Any


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
    """The answer of `Host.poll`.

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


class Host:
    """Runs jobs for a driver, each in a thread of its own. The driver's calls are its heartbeat.

    Args:
        lease: Seconds without a call of the driver after which all jobs are cancelled.
        on_cut: Called after that, for example to end the process.
    """

    def __init__(self, lease: float, on_cut: Callable[[], None]) -> None:
        self._lease, self._on_cut = lease, on_cut
        self._running: dict[int, _HostedJob] = {}
        self._early: dict[int, Message] = {}
        self._shared: dict[str, Future[Any]] = {}
        self._events: list[tuple[int, object]] = []
        self._urgent = False
        self._changed = threading.Condition()
        self._heard = time.monotonic()
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="lease", daemon=True).start()

    def send(self, messages: Sequence[Message]) -> None:
        """Take messages of the driver. Returns at once."""
        self._heard = time.monotonic()
        for message in messages:
            if message.kind == "start":
                self._start(message)
            elif (running := self._running.get(message.ident)) is None:
                self._early[message.ident] = message  # calls may overtake each other
            elif message.kind == "cancel":
                running.cancel(message.value)
            else:
                running.answers.put(message.value)

    def _start(self, message: Message) -> None:
        running = _HostedJob()
        with self._changed:
            self._running[message.ident] = running
        if (early := self._early.pop(message.ident, None)) is not None:
            running.cancel(early.value)
        args, name = (message, running), f"job-{message.ident}"
        threading.Thread(target=self._run, args=args, name=name, daemon=True).start()

    def poll(self, seconds: float) -> Events:
        """Return the next events after `seconds`, or at once if the driver must act on one."""
        self._heard = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: self._urgent, seconds)
            found, self._events, self._urgent = self._events, [], False
            jobs = {ident: one.job for ident, one in self._running.items() if one.job is not None}
        self._heard = time.monotonic()
        return Events(found, {ident: job.phase for ident, job in jobs.items() if hasattr(job, "phase")})

    def close(self) -> None:
        """Cancel all jobs, and wait until they have closed their sandboxes, at most `CLOSE_TIMEOUT` seconds."""
        self._closed.set()
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

    def _run(self, message: Message, running: _HostedJob) -> None:
        """Run a job. Its last event is `Ended`, whatever happens."""
        started, result, error = time.monotonic(), None, None
        try:
            work: Work = pickle.loads(message.value)
            job = work.make(_HostLink(self, message.ident, running.answers))
            running.set(job)
            with log_as(episode=job.name):
                job.run()
            result = job.result()
        except BaseException as raised:  # noqa: BLE001  the driver raises it
            error = portable(raised)
        with self._changed:
            del self._running[message.ident]
        self.emit(message.ident, Ended(result, error, time.monotonic() - started))

    def _watch(self) -> None:
        """End everything once the lease is over."""
        while not self._closed.wait(self._lease / 20):
            if time.monotonic() > self._heard + self._lease:
                self.close()
                self._on_cut()
                return


class _HostLink(NamedTuple):
    """A `Link`."""

    host: Host
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
