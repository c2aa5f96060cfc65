"""Parsing and rendering of every format, errors, and real trajectories."""

import json
import lzma
import math
import re
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from swe_gym.actions import FORMATS, describe_tools, parse_action, render_call
from swe_gym.actions.parse import MAX_MESSAGE
from swe_gym.errors import ActionError, UsageError
from swe_gym.types import Action, ToolCall, ToolSpec

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"

TEXT = {"type": "string"}
WHOLE = {"type": "integer"}


def tool(name: str, properties: dict[str, Any], required: list[str], **schema: Any) -> ToolSpec:
    parameters = {"type": "object", "properties": properties, "required": required, **schema}
    return ToolSpec(name=name, description=f"What {name} does.", parameters=parameters)


EDITOR_PROPERTIES = {
    "command": {"type": "string", "enum": ["view", "create", "str_replace", "insert", "undo_edit"]},
    "path": TEXT,
    "file_text": TEXT,
    "old_str": TEXT,
    "new_str": TEXT,
    "insert_line": WHOLE,
    "view_range": {"type": "array", "items": WHOLE},
    "concise": {"type": "boolean"},
}
BASH = tool("bash", {"command": TEXT, "timeout": {"type": ["number", "null"], "minimum": 0}}, ["command"])
EDITOR = tool("file_editor", EDITOR_PROPERTIES, ["command", "path"])
SUBMIT = tool("submit", {}, [])
ANYTHING = tool(
    "anything",
    {
        "text": TEXT,
        "whole": {"type": "integer", "minimum": -5, "maximum": 10**6},
        "number": {"type": "number"},
        "flag": {"type": "boolean"},
        "list": {"type": "array", "items": {"type": ["integer", "null"]}},
        "object": {"type": "object"},
        "choice": {"enum": ["a", "b", 1]},
        "loose": {"type": ["string", "integer"]},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    },
    [],
)
TOOLS = [BASH, EDITOR, SUBMIT, ANYTHING]


def call_of(action: Any, tools: list[ToolSpec] = TOOLS, **options: Any) -> tuple[str, dict[str, Any]]:
    call = parse_action(action, tools, **options).call
    return call.name, call.arguments


def check_lesson(error: ActionError) -> str:
    """Every message is short and can be written as UTF-8."""
    message = str(error)
    assert 0 < len(message) <= MAX_MESSAGE
    assert message.encode()
    return message


def error_of(action: Any, tools: list[ToolSpec] = TOOLS, **options: Any) -> str:
    with pytest.raises(ActionError) as caught:
        parse_action(action, tools, **options)
    return check_lesson(caught.value)


def as_json(**arguments: Any) -> str:
    return json.dumps({"name": "anything", "arguments": arguments})


# --- the formats ----------------------------------------------------------------------------------------

LS = ("bash", {"command": "ls -la"})

SAMPLES = {
    "openai": json.dumps(
        {
            "role": "assistant",
            "content": "I look around.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": LS[0], "arguments": json.dumps(LS[1])}}
            ],
        }
    ),
    "hermes": 'I look around.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls -la"}}\n</tool_call>',
    "r2e": "I look around.\n<function=bash>\n<parameter=command>\nls -la\n</parameter>\n</function>",
    "graph_planner": 'I look around.\n<function=bash>\n  <param name="command">ls -la</param>\n</function>',
    "json": 'I look around.\n{"name": "bash", "arguments": {"command": "ls -la"}}',
    "bash": "I look around.\n```bash\nls -la\n```",
}


@pytest.mark.parametrize("format", FORMATS)
def test_each_format_parses_by_name_and_by_auto(format: str) -> None:
    for asked in (format, "auto"):
        action = parse_action(SAMPLES[format], TOOLS, format=asked)
        assert (action.call.name, action.call.arguments) == LS
        assert (action.thought, action.format, action.ignored_calls) == ("I look around.", format, 0)


@pytest.mark.parametrize("format", FORMATS)
def test_a_format_does_not_parse_another(format: str) -> None:
    inside = {("json", "hermes")}  # the text between the tags is a JSON call too
    for other in FORMATS:
        if other != format and (format, other) not in inside:
            assert "Write one call like this" in error_of(SAMPLES[other], format=format)


@pytest.mark.parametrize(
    "action",
    [
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": LS[0], "arguments": LS[1]}}]},
        {"tool_calls": [{"type": "function", "function": {"name": LS[0], "arguments": json.dumps(LS[1])}}]},
        {"type": "function", "function": {"name": LS[0], "arguments": json.dumps(LS[1])}},
        {"function_call": {"name": LS[0], "arguments": json.dumps(LS[1])}, "content": ""},
        {"type": "function_call", "name": LS[0], "arguments": json.dumps(LS[1]), "call_id": "c", "status": "completed"},
        {"id": "call_9", "name": LS[0], "arguments": LS[1]},
        {"tool_calls": None, "content": SAMPLES["r2e"]},
        {"content": [{"type": "text", "text": SAMPLES["bash"]}], "tool_calls": []},
    ],
    ids=lambda action: "-".join(action),
)
@pytest.mark.parametrize("form", [dict, json.dumps, MappingProxyType], ids=["dict", "json", "mapping"])
def test_openai_messages_parse(action: dict[str, Any], form: Callable[[Any], Any]) -> None:
    assert call_of(form(action)) == LS


