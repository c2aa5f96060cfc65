"""Removes what a dead process leaves: a small process outlives it.

A running sandbox ends by itself once its client is gone. One that the client was still creating cannot, and neither can
an ended one that its engine or cluster keeps, nor a temporary folder.
"""

import contextlib
import logging
import os
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self

from .cache import remove_tree

log = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds in which the guard of a dead client waits for an engine or cluster that does not answer."""

RETRY_SECONDS = 0.5

_PROGRAM = """
import os, sys, time
os.closerange(3, os.sysconf("SC_OPEN_MAX"))
while os.getppid() == int(sys.argv[1]):
    time.sleep(0.5)
from pkgutil import resolve_name
resolve_name(sys.argv[2])(*sys.argv[3:])
"""
"""It waits for its parent and not for the end of a pipe, which forks of the parent would keep open. Until then it is
small: it imports nothing of ours."""


class Guard:
    """Calls a function once this process has died, also by SIGKILL, whether its forks live or not.

    Args:
        function: "module:name" of the function.
        *arguments: Its arguments.

    Attributes:
        pid: Its process id.
    """

    def __init__(self, function: str, *arguments: str) -> None:
        self._client = os.getpid()
        argv = [sys.executable, "-c", _PROGRAM, str(self._client), function, *arguments]
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
        nothing = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0)]
        nothing += [(os.POSIX_SPAWN_DUP2, 0, 1), (os.POSIX_SPAWN_DUP2, 0, 2)]  # type: ignore[list-item]  # of other lengths
        # A session of its own, so that signals to this process group spare it.
        self.pid = os.posix_spawn(sys.executable, argv, environment, file_actions=nothing, setsid=True)

    def close(self) -> None:
        """End the process; it calls nothing. In a fork, it stays for the parent."""
        if os.getpid() == self._client:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)


def keep_removing(
    remove: Callable[[], object],
    pauses: Iterable[float],
    failures: type[Exception],
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Remove what a dead client left, and look again until nothing can appear any more.

    A round that fails is repeated, but no more than `PATIENCE` seconds after the first one began.

    Args:
        remove: Removes all that is there.
        pauses: Seconds before each round: what the dead client asked for may still be carried out.
        failures: Errors of `remove`.
        sleep: Waits.
    """
    end = time.monotonic() + PATIENCE
    for pause in pauses:
        sleep(pause)
        while True:
            try:
                remove()
                break
            except failures as error:
                log.warning("removing the sandboxes of a dead client failed: %s", error)
            if time.monotonic() >= end:
                break
            sleep(RETRY_SECONDS)


class TemporaryFolder:
    """A new folder that is removed when it is closed, and also when this process dies, by SIGKILL too.

    Args:
        prefix: Start of its name.
        parent: Folder to make it in; None is that of `tempfile`.

    Attributes:
        path: Its absolute path.
    """

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        self.path = Path(parent or tempfile.gettempdir()).absolute() / f"{prefix}{uuid.uuid4().hex}"
        self._guard = Guard(f"{remove_tree.__module__}:{remove_tree.__name__}", str(self.path))  # before the folder
        try:
            self.path.mkdir(0o700)
        except OSError:
            self._guard.close()
            raise

    def close(self) -> None:
        """Remove the folder with its content. Idempotent."""
        remove_tree(self.path)
        self._guard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
