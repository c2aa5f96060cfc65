"""Finds tool calls in a text, in one pass from left to right.

The pass skips a call as a whole, so nothing inside an argument is taken for a call, a fence or a thought. Every step
moves forward and the number of steps is bounded: the time is linear in the length of the text.
"""

import dataclasses
import functools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping

from ..types import Json, JsonMapping

FORMATS: tuple[str, ...] = ("openai", "hermes", "r2e", "graph_planner", "json", "bash")
"""All formats, in the order in which `format="auto"` prefers them."""

MAX_MARKERS = 10_000
"""Maximum number of places in a text that could start a call."""

_BAD_JSON_COST = 40  # in markers: at an error the decoder counts lines from the start of the text


class TooManyCalls(Exception):
    """The text holds more than `MAX_MARKERS` places that could start a call."""


@dataclasses.dataclass(frozen=True, slots=True)
class FoundCall:
    """A call in an action, valid or not.

    Attributes:
        format: Format of the call.
        start: Start in the text, including tags or fence.
        end: End in the text.
        name: Name of the tool.
        arguments: Raw arguments: JSON values, or text in formats of tags.
        call_id: Id of the call, if the format has one.
        flaw: Reason why the call is invalid, as a sentence; empty if it is valid.
    """

    format: str
    start: int = 0
    end: int = 0
    name: str = ""
    arguments: Mapping[str, object] = dataclasses.field(default_factory=dict)
    call_id: str | None = None
    flaw: str = ""


@dataclasses.dataclass(slots=True)
class Scan:
    """The result of a pass.

    Attributes:
        found: Calls outside of thinking, in the order of the text.
        open_think: Whether the text ends inside a `<think>` block.
    """

    found: list[FoundCall] = dataclasses.field(default_factory=list)
    open_think: bool = False


# --- the pass -------------------------------------------------------------------------------------------

_TAG = r"<tool_call>"
_FUNCTION = r"<function="
_OBJECT = (
    r"\{\s*+[\"'](?:name|arguments|parameters|tool_calls|function_call|function|role|content|id|call_id|type|index)"
    r"[\"']\s*+:"
)
_FENCE = r"^[ \t]*+```(?:bash|sh|shell)[ \t]*+\r?\n"
_MARKERS = {
    "openai": _OBJECT,
    "hermes": _TAG,
    "r2e": _FUNCTION,
    "graph_planner": _FUNCTION,
    "json": _OBJECT,
    "bash": _FENCE,
}


@functools.cache
def _marker(formats: tuple[str, ...]) -> re.Pattern[str]:
    """Return the pattern of the places where a call in one of the formats, or a thought, may start or end."""
    wanted = [_MARKERS[name] for name in FORMATS if name in formats]
    return re.compile("|".join(["</?think>", *dict.fromkeys(wanted)]), re.MULTILINE)


def find_calls(text: str, formats: tuple[str, ...], *, unclosed: bool = False) -> Scan:
    """Find every call in `text` in one of `formats`.

    Calls between `<think>` and `</think>` do not count, nor does anything before an unopened `</think>`: chat templates
    often put the opening tag into the prompt.

    Args:
        text: The answer.
        formats: The formats.
        unclosed: Whether `</function>` may be missing at the end, as vLLM's parsers allow. Those of R2E-Gym and Graph
            Planner do not: an answer that was cut there may miss further parameters.

    Raises:
        TooManyCalls: More than `MAX_MARKERS` places could start a call.
    """
    marker = _marker(formats)
    scan, position, budget = Scan(), 0, MAX_MARKERS
    while match := marker.search(text, position):
        opening = match.group()
        if opening == "</think>":
            scan.found.clear()
            position = match.end()
        elif opening == "<think>":
            closing = text.find("</think>", match.end())
            scan.open_think = closing < 0
            position = len(text) if closing < 0 else closing + len("</think>")
        else:
            found, position, cost = _reader(opening, unclosed=unclosed)(text, match)
            scan.found += [kept for one in found if (kept := _match_format(one, formats))]
            budget -= cost
        if budget < 0:
            raise TooManyCalls
    return scan


