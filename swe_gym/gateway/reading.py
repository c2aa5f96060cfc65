"""What the protocols read alike: fields, parts of contents, tools and settings. Only known keys are kept."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from ..types import Json, JsonMapping, JsonObject
from .calls import Refusal, tool_call
from .parsing import MOST_LEVELS, too_deep


def field(body: JsonMapping, name: str, kind: type | tuple[type, ...], default: Json = None) -> Json:
    """Return a field of a request; the default if it is missing or null.

    Args:
        body: The request or a part of it.
        name: Name of the field.
        kind: Its type, or several.
        default: Value of a missing field.

    Raises:
        Refusal: It has another type.
    """
    value = body.get(name)
    if value is None:
        return default
    if kind is int and isinstance(value, float) and value.is_integer():  # Google's SDK sends topK as 40.0
        return int(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise Refusal(400, f"{name}: expected {_words(kind)}, not {_words(type(value))}")
    return value


_WORDS = {str: "a string", int: "an integer", float: "a number", list: "a list", dict: "an object", bool: "a boolean"}


def _words(kind: type | tuple[type, ...]) -> str:
    return " or ".join(_WORDS.get(one, str(one)) for one in (kind if isinstance(kind, tuple) else (kind,)))


def refuse_fields(body: JsonMapping, names: Iterable[str], why: str, where: str = "") -> None:
    """Raise Refusal if a request sets a field without which its answer would be another one, to {} for example."""
    for name in names:
        if body.get(name) not in (None, False, 0, "", []):
            raise Refusal(400, f"{where}{name}: not supported, since {why}")


def find_unread(name: str, value: Json, read: Collection[str]) -> set[str]:
    """Return the fields of an object, or of a list of objects, that have no effect, such as "tools.strict".

    Args:
        name: Name of the object.
        value: The object, the list, or None.
        read: Fields that have an effect.
    """
    return {
        f"{name}.{key}"
        for one in (value if isinstance(value, list) else [value])
        if isinstance(one, dict)
        for key, given in one.items()
        if key not in read and given is not None and given is not False
    }


def refuse_modalities(body: JsonMapping, name: str) -> None:
    """Raise Refusal if a request wants an answer in anything but text."""
    for one in field(body, name, list, []):
        if str(one).lower() != "text":
            raise Refusal(400, f"{name}: {str(one)[:60]!r} is not supported, since models answer in text only")


def objects(body: JsonMapping, name: str) -> list[JsonObject]:
    """Return a list of objects; empty if it is missing.

    Raises:
        Refusal: It is something else.
    """
    found: list[JsonObject] = field(body, name, list, [])
    if not all(isinstance(one, dict) for one in found):
        raise Refusal(400, f"{name}: expected a list of objects")
    return found


def token_limit(body: JsonMapping, *names: str) -> int | None:
    """Return the first field that limits the tokens of the answer.

    Raises:
        Refusal: It is not a positive integer.
    """
    for name in names:
        value: int | None = field(body, name, int)
        if value is not None and value < 1:
            raise Refusal(400, f"{name}: expected a positive integer, not {value}")
        if value is not None:
            return value
    return None


def join_parts(parts: Sequence[JsonObject]) -> str | list[JsonObject]:
    """Return the parts of a content in OpenAI's form: text as one string, anything else as new parts.

    Raises:
        Refusal: A text is not a string, or a part is neither text nor an image with its data: servers fetch addresses.
    """
    read = [_part(part) for part in parts]
    if all(part["type"] == "text" for part in read):
        return "\n".join(part["text"] for part in read)
    return read


def _part(part: JsonObject) -> JsonObject:
    kind = part.get("type")
    if kind in ("text", "refusal"):
        return {"type": "text", "text": field(part, kind, str, "")}
    if kind != "image_url":
        raise Refusal(400, f"content: parts of type {str(kind)[:60]!r} are not supported; send text, or images")
    image = field(part, "image_url", dict, {})
    url = field(image, "url", str, "")
    if not url.lower().startswith("data:"):
        raise Refusal(400, "content: images are taken as data: URLs only")
    detail = field(image, "detail", str)
    return {"type": "image_url", "image_url": {"url": url, **({"detail": detail} if detail else {})}}


def image_part(kind: Json, data: Json) -> JsonObject:
    """Return an image that a request holds in base64 as a part of OpenAI's chat API.

    Google's SDK writes base64 for URLs, with "-" and "_", which servers refuse in a `data:` URL.

    Raises:
        Refusal: Its type or its data is missing.
    """
    if not isinstance(kind, str) or not isinstance(data, str) or not kind.startswith("image/"):
        raise Refusal(400, "content: expected an image with its type and its data in base64")
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data.translate(_STANDARD)}"}}


_STANDARD = str.maketrans("-_", "+/")


def merge_messages(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the messages with neighbouring messages of the assistant as one: some agents send an answer in pieces."""
    found: list[JsonObject] = []
    for message in messages:
        if found and message["role"] == "assistant" == found[-1]["role"]:
            found[-1] = _merge_two(found[-1], message)
        else:
            found.append(message)
    return found


