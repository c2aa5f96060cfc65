"""`RemoteExecutor`: runs the jobs of a pool on the nodes of a cluster, which it knows by a protocol only.

`JobHost` is the program that runs jobs on a node.
"""

import collections
import contextlib
import dataclasses
import itertools
import logging
import math
import pickle
import queue
import threading
import time
from collections.abc import Callable, Collection, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

from ...errors import PolicyError, UsageError, portable
from ...logs import log_as
from ...remote import START_TIMEOUT, HostLink, NodeLost, ProcessLauncher, ask
from ...threads import SerialThread
from ..pool import CLOSE_TIMEOUT, AnyJob, Job, Work


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


logger = logging.getLogger(__name__)

PROGRAM = f"{JobHost.__module__}:{JobHost.__name__}"
"""The program of a node."""

POLL = 0.5
"""Seconds of one call of `JobHost.poll`: how late a turn is shown."""

LEASE = 30.0
"""Seconds without contact after which a node is lost."""

LOOK_EVERY = 3.0
"""Seconds between two looks for new nodes."""

PATIENCE = 300.0
"""Seconds without any node after which jobs are refused. Nodes of a cloud take minutes to start."""

MAX_DELAY = 30.0
"""Longest wait in seconds before a lost node is used again."""

SUSPECT_AFTER = 2
"""Losses after which a job may be what kills its node. Each node runs one such suspect at a time."""

MOST_QUESTIONS = 64
"""Questions of jobs that are answered at once."""


class HostNode(NamedTuple):
    """A node that runs jobs.

    Attributes:
        link: The link to its `JobHost`.
        room: Number of jobs that it may run at once.
    """

    link: HostLink
    room: int


class HostCluster(Protocol):
    """Nodes that can run jobs."""

    def nodes(self) -> Collection[str]:
        """Return the ids of all nodes that are alive."""
        ...

    def open(self, node: str) -> HostNode:
        """Start `PROGRAM` on a node.

        Raises:
            NodeLost: It did not start.
        """
        ...

    def demand(self, jobs: int) -> str:
        """Ask for room for this many more jobs, if the cluster can grow.

        Returns:
            What a job needs and what nodes have, for the error if there is never a node.
        """
        ...

    def close(self) -> None:
        """Disconnect."""
        ...


@dataclasses.dataclass(eq=False, slots=True)
class _RemoteJob:
    """A job on a node."""

    ident: int
    job: Job[Any]
    work: bytes
    ended: Callable[[Any], None]
    error: BaseException | None = None


@dataclasses.dataclass(eq=False, slots=True)
class _Open:
    """A node with a host. Its sender makes one call after the other."""

    name: str
    node: HostNode
    running: dict[int, _RemoteJob] = dataclasses.field(default_factory=dict)
    sender: SerialThread = dataclasses.field(default_factory=lambda: SerialThread("send"))

    @property
    def free(self) -> int:
        return self.node.room - len(self.running)


