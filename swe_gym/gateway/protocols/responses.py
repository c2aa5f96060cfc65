"""OpenAI's Responses."""

import itertools
import json
from collections.abc import Callable, Iterator, Sequence

from ...types import JsonObject
from ..calls import Answer, Call, Refusal, event
from ..parsing import arguments_of
from ..reading import (
    field,
    find_unread,
    function_tool,
    join_parts,
    make_tool_call,
    merge_messages,
    objects,
    refuse_fields,
    settings_of,
    token_limit,
)
from .chat import error, model, models

__all__ = ["PING", "error", "error_event", "events", "model", "models", "read", "write"]

PING = b": waiting for the model\n\n"
"""Comment that keeps a stream alive."""

SETTINGS = frozenset({"temperature", "top_p", "parallel_tool_calls", "tool_choice"})
"""Settings that chat completions have too."""

MCP = "mcp__"
"""Start of namespaces of MCP servers. Other namespaces hold tools of the agent that a model can do without."""

READ = frozenset("model instructions input tools max_output_tokens stream".split()) | SETTINGS
"""Fields that have an effect."""

TOOL = frozenset(("type", "name", "description", "parameters"))
"""Fields of a tool that have an effect."""


def read(body: JsonObject) -> Call:
    """Read a request.

    Raises:
        Refusal: It is invalid, or asks for something that is not supported.
    """
    stored = ("previous_response_id", "conversation", "background", "prompt")
    refuse_fields(body, stored, "nothing is stored; send the whole input")
    refuse_fields(body, ("top_logprobs",), "answers hold text and tool calls only")
    for one in field(body, "include", list, []):
        if "logprobs" in str(one):
            raise Refusal(
                400, f"include: {str(one)[:60]!r} is not supported, since answers hold text and tool calls only"
            )
    tools = objects(body, "tools")
    own = [tool for tool in tools if tool.get("type") in ("function", "custom")]
    spaces = {join_name(space, tool["name"]): (space, tool) for space, tool in _namespaced(tools)}
    return Call(
        model=field(body, "model", str, ""),
        messages=_messages(body),
        tools=[*map(_tool, own), *(_tool({**tool, "name": name}) for name, (_, tool) in spaces.items())],
        max_tokens=token_limit(body, "max_output_tokens"),
        stream=field(body, "stream", bool, False),
        settings=_settings(body),
        ignored={*(body.keys() - READ), *find_unread("tools", own, TOOL), *_left_out(tools)},
        flags={
            "custom": [tool["name"] for tool in tools if tool.get("type") == "custom"],
            "namespaces": {name: [space, tool["name"]] for name, (space, tool) in spaces.items()},
        },
    )


def _namespaced(tools: list[JsonObject]) -> Iterator[tuple[str, JsonObject]]:
    """Yield the tools of MCP servers, each with its namespace: Codex groups them by server."""
    for group in tools:
        name = field(group, "name", str, "")
        if group.get("type") == "namespace" and name.startswith(MCP):
            for tool in objects(group, "tools"):
                if tool.get("type") == "function" and isinstance(tool.get("name"), str):
                    yield name, tool


def _left_out(tools: Sequence[JsonObject]) -> set[str]:
    """Return the types of tools that run on a provider's servers, or that a model can do without."""
    kinds = {str(tool.get("type")) for tool in tools if not str(tool.get("name")).startswith(MCP)}
    return {f"tools.type={kind[:60]}" for kind in kinds - {"function", "custom"}}


def join_name(namespace: str, name: str) -> str:
    """Return the name of a tool of a namespace, as the model sees it."""
    return f"{namespace.rstrip('_')}__{name}"


def _settings(body: JsonObject) -> JsonObject:
    choice = field(body, "tool_choice", (str, dict))
    if isinstance(choice, dict):
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    given = {**body, "tool_choice": None if choice == "auto" else choice}
    return settings_of(given, {name: name for name in SETTINGS})


