"""A limit that all processes of this machine share: how many containers may be starting at once."""

import contextlib
import fcntl
import os
import random
import time
from collections.abc import Iterator

from ...cache import cache_folder
from ...errors import SandboxStartError


@contextlib.contextmanager
def gate(name: str, places: int, deadline: float) -> Iterator[None]:
    """Hold one of the `places` of the gate `name` for the length of the block.

    A place is a locked file, so a process that dies, however it dies, gives its places back.

    Args:
        name: What is limited.
        places: How many may be inside at once, over all processes of this user on this machine.
        deadline: Of `time.monotonic`; waiting past it is an error.

    Raises:
        SandboxStartError: No place became free in time (`reason="capacity"`, retryable).
    """
    folder = os.path.join(cache_folder(), "gates")
    os.makedirs(folder, exist_ok=True)
    while (held := _free_place(folder, name, places)) is None:
        if time.monotonic() >= deadline:
            text = f"all {places} places of the gate {name!r} stayed taken"
            raise SandboxStartError(text, reason="capacity", retryable=True)
        time.sleep(random.uniform(0.005, 0.02))  # file locks cannot be waited for with a deadline
    try:
        yield
    finally:
        os.close(held)


def _free_place(folder: str, name: str, places: int) -> int | None:
    for place in random.sample(range(places), places):
        fd = os.open(os.path.join(folder, f"{name}.{place}"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            os.close(fd)
    return None
