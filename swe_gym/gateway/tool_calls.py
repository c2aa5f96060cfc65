"""Reads reasoning and tool calls in a sampled text. Anything else is content; nothing is an error."""

import contextlib
import itertools
import json
from collections.abc import Iterator, Sequence

from ..actions import FoundCall, convert_arguments
from ..rollout.tokens import ChatTemplate
from ..types import JsonMapping, JsonObject, ToolSpec
from .call_formats import FORMATS, CallFormat, read_text, without_calls
from .calls import new_id, tool_call


def readings(
    text: str, tools: Sequence[JsonObject], style: str, *, opened: bool = False, parallel: bool = True
) -> Iterator[JsonObject]:
    """Yield a sampled text as a message of OpenAI's chat API, with less and more of the white space that it may have.

    Args:
        text: The text.
        tools: Tools of the call. Without tools there are no tool calls.
        style: How the model writes tool calls, one of `FORMATS`.
        opened: Whether the prompt has opened the reasoning.
        parallel: Whether a message may have several calls. Otherwise all but the first are left out.
    """
    form = FORMATS[style]
    reasoning, said, found = read_text(text, form, opened=opened)
    found = [one for one in found if _is_call(one, tools, style)]
    calls = [tool_call(new_id(9), one.name, _arguments(one, tools, form)) for one in found[: None if parallel else 1]]
    thoughts = dict.fromkeys([reasoning.strip(), reasoning.strip("\n"), reasoning])
    for content, thought in itertools.product(without_calls(said, found, form.wrapper), thoughts):
        message: JsonObject = {"role": "assistant", "content": content}
        if thought:
            message["reasoning_content"] = thought
        if calls:
            message["tool_calls"] = calls
        yield message


def parse_message(
    template: ChatTemplate, text: str, tools: Sequence[JsonObject], prompt: str, *, parallel: bool = True
) -> JsonObject:
    """Return a sampled text as the message that the tokenizer's response template reads in it.

    Args:
        template: Chat template of a tokenizer that has a response template.
        text: The text.
        tools: Tools of the call. Without tools there are no tool calls.
        prompt: The end of the prompt.
        parallel: Whether a message may have several calls.
    """
    try:
        found = template.parse(text, prompt, tools)
        calls = [_make_typed_call(one["function"]) for one in found.get("tool_calls") or ()] if tools else []
    except Exception:  # noqa: BLE001  it refuses calls that are not whole
        return {"role": "assistant", "content": text}
    message: JsonObject = {"role": "assistant", "content": str(found.get("content") or "")}
    thoughts = (found.get(name) for name in ("reasoning_content", "thinking", "reasoning"))
    if thought := next(filter(None, thoughts), ""):
        message["reasoning_content"] = str(thought)
    if calls:
        message["tool_calls"] = calls if parallel else calls[:1]
    return message


def _make_typed_call(function: JsonObject) -> JsonObject:
    arguments = function["arguments"]
    if not isinstance(arguments, dict):
        raise ValueError("the arguments are no JSON object")
    return tool_call(new_id(9), str(function["name"]), json.dumps(arguments, ensure_ascii=False, allow_nan=False))


def specs_of(tools: Sequence[JsonObject]) -> list[ToolSpec]:
    """Return tools in the form of this package."""
    functions = [tool["function"] for tool in tools]
    return [
        ToolSpec(
            name=function["name"],
            description=function.get("description") or "",
            parameters=function.get("parameters") or {"type": "object", "properties": {}},
        )
        for function in functions
    ]


def _is_call(found: FoundCall, tools: Sequence[JsonObject], style: str) -> bool:
    """Bare JSON is a call only if it names a tool; tags are meant as a call, and the agent explains the wrong name."""
    return bool(tools) and (style != "llama" or found.name in {tool["function"]["name"] for tool in tools})


def _arguments(found: FoundCall, tools: Sequence[JsonObject], form: CallFormat) -> str:
    arguments: JsonMapping = found.arguments
    if not form.typed:  # values are text: the tool's schema tells which are numbers
        with contextlib.suppress(Exception):  # the schema is the agent's, and it says what is wrong
            for spec in specs_of([tool for tool in tools if tool["function"]["name"] == found.name]):
                arguments = convert_arguments(spec, found.arguments)
    return json.dumps(arguments, ensure_ascii=False)
