"""Check agents and chat templates on a real vLLM, which renders, tokenizes, samples, parses and refuses as it does.

Each chat template travels with the requests, with its parsers and the tokens that the engine has to sample: what a
model of this family would write (see `forced_vllm`). Nothing may be refused, calls must be read, and prompts must be
those of token sampling, byte for byte. Without `--agents`, the first messages of each kind of agent are sent, a call
and its result; then a call of a tool without parameters, one of a strict tool and one with parallel_tool_calls=false,
for which vLLM makes grammars. With `--agents`, unmodified agents begin a bundled task in a local sandbox, over chat
completions or, with `--wire ids`, over token ids, as in training. Needs vLLM 0.32, TRL's templates, and the kits of
the agents. gpt-oss is left out: vLLM renders it without a template.

    python benchmarks/served_templates.py --templates models/templates
    python benchmarks/served_templates.py qwen3 gemma4 --agents codex,claude-code
"""

import argparse
import contextlib
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from agent_tokens import checked
from agents import model_for
from forced_vllm import MODEL, Client, serve

from swe_gym.envs.swe_env import SweEnv
from swe_gym.errors import SweGymError, UsageError
from swe_gym.gateway import AgentPlayer, check_shapes, find_templates
from swe_gym.gateway.agents import AGENTS, make_agent
from swe_gym.gateway.call_formats import VLLM
from swe_gym.gateway.calls import arrange_system_messages, new_id, tool_call
from swe_gym.gateway.matrix import make_tokenizer, openings
from swe_gym.gateway.model_server import ServedGenerator
from swe_gym.gateway.parsing import arguments_of
from swe_gym.gateway.rendering import Renderer
from swe_gym.gateway.template_proof import ARGUMENTS, PROBE, PROBE_NAME
from swe_gym.gateway.token_sampler import TokenSampler
from swe_gym.rollout.episode import play
from swe_gym.rollout.policies import make_players
from swe_gym.rollout.policies.llm import LLMPolicies
from swe_gym.rollout.tokens import ChatTemplate, Completion
from swe_gym.tasks import load_source
from swe_gym.testing.loopback import HttpAnswer
from swe_gym.testing.openai_server import CHAT, ModelReply, OpenAIServer
from swe_gym.trajectories.trajectory import Trajectory
from swe_gym.types import JsonMapping, JsonObject

sys.path.append(str(Path(__file__).parents[1] / "tests" / "gateway"))
from agent_parts import saying  # the tests' own models
from template_parts import Writer

SHOW = "{% for message in messages %}{{ message.content }}{% endfor %}"
"""A template for a tokenizer, which gets the tags of all templates."""


class Case(NamedTuple):
    """A template, what renders and reads it here, and the names of vLLM's parsers."""

    name: str
    source: str
    renderer: Renderer
    parsers: str


OWN = {
    "GigaChat3": "gigachat3",
    "inclusionai-ling-3.0": "ling3+ling3",
    "poolside-Laguna": "poolside_v1+poolside_v1",
    "StepFun3.5": "step3p5+step3p5",
}
"""Start of a template's name -> the parsers that vLLM has for this model, which writes calls as another family does."""


def parsers_of(name: str, renderer: Renderer, source: str) -> str:
    """Return the parsers of vLLM for a template, as "TOOL+REASONING"."""
    for start, parsers in OWN.items():
        if name.startswith(start):
            return parsers
    style = renderer.style.removeprefix(VLLM)
    if style != renderer.style:
        return style
    if style in ("glm45", "gemma4"):
        return f"{style}+{style}"
    if style in ("hermes", "qwen3_coder") and "<think>" in source:
        return f"{style}+{'nemotron_v3' if renderer.family.startswith('Nemotron') else 'qwen3'}"
    return "llama3_json" if style == "llama" else style


def cases_of(folder: Path | None, names: Sequence[str]) -> Iterator[Case]:
    """Yield the templates that show tools and that token sampling takes."""
    for name, path in find_templates(folder).items():
        source = path.read_text()
        if names and name not in names:
            continue
        with contextlib.suppress(UsageError):
            renderer = Renderer(ChatTemplate(make_tokenizer(source)))
            if renderer.shape.native and renderer.style != "openai":
                yield Case(name, source, renderer, parsers_of(name, renderer, source))


