"""Work in a thread of its own."""

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

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
