import enum
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field
from typing_extensions import TypedDict

from swe_gym.actions import parse_action
from swe_gym.errors import SandboxClosed, UsageError
from swe_gym.tools import TOOLS, TOOLSETS, Tool, ToolContext, grep, make_tools, shell, tool, view
from swe_gym.tools.edit import Edit
from swe_gym.tools.presets import debug_gym, r2e
from swe_gym.types import ToolResult


class Shout(Tool):
    def run(self, context: ToolContext) -> ToolResult:  # noqa: ARG002  it needs none
        """Shout."""
        return ToolResult(text="!")


@tool(examples=({"path": "f"},))
def cut_lines(
    context: ToolContext,  # noqa: ARG001
    path: Annotated[str, "The file."],
    ends: Annotated[Sequence[int] | None, "First and last line."] = None,
    *,
    share: Annotated[float, Field(gt=0, description="Share to keep.")] = 0.5,
    mode: Annotated[Literal["head", "tail"], "End to keep."],
    value: Annotated[int | None, "May be null."],
) -> ToolResult:
    """Cut lines
    of a file.

    Blank lines count.

    Raises:
        ToolError: Never.
    """
    return ToolResult(text=f"{path} {ends} {share} {mode} {value}")


def test_a_function_is_a_tool_by_its_signature_and_docstring() -> None:
    spec = cut_lines.spec

    assert (spec.name, spec.description) == ("cut_lines", "Cut lines of a file. Blank lines count.")
    assert spec.parameters == {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The file."},
            "ends": {"type": "array", "items": {"type": "integer"}, "description": "First and last line."},
            "share": {"type": "number", "description": "Share to keep.", "exclusiveMinimum": 0},
            "mode": {"type": "string", "description": "End to keep.", "enum": ["head", "tail"]},
            "value": {"description": "May be null.", "anyOf": [{"type": "integer"}, {"type": "null"}]},
        },
        "required": ["path", "mode", "value"],
        "additionalProperties": False,
    }
    assert make_tools([f"{__name__}:cut_lines"]) == [cut_lines]


