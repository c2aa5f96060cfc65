"""`swe-gym demo`: the bundled tasks, played and graded before your eyes."""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import gymnasium
import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..actions import render_call
from ..envs.registration import register_families
from ..errors import SandboxError, TaskError
from ..rollout.episode import play
from ..rollout.policies.gold import GoldPolicy
from ..rollout.policies.scripted import ScriptedPolicy
from ..rollout.policy import Policy
from ..trajectories.trajectory import Trajectory
from ..types import Task, ToolCall
from .common import Backend, Match, SandboxOptions, headline, matching, open_console, open_source, plain_table
from .common import sandbox_options as parse_sandbox_options

LOOK_AROUND = [
    ToolCall(name="listdir", arguments={"path": "."}),
    ToolCall(name="bash", arguments={"command": "git log --oneline && cat README.md | head -20"}),
    ToolCall(name="eval"),
    ToolCall(name="submit"),
]
"""What the scripted policy does: looks, runs the visible tests, and gives up."""

WIDE = 148
"""Columns from which there is room for the issue's first line."""


class Part(NamedTuple):
    """One episode, which is played somewhere in the background, and the reward that it should have."""

    episode: Future[Trajectory]
    wanted: float


class Row(NamedTuple):
    """One task and its two episodes."""

    task: Task
    scripted: Part
    gold: Part


def demo(
    match: Match = "*",
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the trajectories.")] = Path("runs/demo"),
    backend: Backend = "local",
    sandbox_option: SandboxOptions = None,
    workers: Annotated[int, typer.Option("--workers", "-w", min=1, help="Episodes at once.")] = 4,
) -> None:
    """Play every bundled task twice, each episode in an isolated sandbox of its own.

    First a scripted policy that looks around and submits nothing: reward 0. Then the gold patch: reward 1. Exit
    status 1 means that a reward was not as it should be.
    """
    console = open_console()
    source = open_source("toy")
    ids = matching(source, match)
    settings: dict[str, Any] = {"backend": backend, "sandbox_options": parse_sandbox_options(backend, sandbox_option)}
    path = output / "trajectories.jsonl"
    output.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    started = time.monotonic()
    with _Stage(workers, path, settings).open() as play_part:
        rows = [Row(source.get(name), play_part(name, gold=False), play_part(name, gold=True)) for name in ids]
        _watch(console, rows, started)
    _report(console, rows, time.monotonic() - started, path)


class _Stage:
    """Where episodes are played: some threads, and the environments that are open in them."""

    def __init__(self, workers: int, path: Path, settings: dict[str, Any]) -> None:
        self._workers = workers
        self._path = path
        self._settings = settings
        self._envs: set[gymnasium.Env[str, str]] = set()

    @contextmanager
    def open(self) -> Iterator["_Stage"]:
        """Leaving by an exception, Ctrl-C for one, closes every sandbox at once."""
        register_families()
        with ThreadPoolExecutor(self._workers) as self._pool:
            try:
                yield self
            except BaseException:
                self._pool.shutdown(wait=False, cancel_futures=True)
                for env in list(self._envs):
                    env.close()
                raise

    def __call__(self, task_id: str, *, gold: bool) -> Part:
        return Part(self._pool.submit(self._play, task_id, gold), wanted=float(gold))

    def _play(self, task_id: str, gold: bool) -> Trajectory:
        env = gymnasium.make("SWE/Toy-v0", task_id=task_id, **self._settings)
        self._envs.add(env)
        try:
            policy: Policy = GoldPolicy(env) if gold else ScriptedPolicy(map(render_call, LOOK_AROUND))
            trajectory = play(env, policy)
        finally:
            self._envs.discard(env)
            env.close()
        trajectory.append(self._path)
        return trajectory


# --- the table --------------------------------------------------------------------------------------------


def _watch(console: Console, rows: list[Row], started: float) -> None:
    """Show the table until all is played: growing in a terminal, once into a file."""

    def show() -> Table:
        return _table(rows, time.monotonic() - started, wide=console.width >= WIDE)

    def wait() -> None:
        for row in rows:
            for part in (row.scripted, row.gold):
                part.episode.exception()  # waits; failures stand in the table

    if console.is_terminal:
        with Live(console=console, refresh_per_second=8, get_renderable=show):
            wait()
    else:
        wait()
        console.print(show())


