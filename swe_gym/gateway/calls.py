"""The calls of an agent and their answers, in one form for all protocols."""

import dataclasses
import json
import math
import re
import uuid
from collections.abc import Collection, Sequence
from typing import Literal

from ..rollout.tokens import Completion
from ..trajectories.trajectory import Usage
from ..types import Json, JsonMapping, JsonObject

Finish = Literal["stop", "length", "tool_calls"]

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
"""Type of an error by its status; others are "api_error"."""


SETTINGS = frozenset(
    {
        *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
        *("stop", "seed", "tool_choice", "parallel_tool_calls", "reasoning_effort", "verbosity"),
    }
)
"""Settings of OpenAI's chat API that an agent may choose. Others could bias or constrain the tokens, change the chat
template, choose another model, or let the server search the web.
"""


class Refusal(Exception):
    """An error that the agent gets in its protocol's form.

    Attributes:
        status: HTTP status.
        message: Text for the agent.
        code: Machine-readable code of OpenAI's errors; empty if there is none.
    """

    def __init__(self, status: int, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code

    @property
    def kind(self) -> str:
        """Type of the error, as in Anthropic's API."""
        return KINDS.get(self.status, "api_error" if self.status >= 500 else "invalid_request_error")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request for an answer.

    Attributes:
        model: Model name that the agent asks for. The sampler answers with its own model.
        messages: Conversation as in OpenAI's chat API. Content that is only text is a string.
        tools: Tools as in OpenAI's chat API.
        max_tokens: Maximum tokens of the answer.
        stream: Whether the agent wants events.
        settings: Further fields as in OpenAI's chat API: "temperature", "tool_choice", "stop" and so on.
        ignored: Names of fields that have no effect.
        flags: Details for writing the answer, by the protocol.
    """

    model: str
    messages: Sequence[JsonObject]
    tools: Sequence[JsonObject] = ()
    max_tokens: int | None = None
    stream: bool = False
    settings: JsonObject = dataclasses.field(default_factory=dict)
    ignored: Collection[str] = ()
    flags: JsonObject = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of an answer.

    Attributes:
        prompt: Prompt; if `extends`, only the part after the prompt and the sampled tokens of the answer before.
        extends: Whether the whole prompt begins with the prompt and the sampled tokens of the answer before.
        completion: What was sampled.
        temperature: Sampling temperature.
    """

    prompt: Sequence[int]
    extends: bool
    completion: Completion
    temperature: float


def new_id(length: int = 24) -> str:
    """Return random letters and digits. Some agents join messages of equal ids, and some servers want ids of 9."""
    return uuid.uuid4().hex[:length]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer to a call.

    Attributes:
        message: The message as in OpenAI's chat API: role, content, tool calls and reasoning.
        text: The answer as the model wrote it.
        finish: Why it ended.
        usage: Tokens and cost.
        tokens: Its tokens, if the sampler keeps them.
        id: Unique letters and digits.
    """

    message: JsonObject
    text: str
    finish: Finish
    usage: Usage
    tokens: Tokens | None = None
    id: str = dataclasses.field(default_factory=new_id)

    @property
    def content(self) -> str:
        """Text of the message; empty if there is none."""
        return self.message.get("content") or ""

    @property
    def reasoning(self) -> str:
        """Reasoning of the message; empty if there is none."""
        return self.message.get("reasoning_content") or self.message.get("reasoning") or ""

    @property
    def tool_calls(self) -> list[JsonObject]:
        """Tool calls of the message."""
        return self.message.get("tool_calls") or []


# --- reading requests --------------------------------------------------------------------------------------


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
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise Refusal(400, f"{name}: expected {_words(kind)}, not {_words(type(value))}")
    return value


_WORDS = {str: "a string", int: "an integer", float: "a number", list: "a list", dict: "an object", bool: "a boolean"}


def _words(kind: type | tuple[type, ...]) -> str:
    return " or ".join(_WORDS.get(one, str(one)) for one in (kind if isinstance(kind, tuple) else (kind,)))


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


def joined(parts: Sequence[JsonObject]) -> str | list[JsonObject]:
    """Return the parts of a content in OpenAI's form: text as one string, anything else unchanged.

    Raises:
        Refusal: A text is not a string, or a part is neither text nor an image with its data: servers fetch addresses.
    """
    if all(part.get("type") == "text" for part in parts):
        return "\n".join(field(part, "text", str, "") for part in parts)
    for part in parts:
        image = part.get("type") == "image_url" and field(field(part, "image_url", dict, {}), "url", str, "")
        if part.get("type") != "text" and not (image and image.lower().startswith("data:")):
            raise Refusal(400, "content: expected text, or images as data: URLs")
    return list(parts)


def merged(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the messages with neighbouring messages of the assistant as one: some agents send an answer in pieces."""
    found: list[JsonObject] = []
    for message in messages:
        if found and message["role"] == "assistant" == found[-1]["role"]:
            found[-1] = _both(found[-1], message)
        else:
            found.append(message)
    return found


def _both(first: JsonObject, second: JsonObject) -> JsonObject:
    texts = [one["content"] for one in (first, second) if one.get("content")]
    reasoning = [one["reasoning_content"] for one in (first, second) if one.get("reasoning_content")]
    calls = [*(first.get("tool_calls") or ()), *(second.get("tool_calls") or ())]
    message: JsonObject = {"role": "assistant", "content": "\n".join(texts) or None}
    if reasoning:
        message["reasoning_content"] = "\n".join(reasoning)
    return {**message, "tool_calls": calls} if calls else message


def tool_call(call_id: str, name: str, arguments: str) -> JsonObject:
    """Return a tool call as in OpenAI's chat API."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def arguments_of(call: JsonMapping) -> JsonObject:
    """Return the arguments of a tool call; those that are not a JSON object as {"arguments": text}."""
    text = call["function"]["arguments"]
    try:
        value = parse_json(text or "{}")
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"arguments": text}


def parse_json(text: str) -> Json:
    """Parse JSON. Halves of surrogate pairs, which are no text, become question marks.

    Raises:
        ValueError: It is not JSON, or holds NaN or an infinite number, which other parsers do not read.
    """
    value = json.loads(text, parse_constant=_finite, parse_float=_finite)
    if _SURROGATE.search(text):
        value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return value


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is no number of JSON")
    return value


def event(data: JsonObject, name: str = "") -> bytes:
    """Return a server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()
