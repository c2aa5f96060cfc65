"""`swe-gym serve`: what it refuses, what it bounds, and that no sandbox outlives a client or the server."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

if "serve" not in os.environ.get("SWE_GYM_REQUIRE", "").split(","):
    pytest.importorskip("starlette", reason="the server is tested where its packages are installed")

from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from swe_gym.adapters.remote import RemoteEnv
from swe_gym.adapters.server import EnvServer
from swe_gym.adapters.session import make_env
from swe_gym.errors import SandboxStartError, UsageError
from swe_gym.testing.sandbox_contract.case import eventually, new_marker, processes_here
from swe_gym.vector import SweVectorEnv
from swe_gym_command import main

TOKEN = "correct-horse"


def micro(**arguments: Any) -> Callable[[], gymnasium.Env[str, str]]:
    return lambda: make_env("SWE/Micro-v0", difficulty=[1], task_id="micro-1-0", **arguments)


@pytest.fixture(scope="module")
def server() -> Iterator[EnvServer]:
    with EnvServer(micro(), port=0, token=TOKEN) as running:
        yield running


def bash(command: str) -> str:
    return json.dumps({"name": "bash", "arguments": {"command": command, "timeout": 600}})


@contextlib.contextmanager
def client(server: EnvServer, headers: dict[str, str] | None = None, **more: Any) -> Iterator[ClientConnection]:
    headers = {"Authorization": f"Bearer {TOKEN}"} if headers is None else headers
    url = server.url.replace("http", "ws") + "/ws"
    with connect(url, additional_headers=headers, proxy=None, close_timeout=1, **more) as websocket:
        yield websocket


def ask(websocket: ClientConnection, message: str | bytes) -> dict[str, Any]:
    websocket.send(message)
    answer: dict[str, Any] = json.loads(websocket.recv(30))
    return answer


def metric(server: EnvServer, name: str) -> int:
    return int(dict(line.split() for line in server.metrics().splitlines() if line[0] != "#")[f"swe_gym_{name}"])


def get(url: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(url, headers=headers, method=method, data=b"{}" if method == "POST" else None)
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": f"Bearer {TOKEN}", "Origin": "https://evil.example"}, 403),
        ({"Authorization": f"Bearer {TOKEN}", "Host": "evil.example:80"}, 403),
        ({"Host": "127.0.0.1/health?"}, 403),
        ({"Host": "fe80::1%/health?"}, 403),
    ],
    ids=["no-token", "wrong-token", "origin", "host", "path-in-host", "path-in-zone"],
)
def test_foreign_clients_are_refused_before_a_session(server: EnvServer, headers: dict[str, str], status: int) -> None:
    before = metric(server, "sessions_total")
    assert get(f"{server.url}/metrics", **headers)[0] == status
    if "Host" not in headers:  # the library writes its own
        with pytest.raises(InvalidStatus) as refused, client(server, headers):
            pass
        assert refused.value.response.status_code == status
    assert metric(server, "sessions_total") == before


def test_health_is_open_and_other_answers_need_the_token(server: EnvServer) -> None:
    known = {"Authorization": f"Bearer {TOKEN}"}
    assert get(f"{server.url}/health") == (200, b'{"status":"healthy"}')
    for path in ("/metrics", "/metadata", "/schema", "/state"):
        assert get(server.url + path)[0] == 401
        assert get(server.url + path, **known)[0] == 200
    assert get(f"{server.url}/reset", "POST", **known)[0] == 501  # it would start a sandbox that nobody can use
    assert get(f"{server.url}/elsewhere", **known)[0] == 404


def malformed(rng: random.Random) -> str | bytes:
    """Make a message that no client should send."""
    junk: list[Any] = [None, True, -1, 1e400, "x", [], {}, {"text": 1}, {"text": "ls", "more": 1}, {"seed": -1}]
    junk += [{"seed": True}, {"seed": "1"}, {"task_id": 7}, {"options": []}, {"metadata": {"limit": 3}, "text": ""}]
    kind = rng.choice(["reset", "step", "state", "", "mcp", "Reset", None, 3, ["reset"]])
    valid = kind == "state"
    message: Any = {"type": kind, "data": rng.choice(junk)}
    if kind == "reset" and message["data"] == {}:
        message["more"] = 1
    if valid or rng.random() < 0.2:
        message = rng.choice([*junk, [message], {"data": message}])
    text = json.dumps(message)
    shape = rng.random()
    if shape < 0.15:
        text = text[: rng.randrange(len(text))]
    elif shape < 0.25:
        text = "[" * rng.randrange(1, 5000)
    elif shape < 0.35:
        text = "".join(chr(rng.randrange(1, 0xD800)) for _ in range(rng.randrange(20)))
    return text.encode() if rng.random() < 0.1 else text


def test_malformed_messages_get_an_error_and_never_an_episode(server: EnvServer) -> None:
    rng = random.Random(0)
    before = metric(server, "episodes_total"), metric(server, "steps_total")
    with client(server) as websocket:
        for _ in range(2_000):
            messages = [malformed(rng) for _ in range(5)]
            for message in messages:
                websocket.send(message)
            for message in messages:
                answer = json.loads(websocket.recv(30))
                assert answer["type"] == "error", message
                assert answer["data"]["code"] in ("INVALID_JSON", "UNKNOWN_TYPE", "VALIDATION_ERROR")
        assert ask(websocket, '{"type": "state"}')["type"] == "state"  # the session goes on
        assert ask(websocket, '{"type": "step", "data": {"text": "ls"}}')["data"]["code"] == "EXECUTION_ERROR"
    assert before == (metric(server, "episodes_total"), metric(server, "steps_total"))


def test_messages_are_bounded_in_size_and_number(server: EnvServer) -> None:
    with client(server) as websocket, pytest.raises(ConnectionClosed):
        ask(websocket, " " * ((16 << 20) + 1))
    with client(server) as websocket:
        assert ask(websocket, '{"type": "reset"}')["type"] == "observation"
        for _ in range(20):
            websocket.send(json.dumps({"type": "step", "data": {"text": bash("sleep 600")}}))
        assert json.loads(websocket.recv(30))["data"]["message"] == "too many messages wait for an answer"


def test_sessions_are_limited_and_end_when_they_idle() -> None:
    with EnvServer(micro(), port=0, sessions=1) as server, client(server) as websocket:
        assert ask(websocket, '{"type": "reset"}')["type"] == "observation"
        with pytest.raises(SandboxStartError, match="all 1 sessions are in use"):
            RemoteEnv(server.url).reset()
    with EnvServer(micro(), port=0, sessions=1, idle=1.0) as server:
        with client(server) as websocket:
            said = json.loads(websocket.recv(30))
            assert (said["type"], said["data"]["code"]) == ("error", "SESSION_ERROR")
            eventually(lambda: metric(server, "sessions") == 0, 60, "the place is free")
        with contextlib.closing(RemoteEnv(server.url)) as env:
            env.reset()


@pytest.mark.parametrize("count", [12, pytest.param(64, marks=pytest.mark.thorough)])
def test_many_sessions_at_once_of_which_one_loses_its_sandbox(count: int) -> None:
    made: list[gymnasium.Env[str, str]] = []

    def make() -> gymnasium.Env[str, str]:
        made.append(micro(max_turns=2)())
        return made[-1]

    with EnvServer(make, port=0) as server:
        envs = SweVectorEnv([lambda: RemoteEnv(server.url)] * count, autoreset_mode="Disabled")
        with contextlib.closing(envs):
            envs.reset(seed=0)
            envs.step(["look"] * count)
            assert metric(server, "sessions") == count
            next(filter(_is_running, made)).get_wrapper_attr("sandbox").close()
            _, rewards, _, truncations, infos = envs.step([bash("echo done")] * count)
        assert truncations.all()
        assert not rewards.any()
        assert sorted(infos["outcome"]) == ["agent_limit"] * (count - 1) + ["infra_failed"]
        assert (infos["reward_valid"] == (infos["outcome"] == "agent_limit")).all()
        assert metric(server, "infra_failures_total") == 1
        eventually(lambda: metric(server, "sessions") == 0, 60, "every session is closed")


def _is_running(env: gymnasium.Env[str, str]) -> bool:
    with contextlib.suppress(gymnasium.error.ResetNeeded):
        return bool(env.get_wrapper_attr("sandbox"))
    return False


BUSY_CLIENT = """
import sys, threading
from swe_gym.adapters.remote import RemoteEnv

