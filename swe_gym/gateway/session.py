"""`Session`: the door through which the agent of one episode reaches its model.

A `Flight` is the sampling of a call, for one request or several equal ones.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import json
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Iterator

from pydantic import Field

from ..errors import PolicyError
from ..rollout import RolloutBudget
from ..rollout.policies import PolicyReport
from ..sandboxes import Connection
from ..trajectories import Turn, Usage
from ..types import Json, JsonObject
from .calls import Answer, Call, Refusal, digest, digests_of
from .history import AnsweredCall, CallHistory, CallPlace, Reason
from .http import HttpLimits, HttpRequest, HttpResponse, serve
from .parsing import parse_json
from .protocols import Dialect, Target, find_target, speaker
from .record import OnTurn, Record, segments_of
from .sampler import Sampler, refuse_errors, sample
from .tool_calls import specs_of

POLL = 0.5
"""Seconds after which a waiting call is checked for an agent that hung up."""


class Flight:
    """The sampling of a call, for one request or several equal ones. Guarded by the session's lock."""

    def __init__(self, key: bytes, number: int) -> None:
        self.key, self.number = key, number
        self.result: concurrent.futures.Future[Answer] = concurrent.futures.Future()
        self.node: AnsweredCall | None = None
        self.failed = self.delivered = False
        self.waiting = 1
        self.abandoned = threading.Event()

    def serves(self, *, again: bool) -> bool:
        """Return whether its answer is the one to an equal request: a retry, or the first one was cut off."""
        return not self.failed and (again or (not self.taken and not self.waiting))

    @property
    def taken(self) -> bool:
        """Whether the agent took the answer."""
        return self.delivered or (self.node is not None and self.node.taken)

    def join(self) -> None:
        """Add a request."""
        self.waiting += 1
        self.abandoned.clear()

    def leave(self, *, delivered: bool) -> None:
        """Remove a request."""
        self.waiting -= 1
        self.delivered = self.delivered or delivered
        if not self.waiting:
            self.abandoned.set()

    def wait(self, request: HttpRequest, seconds: float) -> Answer | None:
        """Return the answer; None if there is none yet.

        Raises:
            Refusal: The call failed.
            ConnectionError: The agent hung up.
        """
        deadline, answer = time.monotonic() + seconds, None
        while answer is None and (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                answer = self.result.result(min(left, POLL))
            if not request.alive():
                raise ConnectionError("the agent hung up")
        return answer


def events_of(
    dialect: Dialect, call: Call, flight: Flight, request: HttpRequest, wait: float, *, late: bool
) -> Iterator[bytes]:
    """Yield the events of an answer, and until it is there a sign of life every `wait` seconds, at once if `late`."""
    if late:
        yield dialect.PING
    try:
        while (answer := flight.wait(request, wait)) is None:
            yield dialect.PING
    except Refusal as refusal:
        yield dialect.error_event(refusal)
    else:
        yield b"".join(dialect.events(call, answer))


logger = logging.getLogger(__name__)

CLOSE = 5.0
"""Seconds that connections have to end."""

REFUSED = 1000
"""Refused requests after which the door stays shut: the agent is not going to stop."""

REQUESTS = 50_000
"""Requests of any kind after which the door stays shut."""

RECEIVED = 4 << 30
"""Bytes of requests after which the door stays shut."""

TOLD = 50
"""Number of settings without effect after which no more are logged."""

NO_RETRY = (("x-should-retry", "false"),)
"""Tells the SDKs of OpenAI and Anthropic that another try is pointless."""


class Limits(RolloutBudget):
    """Limits of one episode's agent. None means no limit.

    Once one is reached, every call gets the status 403, which no agent retries, and the work is graded as it is.

    Attributes:
        calls: Answered calls.
        history: Bytes of messages to remember.
        connections: Connections at once. The last one ends the connection that is idle for longest. If none is idle,
            further ones are closed.
        http: Limits on each connection.
    """

    calls: int | None = Field(default=1000, ge=1)
    history: int = Field(default=256 << 20, ge=1)
    connections: int = Field(default=64, ge=1)
    http: HttpLimits = HttpLimits()


class Session:
    """One episode's door to a model. Give `handle` to `Sandbox.forward`. Thread-safe.

    It answers the calls of OpenAI's chat completions and Responses, of Anthropic's Messages and of Google's
    generateContent, whatever the name of the model that the agent asks for.

    Args:
        sampler: Answers calls. It may be shared by many sessions.
        limits: Limits of the episode.
        on_turn: Called with each complete turn, in one thread at a time. It must not raise.
        seed: Sampling seed; the number of the call is added.

    Attributes:
        limit: Limit that was reached: "calls", "tokens", "cost", "time" or "history"; empty if none was.
        failure: Error of the sampler. The episode then has no reward.
    """

    def __init__(
        self,
        sampler: Sampler,
        *,
        limits: Limits | None = None,
        on_turn: OnTurn | None = None,
        seed: int | None = None,
    ) -> None:
        self.limit = ""
        self.failure: PolicyError | None = None
        self._sampler, self._limits, self._seed = sampler, limits or Limits(), seed
        self._history, self._record = CallHistory(), Record(on_turn)
        self._lock = threading.RLock()  # guards everything below and the two above
        self._ended = threading.Condition(self._lock)
        self._flights: dict[bytes, Flight] = {}
        self._connections: set[Connection] = set()
        self._idle: dict[Connection, None] = {}  # those of them that wait for another request, the longest first
        self._ignored: set[str] = set()
        self._usage = Usage()
        self._started = time.monotonic()
        self._asked = self._running = self._bytes = 0
        self._requests = self._received = self._refused = 0
        self._closed = False

    # --- results --------------------------------------------------------------------------------------------

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The complete turns. After `close`, a turn for each answer."""
        with self._lock:
            return self._record.turns

    @property
    def reasons(self) -> Counter[str]:
        """Number of answers by the reason for which they start a segment. The first one has no reason."""
        with self._lock:
            return Counter(node.reason for node in self._history.nodes if node.used and node.reason)

    def report(self) -> PolicyReport:
        """Return the usage of all calls, the main conversation with its tools, and all tokens so far.

        The main conversation is the one with most answers, compactions included; the last of equal ones.
        """
        with self._lock:
            nodes = list(self._history.nodes)
            usage = self._usage
            tools = dict(self._history.tools)
        used = [node for node in nodes if node.used]
        main = max(reversed(used), key=lambda node: node.depth, default=None)
        return PolicyReport(
            policy=self._sampler.info,
            usage=usage,
            messages=tuple(main.messages) if main else (),
            segments=segments_of(used),
            tools=tuple(specs_of(tools[main.place.tools])) if main else (),
        )

    def close(self) -> None:
        """End all connections and complete all turns. Answers that are still sampled are not used. Idempotent."""
        with self._lock:
            self._closed = True
            connections = list(self._connections)
        for connection in connections:
            connection.close()
        with self._lock:
            self._ended.wait_for(lambda: not self._connections, CLOSE)
            self._flights.clear()
            self._history.close()
            self._record.close()

    # --- connections ----------------------------------------------------------------------------------------

    def handle(self, connection: Connection) -> None:
        """Serve a connection until its end. Never raises for what the agent does."""
        evicted = None
        with self._lock:
            shut = self._closed or self._shut or len(self._connections) >= self._limits.connections
            if not shut:
                self._connections.add(connection)
                if len(self._connections) == self._limits.connections:
                    evicted = next(iter(self._idle), None)
        if shut or evicted:
            (evicted or connection).close()
        if shut:
            return
        try:
            serve(connection, self._respond, self._limits.http, functools.partial(self._rests, connection))
        finally:
            with self._lock:
                self._connections.discard(connection)
                self._idle.pop(connection, None)
                self._ended.notify_all()

    def _rests(self, connection: Connection, idle: bool) -> None:
        """Note whether a connection waits for a request."""
        with self._lock:
            self._idle.pop(connection, None)
            if idle:
                self._idle[connection] = None

    @property
    def _shut(self) -> bool:
        """Whether the agent has sent so much that it is not going to stop."""
        return self._refused > REFUSED or self._requests > REQUESTS or self._received > RECEIVED

    def _respond(self, request: HttpRequest) -> HttpResponse:
        with self._lock:
            self._requests += 1
            self._received += request.size
        path = _path(request.path)
        target = find_target(path)
        dialect = target.dialect if target else speaker(path, request.headers)
        try:
            return self._route(request, path, target, dialect)
        except Refusal as refusal:
            return self._refusal(refusal, dialect)
        except ConnectionError:
            raise
        except Exception as error:
            logger.exception("the gateway failed")
            self._fail(PolicyError(f"the gateway failed: {error!r}"))
            return self._refusal(Refusal(500, "the gateway failed"), dialect)

    def _refusal(self, refusal: Refusal, dialect: Dialect) -> HttpResponse:
        with self._lock:
            self._refused += 1
            shut = self._shut
        headers = () if refusal.status == 429 else NO_RETRY
        return HttpResponse(refusal.status, dialect.error(refusal), (*headers, *([("Connection", "close")] * shut)))

    def _route(self, request: HttpRequest, path: str, target: Target | None, dialect: Dialect) -> HttpResponse:
        if self._shut:
            raise Refusal(403, "too many requests")
        if request.method in ("GET", "HEAD"):
            return self._look_up(path, dialect)
        if request.method != "POST" or target is None:
            raise Refusal(404, f"unknown call: {request.method} {request.path[:200]}")
        with refuse_errors("the request cannot be read"):
            call = dialect.read({**_json(request.take_body()), **target.fields})
            if not call.messages:
                raise Refusal(400, "expected at least one message")
            if target.counts:
                return HttpResponse(200, {target.counts: self._sampler.count(call)})
        return self._answer(request, dialect, call)

    def _look_up(self, path: str, dialect: Dialect) -> HttpResponse:
        path = path.removeprefix("/v1beta")
        if path in ("", "/"):
            return HttpResponse(200, {})
        if path == "/models":
            return HttpResponse(200, dialect.models([self._sampler.model]))
        if path.startswith("/models/"):
            return HttpResponse(200, dialect.model(path.removeprefix("/models/")))
        raise Refusal(404, f"unknown path: {path[:200]}")

    # --- calls ----------------------------------------------------------------------------------------------

    def _answer(self, request: HttpRequest, dialect: Dialect, call: Call) -> HttpResponse:
        self._tell_ignored(call)
        flight = self._flight(request, call)
        try:
            answer = flight.wait(request, self._limits.http.wait if call.stream else math.inf)
            if answer is not None and not call.stream:
                with refuse_errors("the answer cannot be written"):
                    body: JsonObject | Iterator[bytes] = dialect.write(call, answer)
            else:
                body = events_of(dialect, call, flight, request, self._limits.http.wait, late=answer is None)
        except BaseException:
            self._note_left(flight, False)
            raise
        return HttpResponse(200, body, sent=functools.partial(self._note_left, flight))

    def _tell_ignored(self, call: Call) -> None:
        """Log once which fields of the agent's calls have no effect."""
        known = self._sampler.settings
        idle = {name for name, value in call.settings.items() if not known & {name, f"{name}={value}"}}
        with self._lock:
            new = {*call.ignored, *idle} - self._ignored
            if not new or len(self._ignored) > TOLD:
                return
            self._ignored |= new
        logger.info("settings of the agent without effect: %s", sorted(new)[:TOLD])

    def _flight(self, request: HttpRequest, call: Call) -> Flight:
        """Return the sampling of a call, perhaps of an earlier request that this one repeats."""
        with refuse_errors("the messages cannot be compared"):
            digests = digests_of(call)
            key = digest([digests.paths[-1].hex(), digests.tools.hex(), call.model, call.max_tokens, call.settings])
        again = request.headers.get("x-stainless-retry-count", "0") != "0"  # sent by the SDKs of OpenAI and Anthropic
        known = self._flights.get(key)
        if known is not None and not known.taken and not again:
            known.abandoned.wait(3 * POLL)  # the agent may have hung up just now
        with self._lock:
            known = self._flights.get(key)
            if known is not None and known.serves(again=again):
                known.join()
                return known
            self._check_limits(request.size)
            tools = () if digests.tools in self._history.tools else call.tools
            with refuse_errors("the messages cannot be compared"):
                place = self._history.place(call, digests, key)
            flight = self._flights[key] = Flight(key, self._asked)
            self._asked += 1
            self._running += 1
            self._bytes += len(json.dumps([place.new, tools])) if place.continues else request.size
            self._record.called(place)
        threading.Thread(target=self._sample, args=(flight, call, place), name="agent call", daemon=True).start()
        return flight

    def _check_limits(self, size: int) -> None:
        """Raise Refusal if the episode is over for the agent, or too much runs at once."""
        limits = self._limits
        if self.failure is not None:
            raise Refusal(403, "the model has failed, so the episode is over")
        if not self.limit:
            calls = "calls" if limits.calls is not None and self._asked >= limits.calls else ""
            memory = "history" if self._bytes + size > limits.history else ""
            self.limit = calls or memory or limits.used_up(self._usage, time.monotonic() - self._started)
        if self.limit:
            raise Refusal(403, f"the episode is over: its limit on {self.limit} is reached")
        if self._closed:
            raise Refusal(403, "the episode is over")
        if self._running >= limits.connections:
            raise Refusal(429, f"{self._running} calls are waiting for the model")

    def _sample(self, flight: Flight, call: Call, place: CallPlace) -> None:
        started = time.monotonic()
        seed = None if self._seed is None else self._seed + flight.number
        try:
            answer = sample(self._sampler, call, place, seed=seed)
            with self._lock:
                flight.node = self._add(flight, place, answer, started)
                if not flight.waiting:
                    self._history.drop(flight.node)
                self._running -= 1
                flight.result.set_result(answer)
        except Exception as error:  # noqa: BLE001  becomes the answer of the waiting requests
            with self._lock:
                self._running -= 1
                self._usage += Usage(retries=getattr(error, "retries", 0))
                self._history.fail(place)
                flight.failed = True
                flight.result.set_exception(self._understand(error))

    def _add(self, flight: Flight, place: CallPlace, answer: Answer, started: float) -> AnsweredCall:
        rewritten = place.continues and not place.reason and answer.tokens is not None and not answer.tokens.extends
        ended = time.monotonic()
        node = AnsweredCall(
            number=len(self._history.nodes),
            place=place,
            key=flight.key,
            answer=answer,
            reason=_rewriting(place) if rewritten else place.reason,
            seconds=ended - started,
            ended=ended,
        )
        self._usage += answer.usage
        if not self._history.closed:
            self._history.add(node)
            self._record.answered(node)
        return node

    def _understand(self, error: Exception) -> Refusal:
        """Return what the agent is told of a failed call."""
        if isinstance(error, Refusal):
            return error
        if not isinstance(error, PolicyError):
            logger.error("the sampler failed", exc_info=error)
            failure = PolicyError(f"the sampler failed: {error!r}")
            failure.__cause__ = error
            error = failure
        self._fail(error)
        return Refusal(500, "the model failed")

    def _fail(self, error: PolicyError) -> None:
        with self._lock:
            self.failure = self.failure or error

    def _note_left(self, flight: Flight, delivered: bool) -> None:
        """Note that a request is over, and whether the agent took the answer."""
        with self._lock:
            flight.leave(delivered=delivered)
            if flight.node is None:
                return
            if flight.delivered:
                self._history.take(flight.node)
            elif not flight.waiting:
                self._history.drop(flight.node)


def _rewriting(place: CallPlace) -> Reason:
    """Return why a conversation that continues is rendered anew."""
    same = place.parent is None or place.parent.answer.same
    return "template_rewrites_history" if same else "answer_rewritten"


def _path(path: str) -> str:
    """Return a path without a slash at its end and `/v1`, which agents add to an address that has it already."""
    path = path.rstrip("/")
    while path.startswith("/v1/"):
        path = path.removeprefix("/v1")
    return "" if path == "/v1" else path


def _json(body: bytes) -> JsonObject:
    """Parse a body.

    Raises:
        Refusal: It is not a JSON object.
    """
    try:
        value: Json = parse_json(body.decode("utf-8-sig"))
    except ValueError as error:
        raise Refusal(400, f"the body is not JSON: {str(error)[:200]}") from error
    if not isinstance(value, dict):
        raise Refusal(400, "the body is not a JSON object")
    return value
