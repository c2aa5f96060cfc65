"""Harbor's ATIF documents, as its agents write them or as `swe-gym export --to atif` does.

What a trajectory has no field for is kept under "atif" in `info`: of the turn of its step, or of the trajectory.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ...actions import render_call
from ...types import Frozen, JsonObject, ToolCall
from ..trajectory import PolicyInfo, Segment, Trajectory, Turn, Usage
from .atif import (
    OURS,
    WRITTEN,
    AtifAgent,
    AtifDocument,
    AtifMetrics,
    AtifStep,
    AtifTotals,
    SubagentRef,
    text_of_content,
)
from .chat import tool_spec

KEPT = "atif"
"""Name in `info` under which that is kept for which a trajectory has no field."""

OWNERS = ("turns", "verdict", "failure")
"""Fields of a trajectory that no document may set."""

TOKENS = ("loss_mask", "versions", "temperature", "side_call")
"""Our fields in the `extra` of metrics with tokens."""


def from_atif(row: JsonObject, name: str) -> Trajectory:
    """Return the trajectory of a document, its continuations and subagents.

    Steps of the agent are turns. Tokens become segments if they have log-probabilities: a prompt that continues earlier
    tokens extends their segment. A document has no reward, unless it is ours: `reward_valid` is False.

    Raises:
        KeyError, TypeError, ValueError: The row does not have this format, or holds what a trajectory cannot.
    """
    document = AtifDocument.model_validate(row)
    walk = _Walk()
    walk.document(document, ())
    answers = _in_order(walk.answers)
    places = {id(answer.step): number for number, answer in enumerate(answers)}
    turns = [answer.turn(number, places) for number, answer in enumerate(answers)]
    native: JsonObject = {
        "task_id": name,
        "started": document.steps[0].timestamp or "",
        "policy": PolicyInfo(
            name=document.agent.name,
            model=document.agent.model_name or "",
            options={"version": document.agent.version},
        ),
        "tools": tuple(tool_spec(spec) for spec in document.agent.tool_definitions or ()),
        "observation": "\n\n".join(_opening(document)),
        "segments": tuple(_segments(answers)),
        "messages": tuple(_messages(_last(document))),
        "outcome": "running",
        "reward_valid": False,
        "resolved": False,
        "reward": 0.0,
        "usage": sum((_usage(one.step) for one in answers), Usage()),  # as `to_atif` finds it
    }
    ours = _ours(document.extra, OWNERS)
    one = Trajectory.model_validate({**native, **ours, "turns": turns})
    kept = _kept_of(document, walk, episode_id(one) if ours else "")
    return one.model_copy(update={"info": _keep(one.info, kept)})


def _keep(info: JsonObject, kept: JsonObject) -> JsonObject:
    before = info.get(KEPT)
    return {**info, KEPT: {**(before if isinstance(before, dict) else {}), **kept}} if kept else info


def episode_id(one: Trajectory) -> str:
    """Return the id of the document of an episode."""
    return f"{one.task_id}.{one.attempt}"


def call_id(number: int, call: int) -> str:
    """Return the id of a call of our documents.

    Args:
        number: Number of the turn, from 0.
        call: Number of the call in the turn, from 0.
    """
    return f"call_{number}_{call}"


def totals(document: AtifDocument) -> AtifTotals:
    """Return the final metrics of a document: tokens of its own steps, cost with that of its subagents."""
    walk = _Walk()
    walk.document(document, ())
    own = sum((_usage(one.step) for one in walk.answers if one.place == 0), Usage())
    return AtifTotals(
        total_prompt_tokens=own.prompt_tokens,
        total_completion_tokens=own.completion_tokens,
        total_cached_tokens=own.cached_tokens,
        total_cost_usd=sum((_usage(one.step) for one in walk.answers), Usage()).cost,
        total_steps=len(document.steps),
    )


def _ours(extra: JsonObject | None, refused: Sequence[str] = ()) -> JsonObject:
    """Return our fields of an `extra`. They are JSON text if they hold half a surrogate pair, which UTF-8 cannot."""
    found = (extra or {}).get(OURS) or {}
    found = json.loads(found) if isinstance(found, str) else found
    if not isinstance(found, dict):
        raise TypeError(f"extra.{OURS} is not an object")
    if given := [name for name in refused if name in found]:
        raise ValueError(f"extra.{OURS}.{given[0]}: a document may not set this field")
    return found


def _dump(model: Frozen, *without: str) -> JsonObject:
    """Return the fields of a model that are set."""
    fields = model.model_dump(exclude=set(without))
    return {name: value for name, value in fields.items() if value is not None}


# --- walk ---------------------------------------------------------------------------------------------------


class _Answer(NamedTuple):
    """A step of an agent, with what followed it.

    Attributes:
        step: The step.
        before: The answer before it in its document; None if it is the first.
        place: Number of its document.
        model: Model of its document.
        then: Steps of the user and the system behind it.
        kept: Facts for `info`, by name.
        number: Number of its turn; None: in the order of the walk.
    """

    step: AtifStep
    before: _Answer | None
    place: int
    model: str | None
    then: list[AtifStep]
    kept: JsonObject
    number: int | None

    def turn(self, number: int, places: dict[int, int]) -> Turn:
        """Return the turn. `places` has the number of the turn of each step, by the step's id."""
        calls = [ToolCall(name=one.function_name, arguments=one.arguments) for one in self.step.tool_calls or ()]
        text, reasoning = text_of_content(self.step.message), self.step.reasoning_content or ""
        thoughts = [f"<think>\n{reasoning}\n</think>"] if reasoning else []
        native: JsonObject = {
            "action": "\n\n".join(filter(None, [*thoughts, text, *map(render_call, calls)])),
            "thought": "\n".join(filter(None, [reasoning, text])) if calls else "",
            "tool": calls[0].name if calls else "",
            "arguments": calls[0].arguments if calls else {},
            "observation": "\n\n".join(filter(None, [*_results(self.step), *map(_said, self.then)])),
            "info": {},
            "parent": self._parent(number, places),
            "usage": _usage(self.step),
        }
        if more := calls[1:]:
            native["info"] = {
                "calls": len(calls),
                "more_calls": [one.model_dump(include={"name", "arguments"}) for one in more],
            }
        ours = {name: value for name, value in _ours(self.step.extra).items() if name != "turn"}
        turn = Turn.model_validate({**native, **ours})
        kept = {**_kept(self.step, number, self.model), **self.kept}
        if then := [_dump(one) for one in self.then if _dump(one, "step_id", "source", "message")]:
            kept["then"] = then
        return turn.model_copy(update={"info": _keep(turn.info, kept)})

    def _parent(self, number: int, places: dict[int, int]) -> int | None:
        if self.before is None:
            return -1 if number else None
        before = places[id(self.before.step)]
        return None if before == number - 1 else before


