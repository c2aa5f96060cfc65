"""Conversations on the chat templates of real models: what is read of each, and that its prompts are its rendering."""

import contextlib
import functools
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from gateway_parts import TOOLS, asked
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from template_parts import Writer, skip_without_vllm
from test_segments import STEPS, Step, Wild, check, told, user

pytest.importorskip("transformers")
pytest.importorskip("jinja2")

import jinja2

from swe_gym.errors import UsageError
from swe_gym.gateway.agents import AGENTS
from swe_gym.gateway.call_formats import FAMILIES
from swe_gym.gateway.matrix import find_templates, make_tokenizer, prove, render_row
from swe_gym.gateway.parsing import object_of
from swe_gym.gateway.rendering import Renderer
from swe_gym.gateway.session import Session
from swe_gym.gateway.template_proof import QUESTION
from swe_gym.gateway.token_sampler import TokenSampler
from swe_gym.rollout.tokens import ChatTemplate
from swe_gym.trajectories.trajectory import Turn

FOLDER = os.environ.get("SWE_GYM_TEMPLATES")
TEMPLATES = find_templates(Path(FOLDER) if FOLDER else None)
if not TEMPLATES:
    pytest.skip("chat templates of models: pip install --no-deps trl", allow_module_level=True)

REFUSED = {
    "Apertus-8B-Instruct": "in no known format",
    "Apriel-1.6-15b-Thinker-fixed": "in no known format",
    "Cohere2MoE": "cohere_melody",
    "CohereForAI-c4ai-command-r-plus-tool_use": "cannot render messages of text",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "cohere_melody",
    "Kimi-K2-Instruct": "a tool call was not rendered",
    "Kimi-K2-Thinking": "a tool call was not rendered",
    "LFM2-8B-A1B": "a tool call was rendered as '' and read as no call",
    "LFM2.5-Instruct": "in no known format",
    "MiniMax-M1": "in no known format",
    "Mistral-Small-3.2-24B-Instruct-2506": r"read as \[\('look_up\[CALL_ID\]",
    "NVIDIA-Nemotron-Nano-v2": "in no known format",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "cannot render messages of text",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "cannot render messages of text",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "it shows no tools to the model",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "it shows no tools to the model",
    "deepseek-ai-DeepSeek-V3.1": "it shows no tools to the model",
    "deepseek_r1_distill": "it shows no tools to the model",
    "deepseekv3": "it shows no tools to the model",
    "fireworks-ai-llama-3-firefunction-v2": "cannot render messages of text",
    "ibm-granite-granite-3.3-2B-Instruct": "a tool call was rendered as '' and read as no call",
    "idefics3": "omits the assistant's messages",
    "lfm2": "a tool call was rendered as '' and read as no call",
    "llama-cpp-deepseek-r1": "cannot render a tool",
    "llava_next": "cannot render messages of text",
    "meetkai-functionary-medium-v3.1": "read as no call",
    "meetkai-functionary-medium-v3.2": "in no known format",
    "mistralai-Mistral-Nemo-Instruct-2407": "Mistral",
    "openbmb-MiniCPM5-1B": "in no known format",
    "smolvlm": "omits the assistant's messages",
    "tencent-Hy3": "in no known format",
    "unsloth-Apriel-1.5": "read as no call",
    "upstage-Solar-Open-100B": "in no known format",
}
"""Name of a template that is refused -> what is told."""

USABLE = sorted(TEMPLATES.keys() - REFUSED.keys())

CHAT = "/v1/chat/completions"


@functools.cache
def tokenizer(name: str) -> Any:
    return make_tokenizer(TEMPLATES[name].read_text())


def sampler_of(name: str, say: Any, cut: Any = ()) -> tuple[TokenSampler, Writer]:
    skip_without_vllm(TEMPLATES[name].read_text())
    template = ChatTemplate(tokenizer(name))
    writer = Writer(template, say, cut)
    return TokenSampler(writer, template, max_context=1 << 22, max_tokens=1 << 16), writer


def calls(*commands: str, content: str = "", reasoning: str = "") -> dict[str, Any]:
    made = [
        {
            "id": f"call{index:05}",
            "type": "function",
            "function": {"name": "bash", "arguments": json.dumps({"command": one})},
        }
        for index, one in enumerate(commands)
    ]
    said = {"role": "assistant", "content": content, "tool_calls": made}
    return {**said, "reasoning_content": reasoning} if reasoning else said