class RemoteExecutor:
    """Runs jobs on the nodes of a cluster, each on the node with the most room.

    A node that fails a call is lost: its jobs end with `lost`, its host is ended, and whatever it still sends is
    ignored. If the node is still alive, a new host is started on it. A job that is lost again and again becomes a
    suspect: from then on its losses are its own, and not those of the jobs around it.

    Args:
        cluster: The cluster. The executor closes it.
        patience: Seconds without any node after which jobs are refused.
        lease: Seconds without an answer after which a node is lost.
        look_every: Seconds between two looks for new nodes, and between two demands for them.
    """

    def __init__(
        self,
        cluster: HostCluster,
        *,
        patience: float = PATIENCE,
        lease: float = LEASE,
        look_every: float = LOOK_EVERY,
    ) -> None:
        self._cluster = cluster
        self._patience, self._lease, self._look_every = patience, lease, look_every
        self._lock = threading.RLock()
        self._open: dict[str, _Open] = {}
        self._serving: dict[str, threading.Thread] = {}
        self._alive: Collection[str] = ()
        self._waiting: collections.deque[_RemoteJob] = collections.deque()
        self._losses: collections.Counter[Hashable] = collections.Counter()  # by the job's key
        self._idents = itertools.count()
        self._answering = ThreadPoolExecutor(MOST_QUESTIONS, thread_name_prefix="answer")
        self._closed = threading.Event()
        self._last_seen = time.monotonic()
        self._wanted = 0  # jobs that found no room since the last look
        self._lack = ""
        self._problem: BaseException | None = None
        self._last_loss = "none has started"
        self._watcher = threading.Thread(target=self._watch, name="nodes", daemon=True)
        self._watcher.start()

    # --- the pool's side --------------------------------------------------------------------------------

    def has_room(self, wanted: int) -> bool:
        """Return whether another job may start now. If not, ask the cluster for room.

        Args:
            wanted: Jobs that could start now.

        Raises:
            NodeLost: There was no node for `patience` seconds.
            UsageError: A node has other code of swe_gym.
        """
        with self._lock:
            if self._problem is not None:
                raise self._problem
            if self._open:
                self._last_seen = time.monotonic()
            elif time.monotonic() > self._last_seen + self._patience:
                said = "; ".join(filter(None, [self._last_loss, self._lack]))
                message = f"no node for {self._patience:g} s ({said}): check the cluster, then run again"
                raise NodeLost(message, reason="NoNode")
            waiting = sum(not self._is_suspect(one) for one in self._waiting)
            free = sum(one.free for one in self._open.values()) - waiting
            self._wanted = max(0, wanted - free)
            return free > 0

    def start(self, job: AnyJob, ended: Callable[[AnyJob], None]) -> None:
        """Run a job on the node with the most room.

        Raises:
            UsageError: The job can run in this process only.
        """
        work = job.work()
        if work is None:
            raise UsageError(f"{type(job).__name__} can run in threads of this process only")
        with self._lock:
            self._waiting.append(_RemoteJob(next(self._idents), job, pickle.dumps(work), ended))
            self._assign()

    def _assign(self) -> None:
        """Send waiting jobs to nodes with room."""
        for running in list(self._waiting):
            fitting = [one for one in self._open.values() if one.free > 0 and self._fits(running, one)]
            if fitting:
                best = max(fitting, key=lambda one: one.free)
                self._waiting.remove(running)
                running.job.started = time.monotonic()
                best.running[running.ident] = running
                self._send(best, "start", running.ident, running.work)

    def _fits(self, running: _RemoteJob, one: _Open) -> bool:
        return not (self._is_suspect(running) and any(map(self._is_suspect, one.running.values())))

    def _is_suspect(self, running: _RemoteJob) -> bool:
        return self._losses[running.job.key] >= SUSPECT_AFTER

    def cancel(self, job: AnyJob) -> None:
        """Cancel a job on its node. A job that waits for a node ends here."""
        with self._lock:
            for running in self._waiting:
                if running.job is job:
                    self._waiting.remove(running)
                    self._end_lost(running, NodeLost("cancelled before it started", reason="cancelled"))
                    return
            for one in self._open.values():
                for running in one.running.values():
                    if running.job is job:
                        self._send(one, "cancel", running.ident, job.cancelled)

    def join(self, jobs_left: bool) -> None:
        """Wait until no job runs, at most `CLOSE_TIMEOUT` seconds, and not for jobs that are left behind."""
        deadline = time.monotonic() + CLOSE_TIMEOUT
        while not jobs_left and time.monotonic() < deadline and any(one.running for one in self._nodes()):
            self._closed.wait(0.02)

    def close(self) -> None:
        """End all hosts and disconnect from the cluster. Idempotent."""
        self._closed.set()
        for thread in (self._watcher, *self._serving.values()):
            thread.join(CLOSE_TIMEOUT)
        self._answering.shutdown(wait=False, cancel_futures=True)
        self._cluster.close()

    def _nodes(self) -> list[_Open]:
        with self._lock:
            return list(self._open.values())

    # --- the nodes' side: one thread for each ---------------------------------------------------------------

    def _watch(self) -> None:
        """Serve every node that is alive."""
        while not self._closed.is_set():
            try:
                self._alive = self._cluster.nodes()
                self._lack = self._cluster.demand(self._wanted)
            except NodeLost as error:
                self._last_loss = str(error)
            except Exception as error:  # noqa: BLE001  the pool raises it
                self._problem = error
                return
            for name in self._alive:
                if name not in self._serving or not self._serving[name].is_alive():
                    self._serving[name] = threading.Thread(target=self._serve, args=(name,), name=name, daemon=True)
                    self._serving[name].start()
            self._closed.wait(self._look_every)

    def _serve(self, name: str) -> None:
        """Keep a host on a node as long as the node is alive."""
        losses = 0
        while not self._closed.is_set() and name in self._alive:
            started = time.monotonic()
            try:
                node = self._cluster.open(name)
                with contextlib.closing(node.link):
                    self._poll(node.link, 0.0, node.link.patience)  # it has started
                    self._follow(_Open(name, node))
            except NodeLost as error:
                losses = 1 if time.monotonic() > started + 2 * MAX_DELAY else losses + 1
                self._last_loss = f"node {name}: {error}"
                logger.warning("node %s was lost: %s", name, error)
                self._closed.wait(min(MAX_DELAY, 2.0 ** (losses - 1)))
            except Exception as error:  # noqa: BLE001  the pool raises it
                self._problem = error
                return

    def _follow(self, one: _Open) -> None:
        """Handle the events of a host until the executor is closed. Its jobs are lost if the host is lost."""
        with self._lock:
            self._open[one.name] = one
            self._assign()
        try:
            while not self._closed.is_set():
                self._handle(one, self._poll(one.node.link, POLL, POLL + self._lease))
        except NodeLost as error:
            self._lose(one, error)
            raise
        except Exception as error:
            self._lose(one, NodeLost(str(error), reason=type(error).__name__))
            raise
        finally:
            with self._lock:
                self._open.pop(one.name, None)
            one.sender.close()

    def _poll(self, link: HostLink, seconds: float, timeout: float) -> Events:
        try:
            events: Events = ask(link, "poll", seconds, timeout=timeout)
            return events
        except TimeoutError as error:
            raise NodeLost(str(error), reason=type(error).__name__) from error

    def _send(self, one: _Open, method: str, ident: int, value: object) -> None:
        """Call a method of the host for a job, without waiting. If the call fails, the next poll fails too."""

        def send() -> None:
            try:
                ask(one.node.link, method, ident, value, timeout=self._lease)
            except (NodeLost, TimeoutError):
                one.node.link.close()

        one.sender.submit(send)

    def _lose(self, one: _Open, error: NodeLost) -> None:
        with self._lock:
            self._open.pop(one.name, None)
            lost = list(one.running.values())
            one.running.clear()
            suspects = [running for running in lost if self._is_suspect(running)]
            self._losses.update(running.job.key for running in suspects or lost)
        for running in lost:
            blamed = running in suspects
            self._end_lost(running, NodeLost(f"node {one.name}: {error}", reason=error.reason, blamed=blamed))

    def _end_lost(self, running: _RemoteJob, error: NodeLost) -> None:
        running.job.lost = error
        running.job.seconds = time.monotonic() - running.job.started
        running.ended(running.job)

    def _handle(self, one: _Open, events: Events) -> None:
        for ident, event in events.events:
            if (running := one.running.get(ident)) is None:
                continue
            if isinstance(event, Ended):
                self._end(one, running, event)
            elif isinstance(event, Question):
                self._answering.submit(self._answer, one, running, event)
            else:
                self._receive(one, running, event)
        for ident, phase in events.phases.items():
            if ident in one.running:
                one.running[ident].job.receive(("phase", phase))

    def _receive(self, one: _Open, running: _RemoteJob, event: object) -> None:
        if running.job.abandoned:
            return
        try:
            running.job.receive(event)
        except Exception as error:  # noqa: BLE001  the pool's caller raises it, as soon as the job has ended
            running.error = running.error or error
            self._send(one, "cancel", running.ident, "stopped")

    def _answer(self, one: _Open, running: _RemoteJob, question: Question) -> None:
        """Answer a question of a job, in a thread: a policy may take long."""
        try:
            answer = HostAnswer(running.job.receive(question.asked))
            pickle.dumps(answer)
        except BaseException as error:  # noqa: BLE001  the job raises it, also if the answer cannot be sent
            answer = HostAnswer(error=portable(error))
        with self._lock:
            if one.running.get(running.ident) is running:
                self._send(one, "answer", running.ident, answer)

    def _end(self, one: _Open, running: _RemoteJob, event: Ended) -> None:
        job = running.job
        try:
            job.error, job.seconds = running.error or event.error, event.seconds
            if job.error is None:
                job.take(event.result)
        except Exception as error:  # noqa: BLE001  the pool's caller raises it
            job.error = error
        with self._lock:
            del one.running[running.ident]
            self._losses.pop(job.key, None)
            running.ended(job)
            self._assign()