def test_a_message_keeps_its_thought_and_its_call_id() -> None:
    function = {"name": "submit", "arguments": ""}
    message = {"reasoning_content": "Hm.", "content": "Done.", "tool_calls": [{"id": "x7", "function": function}]}
    action = parse_action(message, TOOLS)
    assert (action.call, action.thought) == (ToolCall(name="submit", call_id="x7"), "Hm.\nDone.")


def test_a_text_format_parses_from_a_messages_text() -> None:
    assert call_of({"content": SAMPLES["r2e"]}, format="r2e") == LS


def test_json_parses_in_a_fence_and_in_prose() -> None:
    action = parse_action(f"First:\n```json\n{as_json(text='x')}\n```\nThat is all.", TOOLS)
    assert (action.call.arguments, action.thought) == ({"text": "x"}, "First:\nThat is all.")
    assert call_of(f'See {{"name": 1}} and {{a}} and {{"id": 5}}: {as_json(text="x")} ok') == (
        "anything",
        {"text": "x"},
    )


def test_fenced_bash_runs_the_shell_tool() -> None:
    r2e_shell = tool("execute_bash", {"cmd": TEXT}, ["cmd"])
    assert call_of("```sh\nls\n```", [r2e_shell, SUBMIT]) == ("execute_bash", {"cmd": "ls"})
    script = "cat > a.md <<'E'\n```python\nx = 1\nE\necho done"
    assert call_of(f"```bash\n{script}\n```") == ("bash", {"command": script})


def test_a_fence_in_a_list_is_indented() -> None:
    list_item = "1. I look:\n   ```bash\n   cat <<E\n     x\n  y\n      ```\n   E\n   ```\n2. I wait."
    assert call_of(list_item) == ("bash", {"command": "cat <<E\n  x\n  y\n   ```\nE"})
    assert call_of("\t```sh\r\n\tls\r\n\t``` \r\n") == ("bash", {"command": "ls\r"})
    assert call_of("  ```bash\nls\n```") == ("bash", {"command": "ls"})
    assert call_of("```bash\ncat <<E\n  ```\nE\n```") == ("bash", {"command": "cat <<E\n  ```\nE"})


def test_fenced_bash_is_plain_text_without_a_shell_tool() -> None:
    needs_two = tool("bash", {"command": TEXT, "why": TEXT}, ["command", "why"])
    assert call_of(f"```bash\nls\n```\n{as_json()}", [needs_two, ANYTHING]) == ("anything", {})
    with pytest.raises(UsageError, match="exactly one required string parameter"):
        parse_action("```bash\nls\n```", [needs_two], format="bash")


@pytest.mark.parametrize(
    "value", ["x\n\n", "\n\nx", "  indented\n    more", "", " ", "\ttab", "a\r\nb\r\n", "<b>&amp;</b>"]
)
def test_one_line_break_on_each_side_belongs_to_the_tags(value: str) -> None:
    wrapped = f"<function=anything><parameter=text>\n{value}\n</parameter></function>"
    assert call_of(wrapped) == ("anything", {"text": value})
    inside_cdata = f'<function=anything><param name="text"><![CDATA[\n{value}\n]]></param></function>'
    assert call_of(inside_cdata) == ("anything", {"text": value})


def test_tags_may_be_on_one_line_or_indented() -> None:
    line = "<tool_call><function=bash><parameter=command>ls -la</parameter></function></tool_call>"
    assert call_of(line) == LS
    assert parse_action(f"So:\n{line}\nend", TOOLS).thought == "So:\nend"
    assert call_of("<function=bash>\n    <parameter=command>ls -la</parameter>\n   </function>") == LS
    assert call_of("<function=bash>\n <param  name = 'command' >ls -la</param>\n</function>") == LS
    assert call_of("<function=submit></function>") == ("submit", {})


# --- what is read leniently -----------------------------------------------------------------------------

LENIENT = {
    "closing tag in an argument": '<tool_call>{"name":"bash","arguments":{"command":"ls -la"}}</tool_call>',
    "no closing tag at the end": '<tool_call>\n{"name": "bash", "arguments": {"command": "ls -la"}}\n',
    "last brace missing before the tag": '<tool_call>{"name": "bash", "arguments": {"command": "ls -la"}</tool_call>',
    "opening tag missing": "<function=bash>\n<parameter=command>\nls -la\n</parameter>\n</function>\n</tool_call>",
    "opening tag missing, JSON": '{"name": "bash", "arguments": {"command": "ls -la"}}\n</tool_call>',
    "closing tags twice": (
        "<function=bash><parameter=command>ls -la</parameter></function>\n</function>\n</function_invocation>"
    ),
    "arguments as a string": '{"name": "bash", "arguments": "{\\"command\\": \\"ls -la\\"}"}',
    "parameters for arguments": '{"name": "bash", "parameters": {"command": "ls -la"}}',
    "a list of calls": '[{"name": "bash", "arguments": {"command": "ls -la"}}]',
    "null for an optional parameter": '{"name": "bash", "arguments": {"command": "ls -la", "timeout": null}}',
}


@pytest.mark.parametrize("why", LENIENT)
def test_common_mistakes_are_tolerated(why: str) -> None:
    action = parse_action(f"Now.\n{LENIENT[why]}", TOOLS)
    assert (action.call.name, action.call.arguments) == LS
    assert action.thought in ("Now.", "Now.\n[\n]")