class _Walk:
    """Finds the answers of a document and of those within it, each subagent behind the step that refers to it."""

    def __init__(self) -> None:
        self.answers: list[_Answer] = []
        self.silent: list[JsonObject] = []
        self._done: set[int] = set()

    def document(
        self,
        document: AtifDocument,
        around: tuple[AtifDocument, ...],
        before: _Answer | None = None,
        kept: JsonObject | None = None,
    ) -> None:
        """Add the answers of a document.

        Args:
            document: The document.
            around: The documents that it is in, the innermost last.
            before: The answer that it continues.
            kept: Facts for the info of its first turn; for `silent` if it has none.
        """
        if document.continued_trajectory_ref is not None and document.continuation is None:
            raise ValueError("continued_trajectory_ref: its file was not read")
        place = len(self._done)
        self._done.add(id(document))
        chain = (*around, document)
        for number, step in enumerate(document.steps):
            if _answers(step):
                before = _Answer(step, before, place, document.agent.model_name, [], kept or {}, _number(step))
                self.answers.append(before)
                kept = {}
            elif before is not None and step.is_copied_context:
                before.kept.setdefault("copied", []).append(_dump(step, "step_id"))
            elif before is not None:
                before.then.append(step)
            self._subagents(step, number, chain)
        self.silent += [kept] if kept else []
        for one in document.subagent_trajectories or ():
            if id(one) not in self._done:
                self.document(one, chain, kept=_introduction(one))
        if document.continuation is not None:
            self.document(document.continuation, around, before)

    def _subagents(self, step: AtifStep, number: int, chain: tuple[AtifDocument, ...]) -> None:
        for result in step.observation.results if step.observation else ():
            for ref in result.subagent_trajectory_ref or ():
                found = _find(ref, number, chain)
                if any(found is one for one in chain):
                    raise ValueError(f"steps.{number}: a subagent_trajectory_ref leads in a circle")
                if id(found) not in self._done:
                    self.document(found, chain, kept=_introduction(found))


