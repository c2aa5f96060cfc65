"""Documents of Harbor's Agent Trajectory Interchange Format (ATIF), which lose nothing, and one file per document."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from ...errors import UsageError
from ...files import write_table, write_text
from ...types import Json, JsonObject
from ..trajectory import Segment, Trajectory, Turn, Usage
from .atif import MAX_COUNT, OURS, WRITTEN, AtifDocument
from .atif_import import OWNERS, call_id, episode_id, from_atif, totals


def to_atif(trajectories: Iterable[Trajectory]) -> Iterator[JsonObject]:
    """Yield a document per episode: a step per turn, and a subagent per conversation beside the largest.

    Fields that the format has no place for are in `extra.swe_gym`, of the step or the document: of a turn, those that
    its step does not tell. `swe-gym import` gives an equal trajectory.

    Raises:
        UsageError: A trajectory has more levels of JSON than Python reads.
    """
    for one in trajectories:
        try:
            document = _document(one.without_oracle())
        except RecursionError:
            raise UsageError(f"{episode_id(one)}: nested too deeply for ATIF. Leave it out") from None
        yield document


def _document(one: Trajectory) -> JsonObject:
    steps = _steps(one)
    document = _assembled(one, steps)
    native = from_atif(document, "")
    if _text(native.segments) != _text(one.segments):  # the turns of some answers are unknown
        for step in steps:
            _drop_tokens(step)
        native = from_atif(document, "")
    for step, turn, told in zip(steps, one.turns, native.turns, strict=True):
        _add(step, _missing(turn, told))
    _add(document, {"task_id": one.task_id, **_missing(one, native)})
    return document


def _text(value: object) -> str:
    """Return a value as JSON, in which 1, 1.0 and True differ."""
    return json.dumps(value, default=lambda model: model.model_dump(), sort_keys=False)


def _missing(one: Trajectory | Turn, told: Trajectory | Turn) -> JsonObject:
    """Return the fields of a record that the document does not tell."""
    whole, known = one.model_dump(), told.model_dump()
    return {name: value for name, value in whole.items() if name not in OWNERS and _text(value) != _text(known[name])}


def _add(part: JsonObject, fields: JsonObject) -> None:
    """Add our fields to the `extra` of a document or step; as JSON text if UTF-8 cannot encode them."""
    fields = {**part.get("extra", {}).get(OURS, {}), **fields}
    if fields or "steps" in part:
        text = json.dumps(fields)
        plain = json.loads(text)
        part["extra"] = {OURS: plain if _encodable(plain) == plain else text}


def _encodable(value: Json) -> Json:
    """Return the value with text that UTF-8 can encode: a model may write half a surrogate pair."""
    encodable: Json = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return encodable


# --- documents ----------------------------------------------------------------------------------------------


def _assembled(one: Trajectory, steps: list[JsonObject]) -> JsonObject:
    """Return the document with its subagents: without them, all turns are one conversation."""
    trees = _conversations(one.turns)
    main = max(trees, key=len, default=[])
    opening = _opening(one)
    document = _shell(one, episode_id(one))
    if len(trees) > 1:
        document["subagent_trajectories"] = []
        for number, step in enumerate(steps):
            _add(step, {"turn": number})
    for tree in trees:
        if tree is not main:
            name = f"{episode_id(one)}.{tree[0]}"
            document["subagent_trajectories"].append(
                _finished(_shell(one, name) | {"extra": {OURS: {}}}, [steps[number] for number in tree])
            )
            before = [number for number in main if number < tree[0]]
            _refer(steps[before[-1]] if before else opening[-1], name)
    return _finished(document, [*opening, *(steps[number] for number in main)])


def _conversations(turns: tuple[Turn, ...]) -> list[list[int]]:
    """Return the numbers of the turns of each conversation, with all that continues it or starts from it."""
    trees: list[list[int]] = []
    tree_of: list[list[int]] = []
    for number, turn in enumerate(turns):
        parent = number - 1 if turn.parent is None else turn.parent
        if not 0 <= parent < number:
            trees.append([])
        tree = trees[-1] if not 0 <= parent < number else tree_of[parent]
        tree.append(number)
        tree_of.append(tree)
    return trees


def _shell(one: Trajectory, name: str) -> JsonObject:
    agent: JsonObject = {"name": one.policy.name or "swe-gym", "version": version("swe-gym")}
    if one.policy.model:
        agent["model_name"] = one.policy.model
    if one.tools:
        agent["tool_definitions"] = [tool.openai() for tool in one.tools]
    names = {"session_id": episode_id(one), "trajectory_id": name}
    shell: JsonObject = _encodable({"schema_version": WRITTEN, **names, "agent": agent})
    return shell


def _finished(document: JsonObject, steps: list[JsonObject]) -> JsonObject:
    """Number the steps, and add them and the final metrics to a document."""
    for number, step in enumerate(steps, 1):
        step["step_id"] = number
    document["steps"] = steps
    final = totals(AtifDocument.model_validate(document)).model_dump()
    document["final_metrics"] = {name: value for name, value in final.items() if value is not None}
    return document


def _opening(one: Trajectory) -> list[JsonObject]:
    """Return the steps before the first turn: the system prompt, if the policy recorded it, and the observation."""
    first = one.messages[0] if one.messages else {}
    system = first.get("content") if first.get("role") == "system" else None
    user: JsonObject = {"step_id": 0, "source": "user", "message": _encodable(one.observation)}
    steps = (
        [{"step_id": 0, "source": "system", "message": _encodable(system)}, user] if isinstance(system, str) else [user]
    )
    if _is_time(one.started):
        steps[0]["timestamp"] = one.started
    return steps


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _refer(step: JsonObject, name: str) -> None:
    """Refer to a subagent in the first result of a step."""
    calls = step.get("tool_calls", [])
    named = {"source_call_id": calls[0]["tool_call_id"]} if len(calls) == 1 else {}
    results = step.setdefault("observation", {"results": [named]})["results"]
    results[0].setdefault("subagent_trajectory_ref", []).append({"trajectory_id": name})


# --- steps --------------------------------------------------------------------------------------------------


class _Tokens(NamedTuple):
    """The tokens of a turn: an answer in a segment, and what is before it."""

    segment: Segment
    start: int
    end: int

    def metrics(self) -> JsonObject:
        """Return the fields of the metrics of the step."""
        segment, answer = self.segment, slice(self.start, self.end)
        extra: JsonObject = {
            "loss_mask": list(segment.loss_mask[answer]),
            "versions": list(segment.versions[answer]),
            "temperature": segment.temperature,
        }
        return {
            "prompt_token_ids": list(segment.token_ids[: self.start]),
            "completion_token_ids": list(segment.token_ids[answer]),
            "logprobs": list(segment.logprobs[answer]),
            "extra": extra | ({"side_call": True} if segment.side_call else {}),
        }


def _steps(one: Trajectory) -> list[JsonObject]:
    """Return the step of each turn, without number."""
    tokens = _tokens_of(one)
    return [_encodable(_step(number, turn, tokens.get(number))) for number, turn in enumerate(one.turns)]


def _step(number: int, turn: Turn, tokens: _Tokens | None) -> JsonObject:
    calls = [{"name": turn.tool, "arguments": turn.arguments}, *_more_calls(turn)] if turn.tool else []
    reasoning, message = _divided(turn)
    step: JsonObject = {"step_id": 0, "source": "agent", "message": message}
    if reasoning:
        step["reasoning_content"] = reasoning
    if calls:
        step["tool_calls"] = [
            {"tool_call_id": call_id(number, index), "function_name": call["name"], "arguments": call["arguments"]}
            for index, call in enumerate(calls)
        ]
    if turn.observation:
        named = {"source_call_id": call_id(number, 0)} if len(calls) == 1 else {}
        step["observation"] = {"results": [{**named, "content": turn.observation}]}
    if metrics := {**_metrics(turn.usage), **(tokens.metrics() if tokens else {})}:
        step["metrics"] = metrics
    if turn.usage.calls > 0:
        step["llm_call_count"] = turn.usage.calls
    return step


def _more_calls(turn: Turn) -> list[JsonObject]:
    """Return the calls behind the first one, as an agent's record has them."""
    found = turn.info.get("more_calls")
    calls = found if isinstance(found, list | tuple) else []
    whole = [
        isinstance(call, dict) and isinstance(call.get("name"), str) and isinstance(call.get("arguments"), dict)
        for call in calls
    ]
    return list(calls) if all(whole) else []