def test_raw_line_breaks_in_json_strings_are_tolerated() -> None:
    text = '<tool_call>{"name":"anything","arguments":{"text":"line1\nline2\tx"}}</tool_call>'
    assert call_of(text) == ("anything", {"text": "line1\nline2\tx"})


@pytest.mark.parametrize("arguments", ["null", '""', '" "', "{}"])
def test_a_call_without_arguments_has_several_forms(arguments: str) -> None:
    assert call_of(f'{{"name": "submit", "arguments": {arguments}}}') == ("submit", {})


# --- which text is a call -------------------------------------------------------------------------------


@pytest.mark.parametrize("outer", ["hermes", "r2e", "graph_planner", "json", "bash", "openai"])
@pytest.mark.parametrize(
    "inner", [*SAMPLES.values(), "<think>", "</think>", "<tool_call>", "```\nx", "<think>x</think>"]
)
def test_nothing_inside_an_argument_is_a_call(outer: str, inner: str) -> None:
    call = ToolCall(name="bash", arguments={"command": f"cat > f <<'E'\n{inner}\nE"})
    try:
        text = render_call(call, outer)
    except UsageError:
        assert outer in ("r2e", "bash")  # a value cannot hold their tags
        return
    for format in (outer, "auto"):
        assert parse_action(f"Now:\n{text}\nThen?", TOOLS, format=format).call == call


def test_thinking_holds_no_calls() -> None:
    wrong, right = as_json(text="wrong"), as_json(text="right")
    action = parse_action(f"<think>\nperhaps {wrong}\n</think>\nSo {right}", TOOLS)
    assert action.call.arguments == {"text": "right"}
    assert action.ignored_calls == 0
    assert action.thought == f"<think>\nperhaps {wrong}\n</think>\nSo"
    assert call_of(f"perhaps {wrong} or <function=bash>\n</think>\n{right}") == ("anything", {"text": "right"})
    assert "no tool call" in error_of(f"<think>{wrong}</think> Done.")


def test_unclosed_thinking_is_reported() -> None:
    assert "ends inside <think>" in error_of(f"<think>Let me see {as_json()}")


def test_talk_about_tags_is_not_a_call() -> None:
    text = "I will use <tool_call> with <function=bash> or `<function=submit>` to list. ```bash is fine. {x}"
    assert call_of(f"{text}\n{SAMPLES['r2e']}") == LS
    assert call_of(f"{text}\n{SAMPLES['json']}") == LS
    assert "no tool call" in error_of(text)


def test_auto_prefers_the_formats_in_their_order() -> None:
    found = [
        parse_action("\n".join([*reversed([SAMPLES[name] for name in FORMATS[1:]][index:])]), TOOLS).format
        for index in range(5)
    ]
    assert found == list(FORMATS[1:])


def test_several_calls_follow_the_argument_several() -> None:
    text = "\n".join(as_json(text=word) for word in ("one", "two", "three"))
    first = parse_action(text, TOOLS)
    assert (first.call.arguments, first.ignored_calls) == ({"text": "one"}, 2)
    last = parse_action(text, TOOLS, several="last")
    assert (last.call.arguments, last.ignored_calls) == ({"text": "three"}, 2)
    assert "3 calls" in error_of(text, several="error")
    assert parse_action(as_json(text="one"), TOOLS, several="error").ignored_calls == 0


@pytest.mark.parametrize("format", ["openai", "hermes", "r2e", "graph_planner", "bash"])
def test_every_format_counts_its_further_calls(format: str) -> None:
    calls = [ToolCall(name="bash", arguments={"command": f"echo {number}"}) for number in range(3)]
    text = "\n".join(render_call(call, format) for call in calls)
    action = parse_action(text, TOOLS, format=format)
    assert (action.call, action.ignored_calls) == (calls[0], 2)


def test_several_objects_between_one_pair_of_tags_count() -> None:
    text = f"<tool_call>\n{as_json(text='a')}\n{as_json(text='b')}\n</tool_call> ok"
    action = parse_action(text, TOOLS)
    assert (action.call.arguments, action.ignored_calls) == ({"text": "a"}, 1)
    assert parse_action(text, TOOLS, several="last").call.arguments == {"text": "b"}


def test_an_invalid_first_call_is_not_skipped() -> None:
    broken = "<function=bash><parameter=command>rm x</parameter1>\n</function>"
    assert "not closed" in error_of(f"{broken}\n<function=submit></function>")


# --- arguments by the schema ----------------------------------------------------------------------------


def in_tags(key: str, value: str) -> str:
    return f"<function=anything><parameter={key}>{value}</parameter></function>"


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("text", "123", "123"),
        ("text", "true", "true"),
        ("text", "null", "null"),
        ("text", "[1]", "[1]"),
        ("whole", "3", 3),
        ("whole", " -3\n", -3),
        ("whole", "3.0", 3),
        ("number", "3", 3),
        ("number", "-2.5e3", -2500.0),
        ("flag", "True", True),
        ("flag", "false", False),
        ("list", "[1, 50]", [1, 50]),
        ("list", "[1, null]", [1, None]),
        ("object", '{"a": [1, "x"]}', {"a": [1, "x"]}),
        ("choice", " b ", "b"),
        ("loose", "7", "7"),
        ("maybe", "7", 7),
    ],
)
def test_text_is_converted_by_the_schema(key: str, written: str, value: Any) -> None:
    for action in (in_tags(key, written), as_json(**{key: written})):
        found = call_of(action)[1][key]
        assert found == value
        assert type(found) is type(value)


