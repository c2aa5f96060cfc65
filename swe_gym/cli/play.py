"""`swe-gym play`: solve a task yourself."""

import contextlib
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ..rollout.episode import play as play_episode
from ..rollout.policies.human import HumanPolicy
from ..tools import TOOLSETS
from ..trajectories.trajectory import Trajectory
from ..wrappers.record_trajectory import RecordTrajectory
from .common import Backend, SandboxOptions, Source, SourceOptions, open_console, open_env
from .common import sandbox_options as parse_sandbox_options


def play(
    task_id: Annotated[str | None, typer.Argument(help="Task id (default: a random task).")] = None,
    source: Source = "toy",
    source_option: SourceOptions = None,
    backend: Backend = "local",
    sandbox_option: SandboxOptions = None,
    tools: Annotated[str, typer.Option(help=f"Tool preset: {', '.join(TOOLSETS)}.")] = "default",
    seed: Annotated[int | None, typer.Option(help="Seed of the random task.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Append the trajectory to this file.")] = None,
) -> None:
    """Solve one task yourself, with the tools of a policy."""
    console = open_console()
    env = open_env(
        source,
        source_option,
        task_id=task_id,
        backend=backend,
        sandbox_options=parse_sandbox_options(backend, sandbox_option),
        tools=tools,
        max_turns=10_000,
        max_invalid=None,
        time_limit=86_400.0,
    )
    if output:  # an unwritable file fails now, not after the work
        output.parent.mkdir(parents=True, exist_ok=True)
        output.open("ab").close()
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  gives `input` a history and cursor keys
    with RecordTrajectory(env, str(output) if output else None) as recorder:
        try:
            trajectory = play_episode(recorder, HumanPolicy(env, console), seed=seed)
        except (EOFError, KeyboardInterrupt) as end:
            console.print("\nGave up; nothing was graded.")
            raise typer.Exit(130 if isinstance(end, KeyboardInterrupt) else 0) from end
    _report(console, trajectory)
    if output:
        console.print(f"Trajectory: {output}")
    if not trajectory.reward_valid:
        raise typer.Exit(1)


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