@pytest.mark.parametrize("name", sorted(REFUSED.keys() & TEMPLATES.keys()))
def test_what_cannot_be_done_is_refused_by_name(name: str) -> None:
    with pytest.raises(UsageError, match=REFUSED[name]):
        sampler_of(name, lambda _: "")


@pytest.mark.parametrize("name", ["deepseekv3", "deepseek_r1_distill"])
def test_the_option_that_a_refusal_names_helps(name: str) -> None:
    renderer = Renderer(ChatTemplate(tokenizer(name)), "hermes")
    assert not renderer.shape.native


MUSE = {
    "start_anchor": "<|start|>assistant",
    "fields": {
        "reasoning_content": {
            "open_pattern": r"\s*to=self<\|message\|>",
            "close_pattern": r"<\|eom\|>(?:<\|start\|>assistant)?",
            "content": "text",
        },
        "tool_calls": {
            "open_pattern": r"\s*to=[\w.]+<\|message\|><atem:function_calls>\s*<atem:invoke name=\"(?P<name>[^\"]+)\">",
            "close_pattern": r"</atem:function_calls>(?:<\|eo[mt]\|>(?:<\|start\|>assistant)?)?",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r"<atem:parameter name=\"(?P<key>[^\"]+)\">(?P<value>.*?)</atem:parameter>"
            },
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"open_pattern": r"\s*to=user<\|message\|>", "close_pattern": r"<\|eot\|>|$", "content": "text"},
    },
}
"""A response template for Muse Glimmer."""


def test_a_tokenizer_with_a_response_template_reads_its_own_calls() -> None:
    made = make_tokenizer(TEMPLATES["muse_glimmer"].read_text())
    made.response_template = MUSE
    template = ChatTemplate(made)
    writer = Writer(template, message)
    session, conversation = Session(TokenSampler(writer, template, max_context=1 << 20)), user("issue")
    for number in range(4):
        conversation = ask(session, conversation)
        asked_for = [json.loads(one["function"]["arguments"]) for one in message(number).get("tool_calls") or ()]
        assert [
            json.loads(one["function"]["arguments"]) for one in conversation[-1].get("tool_calls") or ()
        ] == asked_for
        assert conversation[-1]["reasoning_content"] == message(number)["reasoning_content"]
        conversation = told(conversation, f"result {number}")
    session.close()
    assert session.report().policy.options["style"] == "response_template"
    check(session, writer, set(range(4)))


def ask(session: Session, conversation: list[Any]) -> list[Any]:
    status, answer = asked(session, CHAT, {"messages": conversation, "tools": TOOLS})
    assert status == 200, answer
    return [*conversation, answer["choices"][0]["message"]]


def rendered(name: str, conversation: list[Any], *, generation: bool = True) -> str:
    """Return a conversation as the template itself renders it for structured messages."""
    shown: list[Any] = []
    ids: dict[str, str] = {}  # templates of Kimi number the calls themselves
    for message in conversation:
        for one in message.get("tool_calls") or ():
            own = f"functions.{one['function']['name']}:{len(ids)}" if "Kimi-K2" in name else one["id"]
            ids[one["id"]] = one["id"] if ":" in one["id"] else own
        made = [
            {
                **one,
                "id": ids[one["id"]],
                "function": {**one["function"], "arguments": object_of(one) or {}},
            }
            for one in message.get("tool_calls") or ()
        ]
        thought = message.get("reasoning_content")
        both = {"reasoning_content": thought, "thinking": thought} if thought else {}
        if name == "gptoss" and made and thought and message["content"]:  # it takes one of them
            both, message = {"thinking": f"{thought}\n\n{message['content']}"}, {**message, "content": ""}
        kept = {
            key: message[key] or "" for key in ("role", "content", "tool_call_id") if key in message
        }  # as vLLM does
        kept |= {key: ids.get(kept[key], "") for key in ("tool_call_id",) if key in kept}
        shown.append({**kept, **both, **({"tool_calls": made} if made else {})})
    text = tokenizer(name).apply_chat_template(shown, tools=TOOLS, tokenize=False, add_generation_prompt=generation)
    return str(text)


def message(number: int) -> dict[str, Any]:
    """A message of the model, with reasoning; calls of one and two tools, with text and without."""
    pad = "y" * 90
    content = "" if number % 2 else f"I look at #{number}."
    if number % 4 == 3:
        return {"role": "assistant", "content": f"Done with #{number}. {pad}", "reasoning_content": f"#{number}"}
    commands = [f"ls '#{number} {pad}'\necho \"a, b\"", *(["pwd"] if number % 4 == 2 else [])]
    return calls(*commands, content=content, reasoning=f"Hm, #{number}.")