@pytest.mark.parametrize(
    ("key", "value"),
    [("whole", 3), ("number", 2), ("number", 0.5), ("flag", True), ("list", [1]), ("loose", 7), ("loose", "7")],
)
def test_json_values_keep_their_types(key: str, value: Any) -> None:
    found = call_of(as_json(**{key: value}))[1][key]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("text", 5, "must be a string, not 5"),
        ("text", ["a"], "must be a string, not a JSON list"),
        ("whole", "three", "must be an integer, not the text 'three'"),
        ("whole", 2.5, "must be an integer, not 2.5"),
        ("whole", True, "must be an integer, not true"),
        ("whole", -6, "at least -5"),
        ("whole", 10**7, "at most 1000000"),
        ("number", "nan", "must be a number"),
        ("number", "1e999", "must be a number"),
        ("flag", "yes", "must be true or false"),
        ("flag", 1, "must be true or false"),
        ("list", ["x"], "item 1, must be an integer or null"),
        ("list", "1, 2", "must be a JSON list"),
        ("object", "[]", "must be a JSON object"),
        ("choice", "c", "must be one of a, b, 1"),
        ("choice", 1.0, "must be one of a, b, 1"),
        ("maybe", "x", "must be an integer or null"),
    ],
)
def test_an_invalid_argument_is_named(key: str, value: Any, message: str) -> None:
    error = error_of(as_json(**{key: value}))
    assert message in error
    assert repr(key) in error


def test_missing_and_unknown_parameters_are_named() -> None:
    assert "'path' is required and missing" in error_of('{"name": "file_editor", "arguments": {"command": "view"}}')
    assert "'command', 'path' are required" in error_of("<function=file_editor></function>")
    assert "Did you mean 'path'?" in error_of('{"name": "file_editor", "arguments": {"command": "view", "paht": "a"}}')
    assert "There are none." in error_of('{"name": "submit", "arguments": {"message": "bye"}}')


def test_additional_properties_allow_further_parameters() -> None:
    loose = tool("loose", {"a": WHOLE}, [], additionalProperties=True)
    typed = tool("typed", {}, [], additionalProperties=WHOLE)
    assert call_of('{"name": "loose", "arguments": {"a": "1", "b": [2]}}', [loose])[1] == {"a": 1, "b": [2]}
    assert call_of('{"name": "typed", "arguments": {"b": "2"}}', [typed])[1] == {"b": 2}


def test_null_means_left_out_and_a_required_parameter_may_be_null() -> None:
    nullable = {"type": ["integer", "null"]}
    view = tool("view", {"path": TEXT, "start": nullable, "end": nullable, "depth": WHOLE}, ["path", "start"])
    for arguments in ({"path": "a"}, {"path": "a", "start": None, "end": None, "depth": None}):
        assert call_of({"name": "view", "arguments": arguments}, [view])[1] == {"path": "a", "start": None}
    written = "<function=view><parameter=path>a</parameter><parameter=depth>None</parameter></function>"
    assert call_of(written, [view])[1] == {"path": "a", "start": None}
    assert "must be a string, not null" in error_of({"name": "view", "arguments": {"path": None}}, [view])


def test_nested_objects_are_checked_too() -> None:
    inner = {"type": "object", "properties": {"line": WHOLE}, "required": ["line"]}
    nested = tool("nested", {"at": inner, "many": {"type": "array", "items": inner}}, [])
    assert call_of({"name": "nested", "arguments": {"at": {"line": "4"}}}, [nested])[1] == {"at": {"line": 4}}
    assert "'line' is required" in error_of({"name": "nested", "arguments": {"many": [{"line": 1}, {}]}}, [nested])


def test_sparse_and_invalid_schemas_are_harmless() -> None:
    odd = ToolSpec(name="odd", description="", parameters={"properties": {"a": None, "b": {"type": "strange"}}})
    assert call_of('{"name": "odd", "arguments": {"a": 1, "b": [2]}}', [odd])[1] == {"a": 1, "b": [2]}
    assert call_of('{"name": "odd", "arguments": {}}', [ToolSpec(name="odd", description="", parameters={})])[1] == {}


# --- what is refused ------------------------------------------------------------------------------------

