"""The formats of model families, and texts that are in none."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from gateway_parts import TOOLS, ByteTokenizer, Scripted, asked
from hypothesis import given
from hypothesis import strategies as st
from template_parts import require_vllm

from swe_gym.errors import UsageError
from swe_gym.gateway.call_formats import FORMATS, family_of
from swe_gym.gateway.calls import keep_written_ids, tool_call
from swe_gym.gateway.matrix import make_tokenizer
from swe_gym.gateway.parsing import arguments_of
from swe_gym.gateway.rendering import Renderer
from swe_gym.gateway.session import Session
from swe_gym.gateway.token_sampler import TokenSampler
from swe_gym.gateway.tool_calls import VllmParsers, parse_message, readings
from swe_gym.rollout.tokens import ChatTemplate
from swe_gym.testing.openai_server import CHAT
from swe_gym.types import JsonObject

COUNT = {"name": "count", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}}
BOTH = [*TOOLS, {"type": "function", "function": COUNT}]
LS, TWO = ("bash", {"command": "ls"}), ("count", {"n": 2})
BARE = ("bash", {})
QUESTION = [{"role": "user", "content": "?"}]
SAY = ("bash", {"command": 'say "a,b=c"\n'})


def read(text: str, tools: list[Any], style: str, **how: bool) -> JsonObject:
    """Return the first message that a text may be."""
    return next(readings(text, tools, style, **how))


CASES: list[tuple[str, str, str, list[tuple[str, Any]], str]] = [  # style, text, content, calls, reasoning
    ("hermes", 'Now\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>', "Now", [LS], ""),
    (
        "hermes",
        '<think>\na\n</think>\n\n<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>\n'
        '<tool_call>{"name": "count", "arguments": {"n": 2}}</tool_call>',
        "",
        [LS, TWO],
        "a",
    ),
    ("hermes", "b</think>yes", "yes", [], "b"),
    ("hermes", "<think>never ends", "", [], "never ends"),
    ("hermes", "<tool_call>\nno json\n</tool_call>", "<tool_call>\nno json\n</tool_call>", [], ""),
    ("hermes", '{"name": "bash", "arguments": {}}', '{"name": "bash", "arguments": {}}', [], ""),
    (
        "qwen3_coder",
        "So:\n<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=count>\n<parameter=n>\n2\n</parameter>\n</function>\n</tool_call>",
        "So:",
        [LS, TWO],
        "",
    ),
    (
        "qwen3_coder",
        "<function=count>\n<parameter=n>\nmany\n</parameter>\n</function>",
        "",
        [("count", {"n": "many"})],
        "",
    ),
    ("llama", '<|python_tag|>{"name": "bash", "parameters": {"command": "ls"}}', "", [LS], ""),
    (
        "deepseek_v3",
        "a</think>So:<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>bash\n```json\n"
        '{"command": "ls"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>count\n```json\n'
        '{"n": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "So:",
        [LS, TWO],
        "a",
    ),
    (
        "glm45",
        "\n<think>a</think>\nSo:\n<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>ls</arg_value>\n</tool_call>\n"
        "<tool_call>count\n<arg_key>n</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
        "So:",
        [LS, TWO],
        "a",
    ),
    ("glm45", "<tool_call>bash\nls</tool_call>", "<tool_call>bash\nls</tool_call>", [], ""),
    (
        "openai",
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary<|message|>So:<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.bash <|constrain|>json<|message|>{"command": "ls"}',
        "So:",
        [LS],
        "a",
    ),
    ("openai", ' to=functions.count<|channel|>commentary json<|message|>{"n": 2}<|call|>', "", [TWO], ""),
    ("openai", "<|channel|>final<|message|>Done.", "Done.", [], ""),
    ("openai", "<|channel|>final<|message|>Done.<|start|>", "Done.", [], ""),
    (
        "gemma4",
        '<|channel>thought\na\n<channel|>So:<|tool_call>call:bash{command:<|"|>ls<|"|>}<tool_call|>'
        "<|tool_call>call:count{n:2}<tool_call|>",
        "So:",
        [LS, TWO],
        "a",
    ),
    ("gemma4", "<|tool_call>call:bash{n:[}<tool_call|>", "<|tool_call>call:bash{n:[}<tool_call|>", [], ""),
    (
        "lfm2",
        "<think>a</think>So:<|tool_call_start|>[bash(command='ls'), count(n=2)]<|tool_call_end|>",
        "So:",
        [LS, TWO],
        "a",
    ),
    ("lfm2", "<|tool_call_start|>[f(1)]<|tool_call_end|>", "<|tool_call_start|>[f(1)]<|tool_call_end|>", [], ""),
    ("llama", '{"name": "Ada", "parameters": {}}', '{"name": "Ada", "parameters": {}}', [], ""),
    (
        "hermes",
        "<think>I write <tool_call> tags, as in <tool_call>{}</tool_call>.\n"
        '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>',
        "",
        [LS],
        "I write <tool_call> tags, as in <tool_call>{}</tool_call>.",
    ),
    (
        "glm45",
        "<think>I write <tool_call> tags.\n"
        "<tool_call>bash<arg_key>command</arg_key><arg_value>ls</arg_value></tool_call>"
        "<tool_call>count<arg_key>n</arg_key><arg_value>2</arg_value></tool_call>",
        "",
        [LS, TWO],
        "I write <tool_call> tags.",
    ),
    (
        "qwen3_coder",
        "<think>I write <tool_call> tags.\n"
        "<tool_call><function=bash><parameter=command>ls</parameter></function></tool_call>",
        "",
        [LS],
        "I write <tool_call> tags.",
    ),
    ("lfm2", "<|tool_call_start|>[bash(command='say \"a,b=c\"\n')]<|tool_call_end|>", "", [SAY], ""),
]


@pytest.mark.parametrize(("style", "text", "content", "calls", "reasoning"), CASES)
def test_calls_of_each_family(
    style: str, text: str, content: str, calls: list[tuple[str, Any]], reasoning: str
) -> None:
    message = read(text, BOTH, style)
    found = message.get("tool_calls") or []
    assert [(one["function"]["name"], arguments_of(one)) for one in found] == calls
    assert message["content"] == content
    assert message.get("reasoning_content", "") == reasoning
    assert len({one["id"] for one in found}) == len(found)
    assert "tool_calls" not in read(text, [], style)


def calls_in(text: str, style: str, **how: bool) -> list[tuple[str, Any]]:
    found = read(text, BOTH, style, **how).get("tool_calls") or ()
    return [(one["function"]["name"], arguments_of(one)) for one in found]


@pytest.mark.parametrize(
    ("beside", "hermes", "llama"),
    [
        ('"parameters": {"command": "ls"}', [LS], [LS]),
        ('"command": "ls"', [LS], []),
        ('"id": "1", "arguments": {"command": "ls"}', [LS], [LS]),
        ('"arguments": ""', [BARE], [BARE]),
        ('"arguments": null', [], [BARE]),
        ('"arguments": null, "parameters": {"command": "ls"}', [], []),
        ('"arguments": {}, "command": "ls"', [], []),
    ],
)
def test_no_call_loses_its_arguments(beside: str, hermes: list[Any], llama: list[Any]) -> None:
    text = f'{{"name": "bash", {beside}}}'
    assert calls_in(f"<tool_call>{text}</tool_call>", "hermes") == hermes
    assert calls_in(text, "llama") == llama


CUT = [
    ("glm45", "<tool_call>bash<arg_key>command</arg_key><arg_value>ls</arg_value>", "</tool_call>"),
    ("glm45", "<think>a<tool_call>bash<arg_key>command</arg_key><arg_value>ls</arg_value>", "</tool_call>"),
    ("qwen3_coder", "<function=bash><parameter=command>ls</parameter>\n", "</function>"),
    ("openai", "<|channel|>commentary to=functions.bash<|message|>", "<|call|>"),
]


@pytest.mark.parametrize(("style", "text", "end"), CUT)
def test_a_call_that_is_cut_between_its_arguments_is_no_call(style: str, text: str, end: str) -> None:
    whole = calls_in(text + end, style, cut=True)
    assert [name for name, _ in whole] == ["bash"]
    assert calls_in(text + end + text, style, cut=True) == whole
    assert calls_in(text, style) == whole
    assert calls_in(text, style, cut=True) == []


@pytest.mark.parametrize("how", ["end", "limit", "stop"])
def test_a_sampler_reads_no_call_that_it_has_cut(how: str) -> None:
    text, after = "<function=bash><parameter=command>ls</parameter>", " and more" if how == "stop" else ""
    template = ChatTemplate(ByteTokenizer(shows_tools=False))
    sampler = TokenSampler(Scripted(lambda _: text + after), template, style="qwen3_coder")
    settings = {"max_tokens": len(text)} if how == "limit" else {"stop": " and"} if how == "stop" else {}
    status, answer = asked(Session(sampler), CHAT, {"messages": QUESTION, "tools": BOTH, **settings})
    assert status == 200
    choice = answer["choices"][0]
    if how == "end":
        assert arguments_of(choice["message"]["tool_calls"][0]) == {"command": "ls"}
    else:
        assert (choice["message"].get("tool_calls"), choice["message"]["content"]) == (None, text)


class FakeResponse(ByteTokenizer):
    """A tokenizer whose response template reads a call at each `!`."""

    def parse_response(self, text: str, **options: Any) -> JsonObject:  # noqa: ARG002
        return {"content": "", "tool_calls": [{"function": {"name": "bash", "arguments": {}}}] * text.count("!")}


def test_the_last_call_of_a_cut_answer_is_text_where_a_response_template_reads_it() -> None:
    template = ChatTemplate(FakeResponse())
    for text, count in (("a", 0), ("a!", 0), ("a!!", 1)):
        message = parse_message(template, text, BOTH, "", cut=True)
        assert len(message.get("tool_calls") or ()) == count
        assert message["content"] == ("a!" if text == "a!" else "")


def test_the_last_call_of_a_cut_answer_is_text_where_a_parser_of_vllm_reads_it() -> None:
    require_vllm()
    show = "{% for message in messages %}{{ message.content }}{% endfor %}"
    parsers = VllmParsers("vllm:glm45", ChatTemplate(make_tokenizer(f"{{# <tool_call> </tool_call> #}}{show}")))
    one = CUT[0][1] + "</tool_call>"
    for text, count in ((one, 0), (one + one, 1)):
        message = next(parsers.readings(text, MANY, "", cut=True))
        assert len(message.get("tool_calls") or ()) == count
        assert count or message["content"] == text


@pytest.mark.parametrize("name", ["python", "browser", "container", "assistant", "python.run"])
def test_a_tool_may_have_the_name_of_a_tool_of_the_provider(name: str) -> None:
    text = "<|channel|>commentary to={}<|message|>{{}}<|call|>"
    assert calls_in(text.format(f"functions.{name}"), "openai") == [(name, {})]
    assert calls_in(text.format(name), "openai") == []


@pytest.mark.timeout(60)  # a quadratic pattern takes minutes
@pytest.mark.parametrize(
    ("style", "start", "piece", "end"),
    [
        ("hermes", "", "\n", ""),
        ("hermes", "<think>", "<tool_call>", ""),
        ("deepseek_v3", "", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>bash ", ""),
        ("deepseek_v3", "", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>bash\n```json\n", ""),
        ("glm45", "<tool_call>bash", "<arg_key>a</arg_key><arg_value>", ""),
        ("openai", "", "<|start|>assistant", ""),
        ("gemma4", "", "<|tool_call>call:bash{n:", ""),
        ("gemma4", "<|tool_call>call:bash{n:", "a:", '{<|"|>}}<tool_call|>'),
        ("lfm2", "", "<|tool_call_start|>[bash(", ""),
        ("lfm2", "<|tool_call_start|>[bash(a='", ", x=a", ")]<|tool_call_end|>"),
    ],
)
def test_a_looping_answer_is_read_in_linear_time(style: str, start: str, piece: str, end: str) -> None:
    read(start + piece * (300_000 // len(piece)) + end, BOTH, style)


EDIT = {
    "path": {"type": "string"},
    "line": {"type": "integer"},
    "all": {"type": "boolean"},
    "ratio": {"type": "number"},
    "edits": {"type": "array", "items": {"type": "object"}},
    "options": {"type": "object"},
    "mode": {"type": "string", "enum": ["fast", "safe"]},
    "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
}
MANY = [
    *TOOLS,
    {"type": "function", "function": {"name": "edit", "parameters": {"type": "object", "properties": EDIT}}},
    {"type": "function", "function": {"name": "finish", "parameters": {"type": "object", "properties": {}}}},
]
ANSWERS = [json.loads(line) for line in (Path(__file__).parent / "answers.jsonl").read_text().splitlines()]
"""Answers as models of each family write them, and how they are read. `vllm` names the parsers of vLLM that read the
same, unless `differs` says what vLLM does instead; it is missing where these parsers need files of the model.
"""


def reading(message: JsonObject) -> tuple[str, str, list[list[Any]]]:
    """Return reasoning, content and calls of a message."""
    calls = [[one["function"]["name"], arguments_of(one)] for one in message.get("tool_calls") or ()]
    return message.get("reasoning_content", "").strip(), message["content"].strip(), calls


@pytest.mark.parametrize("family", dict.fromkeys(one["family"] for one in ANSWERS if one["style"] in FORMATS))
def test_answers_of_each_family_are_read_as_their_server_reads_them(family: str) -> None:
    for one in ANSWERS:
        if one["family"] == family:
            found = read(one["text"], MANY, one["style"], opened=one.get("opened", False))
            assert reading(found) == expected(one), one["text"]


@pytest.mark.parametrize("family", dict.fromkeys(one["family"] for one in ANSWERS if one.get("vllm")))
def test_vllm_reads_the_answers_alike_unless_the_difference_is_named(family: str) -> None:
    require_vllm()
    own = [one for one in ANSWERS if one["family"] == family]
    tags = " ".join(one["text"] for one in own)
    show = "{% for message in messages %}{{ message.content }}{% endfor %}"
    parsers = VllmParsers(own[0]["vllm"], ChatTemplate(make_tokenizer(f"{{# {tags} #}}{show}")))
    for one in own:
        found = next(parsers.readings(one["text"], MANY, "<think>" if one.get("opened") else ""))
        assert (reading(found) == expected(one)) == ("differs" not in one), one["text"]


def expected(answer: JsonObject) -> tuple[str, str, list[list[Any]]]:
    return answer.get("reasoning", ""), answer.get("content", ""), answer.get("calls", [])


TAGS = (
    "<tool_call> </tool_call> <function=bash> </function> <parameter=command> </parameter> <think> </think> <arg_key> "
    '</arg_key><arg_value> </arg_value> <|tool_call>call:bash{ }<tool_call|> <|"|> <|channel|> <|message|> <|end|> '
    "<|start|>assistant to=functions.bash <|tool_call_start|>[bash(command= )]<|tool_call_end|> <|channel>thought"
)
PIECES = st.sampled_from(
    [*TAGS.split(), '{"name": "bash", "arguments": ', '{"command": "ls"}', "}", "[" * 2000, "\n", "<|python_tag|>"]
)


@given(st.lists(st.one_of(PIECES, st.text(max_size=5)), max_size=12).map("".join), st.sampled_from(sorted(FORMATS)))
def test_no_text_is_an_error(text: str, style: str) -> None:
    json.dumps(read(text, BOTH, style))


@pytest.mark.parametrize(
    ("template", "name", "style"),
    [
        ("... <tool_call>\n<function=example> ...", "Qwen3-Coder", "qwen3_coder"),
        ("... within <tool_call></tool_call> XML tags ...", "Qwen2.5 and Hermes", "hermes"),
        ('... {"name": function name, "parameters": dictionary ...} <|python_tag|>', "Llama 3", "llama"),
        ("... <tool_call>{function-name}\n<arg_key>{key}</arg_key> ...", "GLM-4.5", "glm45"),
        ("... <|tool_calls_section_begin|> ...", "Kimi K2", "vllm:kimi_k2"),
        ("... [TOOL_CALLS] ...", "Mistral", "vllm:mistral+mistral"),
    ],
)
def test_the_family_is_that_of_the_template(template: str, name: str, style: str) -> None:
    family = family_of(template)
    assert family is not None
    assert (family.name, family.style) == (name, style)


def test_a_template_without_a_sign_of_a_family_is_of_none() -> None:
    assert family_of("{% for m in messages %}") is None


def test_arguments_with_numbers_that_json_lacks_stay_text() -> None:
    for text in ('{"a": NaN}', '{"a": -1e999}'):
        assert arguments_of({"function": {"name": "bash", "arguments": text}}) == {"arguments": text}


def test_a_thought_that_the_prompt_opened_and_a_limit_cut_is_reasoning() -> None:
    assert read("I thi", [], "hermes", opened=True) == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "I thi",
    }


def test_calls_after_the_first_are_left_out_for_templates_with_one_call() -> None:
    one = '{"name": "bash", "parameters": {"command": "ls"}}'
    assert len(read(f"{one}; {one}", BOTH, "llama")["tool_calls"]) == 2
    assert len(read(f"{one}; {one}", BOTH, "llama", parallel=False)["tool_calls"]) == 1


class OtherCalls(ByteTokenizer):
    """A template that shows tools and renders no calls."""

    def apply_chat_template(self, messages: Any, **options: Any) -> str:
        bare = [{"role": one["role"], "content": one["content"]} for one in messages]
        return super().apply_chat_template(bare, **options)


@pytest.mark.parametrize(
    ("template", "style", "said"),
    [
        ("{{ tools }}", "", "of unknown: it is in no known format"),
        (
            "<tool_call>",
            "",
            "of Qwen2.5 and Hermes: style 'hermes': a tool call was rendered as '' and read as no call",
        ),
        ("<tool_call>", "glm45", "style 'glm45': .*generation.tool_call_style"),
    ],
)
def test_tool_calls_that_cannot_be_read_are_refused_before_the_first_call(template: str, style: str, said: str) -> None:
    tokenizer = OtherCalls()
    tokenizer.chat_template = template
    with pytest.raises(UsageError, match=said):
        Renderer(ChatTemplate(tokenizer), style)


@pytest.mark.skipif(bool(importlib.util.find_spec("vllm")), reason="vLLM is here")
def test_a_family_that_vllm_reads_is_refused_without_vllm() -> None:
    tokenizer = OtherCalls()
    tokenizer.chat_template = "[TOOL_CALLS]"
    said = "of Mistral: style 'vllm:mistral.mistral': .* cannot be imported here .*: pip install vllm. Name the format"
    with pytest.raises(UsageError, match=said):
        Renderer(ChatTemplate(tokenizer))


def test_parsers_that_vllm_does_not_have_are_refused_with_a_suggestion() -> None:
    require_vllm()
    tokenizer = make_tokenizer("{% for message in messages %}{{ message.content }}{% endfor %}{{ tools or '' }}")
    for style, said in (("vllm:hermse", "tool parser of vLLM 'hermse'"), ("vllm:hermes+qwen", "'qwen'.* mean 'qwen3'")):
        with pytest.raises(UsageError, match=said):
            Renderer(ChatTemplate(tokenizer), style)


@pytest.mark.parametrize("served", [[], ["functions.bash:0"]])
def test_ids_that_a_model_wrote_are_kept_unless_an_earlier_call_has_them(served: list[str]) -> None:
    said = {"role": "assistant", "tool_calls": [tool_call(one, "bash", "{}") for one in served]}
    calls = [
        tool_call(one, "bash", "{}") for one in ("functions.bash:0", "call_1", "functions.bash:1", "functions.bash:1")
    ]
    ids = [one["id"] for one in keep_written_ids(calls, [said])]
    assert len(set(ids)) == 4
    assert (ids[0] == "functions.bash:0") == (not served)
    assert ids[2] == "functions.bash:1"
    assert ids[1].isalnum()


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("given", "served"),
    [
        ({"description": "D."}, {"description": "D.", "parameters": None}),
        ({"description": "", "parameters": {}}, {"description": "", "parameters": {}}),
        ({"parameters": SCHEMA}, {"description": None, "parameters": SCHEMA}),
        ({"parameters": SCHEMA, "strict": True}, {"description": None, "parameters": SCHEMA, "strict": True}),
        ({"description": "D.", "strict": False}, {"description": "D.", "parameters": None, "strict": False}),
        ({"description": None, "parameters": None, "strict": None, "x": 1}, {"description": None, "parameters": None}),
    ],
)
def test_tools_are_rendered_as_a_server_renders_them(given: JsonObject, served: JsonObject) -> None:
    """The dictionaries, and the order of their fields, are those that vLLM 0.32 hands to chat templates."""
    model = Scripted(lambda _: "So.")
    session = Session(TokenSampler(model, ChatTemplate(ByteTokenizer())))
    asked(session, CHAT, {"messages": QUESTION, "tools": [{"type": "function", "function": {"name": "now", **given}}]})
    session.close()
    ((prompt, _),) = model.sampled
    shown = [{"type": "function", "function": {"name": "now", **served}}]
    assert bytes(one for one in prompt if one < 256).decode().startswith(f"tools\n{json.dumps(shown)}\n")


def test_a_template_without_tools_gets_them_as_text() -> None:
    tokenizer = ByteTokenizer(shows_tools=False)
    tokenizer.chat_template = "{{ messages }}"
    renderer = Renderer(ChatTemplate(tokenizer))
    assert (renderer.style, renderer.shape.native) == ("hermes", False)
    prompt = renderer.render([{"role": "user", "content": "?"}], BOTH)
    assert "<tool_call>" in prompt
    assert "count" in prompt
    with pytest.raises(UsageError, match="shows no tools"):
        Renderer(ChatTemplate(tokenizer), "glm45")