def play():
    env = RemoteEnv(sys.argv[1])
    env.reset()
    print("ready\\n", end="", flush=True)  # in one piece: other threads print too
    env.step(sys.argv[2])

for _ in range(4):
    threading.Thread(target=play).start()
"""


def test_a_killed_client_leaves_no_sandbox() -> None:
    marker = new_marker()
    with EnvServer(micro(), port=0) as server:
        command = [sys.executable, "-c", BUSY_CLIENT, server.url, bash(f"sleep {marker}")]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(4):
                assert process.stdout.readline() == b"ready\n"
            eventually(lambda: len(processes_here(marker)) >= 4, 60, "every client is in a step")
            process.send_signal(signal.SIGKILL)
        eventually(lambda: metric(server, "sessions") == 0 and not processes_here(marker), 60, "all are closed")


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_stopped_server_leaves_no_sandbox_and_its_clients_get_no_reward(end: signal.Signals) -> None:
    marker = new_marker()
    command = [
        sys.executable,
        "-c",
        "from swe_gym_command import main; main()",
        "serve",
        "SWE/Micro-v0",
        "difficulty=[1]",
    ]
    with subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url, token = process.stdout.readline().strip(), process.stdout.readline().removeprefix("token: ").strip()
            env = RemoteEnv(url, token=token)
            env.reset(options={"task_id": "micro-1-0"})
            results: list[Any] = []
            thread = threading.Thread(target=lambda: results.append(env.step(bash(f"sleep {marker}"))))
            thread.start()
            eventually(lambda: bool(processes_here(marker)), 60, "the step runs")
            process.send_signal(end)
            assert process.wait(60) == (0 if end == signal.SIGTERM else -signal.SIGKILL)
            thread.join(60)
        finally:
            process.kill()
    _, reward, terminated, truncated, info = results[0]
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert (info["outcome"], info["reward_valid"]) == ("infra_failed", False)
    eventually(lambda: not processes_here(marker), 60, "its sandbox is gone")
    with pytest.raises(SandboxStartError, match="cannot connect"):
        env.reset()


def test_close_in_another_thread_ends_a_step_and_frees_the_sandbox() -> None:
    marker = new_marker()
    with EnvServer(micro(), port=0) as server:
        env = RemoteEnv(server.url)
        env.reset()
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(env.step(bash(f"sleep {marker}"))))
        thread.start()
        eventually(lambda: bool(processes_here(marker)), 60, "the step runs")
        env.close()
        thread.join(60)
        assert results[0][4]["failure"].startswith("SandboxClosed")
        eventually(lambda: metric(server, "sessions") == 0 and not processes_here(marker), 60, "it is closed")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["SWE/Toyy-v0"], "unknown environment 'SWE/Toyy-v0'. Did you mean 'SWE/Toy-v0'?"),
        (["SWE/Toy-v7"], "Did you mean 'SWE/Toy-v0'?"),
        (["Toy-v0"], "Did you mean 'SWE/Toy-v0'?"),
        (["SWE/Toy-v0", "max_turns=0"], "max_turns must be"),
        (["CartPole-v1"], "must be texts"),
        (["SWE/Toy-v0", "--no-token", "--host", "0.0.0.0"], "--no-token needs a loopback address"),
        (["SWE/Toy-v0", "--host", "nowhere.invalid"], "cannot listen"),
        (["SWE/Toy-v0", "--tls-cert", __file__], "cannot be read"),
        (["SWE/Toy-v0", "--tls-key", __file__], "needs its certificate"),
        (["SWE/Toy-v0", "--sandbox-option", "api_key=SECRET", "bogus=1"], "argument 'bogus'"),
    ],
)
def test_mistakes_are_told_before_anything_listens(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["serve", *arguments])
    said = capsys.readouterr()
    assert message in said.err
    assert "SECRET" not in said.err
    assert said.out == ""


def test_tasks_that_cannot_be_read_are_told_before_anything_listens(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", "swe_gym", "serve", "SWE/SWEBench-v0", "--port", "0"]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot download dataset" in done.stderr


def test_a_server_on_the_network_without_tls_says_so() -> None:
    command = [sys.executable, "-m", "swe_gym", "serve", "SWE/Toy-v0", "--host", "0.0.0.0", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://")
        assert process.stdout.readline().startswith("token: ")
        process.terminate()
        assert "Not encrypted: use --tls-cert" in process.communicate(timeout=60)[1]


@pytest.mark.parametrize("token", ["", "\n", "two\nlines"])
def test_a_token_that_is_not_one_line_is_refused(token: str) -> None:
    with pytest.raises(UsageError, match="one line of text"):
        EnvServer(micro(), port=0, token=token)


def test_a_token_read_from_a_file_may_end_with_a_line_break(server: EnvServer) -> None:
    with contextlib.closing(RemoteEnv(server.url, token=f"{TOKEN}\n")) as env:
        env.reset()
    with pytest.raises(UsageError, match="a line break") as raised:
        RemoteEnv(server.url, token=f"{TOKEN}\n{TOKEN}")
    assert TOKEN not in str(raised.value)


def test_another_library_s_environment_can_be_served() -> None:
    """An environment of texts that is no `SweEnv`: its info says nothing of outcomes."""

    class Echo(gymnasium.Env[str, str]):
        observation_space = action_space = gymnasium.spaces.Text(50)

        def reset(self, **_: Any) -> tuple[str, dict[str, Any]]:
            return "say", {}

        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            return action, 0.5, True, False, {"bytes": b"odd"}

    with EnvServer(Echo, port=0) as server, contextlib.closing(RemoteEnv(server.url)) as env:
        assert env.reset(seed=3) == ("say", {})
        assert env.step("x") == ("x", 0.5, True, False, {"bytes": "b'odd'"})
        env.reset()
        with pytest.raises(UsageError, match="address of a server"):
            RemoteEnv("127.0.0.1:8000")