REFUSED = {
    "null": "null",
    "list": "[]",
    "number": "3",
    "empty": " \n",
    "prose": "The patch is complete and tests passed.",
    "list arguments": '{"name": "bash", "arguments": ["ls"]}',
    "number arguments": '{"name": "bash", "arguments": 5}',
    "text arguments": '{"name": "bash", "arguments": "ls"}',
    "name is no text": '{"name": ["bash"], "arguments": {}}',
    "no name": '<tool_call>{"arguments": {"command": "ls"}}</tool_call>',
    "key beside": '{"name": "bash", "arguments": {}, "command": "ls"}',
    "key twice": '{"name": "bash", "arguments": {"command": "ls", "command": "rm"}}',
    "name twice": '{"name": "bash", "name": "submit", "arguments": {}}',
    "NaN": '{"name": "bash", "arguments": {"command": "ls", "timeout": NaN}}',
    "Infinity": '{"name": "bash", "arguments": {"command": "ls", "timeout": -Infinity}}',
    "overflow": '{"name": "bash", "arguments": {"command": "ls", "timeout": 1e999}}',
    "digits": '{"name": "bash", "arguments": {"command": "ls", "timeout": ' + "9" * 5000 + "}}",
    "quotes": '<tool_call>{"name":"edit","arguments":{"content":"He said "hello" to me"}}</tool_call>',
    "single quotes": "{'name': 'bash', 'arguments': {'command': 'ls'}}",
    "cut": '{"name": "bash", "arguments": {"command": "ls',
    "cut in tags": "<function=bash>\n<parameter=command>\nls -la",
    "brace missing, no tag": '{"name": "bash", "arguments": {"command": "ls"}',
    "text after JSON": '<tool_call>{"name": "submit", "arguments": {}}, "x": 1}</tool_call>',
    "no JSON in tags": "<tool_call>\nbash ls\n</tool_call>",
    "cut before the function's end": "<function=bash>\n<parameter=command>ls -la</parameter>\n",
    "no function's end in a tag": "<tool_call>\n<function=bash>\n<parameter=command>ls</parameter>\n</tool_call>",
    "no name in tag": "<function=>\n</function>",
    "no parameter": "<function=bash>ls -la</function>",
    "parameter twice": "<function=bash><parameter=command>a</parameter><parameter=command>b</parameter></function>",
    "parameter without name": "<function=bash><parameter=>a</parameter></function>",
    "closing marker": "<function=bash>\n<parameter=command>\nls\n</parameter1>\n</function>",
    "closing marker, swallows": (
        "<function=file_editor>\n<parameter=command>view</parameter_function>\n<parameter=path>a</parameter></function>"
    ),
    "param closing": '<function=bash>\n<param name="command">ls</parameter>\n</function>',
    "CDATA open": '<function=bash>\n<param name="command"><![CDATA[ls</param>\n</function>',
    "empty fence": "```bash\n\n```",
    "open fence": "```bash\nls -la\n",
    "no such tool": '{"name": "bahs", "arguments": {"command": "ls"}}',
    "kimi markers": '<|tool_call_begin|>functions.bash:48<|tool_call_argument_begin|>{"command":"ls"}',
    "half pair": '{"name": "bash", "arguments": {"command": "\\ud800"}}',
    "half pair as it is": "<function=bash><parameter=command>\ud800</parameter></function>",
    "deep": '{"name": "anything", "arguments": {"object": ' + '{"a":' * 100 + "1" + "}" * 102,
    "very deep": '{"name": "anything", "arguments": {"object": ' + '{"a":' * 100_000,
    "very deep in tags": '<tool_call>{"name": ' + "[" * 100_000 + "</tool_call>",
    "very deep in a string": json.dumps({"name": "anything", "arguments": '{"a":' * 100_000}),
    "openai null": '{"tool_calls": [null]}',
    "openai function": '{"tool_calls": [{"function": "bash"}]}',
    "openai nameless": '{"tool_calls": [{"function": {"arguments": {}}}]}',
    "too many": '<tool_call>{"name":"submit","arguments":{}}</tool_call>' * 10_001,
}


@pytest.mark.parametrize("why", REFUSED)
def test_an_error_shows_a_valid_call(why: str) -> None:
    message = error_of(REFUSED[why])
    assert why == "too many" or "Write one call like this:\n" in message


@pytest.mark.parametrize(
    "action",
    [
        None,
        3,
        2.5,
        b"ls",
        ["ls"],
        pytest.param(object(), id="object"),
        {},
        {"content": None},
        pytest.param({"tool_calls": object()}, id="tool_calls-object"),
        {"name": {1, 2}},
        {"a": math.nan},
    ],
    ids=repr,
)
def test_an_action_of_another_type_is_an_error(action: Any) -> None:
    error_of(action)


def test_a_mapping_that_is_not_json_is_an_error() -> None:
    loop: dict[str, Any] = {"name": "bash"}
    loop["arguments"] = loop
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    for action in (loop, {"name": "bash", "arguments": deep}, {"name": "bash", "arguments": {"command": {1}}}):
        assert "not a JSON object" in error_of(action)


def test_the_message_shows_the_raw_call_and_a_valid_one_in_the_same_format() -> None:
    message = error_of("<function=bahs>\n<parameter=command>ls</parameter>\n</function>")
    assert message == (
        "There is no tool 'bahs'. Did you mean 'bash'?\n"
        "You wrote:\n<function=bahs>\n<parameter=command>ls</parameter>\n</function>\n"
        "Write one call like this:\n<function=bash>\n<parameter=command>ls -la</parameter>\n</function>"
    )
    message = error_of(REFUSED["quotes"], [tool("edit", {"content": TEXT}, ["content"])])
    assert "near 'hello\" to me" in message
    assert 'write \\" for a double quote' in message
    assert message.endswith('<tool_call>\n{"name": "edit", "arguments": {"content": "..."}}\n</tool_call>')


def test_every_example_in_a_message_is_a_valid_call() -> None:
    for why, action in REFUSED.items():
        if why != "too many":
            example = error_of(action).rpartition("Write one call like this:\n")[2]
            assert parse_action(example, TOOLS)
    for format in FORMATS:
        example = error_of("hm", format=format).rpartition("Write one call like this:\n")[2]
        assert call_of(example, format=format) == LS


