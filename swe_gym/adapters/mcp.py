"""An environment as a server of the Model Context Protocol, over standard input and output or streamable HTTP.

The calls of the client are the actions of one episode, which the rollout engine plays into a run folder. The server
runs in a thread of its own, the engine in the caller's: a SIGTERM closes every sandbox.
"""

import asyncio
import contextlib
import logging
import os
import queue
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium

from ..actions import render_call
from ..errors import MissingDependency, PolicyError, SandboxError, SweGymError, UsageError
from ..rollout import LiveEpisode, Plan, RolloutOptions, rollout
from ..rollout.policies import EpisodeSettings, PolicyReport
from ..spaces import Info
from ..threads import in_thread
from ..tools import ENDING
from ..trajectories import PolicyInfo, Turn
from ..types import ToolCall, ToolSpec

try:
    import anyio
    import mcp_types as protocol
    import uvicorn
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from starlette.requests import HTTPConnection
    from starlette.responses import PlainTextResponse
except ImportError as error:
    raise MissingDependency("the MCP server needs the MCP SDK: pip install 'swe-gym[mcp]'") from error

logger = logging.getLogger(__name__)

START = ToolSpec(
    name="start_task",
    description="Start the task and return its problem statement. Call this first. Calling it again repeats it.",
    parameters={"type": "object", "properties": {}},
)
"""The tool that returns the issue. Clients show a model all tools, but prompts and resources only on demand."""

INSTRUCTIONS = (
    f"A software-engineering task. Call `{START.name}` first: it returns the problem statement. All work happens in "
    "the task's own sandbox, through the tools of this server. Call `{ending}` when the work is done: it ends the task."
)
NOT_STARTED = f"The task has not started: call {START.name} first."
OVER = "The task is over. Restart the server to play another one."
FAILED = "The task could not start or its sandbox was lost. See the server's standard error."

PROGRESS_SECONDS = 5.0
"""Seconds between two notifications of progress."""

END_SECONDS = 20.0
"""Seconds for an interrupted command, or the server itself, to end."""

PATH = "/mcp"

CLOSE_SECONDS = 5
"""Seconds in which clients of an HTTP server must take their answers once the task is over."""

BLOCK = 1 << 16


class ToolReply(NamedTuple):
    """The answer to a call."""

    text: str
    ok: bool = True


class _ClientCall(NamedTuple):
    """A call of the client that waits for its turn or runs."""

    name: str
    action: str
    reply: "Future[ToolReply]"