class ProcessCluster:
    """Processes of this machine as nodes.

    Args:
        processes: Number of processes.
        room: Number of jobs that each may run at once.
    """

    def __init__(self, processes: int, room: int) -> None:
        self._names = [f"process-{number}" for number in range(processes)]
        self._room = room
        self._launcher = ProcessLauncher()

    def nodes(self) -> Collection[str]:
        """Return the names of all processes."""
        return self._names

    def open(self, node: str) -> HostNode:  # noqa: ARG002  they are all alike
        """Start a process."""
        return HostNode(self._launcher.open(PROGRAM), self._room)

    def demand(self, jobs: int) -> str:  # noqa: ARG002  it cannot grow
        """Return an empty text: the number of processes is fixed."""
        return ""

    def close(self) -> None:
        """Do nothing: the executor has ended every process."""


def process_executor(workers: float, *, processes: int | None = None) -> RemoteExecutor:
    """Return an executor on worker processes of this machine.

    Args:
        workers: Jobs that run at once. The processes share them.
        processes: Number of processes; None for one per core, but not more than `workers`.

    Raises:
        UsageError: The number is invalid.
    """
    if processes is not None and processes < 1:
        raise UsageError(f"processes must be at least 1, not {processes}")
    count = int(min(processes or ProcessLauncher().places, workers))
    return RemoteExecutor(ProcessCluster(count, math.ceil(workers / count)), patience=START_TIMEOUT)
