"""Renders calls, and the part of a prompt that teaches the tools and the format."""

import contextlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence

from ..errors import UsageError, unknown_name
from ..types import ToolCall, ToolSpec
from .arguments import properties_of, required_of, shell_tool, types_of
from .scan import FORMATS

DEFAULT_FORMAT = "json"
"""Format of prompts if the format is "auto"."""


def render_call(call: ToolCall, format: str = DEFAULT_FORMAT) -> str:
    r"""Render a call in a format; `parse_action` reads the same call again.

    JSON formats express any arguments, and only they keep `call_id`. `r2e` and `graph_planner` write strings verbatim
    and everything else as JSON, which is read back if the schema names one type. Arguments that are None are left out.

    Raises:
        UsageError: The format is unknown or cannot express the call: a value with `</parameter>`, `<parameter=` or
            `<function=` in `r2e`, or with `]]></param>` in `graph_planner`; in `bash` another tool than the shell, more
            than one argument, a blank command or one with a line that is only "\`\`\`".
    """
    name = resolve_format(format)
    arguments = {key: value for key, value in call.arguments.items() if value is not None}
    if name in ("r2e", "graph_planner"):
        return _render_function(call.name, arguments, name)
    if name == "bash":
        return _render_fence(call.name, arguments)
    body: dict[str, object] = {"name": call.name, "arguments": arguments}
    if name == "openai":
        function = {"name": call.name, "arguments": _json(arguments, call.name)}
        entry = {"id": call.call_id, "type": "function", "function": function}
        if call.call_id is None:
            del entry["id"]
        return _json({"role": "assistant", "content": None, "tool_calls": [entry]}, call.name)
    if call.call_id is not None:
        body["id"] = call.call_id
    text = _json(body, call.name)
    return f"<tool_call>\n{text}\n</tool_call>" if name == "hermes" else text


def render_possible(calls: Iterable[ToolCall], format: str) -> tuple[str, ...]:
    """Render the calls that a format can express."""
    rendered = []
    for call in calls:
        with contextlib.suppress(UsageError):
            rendered.append(render_call(call, format))
    return tuple(rendered)


def resolve_format(format: str) -> str:
    """Return the format to render: `format` itself, or the default for "auto".

    Raises:
        UsageError: The format is unknown.
    """
    if format == "auto":
        return DEFAULT_FORMAT
    if format not in FORMATS:
        raise unknown_name("action format", str(format), ("auto", *FORMATS))
    return format


def _json(value: object, tool: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"the arguments of this call of {tool!r} are not JSON: {error}") from error


_TAG_NAME = re.compile(r"[^<>\n\s\"'](?:[^<>\n\"']{0,198}[^<>\n\s\"'])?")


def _render_function(tool: str, arguments: Mapping[str, object], format: str) -> str:
    for name in (tool, *arguments):
        if not _TAG_NAME.fullmatch(name):
            raise UsageError(f"the format {format!r} cannot express the name {name[:60]!r} in a tag")
    write = _render_param if format == "graph_planner" else _render_parameter
    texts = {key: value if isinstance(value, str) else _json(value, tool) for key, value in arguments.items()}
    lines = [write(key, text) for key, text in texts.items()]
    return "\n".join([f"<function={tool}>", *lines, "</function>"])


def _render_parameter(key: str, value: str) -> str:
    taken = next((tag for tag in ("</parameter>", "<parameter=", "<function=") if tag in value), None)
    if taken:
        raise UsageError(f"the format 'r2e' cannot express a value with {taken!r} (parameter {key!r})")
    return f"<parameter={key}>\n{value}\n</parameter>" if "\n" in value else f"<parameter={key}>{value}</parameter>"


def _render_param(key: str, value: str) -> str:
    if not re.search(r"[<>\n]", value):
        return f'<param name="{key}">{value}</param>'
    if re.search(r"\]\]>\s*</param>", value):
        taken = "]]></param>"
        raise UsageError(f"the format 'graph_planner' cannot express a value with {taken!r} (parameter {key!r})")
    return f'<param name="{key}"><![CDATA[\n{value}\n]]></param>'


def _render_fence(tool: str, arguments: Mapping[str, object]) -> str:
    command = next(iter(arguments.values()), None)
    if len(arguments) != 1 or not isinstance(command, str) or not command.strip():
        raise UsageError(f"the format 'bash' expresses a single shell command, not this call of {tool!r}")
    if any(line.strip() == "```" for line in command.split("\n")):
        raise UsageError("the format 'bash' cannot express a command with a line that is only ```")
    return f"```bash\n{command}\n```"


# --- prompts -------------------------------------------------------------------------------

