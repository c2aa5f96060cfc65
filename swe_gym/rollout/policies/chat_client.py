"""A connection to an OpenAI-compatible server, which the episodes of a run share; retries of requests, and a cache.

The cache keeps answers on disk, so that an evaluation that is run again pays only for what is new:

    DIR/ab/abcd....json    one answer: its key, the message, the tokens, and a digest of them

An entry belongs to one server, one model as the server names it, one whole request and one attempt. Requests are not
stored, only their digest.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import email.utils
import functools
import hashlib
import ipaddress
import json
import logging
import os
import random
import re
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import openai
from pydantic import ValidationError

from ...errors import PolicyError, UsageError
from ...files import write_text
from ...trajectories import ModelServer, Usage
from ...types import Frozen, Json, JsonMapping, JsonObject

logger = logging.getLogger(__name__)

FIRST_DELAY, LONGEST_DELAY = 0.5, 8.0
"""Seconds before the first retry, which double up to the longest delay."""

LONGEST_ASKED = 120.0
"""Longest delay that a server may ask for. A request that would wait longer fails."""
_jitter = random.Random()


class Retries:
    """Sends a request until it succeeds. Each retry is logged before its delay, and counted as it is sent.

    The SDK could retry as well, but does not say how often.

    Args:
        most: Largest number of retries.
        say: Returns what a failure means, for the log.

    Attributes:
        count: Number of requests that were sent again so far.
    """

    def __init__(self, most: int, say: Callable[[openai.OpenAIError], object]) -> None:
        self.count = 0
        self._most, self._say = most, say

    async def run(self, send: Callable[[], Awaitable[Json]]) -> Json:
        """Return the answer; raise the last failure."""
        while True:
            try:
                return await send()
            except openai.OpenAIError as error:
                wait = delay_after(error, self.count) if self.count < self._most else None
                if wait is None:
                    raise
                logger.info("%s; retry %d of %d in %.1f s", self._say(error), self.count + 1, self._most, wait)
            await asyncio.sleep(wait)  # the deadline may end here: then it is not sent again
            self.count += 1


def delay_after(error: openai.OpenAIError, retries: int) -> float | None:
    """Return the seconds between a failure and the next try; None if there is none.

    Args:
        error: The failure.
        retries: Retries before it.
    """
    backoff = min(FIRST_DELAY * 2.0 ** min(retries, 10), LONGEST_DELAY) * _jitter.uniform(0.75, 1.0)
    if isinstance(error.__cause__, PolicyError):
        return None
    if isinstance(error, openai.APIConnectionError):  # includes timeouts
        return backoff
    if not isinstance(error, openai.APIStatusError):
        return None
    asked = _read_delay(error.response.headers)
    if asked > LONGEST_ASKED or not _is_transient(error):
        return None
    return asked if asked > 0 else backoff


def _is_transient(error: openai.APIStatusError) -> bool:
    told: str = error.response.headers.get("x-should-retry", "")
    if told in ("true", "false"):
        return told == "true"
    status: int = error.status_code
    return status in (408, 409, 429) or status >= 500


def _read_delay(headers: Mapping[str, str]) -> float:
    """Return the seconds that the server asks to wait; 0 if it asks for none."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
    date = email.utils.parsedate_tz(headers.get("retry-after", ""))
    return email.utils.mktime_tz(date) - time.time() if date else 0.0


_CONTEXT = re.compile(
    r"context.?(?:length|size|window)|prompt is too long|input is too long|too many tokens|max_new_tokens` must be",
    re.IGNORECASE,
)
_LIMIT = re.compile(r"context.?(?:length|size|window)\D{0,20}(\d{3,})", re.IGNORECASE)
LONGEST_ANSWER = 64 << 20
"""Bytes of an answer, so that a server that never ends one cannot fill the memory."""

LONGEST_NAME = 200
"""Characters that are kept of the name that a server gives the model in an answer."""

SHORTEST_KEY = 8
"""Characters from which a key is hidden in messages. Shorter ones, such as "none", are words."""

_KEPT = ("content", "reasoning_content", "reasoning", "tool_calls")
"""Fields of an answer that are sent back with the next request."""


class ContextExceeded(PolicyError):
    """The conversation is too long for the model.

    Attributes:
        limit: The model's limit in tokens, if the server told it.
    """

    def __init__(self, message: str, limit: int | None) -> None:
        super().__init__(message, reason="context")
        self.limit = limit


