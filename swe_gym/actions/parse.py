"""Parses an action: picks the call, checks it against the tools, and explains errors to the policy."""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from ..errors import ActionError, UsageError, unknown_name
from ..types import Action, ToolCall, ToolSpec
from .arguments import convert_arguments, shell_tool, suggest_name
from .render import DEFAULT_FORMAT, example_call, example_text, render_call, require_shell
from .scan import FORMATS, MAX_MARKERS, FoundCall, TooManyCalls, calls_in, find_calls, read_json

Several = Literal["first", "last", "error"]

WITHOUT_FENCE = tuple(name for name in FORMATS if name != "bash")

MAX_MESSAGE = 800
"""Maximum length of an `ActionError` in characters."""

_MAX_REASON = 270
_MAX_ECHO = 220
_MAX_EXAMPLE = 250


def parse_action(
    action: str | Mapping[str, object], tools: Sequence[ToolSpec], *, format: str = "auto", several: Several = "first"
) -> Action:
    """Parse the tool call of an action.

    Args:
        action: The policy's text, or a message (or one tool call) of an OpenAI-like API as a mapping.
        tools: Tools of the policy.
        format: One of `FORMATS`, or "auto": if a text holds calls in several formats, the first of `FORMATS` wins.
        several: Call to take if there are several: the first, the last, or none ("error").

    Raises:
        ActionError: The action holds no valid call. The message says why in at most `MAX_MESSAGE` characters and shows
            a valid call.
        UsageError: `format` or `several` is unknown, or the format is "bash" and there is no shell tool.
    """
    _check_options(tools, format, several)
    try:
        return _parse(action, tools, format, several)
    except ActionError as error:
        raise ActionError(_clean(str(error))[:MAX_MESSAGE]) from None


def _check_options(tools: Sequence[ToolSpec], format: str, several: str) -> None:
    if format not in ("auto", *FORMATS):
        raise unknown_name("action format", str(format), ("auto", *FORMATS))
    if several not in get_args(Several):
        raise unknown_name("value of several", str(several), get_args(Several))
    if format == "bash":
        require_shell(tools)


def _parse(action: object, tools: Sequence[ToolSpec], format: str, several: str) -> Action:
    text, found = _find_in(action, tools, format)
    if several == "error" and len(found) > 1:
        raise ActionError(f"The action holds {len(found)} calls. Write exactly one.")
    chosen = found[-1 if several == "last" else 0]
    if chosen.format == "bash" and not chosen.flaw and (shell := shell_tool(tools)):
        chosen = dataclasses.replace(chosen, name=shell[0].name, arguments={shell[1]: chosen.arguments["command"]})
    echo = text[chosen.start : chosen.end] if chosen.end else ""
    if chosen.flaw:
        raise ActionError(_lesson(f"This is not a valid call. {chosen.flaw}", echo, tools, chosen))
    spec = next((spec for spec in tools if spec.name == chosen.name), None)
    if spec is None:
        hint = suggest_name(chosen.name, [spec.name for spec in tools])
        raise ActionError(_lesson(f"There is no tool {chosen.name[:60]!r}.{hint}", echo, tools, chosen))
    try:
        arguments = convert_arguments(spec, chosen.arguments)
    except ActionError as error:
        raise ActionError(_lesson(str(error), echo, [spec], chosen)) from None
    return Action(
        call=ToolCall(name=spec.name, arguments=arguments, call_id=_clean(chosen.call_id) if chosen.call_id else None),
        thought=_clean(_around(text, chosen)),
        format=chosen.format,
        ignored_calls=len(found) - 1,
    )


def _around(text: str, found: FoundCall) -> str:
    parts = [text[: found.start].strip(), text[found.end :].strip()]
    return "\n".join(part for part in parts if part)


_SURROGATES = re.compile("[\ud800-\udfff]")