@pytest.mark.parametrize("name", USABLE)
def test_a_conversation_is_read_and_rendered_as_the_template_does(name: str) -> None:
    sampler, writer = sampler_of(name, message)
    session, conversation, prompts = Session(sampler), user("issue"), []
    renderer = writer.renderer
    for number in range(4):
        if renderer.shape.native:
            prompts.append(rendered(name, conversation))
        conversation = ask(session, conversation)
        asked_for = [json.loads(one["function"]["arguments"]) for one in message(number).get("tool_calls") or ()]
        found = [json.loads(one["function"]["arguments"]) for one in conversation[-1].get("tool_calls") or ()]
        assert found == (asked_for if renderer.shape.parallel else asked_for[:1])
        conversation = told(conversation, f"result {number}")
    session.close()
    read = [writer.template.decode(prompt) for prompt, _ in writer.sampled]
    if renderer.shape.native:
        assert read == prompts
    said = [writer.template.decode(made.token_ids) for _, made in writer.sampled]
    breaks = sum(not after.startswith(before + text) for before, text, after in zip(read, said, read[1:], strict=False))
    assert len(session.report().segments) == 1 + breaks
    assert breaks == sum(session.reasons.values())
    check(session, writer, set(range(4)))


REWRITING = {
    "Qwen-QwQ-32B": "template_rewrites_history",
    "Reka-Edge": "template_rewrites_history",
    "deepseek-ai-DeepSeek-V3.2": "template_rewrites_history",  # unless it thinks
    "google-gemma-4-31B-it": "template_rewrites_history",  # the prompt holds an empty thought
    "google-gemma-4-31B-it-interleaved": "template_rewrites_history",
    "poolside-Laguna-XS-2.1": "template_rewrites_history",  # a line break before its end depends on calls
    "poolside-Laguna-XS.2": "template_rewrites_history",
    "diffusion_gemma": "template_rewrites_history",
    "llama-cpp-rwkv-world": "answer_rewritten",  # it has no token that ends answers
}
"""Templates that rewrite their history when a tool has answered -> the reason that is told."""


UNLIKE = {
    "GigaChat3-10B-A1.8B",
    "GigaChat3.1-10B-A1.8B",
    "Reka-Edge",
    "llama-cpp-rwkv-world",
    "poolside-Laguna-XS-2.1",
    "poolside-Laguna-XS.2",
}
"""Templates without a token that ends all answers alike."""


def plain(name: str, *, talks: bool = False) -> Counter[str]:
    """Return why a conversation starts segments: tool calls and results, or answers and messages of a user.

    The model thinks if the prompt lets it.
    """

    def say(number: int) -> dict[str, Any]:
        thinks = writer.renderer.render_answer([QUESTION], calls("ls", reasoning="Hm."))[1]
        thought = "Hm." if thinks else ""
        said = {"role": "assistant", "content": f"Done with #{number}."}
        if not talks:
            return calls(f"ls '#{number}'", reasoning=thought)
        return {**said, "reasoning_content": thought} if thought else said

    sampler, writer = sampler_of(name, say)
    session, conversation = Session(sampler), user("issue")
    for number in range(4):
        conversation = told(ask(session, conversation), f"result {number}")
    session.close()
    assert len(session.report().segments) == 1 + sum(session.reasons.values())
    return session.reasons


@pytest.mark.parametrize("name", USABLE)
def test_a_plain_conversation_is_one_segment_unless_the_template_rewrites_history(name: str) -> None:
    assert set(plain(name)) == ({REWRITING[name]} if name in REWRITING else set())


PAGE = Path(__file__).parents[2] / "docs" / "models.md"


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_the_page_says_what_is_proven(name: str) -> None:
    source = TEMPLATES[name].read_text()
    skip_without_vllm(source)
    assert render_row(prove(name, source)) in PAGE.read_text()


def test_the_page_has_all_agents_and_families() -> None:
    text = PAGE.read_text()
    missing = {"Phi-4", "SmolLM3"}  # no package has a template of these that shows tools
    assert not [one for one in AGENTS.names() if one not in text]
    assert not [one.name for one in FAMILIES if f"| {one.name} |" not in text and one.name not in missing]


@pytest.mark.parametrize("name", [name for name in USABLE if name not in UNLIKE])
def test_segments_are_proven_by_rendering_alone(name: str) -> None:
    skip_without_vllm(TEMPLATES[name].read_text())
    proof = prove(name, TEMPLATES[name].read_text())
    assert (proof.results, proof.users) == (not plain(name), not plain(name, talks=True))


