"""The actions of `action_space.sample()`: the tools' own harmless examples as text."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from ..actions import render_call
from ..errors import UsageError
from ..tools import Tool
from ..types import ToolCall


def sample_actions(tools: Sequence[Tool], action_format: str) -> tuple[str, ...]:
    """Return all example calls of the tools that the action format can express."""
    written = []
    for tool in tools:
        for arguments in tool.examples:
            with contextlib.suppress(UsageError):
                written.append(render_call(ToolCall(name=tool.name, arguments=dict(arguments)), action_format))
    return tuple(written) or ("",)  # without examples, an action without effect
