"""The Agent Trajectory Interchange Format (ATIF) of Harbor as models, and the files that a document refers to.

Versions 1.0 to 1.8 are read: each one only added optional fields. Unknown fields are refused by name.
"""

from __future__ import annotations

import json
import stat
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator

from ...errors import wrong_fields
from ...types import Frozen, JsonObject

WRITTEN = "ATIF-v1.7"
"""Version that is written."""

VERSIONS = tuple(f"ATIF-v1.{minor}" for minor in range(9))

OURS = "swe_gym"
"""Name in the `extra` of a document or step under which our fields are that ATIF has no place for."""

MAX_FILE = 256 << 20
"""Bytes of a file that a document may refer to."""

MAX_FILES = 1000
"""Files that a document and those in them may refer to, each as often as it is referred to."""

MAX_DEPTH = 32
"""Documents within each other."""

MAX_COUNT = 1 << 53
"""Counts are below it: others lose digits in many readers of JSON."""

Count = Annotated[int, Field(ge=0, lt=MAX_COUNT)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
Cost = Annotated[float, Field(ge=0)]


class _Model(Frozen):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class ContentPart(_Model):
    """A part of a message. Images and audio are refused: a trajectory holds text."""

    type: Literal["text", "image", "audio"]
    text: str | None = None
    source: JsonObject | None = None

    @model_validator(mode="after")
    def _is_text(self) -> Self:
        if self.type != "text":
            raise ValueError(f"swe_gym's trajectories hold text, not {self.type} parts")
        if self.text is None or self.source is not None:
            raise ValueError("a text part has the field 'text' and no 'source'")
        return self


Content = str | list[ContentPart]


def text_of_content(content: Content | None) -> str:
    """Return the text of a message or an observation."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text or "" for part in content)


class AtifAgent(_Model):
    """The agent."""

    name: str
    version: str
    model_name: str | None = None
    tool_definitions: list[JsonObject] | None = None
    extra: JsonObject | None = None


class AtifCall(_Model):
    """A tool call."""

    tool_call_id: str
    function_name: str
    arguments: JsonObject
    extra: JsonObject | None = None


class SubagentRef(_Model):
    """A reference to a subagent's trajectory: an embedded one by its id, or a file."""

    trajectory_id: str | None = None
    session_id: str | None = None
    trajectory_path: str | None = None
    extra: JsonObject | None = None

    @model_validator(mode="after")
    def _resolvable(self) -> Self:
        if self.trajectory_id is None and self.trajectory_path is None:
            if self.session_id is None:
                raise ValueError("trajectory_id or trajectory_path is required")
            raise ValueError("a session_id names no trajectory: trajectory_id or trajectory_path is required")
        return self


class AtifResult(_Model):
    """A result of a call, or of something else that the agent observes."""

    source_call_id: str | None = None
    content: Content | None = None
    subagent_trajectory_ref: list[SubagentRef] | None = None
    extra: JsonObject | None = None


class AtifObservation(_Model):
    """The results of a step."""

    results: list[AtifResult]


class AtifMetrics(_Model):
    """Usage and tokens of a step."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    cached_tokens: Count | None = None
    cost_usd: Cost | None = None
    prompt_token_ids: list[TokenId] | None = None
    completion_token_ids: list[TokenId] | None = None
    logprobs: list[float] | None = None
    extra: JsonObject | None = None

    @model_validator(mode="after")
    def _agree(self) -> Self:
        ids, logprobs = self.completion_token_ids, self.logprobs
        if ids is not None and logprobs is not None and len(ids) != len(logprobs):
            raise ValueError(f"{len(ids)} completion_token_ids and {len(logprobs)} logprobs")
        return self


class AtifStep(_Model):
    """A step."""

    step_id: Count
    timestamp: str | None = None
    source: Literal["system", "user", "agent"]
    model_name: str | None = None
    reasoning_effort: str | float | None = None
    message: Content
    reasoning_content: str | None = None
    tool_calls: list[AtifCall] | None = None
    observation: AtifObservation | None = None
    metrics: AtifMetrics | None = None
    is_copied_context: bool | None = None
    llm_call_count: Count | None = None
    extra: JsonObject | None = None

    @field_validator("timestamp")
    @classmethod
    def _is_a_time(cls, value: str | None) -> str | None:
        if value is not None:
            datetime.fromisoformat(value)
        return value

    @model_validator(mode="after")
    def _agree(self) -> Self:
        only = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics")
        if self.source != "agent" and (given := [name for name in only if getattr(self, name) is not None]):
            raise ValueError(f"{given[0]}: only steps of the agent have it")
        if self.source == "agent" and self.llm_call_count == 0 and (self.metrics or self.reasoning_content):
            raise ValueError("llm_call_count: a step without a call has neither metrics nor reasoning_content")
        names = [call.tool_call_id for call in self.tool_calls or ()]
        if len(set(names)) < len(names):
            raise ValueError("tool_calls: two calls have the same tool_call_id")
        for result in self.observation.results if self.observation else ():
            if result.source_call_id is not None and result.source_call_id not in names:
                raise ValueError("observation: a source_call_id names no call of the step")
        return self


class AtifTotals(_Model):
    """Usage of a document."""

    total_prompt_tokens: Count | None = None
    total_completion_tokens: Count | None = None
    total_cached_tokens: Count | None = None
    total_cost_usd: Cost | None = None
    total_steps: Count | None = None
    extra: JsonObject | None = None


class AtifDocument(_Model):
    """A document: the trajectory of an agent, with those of its subagents.

    Attributes:
        continuation: The document of `continued_trajectory_ref` (see `with_files`). Not a field of the format.
    """

    schema_version: str
    session_id: str | None = None
    trajectory_id: str | None = None
    agent: AtifAgent
    steps: list[AtifStep] = Field(min_length=1)
    notes: str | None = None
    final_metrics: AtifTotals | None = None
    continued_trajectory_ref: str | None = None
    extra: JsonObject | None = None
    subagent_trajectories: list[AtifDocument] | None = None
    continuation: AtifDocument | None = None

    @field_validator("schema_version")
    @classmethod
    def _is_known(cls, value: str) -> str:
        if value not in VERSIONS:
            raise ValueError(f"unknown version {value[:40]!r}: swe_gym reads {VERSIONS[0]} to {VERSIONS[-1]}")
        return value

    @model_validator(mode="after")
    def _agree(self) -> Self:
        for number, step in enumerate(self.steps, 1):
            if step.step_id != number:
                raise ValueError(f"steps.{number - 1}.step_id: {step.step_id} instead of {number}")
        names = [one.trajectory_id for one in self.subagent_trajectories or ()]
        if None in names or len(set(names)) < len(names):
            raise ValueError("subagent_trajectories: each needs a trajectory_id of its own")
        return self

    def refs(self) -> list[SubagentRef]:
        """Return the references to subagents in all steps."""
        results = [result for step in self.steps if step.observation for result in step.observation.results]
        return [ref for result in results for ref in result.subagent_trajectory_ref or ()]


# --- files --------------------------------------------------------------------------------------------------


def with_files(row: JsonObject, path: Path) -> JsonObject:
    """Return a document with the files that it refers to, which must be beside its own file or below.

    Args:
        row: The document.
        path: Its file.

    Raises:
        ValueError: The document is invalid, or a reference is: it leads out of the folder, over a link or in a circle,
            or the file is missing or too large.
    """
    return _Files(path.parent).embedded(AtifDocument.model_validate(row), (path.name,)).model_dump()


class _Files:
    """Embeds files into a document."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read = 0

    def embedded(self, document: AtifDocument, chain: tuple[str, ...]) -> AtifDocument:
        """Return a document with all files below it. `chain` names the files that lead to it."""
        if len(chain) > MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} documents within each other")
        if document.continuation is not None:
            raise ValueError("continuation: not a field of ATIF")
        within = [self.embedded(one, (*chain, "")) for one in document.subagent_trajectories or ()]
        known = {one.trajectory_id for one in within}
        paths = {
            ref.trajectory_path: None
            for ref in document.refs()
            if ref.trajectory_path is not None and ref.trajectory_id not in known
        }
        for name in paths:
            found = self._open(name, chain, "trajectory_path")
            own = {"trajectory_id": found.trajectory_id} if found.trajectory_id else {}
            changes = {"trajectory_id": name, "extra": {**(found.extra or {}), **own} or None}
            within.append(found.model_copy(update=changes))
        changed: JsonObject = {"subagent_trajectories": within or None}
        if document.continued_trajectory_ref is not None:
            changed["continuation"] = self._open(document.continued_trajectory_ref, chain, "continued_trajectory_ref")
        return document.model_copy(update=changed)

    def _open(self, name: str, chain: tuple[str, ...], field: str) -> AtifDocument:
        path = Path(name)
        said = f"{field} {name[:200]!r}"
        if "://" in name or "\0" in name or path.is_absolute() or ".." in path.parts or not path.parts:
            raise ValueError(f"{said}: not a file beside the trajectory")
        if str(path) in chain:
            raise ValueError(f"{said}: the references lead in a circle")
        self._read += 1
        if self._read > MAX_FILES:
            raise ValueError(f"{said}: more than {MAX_FILES} files")
        try:
            document = AtifDocument.model_validate(json.loads(self._content(path)))
        except RecursionError:
            raise ValueError(f"{said}: nested too deeply") from None
        except ValidationError as error:
            raise ValueError(f"{said}: {wrong_fields(error)}") from error
        except ValueError as error:
            raise ValueError(f"{said}: {error}") from error
        return self.embedded(document, (*chain, str(path)))

    def _content(self, path: Path) -> bytes:
        place = self._folder
        for part in path.parts:
            place /= part
            try:
                found = place.lstat()
            except OSError as error:
                raise ValueError(f"the file is missing; put it beside the trajectory ({error.strerror})") from error
            if stat.S_ISLNK(found.st_mode):
                raise ValueError("a link")
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("not a file")
        if found.st_size > MAX_FILE:
            raise ValueError(f"{found.st_size} bytes; at most {MAX_FILE} are read")
        return place.read_bytes()