def _find(ref: SubagentRef, number: int, chain: tuple[AtifDocument, ...]) -> AtifDocument:
    for name in filter(None, [ref.trajectory_id, ref.trajectory_path]):
        for document in reversed(chain):
            if document.trajectory_id == name:
                return document
            for one in document.subagent_trajectories or ():
                if one.trajectory_id == name:
                    return one
    raise ValueError(f"steps.{number}: a subagent_trajectory_ref names no trajectory of this document")


def _answers(step: AtifStep) -> bool:
    """Return whether a step is a turn: what was copied from another document is not."""
    return step.source == "agent" and not step.is_copied_context


def _number(step: AtifStep) -> int | None:
    found = _ours(step.extra).get("turn")
    if found is not None and (not isinstance(found, int) or isinstance(found, bool)):
        raise TypeError(f"steps.{step.step_id - 1}.extra.{OURS}.turn: not a number")
    return found


def _in_order(answers: list[_Answer]) -> list[_Answer]:
    numbers = [one.number for one in answers if one.number is not None]
    if not numbers:
        return answers
    if sorted(numbers) != list(range(len(answers))):
        raise ValueError(f"extra.{OURS}.turn: the numbers of the turns are not 0 to {len(answers) - 1}")
    return sorted(answers, key=lambda one: one.number or 0)


# --- texts --------------------------------------------------------------------------------------------------


def _text(step: AtifStep) -> str:
    return text_of_content(step.message)


def _results(step: AtifStep) -> list[str]:
    return [text_of_content(one.content) for one in step.observation.results] if step.observation else []


def _said(step: AtifStep) -> str:
    return "\n\n".join(filter(None, [_text(step), *_results(step)]))


def _before_answers(document: AtifDocument) -> list[AtifStep]:
    return list(itertools.takewhile(lambda step: not _answers(step), document.steps))


def _opening(document: AtifDocument) -> Iterator[str]:
    """Yield the texts of the user before the first turn, and what else is observed by then."""
    for step in _before_answers(document):
        if not step.is_copied_context:
            yield from filter(None, [_text(step) if step.source == "user" else "", *_results(step)])


def _last(document: AtifDocument) -> AtifDocument:
    while document.continuation is not None:
        document = document.continuation
    return document


def _messages(document: AtifDocument) -> Iterator[JsonObject]:
    """Yield the conversation of a document as in OpenAI's chat API."""
    for step in document.steps:
        if step.source != "agent":
            yield {"role": step.source, "content": _said(step)}
            continue
        said: JsonObject = {"role": "assistant", "content": _text(step)}
        if step.reasoning_content:
            said["reasoning_content"] = step.reasoning_content
        if step.tool_calls:
            said["tool_calls"] = [
                {
                    "id": one.tool_call_id,
                    "type": "function",
                    "function": {"name": one.function_name, "arguments": json.dumps(one.arguments)},
                }
                for one in step.tool_calls
            ]
        yield said
        for result in step.observation.results if step.observation else ():
            answer = {"role": "user", "content": text_of_content(result.content)}
            if result.source_call_id is not None:
                answer |= {"role": "tool", "tool_call_id": result.source_call_id}
            yield answer


# --- usage and tokens ---------------------------------------------------------------------------------------


