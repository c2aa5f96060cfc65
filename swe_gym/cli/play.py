"""`swe-gym demo` and `swe-gym play`: play the bundled tasks, or solve a task yourself."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import gymnasium
import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..actions import render_call
from ..envs import SweEnv, register_families
from ..errors import SandboxError, UsageError
from ..rollout import EpisodeJob, EpisodePool
from ..rollout import play as play_episode
from ..rollout.policies import GoldPolicy, HumanPolicy, Policy, ScriptedPolicy
from ..spaces import StepResult
from ..toml import parse_pairs
from ..trajectories import Trajectory
from ..types import JsonObject, Task, ToolCall
from ..wrappers import RecordTrajectory
from .common import headline, make_table, matching, open_console, open_env, open_source, read_branch
from .common import sandbox_options as parse_sandbox_options
from .options import (
    BACKEND,
    SEED,
    SOURCE,
    Backend,
    FromTurn,
    Ignore,
    Match,
    RunsFolder,
    SandboxOptions,
    SourceOptions,
    Tools,
    Workers,
    tools_of,
)
from .preflight import check_machine, check_sandboxes


def play(
    task_id: Annotated[str | None, typer.Argument(metavar="TASK_ID", help="Task id (default: a random task).")] = None,
    source: Annotated[str | None, SOURCE] = None,
    source_option: SourceOptions = None,
    backend: Annotated[str | None, BACKEND] = None,
    sandbox_option: SandboxOptions = None,
    tools: Tools = None,
    seed: Annotated[int | None, SEED] = None,
    from_turn: FromTurn = None,
    ignore: Ignore = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Append the trajectory to this file.")] = None,
) -> None:
    """Solve one task yourself, with the tools of a policy.

    With --from, you continue an episode of a run or of a trajectory file: its actions are played again, and if an
    observation differs, the command says where. Task and environment are those of the episode.
    """
    console = open_console()
    settings: JsonObject = {"max_turns": 10_000, "max_invalid": None, "time_limit": 86_400.0}
    options: JsonObject = {}
    if from_turn is None:
        if ignore:
            raise UsageError("--ignore is for --from, whose actions are played again: omit it")
        backend = backend or "local"
        chosen = parse_sandbox_options(backend, sandbox_option)
        asked = {
            "task_id": task_id,
            "backend": backend,
            "sandbox_options": chosen,
            "tools": tools_of(tools) or "default",
        }
        env = open_env(source or "toy", source_option, **asked, **settings)
    else:
        if given := [word for word in (task_id, source, source_option, tools, seed) if word is not None]:
            raise UsageError(f"--from continues an episode, which had its own task, tools and seed: omit {given[0]}")
        branch = read_branch(from_turn, ignore)
        asked = branch.env({"backend": backend, "sandbox_options": parse_pairs("--sandbox-option", sandbox_option)})
        env = SweEnv(*branch.source, **{**asked, **settings})
        options = {"checkpoint": branch.point}
    if output:  # an unwritable file fails now, not after the work
        output.parent.mkdir(parents=True, exist_ok=True)
        output.open("ab").close()
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  gives `input` a history and cursor keys
    with RecordTrajectory(env, str(output) if output else None) as recorder:
        try:
            human = HumanPolicy(env, console)
            trajectory = play_episode(Interruptible(recorder, env, human), human, seed=seed, options=options)
        except (EOFError, KeyboardInterrupt) as end:
            console.print("\nGave up; nothing was graded.")
            raise typer.Exit(130 if isinstance(end, KeyboardInterrupt) else 0) from end
    _report(console, trajectory)
    if output:
        console.print(f"Trajectory: {output}")
    if not trajectory.reward_valid:
        raise typer.Exit(1)


class Interruptible(gymnasium.Wrapper[str, str, str, str]):
    """Ctrl-C ends the running command of the person, not the episode. A second one ends the episode.

    Args:
        env: The environment to wrap.
        core: The environment that runs the commands.
        human: The person. The call that ends the episode cannot be interrupted: a half-taken patch would be graded.
    """

    def __init__(self, env: gymnasium.Env[str, str], core: SweEnv, human: HumanPolicy) -> None:
        super().__init__(env)
        self._core, self._human = core, human

    def step(self, action: str) -> StepResult[str]:
        """Run an action. Raises KeyboardInterrupt for the second Ctrl-C, or the first one while the work is graded."""
        with contextlib.nullcontext() if self._human.ends else _hearing(self._end_command):
            observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, float(reward), terminated, truncated, info

    def _end_command(self) -> None:
        with contextlib.suppress(SandboxError):  # the command reports it
            self._core.sandbox.end_processes(commands=True)


@contextlib.contextmanager
def _hearing(work: Callable[[], None]) -> Iterator[None]:
    """Do some work in a thread of its own at the first Ctrl-C in the block."""
    before = signal.getsignal(signal.SIGINT)

    def hear(*_: Any) -> None:
        signal.signal(signal.SIGINT, before)
        threading.Thread(target=work, name="interrupt", daemon=True).start()

    signal.signal(signal.SIGINT, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _report(console: Console, trajectory: Trajectory) -> None:
    info = trajectory.info
    if not trajectory.reward_valid:
        console.print(Text.assemble("\n", ("No reward: ", "bold yellow"), info["failure"]))
        return
    style = "bold green" if trajectory.resolved else "bold red"
    result = "resolved" if trajectory.resolved else "not resolved"
    console.print(Text(f"\nReward {trajectory.reward:g}: {result} in {len(trajectory.turns)} turns.", style=style))
    if info["fail_to_pass_total"] and info["fail_to_pass_passed"] >= 0:
        console.print(
            f"{info['fail_to_pass_passed']} of {info['fail_to_pass_total']} tests that must start passing pass, "
            f"{info['pass_to_pass_passed']} of {info['pass_to_pass_total']} still pass."
        )


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
    _report_demo(console, show, path)


def _look_around(_: gymnasium.Env[str, str]) -> Policy:
    return ScriptedPolicy(map(render_call, LOOK_AROUND))


def _report_demo(console: Console, show: Demo, path: Path) -> None:
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