def tokenizer_for(cases: Sequence[Case]) -> Any:
    """Return a tokenizer of bytes and of the tags of all templates."""
    tags = " ".join(tag for one in cases for tag in one.renderer.template.tokenizer.get_added_vocab())
    return make_tokenizer(f"{{# {re.sub('[{}#]', '', tags)} #}}{SHOW}")


class Model:
    """A model of a family on the server. It says what a script says, and notes what is wrong with the server's answers.

    Args:
        client: The server.
        tokenizer: Its tokenizer.
        case: The chat template.
        say: Request -> what the model answers.
    """

    def __init__(self, client: Client, tokenizer: Any, case: Case, say: Callable[[Any], ModelReply]) -> None:
        self.wrong: list[str] = []
        self.results = 0  # results of tools that came back
        self._client, self._tokenizer, self._case, self._say = client, tokenizer, case, say
        self._writer = Writer(case.renderer.template, say)

    def __call__(self, request: Any) -> ModelReply:
        """Answer a request of `OpenAIServer` with the answer of vLLM."""
        reply = self.ask(request)
        raise HttpAnswer(reply.status_code, reply.json())

    def ask(self, request: Any) -> httpx.Response:
        """Return the server's answer to a request."""
        said, text, _ = self.write(request)
        ids = [*self._encode(text), self._tokenizer.eos_token_id]
        xargs = {"forced": ids, "parsers": self._case.parsers}
        more = {"chat_template": self._case.source, "vllm_xargs": xargs, "return_token_ids": True}
        more |= {"model": MODEL, "max_tokens": len(ids), "request_id": new_id()}
        reply = self._client.post(CHAT, json={**request, **more})
        if reply.status_code != 200:
            rejected = self._tokenizer.decode(self._client.rejected(more["request_id"]))
            grammar = f"the grammar allows no {rejected!r} where the template has it"
            self.wrong.append(grammar if rejected else f"{reply.status_code} {reply.text[:200]}")
            return reply
        found = reply.json()
        self._check(request, said, ids, found)
        return httpx.Response(200, json=found)

    def write(self, request: Any) -> tuple[Any, str, list[int]]:
        """Return what the model answers: a message, its text, and the tokens of the text and its end."""
        self.results = max(self.results, sum(one["role"] == "tool" for one in request["messages"]))
        reply = self._say(request)
        said = {"role": "assistant", "content": reply.content, "reasoning_content": "Hm."}
        if reply.tool_calls:
            calls = reply.tool_calls if self._case.renderer.shape.parallel else reply.tool_calls[:1]
            said["tool_calls"] = [tool_call(f"call{at:05}", *one) for at, one in enumerate(calls)]
        text, end = self._writer.write(said)  # without the reasoning if the template renders none
        return said, text, self._encode(text + end)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _check(self, request: Any, said: Any, ids: list[int], found: Any) -> None:
        (choice,) = found["choices"]
        calls, wanted = _calls(choice["message"]), _calls(said)
        if calls != wanted:
            self.wrong.append(f"{said} was read as {choice['message']}"[:400])
        if choice["token_ids"] != ids:
            self.wrong.append("other tokens were sampled than the request says")
        self._compare(request, found["prompt_token_ids"])

    def _compare(self, request: Any, ids: list[int]) -> None:
        """Note how the server's prompt differs from that of token sampling, or what it lacks."""
        messages, renderer = request["messages"], self._case.renderer
        served = self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if not renderer.shape.later and any(one["role"] == "system" for one in messages[1:]):
            # the template drops or moves them, so token sampling makes them the user's
            self.wrong += [f"{one['role']} message dropped" for one in messages if (one["content"] or "") not in served]
            return
        ours = renderer.render(messages, request.get("tools") or ())
        if served != ours:
            pairs = enumerate(zip(served, ours, strict=False))
            at = next((at for at, (one, other) in pairs if one != other), min(len(served), len(ours)))
            self.wrong.append(f"rendered {served[at : at + 60]!r} instead of {ours[at : at + 60]!r}")


def _calls(message: Any) -> list[Any]:
    return [(one["function"]["name"], arguments_of(one)) for one in message.get("tool_calls") or ()]


def check_opening(client: Client, tokenizer: Any, case: Case, roles: tuple[str, ...]) -> str:
    """Send an agent's first messages, a call and its result: "y", "user" if that option is needed, or what fails."""
    told = [{"role": role, "content": f"{role} {number}."} for number, role in enumerate(roles)]
    refused = ""
    for later in ("system", "user"):
        wrong = check_messages(client, tokenizer, case, arrange_system_messages(told, later))
        if not wrong:
            return "y" if later == "system" else "user"
        refused = refused or wrong
    return f"n: {refused}"


