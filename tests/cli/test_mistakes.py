"""Mistakes with models, servers, tasks and backends: each ends in one message that holds the fix.

The message comes before anything is started.
"""

import contextlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from swe_gym.tasks.file import write_tasks
from swe_gym.testing.loopback import Exchange, HttpAnswer, LoopbackServer
from swe_gym.testing.openai_server import CHAT, MODELS, ModelReply, OpenAIServer, error_body
from swe_gym.types import Task

pytestmark = pytest.mark.timeout(120)  # seconds; no message waits for a deadline of a run, which are longer

KEYS = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
NO_TOOLS = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'

Setup = Callable[[OpenAIServer], object]


class Row(NamedTuple):
    """A mistake.

    Attributes:
        command: The command line. {url} is the server with /v1, {root} without, {docker} an engine without images.
        said: Words of the message; for a command that works, of its output.
        env: Environment variables. The key of the server is set unless this table sets it.
        setup: Makes the server fail.
        status: Exit status.
    """

    command: str
    said: tuple[str, ...]
    env: dict[str, str] = {}
    setup: Setup = lambda _: None
    status: int = 2


EVAL = "eval toy:2 --check --model scripted"
HERE = f"{EVAL} --base-url {{url}}"


def refuse_tools(request: dict[str, object]) -> ModelReply:
    if request.get("tools"):
        raise HttpAnswer(400, error_body(400, NO_TOOLS))
    return ModelReply("Yes.")


def no_quota(server: OpenAIServer) -> None:
    body = error_body(429, "You exceeded your current quota, please check your plan.", code="insufficient_quota")
    server.inject(CHAT, status=429, body=body)


