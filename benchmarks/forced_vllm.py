"""`vllm serve` for checks of the wire: each request brings its chat template, its parsers, and the tokens to sample.

The field `vllm_xargs` of a request holds `forced`, the token ids, and `parsers`, such as "hermes+qwen3": the names of
`--tool-call-parser` and `--reasoning-parser`. The engine samples these tokens through a logits processor; rendering,
tokenization, detokenization, parsing, grammars and errors are the server's own. `serve` writes a small model with
random weights.
"""

import contextlib
import contextvars
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import transformers
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

MODEL = "forced"
"""Name of the model."""

START = 900.0
"""Seconds that the server may take to start on a busy machine."""

CONTEXT = 1 << 19
"""Tokens of a conversation; a token is a byte."""

WINDOW = 256
"""Tokens that the model attends to: prompts of agents have 200,000 bytes."""

_parsers: contextvars.ContextVar[Any] = contextvars.ContextVar("parsers", default=None)


class Forced(AdapterLogitsProcessor):
    """Makes the engine sample the tokens of a request, and then its last one."""

    def is_argmax_invariant(self) -> bool:
        """See `LogitsProcessor`."""
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        """See `AdapterLogitsProcessor`."""
        forced = (params.extra_args or {}).get("forced")
        if not forced:
            return None

        def force(sampled: list[int], logits: Any) -> Any:
            token = forced[min(len(sampled), len(forced) - 1)]
            logits[:] = float("-inf")
            logits[token] = 0.0
            return logits

        return force


def main() -> None:
    """Serve, with parsers that requests choose."""
    from vllm.entrypoints.launchers.api_server.entry import main as serve_vllm
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
    from vllm.parser import ParserManager
    from vllm.renderers.online_renderer import OnlineRenderer

    complete = OpenAIServingChat.create_chat_completion

    async def choose(self: Any, request: Any, raw_request: Any = None) -> Any:
        tool, _, reasoning = (request.vllm_xargs or {}).get("parsers", "").partition("+")
        tokenizer = self.renderer.tokenizer
        _parsers.set(ParserManager.get_parser(tool or None, reasoning or None, True, tokenizer=tokenizer))
        return await complete(self, request, raw_request)

    OpenAIServingChat.create_chat_completion = choose
    chosen = property(lambda _: _parsers.get(), lambda *_: None)
    OpenAIServingChat.parser_cls = OnlineRenderer.parser = chosen
    serve_vllm()


def choose_reasoners() -> None:
    """Let the engine's grammars begin where the reasoning parser of the request sees the end of a thought.

    The engine has a process of its own, which knows one parser for all requests and imports a plugin.
    """
    from vllm.reasoning import ReasoningParserManager
    from vllm.v1.structured_output import StructuredOutputManager

    def reasoner_of(self: Any, request: Any) -> Any:
        extra = request.sampling_params.extra_args or {}
        asked, name = request.structured_output_request, extra.get("parsers", "").partition("+")[2]
        if asked is None or not name:
            return None
        if asked.reasoner is None:
            kind = ReasoningParserManager.get_reasoning_parser(name)
            asked.reasoner = kind(tokenizer=self.tokenizer, **(asked.reasoning_parser_kwargs or {}))
        return asked.reasoner

    StructuredOutputManager._get_reasoner = reasoner_of


class Client(httpx.Client):
    """A client of a server, whose log it reads.

    Args:
        log: The log.
        base_url: Address of the server.
    """

    def __init__(self, log: Path, base_url: str) -> None:
        super().__init__(base_url=base_url, timeout=600.0)
        self._log = log

    def rejected(self, name: str) -> list[int]:
        """Return the tokens of a request, by its `request_id`, that the engine's grammar does not allow."""
        found = re.search(rf"grammar rejected tokens \[([\d, ]+)\] for request \S*{name}", self._log.read_text())
        return [int(one) for one in found[1].split(",")] if found else []


@contextlib.contextmanager
def serve(tokenizer: Any, content: str) -> Iterator[Client]:
    """Start a server with a tokenizer and a format of content; yield a client of it."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
        heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64, "sliding_window": WINDOW}
        shape = {
            "vocab_size": len(tokenizer),
            "max_position_embeddings": CONTEXT,
            "architectures": ["MistralForCausalLM"],
        }
        transformers.MistralConfig(**sizes, **heads, **shape, dtype="float32").save_pretrained(folder)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        argv = [sys.executable, __file__, "--model", folder, "--served-model-name", MODEL, "--load-format", "dummy"]
        argv += ["--host", "127.0.0.1", "--port", str(port), "--enforce-eager", "--max-model-len", str(CONTEXT)]
        argv += ["--max-num-batched-tokens", "16384", "--max-num-seqs", "8", "--no-async-scheduling"]
        argv += ["--trust-request-chat-template", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
        argv += ["--chat-template-content-format", content, "--logits-processors", "forced_vllm:Forced"]
        plugin = Path(folder, "plugin.py")
        plugin.write_text("import forced_vllm\n\nforced_vllm.choose_reasoners()\n")
        argv += ["--reasoning-parser-plugin", str(plugin)]
        argv += ["--chat-template", "{% for message in messages %}{{ message.content }}{% endfor %}"]
        log = Path(folder, "log")
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        with log.open("w") as file:
            process = subprocess.Popen(
                argv, stdout=file, stderr=file, env={**env, "OMP_NUM_THREADS": "1"}, start_new_session=True
            )
        try:
            with Client(log, f"http://127.0.0.1:{port}") as client:
                wait_for(client, process)
                yield client
        except BaseException:
            print(log.read_text()[-2000:], file=sys.stderr)
            raise
        finally:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a server and its engine, which has a process of its own."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(60)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_for(client: httpx.Client, process: subprocess.Popen[bytes]) -> None:
    """Wait until a server answers."""
    deadline = time.monotonic() + START
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            client.get("/health")
            return
        time.sleep(1)
    raise SystemExit("vLLM did not start")


if __name__ == "__main__":
    main()