@dataclasses.dataclass(frozen=True, slots=True)
class ChatReply:
    """An answer of the model.

    Attributes:
        message: The message: role, content, tool calls and reasoning.
        finish_reason: Why it ended, for example "stop", "length" or "tool_calls".
        usage: Tokens, without a price.
        cached: Whether it is from the cache of answers, so that its tokens are not billed.
    """

    message: JsonObject
    finish_reason: str
    usage: Usage
    cached: bool = False


class ChatClient:
    """A client for any number of threads. Connections stay open between requests.

    The SDK's asynchronous client runs in its own thread. So a call ends at its deadline even if the server sends a byte
    now and then, and `close` ends waiting calls.

    Args:
        base_url: URL such as "http://localhost:8000/v1". Proxies of the environment are not used for this machine.
        api_key: API key.
        timeout: Seconds of silence before one try fails.
        deadline: Seconds for an answer, retries included.
        retries: Retries after the statuses 408, 409, 429 and 5xx, a timeout or a lost connection. They start after
            0.5 s, doubled up to 8 s, or as long as `Retry-After` says.
    """

    def __init__(self, base_url: str, api_key: str, *, timeout: float, deadline: float, retries: int) -> None:
        direct = {f"all://{_host(base_url)}": None} if _is_local(base_url) else {}
        self._client = openai.AsyncOpenAI(
            base_url=base_url,
            api_key=api_key,
            timeout=timeout,
            max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(mounts=direct or None, event_hooks={"response": [_read_body]}),
        )
        self._server = address_of(str(self._client.base_url), api_key)
        self._deadline, self._retries = deadline, retries
        self._closed = False
        self._lock = threading.Lock()  # guards _closed: a closed loop takes no calls
        self._calls: set[asyncio.Task[Json]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="swe-gym-llm", daemon=True)
        self._thread.start()

    def complete(self, request: JsonObject) -> ChatReply:
        """Send a request and return the answer.

        Raises:
            ContextExceeded: The messages are too long for the model.
            PolicyError: The server did not answer; `reason` says why.
        """
        data, retries = self._post("/chat/completions", request)
        try:
            answer = _read(data, request.get("model"))
        except PolicyError as error:
            error.retries = retries
            raise
        return dataclasses.replace(answer, usage=answer.usage.model_copy(update={"retries": retries}))

    def post(self, path: str, request: JsonObject) -> Json:
        """Send a request and return the JSON of the answer. Raises the same errors as `complete`."""
        return self._post(path, request)[0]

    def _post(self, path: str, request: JsonObject) -> tuple[Json, int]:
        """Return the JSON of the answer, and the number of retries."""
        # `chat.completions.create` validates every part of every message, which took 8 of 10 ms.
        send = functools.partial(self._client.post, path, body=request, cast_to=object)
        return self._ask(send, self._deadline, self._retries)

    def get(self, path: str, *, deadline: float) -> Json:
        """Return the JSON at a path or URL, or the text of an answer that is not JSON. Asks once.

        Raises:
            PolicyError: The server did not answer; `reason` says why, and the SDK's error is its cause.
        """
        return self._ask(functools.partial(self._client.get, path, cast_to=object), deadline, 0)[0]

    def _ask(self, send: Callable[[], Awaitable[Json]], deadline: float, retries: int) -> tuple[Json, int]:
        tried = Retries(retries, self._understand)
        try:
            return self._wait(functools.partial(tried.run, send), deadline), tried.count
        except PolicyError as error:
            error.retries = tried.count
            raise

    def _wait(self, send: Callable[[], Awaitable[Json]], deadline: float) -> Json:
        with self._lock:
            if self._closed:
                raise _make_closed_error()
            waiting = asyncio.run_coroutine_threadsafe(self._call(deadline, send), self._loop)
        try:
            return waiting.result()
        except concurrent.futures.CancelledError:
            raise _make_closed_error() from None
        except TimeoutError:
            raise PolicyError(
                f"no answer from {self._server} within {deadline:g} s", reason="timeout", retryable=True
            ) from None
        except openai.OpenAIError as error:
            raise self._understand(error) from error
        finally:
            waiting.cancel()  # if this thread was interrupted

    def _understand(self, error: openai.OpenAIError) -> PolicyError:
        """Return what a failure of the SDK means, without the API key."""
        if isinstance(error, openai.APIError):
            error.message = without_key(error.message, self._client.api_key)
        return _policy_error(error, self._server)

    def close(self) -> None:
        """End waiting calls with `PolicyError` and close the connections. Idempotent, from any thread."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _call(self, deadline: float, send: Callable[[], Awaitable[Json]]) -> Json:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            return await _send_within(deadline, send)
        finally:
            self._calls.remove(task)

    async def _end(self) -> None:
        calls = list(
            self._calls
        )  # a call ends the tasks of its own: one that connects leaks its socket if cancelled here
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await self._client.close()


async def _read_body(response: Any) -> None:  # of httpx, or of what the SDK uses instead
    """Read the decoded body of an answer; fail once it is too long."""
    parts, size = [], 0
    async for part in response.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size > LONGEST_ANSWER:
            raise PolicyError(f"the server's answer has more than {LONGEST_ANSWER} bytes", reason="bad_reply")
    response._content = b"".join(parts)  # where `aread` keeps it


async def _send_within(deadline: float, send: Callable[[], Awaitable[Json]]) -> Json:
    async with asyncio.timeout(deadline):
        try:
            return await send()
        except (RecursionError, ValueError) as error:  # raised by the SDK for a body that is not JSON
            raise _bad_reply(str(error)) from error


def _read(data: Json, asked: Json) -> ChatReply:
    """Parse an answer as plain data: servers differ in everything but the fields below.

    Args:
        data: The answer.
        asked: Name of the model that was asked.

    Raises:
        PolicyError: It is not a chat completion.
    """
    try:
        choice, named = data["choices"][0], data.get("model")
        usage = _usage(data.get("usage") or {})
        if named and isinstance(named, str) and named != asked:
            usage = usage.model_copy(update={"answered_as": (named[:LONGEST_NAME],)})
        return ChatReply(_message(choice["message"]), choice.get("finish_reason") or "", usage)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise _bad_reply(str(data)) from error


def _message(said: JsonObject) -> JsonObject:
    kept = {key: said[key] for key in _KEPT if said.get(key)}
    for key, value in kept.items():
        if not isinstance(value, list if key == "tool_calls" else str):
            raise TypeError(f"{key} is {type(value).__name__}")
    kept.setdefault("content", None if "tool_calls" in kept else "")
    # Lone surrogates are valid JSON but cannot be sent back.
    clean: JsonObject = json.loads(json.dumps(kept, ensure_ascii=False).encode("utf-8", "replace"))
    return {"role": "assistant", **clean}


def _usage(counts: JsonObject) -> Usage:
    """Return the tokens that a server counts, in OpenAI's form or Anthropic's, whose prompt leaves out cached ones."""
    details = counts.get("prompt_tokens_details") or {}
    read, created = (_number(counts, f"cache_{name}_input_tokens") or 0 for name in ("read", "creation"))
    prompt, completion = (_number(counts, f"{name}_tokens") for name in ("prompt", "completion"))
    if prompt is None and (own := _number(counts, "input_tokens")) is not None:
        prompt = own + read + created
    if completion is None:
        completion = _number(counts, "output_tokens")
    return Usage(
        prompt_tokens=prompt or 0,
        cached_tokens=min(prompt or 0, _number(details, "cached_tokens") or read),
        completion_tokens=completion or 0,
        calls=1,
        uncounted=int(prompt is None or completion is None or not prompt + completion),
    )


def _number(counts: JsonObject, name: str) -> int | None:
    """Return a number of tokens; None if the server does not tell it, or tells what cannot be one."""
    value = counts.get(name)
    return value if isinstance(value, int) and value >= 0 else None


# --- secrets ------------------------------------------------------------------------------------------------


def address_of(url: str, key: str = "") -> str:
    """Return scheme, host, port and path of a URL: no user name, password, query or API key."""
    parts = urllib.parse.urlsplit(url)
    plain = urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))
    return without_key(plain, key)


def without_key(text: str, key: str) -> str:
    """Return what a server said without the API key, which some servers repeat."""
    return text.replace(key, "***") if len(key) >= SHORTEST_KEY else text


# --- proxies ------------------------------------------------------------------------------------------------


def _host(url: str) -> str:
    host = urllib.parse.urlsplit(url).hostname or ""
    return f"[{host}]" if ":" in host else host


def _is_local(url: str) -> bool:
    """Return whether a URL is one of this machine, which no proxy can reach."""
    host = _host(url).strip("[]")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def _by_proxy(url: str) -> str:
    """Return the proxy that the environment sets for a URL, for messages."""
    parts = urllib.parse.urlsplit(url)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or _is_local(url) or urllib.request.proxy_bypass(parts.hostname or ""):
        return ""
    variable = f"{parts.scheme.upper()}_PROXY" if parts.scheme in proxies else "ALL_PROXY"
    shown = address_of(proxy)
    return f" through the proxy {shown} (set by {variable}; NO_PROXY={parts.hostname} connects without it)"


# --- what can go wrong --------------------------------------------------------------------------------------


def _make_closed_error() -> PolicyError:
    return PolicyError("the connection to the model was closed", reason="closed")


def _bad_reply(what: str) -> PolicyError:
    return PolicyError(f"the server's answer is not a chat completion: {what[:200]!r}", reason="bad_reply")


def _policy_error(error: openai.OpenAIError, server: str) -> PolicyError:
    if isinstance(error, openai.APITimeoutError):
        return PolicyError(f"{server} did not answer in time", reason="timeout", retryable=True)
    if isinstance(error.__cause__, PolicyError):
        return error.__cause__
    if isinstance(error, openai.APIConnectionError):
        text = f"no connection to {server}{_by_proxy(server)}: {_first_cause(error)}"
        return PolicyError(text, reason="connection", retryable=True)
    if isinstance(error, openai.APIStatusError):
        return _refusal(error, server)
    return PolicyError(f"{server}: {error}", reason="bad_reply")


def _first_cause(error: BaseException) -> str:
    while cause := error.__cause__ or error.__context__:
        error = cause
    if isinstance(error, OSError) and error.strerror:
        return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
    return repr(error)


def _refusal(error: openai.APIStatusError, server: str) -> PolicyError:
    text = f"{server} answered with status {error.status_code}: {error.message[:500]}"
    if error.status_code == 429:
        return PolicyError(text, reason="rate_limit", retryable=True)
    if error.status_code >= 500 or error.status_code in (408, 409):
        return PolicyError(text, reason="server", retryable=True)
    if error.status_code in (400, 413, 422) and _CONTEXT.search(error.message):
        limit = _LIMIT.search(error.message)
        return ContextExceeded(text, int(limit[1]) if limit else None)
    return PolicyError(text, reason="refused")


class _CachedAnswer(Frozen):
    """The content of a file. The digest is that of the other fields."""

    version: Literal[1] = 1
    key: str
    message: JsonObject
    finish_reason: str
    usage: Usage
    digest: str = ""

    def sign(self) -> _CachedAnswer:
        """Return the entry with its digest."""
        return self.model_copy(update={"digest": _digest(self.model_dump(exclude={"digest"}))})


class AnswerCache:
    """Answers of models in a folder. Its methods may be called from any thread, and by several processes.

    Args:
        folder: The folder; created if it is missing.

    Attributes:
        folder: The folder.

    Raises:
        UsageError: The folder cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).expanduser().absolute()
        self._writing = threading.Lock()  # partial files are named by the process
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not os.access(self.folder, os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied")
        except OSError as error:
            raise UsageError(
                f"cannot keep answers in {self.folder}: {error.strerror}. Make it writable, or choose another folder: "
                "--cache DIR"
            ) from error

    def key(self, server: ModelServer, request: JsonMapping, attempt: int) -> str:
        """Return the key of an answer.

        Args:
            server: Address of the server, and the model as the server names it.
            request: The whole request.
            attempt: Seed of the attempt. Several attempts at a task are different samples.
        """
        return _digest([server.url, server.model, request, attempt])

    def get(self, key: str) -> ChatReply | None:
        """Return an answer; None if there is none, or its file is damaged or another's."""
        try:
            entry = _CachedAnswer.model_validate_json(self._path(key).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValidationError) as error:
            logger.warning("%s is not an answer, and is asked for again: %s", self._path(key), _first_line(error))
            return None
        if entry.key != key or entry != entry.sign():
            logger.warning("%s is damaged or of another request: the answer is asked for again", self._path(key))
            return None
        return ChatReply(entry.message, entry.finish_reason, entry.usage)

    def put(self, key: str, answer: ChatReply) -> None:
        """Keep an answer. A failure to write is logged: the answer is good without it."""
        usage = answer.usage.model_copy(update={"retries": 0})
        entry = _CachedAnswer(key=key, message=answer.message, finish_reason=answer.finish_reason, usage=usage).sign()
        path = self._path(key)
        try:
            with self._writing:
                path.parent.mkdir(exist_ok=True)
                write_text(path, json.dumps(entry.model_dump()) + "\n")
        except OSError as error:
            logger.warning("cannot keep an answer in %s: %s", path, error.strerror)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


def _digest(value: Json) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]
