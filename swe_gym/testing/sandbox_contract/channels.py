"""Cases of channels: nothing that one sandbox does can be read in another, so that no judge's work reaches a policy.

The programs of both ends are `guests.channels`. Load, time and memory of the machine are shared by design.
"""

import contextlib
import json
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ...errors import Unsupported
from ...guests import bundle
from ...sandboxes import Sandbox
from .case import Opener, case, demand_isolation, python

MOUNT = "/opt/channel"
SIGNALS = (0, 1, 1, 0, 1, 0, 0, 1)
"""What is sent, one after the other."""
KERNEL_FILES = (
    "/proc/kpageflags /proc/kpagecount /proc/kpagecgroup /proc/kcore /proc/keys /proc/key-users /proc/timer_list "
    "/proc/sched_debug /proc/slabinfo /proc/vmallocinfo /proc/pagetypeinfo /proc/interrupts"
)


@contextlib.contextmanager
def shared_folder() -> Iterator[str]:
    """A folder of this machine that nobody has read since 1970, with a file and a folder for each signal."""
    with tempfile.TemporaryDirectory(prefix="swe-gym-contract-") as name:
        for number in range(len(SIGNALS)):
            Path(name, str(number)).write_text("x")
            Path(name, f"{number}.d").mkdir()
            for place in (f"{name}/{number}", f"{name}/{number}.d"):
                os.utime(place, (1, os.stat(place).st_mtime))
        Path(name).chmod(0o755)
        yield name


def check_silent(make: Opener, *channels: str, **fields: object) -> None:
    """Assert that no signal of one sandbox arrives in another."""
    first, second = make(**fields), make(**fields)
    assert first.capabilities.isolation != "process", "not tried: it would lock files of this machine"
    heard = listen(first, second, ",".join(channels))
    assert not heard, f"signals arrive in another sandbox: {heard}"


def listen(first: Sandbox, second: Sandbox, channels: str) -> list[str]:
    """Send signals on all channels at once; return the names of the numbers that tell them apart."""
    token = secrets.token_hex(8)
    seen: dict[str, list[int]] = {}
    for number, signal in enumerate(SIGNALS):
        words = (channels, str(number), token)
        senders = python(first, bundle("channels"), "send", *words).strip() if signal else ""
        for channel, numbers in json.loads(python(second, bundle("channels"), "receive", *words)).items():
            for name, value in numbers.items():
                seen.setdefault(f"{channel}: {name}", []).append(int(value))
        if senders:
            python(first, bundle("channels"), "clear", *words, senders)
    return sorted(name for name, values in seen.items() if tells_apart(values))


def tells_apart(values: list[int]) -> bool:
    """Return whether all values at a signal are above, or all are below, those without one."""
    if len(values) < len(SIGNALS):
        return False
    silent, loud = ([value for value, sent in zip(values, SIGNALS, strict=True) if sent == bit] for bit in (0, 1))
    return max(silent) < min(loud) or max(loud) < min(silent)


@case("channels")
def locks_are_not_shared(make: Opener) -> None:
    """Locks and leases on the files and folders of a sandbox do not exist in another."""
    check_silent(make, "flock", "posix", "ofd", "lease")


@case("channels")
def use_of_files_is_not_seen(make: Opener) -> None:
    """Opening, reading and listing files and folders causes no event in another sandbox."""
    check_silent(make, "events")


@case("channels")
def devices_are_not_shared(make: Opener) -> None:
    """Locks on devices such as /dev/null, and their use, are invisible in another sandbox."""
    check_silent(make, "devices:flock", "devices:posix", "devices:events")


@case("channels")
def mounts_are_not_shared(make: Opener) -> None:
    """Two sandboxes with one folder of this machine see no lock, event or access time of each other in it."""
    with shared_folder() as folder, contextlib.suppress(Unsupported):
        check_silent(make, "access", mounts={MOUNT: folder})  # first: the others list the folders too
        check_silent(make, "flock", "posix", "ofd", "lease", "events", mounts={MOUNT: folder})


@case("channels")
def modes_of_kernel_files_are_not_shared(make: Opener) -> None:
    """Changing the mode of a file in /proc changes nothing in another sandbox."""
    demand_isolation(make(), "it changes the modes of files of the kernel")
    check_silent(make, "modes")


@case("channels")
def names_are_not_shared(make: Opener) -> None:
    """Sockets, shared memory, semaphores, message queues and keys have no name in another sandbox."""
    check_silent(make, "abstract", "vsock", "system_v", "queue", "key")


@case("channels")
def counters_of_the_kernel_are_closed(make: Opener) -> None:
    """The kernel's counts of files, terminals, requests, keys and locks do not show another sandbox's."""
    check_silent(make, "counts")


@case("channels")
def tables_of_the_kernel_are_closed(sandbox: Sandbox) -> None:
    """Tables of the kernel's memory, keys and timers cannot be read."""
    readable = sandbox.exec(f"for f in {KERNEL_FILES}; do head -c 1 $f 2>/dev/null | grep -qa . && echo $f; done").text
    assert readable == "", f"readable: {readable.split()}"
