"""The formats of model families, and texts that are in none."""

import json
from typing import Any

import pytest
from gateway_parts import TOOLS
from hypothesis import given
from hypothesis import strategies as st

from swe_gym.gateway.parsing import arguments_of
from swe_gym.gateway.tool_calls import STYLES, read_message, style_of

COUNT = {"name": "count", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}}
BOTH = [*TOOLS, {"type": "function", "function": COUNT}]
LS, TWO = ("bash", {"command": "ls"}), ("count", {"n": 2})

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
    ("llama", '{"name": "Ada", "parameters": {}}', '{"name": "Ada", "parameters": {}}', [], ""),
]


@pytest.mark.parametrize(("style", "text", "content", "calls", "reasoning"), CASES)
def test_calls_of_each_family(
    style: str, text: str, content: str, calls: list[tuple[str, Any]], reasoning: str
) -> None:
    message = read_message(text, BOTH, style)
    found = message.get("tool_calls") or []
    assert [(one["function"]["name"], arguments_of(one)) for one in found] == calls
    assert message["content"] == content
    assert message.get("reasoning_content", "") == reasoning
    assert len({one["id"] for one in found}) == len(found)
    assert "tool_calls" not in read_message(text, [], style)


TAGS = "<tool_call> </tool_call> <function=bash> </function> <parameter=command> </parameter> <think> </think>"
PIECES = st.sampled_from(
    [*TAGS.split(), '{"name": "bash", "arguments": ', '{"command": "ls"}', "}", "[" * 2000, "\n", "<|python_tag|>"]
)


@given(st.lists(st.one_of(PIECES, st.text(max_size=5)), max_size=12).map("".join), st.sampled_from(sorted(STYLES)))
def test_no_text_is_an_error(text: str, style: str) -> None:
    json.dumps(read_message(text, BOTH, style))


def test_the_style_is_that_of_the_template() -> None:
    assert style_of("... <tool_call>\n<function=example> ...") == "qwen3_coder"
    assert style_of("... within <tool_call></tool_call> XML tags ...") == "hermes"
    assert style_of('... {"name": function name, "parameters": dictionary ...} <|python_tag|>') == "llama"
    assert style_of("{% for m in messages %}") == "hermes"


def test_arguments_with_numbers_that_json_lacks_stay_text() -> None:
    for text in ('{"a": NaN}', '{"a": -1e999}'):
        assert arguments_of({"function": {"name": "bash", "arguments": text}}) == {"arguments": text}