def _tool(tool: JsonObject) -> JsonObject:
    """Return a tool as in chat completions. A custom tool takes one text."""
    schema = field(tool, "parameters", dict)
    if tool["type"] == "custom":
        schema = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    return function_tool({**tool, "parameters": schema, "strict": None}, "parameters", "tools")


# --- input ---------------------------------------------------------------------------------------------------


def _messages(body: JsonObject) -> list[JsonObject]:
    instructions = field(body, "instructions", str)
    messages: list[JsonObject] = [{"role": "system", "content": instructions}] if instructions else []
    given = field(body, "input", (str, list))
    if not given:
        raise Refusal(400, "input: expected a text or a list of items")
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    for index, item in enumerate(objects(body, "input")):
        kind = field(item, "type", str, "message")
        read_item = _ITEMS.get(kind)
        if read_item is None:
            raise Refusal(400, f"input[{index}]: items of type {kind[:60]!r} are not supported")
        messages += read_item(item)
    return merge_messages(messages)


def _message(item: JsonObject) -> list[JsonObject]:
    role = item.get("role")
    if role not in ("system", "developer", "user", "assistant"):
        raise Refusal(400, f"input: unknown role {str(role)[:60]!r}")
    content = field(item, "content", (str, list), "")
    if isinstance(content, list):
        content = join_parts([_part(part) for part in objects(item, "content")])
    return [{"role": "system" if role == "developer" else role, "content": content}]


def _part(part: JsonObject) -> JsonObject:
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": field(part, "text", str, "")}
    if kind == "refusal":
        return part
    if kind == "input_image" and field(part, "image_url", str):
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    raise Refusal(400, f"input: content of type {str(kind)[:60]!r} is not supported")


def _read_call(item: JsonObject) -> list[JsonObject]:
    arguments = field(item, "arguments", str, "{}")
    if item["type"] == "custom_tool_call":
        arguments = json.dumps({"input": field(item, "input", str, "")}, ensure_ascii=False)
    name, space = field(item, "name", str, ""), field(item, "namespace", str, "")
    call = make_tool_call(
        field(item, "call_id", str, ""), join_name(space, name) if space else name, arguments, "input"
    )
    return [{"role": "assistant", "content": None, "tool_calls": [call]}]


def _output(item: JsonObject) -> list[JsonObject]:
    content = field(item, "output", (str, list, dict), "")
    if isinstance(content, list):
        content = join_parts([_part(part) for part in objects(item, "output")])
    elif isinstance(content, dict):
        content = json.dumps(content)
    return [{"role": "tool", "tool_call_id": field(item, "call_id", str, ""), "content": content}]


def _reasoning(item: JsonObject) -> list[JsonObject]:
    texts = [field(part, "text", str, "") for name in ("summary", "content") for part in objects(item, name)]
    said = "\n".join(filter(None, texts))
    return [{"role": "assistant", "content": None, "reasoning_content": said}] if said else []


_ITEMS: dict[str, Callable[[JsonObject], list[JsonObject]]] = {
    "message": _message,
    "function_call": _read_call,
    "custom_tool_call": _read_call,
    "function_call_output": _output,
    "custom_tool_call_output": _output,
    "reasoning": _reasoning,
}


# --- answers -------------------------------------------------------------------------------------------------


def write(call: Call, answer: Answer) -> JsonObject:
    """Return the answer as the body of a response."""
    usage = {
        "input_tokens": answer.usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": answer.usage.cached_tokens},
        "output_tokens": answer.usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.usage.tokens,
    }
    cut = answer.finish == "length"
    return {
        **_head(call, answer),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": _items(call, answer),
        "usage": usage,
    }


def _head(call: Call, answer: Answer) -> JsonObject:
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": 0,
        "model": call.model,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "output": [],
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": None,
    }