def _divided(turn: Turn) -> tuple[str, str]:
    """Return reasoning and message of a turn. A message does not repeat the call."""
    text = turn.thought if turn.tool else turn.action
    opened, closing, said = turn.action.partition("</think>")
    reasoning = opened.lstrip().removeprefix("<think>").strip()
    if not closing or not reasoning or not opened.lstrip().startswith("<think>"):
        return "", text
    if turn.tool:
        return (reasoning, text.removeprefix(reasoning).lstrip("\n")) if text.startswith(reasoning) else ("", text)
    return reasoning, said.lstrip("\n")


def _metrics(usage: Usage) -> JsonObject:
    """Return the metrics of a step; none if the server told no usage."""
    if not usage.tokens and usage.cost is None and (not usage.calls or usage.uncounted):
        return {}
    counts = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
    }
    metrics: JsonObject = {name: count for name, count in counts.items() if 0 <= count < MAX_COUNT}
    if usage.cost is not None and 0 <= usage.cost < math.inf:
        metrics["cost_usd"] = usage.cost
    return metrics


# --- tokens -------------------------------------------------------------------------------------------------


def _tokens_of(one: Trajectory) -> dict[int, _Tokens]:
    """Return the tokens of each turn by its number, if all tokens can be given to turns."""
    answers = [[_Tokens(segment, *run) for run in _runs(segment)] for segment in one.segments]
    return _by_length(one, answers) or _in_order(one, answers) or {}