class ClientPlayer:
    """Plays one episode with the calls of a client, one after another. It makes itself the policy of its plan.

    Args:
        plan: A plan of one episode.
    """

    def __init__(self, plan: Plan) -> None:
        env = plan.config()["env"]
        self._format, self._patience = env["action_format"], min(env["time_limit"], threading.TIMEOUT_MAX)
        self._begin = threading.Event()
        self._issue: Future[ToolReply] = Future()
        self._inbox: queue.SimpleQueue[_ClientCall | None] = queue.SimpleQueue()
        self._running: _ClientCall | None = None
        self._running_lock = threading.Lock()  # held while the running call must not change
        self._lock = threading.Lock()
        self._left = self._over = False
        self._env: gymnasium.Env[str, str] | None = None
        self.client: dict[str, str] = {}

    # --- called by the server; none of these blocks ----------------------------------------------------------------

    def start(self) -> "Future[ToolReply]":
        """Start the episode unless it has started. Return its first observation."""
        self._begin.set()
        return self._issue

    def call(self, call: ToolCall) -> "Future[ToolReply]":
        """Queue a call, and return the observation that answers it."""
        reply: Future[ToolReply] = Future()
        with self._lock:
            if self._over or not self._issue.done():
                reply.set_result(ToolReply(OVER if self._over else NOT_STARTED, ok=False))
                return reply
            try:
                action = render_call(call, self._format)
            except UsageError as error:
                reply.set_result(ToolReply(str(error), ok=False))
            else:
                self._inbox.put(_ClientCall(call.name, action, reply))
        return reply

    def cancel(self, reply: "Future[ToolReply]") -> None:
        """Withdraw a call that waits, and end the commands of one that runs. The grading of work is not interrupted."""
        if not reply.cancel():
            in_thread(lambda: self._interrupt(reply), "cancelled call")

    def leave(self) -> None:
        """End the episode, as the client is gone. Work that is being graded is graded to its end."""
        with self._lock:
            self._left = True
        self._inbox.put(None)
        self._begin.set()
        running = self._running
        if self._env is not None and not (running and running.name in ENDING):
            in_thread(self._env.close, "client left")

    def _interrupt(self, reply: "Future[ToolReply]") -> None:
        with self._running_lock, contextlib.suppress(SandboxError):  # the command reports it
            running, env = self._running, self._env
            if running and running.reply is reply and running.name not in ENDING and env is not None:
                env.unwrapped.sandbox.end_processes(commands=True, timeout=END_SECONDS)  # type: ignore[attr-defined]

    # --- called by the engine --------------------------------------------------------------------------------------

    def wait(self) -> bool:
        """Wait until the client starts the episode. Return whether it does: it may leave before."""
        self._begin.wait()
        return not self._left

    def __call__(self, env: gymnasium.Env[str, str], *, seed: int | None = None) -> "ClientPlayer":  # noqa: ARG002
        """Return the player of the episode."""
        self._env = env.unwrapped
        return self

    def episode(self, env: gymnasium.Env[str, str], settings: EpisodeSettings) -> LiveEpisode:
        """See `Player.episode`."""

        def answer(turn: Turn) -> None:
            try:
                if settings.on_turn is not None:
                    settings.on_turn(turn)
            finally:
                self._answer(turn)

        if self._left:
            raise PolicyError("the client left", reason="closed")
        return LiveEpisode(env, self, settings._replace(on_turn=answer))

    def reset(self, info: Info) -> None:
        """See `Policy.reset`."""

    def act(self, observation: str) -> str:
        """Return the next call of the client as an action.

        Raises:
            PolicyError: The client left, or called nothing for as long as the episode may take.
        """
        if not self._issue.done():
            self._issue.set_result(ToolReply(observation))
        while True:
            try:
                call = self._inbox.get(timeout=self._patience)
            except queue.Empty as error:
                raise PolicyError(f"the client called no tool for {self._patience:g} s", reason="timeout") from error
            if call is None:
                raise PolicyError("the client left", reason="closed")
            if call.reply.set_running_or_notify_cancel():
                self._running = call
                return call.action

    def _answer(self, turn: Turn) -> None:
        with self._running_lock:
            call, self._running = self._running, None
        if turn.terminated or turn.truncated:
            with self._lock:
                self._over = True
        if call is not None:
            valid = turn.info["reward_valid"] or not (turn.terminated or turn.truncated)
            call.reply.set_result(ToolReply(turn.observation, bool(turn.info["tool_ok"] and valid)))

    def report(self) -> PolicyReport:
        """See `ReportingPolicy.report`."""
        return PolicyReport(policy=PolicyInfo(name="mcp", options=dict(self.client)))

    def close(self) -> None:
        """End the episode: the engine was told to stop."""
        self._inbox.put(None)

    def finish(self) -> None:
        """Answer everything that still waits: the episode is over."""
        with self._lock:
            self._over = True
        if not self._issue.done():
            self._issue.set_result(ToolReply(FAILED, ok=False))
        waiting = [self._running] if self._running else []
        with contextlib.suppress(queue.Empty):
            while True:
                waiting += filter(None, [self._inbox.get_nowait()])
        for call in waiting:
            if call.reply.running() or call.reply.set_running_or_notify_cancel():
                call.reply.set_result(ToolReply(FAILED if call is self._running else OVER, ok=False))


class _Handlers:
    """The answers of the server."""

    def __init__(self, player: ClientPlayer, tools: list[ToolSpec]) -> None:
        self._player = player
        self._tools = [START, *tools]

    async def list_tools(self, _: Any, __: Any) -> protocol.ListToolsResult:
        described = [
            protocol.Tool(name=spec.name, description=spec.description, input_schema=spec.parameters)
            for spec in self._tools
        ]
        return protocol.ListToolsResult(tools=described)

    async def call_tool(self, context: Any, asked: Any) -> protocol.CallToolResult:
        if parameters := context.session.client_params:
            info = parameters.client_info
            self._player.client = {"client": info.name, "client_version": info.version}
        if asked.name == START.name:
            reply = await self._wait(context, self._player.start())
        else:
            future = self._player.call(ToolCall(name=asked.name, arguments=asked.arguments or {}))
            try:
                reply = await self._wait(context, future)
            except asyncio.CancelledError:
                self._player.cancel(future)
                raise
        content = protocol.TextContent(type="text", text=reply.text)
        return protocol.CallToolResult(content=[content], is_error=not reply.ok)

    @staticmethod
    async def _wait(context: Any, future: "Future[ToolReply]") -> ToolReply:
        """Wait for an answer, and report progress to a client that asks. Cancelling does not cancel the future."""
        waiting, waited = asyncio.wrap_future(future), 0.0
        while not (await asyncio.wait({waiting}, timeout=PROGRESS_SECONDS))[0]:
            waited += PROGRESS_SECONDS
            await context.session.report_progress(waited)
        return waiting.result()


