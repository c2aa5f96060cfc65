"""`RemoteEnv`: an environment on a server of `swe-gym serve`, where the sandboxes are; and its client."""

import contextlib
import json
import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from gymnasium.error import ResetNeeded

from ..actions import parse_action
from ..envs import (
    MAX_ACTION,
    SANDBOX_FAILED,
    SHOWN_TURNS,
    ShownTurn,
    SweEnv,
    ToolEnv,
    draw_turns,
    format_end,
    format_turn,
    format_turns,
)
from ..errors import (
    ActionError,
    MissingDependency,
    SandboxClosed,
    SandboxError,
    SandboxLost,
    SandboxStartError,
    TaskError,
    UsageError,
    unknown_name,
)
from ..spaces import Info, ResetResult, StepResult, Unicode
from ..types import Action, JsonObject, ToolSpec
from .session import MAX_MESSAGE, EnvReply

try:
    from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
    from websockets.sync.client import ClientConnection, connect
except ImportError as error:
    raise MissingDependency(f"RemoteEnv needs websockets: pip install 'swe-gym[remote]' ({error})") from error

MAX_ANSWER = 64 << 20
"""Maximum bytes of an answer of the server."""

CLOSE_SECONDS = 5.0
"""Seconds to wait until the server has closed the sandbox."""