def test_the_raw_call_is_shown_in_part() -> None:
    message = error_of('{"name": "bash", "arguments": {"command": 5, "x": "' + "y" * 5000 + '"}}')
    assert "yyyy" in message
    assert " ... " in message


def test_a_call_in_another_format_is_named() -> None:
    assert "no tool call" in error_of("<function=" * 2000, format="bash")
    assert "in the format 'hermes'" in error_of(SAMPLES["hermes"], format="r2e")


def test_without_tools_there_is_an_error_and_no_example() -> None:
    assert error_of("hm", []) == "The action holds no tool call."
    assert "There are none." in error_of('{"name": "x", "arguments": {}}', [])


def test_a_tool_that_the_format_cannot_name_has_no_example() -> None:
    odd = tool("a<b", {}, [])
    assert error_of("hm", [odd], format="r2e") == "The action holds no tool call."
    assert "a<b" in error_of("hm", [odd], format="json")


@pytest.mark.parametrize(("options", "what"), [({"format": "hermez"}, "'hermes'"), ({"several": "frist"}, "'first'")])
def test_unknown_options_are_usage_errors(options: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=f"Did you mean {what}"):
        parse_action("hm", TOOLS, **options)


# --- any text at all ------------------------------------------------------------------------------------

FRAGMENTS = [
    *SAMPLES.values(),
    *(text for text in LENIENT.values()),
    *(text for text in REFUSED.values() if len(text) < 1000),
    *[
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<function=",
        "<function=bash>",
        "</function>",
        "```",
        "```bash\n",
    ],
    *["<parameter=command>", "</parameter>", "<param name='command'>", "</param>", "<![CDATA[", "]]>", "\n", " ", "ls"],
    *[
        '{"name": "bash", "arguments": ',
        '{"command": "ls"}',
        "{",
        "}",
        "[",
        "]",
        '"',
        "\\",
        ",",
        ":",
        "null",
        "1e400",
        "\x00",
        "\ud800",
    ],
]

any_action = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=60),
    st.lists(st.sampled_from(FRAGMENTS) | st.text(st.characters(exclude_categories=()), max_size=5), max_size=8).map(
        "".join
    ),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
any_message = st.fixed_dictionaries(
    {},
    optional={
        "role": json_values,
        "content": json_values | any_action,
        "name": st.sampled_from(["bash", "anything", "submit"]) | json_values,
        "arguments": json_values | st.fixed_dictionaries({"command": json_values}),
        "tool_calls": json_values | st.lists(st.fixed_dictionaries({"function": json_values}), max_size=2),
        "function": json_values,
    },
)


@settings(max_examples=400, suppress_health_check=list(HealthCheck))
@given(any_action | any_message, st.sampled_from(["auto", *FORMATS]), st.sampled_from(["first", "last", "error"]))
def test_any_action_gives_a_call_or_an_explanation(action: Any, format: str, several: Any) -> None:
    try:
        found = parse_action(action, TOOLS, format=format, several=several)
    except ActionError as error:
        check_lesson(error)
    else:
        assert found.call.name in {spec.name for spec in TOOLS}
        assert Action.model_validate_json(found.model_dump_json()) == found


@settings(max_examples=150)
@given(json_values)
def test_json_text_and_mapping_give_the_same_call(value: Any) -> None:
    message = {"tool_calls": [{"function": {"name": "anything", "arguments": value}}]}
    outcomes = []
    for action in (message, json.dumps(message)):
        try:
            outcomes.append(parse_action(action, TOOLS).call.model_dump_json())
        except ActionError:
            outcomes.append("error")
    assert outcomes[0] == outcomes[1]


SIZE = 2_000_000