_RULES = {
    "openai": "Call one tool at a time through the function calling of the API. As JSON, a message looks like this:",
    "hermes": (
        "Write exactly one call: a JSON object between <tool_call> and </tool_call>. Inside a JSON string write "
        '\\" for a double quote, \\\\ for a backslash and \\n for a line break. For example:'
    ),
    "r2e": (
        "Write exactly one call in the form below. A value stands as it is, without quotes or escapes; one line break "
        "after the opening tag and one before the closing tag do not belong to it. A value cannot hold </parameter>, "
        "<parameter= or <function=. For example:"
    ),
    "graph_planner": (
        "Write exactly one call in the form below. Put a value with several lines or with < or > between <![CDATA[ and "
        "]]>; one line break at its start and one at its end do not belong to it. For example:"
    ),
    "json": (
        'Write exactly one call: a JSON object with "name" and "arguments". Inside a JSON string write '
        '\\" for a double quote, \\\\ for a backslash and \\n for a line break. For example:'
    ),
    "bash": "Write exactly one shell command or script in a fence, each fence on a line of its own. For example:",
}


def describe_tools(tools: Sequence[ToolSpec], format: str = DEFAULT_FORMAT) -> str:
    """Return the section of a prompt that teaches the tools and how to call one.

    Args:
        tools: Tools of the policy. With the format "bash" only the shell tool is described.
        format: One of `FORMATS`; "auto" teaches "json".

    Raises:
        UsageError: The format is unknown, or it is "bash" and there is no shell tool.
    """
    name = resolve_format(format)
    shown = [require_shell(tools)] if name == "bash" else list(tools)
    parts = ["# Tools", *(_describe(spec) for spec in shown), "# How to call a tool"]
    parts.append("You may think and explain before the call. " + _RULES[name])
    example = example_text(shown, name)
    return "\n\n".join([*parts, example] if example else parts)


def require_shell(tools: Sequence[ToolSpec]) -> ToolSpec:
    """Return the shell tool.

    Raises:
        UsageError: There is none.
    """
    found = shell_tool(tools)
    if found is None:
        raise UsageError(
            "the action format 'bash' needs a tool 'bash' or 'execute_bash' with exactly one required string "
            f"parameter; the tools are: {', '.join(spec.name for spec in tools) or 'none'}"
        )
    return found[0]


def _describe(spec: ToolSpec) -> str:
    known, required = properties_of(spec.parameters), required_of(spec.parameters)
    lines = [f"## {spec.name}", spec.description.strip(), "Parameters:" if known else "No parameters."]
    for key, schema in known.items():
        need = "required" if key in required else "optional"
        lines.append(f"- {key} ({_type_text(schema)}; {need}){_meaning(schema)}")
    return "\n".join(line for line in lines if line)


def _type_text(schema: object) -> str:
    if not isinstance(schema, Mapping):
        return "any"
    if isinstance(allowed := schema.get("enum"), (list, tuple)):
        return "one of " + ", ".join(str(one) for one in allowed)
    named = schema.get("type") or [_type_text(option) for option in schema.get("anyOf") or ()]
    names = named if isinstance(named, (list, tuple)) else [named]
    items = schema.get("items")
    of = f" of {_type_text(items)}" if isinstance(items, Mapping) else ""
    return " or ".join(f"{name}{of if name == 'array' else ''}" for name in names if name != "null") or "any"


def _meaning(schema: object) -> str:
    text = schema.get("description") if isinstance(schema, Mapping) else None
    return f": {' '.join(text.split())}" if isinstance(text, str) and text.strip() else ""


# --- examples -------------------------------------------------------------------------------------------

_SAMPLE_TEXT = {"command": "ls -la", "cmd": "ls -la", "path": "README.md", "pattern": "def main", "search_term": "main"}


def example_call(spec: ToolSpec) -> ToolCall:
    """Return an example call with the required parameters, for prompts and messages."""
    known = properties_of(spec.parameters)
    keys = [key for key in required_of(spec.parameters) if "null" not in types_of(known.get(key))]
    return ToolCall(name=spec.name, arguments={key: _sample(key, known.get(key)) for key in keys})


def example_text(tools: Sequence[ToolSpec], format: str) -> str:
    """Render an example call of the shell tool if there is one, else of the first tool."""
    shell = shell_tool(tools)
    spec = shell[0] if shell else next(iter(tools), None)
    return render_call(example_call(spec), format) if spec else ""


def _sample(key: str, schema: object) -> object:
    schema = schema if isinstance(schema, Mapping) else {}
    for keyword in ("examples", "enum"):
        if given := schema.get(keyword):
            return given[0]
    if schema.get("default") is not None:
        return schema["default"]
    first = _type_text({"type": schema.get("type")})
    samples: dict[str, object] = {
        "integer": schema.get("minimum", 1),
        "number": schema.get("minimum", 1),
        "boolean": True,
    }
    samples |= {"array": [], "object": {}}
    return samples.get(first, _SAMPLE_TEXT.get(key, "..."))
