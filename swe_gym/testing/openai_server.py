"""A local server with OpenAI's protocol whose replies come from a function, with faults on demand.

    with OpenAIServer(lambda request: Reply("Hello")) as server:
        server.inject(CHAT, status=429, headers={"Retry-After": "1"})
        client = openai.OpenAI(base_url=server.base_url, api_key=server.api_key)

For tests and demos: no model, no network. It serves `/v1/models`, `/v1/chat/completions` (whole and streamed) and
`/v1/completions` (a prompt as text or token ids), with log-probabilities and vLLM's `return_token_ids`. A token is a
byte of UTF-8. In a stream, the last chunk carries the token details.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import threading
from collections.abc import Callable, Iterator, Sequence

from ..types import Json, JsonMapping, JsonObject
from .loopback import Exchange, HttpAnswer, LoopbackServer

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MODELS = "/v1/models"

PIECE = 8
"""Characters per streamed chunk."""

LOGPROB = -0.5
"""Default log-probability of a token."""


@dataclasses.dataclass(frozen=True)
class ModelReply:
    """A reply of the model.

    Attributes:
        content: Text of the reply.
        tool_calls: Name and arguments of each call. The arguments are sent unchanged and need not be valid JSON.
        reasoning: Value of `reasoning_content`, which some servers send.
        finish_reason: Finish reason; None is "tool_calls" if there are any, else "stop".
        token_ids: Tokens of the content; None is one per byte.
        logprobs: Log-probability of each token; None is `LOGPROB` for each.
        cached_tokens: Prompt tokens that the server says it had in its cache.
    """

    content: str = ""
    tool_calls: Sequence[tuple[str, str]] = ()
    reasoning: str = ""
    finish_reason: str | None = None
    token_ids: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None
    cached_tokens: int = 0

    @property
    def tokens(self) -> list[tuple[int, float]]:
        """Id and log-probability of each token."""
        ids = list(self.content.encode() if self.token_ids is None else self.token_ids)
        return list(zip(ids, [LOGPROB] * len(ids) if self.logprobs is None else self.logprobs, strict=True))

    @property
    def reason(self) -> str:
        """Finish reason to send."""
        return self.finish_reason or ("tool_calls" if self.tool_calls else "stop")


def in_turn(*replies: ModelReply) -> Callable[[JsonObject], ModelReply]:
    """Return a function for `OpenAIServer` that sends the replies in order, then status 400."""
    left, lock = iter(replies), threading.Lock()

    def reply(request: JsonObject) -> ModelReply:  # noqa: ARG001  the script ignores it
        with lock:
            for said in left:
                return said
        raise HttpAnswer(400, error_body(400, "the script is over"))

    return reply


def context_length_exceeded(limit: int, prompt: int) -> JsonObject:
    """Return the body of the error with status 400 for a prompt that is too long."""
    text = f"This model's maximum context length is {limit} tokens. However, your messages resulted in {prompt} tokens."
    return error_body(400, text, code="context_length_exceeded", param="messages")


def error_body(status: int, message: str, *, code: str | None = None, param: str | None = None) -> JsonObject:
    """Return an error in OpenAI's form."""
    kinds = {401: "authentication_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


class OpenAIServer(LoopbackServer):
    """A scripted model behind OpenAI's protocol. Use it as a context manager.

    Args:
        reply: Function of a request's JSON, called once per choice (`n`), possibly by several threads at once. It may
            raise `loopback.Answer` to refuse.
        model: Name of the model.
        api_key: The only accepted API key.
        context_length: Maximum tokens of prompt and `max_tokens` together; None is unlimited.
        root: Checkpoint of the model, which vLLM tells with its list of models; empty tells none.
    """

    def __init__(
        self,
        reply: Callable[[JsonObject], ModelReply],
        *,
        model: str = "scripted",
        api_key: str = "sk-loopback",
        context_length: int | None = None,
        root: str = "",
    ) -> None:
        super().__init__()
        self.reply = reply
        self.model = model
        self.api_key = api_key
        self.context_length = context_length
        self.root = root
        self._numbers = itertools.count(1)

    @property
    def base_url(self) -> str:
        """Address for clients, with `/v1`."""
        return f"{self.url}/v1"

    def error_body(self, status: int, message: str) -> JsonObject:
        """See `LoopbackServer.error_body`."""
        return error_body(status, message)

    def answer(self, exchange: Exchange) -> None:
        """See `LoopbackServer.answer`."""
        asked = exchange.asked
        if asked.key != self.api_key:
            raise self.refuse(401, "Incorrect API key provided.")
        if (asked.method, asked.path) == ("GET", MODELS):
            row = {"id": self.model, "object": "model", "created": 0, "owned_by": "swe-gym"}
            row |= {"root": self.root} if self.root else {}
            raise HttpAnswer(200, {"object": "list", "data": [{**row, "max_model_len": self.context_length}]})
        if asked.method != "POST" or asked.path not in (CHAT, COMPLETIONS):
            raise self.refuse(404, f"unknown call: {asked.method} {asked.path}")
        request = asked.body
        if not isinstance(request, dict):
            raise self.refuse(400, "the body is not a JSON object")
        if request.get("model") != self.model:
            text = f"The model `{request.get('model')}` does not exist."
            raise HttpAnswer(404, error_body(404, text, code="model_not_found", param="model"))
        form = _Chat if asked.path == CHAT else _Completion
        self._generate(exchange, request, form)

    def _generate(self, exchange: Exchange, request: JsonObject, form: type[_Form]) -> None:
        made = form(request, f"{form.prefix}-{next(self._numbers)}")
        self._check_length(request, len(made.prompt))
        replies = [self._say(request) for _ in range(request.get("n") or 1)]
        if not request.get("stream"):
            raise HttpAnswer(200, made.whole(replies))
        with exchange.stream("text/event-stream") as write:
            for piece in made.pieces(replies):
                write(b"data: " + json.dumps(piece).encode() + b"\n\n")
            write(b"data: [DONE]\n\n")

    def _check_length(self, request: JsonMapping, prompt: int) -> None:
        wanted = prompt + (request.get("max_completion_tokens") or request.get("max_tokens") or 0)
        if self.context_length is not None and wanted > self.context_length:
            raise HttpAnswer(400, context_length_exceeded(self.context_length, wanted))

    def _say(self, request: JsonObject) -> ModelReply:
        try:
            return self.reply(request)
        except HttpAnswer:
            raise
        except Exception as error:  # the client learns of errors in the script
            raise self.refuse(500, f"the script failed: {error!r}") from error


# --- forms of requests and replies ------------------------------------------------------------------------------


class _Form:
    """A kind of completion: how its prompt is read and its replies are written."""

    prefix: str
    kind: str
    piece_kind: str

    def __init__(self, request: JsonMapping, name: str) -> None:
        self.request = request
        self.name = name
        self.prompt = self.read_prompt()
        self.with_ids = bool(request.get("return_token_ids"))

    def read_prompt(self) -> list[int]:
        """Return the prompt's token ids."""
        raise NotImplementedError

    def choice(self, reply: ModelReply) -> JsonObject:
        """Return a complete choice, without its index."""
        raise NotImplementedError

    def deltas(self, reply: ModelReply) -> Iterator[JsonObject]:
        """Yield the choice in chunks."""
        raise NotImplementedError

    def whole(self, replies: Sequence[ModelReply]) -> JsonObject:
        """Return the complete reply."""
        choices = [{"index": index, **self.choice(reply)} for index, reply in enumerate(replies)]
        return {**self.head(self.kind), "choices": choices, "usage": self.usage(replies)}

    def pieces(self, replies: Sequence[ModelReply]) -> Iterator[JsonObject]:
        """Yield the reply in chunks."""
        head = self.head(self.piece_kind)
        for index, reply in enumerate(replies):
            for delta in self.deltas(reply):
                yield {**head, "choices": [{"index": index, "finish_reason": None, **delta}]}
        if (self.request.get("stream_options") or {}).get("include_usage"):
            yield {**head, "choices": [], "usage": self.usage(replies)}

    def head(self, kind: str) -> JsonObject:
        """Return the fields that every reply starts with."""
        return {"id": self.name, "object": kind, "created": 0, "model": self.request["model"]}

    def usage(self, replies: Sequence[ModelReply]) -> JsonObject:
        """Return the token counts."""
        said = sum(
            len(reply.tokens) + sum(len(name) + len(text) for name, text in reply.tool_calls) for reply in replies
        )
        cached = sum(reply.cached_tokens for reply in replies)
        details = {"prompt_tokens_details": {"cached_tokens": cached}} if cached else {}
        read = len(self.prompt)
        return {"prompt_tokens": read, "completion_tokens": said, "total_tokens": read + said, **details}


class _Chat(_Form):
    """`/v1/chat/completions`. The prompt is the concatenated text of the messages; there is no chat template."""

    prefix, kind, piece_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def read_prompt(self) -> list[int]:
        messages = self.request.get("messages")
        if not isinstance(messages, list) or not messages:
            raise HttpAnswer(400, error_body(400, "messages must be a non-empty list", param="messages"))
        return list("".join(_text_of(message.get("content")) for message in messages).encode())

    def head(self, kind: str) -> JsonObject:
        ids = {"prompt_token_ids": self.prompt} if self.with_ids else {}
        return {**super().head(kind), **ids}

    def choice(self, reply: ModelReply) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": reply.content or None}
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        if reply.tool_calls:
            message["tool_calls"] = [self.call(*call) for call in enumerate(reply.tool_calls)]
        return {"message": message, "finish_reason": reply.reason, **self.details(reply)}

    def call(self, index: int, call: tuple[str, str]) -> JsonObject:
        name, arguments = call
        return {"id": f"call-{index}", "type": "function", "function": {"name": name, "arguments": arguments}}

    def details(self, reply: ModelReply) -> JsonObject:
        """Return the requested details of the tokens."""
        details: JsonObject = {"logprobs": None}
        if self.request.get("logprobs"):
            rows = [
                {"token": token, "bytes": list(token.encode()), "logprob": logprob, "top_logprobs": []}
                for token, logprob in ((_word(number), logprob) for number, logprob in reply.tokens)
            ]
            details["logprobs"] = {"content": rows}
        if self.with_ids:
            details["token_ids"] = [number for number, _ in reply.tokens]
        return details

    def deltas(self, reply: ModelReply) -> Iterator[JsonObject]:
        yield {"delta": {"role": "assistant", "content": ""}}
        for text in _cut(reply.reasoning):
            yield {"delta": {"reasoning_content": text}}
        for text in _cut(reply.content):
            yield {"delta": {"content": text}}
        for index, call in enumerate(reply.tool_calls):
            begun = self.call(index, (call[0], ""))
            yield {"delta": {"tool_calls": [{"index": index, **begun}]}}
            for text in _cut(call[1]):
                yield {"delta": {"tool_calls": [{"index": index, "function": {"arguments": text}}]}}
        yield {"delta": {}, "finish_reason": reply.reason, **self.details(reply)}


class _Completion(_Form):
    """`/v1/completions`."""

    prefix, kind, piece_kind = "cmpl", "text_completion", "text_completion"

    def read_prompt(self) -> list[int]:
        prompt = self.request.get("prompt")
        if isinstance(prompt, str):
            return list(prompt.encode())
        if isinstance(prompt, list) and prompt and all(type(number) is int for number in prompt):
            return prompt
        raise HttpAnswer(400, error_body(400, "prompt must be a text or a list of token ids", param="prompt"))

    def choice(self, reply: ModelReply) -> JsonObject:
        return {"text": reply.content, "finish_reason": reply.reason, **self.details(reply)}

    def details(self, reply: ModelReply) -> JsonObject:
        """Return the requested details of the tokens."""
        details: JsonObject = {"logprobs": None}
        if self.request.get("logprobs") is not None:  # 0 requests only those of the sampled tokens
            names = [self.name_of(number) for number, _ in reply.tokens]
            details["logprobs"] = {
                "tokens": names,
                "token_logprobs": [logprob for _, logprob in reply.tokens],
                "top_logprobs": [{name: logprob} for name, (_, logprob) in zip(names, reply.tokens, strict=True)],
                "text_offset": list(itertools.accumulate((len(name) for name in names[:-1]), initial=0))
                if names
                else [],
            }
        if self.with_ids:
            details |= {"token_ids": [number for number, _ in reply.tokens], "prompt_token_ids": self.prompt}
        return details

    def name_of(self, number: int) -> str:
        """Return a token's text in `logprobs`."""
        return f"token_id:{number}" if self.request.get("return_tokens_as_token_ids") else _word(number)

    def deltas(self, reply: ModelReply) -> Iterator[JsonObject]:
        for text in _cut(reply.content):
            yield {"text": text}
        yield {"text": "", "finish_reason": reply.reason, **self.details(reply)}


def _text_of(content: Json) -> str:
    """Return the text of a message, which may consist of parts."""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


def _word(number: int) -> str:
    """Return a token as text. Bytes above 127 are not whole characters."""
    return chr(number) if number < 128 else f"<{number}>"


def _cut(text: str) -> list[str]:
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