def times(piece: str) -> str:
    return piece * (SIZE // len(piece))


LONG: dict[str, Callable[[], str]] = {
    "braces": lambda: times("{"),
    "nested objects": lambda: times('{"name":'),
    "nested calls": lambda: times('{"name": "a", "arguments": {"b":'),
    "broken objects": lambda: times('{"name":x'),
    "small objects": lambda: times('{"id":1}'),
    "blank objects": lambda: times("{" + " " * 1000),
    "functions": lambda: times("<function="),
    "mentions": lambda: times("<function=a>"),
    "open parameters": lambda: times("<function=a><parameter=b>"),
    "parameters": lambda: times("<function=a><parameter=b></parameter>"),
    "params": lambda: times('<function=a><param name="b">'),
    "blank params": lambda: times("<function=a><param " + " " * 1000),
    "CDATA": lambda: '<function=a><param name="b"><![CDATA[' + times("]]> "),
    "tags": lambda: times("<tool_call>"),
    "tagged calls": lambda: times('<tool_call>{"name":"a","arguments":{}}</tool_call>'),
    "repaired calls": lambda: times('<tool_call>{"name":"a","arguments":{}</tool_call>'),
    "closing tags": lambda: f"{SAMPLES['r2e']}{times('</function>')}",
    "thoughts": lambda: times("<think></think>"),
    "ends of thoughts": lambda: times("</think>"),
    "fences": lambda: times("```bash\n"),
    "short fences": lambda: times("```bash\nls\n```\n"),
    "other fences": lambda: "```bash\n" + times("\n```python"),
    "blanks": lambda: times(" "),
    "lines": lambda: times("\n"),
    "long name": lambda: f'{{"name": "{times("b")}", "arguments": {{}}}}',
    "long value": lambda: f"<function=bash><parameter=command>{times('a<b')}</parameter></function>",
    "long string": lambda: json.dumps({"name": "bash", "arguments": {"command": times("a\n")}}),
    "long open string": lambda: '{"name": "bash", "arguments": {"command": "' + times('\\"'),
    "long number": lambda: f"<function=anything><parameter=whole>{times('9')}</parameter></function>",
    "long list": lambda: f"<function=anything><parameter=list>[{times('1,')}1]</parameter></function>",
    "long surrogates": lambda: times("\ud800"),
}


@pytest.mark.timeout(300)  # quadratic time would be hours
@pytest.mark.parametrize("what", LONG)
def test_two_megabytes_take_linear_time(what: str) -> None:
    try:
        parse_action(LONG[what](), TOOLS)
    except ActionError as error:
        check_lesson(error)


# --- written and read again -----------------------------------------------------------------------------

plain_text = st.text(max_size=40) | st.lists(st.sampled_from(FRAGMENTS), max_size=3).map("".join)
plain_text = plain_text.filter(lambda text: not re.search("[\ud800-\udfff]", text))
finite_json = st.recursive(
    st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False) | plain_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain_text, inner, max_size=3),
    max_leaves=6,
)
calls = st.fixed_dictionaries(
    {},
    optional={
        "text": plain_text,
        "whole": st.integers(-5, 10**6),
        "number": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**20), 10**20),
        "flag": st.booleans(),
        "list": st.lists(st.integers(-(10**20), 10**20) | st.none()),
        "object": st.dictionaries(plain_text, finite_json, max_size=3),
        "choice": st.sampled_from(["a", "b"]),
        "loose": plain_text,
        "maybe": st.integers(),
    },
).map(lambda arguments: ToolCall(name="anything", arguments=arguments))
words = st.text(string.ascii_letters + " .,\n", max_size=20)


@settings(max_examples=300)
@given(calls, st.sampled_from([name for name in FORMATS if name != "bash"]), words, words)
def test_a_rendered_call_parses_again(call: ToolCall, format: str, before: str, after: str) -> None:
    try:
        text = render_call(call, format)
    except UsageError:
        assert format in ("r2e", "graph_planner")
        values = json.dumps(call.arguments)
        assert re.search(r"</param>|</parameter>|<parameter=|<function=", values)
        return
    for asked in (format, "auto"):
        action = parse_action(text, TOOLS, format=asked, several="error")
        assert action.call == call
    if format != "openai":
        action = parse_action(f"{before}\n{text}\n{after}", TOOLS, format=format)
        assert action.call == call
        assert action.thought == "\n".join(part for part in (before.strip(), after.strip()) if part)


@settings(max_examples=150)
@given(plain_text)
def test_a_rendered_fence_parses_again(command: str) -> None:
    assume(command.strip() and not any(line.strip() == "```" for line in command.split("\n")))
    call = ToolCall(name="bash", arguments={"command": command})
    assert parse_action(render_call(call, "bash"), TOOLS, format="bash").call == call


@pytest.mark.parametrize("format", ["json", "hermes", "openai"])
def test_json_formats_keep_the_call_id(format: str) -> None:
    call = ToolCall(name="bash", arguments={"command": "ls"}, call_id="call_1")
    assert parse_action(render_call(call, format), TOOLS).call == call


@pytest.mark.parametrize(
    ("format", "call"),
    [
        ("r2e", ToolCall(name="bash", arguments={"command": "echo '</parameter>'"})),
        ("r2e", ToolCall(name="bash", arguments={"command": "echo '<function=x>'"})),
        ("r2e", ToolCall(name="ba>sh")),
        ("graph_planner", ToolCall(name="bash", arguments={"command": "x]]></param>"})),
        ("bash", ToolCall(name="bash", arguments={"command": "a\n```\nb"})),
        ("bash", ToolCall(name="bash", arguments={"command": " "})),
        ("bash", ToolCall(name="file_editor", arguments={"command": "view", "path": "a"})),
        ("json", ToolCall(name="bash", arguments={"timeout": math.inf})),
        ("hermes", ToolCall(name="bash", arguments={"command": {1}})),
    ],
)
def test_a_call_that_a_format_cannot_express_is_a_usage_error(format: str, call: ToolCall) -> None:
    with pytest.raises(UsageError):
        render_call(call, format)


def test_arguments_that_are_none_are_left_out() -> None:
    call = ToolCall(name="bash", arguments={"command": "ls", "timeout": None})
    for format in FORMATS:
        assert call_of(render_call(call, format)) == ("bash", {"command": "ls"})


# --- what a model is told -------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["auto", *FORMATS])
def test_the_prompt_names_tools_and_parameters_and_its_example_parses(format: str) -> None:
    text = describe_tools(TOOLS, format)
    assert "## bash\nWhat bash does.\nParameters:\n- command (string; required)" in text
    if format != "bash":
        assert "- view_range (array of integer; optional)" in text
        assert "- command (one of view, create, str_replace, insert, undo_edit; required)" in text
        assert "## submit\nWhat submit does.\nNo parameters." in text
    example = text.rpartition("\n\n")[2]
    assert call_of(example, format=format) == LS


