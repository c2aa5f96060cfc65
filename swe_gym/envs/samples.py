"""What `action_space.sample()` draws from: the tools' own harmless examples, as text."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from ..actions import render_call
from ..errors import UsageError
from ..tools import Tool
from ..types import ToolCall


def sample_actions(tools: Sequence[Tool], action_format: str) -> tuple[str, ...]:
    """Every example call of every tool, in the format that the environment parses, where it can carry the call."""
    written = []
    for tool in tools:
        for arguments in tool.examples:
            with contextlib.suppress(UsageError):
                written.append(render_call(ToolCall(name=tool.name, arguments=dict(arguments)), action_format))
    return tuple(written) or ("",)  # without an example, the harmless action is one that does nothing