def _usage(step: AtifStep) -> Usage:
    metrics = step.metrics or AtifMetrics()
    prompt, completion = (
        count if count is not None or ids is None else len(ids)
        for count, ids in (
            (metrics.prompt_tokens, metrics.prompt_token_ids),
            (metrics.completion_tokens, metrics.completion_token_ids),
        )
    )
    told = prompt is not None or completion is not None
    calls = step.llm_call_count if step.llm_call_count is not None else int(told)
    return Usage(
        prompt_tokens=prompt or 0,
        cached_tokens=metrics.cached_tokens or 0,
        completion_tokens=completion or 0,
        calls=calls,
        uncounted=0 if told else calls,
        cost=metrics.cost_usd,
    )


def _has_segment(metrics: AtifMetrics | None) -> bool:
    """Return whether tokens can be trained on. Without log-probabilities, a segment would claim that they are 0."""
    return bool(
        metrics
        and metrics.completion_token_ids
        and metrics.prompt_token_ids is not None
        and metrics.logprobs is not None
    )


class _TokenRow:
    """A segment that grows."""

    def __init__(self, place: int, temperature: float, side_call: bool) -> None:
        self.place, self.temperature, self.side_call = place, temperature, side_call
        self.ids: list[int] = []
        self.mask: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []

    def continues(self, place: int, prompt: list[int]) -> bool:
        """Return whether a prompt in a document begins with the tokens so far."""
        return self.place == place and prompt[: len(self.ids)] == self.ids

    def add(self, ids: list[int], mask: list[int], logprobs: list[float], versions: list[int]) -> None:
        """Add tokens."""
        self.ids += ids
        self.mask += mask
        self.logprobs += logprobs
        self.versions += versions

    def segment(self) -> Segment:
        """Return the segment."""
        return Segment(
            token_ids=tuple(self.ids),
            loss_mask=tuple(self.mask),
            logprobs=tuple(self.logprobs),
            versions=tuple(self.versions),
            temperature=self.temperature,
            side_call=self.side_call,
        )


def _segments(answers: Iterable[_Answer]) -> list[Segment]:
    rows: list[_TokenRow] = []
    for answer in answers:
        metrics = answer.step.metrics
        if metrics is None or not _has_segment(metrics):
            continue
        prompt, ids = metrics.prompt_token_ids or [], metrics.completion_token_ids or []
        extra = metrics.extra or {}
        kind = (_temperature(extra), extra.get("side_call") is True)
        row = next((one for one in reversed(rows) if one.continues(answer.place, prompt)), None)
        if row is None or (row.temperature, row.side_call) != kind:
            row = _TokenRow(answer.place, *kind)
            rows.append(row)
        told = prompt[len(row.ids) :]
        row.add(told, [0] * len(told), [0.0] * len(told), [-1] * len(told))
        mask, versions = _list(extra, "loss_mask", [1] * len(ids)), _list(extra, "versions", [0] * len(ids))
        row.add(ids, mask, metrics.logprobs or [], versions)
    return [row.segment() for row in rows]


def _temperature(extra: JsonObject) -> float:
    found = extra.get("temperature", 1.0)
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        raise ValueError("metrics.extra.temperature: not a number")
    return float(found)


def _list(extra: JsonObject, name: str, default: list[int]) -> list[int]:
    found = extra.get(name, default)
    if not isinstance(found, list) or len(found) != len(default):
        raise ValueError(f"metrics.extra.{name}: not a list of {len(default)} numbers")
    return found


# --- what is kept -------------------------------------------------------------------------------------------


def _kept(step: AtifStep, number: int, model: str | None) -> JsonObject:
    """Return what a turn has no field for."""
    kept = _dump(step, "step_id", "source", "message", "reasoning_content", "tool_calls", "observation", "metrics")
    kept.pop("llm_call_count", None)
    if kept.get("model_name") == model:
        kept.pop("model_name", None)
    _keep_extra(kept, (OURS,))
    if isinstance(step.message, list) and len(step.message) > 1:
        kept["message"] = [part.text for part in step.message]
    calls = [_dump_call(one.tool_call_id, one.extra) for one in step.tool_calls or ()]
    if calls != [{"tool_call_id": call_id(number, index)} for index in range(len(calls))]:
        kept["tool_calls"] = calls
    if results := _kept_results(step):
        kept["results"] = results
    if step.metrics and (metrics := _kept_metrics(step.metrics)):
        kept["metrics"] = metrics
    return kept


