"""A started server stops with its parent, however that ends, and with all its processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from swe_gym.errors import MissingDependency
from swe_gym.train.config import GenerationConfig
from swe_gym.train.generators import WeightsLost, make_generator
from swe_gym.train.generators.vllm import _GUARD, VllmServer
from swe_gym.train.model import PolicyModel

# A program with a child process. Both ignore SIGTERM.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.fork()
os.write(1, b"%d\\n" % os.getpid())  # in one write: both processes use the pipe
time.sleep(600)
"""
# A client that starts it under the guard, and has a fork that holds the pipe to the guard open.
CLIENT = """
import os, subprocess, sys, time
guard = [sys.executable, "-c", sys.argv[1], str(os.getpid())]
guarded = subprocess.Popen([*guard, sys.executable, "-c", sys.argv[2]], stdin=subprocess.PIPE, start_new_session=True)
if fork := os.fork():
    os.write(1, b"fork %d\\n" % fork)
time.sleep(600)
"""


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def test_the_server_stops_when_its_client_is_killed() -> None:
    client = subprocess.Popen([sys.executable, "-c", CLIENT, _GUARD, STUBBORN], stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    said = sorted(client.stdout.readline() for _ in range(3))
    pids = [int(line) for line in said[:2]]
    os.kill(client.pid, signal.SIGKILL)
    client.wait(10)
    client.stdout.close()
    deadline = time.monotonic() + 30
    while not all(map(gone, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(int(said[2].removeprefix("fork")), signal.SIGKILL)
    assert all(map(gone, pids))


# A stand-in for vLLM that records its arguments, is healthy, and ends when it is asked for tokens the first time.
API_SERVER = """
import http.server, json, os, pathlib, sys

here = pathlib.Path(__file__)

class Well(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/v1/completions":
            self.rfile.read(int(self.headers["Content-Length"]))
            if not here.with_name("ended").exists():
                here.with_name("ended").touch()
                os._exit(1)
        self.send_response(404 if self.path in ("/inference/v1/generate", "/update_weight_version") else 200)
        self.end_headers()
        logprobs = {"token_logprobs": [-1.0]}
        choice = {"token_ids": [5], "logprobs": logprobs, "finish_reason": "stop"}
        self.wfile.write(json.dumps({"data": [{"id": "m"}], "choices": [choice]}).encode())

    do_POST = do_GET

pathlib.Path(__file__).with_name("arguments.json").write_text(json.dumps(sys.argv))
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Well).serve_forever()
"""


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, field: str) -> Path:
    """Make the stand-in importable as vLLM, with a field of its arguments."""
    openai = folder / "vllm" / "entrypoints" / "openai"
    openai.mkdir(parents=True)
    (openai / "api_server.py").write_text(API_SERVER)
    (openai / "cli_args.py").write_text(f"class FrontendArgs:\n    host: str\n    {field}\n")
    for package in (folder / "vllm", openai.parent, openai):
        (package / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    monkeypatch.syspath_prepend(folder)
    return openai


def test_a_server_of_the_trainer_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tiny_lm: Any, tokenizer: Any
) -> None:
    openai = stand_in(tmp_path, monkeypatch, "")
    generation = GenerationConfig(options={"env": {"PYTHONPATH": str(tmp_path)}})
    generator = make_generator(generation, PolicyModel(tiny_lm), tokenizer)
    generator.sync_weights(2)
    with pytest.raises(WeightsLost, match="cannot reach vLLM"):
        generator.generate([1], max_tokens=1, temperature=1.0, seed=None)
    (openai / "arguments.json").unlink()
    emptied: list[bool] = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: emptied.append((openai / "arguments.json").exists()))
    generator.sync_weights(2)
    assert emptied == [False]  # before it starts
    assert generator.generate([1], max_tokens=1, temperature=1.0, seed=None)[:1] == ([5],)
    assert (openai / "arguments.json").exists()
    assert "vLLM stopped" in caplog.text
    generator.close()


@pytest.mark.parametrize("field", ["enable_scale_out: bool = False", ""])
def test_only_known_arguments_are_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    """vLLM 0.26 exits on unknown arguments. No proxy is used for this machine."""
    openai = stand_in(tmp_path, monkeypatch, field)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    server = VllmServer(
        tmp_path, max_context=100, args=["-x"], env={"PYTHONPATH": str(tmp_path)}, log=tmp_path / "log", timeout=60
    )
    server.close()
    told = json.loads((openai / "arguments.json").read_text())
    assert ("--enable-scale-out" in told) == bool(field)
    assert told[-1] == "-x"


def test_without_vllm_the_error_names_the_package(tmp_path: Path) -> None:
    import importlib.util

    if importlib.util.find_spec("vllm"):
        pytest.skip("vLLM is here")
    with pytest.raises(MissingDependency, match="pip install vllm"):
        VllmServer(tmp_path, max_context=100, args=(), env={}, log=tmp_path / "log", timeout=5)
