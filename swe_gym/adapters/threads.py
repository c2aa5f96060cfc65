"""Blocking work that is awaited, each in a thread of its own, and ended if the waiting task is cancelled.

`asyncio.to_thread` is not enough: it runs at most 32 calls at once, and cannot be cancelled.
"""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, TypeVar

from .. import threads
from ..rollout import TICK

Result = TypeVar("Result")


async def in_thread(work: Callable[[], Result], cancel: Callable[[], object]) -> Result:
    """Run blocking work in a new thread.

    Args:
        work: The work.
        cancel: Makes the work end soon and frees what it holds. If this task is cancelled, another thread calls it,
            several times and once after the work has ended. The task ends only then.
    """
    outcome = _start(work, "episode")
    try:
        await asyncio.wait([asyncio.wrap_future(outcome)])
    except asyncio.CancelledError:
        stopped = asyncio.wrap_future(_start(partial(_stop, outcome, cancel), "cancel"))
        while not stopped.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([stopped])
        raise
    return outcome.result()()


def _start(work: Callable[[], Result], name: str) -> Future[Callable[[], Result]]:
    """Start a thread. Its outcome is called for the result or the error: asyncio futures refuse `StopIteration`."""

    def run() -> Callable[[], Result]:
        result: Future[Result] = Future()
        try:
            result.set_result(work())
        except BaseException as error:  # noqa: BLE001  the caller raises it
            result.set_exception(error)
        return result.result

    return threads.in_thread(run, name)


def _stop(outcome: Future[Any], cancel: Callable[[], object]) -> None:
    """Cancel work until it has ended: the first call may come before there is anything to cancel."""
    over = False
    while not over:
        over = outcome.done()
        with contextlib.suppress(Exception):  # the task raises its cancellation
            cancel()
        wait([outcome], timeout=TICK)