def _dump_call(name: str, extra: JsonObject | None) -> JsonObject:
    return {"tool_call_id": name, **({"extra": extra} if extra else {})}


def _keep_extra(kept: JsonObject, without: Sequence[str]) -> None:
    """Drop the fields of an `extra` that have a place."""
    if "extra" in kept:
        kept["extra"] = {name: value for name, value in kept["extra"].items() if name not in without}
        if not kept["extra"]:
            del kept["extra"]


def _kept_results(step: AtifStep) -> list[JsonObject]:
    """Return the results of a step, unless the observation and the order of the turns tell all of them."""
    results = step.observation.results if step.observation else []
    single = [step.tool_calls[0].tool_call_id] if step.tool_calls and len(step.tool_calls) == 1 else [None]
    plain = all(
        not one.extra
        and (one.content is None or isinstance(one.content, str))
        and all(_dump(ref).keys() == {"trajectory_id"} for ref in one.subagent_trajectory_ref or ())
        for one in results
    )
    if plain and [one.source_call_id for one in results] in ([], single):
        return []
    return [
        _dump(one)
        | ({"subagent_trajectory_ref": list(map(_dump, refs))} if (refs := one.subagent_trajectory_ref) else {})
        for one in results
    ]


def _kept_metrics(metrics: AtifMetrics) -> JsonObject:
    kept = _dump(metrics, "prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd")
    if _has_segment(metrics):
        for name in ("prompt_token_ids", "completion_token_ids", "logprobs"):
            kept.pop(name, None)
        _keep_extra(kept, TOKENS)
    return kept


def _introduction(document: AtifDocument) -> JsonObject:
    """Return what is kept of a subagent's document in its first turn: all but its answers."""
    ours = OURS in (document.extra or {})
    about = _about(document, document.trajectory_id or "" if ours else "")
    if ours:
        about.pop("session_id", None)
    elif document.final_metrics is not None:
        about["final_metrics"] = _dump(document.final_metrics)
    if opening := [_dump(step, "step_id") for step in _before_answers(document)]:
        about["opening"] = opening
    return {"subagent": about} if about else {}


def _about(document: AtifDocument, own_id: str) -> JsonObject:
    """Return the fields of a document beside its steps. `own_id` is the id that it has if it is ours."""
    kept = document.model_dump(exclude={"steps", "subagent_trajectories", "continuation", "final_metrics"})
    kept = {name: value for name, value in kept.items() if value is not None}
    _keep_extra(kept, (OURS,))
    if own_id:
        ours = {"schema_version": WRITTEN, "trajectory_id": own_id, "agent": kept["agent"]}
        kept = {name: value for name, value in kept.items() if ours.get(name) != value}
    return kept


def _kept_of(document: AtifDocument, walk: _Walk, own_id: str) -> JsonObject:
    """Return what a trajectory has no field for."""
    kept = _about(document, own_id)
    if own_id and kept.get("session_id") == own_id:
        del kept["session_id"]
    kept.pop("agent", None)
    if agent := _kept_agent(document.agent):
        kept["agent"] = agent
    if document.final_metrics is not None and document.final_metrics != totals(document):
        kept["final_metrics"] = _dump(document.final_metrics)
    opening = [_dump(one, "step_id", "source", "message", "observation") for one in _before_answers(document)]
    if opening:
        opening[0].pop("timestamp", None)
    if any(opening):
        kept["opening"] = [_dump(one) for one in _before_answers(document)]
    if walk.silent:
        kept["subagents"] = walk.silent
    following, after = document.continuation, []
    while following is not None:
        after.append(_about(following, "") | {"final_metrics": _dump(following.final_metrics or AtifTotals())})
        following = following.continuation
    return kept | ({"continuations": after} if after else {})


def _kept_agent(agent: AtifAgent) -> JsonObject:
    """Return what a trajectory has no field for."""
    kept = _dump(agent, "name", "version", "model_name")
    specs = agent.tool_definitions or []
    if [tool_spec(spec).openai() for spec in specs] == specs:
        kept.pop("tool_definitions", None)
    return kept