class EnvClient:
    """A session on a server. A message with `reconnect` opens it, `close` ends it. One message at a time.

    Args:
        url: Address of the server.
        token: Token of the server. None reads the variable SWE_GYM_TOKEN.
        timeout: Seconds that an answer may take.
        connect_timeout: Seconds to connect.

    Raises:
        UsageError: The address or the token is invalid.
    """

    def __init__(self, url: str, *, token: str | None, timeout: float, connect_timeout: float) -> None:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise UsageError(f"{url!r} is not the address of a server: write for example http://127.0.0.1:8000")
        self._url, self._timeout, self._connect_timeout = url.rstrip("/"), timeout, connect_timeout
        self._token = (token or os.environ.get("SWE_GYM_TOKEN", "")).strip()  # a file's last line ends with "\n"
        if not self._token.isprintable():
            raise UsageError("the token has characters that no HTTP header may have, such as a line break")
        self._connection: ClientConnection | None = None
        self._lock = threading.Lock()  # held during a call
        self._closed = False  # since the last call began

    def close(self) -> None:
        """Close the session. Idempotent, from any thread; a running call ends within seconds."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._lock.acquire(blocking=False):  # the server answers once the sandbox is closed
            try:
                with contextlib.suppress(WebSocketException, OSError):
                    connection.send(json.dumps({"type": "close"}))
                    connection.recv(CLOSE_SECONDS)
            finally:
                self._lock.release()
        connection.close()

    def ask(self, kind: str, data: JsonObject | None = None, *, reconnect: bool = False) -> JsonObject:
        """Send a message and return the data of the answer.

        Args:
            kind: Type of the message.
            data: Its data.
            reconnect: Whether to open a session if there is none.

        Raises:
            UsageError: The server refused it.
            SandboxStartError: The server cannot be reached, or is full.
            SandboxLost: The connection was lost, or the server did not answer in time.
            SandboxClosed: The environment was closed meanwhile.
        """
        message = json.dumps({"type": kind} if data is None else {"type": kind, "data": data})
        with self._lock:
            self._closed = False
            if reconnect and not self._is_open():
                self._connection = opened = self._connect()
                if self._closed:  # while it connected
                    self._connection = None
                    opened.close()
            connection = self._connection
            if connection is None:
                raise SandboxClosed("the environment was closed")
            try:
                return self._exchange(connection, message)
            except SandboxError as error:
                closed, self._connection = self._connection is None, None
                connection.close()
                if closed:
                    raise SandboxClosed("the environment was closed during the call") from error
                raise

    def _exchange(self, connection: ClientConnection, message: str) -> JsonObject:
        try:
            with contextlib.suppress(ConnectionClosed):  # perhaps an error was sent before: read it
                connection.send(message)
            return _data(json.loads(connection.recv(self._timeout)))
        except UsageError:
            raise
        except TimeoutError as error:
            raise SandboxLost(f"the server did not answer within {self._timeout:g} s", reason="server") from error
        except (WebSocketException, OSError) as error:
            raise SandboxLost(f"the connection to the server was lost: {error}", reason="server") from error
        except (ValueError, KeyError, TypeError) as error:
            raise SandboxLost(f"the server sent an invalid answer: {error}", reason="server") from error

    def _is_open(self) -> bool:
        """Return whether the session is there; the server may have closed it while it was idle."""
        if self._connection is not None:
            with contextlib.suppress(WebSocketException, OSError):
                self._connection.ping()
                return self._connection.close_code is None
        return False

    def _connect(self) -> ClientConnection:
        local = urlsplit(self._url).hostname in ("127.0.0.1", "localhost", "::1")
        try:
            connection = connect(
                f"ws{self._url.removeprefix('http')}/ws",
                additional_headers={"Authorization": f"Bearer {self._token}"} if self._token else {},
                open_timeout=self._connect_timeout,
                close_timeout=1.0,
                max_size=MAX_ANSWER,
                compression=None,
                proxy=None if local else True,
            ).__enter__()  # what all versions of the library have in common; `close` ends it
        except InvalidStatus as error:
            said = (error.response.body or b"").decode("utf-8", "replace").strip()
            if error.response.status_code == 401:
                said = "missing or wrong token: pass token=..., or set SWE_GYM_TOKEN"
            raise UsageError(f"{self._url} refused the connection ({error.response.status_code}): {said}") from error
        except (WebSocketException, OSError) as error:
            raise SandboxStartError(f"cannot connect to {self._url}: {error}", retryable=True) from error
        wait = struct.pack("ll", int(self._connect_timeout) + 1, 0)
        with contextlib.suppress(OSError):  # the server closed it: the first message tells why
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)  # `send` has no deadline
        return connection


def _data(answer: JsonObject) -> JsonObject:
    """Return the data of an answer.

    Raises:
        UsageError: It is an error of the caller.
        SandboxStartError: The server is full.
        SandboxLost: The server closed the session.
    """
    data: JsonObject = answer["data"]
    if answer["type"] != "error":
        return data
    code, message = data["code"], data["message"]
    if code == "CAPACITY_REACHED":
        raise SandboxStartError(f"the server is full: {message}", reason="capacity", retryable=True)
    if code == "SESSION_ERROR":
        raise SandboxLost(f"the server closed the session: {message}", reason="expired")
    raise UsageError(str(message))


LONGEST_SENT = MAX_MESSAGE // 12 - 1000
"""Maximum characters of an action that are sent, more than are valid. JSON takes up to 12 bytes for each."""


class RemoteEnv(ToolEnv):
    """An environment on a server: the observations, rewards, infos and spaces are those of the server's environment.

    Nothing is sent before it is needed. Each environment has one session on the server from `reset` to `close`. If the
    server is lost, the episode ends as after any infrastructure failure: truncated, with `info["outcome"]`
    "infra_failed" and `info["reward_valid"]` False; the next `reset` connects again.

    Args:
        url: Address of the server, for example "http://127.0.0.1:8000".
        token: Token of the server. None: the variable SWE_GYM_TOKEN.
        timeout: Seconds that a `reset` or a `step` may take, grading included.
        connect_timeout: Seconds to connect.
        render_mode: "ansi", "human" or "rgb_array", rendered here.

    Raises:
        UsageError: The address, the token or the render mode is invalid.
    """

    metadata = SweEnv.metadata

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: float = 1800.0,
        connect_timeout: float = 10.0,
        render_mode: str | None = None,
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise unknown_name("render mode", str(render_mode), self.metadata["render_modes"])
        given: JsonObject = {"token": token, "timeout": timeout, "connect_timeout": connect_timeout}
        self._copy = partial(RemoteEnv, url, **given, render_mode=render_mode)
        self._make_client = partial(EnvClient, url, **given)
        self._client = self._make_client()
        self.render_mode = render_mode
        self._served: JsonObject | None = None
        self._spaces: dict[str, Unicode] = {}
        self._running = False
        self._info: Info = {}
        self._stats: JsonObject = {}
        self._judged_diff = self._action = ""
        self._shown: deque[ShownTurn] = deque(maxlen=SHOWN_TURNS)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a copy without a session."""
        return self._copy, ()

    # --- the Gymnasium verbs ------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> ResetResult[str]:
        """Start an episode on the server.

        Raises:
            UsageError: The server refused the token, the task or an option.
            SandboxStartError: The server cannot be reached or is full, or the sandbox did not start.
            SandboxLost: The server was lost.
            TaskError: The task is broken.
        """
        super().reset(seed=seed)
        self._running = False
        self._shown.clear()
        self._judged_diff = self._action = ""
        answer = _read(self._client.ask("reset", {"seed": seed, "options": options}, reconnect=True))
        observation, info = answer.text, answer.metadata["info"]
        if answer.done:
            raise _start_error(info)
        self._info, self._running = info, True
        self._read_state()
        self._show("", observation)
        return observation, dict(info)

    def step(self, action: str) -> StepResult[str]:
        """Take a step on the server. No text raises, nor does the loss of the server.

        Raises:
            ResetNeeded: No episode is running.
            UsageError: The action is not text.
        """
        if not isinstance(action, str):
            raise UsageError(
                f"an action must be text, not {type(action).__name__}: pass a message as json.dumps(message)"
            )
        self._check_running()
        self._action = action
        result = self._advance({"text": action[:LONGEST_SENT]}, turns=1)
        self._show(action, result[0])
        self._show_end(result)
        return result

    def end(self, limit: str) -> StepResult[str]:
        """End the episode at a limit, as `SweEnv.end` does. Raises the same errors."""
        if not limit:
            raise UsageError("end() needs the name of the limit that was reached")
        self._check_running()
        result = self._advance({"text": "", "metadata": {"limit": limit}}, turns=0)
        self._show_end(result)
        return result

    def render(self) -> Any:
        """Return the last turns as `SweEnv.render` does."""
        if self.render_mode == "ansi":
            return format_turns(list(self._shown))
        return draw_turns(list(self._shown)) if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        """Close the session on the server. Idempotent, from any thread; a running call ends within seconds."""
        self._running = False
        self._client.close()

    # --- beyond Gymnasium ---------------------------------------------------------------------------------------

    @property
    def observation_space(self) -> Unicode:  # type: ignore[override]  # asked from the server when it is needed
        """The server's observation space."""
        return self._space("observation")

    @property
    def action_space(self) -> Unicode:  # type: ignore[override]  # as above
        """The server's action space."""
        return self._space("action")

    @property
    def config(self) -> JsonObject:
        """The arguments of the server's environment."""
        return dict(self._description.get("config", {}))

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """The tools of the policy, in the form that LLM APIs take."""
        return tuple(ToolSpec(**spec) for spec in self._description.get("tools", []))

    @property
    def last_action(self) -> Action | None:
        """The last action as parsed; None if it held no valid call."""
        if len(self._action) > MAX_ACTION:
            return None
        try:
            return parse_action(self._action, self.tools, format=self.config["action_format"])
        except (ActionError, KeyError):
            return None

    @property
    def stats(self) -> JsonObject:
        """Details beyond `info`, as of the reset or the end of the episode."""
        nothing = {"repo": "", "seconds": {}, "sandbox_id": "", "sandbox": {}, "cheat_signs": [], "set_back": []}
        return {**nothing, **self._stats, "failure": self._info.get("failure", "")}

    @property
    def judged_diff(self) -> str:
        """The graded work as a git diff; empty before the end of the episode."""
        return self._judged_diff

    # --- internals ----------------------------------------------------------------------------------------------

    def _check_running(self) -> None:
        if not self._running:
            raise ResetNeeded("there is no running episode: call reset() first")

    def _advance(self, data: JsonObject, turns: int) -> StepResult[str]:
        try:
            text, reward, done, metadata = _read(self._client.ask("step", data))
        except (SandboxError, UsageError) as error:
            return self._end_lost(error, turns)
        self._info = metadata["info"]
        if done:
            self._running = False
            self._read_state()
        return text, reward or 0.0, metadata["terminated"], metadata["truncated"], dict(self._info)

    def _end_lost(self, error: Exception, turns: int) -> StepResult[str]:
        """Return the end of an episode whose server was lost."""
        self._running = False
        reason = getattr(error, "reason", "unknown")
        name = f"{type(error).__name__} ({reason})" if reason != "unknown" else type(error).__name__
        nothing = {"tool": "", "tool_ok": False, "exit_code": -1}
        over = {"outcome": "infra_failed", "reward_valid": False, "resolved": False, "failure": f"{name}: {error}"}
        self._info = {**self._info, **nothing, **over, "turn": self._info.get("turn", 0) + turns}
        return SANDBOX_FAILED, 0.0, False, True, dict(self._info)

    def _read_state(self) -> None:
        """Fetch what is not in infos. A failure leaves it out: the next step meets it again."""
        with contextlib.suppress(SandboxError, UsageError):
            state = self._client.ask("state")
            self._stats, self._judged_diff = state.get("stats", {}), state.get("judged_diff", "")
            self._served = self._served or state

    @property
    def _description(self) -> JsonObject:
        """What the server says of its environment. Asked in a short session if there is none.

        Raises:
            UsageError: The server refused the token.
            SandboxError: The server cannot be reached.
        """
        if self._served is None:
            with contextlib.closing(self._make_client()) as client:
                self._served = client.ask("state", reconnect=True)
        return self._served

    def _space(self, kind: str) -> Unicode:
        if kind not in self._spaces:
            said = self._description["spaces"][kind]
            self._spaces[kind] = Unicode(said["max_length"], examples=said["examples"])
        return self._spaces[kind]

    def _show(self, action: str, observation: str) -> None:
        turn = ShownTurn(self._info.get("turn", 0), action, observation)
        self._shown.append(turn)
        if self.render_mode == "human":
            print(format_turn(turn), flush=True)  # noqa: T201  this mode prints

    def _show_end(self, result: StepResult[str]) -> None:
        _, reward, terminated, truncated, info = result
        if self.render_mode == "human" and (terminated or truncated):
            print(format_end(info, reward), flush=True)  # noqa: T201  as above


def _read(data: JsonObject) -> EnvReply:
    """Read an observation.

    Raises:
        SandboxLost: It is not one of swe_gym.
    """
    try:
        reward = None if data["reward"] is None else float(data["reward"])
        metadata = {name: data["metadata"][name] for name in ("terminated", "truncated", "info")}
        return EnvReply(str(data["observation"]["text"]), reward, bool(data["done"]), metadata)
    except (KeyError, TypeError, ValueError) as error:
        raise SandboxLost(f"the server does not offer an environment of texts: {error}", reason="server") from error


def _start_error(info: Info) -> SandboxError | TaskError:
    """Return the error of a reset that failed on the server."""
    kind, failure = info["failure"].partition(":")[0], f"on the server: {info['failure']}"
    broken = kind in ("TaskError", "MissingInterpreter")
    return TaskError(failure) if broken else SandboxStartError(failure, retryable=info["retryable"])