SERVERS = {
    "a working server": Row(HERE, ("scripted at {url}", "Everything is ready"), status=0),
    "a wrong key": Row(HERE, ("refused the API key", "OPENAI_API_KEY"), {"OPENAI_API_KEY": "sk-wrong"}),
    "no key": Row(HERE, ("refused the API key", "set the environment variable OPENAI_API_KEY"), {"OPENAI_API_KEY": ""}),
    "a key in another variable": Row(
        f"{HERE} policy.api_key_variable=MY_KEY", ("set the environment variable MY_KEY",), {"MY_KEY": ""}
    ),
    "neither key nor server": Row(EVAL, ("no API key: set OPENAI_API_KEY", "--base-url"), {"OPENAI_API_KEY": ""}),
    "a dead port": Row(f"{EVAL} --base-url http://127.0.0.1:9/v1", ("Connection refused", "Start the server")),
    "an unknown host": Row(f"{EVAL} --base-url http://models.invalid/v1", ("no connection to http://models.invalid",)),
    "a dead proxy": Row(
        f"{EVAL} --base-url http://models.example/v1",
        ("through the proxy http://127.0.0.1:9 (set by HTTP_PROXY; NO_PROXY=models.example",),
        {"HTTP_PROXY": "http://127.0.0.1:9"},
    ),
    "a dead proxy and a local server": Row(
        HERE,
        ("Everything is ready",),
        {"HTTP_PROXY": "http://127.0.0.1:9", "ALL_PROXY": "http://127.0.0.1:9"},
        status=0,
    ),
    "a wrong model": Row(
        "eval toy:2 --model scripted-8b --base-url {url}", ("Did you mean 'scripted'? Known: scripted.",)
    ),
    "no model": Row("eval toy:2 --base-url {url}", ("add --model NAME", "serves scripted")),
    "a URL without /v1": Row(f"{EVAL} --base-url {{root}}", ("use --base-url {url}",)),
    "the URL of the chat": Row(f"{EVAL} --base-url {{url}}/chat/completions", ("use --base-url {url}",)),
    "a URL without http": Row(f"{EVAL} --base-url localhost:8000", ("write a URL such as http://localhost:8000/v1",)),
    "a web page": Row(
        HERE,
        ("not an OpenAI-compatible server", "a web page"),
        setup=lambda server: server.inject("*", times=None, status=200, body=b"<!doctype html><html>Welcome</html>"),
    ),
    "a server without tool calls": Row(
        HERE,
        ("refuses tool calls", "--enable-auto-tool-choice", "policy.calls=text"),
        setup=lambda server: setattr(server, "reply", refuse_tools),
    ),
    "text calls without tool calls": Row(
        f"{HERE} policy.calls=text",
        ("Everything is ready",),
        setup=lambda server: setattr(server, "reply", refuse_tools),
        status=0,
    ),
    "a field that the server refuses": Row(
        HERE,
        ("status 400", "Unsupported parameter"),
        setup=lambda server: server.inject(CHAT, times=2, status=400, message="Unsupported parameter: 'temperature'"),
    ),
    "a server that hangs": Row(
        HERE, ("no answer from", "within 4 s"), setup=lambda server: server.inject(MODELS, hang=True)
    ),
    "a chat that hangs": Row(
        f"{HERE} policy.timeout=0.5",
        ("no answer from", "Check that the server is ready"),
        setup=lambda server: server.inject(CHAT, hang=True),
    ),
    "a rollout of a wrong model": Row(
        "rollout toy --model scripted-8b --base-url {url}", ("Did you mean 'scripted'?",)
    ),
    "a server that fails": Row(
        HERE, ("status 503",), setup=lambda server: server.inject("*", times=None, status=503, message="loading")
    ),
    "no quota": Row(HERE, ("exceeded your current quota",), setup=no_quota),
    "a busy server": Row(
        HERE, ("not checked further",), setup=lambda server: server.inject(CHAT, status=429), status=0
    ),
    "a context that is too long": Row(
        f"{HERE} policy.context=99999", ("policy.context=99999", "context length of 32768 tokens")
    ),
    "a price of cached tokens alone": Row(f"{HERE} policy.prices.cached=1", ("prices needs input and output",)),
    "a price as an option": Row(f"{HERE} --price-in 1", ("no option --price-in: write policy.prices.input=VALUE",)),
    "no model, and no server": Row(
        "eval toy:1 --base-url http://127.0.0.1:9/v1", ("no model: add --model NAME", "no connection to")
    ),
    "a budget without a price": Row(
        f"{HERE} run.budget.cost=5", ("price of 'scripted'", "set policy.prices.input and")
    ),
    "half a price": Row(f"{HERE} policy.prices.input=2", ("prices needs input and output",)),
    "an unknown option of the model": Row(f"{HERE} policy.temprature=1", ("Did you mean 'temperature'?",)),
}

