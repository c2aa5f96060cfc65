"""OpenAI's chat completions."""

from collections.abc import Iterator, Sequence

from ...trajectories import Usage
from ...types import JsonObject
from ..calls import Answer, Call, Refusal, event
from ..reading import (
    SETTINGS,
    field,
    find_unread,
    function_tool,
    join_parts,
    make_tool_call,
    objects,
    refuse_fields,
    refuse_modalities,
    settings_of,
    token_limit,
)

PING = b": waiting for the model\n\n"
"""Comment that keeps a stream alive."""

READ = frozenset("model messages tools max_completion_tokens max_tokens stream stream_options n".split()) | SETTINGS
"""Fields that have an effect."""

FUNCTION = frozenset(("name", "description", "parameters", "strict"))
"""Fields of a tool's function that have an effect."""


def read(body: JsonObject) -> Call:
    """Read a request.

    Raises:
        Refusal: It is invalid, or asks for something that is not supported.
    """
    if field(body, "n", int, 1) != 1:
        raise Refusal(400, "n: only 1 is supported")
    refuse_fields(body, ("functions", "function_call"), "they are deprecated; use tools")
    refuse_fields(body, ("logprobs", "top_logprobs", "audio"), "answers hold text and tool calls only")
    refuse_fields(body, ("web_search_options",), "nothing runs on a provider's servers")
    refuse_modalities(body, "modalities")
    tools, stream = objects(body, "tools"), field(body, "stream_options", dict, {})
    return Call(
        model=field(body, "model", str, ""),
        messages=read_messages(objects(body, "messages")),
        tools=read_tools(tools),
        max_tokens=token_limit(body, "max_completion_tokens", "max_tokens"),
        stream=field(body, "stream", bool, False),
        settings=settings_of(body, {name: name for name in SETTINGS}),
        ignored={
            *(body.keys() - READ),
            *find_unread("stream_options", stream, ("include_usage",)),
            *find_unread("tools", tools, ("type", "function")),
            *find_unread("tools.function", [tool.get("function") for tool in tools], FUNCTION),
        },
        flags={"usage": bool(stream.get("include_usage"))},
    )


def read_messages(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """Check messages, and join contents of text parts.

    Raises:
        Refusal: There is none, or one is invalid.
    """
    if not messages:
        raise Refusal(400, "messages: expected at least one message")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: JsonObject, where: str) -> JsonObject:
    role = message.get("role")
    if role not in ("system", "developer", "user", "assistant", "tool"):
        raise Refusal(400, f"{where}.role: unknown role {str(role)[:60]!r}")
    content = field(message, "content", (str, list))
    if isinstance(content, list):
        content = join_parts(objects(message, "content"))
    if role == "assistant":
        refuse_fields(message, ("audio",), "nothing is stored; send its transcript", f"{where}.")
        refuse_fields(message, ("function_call",), "it is deprecated; use tool_calls", f"{where}.")
        content = content or field(message, "refusal", str) or content
    kept = {name: value for name in _KEPT if (value := field(message, name, str)) is not None}
    calls = [_tool_call(call, where) for call in objects(message, "tool_calls")] if role == "assistant" else []
    if calls:
        kept["tool_calls"] = calls
    return {**kept, "role": "system" if role == "developer" else role, "content": content}


_KEPT = ("name", "tool_call_id", "reasoning_content", "reasoning")


def _tool_call(call: JsonObject, where: str) -> JsonObject:
    function = field(call, "function", dict, {})
    return make_tool_call(call.get("id"), function.get("name"), function.get("arguments") or "", where)


def read_tools(tools: Sequence[JsonObject]) -> list[JsonObject]:
    """Check tools.

    Raises:
        Refusal: One is not a function with a name.
    """
    return [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]


def _tool(tool: JsonObject, where: str) -> JsonObject:
    kind = field(tool, "type", str, "function")
    if kind != "function":
        raise Refusal(400, f"{where}.type: tools of type {kind[:60]!r} are not supported")
    return function_tool(field(tool, "function", dict, {}), "parameters", where)


# --- answers -------------------------------------------------------------------------------------------------


def write(call: Call, answer: Answer) -> JsonObject:
    """Return the answer as the body of a response."""
    message = {"role": "assistant", "content": answer.content or None, "refusal": None, **_extras(answer)}
    if answer.tool_calls:
        message["tool_calls"] = answer.tool_calls
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": answer.finish}
    return {**_head(call, answer, "chat.completion"), "choices": [choice], "usage": _usage(answer.usage)}


def events(call: Call, answer: Answer) -> Iterator[bytes]:
    """Yield the answer as events."""
    head = _head(call, answer, "chat.completion.chunk")
    deltas: list[JsonObject] = [{"role": "assistant", "content": ""}]
    if answer.reasoning:
        deltas.append(_extras(answer))
    if answer.content:
        deltas.append({"content": answer.content})
    deltas += [{"tool_calls": [{"index": index, **call}]} for index, call in enumerate(answer.tool_calls)]
    for delta in deltas:
        yield event({**head, "choices": [_choice(delta, None)]})
    yield event({**head, "choices": [_choice({}, answer.finish)]})
    if call.flags.get("usage"):
        yield event({**head, "choices": [], "usage": _usage(answer.usage)})
    yield b"data: [DONE]\n\n"


def _extras(answer: Answer) -> JsonObject:
    return {"reasoning_content": answer.reasoning} if answer.reasoning else {}


def _choice(delta: JsonObject, finish: str | None) -> JsonObject:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}


def _head(call: Call, answer: Answer, kind: str) -> JsonObject:
    return {"id": f"chatcmpl-{answer.id}", "object": kind, "created": 0, "model": call.model}


def _usage(usage: Usage) -> JsonObject:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def error(refusal: Refusal) -> JsonObject:
    """Return the body of an error."""
    kind = "invalid_request_error" if 400 <= refusal.status < 500 else "server_error"
    return {"error": {"message": refusal.message, "type": kind, "param": None, "code": refusal.code or None}}


def error_event(refusal: Refusal) -> bytes:
    """Return an error inside a stream."""
    return event(error(refusal))


def models(names: Sequence[str]) -> JsonObject:
    """Return the list of models."""
    return {"object": "list", "data": [model(name) for name in names]}


def model(name: str) -> JsonObject:
    """Return one model."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "swe-gym"}
