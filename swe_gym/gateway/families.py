"""Families of models, recognized by their chat templates, and how each writes tool calls and reasoning."""

from __future__ import annotations

import re
from typing import NamedTuple


class Family(NamedTuple):
    """A family of models.

    Attributes:
        name: Name for people.
        marks: Regular expressions that its chat template matches, all of them.
        style: How it writes tool calls, one of `FORMATS`; empty if nothing here reads them.
        reasoning: Field of a message from which the template takes the reasoning.
        text_beside: Whether a message with reasoning and tool calls may have text, too.
    """

    name: str
    marks: tuple[str, ...]
    style: str
    reasoning: str = "reasoning_content"
    text_beside: bool = True


FAMILIES = (
    Family("gpt-oss", (r"<\|channel\|>", r"<\|call\|>"), "openai", "thinking", text_beside=False),
    Family("Gemma 4", (r"<\|tool_call>call:",), "gemma4"),
    Family("Muse Glimmer", ("<atem:function_calls>",), ""),
    Family("DeepSeek", ("<｜tool▁calls▁begin｜>",), "deepseek_v3"),
    Family("GLM-4.5", ("<arg_key>",), "glm45"),
    Family("Kimi K2", (r"<\|tool_calls_section_begin\|>|<\|im_middle\|>",), ""),
    Family("MiniMax M2", ("minimax:tool_call",), ""),
    Family("Seed-OSS", ("seed:tool_call",), ""),
    Family("LFM2", (r"<\|tool_(?:call|list)_start\|>",), "lfm2", "thinking"),
    Family("Mistral", (r"\[TOOL_CALLS\]",), ""),
    Family("Phi-4", (r"<\|/?tool(?:_call)?\|>",), ""),
    Family("Command", (r"<\|START_ACTION\|>",), ""),
    Family("Nemotron 3", ("<function=", "truncate_history_thinking"), "qwen3_coder"),
    Family("Qwen3.8", ("<function=", "reasoning_effort"), "qwen3_coder"),
    Family("Qwen3.6", ("<function=", "preserve_thinking"), "qwen3_coder"),
    Family("Qwen3.5", ("<function=", "reasoning_content"), "qwen3_coder"),
    Family("Qwen3-Coder", ("<function=",), "qwen3_coder"),
    Family("SmolLM3", ("<tool_call>", "/no_think"), "hermes"),
    Family("Qwen3", ("<tool_call>", "reasoning_content|Qwen3"), "hermes"),
    Family("Qwen2.5 and Hermes", ("<tool_call>",), "hermes"),
    Family("Llama 3", (r'<\|python_tag\|>|"parameters"',), "llama"),
)
"""Families; the first whose marks all match is the one."""


def family_of(chat_template: str) -> Family | None:
    """Return the family of a chat template; None if it is unknown."""
    return next((one for one in FAMILIES if all(re.search(mark, chat_template) for mark in one.marks)), None)
