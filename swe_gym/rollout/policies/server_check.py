"""What is known of a model and its server before a run: its row in the list, its prices, whether it answers."""

from __future__ import annotations

import functools
import re
import tomllib
import urllib.parse
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from ...errors import PolicyError, UsageError, unknown_name
from ...trajectories import ModelServer, Prices
from ...types import Json, JsonObject
from .chat_client import ChatClient, without_key

if TYPE_CHECKING:  # it imports this module
    from .llm import LLMPolicies

SECONDS = 4.0
"""Deadline of the list."""

IDENTITY = ("id", "root", "parent")
"""Fields that identify a model. vLLM and SGLang tell the checkpoint as `root`; other fields may change in between."""


def rows_of(said: Json) -> list[JsonObject] | None:
    """Return the rows of a list of models; None if the answer is not one."""
    rows = said.get("data") if isinstance(said, dict) else None
    return [row for row in rows if isinstance(row, dict) and "id" in row] if isinstance(rows, list) else None


def identity_of(rows: Sequence[JsonObject], model: str) -> JsonObject:
    """Return what a list tells about a model, as short texts; empty if it does not list it."""
    row = next((row for row in rows if row["id"] == model), {})
    return {name: str(row[name])[:500] for name in IDENTITY if row.get(name)}


TABLE = "prices.toml"
"""Data file beside this module."""


def known_prices(model: str, server: str) -> Prices | None:
    """Return the public prices of a model, None if the table does not have them.

    Args:
        model: Model name; a dated name such as "gpt-4.1-2025-04-14" has the prices of its model.
        server: URL of the server. The same model costs something else at another provider.
    """
    host = _table().get(urllib.parse.urlsplit(server).hostname or "", {})
    prices = host.get("models", {}).get(re.sub(r"-(\d{4}-\d{2}-\d{2}|\d{8})$", "", model))
    return Prices(**prices, date=str(host["checked"])) if prices else None


@functools.cache
def _table() -> JsonObject:
    return tomllib.loads(resources.files(__package__).joinpath(TABLE).read_text(encoding="utf-8"))


CHAT_SECONDS = 10.0
"""Deadline of the short request."""

PING = {
    "type": "function",
    "function": {"name": "ping", "description": "Answers.", "parameters": {"type": "object", "properties": {}}},
}
TOOLS_FIX = (
    "Start it with tool calls (vLLM: --enable-auto-tool-choice --tool-call-parser NAME; llama.cpp: --jinja), or let "
    "the model call tools in its text: policy.calls=text"
)


class ServerFacts(NamedTuple):
    """What a server told.

    Attributes:
        context: Context length of the model in tokens; None if the server does not tell it.
        called: Whether the model called the tool of the short request; None if it was offered none.
        note: What the user should know; empty if nothing.
        server: The server, and what it tells about the model.
        counts: Whether it counts tokens; None if it did not answer the short request.
    """

    context: int | None
    called: bool | None
    note: str = ""
    server: ModelServer = ModelServer()
    counts: bool | None = None


def check_server(options: LLMPolicies, *, native: bool) -> ServerFacts:
    """List the models of a server, and send one short request with the run's settings.

    Args:
        options: The policy's options. An empty `model` asks only for the list.
        native: Whether the model gets tools through the server's API.

    Raises:
        UsageError: The server cannot be reached, or refuses the key, the model, the settings or the tools. The message
            names the variable to set or the models that are served.
    """
    seconds = min(CHAT_SECONDS, options.timeout)
    client = options.connect(timeout=seconds, deadline=seconds, retries=0)
    try:
        rows = _list_models(client, options)
        names = tuple(str(row["id"]) for row in rows)
        if not options.model:
            served = f"{options.server} serves {', '.join(names)}" if names else f"{options.server} lists no models"
            raise UsageError(f"no model: add --model NAME. {served}")
        facts = _send(client, options, names, native=native)
    finally:
        client.close()
    row = next((row for row in rows if row["id"] == options.model), {})
    limit = row.get("max_model_len") or row.get("context_length")
    context = limit if isinstance(limit, int) else None
    _check_context(options, context)
    unlisted = not row and bool(names) and not facts.note
    note = f"the server does not list {options.model!r}, but answers for it" if unlisted else facts.note
    server = ModelServer(url=options.server, model=identity_of(rows, options.model))
    return facts._replace(context=context, note=note, server=server)