TASKS = {
    "a wrong source": Row("eval swebench-verfied:50 --model m", ("Did you mean 'swebench-verified'?",)),
    "a wrong source of tasks list": Row("tasks list -s toi", ("Did you mean 'toy'?",)),
    "no tasks": Row("eval --model m", ("no tasks: name a source such as toy",)),
    "tasks with an option": Row("eval --tasks toy --model m", ("no option --tasks: write the source without",)),
    "an empty slice": Row("eval toy:0 --model m", ("toy:0: the slice :0 selects none of the 14 tasks",)),
    "a wrong slice": Row("eval toy[a:b] --model m", ("'a:b' is invalid: write START:STOP",)),
    "a wrong slice of tasks list": Row("tasks list -s toy[99:]", ("selects none of the 14 tasks",)),
    "a missing file": Row("eval tasks.jsonl --model m", ("file not found", "tasks.jsonl")),
    "a missing configuration": Row("eval run.toml", ("run.toml", "No such file")),
    "a misspelled field": Row("eval toy env.max_turn=3 --model m", ("Did you mean 'max_turns'?",)),
    "a field as an option": Row("eval toy --time-limit 90", ("no option --time-limit: write env.time_limit=VALUE",)),
    "no library of the Hub": Row("eval swebench-lite --model m", ("pip install 'swe-gym[hf]'",)),
    "a wrong backend": Row("eval toy --backend dokcer --model m", ("Did you mean 'docker'?",)),
    "images on the local backend": Row(
        "eval {images} --backend local policy.name=gold",
        ("cannot be fetched", "registry.example did not answer"),
    ),
    "no Docker engine": Row(
        "eval {images} policy.name=gold",
        ("no Docker engine answers",),
        {"DOCKER_HOST": "tcp://127.0.0.1:9"},
    ),
    "no cluster": Row(
        "eval toy:1 policy.name=gold --backend kubernetes --sandbox-option options.kubeconfig=/nowhere/config",
        ("no Kubernetes cluster is configured",),
    ),
    "no sandbox service": Row(
        "eval toy:1 policy.name=gold --backend e2b --sandbox-option options.api_url=http://127.0.0.1:9",
        ("the sandboxes of http://127.0.0.1:9 cannot be used",),
        {"E2B_API_KEY": "e2b_" + "0" * 40},
    ),
    "an image that does not exist": Row(
        "eval {images} policy.name=gold",
        ("image 'registry.example/nothing:1' does not exist or is private",),
        {"DOCKER_HOST": "{docker}"},
    ),
    "no image, and no pulls": Row(
        "eval {images} policy.name=gold --sandbox-option options.pull=never",
        ("1 of 1 images are missing", "pull=never"),
        {"DOCKER_HOST": "{docker}"},
    ),
    "a file as folder of runs": Row("eval toy:1 policy.name=gold -o {images}", ("is not a folder", "--output")),
    "a folder of something else": Row(
        "eval toy:1 policy.name=gold -o {elsewhere} -n photos", ("holds something else (a.jpg)", "another name")
    ),
    "an unusable cache": Row(
        "eval toy:1 policy.name=gold",
        ("the cache cannot be written", "SWE_GYM_CACHE"),
        {"SWE_GYM_CACHE": "{images}/x"},
    ),
}


class EmptyEngine(LoopbackServer):
    """A Docker engine that has no image, and whose registry has none."""

    def answer(self, exchange: Exchange) -> None:
        """See `LoopbackServer.answer`."""
        path = exchange.asked.path
        if path.endswith("/version"):
            raise HttpAnswer(200, {"Version": "29.0", "ApiVersion": "1.44", "MinAPIVersion": "1.24"})
        if path.endswith("/info"):
            raise HttpAnswer(200, {"DockerRootDir": "/"})
        if "/distribution/" in path:
            raise HttpAnswer(
                403, {"message": "pull access denied, repository does not exist or may require authorization"}
            )
        raise HttpAnswer(404, {"message": "No such image"})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    for name in (*KEYS, *map(str.lower, KEYS)):
        monkeypatch.delenv(name, raising=False)
    with OpenAIServer(lambda _: ModelReply(tool_calls=[("ping", "{}")]), context_length=32768) as server:
        monkeypatch.setenv("OPENAI_API_KEY", server.api_key)
        yield server


def play(row: Row, cli, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch, **places: object) -> None:
    places = {"url": server.base_url, "root": server.url, **places}
    for name, value in row.env.items():
        monkeypatch.setenv(name, value.format(**places))
    row.setup(server)
    result = cli(*(word.format(**places) for word in shlex.split(row.command)))
    said = result.err if row.status else result.out
    assert result.status == row.status, result
    assert "Traceback" not in result.err
    for words_of_it in row.said:
        assert words_of_it.format(**places) in said