def _match_format(found: FoundCall, formats: Iterable[str]) -> FoundCall | None:
    """Return the call if it is in one of the formats. A function without parameters is in both formats of tags."""
    if found.format in formats:
        return found
    if found.format == "r2e" and not found.arguments and "graph_planner" in formats:
        return dataclasses.replace(found, format="graph_planner")
    return None


_Read = tuple[list[FoundCall], int, int]
"""Result of a reader: the calls, the position to resume at, and the cost."""


def _reader(opening: str, *, unclosed: bool) -> Callable[[str, re.Match[str]], _Read]:
    if opening == _TAG:
        return _read_tagged
    if opening == _FUNCTION:
        return functools.partial(_read_function, unclosed=unclosed)
    return _read_fence if "```" in opening else _read_bare


def _quote_next(text: str, position: int) -> str:
    """Return the next few characters, for a message."""
    piece = text[position : position + 30].strip()
    return repr(piece) if piece else "the end of the action"


# --- JSON -----------------------------------------------------------------------------------------------


class _JsonDecoder:
    """A JSON decoder that accepts raw line breaks in strings and records flaws.

    Flaws do not stop it, so the end of the object is known.
    """

    def __init__(self) -> None:
        self.flaw = ""
        self._decoder = json.JSONDecoder(
            strict=False,
            object_pairs_hook=self._object,
            parse_constant=self._constant,
            parse_int=self._int,
            parse_float=self._float,
        )

    def decode(self, text: str, start: int = 0) -> tuple[Json, int]:
        """Return the value that starts at `start`, and its end."""
        return self._decoder.raw_decode(text, start)

    def _object(self, pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]  # add returns None: falsy
            self.flaw = f"The key {twice[:60]!r} stands twice in one JSON object."
        return found

    def _constant(self, name: str) -> float:
        self.flaw = f"{name} is not JSON."
        return 0.0

    def _int(self, digits: str) -> int:
        if len(digits) > 100:
            self.flaw = f"A number of {len(digits)} digits is too long."
            return 0
        return int(digits)

    def _float(self, digits: str) -> float:
        value = float(digits) if len(digits) <= 400 else math.inf
        if not math.isfinite(value):
            self.flaw = f"The number {digits[:30]} is too large."
            return 0.0
        return value


def read_json(text: str) -> tuple[Json, str]:
    """Return the JSON value of `text` and its flaw, which is empty if there is none."""
    decoder = _JsonDecoder()
    try:
        value, end = decoder.decode(text, len(text) - len(text.lstrip()))
    except json.JSONDecodeError as error:
        return None, _json_flaw(text, 0, error)
    except RecursionError:
        return None, "It is nested too deeply."
    if text[end:].strip():
        return None, f"After the JSON value stands {_quote_next(text, end)}."
    return value, decoder.flaw


def _json_flaw(text: str, start: int, error: json.JSONDecodeError) -> str:
    return (
        f"It is not valid JSON: {error.msg} at character {error.pos - start}, near {_quote_next(text, error.pos)}. "
        'Inside a JSON string write \\" for a double quote, \\\\ for a backslash and \\n for a line break.'
    )


_BESIDE = frozenset({"name", "id", "call_id", "type", "index"})


def calls_in(value: Mapping[str, object]) -> list[FoundCall]:
    """Return the calls of a JSON object: an OpenAI message, one OpenAI tool call, or `{"name", "arguments"}`."""
    many = value.get("tool_calls")
    if isinstance(many, list):
        return [_openai_call(one) for one in many]
    legacy = value.get("function_call")
    if isinstance(legacy, dict):
        return [_openai_call(legacy)]
    if isinstance(value.get("function"), dict) or value.get("type") == "function_call":
        return [_openai_call(value)]
    if "name" in value and ("arguments" in value or "parameters" in value):
        return [_read_plain_call(value, "json")]
    return []


def _openai_call(value: object) -> FoundCall:
    if not isinstance(value, dict):
        return FoundCall("openai", flaw="An entry of tool_calls must be a JSON object.")
    function = value.get("function", value)
    if not isinstance(function, dict):
        return FoundCall("openai", flaw='"function" must be a JSON object with "name" and "arguments".')
    return _read_named_call(function, "openai", _call_id(value))


