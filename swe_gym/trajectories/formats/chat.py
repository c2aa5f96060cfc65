"""Conversations: for supervised fine-tuning and preference learning, and as SFT datasets and debug-gym have them."""

import contextlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence

from ...actions import FORMATS, FoundCall, TooManyCalls, find_calls, render_call
from ...files import decode_column
from ...types import Json, JsonObject, ToolCall, ToolSpec
from ..trajectory import PolicyInfo, Trajectory, Turn

Message = JsonObject


def conversation(one: Trajectory) -> list[Message]:
    """Return the episode as messages of OpenAI's chat API. The last message is the policy's.

    If the policy recorded its messages, they are returned. Otherwise, observations become user messages and actions
    become assistant messages.
    """
    if one.messages:
        return [dict(message) for message in one.messages]
    messages = [{"role": "user", "content": one.observation}]
    for turn in one.turns:
        messages.append({"role": "assistant", "content": turn.action})
        messages.append({"role": "user", "content": turn.observation})
    return messages[:-1] if one.turns else messages


def _is_whole(one: Trajectory) -> bool:
    """Return whether all answers are the policy's: those before a branch are its parent's."""
    return not one.parent


def to_sft(trajectories: Iterable[Trajectory]) -> Iterator[JsonObject]:
    """Yield rows for SFT trainers of chat models: `messages`, and `tools` if calls went through the API.

    Filter the trajectories first: only resolved ones are good examples. `reward` and `resolved` are None if the reward
    is not valid. Episodes that started from a checkpoint are omitted: a trainer would learn the answers before it too.
    """
    for one in filter(_is_whole, trajectories):
        messages = conversation(one)
        row: JsonObject = {"messages": messages}
        if any(message.get("tool_calls") for message in messages):
            row["tools"] = [tool.openai() for tool in one.tools]
        row |= {"task_id": one.task_id, "attempt": one.attempt}
        judged = {"reward": one.reward, "resolved": one.resolved}
        yield row | (judged if one.reward_valid else dict.fromkeys(judged))


