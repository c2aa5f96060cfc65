"""The record of one episode, as one line of JSON."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from ..errors import UsageError, wrong_fields
from ..lines import append_line, json_lines
from ..types import Frozen, ToolSpec, Verdict

MAX_TEXT = 256 << 10
"""Bytes of one text of a turn that a record keeps: action, thought, argument, observation."""

MAX_TURNS = 8 << 20
"""Bytes of the texts of all turns that a record keeps. After them, `SHORT_TEXT` bytes of each text are kept."""

SHORT_TEXT = 2 << 10

MAX_PATCH = 1 << 20
"""Bytes of the patch that a record keeps."""

MAX_DROPPED = 200
"""Paths of `Verdict.dropped` that a record keeps."""

CUT = re.compile(r"\n\[\.\.\. cut: the whole text has \d+ bytes, SHA-256 [0-9a-f]{64}\]\n?\Z")
"""The end of a text of which only the beginning was kept."""


def shortened(text: str, limit: int) -> str:
    """The beginning of a text of more than `limit` bytes, with a line that gives the size and digest of the whole."""
    if len(text) * 4 <= limit:
        return text
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= limit:
        return text
    digest = hashlib.sha256(data).hexdigest()
    head = data[:limit].decode("utf-8", "ignore")
    return f"{head}\n[... cut: the whole text has {len(data)} bytes, SHA-256 {digest}]\n"


def shortened_like(text: str, recorded: str) -> str:
    """A text cut at the place where a recorded one was cut, if it was."""
    end = CUT.search(recorded, max(0, len(recorded) - 200))
    return text if end is None else shortened(text, len(recorded[: end.start()].encode("utf-8", "surrogatepass")))


class Usage(Frozen):
    """What a policy has used of its model. Sums with `+`.

    Attributes:
        prompt_tokens: Tokens that were read, cached ones too.
        cached_tokens: Those of them that the server had in its cache.
        completion_tokens: Tokens that were written.
        calls: Requests that were answered.
        cost: US dollars, where the price is known.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    calls: int = 0
    cost: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in type(self).model_fields})

    @property
    def tokens(self) -> int:
        """Read and written."""
        return self.prompt_tokens + self.completion_tokens


class PolicyInfo(Frozen):
    """Who played.

    Attributes:
        name: Of the policy: "llm", "gold", "rule-based".
        model: The name of its model; empty where there is none.
        sampling: How tokens are drawn: temperature, top_p, seed and so on.
        options: What else it was made with, without keys and addresses.
    """

    name: str = ""
    model: str = ""
    sampling: dict[str, Any] = {}
    options: dict[str, Any] = {}


class Segment(Frozen):
    """A stretch of tokens as a trainer takes it: what the model read and wrote, in one row.

    An episode whose conversation only ever grew is one segment. Where the history was rewritten, a new one begins:
    nothing is spliced. Each token that was sampled stands in exactly one segment with mask 1.

    Attributes:
        token_ids: The sampler's own ids, never encoded anew.
        loss_mask: 1 where the token was sampled, 0 where it was given.
        logprobs: Of the sampled tokens, as the sampler had them; 0.0 where the mask is 0.
        versions: Of the weights that sampled the token; -1 where the mask is 0.
        temperature: At which they were sampled.
    """

    token_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    temperature: float = 1.0

    @model_validator(mode="after")
    def _rows_agree(self) -> Self:
        lengths = {len(row) for row in (self.token_ids, self.loss_mask, self.logprobs, self.versions)}
        if len(lengths) > 1:
            raise ValueError(f"token_ids, loss_mask, logprobs and versions must be of one length, not of {lengths}")
        for mask, logprob, version in zip(self.loss_mask, self.logprobs, self.versions, strict=True):
            if mask not in (0, 1) or not math.isfinite(logprob):
                raise ValueError(f"a mask is 0 or 1 and a logprob finite, not {mask} and {logprob}")
            if not mask and (logprob or version != -1):
                raise ValueError("a token that was not sampled has logprob 0.0 and version -1")
        return self


class Turn(Frozen):
    """One step: what the policy said, what the environment made of it, what came back.

    Attributes:
        action: The policy's text.
        thought: The text around the tool call.
        tool: The tool that was called; empty where there was no valid call.
        arguments: What it was called with.
        observation: What came back.
        reward: Of this step.
        terminated: As `step` returned it.
        truncated: As `step` returned it.
        info: As `step` returned it.
        seconds: Wall-clock time of the step, without the policy's.
        policy_seconds: Wall-clock time that the policy took for the action.
        usage: What the policy used for the action.
    """

    action: str
    thought: str = ""
    tool: str = ""
    arguments: dict[str, Any] = {}
    observation: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = {}
    seconds: float = 0.0
    policy_seconds: float = 0.0
    usage: Usage = Usage()

    def text_bytes(self) -> int:
        """How many bytes its texts take in a record."""
        return sum(len(json.dumps(text)) for text in (self.action, self.thought, self.arguments, self.observation))

    def within(self, limit: int) -> Self:
        """The same with texts of at most `limit` bytes each; longer ones end in a line that says so."""
        arguments = {
            name: value if len(json.dumps(value)) <= limit else shortened(_as_text(value), limit)
            for name, value in self.arguments.items()
        }
        texts = {name: shortened(getattr(self, name), limit) for name in ("action", "thought", "observation")}
        return self.model_copy(update={**texts, "arguments": arguments})


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