def _table(rows: list[Row], seconds: float, wide: bool) -> Table:
    issue = ["the issue"] if wide else []
    table = plain_table("task", "level", *issue, "look around", "gold patch", "hidden tests")
    for row in rows:
        words = [row.task.task_id, row.task.difficulty, *([headline(row.task)] if wide else [])]
        table.add_row(*map(Text, words), _cell(row.scripted), _cell(row.gold), _tests(row.gold))
    done = sum(part.episode.done() for row in rows for part in (row.scripted, row.gold))
    table.caption = Text(f"{done} of {2 * len(rows)} episodes in {seconds:.0f} s", style="dim")
    table.caption_justify = "left"
    return table


def _cell(part: Part) -> Text:
    if not part.episode.done():
        return Text("running" if part.episode.running() else "·", style="dim")
    if part.episode.exception():
        return Text("failed", style="bold red")
    trajectory = part.episode.result()
    if not trajectory.reward_valid:
        return Text("infra failure", style="bold yellow")
    return Text(f"reward {trajectory.reward:g}", style="green" if trajectory.reward == part.wanted else "bold red")


def _tests(part: Part) -> Text:
    if not part.episode.done() or part.episode.exception():
        return Text("")
    info = part.episode.result().info
    passed, total = (info[f"fail_to_pass_{count}"] + info[f"pass_to_pass_{count}"] for count in ("passed", "total"))
    return Text(f"{passed}/{total}" if total else "")


# --- the end ----------------------------------------------------------------------------------------------


def _report(console: Console, rows: list[Row], seconds: float, path: Path) -> None:
    """Say how it went and what to do next. Exits with status 1 where an episode was not as it should be."""
    parts = [part for row in rows for part in (row.scripted, row.gold)]
    failures = _failures(rows)
    for message, task_ids in failures.items():
        console.print(Text.assemble(("failed: ", "bold red"), f"{message} ({', '.join(task_ids)})"))
    played = [part.episode.result() for part in parts if not part.episode.exception()]
    if played:
        _summary(console, rows, played, seconds)
        console.print(f"Trajectories: {path}\n")
    right = sum(_is_right(part) for part in parts)
    if right < len(parts):
        console.print(f"{len(parts) - right} of {len(parts)} episodes were not as they should be. Ask: swe-gym doctor")
        raise typer.Exit(1)
    example = min((row.task for row in rows), key=lambda task: task.difficulty != "easy").task_id
    for command, what in (
        (f"swe-gym play {example}", "repair one yourself"),
        (f"swe-gym tasks show {example}", "what a task is made of"),
        ("swe-gym doctor", "what works on this machine"),
    ):
        console.print(Text.assemble((f"{command:48}", "cyan"), f" {what}"))


def _failures(rows: list[Row]) -> dict[str, list[str]]:
    """What went wrong with sandboxes and tasks, in words, and with which tasks. Any other error is raised."""
    failures: dict[str, list[str]] = {}
    for row in rows:
        for part in (row.scripted, row.gold):
            error = part.episode.exception()
            if error is not None and not isinstance(error, SandboxError | TaskError):
                raise error
            message = str(error) if error else part.episode.result().info["failure"]
            if message and row.task.task_id not in failures.setdefault(message, []):
                failures[message].append(row.task.task_id)
    return failures


def _summary(console: Console, rows: list[Row], played: list[Trajectory], seconds: float) -> None:
    steps = sum(len(trajectory.turns) for trajectory in played)
    sandbox = played[0].sandbox
    console.print(
        Text.assemble(
            "\n",
            (f"gold = 1 on {sum(_is_right(row.gold) for row in rows)} of {len(rows)} tasks", "bold"),
            f", looking around = 0 on {sum(_is_right(row.scripted) for row in rows)}.",
        )
    )
    console.print(
        f"{len(played)} episodes and {steps} steps in {seconds:.1f} s; each reward came from a second, fresh sandbox."
    )
    console.print(f"Sandboxes: {sandbox['backend']}, isolation {sandbox['isolation']}, network {sandbox['network']}.")


def _is_right(part: Part) -> bool:
    if part.episode.exception():
        return False
    trajectory = part.episode.result()
    return trajectory.reward_valid and trajectory.reward == part.wanted