def to_preferences(trajectories: Iterable[Trajectory]) -> Iterator[JsonObject]:
    """Yield pairs of attempts at one task with different rewards: `prompt`, `chosen`, `rejected`.

    The best attempt is paired with the worst, the second best with the second worst, and so on while their rewards
    differ. Episodes without a valid reward, and those that `to_sft` leaves out, are omitted. All trajectories are held
    in memory.
    """
    tasks: dict[str, list[Trajectory]] = {}
    for one in trajectories:
        if one.reward_valid and one.turns and _is_whole(one):
            tasks.setdefault(one.task_id, []).append(one)
    for task_id, attempts in tasks.items():
        ranked = sorted(attempts, key=lambda one: (-one.reward, len(one.turns), one.attempt))
        for chosen, rejected in zip(ranked[: len(ranked) // 2], reversed(ranked), strict=False):
            if chosen.reward > rejected.reward:
                yield _pair(task_id, chosen, rejected)


def _pair(task_id: str, chosen: Trajectory, rejected: Trajectory) -> JsonObject:
    good, bad = conversation(chosen), conversation(rejected)
    same = itertools.takewhile(
        lambda pair: pair[0] == pair[1] and pair[0]["role"] != "assistant", zip(good, bad, strict=False)
    )
    shared = len(list(same))
    return {
        "prompt": good[:shared],
        "chosen": good[shared:],
        "rejected": bad[shared:],
        "task_id": task_id,
        "chosen_attempt": chosen.attempt,
        "rejected_attempt": rejected.attempt,
        "chosen_reward": chosen.reward,
        "rejected_reward": rejected.reward,
    }


FENCES = ("bash",)
"""Formats that count as calls only if a conversation has no other calls."""


def from_messages(row: JsonObject, name: str) -> Trajectory:
    """Return the trajectory of a conversation: the opening messages, then the assistant's turns and the replies.

    `messages` and `tools` may be JSON text. If no calls went through the API, calls are parsed from the text, in any
    action format. A field `resolved` or `reward` holds the result; without one, `reward_valid` is False.

    Raises:
        KeyError, TypeError, ValueError: The row does not have this format.
    """
    messages = [_drop_empty(message) for message in decode_column(row["messages"]) or ()]
    starts = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    opening = messages[: starts[0]] if starts else messages
    bounds = zip(starts, [*starts[1:], len(messages)], strict=True)
    formats = _formats([messages[start] for start in starts])
    turns = [_turn(messages[start], messages[start + 1 : end], formats) for start, end in bounds]
    given = number(row.get("reward"))
    known = given is not None or row.get("resolved") is not None
    reward = float(bool(row.get("resolved"))) if given is None else given
    return Trajectory(
        task_id=str(row.get("task_id") or row.get("instance_id") or name),
        attempt=int(row.get("attempt") or 0),
        policy=PolicyInfo(model=str(row.get("model") or "")),
        tools=tuple(tool_spec(spec) for spec in decode_column(row.get("tools")) or ()),
        observation="\n\n".join(text_of(message) for message in opening if message["role"] == "user"),
        turns=end_episode(turns, reward=reward, submitted=True) if known else tuple(turns),
        messages=tuple(messages),
        outcome="submitted" if known else "running",
        reason="submit" if known else "",
        reward_valid=known,
        resolved=known and bool(row.get("resolved", reward == 1.0)),
        reward=reward,
    )


def number(value: Json) -> float | None:
    """Return a reward or a time as a number. Missing values of tables (NaN) become None.

    Raises:
        TypeError, ValueError: The value is not a number.
    """
    found = None if value is None else float(value)
    return None if found is None or not math.isfinite(found) else found


def end_episode(turns: Sequence[Turn], *, reward: float, submitted: bool) -> tuple[Turn, ...]:
    """Return the turns of a finished episode, with its reward in the last one."""
    last = {"reward": reward, "terminated": submitted, "truncated": not submitted}
    return (*turns[:-1], *(turn.model_copy(update=last) for turn in turns[-1:]))


def _drop_empty(message: JsonObject) -> JsonObject:
    """Return the message without fields that are None because all rows of a table have the same fields."""
    return {key: value for key, value in message.items() if value is not None or key in ("role", "content")}


def text_of(message: JsonObject) -> str:
    """Return the text of a message, whose content may be a list of parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content)


# --- turns --------------------------------------------------------------------------------------------------


def _formats(spoken: Sequence[JsonObject]) -> tuple[str, ...]:
    """Return the formats of calls in the text of a conversation; none if calls went through the API."""
    if any(message.get("tool_calls") for message in spoken):
        return ()
    others = tuple(name for name in FORMATS if name not in FENCES)
    return others if any(first_call(text_of(message), others) for message in spoken) else FENCES


def first_call(text: str, formats: tuple[str, ...]) -> FoundCall | None:
    """Return the first valid call in a text, in one of these formats."""
    try:
        found = find_calls(text, formats).found
    except TooManyCalls:
        return None
    return next((one for one in found if not one.flaw), None)


def _turn(message: JsonObject, answers: list[JsonObject], formats: tuple[str, ...]) -> Turn:
    text = text_of(message)
    observation = "\n\n".join(text_of(answer) for answer in answers)
    calls = [_call(call["function"], call.get("id")) for call in message.get("tool_calls") or []]
    if calls:  # a turn has one call; its text holds all of them
        _, tool, arguments = calls[0]
        action = "\n\n".join(filter(None, [text, *(written for written, _, _ in calls)]))
        return Turn(action=action, thought=text, tool=tool, arguments=arguments, observation=observation)
    call = first_call(text, formats) if formats else None
    if call is None:
        return Turn(action=text, observation=observation)
    thought = "\n".join(filter(None, [text[: call.start].strip(), text[call.end :].strip()]))
    return Turn(
        action=text,
        thought=thought,
        tool=call.name or call.format,
        arguments=dict(call.arguments),
        observation=observation,
    )


def _call(function: JsonObject, call_id: str | None) -> tuple[str, str, JsonObject]:
    """Return a call as text, its tool and its arguments. The tool is empty if the arguments are not an object."""
    name, arguments = function["name"], function["arguments"]
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):
            arguments = json.loads(arguments)
    if not isinstance(arguments, dict):
        return json.dumps({"name": name, "arguments": function["arguments"]}), "", {}
    return render_call(ToolCall(name=name, arguments=arguments, call_id=call_id)), name, arguments


def tool_spec(spec: Json) -> ToolSpec:
    """Return a tool from the format of OpenAI's API, of Anthropic's, or of debug-gym ("bash({...})")."""
    if isinstance(spec, str):
        return ToolSpec(name=spec.partition("(")[0], description="", parameters={})
    function = spec.get("function", spec)
    return ToolSpec(
        name=function["name"],
        description=function.get("description") or "",
        parameters=function.get("parameters") or function.get("input_schema") or function.get("arguments") or {},
    )