def test_a_class_is_a_tool_by_its_method_and_may_set_name_and_description() -> None:
    class LoudShout(Shout):
        description = "Shout loudly."

        def run(self, context: ToolContext, times: int = 1) -> ToolResult:
            return ToolResult(text=super().run(context).text * times)

    assert Shout().spec.model_dump() == {
        "name": "shout",
        "description": "Shout.",
        "parameters": {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
    }
    assert LoudShout().spec.name == "loud_shout"
    assert LoudShout().spec.description == "Shout loudly."
    assert LoudShout().spec.parameters["properties"] == {"times": {"type": "integer"}}


def test_a_tool_class_with_a_schema_of_its_own_is_told_what_to_write() -> None:
    with pytest.raises(UsageError, match=r"tool class Old sets `parameters`.*annotate the parameters of `run`"):

        class Old(Tool):
            parameters = {"type": "object"}

            def run(self, context: ToolContext, path: str) -> ToolResult:
                """Run."""
                raise NotImplementedError


def test_a_tool_class_without_run_is_refused() -> None:
    class Empty(Tool):
        pass

    with pytest.raises(UsageError, match="tool class Empty has no method `run`"):
        make_tools([Empty()])


def _untyped(context, path):  # type: ignore[no-untyped-def]
    """Run."""


def _open_ended(context: ToolContext, **more: int) -> ToolResult:
    """Run."""
    raise NotImplementedError


def _sandbox(context: ToolContext, sandbox: ToolContext) -> ToolResult:
    """Run."""
    raise NotImplementedError


def _callback(context: ToolContext, callback: Callable[[], int]) -> ToolResult:
    """Run."""
    raise NotImplementedError


def _silent(context: ToolContext) -> ToolResult:
    raise NotImplementedError


async def _asynchronous(context: ToolContext, path: str) -> ToolResult:
    """Run."""
    raise NotImplementedError


def _positional(context: ToolContext, path: str, /) -> ToolResult:
    """Run."""
    raise NotImplementedError


def _alone(path: str) -> ToolResult:
    """Run."""
    raise NotImplementedError


def _empty() -> ToolResult:
    """Run."""
    raise NotImplementedError


class Tree(TypedDict):
    """A type that holds itself."""

    children: list["Tree"]


def _recursive(context: ToolContext, tree: Tree) -> ToolResult:
    """Run."""
    raise NotImplementedError


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_untyped, r'a parameter has no type: write path: Annotated\[str, "What it is."\]'),
        (_open_ended, "name every parameter"),
        (_sandbox, "no JSON schema for its parameters"),
        (_callback, "no JSON schema for its parameters"),
        (_recursive, "no JSON schema for its parameters"),
        (_asynchronous, "_asynchronous is asynchronous, and environments call tools synchronously: remove `async`"),
        (_positional, "'path' is positional-only, and calls use names: remove `/`"),
        (_alone, "_alone has 'path' in first place: add `context: ToolContext` before it"),
        (_empty, "_empty has no parameter for its context: add `context: ToolContext`"),
        (_silent, "'_silent' has no description: give its function, or its method `run`, a docstring"),
    ],
)
def test_a_function_that_cannot_be_described_is_refused(function: Callable[..., ToolResult], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tool(function)


@pytest.mark.parametrize("annotation", [Any, object, "Any", "object", "'ToolContext'", "ToolContext | None"])
def test_a_context_may_have_any_annotation(annotation: object) -> None:
    def look(context: ToolContext, path: str) -> ToolResult:
        """Look."""
        raise NotImplementedError

    look.__annotations__["context"] = annotation
    assert list(tool(look).spec.parameters["properties"]) == ["path"]


class Mode(enum.StrEnum):
    """How to look."""

    fast = "fast"
    slow = "slow"


class Place(TypedDict):
    """Where to look."""

    title: str
    lines: list[int]


def test_schemas_of_classes_are_whole_and_without_titles() -> None:
    @tool
    def look(context: ToolContext, mode: Mode, places: Annotated[list[Place], "Where."]) -> ToolResult:
        """Look."""
        raise NotImplementedError

    place = {
        "type": "object",
        "description": "Where to look.",
        "properties": {"title": {"type": "string"}, "lines": {"type": "array", "items": {"type": "integer"}}},
        "required": ["title", "lines"],
    }
    assert look.parameters["properties"] == {
        "mode": {"type": "string", "description": "How to look.", "enum": ["fast", "slow"]},
        "places": {"type": "array", "items": place, "description": "Where."},
    }


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
def test_a_preset_has_the_other_systems_names(preset: str, names: list[str]) -> None:
    assert [tool.name for tool in make_tools(preset)] == names


def test_presets_names_dotted_paths_and_tools_can_be_mixed() -> None:
    mine = Edit()

    tools = make_tools([mine, "view", f"{__name__}:Shout", "str_replace.think"])

    assert tools[0] is mine
    assert [tool.name for tool in tools] == ["edit", "view", "shout", "think"]
    assert len(make_tools(["default", Shout()])) == 10


def test_each_environment_gets_tools_of_its_own() -> None:
    assert make_tools("default")[4] is not make_tools("default")[4]


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ("defualt", "Did you mean 'default'"),
        ("bash", "unknown preset of tools 'bash'"),
        (["viw"], "Did you mean 'view'"),
        (["bash", "debug_gym.bash"], "two tools are named 'bash'"),
        (["swe_gym.tools:TOOLSETS"], "decorate a function with swe_gym.tools.tool"),
        (["swe_gym.types:ToolResult"], "decorate a function with swe_gym.tools.tool"),
        (["no_such_module:Tool"], "cannot import 'no_such_module': .* add its folder to PYTHONPATH"),
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


def test_descriptions_state_the_limits_of_the_code() -> None:
    described = {name: make_tools([name])[0].spec.description for name in TOOLS}

    limits = f"{shell.DEFAULT_TIMEOUT:g} by default, {shell.MAX_TIMEOUT:g} at most"
    assert limits in described["bash"]
    assert limits in described["str_replace.execute_bash"]
    assert f"after {shell.DEFAULT_TIMEOUT:g} seconds" in described["r2e.execute_bash"]
    assert f"{debug_gym.BASH_TIMEOUT:g} by default" in described["debug_gym.bash"]
    assert f"At most {grep.MAX_RESULTS} lines" in described["grep"]
    assert f"At most {view.MAX_ENTRIES} names" in described["listdir"]
    assert f"more than {r2e.CONDENSE_FROM} lines" in described["r2e.file_editor"]


@pytest.mark.parametrize("preset", TOOLSETS)
def test_the_examples_of_every_tool_are_valid_calls(preset: str) -> None:
    tools = make_tools(preset)
    specs = [tool.spec for tool in tools]

    for one in tools:
        for arguments in one.examples:
            action = parse_action(json.dumps({"name": one.name, "arguments": arguments}), specs)
            assert action.call.arguments == arguments
    assert any(tool.examples for tool in tools)


@pytest.mark.parametrize("preset", TOOLSETS)
def test_no_example_changes_a_file_or_ends_the_episode(preset: str) -> None:
    quiet = {"submit", "finish", "edit", "rewrite", "eval"}

    assert not any(tool.examples for tool in make_tools(preset) if tool.name in quiet)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("bash", {"command": "true"}),
        ("view", {"path": "f"}),
        ("grep", {"pattern": "x"}),
        ("listdir", {}),
        ("edit", {"command": "str_replace", "path": "f", "old_str": "one", "new_str": "two"}),
        ("rewrite", {"path": "f", "new_code": "x"}),
        ("pdb", {"command": "where", "entrypoint": "python f"}),
    ],
)
def test_a_closed_sandbox_is_not_an_error_of_the_policy(
    name: str, arguments: dict[str, Any], context_for: Callable[..., ToolContext]
) -> None:
    context = context_for({"f": "one\n"})
    context.sandbox.close()
    with pytest.raises(SandboxClosed):
        make_tools([name])[0].run(context, **arguments)


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