def _merge_two(first: JsonObject, second: JsonObject) -> JsonObject:
    texts = [one["content"] for one in (first, second) if one.get("content")]
    reasoning = [one["reasoning_content"] for one in (first, second) if one.get("reasoning_content")]
    calls = [*(first.get("tool_calls") or ()), *(second.get("tool_calls") or ())]
    message: JsonObject = {"role": "assistant", "content": "\n".join(texts) or None}
    if reasoning:
        message["reasoning_content"] = "\n".join(reasoning)
    return {**message, "tool_calls": calls} if calls else message


def make_tool_call(call_id: Json, name: Json, arguments: Json, where: str) -> JsonObject:
    """Return a tool call of an earlier answer.

    Raises:
        Refusal: A part is not a string, or the arguments are nested too deeply for servers to read.
    """
    if not isinstance(name, str) or not isinstance(arguments, str):
        raise Refusal(400, f"{where}: expected tool calls with a name and arguments, both strings")
    if too_deep(arguments):
        raise Refusal(400, f"{where}: the arguments of {name[:60]!r} are nested deeper than {MOST_LEVELS} levels")
    return tool_call(str(call_id or ""), name, arguments or "{}")


def function_tool(tool: JsonObject, schema: str, where: str) -> JsonObject:
    """Return a tool as in chat completions.

    Args:
        tool: What holds its name, description and schema.
        schema: Name of the field with the schema of its parameters.
        where: Where the tool stands in the request, for errors.

    Raises:
        Refusal: It has no name, or a field of another type.
    """
    name = field(tool, "name", str)
    if not name:
        raise Refusal(400, f"{where}: expected a function with a name")
    given = {
        "description": field(tool, "description", str),
        "parameters": field(tool, schema, dict),
        "strict": field(tool, "strict", bool),
    }
    return {
        "type": "function",
        "function": {"name": name, **{key: value for key, value in given.items() if value is not None}},
    }


def settings_of(body: JsonMapping, names: Mapping[str, str]) -> JsonObject:
    """Return the settings of a request that it sets.

    Args:
        body: The request.
        names: Name of each setting in chat completions -> its name in the request.

    Raises:
        Refusal: One has another type.
    """
    return {ours: _SETTINGS[ours](body, name) for ours, name in names.items() if body.get(name) not in (None, [])}


def _number(body: JsonMapping, name: str) -> Json:
    return field(body, name, (float, int))


def _integer(body: JsonMapping, name: str) -> Json:
    return field(body, name, int)


def _string(body: JsonMapping, name: str) -> Json:
    return field(body, name, str)


def _boolean(body: JsonMapping, name: str) -> Json:
    return field(body, name, bool)


def _stop(body: JsonMapping, name: str) -> Json:
    stop = field(body, name, (str, list))
    if isinstance(stop, list) and not all(isinstance(one, str) for one in stop):
        raise Refusal(400, f"{name}: expected strings")
    return stop


def _tool_choice(body: JsonMapping, name: str) -> Json:
    choice = field(body, name, (str, dict))
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            raise Refusal(400, f"{name}: expected auto, none, required or a function, not {choice[:60]!r}")
        return choice
    function = field(field(choice, "function", dict, {}), "name", str)
    if not function:
        raise Refusal(400, f"{name}: expected the name of a function")
    return {"type": "function", "function": {"name": function}}


_SETTINGS: Mapping[str, Callable[[JsonMapping, str], Json]] = {
    **dict.fromkeys(
        ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"), _number
    ),
    **dict.fromkeys(("top_k", "seed"), _integer),
    **dict.fromkeys(("reasoning_effort", "verbosity"), _string),
    "stop": _stop,
    "tool_choice": _tool_choice,
    "parallel_tool_calls": _boolean,
}

SETTINGS = frozenset(_SETTINGS)
"""Settings of OpenAI's chat API that an agent may choose. Others could bias or constrain the tokens, change the chat
template, choose another model, or let the server search the web.
"""
