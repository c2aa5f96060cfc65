"""Converts a policy's text to a tool call and back.

`parse_action` reads an action in one of `FORMATS`, `render_call` writes one, and `describe_tools` returns the part of a
prompt that teaches a model its tools and the format. `docs/tools/actions.md` describes the formats.
"""

from .parse import parse_action
from .render import describe_tools, render_call
from .scan import FORMATS

__all__ = ["FORMATS", "describe_tools", "parse_action", "render_call"]