class Trajectory(Frozen):
    """The record of one episode, the same after a round trip.

    It holds nothing of the task's oracle, with one exception: `verdict`. The engine writes it into the files of a run
    folder, for whoever owns the run; everywhere else it is None, and no exporter passes it on.

    Attributes:
        version: Of this format.
        task_id: The task.
        repo: Whose code it is, as in "pallets/flask".
        attempt: Which of the attempts at this task, from 0.
        tries: How often it was played until the infrastructure let it come to an end.
        config_hash: Of everything that decides how the episode goes; empty outside a run.
        experiment: The name of the run.
        policy: Who played.
        env_id: The registered id, empty where the environment was made by its class.
        env: The environment's arguments: `SweEnv(**trajectory.env)` makes it again.
        sandbox: What the sandbox offered: backend, isolation and so on.
        tools: What the policy could call.
        seed: What `reset` was given.
        started: Date and time (UTC, ISO 8601) of the start; empty outside a run.
        observation: What `reset` returned.
        turns: The steps, in order: the episode for people.
        segments: The same for trainers, where the policy keeps its tokens.
        messages: The conversation as the policy last had it, in the form of OpenAI's chat API, where it has one.
        outcome: As in `info`: "submitted", "agent_limit", "infra_failed"; "running" where it was left before its end.
        reason: What ended it: "submit", a limit ("turns", "time", "invalid", "tokens", "cost", ...), or the name of
            the failure ("SandboxLost (oom)", "APITimeoutError"). The limit "sandbox_lost": the policy lost its sandbox
            in two tries in the same way.
        failure: What failed, in full, where the infrastructure did. Never shown to a policy.
        reward_valid: False where the episode must be left out of training and of averages.
        resolved: All required hidden tests passed.
        reward: Sum over the turns.
        info: Of the last step; of `reset` where there was none.
        patch: The judged work as a git diff; empty where none was taken.
        patch_bytes: Size of the whole patch, if `patch` holds only its beginning, which cannot be applied; else 0.
        usage: Sum over the turns, and what was used for an action that never came.
        seconds: Wall-clock time by activity: "start", "tools", "grading", "policy"; and "total".
        verdict: ORACLE CONTENT: what the grader found, test by test. None outside run folders.
    """

    version: Literal[1] = 1
    task_id: str
    repo: str = ""
    attempt: int = 0
    tries: int = 1
    config_hash: str = ""
    experiment: str = ""
    policy: PolicyInfo = PolicyInfo()
    env_id: str = ""
    env: dict[str, Any] = {}
    sandbox: dict[str, Any] = {}
    tools: tuple[ToolSpec, ...] = ()
    seed: int | None = None
    started: str = ""
    observation: str
    turns: tuple[Turn, ...]
    segments: tuple[Segment, ...] = ()
    messages: tuple[dict[str, Any], ...] = ()
    outcome: str
    reason: str = ""
    failure: str = ""
    reward_valid: bool
    resolved: bool
    reward: float
    info: dict[str, Any] = {}
    patch: str = ""
    patch_bytes: int = 0
    usage: Usage = Usage()
    seconds: dict[str, float] = {}
    verdict: Verdict | None = Field(default=None, repr=False)

    def without_oracle(self) -> Self:
        """The same without `verdict` and `failure`: what may be shown to anybody."""
        return self.model_copy(update={"verdict": None, "failure": ""})

    def to_json(self) -> str:
        """One line of ASCII JSON."""
        return json.dumps(self.model_dump())

    @classmethod
    def from_json(cls, line: str) -> Self:
        """The trajectory of a line that `to_json` wrote.

        Raises:
            UsageError: The line is no trajectory of this version.
        """
        try:
            return cls.model_validate(json.loads(line))
        except ValidationError as error:
            raise UsageError(f"not a trajectory of version 1: {wrong_fields(error)}") from error
        except ValueError as error:
            raise UsageError(f"not a trajectory of version 1: {error}") from error

    def append(self, path: str | os.PathLike[str]) -> None:
        """Add it to a file, one line per trajectory. Threads and processes may write to the same file."""
        append_line(path, self.to_json())

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Iterator[Self]:
        """The trajectories of a file, one by one.

        A half line at the end of the file, as a process leaves that is killed or still writing, is left out.

        Raises:
            UsageError: A line is no trajectory; the message names file and line.
        """
        for number, line in json_lines(Path(path)):
            try:
                yield cls.from_json(line.decode())
            except UsageError as error:
                raise UsageError(f"{path}, line {number}: {error}") from error


def why_ended(info: dict[str, Any]) -> str:
    """What ended an episode, in a word or two: "submit", the limit, or the failure's name. Empty while it runs."""
    if info["outcome"] == "submitted":
        return "submit"
    failure: str = info["failure"]
    limit: str = info["limit"]
    return limit or failure.partition(":")[0]
