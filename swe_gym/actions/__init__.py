"""Converts a policy's text to a tool call and back.

`parse_action` reads an action in one of `FORMATS`, `render_call` writes one, and `describe_tools` returns the part of a
prompt that teaches a model its tools and the format. `docs/tools/actions.md` describes the formats.
"""

from .arguments import check_text, convert_arguments, properties_of, shell_tool, value_of
from .parse import parse_action
from .render import describe_tools, render_call, render_possible, require_shell, resolve_format
from .scan import FORMATS, FoundCall, TooManyCalls, find_calls

__all__ = [
    "FORMATS",
    "FoundCall",
    "TooManyCalls",
    "check_text",
    "convert_arguments",
    "describe_tools",
    "find_calls",
    "parse_action",
    "properties_of",
    "render_call",
    "render_possible",
    "require_shell",
    "resolve_format",
    "shell_tool",
    "value_of",
]