def _read_plain_call(value: Mapping[str, object], format: str) -> FoundCall:
    found = _read_named_call(value, format, _call_id(value))
    given = "arguments" if "arguments" in value else "parameters"
    astray = next((key for key in value if key not in _BESIDE and key != given), None)
    if found.flaw or astray is None:
        return found
    flaw = f'The key {astray[:60]!r} stands beside "{given}": every parameter belongs inside it.'
    return dataclasses.replace(found, flaw=flaw)


def _read_named_call(value: JsonMapping, format: str, call_id: str | None) -> FoundCall:
    name = value.get("name")
    if not isinstance(name, str) or not name.strip():
        return FoundCall(format, flaw='"name" must be a string that names a tool.')
    arguments = value.get("arguments", value.get("parameters"))
    flaw = ""
    if isinstance(arguments, str):  # the OpenAI API writes the arguments as JSON inside a string
        arguments, flaw = read_json(arguments) if arguments.strip() else ({}, "")
        flaw = f'"arguments" is a string. {flaw}' if flaw else ""
    if arguments is None:
        arguments = {}
    if not flaw and not isinstance(arguments, dict):
        kind = {str: "a string", list: "a list", bool: "true or false"}.get(type(arguments), "a number")
        flaw = f'"arguments" must be a JSON object, {{"parameter": value}}, not {kind}.'
    return FoundCall(format, name=name.strip(), arguments={} if flaw else arguments, call_id=call_id, flaw=flaw)


def _call_id(value: Mapping[str, object]) -> str | None:
    given = value.get("call_id") or value.get("id")
    return given if isinstance(given, str) else None


_STRAY_CLOSINGS = re.compile(r"(?:\s*+</(?:tool_call|function|function_invocation)>)++")
_FENCE_BEFORE = re.compile(r"```(?:json)?\s*\Z")
_FENCE_AFTER = re.compile(r"\s*+```")
_MEANT_AS_CALL = re.compile(
    r"\{\s*+(?:[\"'](?:tool_calls|function_call|function)[\"']|"
    r"[\"']name[\"']\s*+:\s*+[\"'][^\"'\n]{0,200}[\"']\s*+,\s*+[\"'](?:arguments|parameters)[\"'])"
)


def _read_bare(text: str, match: re.Match[str]) -> _Read:
    """Read a bare JSON object, perhaps in its own fence."""
    start, decoder = match.start(), _JsonDecoder()
    try:
        value, end = decoder.decode(text, start)
    except (json.JSONDecodeError, RecursionError) as error:
        at = error.pos if isinstance(error, json.JSONDecodeError) else match.end()
        if not _MEANT_AS_CALL.match(text, start):
            return [], max(at, match.end()), _BAD_JSON_COST
        flaw = _json_flaw(text, start, error) if isinstance(error, json.JSONDecodeError) else "It is nested too deeply."
        return [FoundCall("json", start, min(len(text), at + 40), flaw=flaw)], max(at, match.end()), _BAD_JSON_COST
    found = calls_in(value)
    if not found:
        return [], end, 1
    outer_start, outer_end = start, end
    if (before := _FENCE_BEFORE.search(text, max(0, start - 40), start)) and (after := _FENCE_AFTER.match(text, end)):
        outer_start, outer_end = before.start(), after.end()
    elif closings := _STRAY_CLOSINGS.match(text, end):
        outer_end = closings.end()
    placed = [_place(one, outer_start, outer_end, decoder.flaw) for one in found]
    return placed, outer_end, 1


def _place(found: FoundCall, start: int, end: int, flaw: str) -> FoundCall:
    return dataclasses.replace(found, start=start, end=end, flaw=found.flaw or flaw)


# --- <tool_call> ----------------------------------------------------------------------------------------

_BLANK = re.compile(r"\s*+")
_NEXT_TAG = re.compile(r"</?tool_call>")
_CLOSING = "</tool_call>"


