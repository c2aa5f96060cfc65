"""Work in other threads."""

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")


def in_thread(work: Callable[[], Result], name: str) -> "Future[Result]":
    """Run `work` in a daemon thread, with the context of its caller, and return its future result."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  raised by `result`
            future.set_exception(error)

    context = contextvars.copy_context()  # with the ids that log records show
    threading.Thread(target=context.run, args=(run,), name=name, daemon=True).start()
    return future


class SerialThread:
    """A daemon thread that runs one piece of work after the other.

    The threads of `ThreadPoolExecutor(1)` are not daemons: work that hangs keeps the program from ending.
    """

    def __init__(self, name: str) -> None:
        self._inbox: SimpleQueue[tuple[Future[Any], Callable[[], object]] | None] = SimpleQueue()
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def submit(self, work: Callable[[], Result]) -> "Future[Result]":
        """Queue some work, and return its future result."""
        future: Future[Result] = Future()
        self._inbox.put((future, work))
        return future

    def close(self) -> None:
        """End the thread, once it has done what is queued."""
        self._inbox.put(None)

    def _serve(self) -> None:
        while (item := self._inbox.get()) is not None:
            future, work = item
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001  raised by `result`
                future.set_exception(error)
            del item, future, work
