"""`swe-gym play`: solve a task yourself."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import typer
from rich.console import Console
from rich.text import Text

from ..envs import SweEnv
from ..errors import SandboxError
from ..rollout import play as play_episode
from ..rollout.policies import HumanPolicy
from ..spaces import StepResult
from ..trajectories import Trajectory
from ..wrappers import RecordTrajectory
from .common import open_console, open_env
from .common import sandbox_options as parse_sandbox_options
from .options import SEED, Backend, SandboxOptions, Source, SourceOptions, Tools, tools_of


def play(
    task_id: Annotated[str | None, typer.Argument(metavar="TASK_ID", help="Task id (default: a random task).")] = None,
    source: Source = "toy",
    source_option: SourceOptions = None,
    backend: Backend = "local",
    sandbox_option: SandboxOptions = None,
    tools: Tools = "default",
    seed: Annotated[int | None, SEED] = None,
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
        tools=tools_of(tools),
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
            human = HumanPolicy(env, console)
            trajectory = play_episode(Interruptible(recorder, env, human), human, seed=seed)
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
