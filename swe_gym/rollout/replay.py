"""Replay recorded trajectories and find the first byte that differs."""

import contextlib
import itertools
import json
import re
from collections.abc import Iterator, Sequence

from ..envs import SweEnv
from ..errors import UsageError
from ..trajectories import CUT, Trajectory, Turn, shortened_like
from ..types import Frozen, Json, JsonObject

CONTEXT = 60
"""Characters shown before and after a difference."""


class Difference(Frozen):
    """The first difference between a record and its replay.

    Attributes:
        turn: Number of the turn, from 1; 0 is the result of `reset`.
        what: Part of the step that differs, for example "observation", "reward" or "info.tool_ok".
        byte: Offset of the first differing byte in the UTF-8 text, without ignored text.
        recorded: Excerpt of the record.
        replayed: Excerpt of the replay.
    """

    turn: int
    what: str
    byte: int
    recorded: str
    replayed: str

    def __str__(self) -> str:
        where = f"turn {self.turn}" if self.turn else "reset"
        return (
            f"{where}: {self.what} differs at byte {self.byte}\n"
            f"  recorded: {self.recorded!r}\n  replayed: {self.replayed!r}"
        )


def replay_trajectory(
    trajectory: Trajectory,
    *,
    backend: str | None = None,
    sandbox_options: JsonObject | None = None,
    ignore: Sequence[str] = (),
) -> Difference | None:
    r"""Take the recorded actions in a new sandbox and compare observations, rewards and info.

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
    if not trajectory.env:
        raise UsageError(f"{trajectory.task_id} cannot be replayed: its record has no environment")
    if "agent" in trajectory.policy.options:
        raise UsageError(f"{trajectory.task_id} cannot be replayed: its agent used tools of its own")
    if trajectory.parent:
        raise UsageError(f"{trajectory.task_id} cannot be replayed: its episode started from a checkpoint")
    for number, turn in enumerate(trajectory.turns, 1):
        if CUT.search(turn.action):
            raise UsageError(
                f"{trajectory.task_id} cannot be replayed: the action of turn {number} was too long to be kept whole"
            )
    try:
        patterns = [re.compile(pattern) for pattern in ignore]
    except re.error as error:
        raise UsageError(f"invalid regular expression to ignore: {error}") from error
    config = {**trajectory.env, "render_mode": None}
    if backend is not None:
        config |= {"backend": backend, "sandbox_options": sandbox_options or {}}
    with contextlib.closing(SweEnv(**config)) as env:
        pairs = itertools.chain.from_iterable(
            _differing(turn, old, new, patterns) for turn, old, new in _compare_turns(env, trajectory)
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


def _differing(turn: int, old: JsonObject, new: JsonObject, ignore: Sequence[re.Pattern[str]]) -> Iterator[Difference]:
    for what in old:
        recorded, replayed = _text(old[what], ignore), _text(new.get(what), ignore)
        if recorded != replayed:
            same = sum(
                1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(recorded, replayed, strict=False))
            )
            yield Difference(
                turn=turn,
                what=what,
                byte=len(recorded[:same].encode("utf-8", "surrogatepass")),
                recorded=_around(recorded, same),
                replayed=_around(replayed, same),
            )


def _text(value: Json, ignore: Sequence[re.Pattern[str]]) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    for pattern in ignore:
        text = pattern.sub("", text)
    return text


def _around(text: str, place: int) -> str:
    return text[max(0, place - CONTEXT) : place + CONTEXT]
