"""`swe-gym demo`: play and grade the bundled tasks."""

import time
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import gymnasium
import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..actions import render_call
from ..envs import register_families
from ..rollout import EpisodeJob, EpisodePool
from ..rollout.policies import GoldPolicy, Policy, ScriptedPolicy
from ..trajectories import Trajectory
from ..types import JsonObject, Task, ToolCall
from .common import headline, make_table, matching, open_console, open_source
from .common import sandbox_options as parse_sandbox_options
from .options import Backend, Match, RunsFolder, SandboxOptions, Workers
from .preflight import check_machine, check_sandboxes

LOOK_AROUND = [
    ToolCall(name="listdir", arguments={"path": "."}),
    ToolCall(name="bash", arguments={"command": "git log --oneline && cat README.md | head -20"}),
    ToolCall(name="eval"),
    ToolCall(name="submit"),
]
"""Actions of the scripted policy: it looks around, runs the visible tests and submits nothing."""

WIDE = 148
"""Terminal columns from which the table shows the issue's first line."""


class DemoEpisode(NamedTuple):
    """One episode of the demo: a task, played by its gold patch or by the scripted policy."""

    task: Task
    gold: bool


class Demo:
    """The episodes of a demo, and the table that shows them."""

    def __init__(self, tasks: list[Task], settings: JsonObject, path: Path) -> None:
        self.tasks = tasks
        self.parts = [DemoEpisode(task, gold) for task in tasks for gold in (False, True)]
        self.ended: dict[tuple[str, bool], EpisodeJob[int]] = {}
        self.started = time.monotonic()
        self._running: set[tuple[str, bool]] = set()
        self._settings = settings
        self._path = path

    def play(self, workers: int) -> None:
        """Play every episode and write it down. Ctrl-C closes every sandbox."""
        with EpisodePool(self._make_job, workers=workers) as pool:
            for job in pool.run(range(len(self.parts))):
                task, gold = self.parts[job.key]
                self.ended[task.task_id, gold] = job
                if job.record.turns:
                    job.record.without_oracle().append(self._path)

    def _make_job(self, index: int, number: int) -> EpisodeJob[int]:
        task, gold = self.parts[index]
        self._running.add((task.task_id, gold))
        env = gymnasium.make("SWE/Toy-v0", task_id=task.task_id, **self._settings)
        return EpisodeJob(index, number, env, GoldPolicy if gold else _look_around, task_id=task.task_id)

    def record(self, task: Task, gold: bool) -> Trajectory | None:
        """Return the judged episode; None if it has not ended, or if the infrastructure failed."""
        job = self.ended.get((task.task_id, gold))
        return job.record if job is not None and job.failure is None else None

    def is_right(self, task: Task, gold: bool) -> bool:
        """Whether an episode ended with the reward that it must have."""
        record = self.record(task, gold)
        return record is not None and record.reward == float(gold)

    def table(self, wide: bool) -> Table:
        """Return the table of all episodes, as far as they got."""
        issue = ["the issue"] if wide else []
        table = make_table("task", "level", *issue, "look around", "gold patch", "hidden tests")
        for task in self.tasks:
            words = [task.task_id, task.difficulty, *([headline(task)] if wide else [])]
            table.add_row(*map(Text, words), self._cell(task, False), self._cell(task, True), self._tests(task))
        seconds = time.monotonic() - self.started
        table.caption = Text(f"{len(self.ended)} of {len(self.parts)} episodes in {seconds:.0f} s", style="dim")
        table.caption_justify = "left"
        return table

    def _cell(self, task: Task, gold: bool) -> Text:
        job = self.ended.get((task.task_id, gold))
        if job is None:
            return Text("running" if (task.task_id, gold) in self._running else "·", style="dim")
        if job.failure is not None:
            return Text("infra failure", style="bold yellow")
        return Text(f"reward {job.record.reward:g}", style="green" if self.is_right(task, gold) else "bold red")

    def _tests(self, task: Task) -> Text:
        record = self.record(task, True)
        if record is None:
            return Text("")
        passed, total = (
            record.info[f"fail_to_pass_{count}"] + record.info[f"pass_to_pass_{count}"] for count in ("passed", "total")
        )
        return Text(f"{passed}/{total}" if total else "")


def demo(
    match: Match = "*",
    output: RunsFolder = None,
    backend: Backend = "local",
    sandbox_option: SandboxOptions = None,
    workers: Workers = 4,
) -> None:
    """Play every bundled task twice, each episode in its own isolated sandbox.

    A scripted policy looks around and submits nothing: reward 0. Then the gold patch is submitted: reward 1. The exit
    status is 1 if any reward differs from that. The trajectories are in the folder `demo` of the folder of runs.
    """
    console = open_console()
    folder = Path(output or "runs") / "demo"
    check_machine(folder, backend=backend)
    source = open_source("toy")
    ids = matching(source, match)
    tasks, options = [source.get(name) for name in ids], parse_sandbox_options(backend, sandbox_option)
    check_sandboxes(backend, options, tasks)
    settings: JsonObject = {"backend": backend, "sandbox_options": options}
    path = folder / "trajectories.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    register_families()
    show = Demo(tasks, settings, path)
    live = Live(console=console, refresh_per_second=8, get_renderable=lambda: show.table(console.width >= WIDE))
    with live if console.is_terminal else nullcontext():
        show.play(workers)
    if not console.is_terminal:
        console.print(show.table(wide=True))
    _report(console, show, path)


def _look_around(_: gymnasium.Env[str, str]) -> Policy:
    return ScriptedPolicy(map(render_call, LOOK_AROUND))


def _report(console: Console, show: Demo, path: Path) -> None:
    """Print the summary and what to do next. Exits with status 1 if a reward was wrong or missing."""
    failures: dict[str, list[str]] = {}
    for (task_id, _), job in sorted(show.ended.items()):
        if job.failure is not None and task_id not in failures.setdefault(job.failure.message, []):
            failures[job.failure.message].append(task_id)
    for message, task_ids in failures.items():
        console.print(Text.assemble(("failed: ", "bold red"), f"{message} ({', '.join(task_ids)})"))
    if played := [job.record for job in show.ended.values() if job.record.turns]:
        _summary(console, show, played)
        console.print(f"Trajectories: {path}\n")
    if wrong := sum(not show.is_right(*part) for part in show.parts):
        console.print(f"{wrong} of {len(show.parts)} episodes did not get the expected reward. Run: swe-gym doctor")
        raise typer.Exit(1)
    example = min(show.tasks, key=lambda task: task.difficulty != "easy").task_id
    for command, what in (
        (f"swe-gym play {example}", "solve a task yourself"),
        (f"swe-gym tasks show {example}", "show what a task consists of"),
        ("swe-gym doctor", "check what works on this machine"),
    ):
        console.print(Text.assemble((f"{command:48}", "cyan"), f" {what}"))


def _summary(console: Console, show: Demo, played: list[Trajectory]) -> None:
    gold, looking = (sum(show.is_right(task, gold) for task in show.tasks) for gold in (True, False))
    console.print(
        Text.assemble(
            "\n", (f"gold = 1 on {gold} of {len(show.tasks)} tasks", "bold"), f", looking around = 0 on {looking}."
        )
    )
    steps, seconds = sum(len(one.turns) for one in played), time.monotonic() - show.started
    console.print(
        f"{len(played)} episodes and {steps} steps in {seconds:.1f} s; each reward came from a second, fresh sandbox."
    )
    sandbox = played[0].sandbox
    console.print(f"Sandboxes: {sandbox['backend']}, isolation {sandbox['isolation']}, network {sandbox['network']}.")
