"""Keep many sandboxes of one image open at once, then kill their process: memory of each, and what is left.

    python benchmarks/many_images.py IMAGE [--count 1000]

IMAGE is in the store (`swe-gym images stored`). Exit status 1: something is left.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common import show, wait_until

from swe_gym.sandboxes import Sandbox, SandboxSpec, open_sandbox

CHILD = "--child"


def hold(image: str, count: int) -> None:
    """Open sandboxes, run a command in each, say so, and wait to be killed."""

    def open_one(_: int) -> Sandbox:
        sandbox = open_sandbox(SandboxSpec(image=image))
        assert sandbox.exec("echo $((6 * 7)) > /tmp/file && cat /tmp/file").text == "42\n"
        return sandbox

    with ThreadPoolExecutor(16) as threads:
        held = list(threads.map(open_one, range(count)))
    print(len(held), flush=True)
    signal.pause()


def available_kib() -> int:
    """Return the memory that the machine has available."""
    return int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0])


def processes() -> int:
    """Return the number of processes on the machine."""
    return sum(name.isdigit() for name in os.listdir("/proc"))


def main() -> int:
    """Open, measure, kill, count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument(CHILD, action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        hold(given.image, given.count)
    before, running, started = available_kib(), processes(), time.monotonic()
    command = [sys.executable, __file__, given.image, "--count", str(given.count), CHILD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        opened = int(child.stdout.readline() or 0)
        seconds, taken, most = time.monotonic() - started, before - available_kib(), processes() - running
        child.kill()
    killed = time.monotonic()
    wait_until(lambda: processes() <= running + 5, 30)
    left = max(0, processes() - running)
    rows = [
        ("opened at once", str(opened)),
        ("seconds to open all and run a command in each", f"{seconds:.1f}"),
        ("memory of each", f"{taken / max(1, opened):,.0f} KiB"),
        ("processes of each", f"{most / max(1, opened):.1f}"),
        ("seconds from SIGKILL to the end of all", f"{time.monotonic() - killed:.1f}"),
        ("processes left (others may have started)", str(left)),
    ]
    show(given.image, ("what", "figure"), rows)
    return int(opened < given.count or left > 5)


if __name__ == "__main__":
    raise SystemExit(main())