NOW = {"type": "function", "function": {"name": "now", "description": "Tells the time."}}
STRICT = {"type": "function", "function": {**PROBE["function"], "strict": True}}
SHAPES: dict[str, tuple[JsonObject, JsonObject]] = {
    "no parameters": ({"tools": [PROBE, NOW]}, {"name": "now", "arguments": {}}),
    "strict": ({"tools": [STRICT, NOW]}, {}),
    "one call": ({"tools": [PROBE], "parallel_tool_calls": False}, {}),
}
"""Shape of a request -> its fields, and the call if it is not that of the usual tool."""


def check_shape(client: Client, tokenizer: Any, case: Case, shape: str) -> str:
    """Send a shape of tools with messages, a call and its result: "y", or what fails."""
    fields, call = SHAPES[shape]
    told = [{"role": "system", "content": "A rule."}, {"role": "user", "content": "A question."}]
    wrong = check_messages(client, tokenizer, case, told, fields, **call)
    return f"n: {wrong}" if wrong else "y"


def check_all(client: Client, tokenizer: Any, case: Case) -> list[str]:
    """Check the openings of all agents and all shapes of tools."""
    with ThreadPoolExecutor(len(openings()) + len(SHAPES)) as pool:
        checks = [pool.submit(check_opening, client, tokenizer, case, roles) for roles in openings()]
        checks += [pool.submit(check_shape, client, tokenizer, case, shape) for shape in SHAPES]
        return [one.result() for one in checks]