def _items(call: Call, answer: Answer) -> list[JsonObject]:
    items: list[JsonObject] = []
    if answer.reasoning:
        summary = [{"type": "summary_text", "text": answer.reasoning}]
        items.append({"id": f"rs_{answer.id}", "type": "reasoning", "summary": summary})
    if answer.content or not answer.tool_calls:
        text = {"type": "output_text", "text": answer.content, "annotations": []}
        said = {"type": "message", "role": "assistant", "status": "completed", "content": [text]}
        items.append({"id": f"msg_{answer.id}", **said})
    for index, one in enumerate(answer.tool_calls):
        name, common = one["function"]["name"], {"call_id": one["id"], "status": "completed"}
        if name in call.flags["custom"]:
            said = {"type": "custom_tool_call", "name": name, "input": str(arguments_of(one).get("input", ""))}
        else:
            said = {"type": "function_call", "name": name, "arguments": one["function"]["arguments"]}
            if name in call.flags["namespaces"]:
                said["namespace"], said["name"] = call.flags["namespaces"][name]
        items.append({"id": f"fc_{answer.id}_{index}", **said, **common})
    return items


def events(call: Call, answer: Answer) -> Iterator[bytes]:
    """Yield the answer as events."""
    whole = write(call, answer)
    for number, (name, data) in zip(itertools.count(), _events(_head(call, answer), whole), strict=False):
        yield event({"type": name, "sequence_number": number, **data}, name)


def _events(head: JsonObject, whole: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    yield "response.created", {"response": head}
    yield "response.in_progress", {"response": head}
    for index, item in enumerate(whole["output"]):
        where = {"item_id": item["id"], "output_index": index}
        empty, parts = _PARTS[item["type"]](item)
        yield "response.output_item.added", {"output_index": index, "item": {**item, **empty}}
        for name, data in parts:
            yield f"response.{name}", {**where, **data}
        yield "response.output_item.done", {"output_index": index, "item": item}
    yield f"response.{whole['status']}", {"response": whole}


_Parts = tuple[JsonObject, Sequence[tuple[str, JsonObject]]]
"""The fields of an empty item, and the events that fill it."""


def _text_parts(item: JsonObject) -> _Parts:
    (part,) = item["content"]
    where: JsonObject = {"content_index": 0}
    return {"content": [], "status": "in_progress"}, [
        ("content_part.added", {**where, "part": {**part, "text": ""}}),
        ("output_text.delta", {**where, "delta": part["text"], "logprobs": []}),
        ("output_text.done", {**where, "text": part["text"], "logprobs": []}),
        ("content_part.done", {**where, "part": part}),
    ]


def _reasoning_parts(item: JsonObject) -> _Parts:
    (part,) = item["summary"]
    where: JsonObject = {"summary_index": 0}
    return {"summary": []}, [
        ("reasoning_summary_part.added", {**where, "part": {**part, "text": ""}}),
        ("reasoning_summary_text.delta", {**where, "delta": part["text"]}),
        ("reasoning_summary_text.done", {**where, "text": part["text"]}),
        ("reasoning_summary_part.done", {**where, "part": part}),
    ]


def _call_parts(item: JsonObject) -> _Parts:
    name, key = ("custom_tool_call_input", "input") if "input" in item else ("function_call_arguments", "arguments")
    deltas: list[tuple[str, JsonObject]] = [(f"{name}.delta", {"delta": item[key]}), (f"{name}.done", {key: item[key]})]
    return {key: "", "status": "in_progress"}, deltas


_PARTS: dict[str, Callable[[JsonObject], _Parts]] = {
    "message": _text_parts,
    "reasoning": _reasoning_parts,
    "function_call": _call_parts,
    "custom_tool_call": _call_parts,
}


def error_event(refusal: Refusal) -> bytes:
    """Return an error inside a stream."""
    said = {"code": refusal.code or "server_error", "message": refusal.message}
    failed: JsonObject = {
        "id": "resp_failed",
        "object": "response",
        "status": "failed",
        "error": said,
        "output": [],
    }
    return event({"type": "response.failed", "sequence_number": 0, "response": failed}, "response.failed")
