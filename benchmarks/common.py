"""Functions that several benchmarks share: tables, timing, and local sandboxes of tasks."""

import atexit
import contextlib
import gc
import json
import os
import resource
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import gymnasium
from rich.console import Console
from rich.table import Table

from swe_gym.cache import cache_folder
from swe_gym.envs.group import task_spec
from swe_gym.grading import CounterOptions
from swe_gym.grading.probe import forget
from swe_gym.sandboxes import Sandbox, SandboxSpec, open_sandbox
from swe_gym.sandboxes.images import ImageStore
from swe_gym.sandboxes.images.sources import ImageName, engine_source
from swe_gym.tasks.record import read_records
from swe_gym.types import Task


def show(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]], caption: str | None = None) -> None:
    """Print a table."""
    table = Table(*columns, title=title, caption=caption)
    for row in rows:
        table.add_row(*row)
    Console(width=120).print(table)


class LiveTable:
    """A table that prints each row at once. Columns are right-aligned, except the last.

    Args:
        columns: Names of the columns.
    """

    def __init__(self, *columns: str) -> None:
        self._widths = [max(len(column), 9) for column in columns[:-1]]
        self.add(*columns)

    def add(self, *cells: str) -> None:
        """Print a row."""
        aligned = [cell.rjust(width) for cell, width in zip(cells, self._widths, strict=False)]
        print("  ".join([*aligned, *cells[len(aligned) :]]), flush=True)


def milliseconds(work: Callable[[], object]) -> float:
    """Return the duration of one call in milliseconds."""
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1000


@contextlib.contextmanager
def playing(backend: str, **options: object) -> Iterator[Callable[[], object]]:
    """Start an episode, and give a function that takes a whole step of it with the command `true`."""
    call = json.dumps({"name": "bash", "arguments": {"command": "true"}})
    env: gymnasium.Env[str, str] = gymnasium.make(
        "SWE/Toy-v0", backend=backend, sandbox_options={"options": options}, max_turns=10_000
    )
    with contextlib.closing(env):
        env.reset(seed=0)
        yield lambda: env.step(call)


class CpuClock:
    """A clock of the CPU seconds of this process and all that it starts from now on.

    It counts a cgroup of version 2, into which the process moves. Without the right to make one, it counts this process
    and its descendants that have ended and were waited for.
    """

    def __init__(self) -> None:
        self.exact = False
        with contextlib.suppress(OSError, StopIteration):
            mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
            root = next(fields[1] for fields in mounts if fields[2] == "cgroup2")
            own = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line[:3] == "0::")
            parent = Path(root + own)
            self._group = parent / f"swe-gym-benchmark-{os.getpid()}"
            self._group.mkdir()
            (self._group / "cgroup.procs").write_text("0")
            atexit.register(self._leave, parent)
            self.exact = True

    def _leave(self, parent: Path) -> None:
        with contextlib.suppress(OSError):  # processes that end with this one may still be there
            (parent / "cgroup.procs").write_text("0")
            self._group.rmdir()

    def now(self) -> float:
        """Return the CPU seconds so far."""
        if self.exact:
            return int((self._group / "cpu.stat").read_text().split()[1]) / 1e6
        used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(one.ru_utime + one.ru_stime for one in used)


def process_size() -> tuple[str, str, str]:
    """Return the numbers of open descriptors and threads of this process, and its memory."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    memory = f"{pages * resource.getpagesize() >> 20} MiB"
    return str(len(os.listdir("/proc/self/fd"))), str(threading.active_count()), memory


def wait_until(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    """Wait until the condition holds or the time is over."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)


Opener = Callable[[Task], Sandbox]
"""Opens a sandbox of a task."""


LOCAL_IMAGES: dict[str, dict[str, str]] = {"docker": {"pull": "never"}, "kubernetes": {"image_pull_policy": "Never"}}
"""Backend -> its options for images that this machine built."""


def open_box(task: Task, backend: str = "local") -> Sandbox:
    """Open a sandbox for a task."""
    files = {"image": task.image, "workspace": task.workspace, "python": task.python}
    options = LOCAL_IMAGES.get(backend, {}) if task.image else {}
    return open_sandbox(SandboxSpec(**files, workdir=task.workdir, env=task.env, options=options), backend)


class Knowledge:
    """What the judge knows about tasks before it judges work.

    Args:
        record: A record file of `swe-gym validate`; empty for none.
        forgets: Whether to forget what this machine found out about tasks before each judgement.
    """

    def __init__(self, record: str = "", *, forgets: bool = False) -> None:
        self._records = {old.task_id: old for old in read_records(record)} if record else {}
        self._forgets = forgets

    def options(self, task: Task) -> CounterOptions:
        """Return the options for the next judgement of a task."""
        if self._forgets:
            forget(task)
        old = self._records.get(task.task_id)
        if old is None:
            return CounterOptions()
        names = ("unfit", "unforkable", "passing", "returned")
        return CounterOptions(**{name: getattr(old, name) for name in names})


def with_image(task: Task, base: str | None) -> Task:
    """Build the task's image from a base image. Without one, return the task as it is."""
    if base is None:
        return task
    from swe_gym.sandboxes.docker.build import build_image

    return task.in_image(build_image(task_spec(task, {}), base, name=f"task-{task.task_id}"))


def import_image(task: Task) -> None:
    """Copy the task's image into the store of local sandboxes."""
    assert task.image
    store = ImageStore()
    if store.find(task.image) is None:
        cache_folder().mkdir(parents=True, exist_ok=True)
        with engine_source(task.image, cache_folder()) as source:
            store.add(ImageName.parse(task.image), source, deadline=time.monotonic() + 600)
