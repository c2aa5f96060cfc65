"""Helpers for sandboxes of the E2B test server."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from servers.e2b_server import E2BServer

from swe_gym.errors import SandboxStartError
from swe_gym.sandboxes import SandboxSpec
from swe_gym.sandboxes.e2b import E2BSandbox

CREATE = "*/sandboxes"
START = "/process.Process/Start"
LISTEN = "/process.Process/Connect"
SEND = "/process.Process/SendInput"

Make = Callable[..., E2BSandbox]


class Impatient(E2BSandbox):
    """A sandbox that counts as lost sooner, for short tests."""

    slack = 0.5


@contextlib.contextmanager
def making(server: E2BServer) -> Iterator[Make]:
    """A function that makes sandboxes, not started, of this or another server; `options` are the backend's own."""
    made: list[E2BSandbox] = []

    def make(
        server: E2BServer = server, options: dict[str, Any] | None = None, slack: float = 0.5, **fields: Any
    ) -> E2BSandbox:
        given = server.sandbox_options(**(options or {}))
        box = Impatient(SandboxSpec.model_validate({**given, **fields}))
        box.slack = slack  # type: ignore[misc]  # for this instance only
        made.append(box)
        return box

    yield make
    for sandbox in made:
        sandbox.close()


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline
        pause.wait(0.02)


def refusal(sandbox: E2BSandbox, seconds: float = 30.0) -> SandboxStartError:
    """The error of a start, which comes in time."""
    before = time.monotonic()
    with pytest.raises(SandboxStartError) as caught:
        sandbox.start()
    assert time.monotonic() < before + seconds
    assert sandbox.closed
    return caught.value


def count_up(sandbox: E2BSandbox, times: int, begin: int = 1) -> None:
    """Runs commands whose output shows whether one was lost or repeated."""
    for number in range(begin, begin + times):
        result = sandbox.exec("echo x >> count; wc -l < count; head -c 30000 /dev/zero", timeout=20)
        assert result.stdout[:-30000] == b"%d\n" % number
