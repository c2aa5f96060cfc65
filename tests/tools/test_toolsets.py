import json
import re
from pathlib import Path
from typing import Any

import pytest

from swe_gym.actions import parse_action
from swe_gym.errors import UsageError
from swe_gym.tools import TOOLS, TOOLSETS, Tool, ToolContext, make_tools
from swe_gym.tools.bash import Bash
from swe_gym.types import ToolResult


class Shout(Tool):
    name = "shout"
    description = "Shout."
    parameters = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}

    def run(self, context: ToolContext, **_: Any) -> ToolResult:  # noqa: ARG002  it needs none
        return ToolResult(text="!")


def test_the_default_tools_are_the_documented_ones() -> None:
    names = [tool.name for tool in make_tools("default")]

    assert names == ["bash", "view", "grep", "listdir", "edit", "rewrite", "pdb", "eval", "submit"]


@pytest.mark.parametrize(
    ("preset", "names"),
    [
        ("r2e", ["file_editor", "search", "execute_bash", "finish"]),
        ("debug_gym", ["bash", "view", "grep", "listdir", "rewrite", "edit", "pdb", "eval", "submit"]),
        ("str_replace", ["str_replace_editor", "execute_bash", "submit"]),
        ("swe_agent", ["bash", "str_replace_editor", "submit"]),
        ("openhands", ["execute_bash", "str_replace_editor", "think", "finish"]),
    ],
)
def test_a_preset_has_the_names_of_the_other_system(preset: str, names: list[str]) -> None:
    assert [tool.name for tool in make_tools(preset)] == names


def test_presets_names_dotted_paths_and_tools_can_be_mixed() -> None:
    mine = Bash()

    tools = make_tools([mine, "view", f"{__name__}:Shout", "str_replace.think"])

    assert tools[0] is mine
    assert [tool.name for tool in tools] == ["bash", "view", "shout", "think"]
    assert len(make_tools(["default", Shout()])) == 10


def test_each_environment_gets_tools_of_its_own() -> None:
    assert make_tools("default")[4] is not make_tools("default")[4]


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ("defualt", "Did you mean 'default'"),
        ("bash", "unknown preset of tools 'bash'"),
        (["viw"], "Did you mean 'view'"),
        (["bash", "debug_gym.bash"], "two tools of the name 'bash'"),
        (["swe_gym.tools:TOOLSETS"], "no subclass of swe_gym.tools.Tool"),
        (["swe_gym.types:ToolResult"], "no subclass of swe_gym.tools.Tool"),
        (["no_such_module:Tool"], "cannot import"),
    ],
)
def test_a_wrong_name_is_refused_with_a_hint(tools: str | list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_tools(tools)


@pytest.mark.parametrize("name", TOOLS)
def test_every_schema_is_in_the_small_part_that_any_api_takes(name: str) -> None:
    spec = make_tools([name])[0].spec
    schema = spec.parameters

    assert json.loads(spec.model_dump_json()) == spec.model_dump()
    assert set(schema) == {"type", "properties", "required", "additionalProperties"}
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) <= set(schema["properties"])
    for parameter in schema["properties"].values():
        assert parameter["type"] in ("string", "integer", "number", "boolean", "array")
        assert parameter["description"]
        assert set(parameter) <= {"type", "description", "enum", "items", "exclusiveMinimum", "maximum"}
    assert 20 < len(spec.description) < 1000


@pytest.mark.parametrize("preset", TOOLSETS)
def test_the_examples_of_every_tool_are_valid_calls(preset: str) -> None:
    tools = make_tools(preset)
    specs = [tool.spec for tool in tools]

    for tool in tools:
        for arguments in tool.examples:
            action = parse_action(json.dumps({"name": tool.name, "arguments": arguments}), specs)
            assert action.call.arguments == arguments
    assert any(tool.examples for tool in tools)


@pytest.mark.parametrize("preset", TOOLSETS)
def test_no_example_changes_a_file_or_ends_the_episode(preset: str) -> None:
    quiet = {"submit", "finish", "edit", "rewrite", "eval"}

    assert not any(tool.examples for tool in make_tools(preset) if tool.name in quiet)


@pytest.mark.parametrize("name", TOOLS)
def test_the_documentation_names_every_tool_and_parameter(name: str) -> None:
    pages = Path(__file__).resolve().parents[2] / "docs" / "tools"
    index, presets = (pages / "index.md").read_text(), (pages / "presets.md").read_text()
    if "." in name:
        part = next(line for line in presets.splitlines() if line.startswith(f"| `{name}` |"))
    else:
        part = index.split(f"### `{name}`\n", 1)[1].split("\n#", 1)[0]

    documented = set(re.findall(r"`(\w+)`", part))

    assert set(make_tools([name])[0].spec.parameters["properties"]) <= documented
