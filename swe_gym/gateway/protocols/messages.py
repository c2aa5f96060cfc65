"""Anthropic's Messages."""

import json
from collections.abc import Callable, Iterator, Sequence

from ...types import Json, JsonObject
from ..calls import Answer, Call, Refusal, event
from ..parsing import arguments_of
from ..reading import (
    field,
    find_unread,
    function_tool,
    image_part,
    join_parts,
    make_tool_call,
    merge_messages,
    objects,
    refuse_fields,
    settings_of,
    token_limit,
)

PING = event({"type": "ping"}, "ping")
"""Event that keeps a stream alive."""

BILLING = "x-anthropic-billing-header:"
"""Start of a system block of Claude Code that differs in every request and says nothing to the model."""

SETTINGS = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "stop": "stop_sequences"}
"""Setting in chat completions -> its name."""

READ = frozenset("model system messages tools tool_choice max_tokens stream thinking".split()) | set(SETTINGS.values())
"""Fields that have an effect."""

TOOL = frozenset(("type", "name", "description", "input_schema"))
CHOICE = frozenset(("type", "name", "disable_parallel_tool_use"))
"""Fields of a tool, and of the choice of one, that have an effect."""

KNOWN = ("bash_", "text_editor_", "computer_", "memory_")
"""Starts of types of tools that the agent runs itself, without a schema: Anthropic's models know it."""

STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def read(body: JsonObject) -> Call:
    """Read a request.

    Raises:
        Refusal: It is invalid, or asks for something that is not supported.
    """
    refuse_fields(body, ("mcp_servers", "container"), "nothing runs on a provider's servers")
    given = objects(body, "messages")
    if not given:
        raise Refusal(400, "messages: at least one message is required")
    thinking = field(body, "thinking", dict, {})
    messages = [one for index, message in enumerate(given) for one in _messages(message, f"messages.{index}")]
    return Call(
        model=field(body, "model", str, ""),
        messages=merge_messages([*_system(body), *messages]),
        tools=[_tool(tool, f"tools.{index}") for index, tool in enumerate(objects(body, "tools"))],
        max_tokens=token_limit(body, "max_tokens"),
        stream=field(body, "stream", bool, False),
        settings=_settings(body),
        ignored={
            *(body.keys() - READ),
            *find_unread("tools", body.get("tools"), TOOL),
            *find_unread("tool_choice", body.get("tool_choice"), CHOICE),
            *find_unread("thinking", thinking, ("type",)),
        },
        flags={"thinking": thinking.get("type") in ("enabled", "adaptive")},
    )