class _StandardInput:
    """Standard input as a file that ends when the client's side does, or when `end` is called."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        self.file = anyio.wrap_file(theirs.makefile("r", encoding="utf-8", errors="replace"))
        theirs.close()
        threading.Thread(target=self._pump, name="standard input", daemon=True).start()

    def _pump(self) -> None:
        with contextlib.suppress(OSError):  # the server has ended
            while block := os.read(0, BLOCK):
                self._ours.sendall(block)
        self.end()

    def end(self) -> None:
        """End the file."""
        with contextlib.suppress(OSError):
            self._ours.shutdown(socket.SHUT_WR)


def _make_server(player: ClientPlayer, tools: list[ToolSpec]) -> Any:
    handlers = _Handlers(player, tools)
    ending = next((spec.name for spec in tools if spec.name in ENDING), ENDING[0])
    return Server(
        "swe-gym",
        version=version("swe-gym"),
        instructions=INSTRUCTIONS.format(ending=ending),
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
    )


async def _serve(player: ClientPlayer, tools: list[ToolSpec], given: _StandardInput) -> None:
    """Answer a client until it leaves."""
    try:
        server = _make_server(player, tools)
        async with stdio_server(stdin=given.file) as (read, write):
            await server.run(read, write, server.create_initialization_options())
    finally:
        player.leave()


@contextlib.contextmanager
def _serving(player: ClientPlayer, tools: list[ToolSpec]) -> Iterator[Callable[[], object]]:
    """Serve a client in a thread, and yield what waits until it has left. After the block, the thread has ended."""
    given = _StandardInput()
    serving = in_thread(lambda: asyncio.run(_serve(player, tools, given)), "MCP server")
    try:
        yield serving.result
    finally:
        given.end()
        with contextlib.suppress(Exception):  # of a client that is gone; the block's own error counts
            serving.result(END_SECONDS)


class HttpPlace:
    """A port of this machine's loopback, on which one episode is offered over streamable HTTP.

    Args:
        port: Port; 0 picks a free one.
        token: Token that clients send as `Authorization: Bearer TOKEN`.

    Attributes:
        url: Address for clients.

    Raises:
        UsageError: The port is in use, or the token is invalid.
    """

    def __init__(self, port: int, token: str) -> None:
        from .server import AccessRules, listen  # which stdio does not need

        self._access = AccessRules(token, (), "call the server as 127.0.0.1 or localhost")
        self._socket, self._used = listen("127.0.0.1", port, "choose another --port"), False
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}{PATH}"

    @contextlib.contextmanager
    def serving(self, player: ClientPlayer, tools: list[ToolSpec]) -> Iterator[Callable[[], object]]:
        """Serve clients in a thread. No client is waited for: a session ends with the task.

        Raises:
            UsageError: It has served an episode already.
        """
        if self._used:
            raise UsageError(f"{self.url} has offered an episode already: make a place for each episode")
        self._used = True
        sessions = StreamableHTTPSessionManager(_make_server(player, tools))
        server = uvicorn.Server(self._config(sessions))

        async def run() -> None:
            async with sessions.run():
                await server.serve(sockets=[self._socket])

        running = in_thread(lambda: asyncio.run(run()), "MCP server")
        running.add_done_callback(lambda _: player.leave())
        try:
            yield lambda: self._check(running)
        finally:
            server.should_exit = True
            with contextlib.suppress(Exception):  # the block's own error counts
                running.result(END_SECONDS)

    def _check(self, running: "Future[None]") -> None:
        """Raise an error if the server ended by itself."""
        error = running.exception() if running.done() else None
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if error is not None:
            raise SweGymError(f"the server at {self.url} failed ({error}): start it again") from error

    def _config(self, sessions: StreamableHTTPSessionManager) -> Any:
        async def answer(scope: Any, receive: Any, send: Any) -> None:
            known = scope["path"] == PATH
            status, reason = self._access.refusal(HTTPConnection(scope)) if known else (404, f"only {PATH} is served")
            answering = PlainTextResponse(f"{reason}\n", status) if status else sessions.handle_request
            await answering(scope, receive, send)

        return uvicorn.Config(
            answer,
            ws="none",  # a WebSocket is answered as the request that it starts with
            log_config=None,
            log_level=logging.CRITICAL,  # it reports each refused client as an error
            access_log=False,
            lifespan="off",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=CLOSE_SECONDS,
        )


def serve_mcp(plan: Plan, folder: Path, place: HttpPlace | None = None) -> None:
    """Offer an episode, and return when it is over. Over standard input and output, return when the client has left.

    Nothing starts before the client calls `start_task`. The client may leave at any moment: sandboxes are closed. A
    client of HTTP has left once it calls no tool for the `time_limit` of the episode.

    Args:
        plan: A plan of one episode.
        folder: The run folder.
        place: Where it is offered over HTTP. None offers it over standard input and output.

    Raises:
        UsageError: The plan is invalid, a tool has the name of the server's own, or the place has offered an episode.
        SweGymError: The server failed.
        KeyboardInterrupt: SIGTERM, raised once everything is closed and written.
    """
    player = ClientPlayer(plan)
    with contextlib.closing(plan.make_env()) as env:
        tools = list(env.tools)
    if any(tool.name == START.name for tool in tools):
        raise UsageError(f"the tool {START.name!r} is the server's own: rename the environment's tool of this name")
    with place.serving(player, tools) if place else _serving(player, tools) as wait_for_client:
        try:
            if player.wait():
                sys.stderr.write(f"run folder: {folder.absolute()}\n")
                options = RolloutOptions(workers=1, retries=0, max_failure_rate=1.0)
                rollout(plan, folder, options, policies=player)
        finally:
            player.finish()
        wait_for_client()  # it reads the answers, and leaves
