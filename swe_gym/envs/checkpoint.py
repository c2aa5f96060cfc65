"""`EpisodeCheckpoint`: the state of a running episode as data, from which other episodes start."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from ..cache import digest
from ..errors import UsageError, wrong_fields
from ..files import write_text
from ..sandboxes import Sandbox, Snapshot
from ..spaces import Info
from ..tools import bound
from ..types import Frozen, JsonObject, Task


def _decode(value: object) -> object:
    return base64.urlsafe_b64decode(value) if isinstance(value, str) else value


class EpisodeCheckpoint(Frozen):
    """A point in an episode: `SweEnv.checkpoint` takes it, and `reset(options={"checkpoint": point})` starts from it.

    It holds what the policy saw and changed, and nothing of the task's oracle.

    Attributes:
        version: Version of the format.
        id: Digest of the point.
        parent: `id` of the point from which its episode started; empty if that is the task's own start.
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
        files: The files that were written since the task's start, as `Snapshot.pack` returns them.
    """

    version: Literal[1] = 1
    id: str = ""
    parent: str = ""
    task_id: str
    start: dict[str, str]
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
    files: Annotated[bytes, BeforeValidator(_decode)] = Field(repr=False)

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


def start_of_task(task: Task, backend: str, image: str | None) -> dict[str, str]:
    """Return what is known of the start of an episode before a sandbox is opened: of the task, only a digest."""
    facts = task.in_image("").model_dump(mode="json", exclude={"repo", "difficulty", "tags", "metadata"})
    return {"backend": backend, "image": image or "", "task": digest(facts, str(task.python))}


def start_in(sandbox: Sandbox) -> dict[str, str]:
    """Return what an open sandbox knows of its start."""
    return {"isolation": sandbox.capabilities.isolation, "origin": sandbox.origin}


def _problem(error: Exception) -> str:
    return wrong_fields(error) if isinstance(error, ValidationError) else str(error)