def _settings(body: JsonObject) -> JsonObject:
    found: JsonObject = {"tool_choice": None, "parallel_tool_calls": None}
    choice = field(body, "tool_choice", dict, {})
    kind = choice.get("type")
    if kind == "tool":
        found["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    elif kind in ("any", "none"):
        found["tool_choice"] = "required" if kind == "any" else "none"
    elif kind not in (None, "auto"):
        raise Refusal(400, f"tool_choice.type: expected auto, any, tool or none, not {str(kind)[:60]!r}")
    if field(choice, "disable_parallel_tool_use", bool, False):
        found["parallel_tool_calls"] = False
    return settings_of({**body, **found}, {**SETTINGS, **{name: name for name in found}})


def _system(body: JsonObject) -> list[JsonObject]:
    system = field(body, "system", (str, list), "")
    if isinstance(system, list):
        blocks = [block for block in objects(body, "system") if not str(block.get("text")).startswith(BILLING)]
        system = join_parts([_block(block, "system") for block in blocks])
    return [{"role": "system", "content": system}] if system else []


def _tool(tool: JsonObject, where: str) -> JsonObject:
    kind = field(tool, "type", str, "custom")
    if kind.startswith(KNOWN):
        why = "is not supported: its schema is known to Anthropic's models only; send a tool with an input_schema"
        raise Refusal(400, f"{where}.type: the tool {kind[:60]!r} {why}")
    if kind != "custom":
        raise Refusal(400, f"{where}.type: the tool {kind[:60]!r} runs on Anthropic's servers only")
    return function_tool({**tool, "strict": None}, "input_schema", where)


def _messages(message: JsonObject, where: str) -> list[JsonObject]:
    """Return a message as messages of OpenAI's chat API: results of tools become messages of their own, first."""
    role = message.get("role")
    if role not in ("user", "assistant", "system"):
        raise Refusal(400, f"{where}.role: unknown role {str(role)[:60]!r}")
    content = field(message, "content", (str, list), "")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    blocks = objects(message, "content")
    if role == "assistant":
        return [_assistant(blocks, where)]
    found = [_result(block, where) for block in blocks if block.get("type") == "tool_result"]
    rest = [_block(block, where) for block in blocks if block.get("type") != "tool_result"]
    return [*found, {"role": role, "content": join_parts(rest)}] if rest or not found else found


def _assistant(blocks: Sequence[JsonObject], where: str) -> JsonObject:
    texts, thoughts, calls = [], [], []
    for block in blocks:
        kind = block.get("type")
        if kind == "text":
            texts.append(field(block, "text", str, ""))
        elif kind == "thinking":
            thoughts.append(field(block, "thinking", str, ""))
        elif kind == "tool_use":
            arguments = json.dumps(field(block, "input", dict, {}), ensure_ascii=False)
            calls.append(make_tool_call(field(block, "id", str, ""), field(block, "name", str, ""), arguments, where))
        elif kind != "redacted_thinking":
            raise Refusal(400, f"{where}: content of type {str(kind)[:60]!r} is not supported")
    message: JsonObject = {"role": "assistant", "content": "\n".join(texts) or None}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    return {**message, "tool_calls": calls} if calls else message


def _result(block: JsonObject, where: str) -> JsonObject:
    content = field(block, "content", (str, list), "")
    if isinstance(content, list):
        content = join_parts([_block(part, where) for part in objects(block, "content")])
    return {"role": "tool", "tool_call_id": field(block, "tool_use_id", str, ""), "content": content}


def _block(block: JsonObject, where: str) -> JsonObject:
    """Return a block as a part of OpenAI's chat API."""
    read_block = _BLOCKS.get(str(block.get("type")))
    if read_block is None:
        raise Refusal(400, f"{where}: content of type {str(block.get('type'))[:60]!r} is not supported")
    return read_block(block)


def _text(block: JsonObject) -> JsonObject:
    return {"type": "text", "text": field(block, "text", str, "")}


def _image(block: JsonObject) -> JsonObject:
    source = field(block, "source", dict, {})
    kind = source.get("type", "base64")
    if kind != "base64":
        raise Refusal(400, f"content: images with a source of type {str(kind)[:60]!r} are not supported; send base64")
    return image_part(source.get("media_type"), source.get("data"))


def _reference(block: JsonObject) -> JsonObject:
    return {"type": "text", "text": f"[tool {block.get('tool_name')} is now available]"}


_BLOCKS: dict[str, Callable[[JsonObject], JsonObject]] = {"text": _text, "image": _image, "tool_reference": _reference}


# --- answers -------------------------------------------------------------------------------------------------


def write(call: Call, answer: Answer) -> JsonObject:
    """Return the answer as the body of a response."""
    usage = {**_input(answer), "output_tokens": answer.usage.completion_tokens}
    return {**_head(call, answer), "content": _content(call, answer), **_stop(answer), "usage": usage}


def _head(call: Call, answer: Answer) -> JsonObject:
    return {"id": f"msg_{answer.id}", "type": "message", "role": "assistant", "model": call.model}


def _stop(answer: Answer) -> JsonObject:
    return {"stop_reason": STOPS[answer.finish], "stop_sequence": None}


def _input(answer: Answer) -> JsonObject:
    usage = answer.usage
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
    }


def _content(call: Call, answer: Answer) -> list[JsonObject]:
    blocks: list[JsonObject] = []
    if answer.reasoning and call.flags.get("thinking"):
        blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
    if answer.content or not answer.tool_calls:
        blocks.append({"type": "text", "text": answer.content})
    for one in answer.tool_calls:
        name = one["function"]["name"]
        blocks.append({"type": "tool_use", "id": one["id"], "name": name, "input": arguments_of(one)})
    return blocks


def events(call: Call, answer: Answer) -> Iterator[bytes]:
    """Yield the answer as events."""
    start = {**_head(call, answer), "content": [], "stop_reason": None, "stop_sequence": None}
    yield _event("message_start", message={**start, "usage": {**_input(answer), "output_tokens": 1}})
    for index, block in enumerate(_content(call, answer)):
        empty, deltas = _deltas(block)
        yield _event("content_block_start", index=index, content_block=empty)
        for delta in deltas:
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    yield _event("message_delta", delta=_stop(answer), usage={"output_tokens": answer.usage.completion_tokens})
    yield _event("message_stop")


def _deltas(block: JsonObject) -> tuple[JsonObject, list[JsonObject]]:
    """Return the empty block and what fills it."""
    if block["type"] == "tool_use":
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
    if block["type"] == "thinking":
        said = {"type": "thinking_delta", "thinking": block["thinking"]}
        return {**block, "thinking": ""}, [said, {"type": "signature_delta", "signature": ""}]
    return {"type": "text", "text": ""}, [{"type": "text_delta", "text": block["text"]}]


def _event(name: str, **data: Json) -> bytes:
    return event({"type": name, **data}, name)


def error(refusal: Refusal) -> JsonObject:
    """Return the body of an error."""
    return {"type": "error", "error": {"type": refusal.kind, "message": refusal.message}}


def error_event(refusal: Refusal) -> bytes:
    """Return an error inside a stream."""
    return event(error(refusal), "error")


def models(names: Sequence[str]) -> JsonObject:
    """Return the list of models."""
    ends = {"first_id": names[0], "last_id": names[-1]} if names else {"first_id": None, "last_id": None}
    return {"data": [model(name) for name in names], "has_more": False, **ends}


def model(name: str) -> JsonObject:
    """Return one model."""
    return {"type": "model", "id": name, "display_name": name, "created_at": "2025-01-01T00:00:00Z"}