def _read_tagged(text: str, match: re.Match[str]) -> _Read:
    """Read `<tool_call>`, JSON objects, `</tool_call>`."""
    start = match.start()
    position = _skip_blank(text, match.end())
    if text.startswith("<function=", position):
        return [], position, 1  # the tag only wraps it
    if not text.startswith("{", position):
        tag = _NEXT_TAG.search(text, position)
        if tag is None or tag.group() != _CLOSING:
            return [], match.end(), 1  # the text talks about the tag
        flaw = "Between <tool_call> and </tool_call> stands no JSON object."
        return [FoundCall("hermes", start, tag.end(), flaw=flaw)], tag.end(), 1
    found: list[FoundCall] = []
    while text.startswith("{", position):
        one, position = _read_tagged_object(text, start, position)
        found.append(one)
        start = position
        position = _skip_blank(text, position)
        if one.flaw:
            break
    if closings := _STRAY_CLOSINGS.match(text, start):
        found[-1] = dataclasses.replace(found[-1], end=closings.end())
    return found, found[-1].end, _BAD_JSON_COST * len(found)


def _read_tagged_object(text: str, start: int, position: int) -> tuple[FoundCall, int]:
    decoder = _JsonDecoder()
    try:
        value, end = _decode_closed(decoder, text, position)
    except json.JSONDecodeError as error:
        return _extend_flawed_tag(text, start, error.pos, _json_flaw(text, position, error))
    except RecursionError:
        return _extend_flawed_tag(text, start, position + 1, "It is nested too deeply.")
    after = _skip_blank(text, end)
    if after < len(text) and not text.startswith((_CLOSING, _TAG, "{"), after):
        return _extend_flawed_tag(
            text, start, end, f"After the JSON object stands {_quote_next(text, after)}, not </tool_call>."
        )
    if "name" not in value:
        return FoundCall("hermes", start, end, flaw='The JSON object has no "name".'), end
    return _place(_read_plain_call(value, "hermes"), start, end, decoder.flaw), end


def _decode_closed(decoder: _JsonDecoder, text: str, position: int) -> tuple[Json, int]:
    """Decode an object; its last brace may be missing right before the closing tag."""
    try:
        return decoder.decode(text, position)
    except json.JSONDecodeError as error:
        if error.msg != "Expecting ',' delimiter" or not text.startswith(_CLOSING, error.pos):
            raise
        value, _ = decoder.decode(text[position : error.pos] + "}")
        return value, error.pos


def _extend_flawed_tag(text: str, start: int, position: int, flaw: str) -> tuple[FoundCall, int]:
    """Extend a broken object to its closing tag or the next call."""
    tag = _NEXT_TAG.search(text, position)
    end = len(text) if tag is None else tag.end() if tag.group() == _CLOSING else tag.start()
    return FoundCall("hermes", start, end, flaw=flaw), end


def _skip_blank(text: str, position: int) -> int:
    match = _BLANK.match(text, position)
    return match.end() if match else position


# --- <function=NAME> ------------------------------------------------------------------------------------

_OPEN = re.compile(r"<function=([^<>\n]{0,200})>")
_CLOSE = re.compile(r"\s*+</function>")
_R2E_PARAMETER = re.compile(r"\s*+<parameter=([^<>\n]{0,200})>")
_PARAM = re.compile(r"\s*+<param\s++name\s*+=\s*+[\"']([^\"'<>\n]{0,200})[\"']\s*+>")
_R2E_END = re.compile(r"<(?:/parameter>|parameter=|function=)")
_PARAM_END = re.compile(r"<(?:/param>|param\s|function=)")
_CDATA = re.compile(r"\s*+<!\[CDATA\[")
_CDATA_END = re.compile(r"\]\]>\s*+</param>")
_CLOSE_OR_OPEN = re.compile(r"</function>|<function=")
_ENDS = re.compile(r"\s*+(?:</tool_call>|\Z)")
"""What may stand instead of `</function>` in answers that vLLM's parsers read."""


