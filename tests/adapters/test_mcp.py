"""The official SDK's client plays a task over stdio: right and wrong work, mistakes, cancelled calls, dead clients."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from swe_gym.adapters.mcp import HttpPlace, serve_mcp
from swe_gym.errors import SweGymError, UsageError
from swe_gym.rollout.plan import Plan
from swe_gym.rollout.policies.gold import _chunks
from swe_gym.tasks import load_source
from swe_gym.tools.base import ToolContext
from swe_gym.tools.base import tool as make_tool
from swe_gym.trajectories.trajectory import Trajectory
from swe_gym.types import ToolResult

TASK = "larder-overwrite-evicts"
SECONDS = 120.0
"""Deadline of a conversation."""

POLL = 0.05


def gold() -> list[str]:
    """Return commands that apply the gold patch."""
    diff = load_source("toy").get(TASK).oracle.gold_patch
    write = [f"cat >> .gold <<'END_OF_PATCH'\n{chunk}END_OF_PATCH" for chunk in _chunks(diff)]
    return [*write, "GIT_DIR=/nonexistent git apply .gold && rm .gold"]


def command(folder: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "swe_gym", "mcp", TASK, *more, "--output", str(folder)]


@contextlib.asynccontextmanager
async def connected(folder: Path, *more: str) -> AsyncIterator[ClientSession]:
    program, *words = command(folder, *more)
    server = StdioServerParameters(command=program, args=words, env=dict(os.environ))
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        yield session


def talk(say: Callable[[ClientSession], Awaitable[Any]], folder: Path, *more: str) -> Any:
    """Have a conversation with a new server."""

    async def run() -> Any:
        async with asyncio.timeout(SECONDS), connected(folder, *more) as session:
            await session.initialize()
            return await say(session)

    return asyncio.run(run())


async def call(session: ClientSession, tool: str, **arguments: Any) -> tuple[str, bool]:
    """Call a tool. Return its text, and whether it is an error."""
    result = await session.call_tool(tool, arguments)
    (content,) = result.content
    return content.text, bool(result.is_error)


def recorded(folder: Path, file: str = "trajectories.jsonl") -> list[Trajectory]:
    return [one for run in folder.glob("mcp-*") if (run / file).exists() for one in Trajectory.read(run / file)]


@pytest.mark.sample(every=2)
@pytest.mark.parametrize(("commands", "reward"), [(gold(), 1.0), (["true"], 0.0)])
def test_a_client_plays_a_task(commands: list[str], reward: float, tmp_path: Path) -> None:
    async def say(session: ClientSession) -> None:
        tools = {tool.name: tool for tool in (await session.list_tools()).tools}
        assert tools["bash"].input_schema["required"] == ["command"]
        early, refused = await call(session, "bash", command="ls")
        assert refused
        assert "call start_task first" in early
        issue, refused = await call(session, "start_task")
        assert not refused
        assert load_source("toy").get(TASK).problem_statement.strip() in issue
        for one in commands:
            await call(session, "bash", command=one)
        await session.send_ping()
        end, _ = await call(session, "submit")
        assert "test_" not in end
        assert "reward" not in end.lower()
        assert await call(session, "bash", command="ls") == (
            "The task is over. Restart the server to play another one.",
            True,
        )

    talk(say, tmp_path)
    (found,) = recorded(tmp_path)
    assert (found.reward, found.reward_valid, found.outcome) == (reward, True, "submitted")
    assert [turn.tool for turn in found.turns] == ["bash"] * len(commands) + ["submit"]
    assert (found.policy.name, found.policy.options["client"]) == ("mcp", "mcp")


@contextlib.asynccontextmanager
async def connected_by_http(folder: Path, token: str) -> AsyncIterator[tuple[ClientSession, subprocess.Popen[str]]]:
    words = command(folder, "--port", "0", "--token", "secret")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            headers = {"Authorization": f"Bearer {token}"}
            async with (
                httpx2.AsyncClient(headers=headers, timeout=SECONDS) as client,
                streamable_http_client(url, http_client=client) as (read, write, *_),
                ClientSession(read, write) as session,
            ):
                yield session, server
        finally:
            server.terminate()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("commands", "reward"), [(gold(), 1.0), pytest.param(["true"], 0.0, marks=pytest.mark.thorough)]
)
def test_a_client_plays_a_task_over_http(commands: list[str], reward: float, tmp_path: Path) -> None:
    async def play() -> int:
        async with asyncio.timeout(SECONDS), connected_by_http(tmp_path, "secret") as (session, server):
            await session.initialize()
            assert "start_task" in {tool.name for tool in (await session.list_tools()).tools}
            assert "call start_task first" in (await call(session, "bash", command="ls"))[0]
            await call(session, "start_task")
            for one in commands:
                await call(session, "bash", command=one)
            end, _ = await call(session, "submit")
            assert "reward" not in end.lower()
            return await asyncio.to_thread(server.wait, SECONDS)  # it ends with the task, although the client is here

    assert asyncio.run(play()) == 0
    (found,) = recorded(tmp_path)
    assert (found.reward, found.reward_valid, found.outcome) == (reward, True, "submitted")
    assert found.policy.options["client"] == "mcp"


def test_a_client_without_the_token_or_a_web_page_is_refused(tmp_path: Path) -> None:
    with subprocess.Popen(
        command(tmp_path, "--port", "0", "--token", "secret"), stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            right = {"Authorization": "Bearer secret"}
            for headers, status in [
                ({}, 401),
                ({"Authorization": "Bearer wrong"}, 401),
                ({**right, "Origin": "http://evil.example"}, 403),
                ({**right, "Host": "evil.example"}, 403),
                (right, 400),  # no message of the protocol
            ]:
                assert httpx2.post(url, headers=headers, json={}).status_code == status, headers
            other = httpx2.post(url, headers={**right, "Host": "evil.example"}, json={})
            assert other.text == "unknown Host: call the server as 127.0.0.1 or localhost\n"
            upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
            socket = httpx2.get(url, headers={**right, **upgrade, "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="})
            assert socket.status_code == 400, socket.text
            words = [*command(tmp_path), "--port", url.rpartition(":")[2].partition("/")[0]]
            second = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS)
            assert "choose another --port" in second.stderr
            assert "--host" not in second.stderr
        finally:
            server.terminate()
        assert server.wait(SECONDS) in (-signal.SIGTERM, 143)


def test_mistakes_are_answered_by_name_and_the_episode_continues(tmp_path: Path) -> None:
    async def say(session: ClientSession) -> None:
        assert await call(session, "start_task") == await call(session, "start_task")
        for tool, arguments, said in [
            ("bsah", {}, "bsah"),
            ("bash", {}, "command"),
            ("bash", {"command": 7, "x": 1}, "x"),
        ]:
            text, refused = await call(session, tool, **arguments)
            assert refused, text
            assert said in text
        huge, refused = await call(session, "bash", command="head -c 5000000 /dev/zero | tr '\\0' x")
        assert not refused
        assert len(huge) < 100_000
        both = await asyncio.gather(
            call(session, "bash", command="mkdir /tmp/once && sleep 0.2 && rmdir /tmp/once"),
            call(session, "bash", command="mkdir /tmp/once && sleep 0.2 && rmdir /tmp/once"),
        )
        assert [refused for _, refused in both] == [False, False], both  # one after the other

    talk(say, tmp_path, "time_limit=1e12")  # longer than any wait


@make_tool
def start_task(context: ToolContext) -> ToolResult:
    """Start the task."""
    return ToolResult(text=context.eval_cmd)


def test_a_tool_named_as_the_servers_own_is_refused(tmp_path: Path) -> None:
    env = {"tools": [f"{__name__}:start_task", "submit"]}
    plan = Plan(source="toy", tasks=(TASK,), env=env, policy="mcp")
    with pytest.raises(UsageError, match="the tool 'start_task' is the server's own: rename"):
        serve_mcp(plan, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_server_that_cannot_serve_fails_and_a_place_serves_once(tmp_path: Path) -> None:
    plan = Plan(source="toy", tasks=(TASK,), env={"backend": "local"}, policy="mcp")
    place = HttpPlace(0, "secret")
    place._socket.close()
    with pytest.raises(SweGymError, match=r"the server at http.* failed .*descriptor"):
        serve_mcp(plan, tmp_path / "run", place)
    with pytest.raises(UsageError, match="has offered an episode already: make a place for each"):
        serve_mcp(plan, tmp_path / "run", place)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_token_without_a_port_is_refused(tmp_path: Path) -> None:
    def run(*more: str, **env: str) -> subprocess.CompletedProcess[str]:
        words = command(tmp_path, *more)
        env = {**os.environ, **env}
        return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, timeout=SECONDS)

    refused = run("--token", "secret")
    assert refused.returncode == 2
    assert "--token needs --port" in refused.stderr
    assert run(SWE_GYM_TOKEN="secret").returncode == 0


def test_a_cancelled_call_ends_its_command_and_not_the_episode(tmp_path: Path) -> None:
    async def say(session: ClientSession) -> str:
        await call(session, "start_task")
        running = asyncio.create_task(call(session, "bash", command="touch /tmp/began; exec sleep 8765"))
        await started(os.getpid(), b"8765")
        waiting = asyncio.create_task(call(session, "bash", command="touch /tmp/never"))
        for one in (waiting, running):
            await session.send_ping()  # once it is answered, the server has the call
            one.cancel()
        return (await call(session, "bash", command="ls /tmp"))[0]

    said = talk(say, tmp_path)
    assert "began" in said
    assert "never" not in said


async def _request(stream: Any, method: str, **parameters: Any) -> None:
    """Send a request, or a notification, without the SDK: its client would end the server."""
    number = {} if method.startswith("notifications/") else {"id": 1}
    stream.write(json.dumps({"jsonrpc": "2.0", **number, "method": method, "params": parameters}).encode() + b"\n")
    await stream.drain()


def children(pid: int) -> list[int]:
    """Return the processes that descend from one."""
    found = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = {int(one): int(parent) for one, parent in (line.split() for line in found.splitlines())}
    below = [one for one, parent in parents.items() if parent == pid]
    return [*below, *(more for one in below for more in children(one))]


async def started(pid: int, word: bytes) -> list[int]:
    """Wait until a descendant of a process has this word in its command line, and return all that have."""
    while not (found := [one for one in children(pid) if word in _words(one)]):
        await asyncio.sleep(POLL)
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


@pytest.mark.sample(every=3)
@pytest.mark.parametrize("end", ["client dies", "terminated", "killed"])
def test_no_sandbox_outlives_its_client(end: str, tmp_path: Path) -> None:
    async def run() -> None:
        server = await asyncio.create_subprocess_exec(
            *command(tmp_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert server.stdin is not None
        assert server.stdout is not None
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
        await _request(server.stdin, "initialize", **hello)
        await server.stdout.readline()
        await _request(server.stdin, "notifications/initialized")
        await _request(server.stdin, "tools/call", name="start_task", arguments={})
        await server.stdout.readline()
        await _request(server.stdin, "tools/call", name="bash", arguments={"command": "exec sleep 7654"})
        below = await started(server.pid, b"7654")
        if end == "client dies":
            server.stdin.close()
        else:
            server.send_signal(signal.SIGTERM if end == "terminated" else signal.SIGKILL)
        await server.wait()
        while any(map(alive, below)):
            await asyncio.sleep(POLL)

    async def limited() -> None:
        async with asyncio.timeout(SECONDS):
            await run()

    asyncio.run(limited())
    assert recorded(tmp_path) == []
    if end == "client dies":
        (failed,) = recorded(tmp_path, "failed.jsonl")
        assert not failed.reward_valid


def _words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.slow
def test_two_clients_play_at_once_and_a_restart_starts_over(tmp_path: Path) -> None:
    async def both() -> list[str]:
        async with asyncio.timeout(SECONDS), connected(tmp_path) as one, connected(tmp_path) as two:
            for session in (one, two):
                await session.initialize()
                await call(session, "start_task")
            await call(one, "bash", command="touch mine")
            shown = await call(two, "bash", command="ls")
            await asyncio.gather(call(one, "submit"), call(two, "submit"))
            return [shown[0]]

    (shown,) = asyncio.run(both())
    assert "mine" not in shown
    assert len(recorded(tmp_path)) == 2
