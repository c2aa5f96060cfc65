"""Replay recorded trajectories and find the first byte that differs."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence

from ..envs import Difference, SweEnv, check_replayable, find_differences
from ..trajectories import Trajectory, Turn, shortened_like
from ..types import JsonObject


def replay_trajectory(
    trajectory: Trajectory,
    *,
    backend: str | None = None,
    sandbox_options: JsonObject | None = None,
    ignore: Sequence[str] = (),
) -> Difference | None:
    r"""Take the recorded actions in a new sandbox and compare observations, rewards and info.

    The environment is made as the record says, with the code, mounts and network that it names: read files of others
    with `swe-gym replay`, which refuses these.

    Args:
        trajectory: A trajectory of this package. Imported trajectories have no environment to replay in.
        backend: Sandbox backend; None uses the recorded one.
        sandbox_options: Replaces the recorded options if a backend is given.
        ignore: Regular expressions of text that may differ, for example r"in \d+\.\d+s".

    Returns:
        The first difference; None if there is none.

    Raises:
        UsageError: The trajectory cannot be replayed: it has no environment, was played by an agent or
            started from a checkpoint, its task is unknown, an action was shortened, or a pattern is invalid.
        SandboxError: The sandbox did not start.
        TaskError: The task is broken.
    """
    check_replayable(trajectory, len(trajectory.turns), ignore)
    config = {**trajectory.env, "render_mode": None}
    if backend is not None:
        config |= {"backend": backend, "sandbox_options": sandbox_options or {}}
    with contextlib.closing(SweEnv(**config)) as env:
        pairs = itertools.chain.from_iterable(
            find_differences(turn, old, new, ignore) for turn, old, new in _compare_turns(env, trajectory)
        )
        return next(pairs, None)


def _compare_turns(env: SweEnv, trajectory: Trajectory) -> Iterator[tuple[int, JsonObject, JsonObject]]:
    """Yield the number of each turn, its recorded facts and its replayed facts."""
    observation, info = env.reset(seed=trajectory.seed, options={"task_id": trajectory.task_id})
    yield 0, {"observation": trajectory.observation}, {"observation": observation}
    for number, turn in enumerate(trajectory.turns, 1):
        observation, reward, terminated, truncated, info = env.step(turn.action)
        over = terminated or truncated
        if turn.truncated and not over and turn.info.get("limit"):  # a limit of the episode loop: tokens, cost
            _, reward, terminated, truncated, info = env.end(turn.info["limit"])
        observation = shortened_like(observation, turn.observation)
        now = {"observation": observation, "reward": reward, "terminated": terminated, "truncated": truncated}
        yield number, _facts(turn), now | _flatten_info(info)
        if over:
            return


def _facts(turn: Turn) -> JsonObject:
    facts = {name: getattr(turn, name) for name in ("observation", "reward", "terminated", "truncated")}
    return facts | _flatten_info(turn.info)


def _flatten_info(info: JsonObject) -> JsonObject:
    return {f"info.{name}": value for name, value in info.items()}