def check_messages(
    client: Client,
    tokenizer: Any,
    case: Case,
    messages: list[Any],
    fields: JsonMapping = {"tools": [PROBE]},  # noqa: B006
    name: str = PROBE_NAME,
    arguments: JsonMapping = ARGUMENTS,
) -> str:
    """Send messages, a call and its result; return what is wrong."""
    model = Model(client, tokenizer, case, lambda _: ModelReply(tool_calls=[(name, json.dumps(arguments))]))
    reply = model.ask({"messages": messages, **fields})
    if not model.wrong:
        message = reply.json()["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "A result."}
        model.ask({"messages": [*messages, message, result], **fields})
    return next(iter(model.wrong), "")


# --- agents -----------------------------------------------------------------------------------------------------

COMMANDS = ("ls", "git status --short")
"""What the model calls, before it ends: a token is a byte, so that a solution takes minutes on a busy machine."""


def script_for(name: str, task: str) -> tuple[Callable[[Any], ModelReply], Any]:
    """Return what the model of an agent says, and the agent's options."""
    kind = AGENTS.load(name)
    return (saying(*COMMANDS, *filter(None, [kind.ending])), {}) if kind.shell[0] else model_for(name, task)


def play_chat(client: Client, tokenizer: Any, case: Case, name: str, task: str) -> str:
    """Play a task with an agent over chat completions: "y", "user" if that option is needed, or what fails."""
    say, options = script_for(name, task)
    model = Model(client, tokenizer, case, say)
    with OpenAIServer(model, model=MODEL) as server:
        llm = {"model": MODEL, "base_url": server.base_url, "api_key": server.api_key, "retries": 0}
        try:
            check_shapes(LLMPolicies(**llm), name, make_agent(name))
        except UsageError as error:
            if "policy.later_system=user" not in str(error):
                return f"n: {error}"
            llm["later_system"] = "user"
        model.wrong.clear()
        with contextlib.closing(make_players("llm", llm, name, options)) as players:
            found = play_task(task, lambda env: players(env, seed=1))
    wrong = found if isinstance(found, str) else _fault(found, name, model) or next(iter(model.wrong), "")
    return f"n: {wrong}" if wrong else "user" if "later_system" in llm else "y"


class EngineSampler(TokenSampler):
    """Samples the tokens of a model on the server, over token ids."""

    def __init__(self, client: Client, model: Model, renderer: Renderer) -> None:
        super().__init__(self, renderer, max_context=1 << 19, max_tokens=1 << 14)  # it is its own generator
        self.sampled: list[tuple[tuple[int, ...], Completion]] = []
        self._url, self._said = f"{client.base_url}/v1", model
        self._asked = threading.local()  # agents call from several threads at once

    def sample(self, call: Any, place: Any, *, seed: int | None) -> Any:
        """See `Sampler`."""
        self._asked.request = {"messages": call.messages, "tools": call.tools}
        return super().sample(call, place, seed=seed)

    def generate(self, prompt: Sequence[int], *, max_tokens: int, temperature: float, seed: int | None) -> Completion:
        """See `Generator`."""
        ids = self._said.write(self._asked.request)[2]
        request = {"vllm_xargs": {"forced": ids}, "stop_token_ids": ids[-1:]}
        options = LLMPolicies(model=MODEL, base_url=self._url, api_key="none", retries=0, request=request)
        with contextlib.closing(ServedGenerator(options)) as generator:
            made = generator.generate(prompt, max_tokens=max_tokens, temperature=temperature, seed=seed)
        self.sampled.append((tuple(prompt), made))
        return made


def play_ids(client: Client, tokenizer: Any, case: Case, name: str, task: str) -> str:
    """Play a task with an agent over token ids: "y" with the number of its segments, or what fails."""
    say, options = script_for(name, task)
    model = Model(client, tokenizer, case, say)
    renderer = Renderer(ChatTemplate(_with_template(tokenizer, case.source)))
    sampler = EngineSampler(client, model, renderer)
    found = play_task(task, lambda _: AgentPlayer(name, make_agent(name, options), sampler))
    if isinstance(found, str):
        return f"n: {found}"
    seen = checked(found, sampler.sampled)
    wrong = _fault(found, name, model) or seen.wrong
    return f"n: {wrong}" if wrong else f"y ({seen.segments})"


def _with_template(tokenizer: Any, source: str) -> Any:
    tokenizer.chat_template = source
    return tokenizer


def play_task(task: str, player: Callable[[Any], Any]) -> Trajectory | str:
    """Play a task; return why if it has no result."""
    with contextlib.closing(SweEnv("toy", task_id=task, time_limit=1800.0)) as env:
        try:
            return play(env, player(env))
        except SweGymError as error:
            return f"{type(error).__name__}: {error}"


def _fault(found: Trajectory, name: str, model: Model) -> str:
    """Return why an episode has no verdict, or that calls were not carried out."""
    if not found.reward_valid:
        return f"{found.reason}: {found.failure}"
    lacks = AGENTS.load(name).shell[0] and model.results < len(COMMANDS)
    return f"{model.results} of {len(COMMANDS)} results of tools came back" if lacks else ""


WIRES = {"chat": play_chat, "ids": play_ids}


def main() -> None:
    """Check and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="templates; all without names")
    parser.add_argument("--templates", type=Path, metavar="FOLDER", help="folder of *.jinja files, beside those of TRL")
    parser.add_argument("--content", default="string", help="vLLM's --chat-template-content-format")
    parser.add_argument("--agents", default="", help="agents that play a task, with commas between")
    parser.add_argument("--wire", default="chat", choices=WIRES, help="what agents play over")
    given = parser.parse_args()
    cases = list(cases_of(given.templates, given.names))
    agents = list(filter(None, given.agents.split(",")))
    columns = agents or [f"{', '.join(names)} ({', '.join(roles)})" for roles, names in openings().items()] + [*SHAPES]
    tokenizer, task = tokenizer_for(cases), load_source("toy").ids()[0]
    good, reasons = 0, []
    print(f"| Family | Template | {' | '.join(columns)} |\n|---|---|{'---|' * len(columns)}")
    with serve(tokenizer, given.content) as client:
        for case in cases:
            if agents:
                cells = [WIRES[given.wire](client, tokenizer, case, name, task) for name in agents]
            else:
                cells = check_all(client, tokenizer, case)
            failed: dict[str, list[str]] = {}  # reason -> columns
            for column, cell in zip(columns, cells, strict=True):
                if cell.startswith("n: "):
                    failed.setdefault(" ".join(cell[3:].split())[:300], []).append(column)
            reasons += [f"- `{case.name}`, {'; '.join(names)}: {why}" for why, names in failed.items()]
            good += sum(not one.startswith("n") for one in cells)
            row = [case.renderer.family, f"`{case.name}`", *(one.partition(":")[0] for one in cells)]
            print(f"| {' | '.join(row)} |", flush=True)
    print("\n".join(["", *reasons, "" if reasons else "Nothing failed."]))
    print(f"{good} of {len(cases) * len(columns)} cells of {len(cases)} templates work")


if __name__ == "__main__":
    main()
