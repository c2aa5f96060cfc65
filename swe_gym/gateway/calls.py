"""The calls of an agent in one form for all protocols: answers, digests of what a model reads, and system messages."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import re
import uuid
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from ..rollout.tokens import Completion
from ..trajectories import Usage
from ..types import JsonMapping, JsonObject
from .parsing import arguments_of

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


WRITTEN_ID = re.compile(r"[\w.\-]+:\d+")
"""An id of a tool call that models of Kimi write themselves, such as functions.bash:0."""


def keep_written_ids(calls: Sequence[JsonObject], messages: Sequence[JsonObject]) -> list[JsonObject]:
    """Return tool calls with new ids, apart from those that the model wrote and that earlier messages do not have."""
    used = {call["id"] for message in messages for call in message.get("tool_calls") or ()}
    kept: list[JsonObject] = []
    for call in calls:
        free = WRITTEN_ID.fullmatch(call["id"]) and call["id"] not in used
        kept.append(call if free else {**call, "id": new_id(9)})
        used.add(call["id"])
    return kept


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer to a call.

    Attributes:
        message: The message as in OpenAI's chat API: role, content, tool calls and reasoning.
        text: The answer as the model wrote it.
        finish: Why it ended.
        usage: Tokens and cost.
        tokens: Its tokens, if the sampler keeps them.
        same: Whether the chat template renders the message as the model wrote it.
        id: Unique letters and digits.
    """

    message: JsonObject
    text: str
    finish: Finish
    usage: Usage
    tokens: Tokens | None = None
    same: bool = True
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


def tool_call(call_id: str, name: str, arguments: str) -> JsonObject:
    """Return a tool call as in OpenAI's chat API."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def event(data: JsonObject, name: str = "") -> bytes:
    """Return a server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def digest(value: object) -> bytes:
    """Return the digest of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()


NO_TOOLS = digest([])
"""Digest of the tools of a call without tools."""


def mark(message: JsonMapping) -> bytes:
    """Return the digest of what a model reads of a message.

    Of answers, reasoning and the white space around the text do not count: agents often drop them.
    """
    calls = [[call["function"]["name"], arguments_of(call)] for call in message.get("tool_calls") or ()]
    content = message.get("content") or ""
    if message["role"] == "assistant" and isinstance(content, str):
        content = content.strip()
    return digest([message["role"], content, calls])


def path_after(path: bytes, message: JsonMapping) -> bytes:
    """Return the digest of a conversation after another message."""
    return hashlib.sha256(path + mark(message)).digest()


class Digests(NamedTuple):
    """The digests of a conversation.

    Attributes:
        marks: Digest of each message.
        paths: Digest of the conversation up to each message.
        tools: Digest of the tools.
    """

    marks: list[bytes]
    paths: list[bytes]
    tools: bytes


def digests_of(call: Call) -> Digests:
    """Return the digests of a call's messages."""
    marks = [mark(message) for message in call.messages]
    paths = itertools.accumulate(marks, lambda path, one: hashlib.sha256(path + one).digest(), initial=b"")
    return Digests(marks, list(paths)[1:], digest(list(call.tools)))


def text_of(message: JsonMapping) -> str:
    """Return the text of a message."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text") or "" for part in content)


def thought_of(message: JsonMapping) -> str:
    """Return the reasoning of a message, without the white space around it; empty if there is none."""
    return str(message.get("reasoning_content") or message.get("reasoning") or "").strip()


def arrange_system_messages(messages: Sequence[JsonObject], later: str) -> list[JsonObject]:
    """Return messages with one system message at the start: many chat templates take no other.

    Args:
        messages: Messages of OpenAI's chat API.
        later: Role of the system messages after the first other message: "system" or "user".
    """
    leading = list(itertools.takewhile(lambda message: message["role"] == "system", messages))
    rest = [
        {**message, "role": later} if message["role"] == "system" else message for message in messages[len(leading) :]
    ]
    texts = [message.get("content") or "" for message in leading]
    if not all(isinstance(text, str) for text in texts):  # parts, such as images
        return [*leading, *rest]
    text = "\n\n".join(filter(None, texts))
    return [{"role": "system", "content": text}, *rest] if text else rest
