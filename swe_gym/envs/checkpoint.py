"""`EpisodeCheckpoint`: the state of a running episode as data, from which other episodes start."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from ..cache import digest
from ..errors import ReplayError, UsageError, wrong_fields
from ..files import write_text
from ..sandboxes import Sandbox, Snapshot
from ..spaces import Info
from ..tools import ENDING, bound
from ..trajectories import CUT, Segment, Trajectory, shortened_like
from ..types import Frozen, Json, JsonObject, Task

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


def find_differences(
    turn: int, recorded: JsonObject, replayed: JsonObject, ignore: Sequence[str]
) -> Iterator[Difference]:
    """Yield the first difference of each recorded part of a turn.

    Args:
        turn: Number of the turn, from 1; 0 is the result of `reset`.
        recorded: The recorded parts by name.
        replayed: The replayed parts by name.
        ignore: Regular expressions of text that may differ.
    """
    for what in recorded:
        old, new = _without(recorded[what], ignore), _without(replayed.get(what), ignore)
        if old != new:
            same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
            around = slice(max(0, same - CONTEXT), same + CONTEXT)
            yield Difference(
                turn=turn,
                what=what,
                byte=len(old[:same].encode("utf-8", "surrogatepass")),
                recorded=old[around],
                replayed=new[around],
            )


def _without(value: Json, ignore: Sequence[str]) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    for pattern in ignore:
        text = re.sub(pattern, "", text)
    return text


def check_replayable(record: Trajectory, turns: int, ignore: Sequence[str]) -> None:
    """Check that the first turns of a record can be played again.

    Raises:
        UsageError: They cannot, or a pattern of text to ignore is invalid.
    """
    if not record.env:
        raise UsageError(f"{record.task_id} cannot be replayed: its record has no environment")
    if "agent" in record.policy.options:
        raise UsageError(f"{record.task_id} cannot be replayed: its agent used tools of its own")
    if record.parent:
        raise UsageError(f"{record.task_id} cannot be replayed: its episode started from a checkpoint")
    for number, turn in enumerate(record.turns[:turns], 1):
        if CUT.search(turn.action):
            raise UsageError(
                f"{record.task_id} cannot be replayed: the action of turn {number} was too long to be kept whole"
            )
    try:
        for pattern in ignore:
            re.compile(pattern)
    except re.error as error:
        raise UsageError(f"invalid regular expression to ignore: {error}") from error


def _decode(value: object) -> object:
    return base64.urlsafe_b64decode(value) if isinstance(value, str) else value


class EpisodeCheckpoint(Frozen):
    r"""A point in an episode: `SweEnv.checkpoint` takes it, and `reset(options={"checkpoint": point})` starts from it.

    It holds what the policy saw and changed, and nothing of the task's oracle. A point of a recorded episode has no
    files: `reset` plays its actions again.

    Attributes:
        version: Version of the format.
        id: Digest of the point.
        parent: Point from which its episode started, as in `Trajectory`; empty if that is the task's own start.
        origin: Recorded episode and turn that it was made of, "RUN/TASK/ATTEMPT:TURN"; empty if `checkpoint` took it.
        task_id: Task id.
        start: What the sandbox began with. A point fits to a sandbox with the same start only.
        seed: Seed of the episode's `reset`.
        turn: Number of turns before it, those of parents included.
        observation: First observation of the task.
        actions: Actions before it, those of parents included.
        observations: Observations of these actions.
        invalid_actions: Number of actions without effect.
        invalid_row: Number of consecutive actions without effect at the end.
        signs: Signs of cheating so far.
        seconds: Seconds of the time limit that were used.
        tools: Tool -> its state.
        lost: Tools whose state cannot be kept.
        tokens: Token ids of the conversation up to the last action, as they were sampled; empty if none were recorded.
        ignore: Regular expressions of text that may differ when its actions are played again, as r"in \d+\.\d+s".
        files: The files that were written since the task's start, as `Snapshot.pack` returns them; empty if there are
            only actions.
    """

    version: Literal[1] = 1
    id: str = ""
    parent: str = ""
    origin: str = ""
    task_id: str
    start: dict[str, str] = {}
    seed: int | None = None
    turn: int = Field(default=0, ge=0)
    observation: str
    actions: tuple[str, ...] = ()
    observations: tuple[str, ...] = ()
    invalid_actions: int = Field(default=0, ge=0)
    invalid_row: int = Field(default=0, ge=0)
    signs: tuple[str, ...] = ()
    seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    tools: dict[str, JsonObject] = {}
    lost: tuple[str, ...] = ()
    tokens: tuple[int, ...] = Field(default=(), repr=False)
    ignore: tuple[str, ...] = ()
    files: Annotated[bytes, BeforeValidator(_decode)] = Field(default=b"", repr=False)

    @classmethod
    def of(cls, value: object) -> Self:
        """Return a checkpoint that is given as such, or as the JSON object of one.

        Raises:
            UsageError: It is neither.
        """
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise UsageError(
                f"not a checkpoint: {type(value).__name__}. Pass what `checkpoint()` or "
                "`EpisodeCheckpoint.read` returned"
            )
        try:
            return cls.model_validate(dict(value))._whole()
        except ValueError as error:
            raise UsageError(f"not a checkpoint of version 1: {_problem(error)}") from error

    @classmethod
    def of_record(cls, record: Trajectory, turn: int, *, origin: str = "", ignore: Sequence[str] = ()) -> Self:
        r"""Return the point after a turn of a recorded episode. It has no files: its actions are played again.

        Args:
            record: The episode, from the start of its task.
            turn: Number of the turn, from 1. It must not have ended the episode.
            origin: Recorded episode and turn, for records of episodes that continue here.
            ignore: Regular expressions of text that may differ, for example r"in \d+\.\d+s".

        Raises:
            UsageError: The record has no such turn or cannot be replayed, or a pattern is invalid.
        """
        turns = record.turns[: max(0, turn)]
        if not 0 < turn <= len(record.turns) or turns[-1].terminated or turns[-1].truncated:
            last = len(record.turns) - (record.outcome != "running")
            raise UsageError(
                f"an episode cannot continue after turn {turn} of {origin or record.task_id}: it had "
                f"{len(record.turns)} turns"
                + (f", so choose a turn from 1 to {last}" if last > 0 else ", and the first one ended it")
            )
        check_replayable(record, turn, ignore)
        for number, one in enumerate(turns, 1):
            if one.tool in ENDING and one.info.get("tool_ok", True):
                raise UsageError(
                    f"an episode cannot continue after turn {turn} of {origin or record.task_id}: turn {number} ended "
                    f"a step of the task, which was judged. Choose a turn before {number}"
                )
        try:
            return cls(
                origin=origin,
                task_id=record.task_id,
                seed=record.seed,
                turn=turn,
                observation=record.observation,
                actions=tuple(one.action for one in turns),
                observations=tuple(one.observation for one in turns),
                seconds=sum(one.seconds + one.policy_seconds for one in turns),
                tokens=_find_tokens(record.segments, turn),
                ignore=tuple(ignore),
            ).named()
        except ValidationError as error:
            raise UsageError(f"{record.task_id} cannot be replayed: {wrong_fields(error)}") from error

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Return the checkpoint of a file.

        Raises:
            UsageError: The file does not exist, or holds no checkpoint.
        """
        try:
            return cls.of(json.loads(Path(path).read_bytes()))
        except OSError as error:
            raise UsageError(f"the checkpoint {path} cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError, UsageError) as error:
            raise UsageError(f"{path} cannot be used: {error}") from error

    @classmethod
    def among(cls, options: Info | None) -> Self | None:
        """Return the checkpoint among the options of `reset`; None without one."""
        value = (options or {}).get("checkpoint")
        return None if value is None else cls.of(value)

    def turns_with(self, last: str, longest: int) -> list[tuple[str, str]]:
        """Return the actions and observations of an episode that continues here, as its policy knows them.

        The first observation is that of the task, and its action is empty.

        Args:
            last: Observation that `reset` returned. It takes the place of the last one.
            longest: Maximum length of an observation.
        """
        seen = [bound(text, longest) for text in (self.observation, *self.observations)]
        return list(zip(("", *self.actions), [*seen[:-1], last], strict=True))

    def answered(self, longest: int) -> list[tuple[str, str]]:
        """Return what the policy saw and its action on it, for each turn before the point.

        Args:
            longest: Maximum length of an observation.
        """
        seen = (self.observation, *self.observations)
        return [(bound(text, longest), action) for text, action in zip(seen, self.actions, strict=False)]

    def compare(self, turn: int, observation: str) -> None:
        """Compare an observation with the one before the point.

        Args:
            turn: Number of the turn; 0 is the result of `reset`.
            observation: The observation of its replay.

        Raises:
            ReplayError: They differ; the message shows where.
        """
        recorded = (self.observation, *self.observations)[turn]
        pair = {"observation": recorded}, {"observation": shortened_like(observation, recorded)}
        for difference in find_differences(turn, *pair, self.ignore):
            raise ReplayError(
                f"the episode cannot continue after turn {self.turn} of {self.origin or self.task_id}: its replay "
                f"differs from the record. {difference}\nText such as times and process ids varies: ignore it by "
                "a regular expression, or continue from an earlier turn"
            )

    def check_limits(self, max_turns: int, time_limit: float) -> None:
        """Raise `UsageError` if an episode with these limits cannot continue here."""
        if self.turn >= max_turns:
            raise UsageError(f"the checkpoint is at turn {self.turn}, and max_turns is {max_turns}: raise max_turns")
        if self.seconds >= time_limit:
            raise UsageError(
                f"the checkpoint is at second {self.seconds:g}, and the time limit is {time_limit:g} s: raise it"
            )

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the checkpoint to a file, for `read`. It replaces a file."""
        write_text(Path(path), json.dumps(self.model_dump(mode="json")))

    def named(self) -> Self:
        """Return the checkpoint with its `id`."""
        parts = self.model_dump(mode="json", exclude={"id", "files"})
        return self.model_copy(update={"id": digest(parts, hashlib.sha256(self.files).hexdigest())})

    def _whole(self) -> Self:
        """Return this. Raises ValueError if it is not as it was written."""
        if self.named().id != self.id:
            raise ValueError("it was changed: its id is not that of its content")
        return self

    @model_validator(mode="after")
    def _turns_agree(self) -> Self:
        if not len(self.actions) == len(self.observations) <= self.turn:
            raise ValueError("actions and observations must be as many, and not more than turns")
        return self

    def snapshot(self) -> Snapshot:
        """Return the files.

        Raises:
            UsageError: They are no snapshot of a sandbox.
        """
        try:
            return Snapshot.unpack(self.files)
        except UsageError as error:
            raise UsageError(f"the checkpoint of task {self.task_id} was changed or cut off: {error}") from error

    def check_start(self, start: Mapping[str, str]) -> None:
        """Raise `UsageError` if a start is another one than that of the point."""
        for name, found in start.items():
            if self.start.get(name) != found:
                raise UsageError(
                    f"the checkpoint of task {self.task_id} does not fit: its {name} is {self.start.get(name)!r}, and "
                    f"here it is {found!r}. Use the backend and the version of the task with which it was taken"
                )


def _find_tokens(segments: Sequence[Segment], answers: int) -> tuple[int, ...]:
    """Return the tokens up to the end of an answer, counted from 1; empty if the segments do not have it."""
    for segment in segments:
        mask = (*segment.loss_mask, 0)
        ends = [place for place in range(1, len(mask)) if mask[place - 1] > mask[place]]
        if segment.side_call:
            return ()
        if answers <= len(ends):
            return segment.token_ids[: ends[answers - 1]]
        answers -= len(ends)
    return ()


def start_of_task(task: Task, backend: str, image: str | None) -> dict[str, str]:
    """Return what is known of the start of an episode before a sandbox is opened: of the task, only a digest."""
    facts = task.in_image("").model_dump(mode="json", exclude={"repo", "difficulty", "tags", "metadata"})
    return {"backend": backend, "image": image or "", "task": digest(facts, str(task.python))}


def start_in(sandbox: Sandbox) -> dict[str, str]:
    """Return what an open sandbox knows of its start."""
    return {"isolation": sandbox.capabilities.isolation, "origin": sandbox.origin}


def _problem(error: Exception) -> str:
    return wrong_fields(error) if isinstance(error, ValidationError) else str(error)