def test_the_prompt_describes_parameters() -> None:
    spec = tool("t", {"a": {"type": ["integer", "null"], "description": "How\n many."}, "b": {}, "c": None}, [])
    text = describe_tools([spec], "json")
    assert "- a (integer; optional): How many." in text
    assert "- b (any; optional)" in text


def test_a_prompt_for_fenced_bash_needs_a_shell() -> None:
    with pytest.raises(UsageError, match="submit"):
        describe_tools([SUBMIT], "bash")
    with pytest.raises(UsageError, match="action format"):
        describe_tools(TOOLS, "xml")


# --- what models really wrote ---------------------------------------------------------------------------

R2E_TOOLS = [
    tool("execute_bash", {"cmd": TEXT}, ["cmd"]),
    EDITOR,
    tool("search", {"search_term": TEXT, "path": TEXT}, ["search_term"]),
    tool("finish", {"command": TEXT, "result": TEXT}, ["command"]),
]

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the shared data folder is not there")


def stripped(arguments: dict[str, Any]) -> dict[str, Any]:
    return {key: value.strip() if isinstance(value, str) else value for key, value in arguments.items()}


def r2e_actions() -> Iterator[str]:
    with lzma.open(DATA / "trajectories" / "r2egym_trajectory_ags_swebench_lite.jsonl.xz", "rt") as file:
        for line in file:
            yield from (step["action"] for step in json.loads(line)["trajectory_steps"])


@needs_data
def test_actions_of_an_r2e_trajectory_parse() -> None:
    read = 0
    for text in r2e_actions():
        if text.startswith("<function=>"):  # R2E's record of an answer without a call
            assert "no name" in error_of(text, R2E_TOOLS)
            continue
        action = parse_action(text, R2E_TOOLS, format="r2e")
        assert parse_action(render_call(action.call, "r2e"), R2E_TOOLS).call == action.call
        assert parse_action(render_call(action.call, "json"), R2E_TOOLS).call == action.call
        read += 1
    assert read == 32


@needs_data
def test_responses_and_r2es_actions_give_the_same_calls() -> None:
    text = (DATA / "trajectories" / "rllm_swe_trajectory.txt").read_text()
    pairs = re.findall(r"--- Model response ---\n(.*?)\n--- Action ---\n(.*?)\n--- Observation ---", text, re.DOTALL)
    assert len(pairs) == 29
    for response, recorded in pairs:
        first, second = (parse_action(one, R2E_TOOLS, several="error") for one in (response, recorded))
        assert first.call.name == second.call.name
        assert stripped(first.call.arguments) == second.call.arguments  # R2E strips whitespace around values


@needs_data
@pytest.mark.parametrize("name", ["debug_gym_astropy-6938.json", "debug_gym_tutorial_pandas_dataframe.json"])
def test_actions_of_debug_gym_trajectories_parse(name: str) -> None:
    record = json.loads((DATA / "trajectories" / name).read_text())
    tools = [ToolSpec(**entry["function"]) for entry in record["tools"]]
    calls = [step["action"] for step in record["log"] if step.get("action")]
    assert calls
    for call in calls:
        found = parse_action(call, tools).call
        assert (found.name, found.call_id) == (call["name"], call["id"])
        assert {key: value for key, value in found.arguments.items() if value is not None} == call["arguments"]


@needs_data
def test_messages_of_debug_gym_episodes_parse_as_they_did_there() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = parquet.read_table(DATA / "trajectories" / "issta2026_debuggym_swesmith_r2egym_sft_test.parquet").to_pylist()
    good = bad = 0
    for row in rows:
        tools = [ToolSpec(**entry["function"]) for entry in row["tools"]]
        for message in row["messages"]:
            if message["role"] != "assistant":
                continue
            try:
                good += bool(parse_action(message, tools))
            except ActionError:
                bad += 1
    assert (good, bad) == (8044, 23)


EXPECTED = {
    "opening <tool_call> missing, closing present": "Glob",
    "opening <tool_call> missing": "exec_command",
    "outer } missing": "terminal",
    "raw newline inside a JSON string": "edit",
    "closing tag inside an argument string (valid call)": "bash",
    "bare JSON without tags / plain final answer": None,
}


@needs_data
def test_malformed_calls_of_real_models() -> None:
    loose = {"additionalProperties": True}
    names = ["Glob", "exec_command", "terminal", "edit", "bash", "read_file", "grep", "edit_file"]
    tools = [tool(name, {}, [], **loose) for name in names]
    for line in (DATA / "malformed" / "issue_samples.jsonl").read_text().splitlines():
        sample = json.loads(line)
        expected = EXPECTED.get(sample["what"], "error")
        if expected == "error" or sample["text"].startswith("The patch"):
            error_of(sample["text"], tools)
        else:
            assert call_of(sample["text"], tools)[0] == expected or expected is None


@needs_data
def test_raw_outputs_of_a_small_model_parse_or_are_explained() -> None:
    for line in (DATA / "malformed" / "nemo_swerl_gen_rollouts_relaxed_qwen3-4b.jsonl").read_text().splitlines():
        for format in ("auto", *FORMATS):
            error_of(json.loads(line)["model_output"], format=format)