def test_a_template_that_forgets_thoughts_says_so() -> None:
    says = [
        calls("ls", reasoning="Hm."),
        {"role": "assistant", "content": "So.", "reasoning_content": "Hm."},
        calls("pwd"),
    ]
    sampler, _ = sampler_of("qwen3", lambda number: says[number])
    session, conversation = Session(sampler), user("issue")
    for _ in says:
        conversation = told(ask(session, conversation), "Go on.")
    session.close()
    assert session.reasons == {"template_rewrites_history": 1}


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3_8", "nemotron_3_nano", "gptoss"])
def test_an_answer_that_the_template_writes_otherwise_says_so(name: str) -> None:
    def say(number: int) -> Any:
        text = writer.renderer.write(calls(f"ls #{number}", reasoning="Hm."))
        return text.replace('{"command": ', '{"command":').replace("<parameter=command>\n", "<parameter=command>")

    sampler, writer = sampler_of(name, say)
    session, conversation = Session(sampler), user("issue")
    for _ in range(3):
        conversation = told(ask(session, conversation), "result")
    session.close()
    assert session.reasons == {"answer_rewritten": 2}


class Asking(Wild):
    """An agent that notes how the template renders what it asks."""

    def __init__(self, session: Session, name: str) -> None:
        super().__init__(session)
        self.name, self.prompts = name, set[str]()

    def _ask(self, messages: list[Any], step: Step) -> None:
        with contextlib.suppress(jinja2.TemplateError):  # then a server refuses the messages, too
            self.prompts.add(rendered(self.name, messages))
            super()._ask(messages, step)

    def _got(self, messages: list[Any], message: Any, *, known: bool) -> None:  # noqa: ARG002  some say no number
        self.conversations.append([*messages, message])


def say(kind: str, number: int) -> Any:
    """Return an answer of a kind: messages with a thought and without, in turn; texts that are no answers."""
    command = f"ls '#{number} {'y' * 90}'\necho \"a, b\""
    content, thought = f"I look at #{number}. {'y' * 90}", f"Hm, #{number}."
    answers = {
        "call": calls(command, reasoning=thought),
        "call without a thought": calls(command, content=content),
        "two calls": calls(command, "pwd", content=content, reasoning=thought),
        "text": {"role": "assistant", "content": content, "reasoning_content": thought},
        "text without a thought": {"role": "assistant", "content": content},
        "thought": {"role": "assistant", "content": "", "reasoning_content": thought},
        "nothing": {"role": "assistant", "content": ""},
        "odd": f"#{number} <tool_call> {{ <|x|> </think> #{number}",
    }
    return answers[kind]


KINDS = ["call", "two calls", "call without a thought", "text", "text without a thought", "thought", "nothing", "odd"]
EXAMPLES = int(os.environ.get("SWE_GYM_EXAMPLES", "8"))
FEW = [
    *["gemma4", "glm4moe", "gptoss", "lfm2_2_5", "llama3_1", "nemotron_3_nano", "phi3", "qwen2_5", "qwen3", "qwen3_8"],
    *["ByteDance-Seed-OSS", "Kimi-K3", "MiniMax-M2", "MiniMax-M3", "deepseek-ai-DeepSeek-V3.2", "muse_glimmer"],
    *["deepseek-ai-DeepSeek-V4", "moonshotai-Kimi-K2", "unsloth-mistral-Devstral-Small-2507"],
]
"""A template of each format, those that parsers of vLLM read included. The others are tried with `-m thorough`."""


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[] if one in FEW else pytest.mark.thorough) for one in USABLE]
)
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=STEPS,
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=12),
    cut=st.sets(st.integers(0, 12), max_size=3),
)
def test_each_received_token_is_in_one_segment_and_each_prompt_is_the_rendering(
    name: str, steps: list[Step], kinds: list[str], cut: set[int]
) -> None:
    if "nothing" in kinds:  # it looks like an answer whose thought the agent dropped
        kinds, cut = [one for one in kinds if one != "thought"], set()
    sampler, writer = sampler_of(name, lambda number: say(kinds[number % len(kinds)], number), cut)
    turns: list[Turn] = []
    session = Session(sampler, on_turn=turns.append)
    agent = Asking(session, name)
    agent.do([Step("start", text="issue"), *steps])
    session.close()
    check(session, writer, {turn.info["call"] for turn in turns if turn.info.get("used", True)})
    assert session.failure is None
    if writer.renderer.shape.native:
        assert {writer.template.decode(prompt) for prompt, _ in writer.sampled} <= agent.prompts