def _clean(text: str) -> str:
    """Replace lone surrogates by U+FFFD, so that the text can be written as UTF-8."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


# --- calls ------------------------------------------------------------------------------


def _find_in(action: object, tools: Sequence[ToolSpec], format: str) -> tuple[str, list[FoundCall]]:
    """Return the text of the action and the calls in it, at least one and all in one format."""
    text = action = _message_in(action) if isinstance(action, str) and format in ("auto", "openai") else action
    if isinstance(action, Mapping):
        text, found = _read_message(action, format)
        if found:
            return text, found
    if not isinstance(text, str):
        raise ActionError(f"An action is text or a message with tool_calls, not {type(action).__name__}.")
    try:
        scan = find_calls(text, _formats_in(text, tools) if format == "auto" else (format,))
    except TooManyCalls:
        raise ActionError(
            f"The action is too long: more than {MAX_MARKERS} places in it could begin a call. Write exactly one."
        ) from None
    if not scan.found:
        raise ActionError(_no_call(text, scan.open_think, tools, format))
    if len(scan.found) == 1:
        return text, scan.found
    best = min((one.format for one in scan.found), key=FORMATS.index)
    return text, [one for one in scan.found if one.format == best]


def _formats_in(text: str, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
    """Return the formats to look for: that of fences only if the text has one, and a tool runs it."""
    return FORMATS if "```" in text and shell_tool(tools) else WITHOUT_FENCE


def _no_call(text: str, open_think: bool, tools: Sequence[ToolSpec], format: str) -> str:
    if not text.strip():
        why = "The action is empty."
    elif open_think:
        why = "The action ends inside <think>: close it with </think>, then write the call."
    else:
        why = "The action holds no tool call."
        other = "" if format == "auto" else _find_format(text)
        if other:
            why = f"The action holds a call in the format {other!r}, which is not read here; the format is {format!r}."
    return _lesson(why, text[-_MAX_ECHO:] if open_think else "", tools, FoundCall(format))


def _find_format(text: str) -> str:
    beginning = text[:20_000]  # enough for a hint
    try:
        return next((found.format for found in find_calls(beginning, FORMATS).found), "")
    except TooManyCalls:
        return ""


_MESSAGE = re.compile(r"\s*+\{\s*+\"(?:role|content|reasoning_content|reasoning|tool_calls)\"")


def _message_in(text: str) -> str | Mapping[str, object]:
    """Return the message if the text is the JSON of one, else the text itself."""
    value, flaw = read_json(text) if _MESSAGE.match(text) else (None, "")
    return value if isinstance(value, dict) and not flaw else text


def _read_message(message: Mapping[str, object], format: str) -> tuple[str, list[FoundCall]]:
    """Return the text of a message and its tool calls."""
    try:
        written = json.dumps(dict(message), default=_as_dict)
    except (TypeError, ValueError, RecursionError) as error:
        raise ActionError(f"The action is a mapping but not a JSON object: {error}") from None
    value, flaw = read_json(written)
    if flaw:
        raise ActionError(f"The action is a mapping but not a JSON object. {flaw}")
    parts = (_text_of(value.get(key)) for key in ("reasoning_content", "reasoning", "content"))
    text = "\n".join(part for part in parts if part)
    if format not in ("auto", "openai"):
        return text, []
    return text, [dataclasses.replace(one, format="openai") for one in calls_in(value)]


def _as_dict(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "\n".join(text for text in texts if isinstance(text, str))


# --- messages to the policy ----------------------------------------------------------------------------


def _lesson(what: str, echo: str, tools: Sequence[ToolSpec], found: FoundCall) -> str:
    """Return what is wrong, the raw call, and a valid call in the same format."""
    lines = [_cut(what, _MAX_REASON)]
    if echo.strip():
        lines.append(f"You wrote:\n{_cut(echo.strip(), _MAX_ECHO)}")
    example = _example(tools, found)
    if example:
        lines.append(f"Write one call like this:\n{example}")
    return "\n".join(lines)


def _example(tools: Sequence[ToolSpec], found: FoundCall) -> str:
    """Return a valid call of the intended tool, or of another one."""
    format = DEFAULT_FORMAT if found.format == "auto" else found.format
    meant = next((spec for spec in tools if spec.name == found.name), None)
    try:
        example = render_call(example_call(meant), format) if meant else example_text(tools, format)
    except UsageError:
        return ""  # this format cannot express the custom tool's name or example
    return _cut(example, _MAX_EXAMPLE)


def _cut(text: str, limit: int) -> str:
    """Return the head and the tail of the text, at most `limit` characters."""
    if len(text) <= limit:
        return text
    tail = limit // 3
    return f"{text[: limit - tail - 5]} ... {text[-tail:]}"
