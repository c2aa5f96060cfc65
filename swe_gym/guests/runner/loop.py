"""The poll loop of the runner: frames in and out, timers, and long operations in steps."""

import errno
import os
import select
import time
import types

from ..protocol import Decoder, encode, fields_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Callable, Generator, Protocol, TypeVar

    from ..protocol import Message, Operation, Reply, Request

    Fields = Mapping[str, Any]
    AnyReply = TypeVar("AnyReply", bound=Fields)
    Answer = tuple[AnyReply, bytes]
    Steps = Generator[None, None, Answer[AnyReply]]
    Handler = Callable[[int], object]

    class Timed(Protocol):
        """Something with deadlines."""

        def deadlines(self) -> "list[float]":
            """Return the times at which `check` must run."""

        def check(self, now: float) -> None:
            """Do what is due."""


SLICE = 0.02  # seconds that one operation works before others get their turn
LONGEST_POLL = 1e6  # seconds; poll takes milliseconds in 31 bits


CHUNK = 1 << 16


def read_some(fd: int, size: int = CHUNK) -> "bytes | None":
    """Return the bytes that are ready, none at the end, or None if nothing is ready yet."""
    try:
        return os.read(fd, size)
    except BlockingIOError:
        return None
    except OSError:
        return b""


class LongOperation:
    """An operation that takes long, as a generator of its steps."""

    def __init__(self, loop: "Loop", request: "Fields", steps: "Steps[Fields]") -> None:
        self.loop = loop
        self.request = request
        self.steps = steps
        self.deadline = time.monotonic() + request["timeout"]

    def advance(self) -> bool:
        """Take steps for a moment; return whether there are more. The last one sends the reply."""
        pause = time.monotonic() + SLICE
        try:
            while True:
                next(self.steps)
                now = time.monotonic()
                if now > self.deadline:
                    raise OSError(errno.ETIMEDOUT, "took longer than %g s" % self.request["timeout"])
                if now > pause:
                    return True
        except StopIteration as stop:
            self.loop.reply(self.request, *stop.value)
        return False


class Loop:
    """Reads requests from one descriptor, writes replies to another, and calls handlers of more.

    Attributes:
        operations: Name of an operation -> the fields of its request, "id" and "op" included, and its function.
        timed: Everything with deadlines.
        expires: The time at which the sandbox ends itself, or None.
        alive: False ends `run`.
    """

    def __init__(self, source: int, sink: int) -> None:
        self.sink = sink
        self.decoder = Decoder()
        self.outgoing = bytearray()
        self.poll = select.poll()
        self.handlers: dict[int, Handler] = {}
        self.operations: dict[str, tuple[frozenset[str], Callable[[Any, bytes], Any]]] = {}
        self.timed: list[Timed] = []
        self.jobs: list[LongOperation] = []
        self.expires: float | None = None
        self.alive = True
        os.set_blocking(source, False)
        os.set_blocking(sink, False)
        self.watch(source, select.POLLIN, self.on_requests)

    def run(self) -> None:
        while self.alive:
            for fd, _ in self.poll.poll(self.next_timer()):
                handler = self.handlers.get(fd)
                if handler:
                    handler(fd)
            now = time.monotonic()
            for timed in self.timed:
                timed.check(now)
            if self.expires and now >= self.expires:
                self.send({"event": "expired"})
                self.alive = False
            self.jobs = [job for job in self.jobs if self.attempt(job.request, job.advance)]

    def offer(
        self,
        operation: "Operation[Request, Reply]",
        function: "Callable[[Request, bytes], tuple[Reply, bytes] | Generator[None, None, tuple[Reply, bytes]] | None]",
    ) -> None:
        """Let `function` carry out an operation.

        It returns the answer, a generator whose return value is the answer, or None if it calls `reply` later.
        """
        self.operations[operation.name] = frozenset(fields_of(operation.request)).union(("id", "op")), function

    def watch(self, fd: int, events: int, handler: "Handler") -> None:
        self.handlers[fd] = handler
        self.poll.register(fd, events)

    def unwatch(self, fd: int) -> None:
        if self.handlers.pop(fd, None):
            self.poll.unregister(fd)

    def next_timer(self) -> int:
        """Return the milliseconds until the next deadline."""
        if self.jobs:
            return 0
        times = [self.expires] if self.expires else []
        for timed in self.timed:
            times += timed.deadlines()
        left = min(times) - time.monotonic() if times else LONGEST_POLL
        return int(max(0, min(left, LONGEST_POLL)) * 1000) + 1

    def on_requests(self, fd: int) -> None:
        data = read_some(fd, 1 << 20)
        if data == b"":
            self.alive = False
        for request, payload in self.decoder.feed(data or b""):
            self.serve(request, payload)

    def serve(self, request: "Fields", payload: bytes) -> None:
        """Carry out a request, or start to: a long operation takes turns with everything else."""
        self.attempt(request, lambda: self.begin(request, payload))

    def begin(self, request: "Fields", payload: bytes) -> None:
        name = request.get("op")
        if name not in self.operations:
            raise ValueError("unknown operation: %s" % name)
        fields, function = self.operations[name]
        if request.keys() != fields:
            raise ValueError("missing or unknown fields of %s: %s" % (name, ", ".join(sorted(fields ^ request.keys()))))
        answer = function(request, payload)
        if isinstance(answer, types.GeneratorType):
            self.jobs.append(LongOperation(self, request, answer))
        elif answer:
            self.reply(request, *answer)

    def attempt(self, request: "Fields", work: "Callable[[], bool | None]") -> "bool | None":
        """Return what `work` returns. If it fails, reply with the error and return None."""
        try:
            return work()
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, "EIO")
            self.reply(request, {"error": [name, "%s" % (error.strerror or error)]})
        except Exception as error:  # noqa: BLE001  a bad request must not end the sandbox
            self.reply(request, {"error": ["BadRequest", "%s: %s" % (type(error).__name__, error)]})
        return None

    def reply(self, request: "Fields", reply: "Fields", payload: bytes = b"") -> None:
        self.send(dict(reply, id=request["id"]), payload)

    def send(self, message: "Message", payload: bytes = b"") -> None:
        self.outgoing += encode(message, payload)
        self.flush()

    def flush(self, _: int = 0) -> None:
        try:
            while self.outgoing:
                sent = os.write(self.sink, self.outgoing[: 1 << 20])
                del self.outgoing[:sent]
        except BlockingIOError:
            if self.sink not in self.handlers:
                self.watch(self.sink, select.POLLOUT, self.flush)
            return
        except OSError:
            self.alive = False  # nobody listens any more
        self.unwatch(self.sink)