def _runs(segment: Segment) -> Iterator[tuple[int, int]]:
    """Yield start and end of each answer in a segment: consecutive tokens with mask 1."""
    end = 0
    for mask, run in itertools.groupby(segment.loss_mask):
        start, end = end, end + len(list(run))
        if mask:
            yield start, end


def _by_length(one: Trajectory, answers: list[list[_Tokens]]) -> dict[int, _Tokens]:
    """Give each answer to the first turn whose usage has its numbers of tokens, one segment to one conversation."""
    tree_of = {number: index for index, tree in enumerate(_conversations(one.turns)) for number in tree}
    free = [number for number, turn in enumerate(one.turns) if turn.info.get("used") is not False]
    given: dict[int, _Tokens] = {}
    for row in answers:
        last = -1
        for answer in row:
            lengths = (answer.start, answer.end - answer.start)
            fitting = (
                number
                for number in free
                if number > last
                and number not in given
                and (last < 0 or tree_of[number] == tree_of[last])
                and lengths == (one.turns[number].usage.prompt_tokens, one.turns[number].usage.completion_tokens)
            )
            last = next(fitting, -1)
            if last < 0:
                return {}
            given[last] = answer
    return given


def _in_order(one: Trajectory, answers: list[list[_Tokens]]) -> dict[int, _Tokens]:
    """Give each answer to a turn if the turns are one conversation of as many answers, and tell no usage."""
    found = list(itertools.chain.from_iterable(answers))
    plain = len(found) == len(one.turns) and all(turn.parent is None and not turn.usage.tokens for turn in one.turns)
    return dict(enumerate(found)) if plain else {}


def _drop_tokens(step: JsonObject) -> None:
    """Remove token ids from a step, but not their numbers."""
    metrics = step.get("metrics", {})
    for name in ("prompt_token_ids", "completion_token_ids", "logprobs", "extra"):
        metrics.pop(name, None)
    if not metrics:
        step.pop("metrics", None)


UNSAFE = re.compile(r"[^A-Za-z0-9_.-]|\A\.")
"""Characters of an id that the name of a file does not have."""


def write_documents(documents: Iterator[JsonObject], path: Path) -> int:
    """Write each document to `ID/agent/trajectory.json` in a folder, or one to a `.json` file, or a list of several.

    Returns:
        The number of documents.

    Raises:
        UsageError: The name has another suffix, two documents would share a folder, or the folder is not empty.
    """
    if path.suffix == ".json":
        found = list(itertools.islice(documents, 2))
        if len(found) != 1:
            return write_table(itertools.chain(found, documents), path) if found else 0
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, _indented(found[0]))
        return 1
    if path.suffix or path.is_file():
        raise UsageError(f"{path}: the name must end in .jsonl or .json, or be that of a folder")
    if path.is_dir() and any(path.iterdir()):
        raise UsageError(f"{path}: the folder is not empty: name a new one")
    written: set[str] = set()
    for document in documents:
        name = UNSAFE.sub("_", document["trajectory_id"])
        if name in written:
            raise UsageError(f"{path / name}: two episodes have this name: write a .jsonl file instead")
        written.add(name)
        file = path / name / "agent" / "trajectory.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, _indented(document))
    return len(written)


def _indented(document: JsonObject) -> str:
    return json.dumps(document, indent=2) + "\n"
