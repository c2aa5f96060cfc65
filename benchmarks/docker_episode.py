"""The pieces of a graded episode on Docker, one after the other, and its latency. `on_docker.py` prints them."""

import contextlib
import itertools
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from swe_gym.envs.group import SandboxGroup
from swe_gym.envs.swe_env import SweEnv
from swe_gym.grading import CounterOptions, grade
from swe_gym.grading.base import Grader, Ready, Results
from swe_gym.grading.graders import TESTS
from swe_gym.grading.patch import list_work, take_patch
from swe_gym.grading.seal import hidden_places
from swe_gym.sandboxes import Sandbox
from swe_gym.sandboxes.docker import DockerSandbox
from swe_gym.tasks import load_source
from swe_gym.types import Task

COMMANDS = 12
THINKING_SECONDS = 0.1
"""Pause before each action, in which a policy would ask its model. It is not part of a latency."""


class Pieces:
    """Sums wall and CPU seconds by piece. A piece inside another one is not part of it.

    Args:
        clocks: Functions that return seconds.
    """

    def __init__(self, clocks: list[Callable[[], float]]) -> None:
        self._clocks = clocks
        self._open: list[str] = []
        self._last = self._now()
        self.sums: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(clocks))
        self.counts: dict[str, int] = defaultdict(int)

    @contextlib.contextmanager
    def piece(self, name: str) -> Iterator[None]:
        """Count the block as a piece."""
        self._turn()
        self._open.append(name)
        self.counts[name] += 1
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def _turn(self) -> None:
        now = self._now()
        if self._open:
            kept = self.sums[self._open[-1]]
            kept[:] = [old + new - last for old, new, last in zip(kept, now, self._last, strict=True)]
        self._last = self._now()

    def _now(self) -> list[float]:
        return [clock() for clock in self._clocks]


PIECES = Pieces([time.perf_counter])
"""Replaced by `measure`."""


def piece(name: str) -> contextlib.AbstractContextManager[None]:
    """Count the block as a piece of the episode that is measured."""
    return PIECES.piece(name)


class TimedSandbox(DockerSandbox):
    """A container whose start and end are pieces."""

    def _start(self, deadline: float) -> None:
        with piece("container: runner, environment"):
            super()._start(deadline)

    def _start_container(self, deadline: float) -> Any:
        with piece("container: connect, attach, start"):
            return super()._start_container(deadline)

    def _create(self, *arguments: Any) -> None:
        with piece("container: create"):
            super()._create(*arguments)

    def _close(self) -> None:
        with piece("container: remove"):
            super()._close()


def run_tests(ready: Ready, sandbox: Sandbox) -> Results:
    """Run the tests as a piece."""
    with piece("run of the tests"):
        return TESTS.run(ready, sandbox)


TIMED = Grader(run=run_tests, decide=TESTS.decide)


def cpu_clock(folder: Path) -> Callable[[], float]:
    """Return a clock of the CPU seconds of a cgroup, of version 1 or 2, with its descendants."""
    first = folder / "cpuacct.usage"
    if first.exists():
        return lambda: int(first.read_text()) / 1e9
    second = folder / "cpu.stat"
    return lambda: int(second.read_text().split()[1]) / 1e6


def machine_clock() -> float:
    """Return the CPU seconds of the machine."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + softirq) / 100


def measure(image: str, times: int, cgroups: list[Path]) -> list[tuple[str, ...]]:
    """Play episodes of a bundled task. Return the rows of a table."""
    global PIECES
    clocks = [time.perf_counter, time.process_time, *(map(cpu_clock, cgroups) if cgroups else [machine_clock])]
    source = load_source("toy")
    task = source.get(source.ids()[0])
    oracle = task.oracle.model_copy(update={"grader": f"{__name__}:TIMED"})
    task = task.model_copy(update={"oracle": oracle})
    options = {"options": {"default_image": image, "pull": "never"}}
    rows: list[tuple[str, ...]] = []
    for solved in (False, True):
        episode(task, options, solved=solved)  # fills caches
        PIECES = Pieces(clocks)
        for _ in range(times):
            episode(task, options, solved=solved)
        title = f"{'resolved' if solved else 'unresolved'}, {PIECES.counts['container: create'] // times} containers"
        total = [sum(column) for column in zip(*PIECES.sums.values(), strict=True)]
        rows += [row(title, 1, total, times)]
        rows += [row(f"  {name}", PIECES.counts[name] // times, kept, times) for name, kept in PIECES.sums.items()]
    return rows


def row(name: str, count: int, sums: list[float], times: int) -> tuple[str, ...]:
    """Return a row: name, number, and the means of an episode."""
    return (name, str(count), *(f"{1000 * seconds / times:.0f} ms" for seconds in sums))


def episode(task: Task, options: dict[str, Any], *, solved: bool) -> None:
    """Play and grade one episode; nothing overlaps."""
    with SandboxGroup(task, f"{__name__}:TimedSandbox", options) as group:

        @contextlib.contextmanager
        def fresh() -> Iterator[Sandbox]:
            with group.open() as sandbox:
                yield sandbox

        with piece("seal"), group.open_sealed() as box:
            with piece("first command"):
                box.exec("true")
            with piece(f"{COMMANDS} commands"):
                for _ in range(COMMANDS):
                    box.exec("git status --short; ls -la")
                if solved:
                    box.exec(["git", "apply"], stdin=task.oracle.gold_patch.encode())
            with piece("patch"):
                listing = list_work(box)
                judge = group.open()
                patch = take_patch(box, judge, hidden=hidden_places(task, judge), listing=listing)
        with piece("put tests and work in, decide"), judge:
            verdict = grade(task, patch, judge, fresh, complete=False, counter=CounterOptions())
        assert verdict.resolved == solved, verdict.reason


# --- latency --------------------------------------------------------------------------------------------------


def latency(image: str, times: int) -> list[tuple[str, ...]]:
    """Play episodes in turn with and without a grading container that waits. Return the rows of a table."""
    seconds: dict[tuple[bool, int], list[tuple[float, float]]] = defaultdict(list)
    for _, solved, waiting in itertools.product(range(times + 1), (False, True), (0, 16)):
        seconds[solved, waiting].append(play(image, waiting, solved=solved))  # the first one fills caches
    return [
        (
            "resolved" if solved else "unresolved",
            "yes" if waiting else "no",
            *(f"{1000 * statistics.median(column):.0f} ms" for column in zip(*found[1:], strict=True)),
        )
        for (solved, waiting), found in sorted(seconds.items())
    ]


def play(image: str, waiting: int, *, solved: bool) -> tuple[float, float]:
    """Play an episode. Return the seconds from reset to reward without thinking, and those of the last step."""
    options = {"default_image": image, "pull": "never", "waiting": waiting}
    source = load_source("toy")
    patch = source.get(source.ids()[0]).oracle.gold_patch if solved else ""
    last = f"git apply <<'END'\n{patch}END" if solved else "true"
    commands = [*["git status --short; ls -la"] * COMMANDS, last]
    actions = [json.dumps({"name": "bash", "arguments": {"command": command}}) for command in commands]
    env = SweEnv("toy", task_id=source.ids()[0], backend="docker", sandbox_options={"options": options})
    with contextlib.closing(env):
        total = clock(env.reset)
        for action in actions:
            time.sleep(THINKING_SECONDS)
            total += clock(lambda action=action: env.step(action))
        time.sleep(THINKING_SECONDS)
        submit = clock(lambda: env.step(json.dumps({"name": "submit", "arguments": {}})))
        assert env.grade().resolved == solved, env.stats
    return total + submit, submit


def clock(work: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