def _check_context(options: LLMPolicies, context: int | None) -> None:
    for name, value in (("context", options.context), ("max_tokens", options.max_tokens)):
        if context and value and value > context:
            raise UsageError(f"policy.{name}={value} is more than the server's context length of {context} tokens")


# --- the list of models ---------------------------------------------------------------------------------------


def _list_models(client: ChatClient, options: LLMPolicies) -> list[JsonObject]:
    """Return the rows of the list; none if the server has no list."""
    try:
        said = client.get("/models", deadline=SECONDS)
    except PolicyError as error:
        if _status(error) in (403, 405):  # a key may be allowed to chat only: the short request tells
            return []
        if _status(error) != 404:
            _refuse(error, options)
        said = None
    rows = rows_of(said)
    if rows is None and (better := _better_url(client, options.server)):
        raise UsageError(f"{options.server} is not the API's address: use --base-url {better}")
    if rows is None and said is not None:
        raise UsageError(
            f"{options.server} is not an OpenAI-compatible server: it answered with {_kind(said)} instead of a list of "
            "models. --base-url must be the address of the API, such as http://localhost:8000/v1"
        )
    return rows or []


def _kind(said: object) -> str:
    if not isinstance(said, str):
        return "other data"
    return "a web page" if "<html" in said[:1000].lower() else "text"


def _better_url(client: ChatClient, url: str) -> str:
    """Return the URL that the user probably meant: it has a list of models, or asks for a key."""
    base = url.rstrip("/").removesuffix("/chat/completions").removesuffix("/models")
    for candidate in dict.fromkeys((base, f"{base}/v1")):
        if candidate == url.rstrip("/"):
            continue
        try:
            if rows_of(client.get(f"{candidate}/models", deadline=SECONDS / 2)) is not None:
                return candidate
        except PolicyError as error:
            if _status(error) in (401, 403):
                return candidate
    return ""


# --- the short request ----------------------------------------------------------------------------------------


def _send(client: ChatClient, options: LLMPolicies, names: tuple[str, ...], *, native: bool) -> ServerFacts:
    text = "Call the tool `ping`." if native else "Answer with one word."
    request = {
        "model": options.model,
        **options.sampling,
        **options.request,
        "messages": [{"role": "user", "content": text}],
    }
    try:
        answer = client.complete({**request, "tools": [PING]} if native else request)
    except PolicyError as error:
        if error.reason == "rate_limit" and "quota" not in str(error).lower():
            return ServerFacts(None, None, f"not checked further: {error}")
        status = _status(error)
        if names and options.model not in names and status in (400, 404):
            raise unknown_name(f"model at {options.server}:", options.model, names) from error
        if native and status in (400, 404, 422, 500, 501) and _answers(client, request):
            raise UsageError(f"{options.server} refuses tool calls: {_quote(error, options)}. {TOOLS_FIX}") from error
        _refuse(error, options)
    called = bool(answer.message.get("tool_calls")) if native else None
    return ServerFacts(None, called, counts=answer.usage.tokens > 0)


def _answers(client: ChatClient, request: JsonObject) -> bool:
    try:
        client.complete(request)
    except PolicyError:
        return False
    return True


# --- errors -----------------------------------------------------------------------------------------------------


def _status(error: PolicyError) -> int:
    return getattr(error.__cause__, "status_code", 0)


def _quote(error: PolicyError, options: LLMPolicies) -> str:
    """Return what the server said, without our words around it."""
    body = getattr(error.__cause__, "body", None)
    said = body.get("message") if isinstance(body, dict) else None
    return without_key(str(said or error), options.key).rstrip(".")[:300]


def _refuse(error: PolicyError, options: LLMPolicies) -> NoReturn:
    """Raise the error with its fix."""
    if _status(error) in (401, 403):
        where = "api_key" if options.api_key else options.api_key_variable
        fix = f"correct {where}" if options.key else f"set the environment variable {where}"
        raise UsageError(
            f"{options.server} refused the API key: {_quote(error, options)}. Fix: {fix}, or name another variable: "
            "policy.api_key_variable=NAME"
        ) from error
    fixes = {
        "connection": "Start the server, or correct --base-url",
        "timeout": "Check that the server is ready, or correct --base-url",
        "bad_reply": "--base-url must be the address of an OpenAI-compatible API, such as http://localhost:8000/v1",
    }
    fix = fixes.get(error.reason, "")
    raise UsageError(f"{error}. {fix}" if fix else str(error)) from error