def _read_function(text: str, match: re.Match[str], *, unclosed: bool) -> _Read:
    """Read `<function=NAME>` with R2E's `<parameter=KEY>` or Graph Planner's `<param name="KEY">`."""
    opened = _OPEN.match(text, match.start())
    if opened is None:
        return [], match.end(), 1
    start = _with_wrapper(text, match.start())
    format = "graph_planner" if _PARAM.match(text, opened.end()) else "r2e"
    arguments, position, flaw = _read_parameters(text, opened.end(), format)
    if closed := _CLOSE.match(text, position):
        position = closed.end()
    elif not flaw and not (unclosed and arguments and _ENDS.match(text, position)):
        if not arguments and not _closes(text, position):
            return [], opened.end(), 1  # the text talks about the function
        flaw = f"Expected a parameter or </function>, found {_quote_next(text, position)}."
        position = _end_of_flawed(text, position)
    name = opened.group(1).strip()
    if not name and not flaw:
        flaw = "The function has no name."
    if closings := _STRAY_CLOSINGS.match(text, position):
        position = closings.end()
    return [FoundCall(format, start, position, name, arguments, flaw=flaw)], position, 1


def _with_wrapper(text: str, start: int) -> int:
    before = text[max(0, start - 40) : start].rstrip()
    return max(0, start - 40) + len(before) - len(_TAG) if before.endswith(_TAG) else start


def _closes(text: str, position: int) -> bool:
    tag = _CLOSE_OR_OPEN.search(text, position)
    return tag is not None and tag.group() == "</function>"


def _end_of_flawed(text: str, position: int) -> int:
    tag = _CLOSE_OR_OPEN.search(text, position)
    return len(text) if tag is None else tag.end() if tag.group() == "</function>" else tag.start()


def _read_parameters(text: str, position: int, format: str) -> tuple[dict[str, str], int, str]:
    """Return the parameters, their end, and their flaw."""
    opening = _PARAM if format == "graph_planner" else _R2E_PARAMETER
    arguments: dict[str, str] = {}
    while opened := opening.match(text, position):
        key = opened.group(1).strip()
        value, position, flaw = _read_value(text, opened.end(), key, format)
        if not flaw and not key:
            flaw = "A parameter has no name."
        if not flaw and key in arguments:
            flaw = f"The parameter {key!r} stands twice."
        if flaw:
            return arguments, position, flaw
        arguments[key] = value
    return arguments, position, ""


def _read_value(text: str, position: int, key: str, format: str) -> tuple[str, int, str]:
    """Return the raw value without one line break on each side, its end, and its flaw."""
    closing = "</param>" if format == "graph_planner" else "</parameter>"
    if format == "graph_planner" and (opened := _CDATA.match(text, position)):
        end = _CDATA_END.search(text, opened.end())
        if end is None:
            return "", len(text), f"The parameter {key!r} is not closed: ]]></param> is missing."
        return _unwrap(text[opened.end() : end.start()]), end.end(), ""
    end = (_PARAM_END if format == "graph_planner" else _R2E_END).search(text, position)
    if end is None:
        return "", len(text), f"The parameter {key!r} is not closed: {closing} is missing."
    if end.group() != closing:
        flaw = f"The parameter {key!r} is not closed before the next {end.group().strip()!r}: {closing} is missing."
        return "", end.start(), flaw
    return _unwrap(text[position : end.start()]), end.end(), ""


def _unwrap(value: str) -> str:
    value = value.removeprefix("\n")
    return value.removesuffix("\n")


# --- ```bash --------------------------------------------------------------------------------------------


_FENCE_END = re.compile(r"\n([ \t]*+)```[^\S\n]*+(?=\n|\Z)")


def _read_fence(text: str, match: re.Match[str]) -> _Read:
    """Read a fence on its own line, up to the first line that is only a fence.

    In a list all lines may be indented as far as the opening line.
    """
    indent = match.group().partition("`")[0]
    ends = _FENCE_END.finditer(text, match.end() - 1)
    closing = next((found for found in ends if indent.startswith(found[1])), None)
    if closing is None:
        return (
            [FoundCall("bash", match.start(), len(text), flaw="The fence is not closed: ``` is missing.")],
            len(text),
            1,
        )
    command = text[match.end() : closing.start()]
    if indent:
        command = "\n".join(line.removeprefix(indent) for line in command.split("\n"))
    flaw = "" if command.strip() else "The fence holds no command."
    return (
        [FoundCall("bash", match.start(), closing.end(), arguments={"command": command}, flaw=flaw)],
        closing.end(),
        1,
    )
