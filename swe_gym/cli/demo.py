"""`swe-gym demo`: the bundled tasks, played and graded before your eyes."""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ..actions import render_call
from ..errors import SweGymError
from ..rollout.episode import play
from ..rollout.policy import GoldPolicy, Policy, ScriptedPolicy
from ..rollout.trajectory import Trajectory
from ..types import Task, ToolCall
from .common import Backend, make_env, open_source

LOOK_AROUND = [
    ToolCall(name="listdir", arguments={"path": "."}),
    ToolCall(name="bash", arguments={"command": "git log --oneline && cat README.md | head -20"}),
    ToolCall(name="eval"),
    ToolCall(name="submit"),
]
"""What the scripted policy does: looks, runs the visible tests, and gives up."""


class Row(NamedTuple):
    """One task and its two episodes, which are played somewhere in the background."""

    task: Task
    scripted: Future[Trajectory]
    gold: Future[Trajectory]


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the trajectories go.")] = Path("runs/demo"),
    backend: Backend = "local",
    workers: Annotated[int, typer.Option("--workers", "-w", min=1, help="Episodes at once.")] = 4,
) -> None:
    """Play every bundled task twice, each episode in an isolated sandbox of its own.

    First a scripted policy that looks around and submits nothing: reward 0. Then the gold patch: reward 1.
    """
    console = Console()
    source = open_source("toy")
    path = output / "trajectories.jsonl"
    path.unlink(missing_ok=True)
    started = time.monotonic()
    with ThreadPoolExecutor(workers) as pool, _cancelled_on_error(pool):
        rows = [
            Row(
                task=source.get(task_id),
                scripted=pool.submit(_play, task_id, "scripted", backend, path),
                gold=pool.submit(_play, task_id, "gold", backend, path),
            )
            for task_id in source.ids()
        ]

        def show() -> Table:
            return _table(rows, time.monotonic() - started, wide=console.width >= 140)

        with Live(console=console, refresh_per_second=8, get_renderable=show):
            for row in rows:
                for future in (row.scripted, row.gold):
                    future.exception()  # waits; failures stand in the table
    failures = _report(console, rows, time.monotonic() - started, path)
    if failures:
        raise typer.Exit(1)


@contextmanager
def _cancelled_on_error(pool: ThreadPoolExecutor) -> Iterator[None]:
    """Ctrl-C lets the running episodes end and starts no more."""
    try:
        yield
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise


def _play(task_id: str, who: str, backend: str, path: Path) -> Trajectory:
    env = make_env("toy", task_id=task_id, backend=backend)
    try:
        policy: Policy = GoldPolicy(env) if who == "gold" else ScriptedPolicy(map(render_call, LOOK_AROUND))
        trajectory = play(env, policy)
    finally:
        env.close()
    trajectory.append(path)
    return trajectory


def _table(rows: list[Row], seconds: float, wide: bool) -> Table:
    table = Table(title="Software-engineering tasks, played and graded", title_style="bold", pad_edge=False)
    table.add_column("task", no_wrap=True)
    table.add_column("level", no_wrap=True)
    if wide:
        table.add_column("the issue", no_wrap=True)
    table.add_column("look\naround", justify="center", no_wrap=True)
    table.add_column("gold\npatch", justify="center", no_wrap=True)
    table.add_column("hidden\ntests", justify="right", no_wrap=True)
    for row in rows:
        cells: list[str | Text] = [row.task.task_id, row.task.difficulty]
        cells += [_headline(row.task)] if wide else []
        cells += [_cell(row.scripted, wanted=0.0), _cell(row.gold, wanted=1.0), _tests(row.gold)]
        table.add_row(*cells)
    done = sum(future.done() for row in rows for future in (row.scripted, row.gold))
    table.caption = f"{done} of {2 * len(rows)} episodes in {seconds:.0f} s"
    return table


def _headline(task: Task) -> str:
    return task.problem_statement.strip().splitlines()[0].lstrip("# ")


def _cell(future: Future[Trajectory], wanted: float) -> Text:
    if not future.done():
        return Text("running" if future.running() else "·", style="dim")
    if future.exception():
        return Text("failed", style="bold red")
    trajectory = future.result()
    if not trajectory.reward_valid:
        return Text("infra failure", style="bold yellow")
    right = trajectory.reward == wanted
    return Text(f"reward {trajectory.reward:g}", style="green" if right else "bold red")


def _tests(future: Future[Trajectory]) -> str:
    if not future.done() or future.exception():
        return ""
    info = future.result().info
    passed = info["fail_to_pass_passed"] + info["pass_to_pass_passed"]
    return f"{passed}/{info['fail_to_pass_total'] + info['pass_to_pass_total']}"


def _report(console: Console, rows: list[Row], seconds: float, path: Path) -> int:
    """Say how it went and what to do next; returns how many episodes were not as they should be."""
    wrong = 0
    played: list[Trajectory] = []
    for row in rows:
        for future, wanted in ((row.scripted, 0.0), (row.gold, 1.0)):
            error = future.exception()
            if isinstance(error, SweGymError):
                console.print(f"[red]{row.task.task_id}[/]: {error}")
            elif error:
                raise error
            else:
                played.append(future.result())
                wrong += not (played[-1].reward_valid and played[-1].reward == wanted)
            wrong += error is not None
    if not played:
        return wrong
    steps = sum(len(trajectory.turns) for trajectory in played)
    sandbox = played[0].sandbox
    golds = [row.gold.result() for row in rows if not row.gold.exception()]
    lines = [
        f"[bold]gold = 1 on {sum(t.reward == 1.0 for t in golds)} of {len(rows)} tasks[/], doing nothing = 0 on "
        f"{sum(t.reward == 0.0 for t in played) - sum(t.reward == 0.0 for t in golds)}.",
        f"{len(played)} episodes, {steps} steps, {2 * len(played)} sandboxes in {seconds:.1f} s "
        f"({60 * len(played) / seconds:.0f} episodes a minute); each reward came from a fresh sandbox.",
        f"Sandboxes: {sandbox['backend']}, isolation {sandbox['isolation']}, network {sandbox['network']}.",
        f"Trajectories: {path}",
        "",
        "Next: [cyan]swe-gym play[/] plays one yourself · [cyan]swe-gym tasks show ID[/] shows a task · "
        "[cyan]swe-gym doctor[/] says what else works here",
    ]
    console.print()
    console.print(Panel("\n".join(lines), border_style="green" if not wrong else "red", expand=False))
    return wrong
