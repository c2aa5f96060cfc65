"""Reads reasoning and tool calls in a sampled text. Anything else is content; nothing is an error."""

import contextlib
import json
import re
from collections.abc import Mapping, Sequence

from ..actions.arguments import convert_arguments
from ..actions.scan import Found, TooManyCalls, find_calls
from ..types import JsonMapping, JsonObject, ToolSpec
from .calls import new_id, tool_call

STYLES: Mapping[str, str] = {"hermes": "hermes", "qwen3_coder": "r2e", "llama": "json"}
"""How a family of models writes tool calls -> the format of actions that reads it.

- "hermes": `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as Hermes, Qwen 2.5 and Qwen 3.
- "qwen3_coder": `<function=NAME><parameter=KEY>VALUE</parameter></function>`, as Qwen3-Coder.
- "llama": `{"name": ..., "parameters": {...}}`, as Llama 3.
"""

_PYTHON_TAG = "<|python_tag|>"


def style_of(chat_template: str) -> str:
    """Return the style that a chat template teaches; "hermes" if it teaches none."""
    if "<function=" in chat_template:
        return "qwen3_coder"
    if "<tool_call>" in chat_template:
        return "hermes"
    return "llama" if _PYTHON_TAG in chat_template or '"parameters"' in chat_template else "hermes"


def read_message(text: str, tools: Sequence[JsonObject], style: str) -> JsonObject:
    """Return a sampled text as a message of OpenAI's chat API.

    Args:
        text: The text.
        tools: Tools of the call. Without tools there are no tool calls.
        style: One of `STYLES`.
    """
    reasoning, said = _split(text)
    found = _found(said, tools, style)
    message: JsonObject = {"role": "assistant", "content": _without(said, found)}
    if reasoning:
        message["reasoning_content"] = reasoning
    if found:
        message["tool_calls"] = [tool_call(new_id(9), one.name, _arguments(one, tools)) for one in found]
    return message


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


_THOUGHT = re.compile(r"\A\s*(?:<think>)?(.*?)</think>\s*", re.DOTALL)
"""A thought; chat templates often put the opening tag into the prompt."""


def _split(text: str) -> tuple[str, str]:
    """Return the reasoning and the rest."""
    if match := _THOUGHT.match(text):
        return match[1].strip(), text[match.end() :]
    if text.lstrip().startswith("<think>"):
        return text.lstrip().removeprefix("<think>").strip(), ""
    return "", text


def _found(text: str, tools: Sequence[JsonObject], style: str) -> list[Found]:
    if not tools:
        return []
    try:
        found = find_calls(text, [STYLES[style]]).found
    except (RecursionError, TooManyCalls):
        return []
    names = {tool["function"]["name"] for tool in tools}
    # Bare JSON is a call only if it names a tool; tags are meant as a call, and the agent explains the wrong name.
    return [one for one in found if not one.flaw and (style != "llama" or one.name in names)]


def _without(text: str, found: Sequence[Found]) -> str:
    """Return the text around the calls."""
    if not found:
        return text
    parts, start = [], 0
    for one in found:
        parts.append(text[start : one.start])
        start = max(start, one.end)
    parts.append(text[start:])
    texts = (part.replace(_PYTHON_TAG, "").strip(" \n;") for part in parts)
    return "\n".join(part for part in texts if part)


def _arguments(found: Found, tools: Sequence[JsonObject]) -> str:
    arguments: JsonMapping = found.arguments
    if found.format == "r2e":  # values are text: the tool's schema tells which are numbers
        with contextlib.suppress(Exception):  # the schema is the agent's, and it says what is wrong
            for spec in specs_of([tool for tool in tools if tool["function"]["name"] == found.name]):
                arguments = convert_arguments(spec, found.arguments)
    return json.dumps(arguments, ensure_ascii=False)