@pytest.mark.parametrize("name", SERVERS)
def test_servers(name: str, cli, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play(SERVERS[name], cli, server, monkeypatch)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", TASKS)
def test_tasks(
    name: str, cli, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, toy: Task
) -> None:
    images, elsewhere = tmp_path / "images.jsonl", tmp_path / "mine"
    write_tasks([toy.model_copy(update={"workspace": None, "image": "registry.example/nothing:1"})], images)
    (elsewhere / "photos").mkdir(parents=True)
    (elsewhere / "photos" / "a.jpg").touch()
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with EmptyEngine() if "{docker}" in str(TASKS[name].env) else contextlib.nullcontext() as engine:
        docker = engine.url.replace("http", "tcp") if engine else ""
        play(TASKS[name], cli, server, monkeypatch, images=images, elsewhere=elsewhere, docker=docker)
    assert [path.name for path in (elsewhere / "photos").iterdir()] == ["a.jpg"]


def test_a_run_of_another_configuration(cli, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("eval", "toy:1", "policy.name=gold").status == 0
    play(
        Row("eval toy:1 policy.name=gold --max-turns 9", ("another configuration (env.max_turns: 50, now 9)",)),
        cli,
        server,
        monkeypatch,
    )


# --- another process: what is read at its start -----------------------------------------------------------------


def program(code: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    code = f"{code}\nfrom swe_gym_command import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.sample(every=2)
@pytest.mark.parametrize(
    ("module", "extra", "command"),
    [
        ("openai", "llm", "eval missing.jsonl --model m"),
        ("openai", "llm", "rollout missing.jsonl --model m"),
        ("ray", "ray", "rollout missing.jsonl -p gold --executor ray"),
        ("ray", "ray", "validate missing.jsonl --executor ray"),
        ("docker", "docker", "validate missing.jsonl --backend docker"),
        ("docker", "docker", "demo --backend docker"),
    ],
)
def test_a_missing_extra_is_named_before_tasks_are_read(module: str, extra: str, command: str) -> None:
    result = program(f"import sys; sys.modules[{module!r}] = None", *command.split())
    assert result.returncode == 2
    assert f"pip install 'swe-gym[{extra}]'" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_terminal_of_ascii_shows_what_it_can(tmp_path: Path, toy: Task) -> None:
    write_tasks([toy.model_copy(update={"problem_statement": "Größe 你好"})], tmp_path / "tasks.jsonl")
    result = program("", "tasks", "list", "-s", str(tmp_path / "tasks.jsonl"), PYTHONIOENCODING="ascii", LC_ALL="C")
    assert (result.returncode, result.stderr) == (0, "")
    assert "Gr??e ??" in result.stdout


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """Mount a file system of memory."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if os.getuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [("size=1m", ("has no room: 1 MiB are free", "--output")), ("ro", ("cannot be written", "is read-only"))],
)
def test_a_full_or_read_only_disk(
    options: str, words: tuple[str, ...], cli, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with mounted(tmp_path / "disk", options) as disk:
        for command in ("eval toy:1 policy.name=gold", "rollout toy:1 -p gold", "demo"):
            play(Row(f"{command} -o {disk}/runs", words), cli, server, monkeypatch)
        record = Row(f"validate toy --limit 1 --record {disk}/record.jsonl", (*words[:-1], "folder of the record"))
        play(record, cli, server, monkeypatch)


def test_a_read_only_home(cli, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SWE_GYM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    with mounted(tmp_path / "home", "ro") as home:
        said = ("the cache cannot be written", f"{home} is read-only", "SWE_GYM_CACHE")
        for command in ("eval toy:1 policy.name=gold", "rollout toy:1 -p gold", "demo", "validate toy --limit 1"):
            play(Row(command, said, {"HOME": str(home)}), cli, server, monkeypatch)


def test_the_table_is_json_free_of_secrets(cli, server: OpenAIServer, tmp_path: Path) -> None:
    """The key is in no file of a run."""
    assert cli("eval", "toy:1", "--model", "scripted", "--base-url", server.base_url, "--max-turns", 1).status == 0
    for path in (tmp_path / "runs").rglob("*"):
        assert not path.is_file() or server.api_key not in path.read_text()
    assert json.loads((tmp_path / "runs" / "toy-scripted" / "results.json").read_text())["graded"] == 1
