"""`Trajectory`: the record of one episode, and its lines of JSON: a header, one line per turn, and the result.

    {"version": 1, "task_id": ..., "observation": ...}     header: what is known when the episode starts
    {"action": ..., "observation": ..., "reward": ...}     turn
    {"outcome": ..., "reward": ..., "verdict": ...}        result

An episode counts once the newline of its result is on disk. A killed writer may leave lines without a result at the end
of a file: readers skip them, and the next writer removes them. A record that is one object with a list of turns is read
too: former versions wrote one per line, and `swe-gym export` does.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, Self, cast

from pydantic import Field, ValidationError, model_validator
from pydantic_core import from_json

from ..errors import UsageError, wrong_fields
from ..files import append_lines, end_of_lines, json_lines
from ..types import Frozen, JsonObject, ToolSpec, Verdict

Value = JsonObject | ValueError
"""A parsed line: an object, or why it is none."""


class RecordLines(NamedTuple):
    """Consecutive lines of a file that are a record, or one line that belongs to none.

    Attributes:
        place: Offset in bytes, or number, of the first line.
        length: Length in bytes.
        lines: The parsed lines.
    """

    place: int
    length: int
    lines: list[Value]


def split_record(whole: JsonObject) -> list[JsonObject]:
    """Return the lines of a record that is one object: the turns, and the fields before and behind them."""
    fields = list(whole.items())
    at = list(whole).index("turns")
    return [dict(fields[:at]), *whole["turns"], dict(fields[at + 1 :])]


def join_record(lines: Sequence[Value]) -> JsonObject:
    """Return a record as one object. Its result may be missing: the episode runs.

    Raises:
        ValueError: A line is not a JSON object.
    """
    for line in lines:
        if isinstance(line, ValueError):
            raise line
    header, *turns = cast("Sequence[JsonObject]", lines) or [{}]
    result = turns.pop() if turns and kind_of(turns[-1]) != "turn" else {}
    return {**header, **result, "turns": turns or header.get("turns", [])}


def find_records(lines: Iterable[tuple[int, bytes]]) -> Iterator[RecordLines]:
    """Yield the records of a file's lines and their places. Lines without a result at the end are omitted.

    Invalid records are yielded too: lines without a result before another header, and lines that belong to no record.
    """
    first, length = 0, 0
    held: list[Value] = []
    for place, line in lines:
        value = parse_line(line)
        kind = kind_of(value)
        if held and kind in ("header", "whole"):
            yield RecordLines(first, length, held)
            held = []
        if not held:
            first, length = place, 0
        held.append(value)
        length += len(line)
        if kind in ("result", "whole") or (len(held) == 1 and kind != "header"):
            yield RecordLines(first, length, held)
            held = []


def end_of_records(file: BinaryIO) -> int:
    """Return the offset behind the last line that is not part of an incomplete record at the end of a file."""
    end = start = end_of_lines(file)
    while start > 0:
        stop, start = start, end_of_lines(file, start - 1)
        file.seek(start)
        kind = kind_of(parse_line(file.read(stop - start)))
        if kind != "turn":
            return start if kind == "header" else end
    return end


def parse_line(line: str | bytes) -> Value:
    """Parse a line."""
    try:
        value = from_json(line)
    except ValueError:  # a lone surrogate, which models may sample, is an error for this parser, which is the fastest
        try:
            value = json.loads(line)
        except ValueError as error:
            return error
    return value if isinstance(value, dict) else ValueError("not a JSON object")


def kind_of(value: Value) -> Literal["header", "turn", "result", "whole", ""]:
    """Return what a line is; "" for anything else."""
    if isinstance(value, ValueError):
        return ""
    if "action" in value:
        return "turn"
    if "turns" in value:
        return "whole"
    if "task_id" in value and "observation" in value:
        return "header"
    return "result" if "outcome" in value else ""


MAX_TEXT = 256 << 10
"""Bytes kept of each text of a turn: action, thought, argument, observation."""

MAX_TURNS = 8 << 20
"""Bytes kept of the texts of all turns. Beyond them, `SHORT_TEXT` bytes of each text are kept."""

SHORT_TEXT = 2 << 10

MAX_PATCH = 1 << 20
"""Bytes kept of the patch."""

MAX_DROPPED = 200
"""Number of paths kept of `Verdict.dropped`."""

CUT = re.compile(r"\n\[\.\.\. cut: the whole text has \d+ bytes, SHA-256 [0-9a-f]{64}\]\n?\Z")
"""Marker at the end of a shortened text."""


def shortened(text: str, limit: int) -> str:
    """Return a text of at most `limit` bytes, followed by the size and digest of the whole if it was shortened."""
    if len(text) * 4 <= limit:
        return text
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= limit:
        return text
    digest = hashlib.sha256(data).hexdigest()
    head = data[:limit].decode("utf-8", "ignore")
    return f"{head}\n[... cut: the whole text has {len(data)} bytes, SHA-256 {digest}]\n"


def shortened_like(text: str, recorded: str) -> str:
    """Return a text shortened at the same place as a recorded one."""
    end = CUT.search(recorded, max(0, len(recorded) - 200))
    return text if end is None else shortened(text, len(recorded[: end.start()].encode("utf-8", "surrogatepass")))


FIRST_USAGE = {"prompt_tokens", "cached_tokens", "completion_tokens", "calls", "cost"}
"""Fields of `Usage` in records of the first version."""


class Usage(Frozen):
    """Tokens, requests and cost of a policy's model. Adds up with `+`.

    Attributes:
        prompt_tokens: Prompt tokens, cached ones included.
        cached_tokens: Prompt tokens from the server's cache.
        completion_tokens: Completion tokens.
        calls: Answered requests.
        uncounted: Answered requests whose tokens the server did not tell. No other field counts these tokens.
        retries: Requests that failed and were sent again.
        shortened: Times that the conversation was shortened to fit into the model's context.
        cached_answers: Answers from the cache of answers. No other field counts their tokens, and they cost nothing.
        cost: Cost in US dollars. None: unknown, or nothing was used. A sum with an unknown part is unknown.
        answered_as: Names that the server gave the model in its answers, if they were not the name that it was asked
            for.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    calls: int = 0
    uncounted: int = 0
    retries: int = 0
    shortened: int = 0
    cached_answers: int = 0
    cost: float | None = None
    answered_as: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _of_the_first_version(cls, data: object) -> object:
        """Read records of the first version, where the cost 0 stood for an unknown one."""
        if isinstance(data, dict) and data.keys() == FIRST_USAGE and not data["cost"]:
            return {**data, "cost": None}
        return data

    def __add__(self, other: Usage) -> Usage:
        costs = [one.cost for one in (self, other) if one.cost is not None or one.calls or one.tokens]
        known = [cost for cost in costs if cost is not None]
        counted = {name: getattr(self, name) + getattr(other, name) for name in COUNTED}
        names = tuple(sorted({*self.answered_as, *other.answered_as}))
        return Usage(**counted, cost=sum(known) if known and len(known) == len(costs) else None, answered_as=names)

    def priced(self, prices: Prices | None) -> Usage:
        """Return the usage with its cost: unknown without prices, or if a server did not tell all tokens."""
        known = prices is not None and not self.uncounted and (self.tokens or (self.cached_answers and not self.calls))
        return self.model_copy(update={"cost": prices.cost(self) if known and prices else None})

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens."""
        return self.prompt_tokens + self.completion_tokens


COUNTED = tuple(name for name in Usage.model_fields if name not in ("cost", "answered_as"))


class Prices(Frozen):
    """Prices in US dollars per million tokens.

    Attributes:
        input: Price of prompt tokens.
        cached: Price of cached prompt tokens; None is the price of `input`.
        output: Price of completion tokens.
        date: Date (ISO 8601) on which the prices were checked; empty for prices of your own.
    """

    input: float = Field(default=0.0, ge=0)
    cached: float | None = Field(default=None, ge=0)
    output: float = Field(default=0.0, ge=0)
    date: str = ""

    def cost(self, usage: Usage) -> float:
        """Return the cost in US dollars."""
        cached = self.input if self.cached is None else self.cached
        read = (usage.prompt_tokens - usage.cached_tokens) * self.input + usage.cached_tokens * cached
        return (read + usage.completion_tokens * self.output) / 1e6


class ModelServer(Frozen):
    """The server that a model was asked on.

    Attributes:
        url: Scheme, host, port and path of its address; empty if there is no server, or none was recorded.
        model: Fields of its list of models that identify the model, such as `root`; empty if it tells none.
    """

    url: str = ""
    model: JsonObject = {}

    def may_be(self, other: ModelServer) -> bool:
        """Return whether both have one address, and do not contradict each other about the model."""
        shared = self.model.keys() & other.model.keys()
        return self.url == other.url and all(self.model[name] == other.model[name] for name in shared)

    def __str__(self) -> str:
        root = self.model.get("root")
        return f"{self.url or 'unknown'} ({root})" if root else self.url or "unknown"


class PolicyInfo(Frozen):
    """A description of the policy.

    Attributes:
        name: Policy name, for example "llm" or "gold".
        model: Model name; empty if there is no model.
        sampling: Sampling settings: temperature, top_p, seed and so on.
        options: Other options, without keys and URLs.
        server: Server of the model. Recorded in run folders.
    """

    name: str = ""
    model: str = ""
    sampling: JsonObject = {}
    options: JsonObject = {}
    server: ModelServer = ModelServer()


class Segment(Frozen):
    """A row of tokens for a trainer: prompts and sampled answers.

    An episode whose conversation only grew is one segment. If the history was rewritten, a new segment starts. Each
    sampled token has mask 1 in exactly one segment.

    Attributes:
        token_ids: Token ids as sampled, never encoded again.
        loss_mask: 1 for sampled tokens, 0 for others.
        logprobs: Log-probabilities of the sampled tokens, from the sampler; 0.0 where the mask is 0.
        versions: Version of the weights that sampled each token; -1 where the mask is 0.
        temperature: Sampling temperature.
        side_call: Whether it answers a side call of an agent, such as one for a title. It has no part in the work.
    """

    token_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    temperature: float = 1.0
    side_call: bool = False

    @model_validator(mode="after")
    def _rows_agree(self) -> Self:
        lengths = {len(row) for row in (self.token_ids, self.loss_mask, self.logprobs, self.versions)}
        if len(lengths) > 1:
            raise ValueError(f"token_ids, loss_mask, logprobs and versions must have the same length, not {lengths}")
        for mask, logprob, version in zip(self.loss_mask, self.logprobs, self.versions, strict=True):
            if mask not in (0, 1) or not math.isfinite(logprob):
                raise ValueError(f"loss_mask must be 0 or 1 and logprobs finite, not {mask} and {logprob}")
            if not mask and (logprob or version != -1):
                raise ValueError("tokens with loss_mask 0 must have logprob 0.0 and version -1")
        return self


class Turn(Frozen):
    """One step of an episode.

    Attributes:
        action: The policy's text.
        thought: Text around the tool call.
        tool: Tool that was called; empty if the call was invalid.
        arguments: Arguments of the call.
        observation: Observation of the step.
        reward: Reward of the step.
        terminated: As `step` returned it.
        truncated: As `step` returned it.
        info: As `step` returned it.
        seconds: Wall-clock time of the step, without the policy.
        policy_seconds: Wall-clock time of the policy.
        parent: Number of the turn, from 0, whose conversation this one continues or starts from; -1 if it starts a
            conversation of its own. None: the turn before it.
        usage: Usage of the policy for this action.
    """

    action: str
    thought: str = ""
    tool: str = ""
    arguments: JsonObject = {}
    observation: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: JsonObject = {}
    seconds: float = 0.0
    policy_seconds: float = 0.0
    parent: int | None = None
    usage: Usage = Usage()

    def text_bytes(self) -> int:
        """Return the bytes of the texts in a record."""
        return sum(len(json.dumps(text)) for text in (self.action, self.thought, self.arguments, self.observation))

    def within(self, limit: int) -> Self:
        """Return the turn with each text shortened to `limit` bytes."""
        arguments = {
            name: value if len(json.dumps(value)) <= limit else shortened(_as_text(value), limit)
            for name, value in self.arguments.items()
        }
        texts = {name: shortened(getattr(self, name), limit) for name in ("action", "thought", "observation")}
        return self.model_copy(update={**texts, "arguments": arguments})


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


class Trajectory(Frozen):
    """The record of one episode.

    Only `verdict` holds content of the task's oracle. It is None outside run folders, and no exporter passes it on.

    Attributes:
        version: Version of the format.
        task_id: Task id.
        repo: Repository, for example "pallets/flask".
        attempt: Number of the attempt at the task, from 0.
        tries: Number of tries until the infrastructure did not fail.
        config_hash: Hash of the configuration; empty outside a run.
        experiment: Run name.
        policy: Description of the policy.
        env_id: Registered environment id; empty if the environment was made by its class.
        env: Arguments of the environment: `SweEnv(**trajectory.env)` makes it again.
        sandbox: Capabilities of the sandbox: backend, isolation and so on.
        tools: Tools of the policy, or those of an agent's main conversation.
        seed: Seed of `reset`.
        started: Date and time (UTC, ISO 8601) of the start; empty outside a run.
        parent: `id` of the checkpoint that the episode started from, or recorded episode and turn that it continues
            ("RUN/TASK/ATTEMPT:TURN"); empty if it started at its task.
        branch_turn: Turns before that checkpoint. They are not among `turns`.
        observation: Observation of `reset`.
        turns: The steps in order.
        segments: The tokens for trainers, if the policy keeps them.
        messages: The last conversation of the policy as in OpenAI's chat API, if it has one.
        outcome: As in `info`: "submitted", "agent_limit" or "infra_failed"; "running" if the episode did not end.
        reason: Stop reason: "submit", a limit ("turns", "time", "invalid", "tokens", "cost", ...), or the name of the
            failure ("SandboxLost (oom)"). "sandbox_lost": the same actions lost the sandbox twice.
        failure: Full message of an infrastructure failure. Never shown to a policy.
        reward_valid: Whether the episode counts. If False, leave it out of training and averages.
        resolved: Whether all required hidden tests passed.
        reward: Sum of the rewards.
        info: Info of the last step, or of `reset`.
        patch: The graded work as a git diff; empty if none was taken.
        patch_bytes: Size of the whole patch if `patch` was shortened and cannot be applied; else 0.
        usage: Sum over the turns, failed actions included.
        seconds: Wall-clock time of "start", "tools", "grading" and "policy", and the "total".
        verdict: ORACLE CONTENT: result of each hidden test. None outside run folders.
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
    env: JsonObject = {}
    sandbox: JsonObject = {}
    tools: tuple[ToolSpec, ...] = ()
    seed: int | None = None
    started: str = ""
    parent: str = ""
    branch_turn: int = 0
    observation: str
    turns: tuple[Turn, ...]
    segments: tuple[Segment, ...] = ()
    messages: tuple[JsonObject, ...] = ()
    outcome: str
    reason: str = ""
    failure: str = ""
    reward_valid: bool
    resolved: bool
    reward: float
    info: JsonObject = {}
    patch: str = ""
    patch_bytes: int = 0
    usage: Usage = Usage()
    seconds: dict[str, float] = {}
    verdict: Verdict | None = Field(default=None, repr=False)

    @property
    def trained_segments(self) -> tuple[Segment, ...]:
        """The segments to train on: all but those of side calls."""
        return tuple(segment for segment in self.segments if not segment.side_call)

    def with_turns(self, turns: Sequence[Turn]) -> Self:
        """Return a record that has only a beginning with turns, and their usage and times."""
        spent = {"tools": sum(turn.seconds for turn in turns), "policy": sum(turn.policy_seconds for turn in turns)}
        spent["total"] = self.seconds.get("start", 0.0) + sum(spent.values())
        usage = sum((turn.usage for turn in turns), Usage())
        return self.model_copy(update={"turns": tuple(turns), "usage": usage, "seconds": {**self.seconds, **spent}})

    def without_oracle(self) -> Self:
        """Return the record without `verdict` and `failure`, which may be shown to anyone."""
        return self.model_copy(update={"verdict": None, "failure": ""})

    def to_lines(self) -> list[str]:
        """Return the lines of a file that holds the record (see `find_records`)."""
        return [json.dumps(line) for line in split_record(self.model_dump())]

    @classmethod
    def from_lines(cls, lines: Sequence[Value]) -> Self:
        """Return the record of parsed lines. The result may be missing: the episode runs.

        Raises:
            UsageError: The lines are not a trajectory of this version.
        """
        try:
            return cls.model_validate(join_record(lines))
        except ValueError as error:
            problem = wrong_fields(error) if isinstance(error, ValidationError) else error
            raise UsageError(f"not a trajectory of version 1: {problem}") from error

    def append(self, path: str | os.PathLike[str]) -> None:
        """Append the record to a file. Threads and processes may share the file."""
        append_lines(path, *self.to_lines(), end_of=end_of_records)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Iterator[Self]:
        """Yield the trajectories of a file. An incomplete record at its end is skipped.

        Raises:
            UsageError: A record is not a trajectory; the message names the file and its first line.
        """
        for record in find_records(json_lines(Path(path))):
            try:
                yield cls.from_lines(record.lines)
            except UsageError as error:
                raise UsageError(f"{path}, line {record.place}: {error}") from error


def why_ended(info: JsonObject) -> str:
    """Return the stop reason: "submit", the limit, or the failure's name. Empty while the episode runs."""
    if info["outcome"] == "submitted":
        return "submit"
    failure: str = info["failure"]
    limit: str = info["limit"]
    return limit or failure.partition(":")[0]
