"""Reads reasoning and tool calls in a sampled text. Anything else is content; nothing is an error."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..actions import FoundCall, properties_of, value_of
from ..errors import unknown_name
from ..rollout.tokens import ChatTemplate
from ..types import JsonMapping, JsonObject, ToolSpec
from .call_formats import FORMATS, VLLM, CallFormat, read_text, without_calls
from .calls import keep_written_ids, new_id, tool_call
from .template_proof import Unproven

if TYPE_CHECKING:
    from vllm.parser.abstract_parser import Parser


def readings(
    text: str,
    tools: Sequence[JsonObject],
    style: str,
    *,
    opened: bool = False,
    cut: bool = False,
    parallel: bool = True,
) -> Iterator[JsonObject]:
    """Yield a sampled text as a message of OpenAI's chat API, with less and more of the white space that it may have.

    Args:
        text: The text.
        tools: Tools of the call. Without tools there are no tool calls.
        style: How the model writes tool calls, one of `FORMATS`.
        opened: Whether the prompt has opened the reasoning.
        cut: Whether a limit or a stop string has cut the text. A call that may lack arguments is content then.
        parallel: Whether a message may have several calls. Otherwise all but the first are left out.
    """
    form = FORMATS[style]
    reasoning, said, found = read_text(text, form, opened=opened, cut=cut)
    found = [one for one in found if _is_call(one, tools, form)]
    calls = [tool_call(new_id(9), one.name, _arguments(one, tools, form)) for one in found[: None if parallel else 1]]
    thoughts = dict.fromkeys([reasoning.strip(), reasoning.strip("\n"), reasoning])
    for content, thought in itertools.product(without_calls(said, found, form), thoughts):
        message: JsonObject = {"role": "assistant", "content": content}
        if thought:
            message["reasoning_content"] = thought
        if calls:
            message["tool_calls"] = calls
        yield message


def parse_message(
    template: ChatTemplate,
    text: str,
    tools: Sequence[JsonObject],
    prompt: str,
    *,
    cut: bool = False,
    parallel: bool = True,
) -> JsonObject:
    """Return a sampled text as the message that the tokenizer's response template reads in it.

    Args:
        template: Chat template of a tokenizer that has a response template.
        text: The text.
        tools: Tools of the call. Without tools there are no tool calls.
        prompt: The end of the prompt.
        cut: Whether a limit or a stop string has cut the text. Its last call may lack arguments, and is left out.
        parallel: Whether a message may have several calls.
    """
    try:
        found = template.parse(text, prompt, tools)
        calls = [_make_typed_call(one["function"]) for one in found.get("tool_calls") or ()] if tools else []
    except Exception:  # noqa: BLE001  it refuses calls that are not whole
        return {"role": "assistant", "content": text}
    if cut and len(calls) == 1:
        return {"role": "assistant", "content": text}
    message: JsonObject = {"role": "assistant", "content": str(found.get("content") or "")}
    thoughts = (found.get(name) for name in ("reasoning_content", "thinking", "reasoning"))
    if thought := next(filter(None, thoughts), ""):
        message["reasoning_content"] = str(thought)
    if calls:
        message["tool_calls"] = (calls[:-1] if cut else calls)[: None if parallel else 1]
    return message


class VllmParsers:
    """vLLM's own parsers of tool calls and reasoning, called as its server calls them.

    Args:
        style: "vllm:TOOL+REASONING", with the names of `--tool-call-parser` and `--reasoning-parser`; the second may be
            missing.
        template: Chat template of the model, whose tokenizer the parsers look tokens up in.

    Raises:
        Unproven: vLLM is missing or too old, or its parsers cannot work with the tokenizer.
        UsageError: vLLM has no parser of this name.
    """

    def __init__(self, style: str, template: ChatTemplate) -> None:
        tool, _, reasoning = style.removeprefix(VLLM).partition("+")
        try:
            from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
            from vllm.parser import ParserManager
            from vllm.reasoning import ReasoningParserManager
            from vllm.tokenizers.hf import get_cached_tokenizer
            from vllm.tool_parsers import ToolParserManager
        except ImportError as error:
            text = f"vLLM's parsers read it, and vLLM 0.32 or newer cannot be imported here ({error}): pip install vllm"
            raise Unproven(text) from error
        for kind, name, manager in (
            ("tool", tool, ToolParserManager),
            ("reasoning", reasoning, ReasoningParserManager),
        ):
            if name not in ("", *manager.list_registered()):
                raise unknown_name(f"{kind} parser of vLLM", name, manager.list_registered())
        self._template, self._request = template, ChatCompletionRequest
        try:
            self._tokenizer = get_cached_tokenizer(template.tokenizer)
            self._parsers: list[type[Parser] | None] = [
                ParserManager.get_parser(tool or None, name, enable_auto_tools=True, tokenizer=self._tokenizer)
                for name in (reasoning or None, None)
            ]
        except Exception as error:  # they raise what they like
            raise Unproven(f"vLLM's parsers do not work with the tokenizer: {error}") from error

    def readings(
        self, text: str, tools: Sequence[JsonObject], prompt: str, *, cut: bool = False, parallel: bool = True
    ) -> Iterator[JsonObject]:
        """Yield a sampled text as the message that vLLM's server returns, then with less white space.

        Args:
            text: The text.
            tools: Tools of the call. Without tools there are no tool calls.
            prompt: The end of the prompt.
            cut: Whether a limit or a stop string has cut the text. Its last call may lack arguments, and is left out.
            parallel: Whether a message may have several calls.
        """
        try:
            reasoning, content, found = self._parse(text, tools, prompt)
        except Exception:  # noqa: BLE001  parsers refuse texts in their own words
            reasoning, content, found = "", text, []
        if cut and found:
            reasoning, content, found = (reasoning, content, found[:-1]) if found[1:] else ("", text, [])
        for said, thought in itertools.product(_stripped(content), _stripped(reasoning)):
            message: JsonObject = {"role": "assistant", "content": said}
            if thought:
                message["reasoning_content"] = thought
            if found:
                message["tool_calls"] = found[: None if parallel else 1]
            yield message

    def _parse(self, text: str, tools: Sequence[JsonObject], prompt: str) -> tuple[str, str, list[JsonObject]]:
        asked: JsonObject = {"messages": [{"role": "user", "content": "?"}], "model": "model"}
        request = self._request.model_validate(
            {**asked, "tools": list(tools), "tool_choice": "auto"} if tools else asked
        )
        kind = self._parsers[prompt.rstrip().endswith("</think>")]  # as its server does in streams
        if kind is None:
            return "", text, []
        parser = kind(self._tokenizer, request.tools, chat_template_kwargs={})
        parser.set_prompt_token_ids(self._template.encode(prompt))
        reasoning, content, found = parser.parse(
            text, request, enable_auto_tools=True, model_output_token_ids=self._template.encode(text)
        )
        calls = [tool_call(one.id or "", one.name, one.arguments) for one in found or ()]
        return reasoning or "", content or "", keep_written_ids(calls, ())


def _stripped(text: str) -> list[str]:
    return list(dict.fromkeys([text, text.rstrip("\n"), text.strip("\n"), text.strip()]))


def _make_typed_call(function: JsonObject) -> JsonObject:
    arguments = function["arguments"]
    if not isinstance(arguments, dict):
        raise ValueError("the arguments are not a JSON object")
    return tool_call(new_id(9), str(function["name"]), json.dumps(arguments, ensure_ascii=False, allow_nan=False))


def specs_of(tools: Sequence[JsonObject]) -> list[ToolSpec]:
    """Return tools in the form of this package."""
    functions = [tool["function"] for tool in tools]
    return [
        ToolSpec(
            name=function["name"],
            description=function.get("description") or "",
            parameters=function.get("parameters") or {"type": "object", "properties": {}},
        )
        for function in functions
    ]


def as_served(tool: JsonObject) -> JsonObject:
    """Return a tool as vLLM's server shows it to a chat template: what is missing is None, and `strict` is left out."""
    function = tool["function"]
    shown = {name: function.get(name) for name in ("name", "description", "parameters")}
    if function.get("strict") is not None:
        shown["strict"] = function["strict"]
    return {"type": "function", "function": shown}


def _is_call(found: FoundCall, tools: Sequence[JsonObject], form: CallFormat) -> bool:
    """Return whether a found call is one. A call of an unknown tool counts if its format marks it."""
    return bool(tools) and (not form.bare or found.name in {tool["function"]["name"] for tool in tools})


def _arguments(found: FoundCall, tools: Sequence[JsonObject], form: CallFormat) -> str:
    arguments: JsonMapping = found.arguments
    if not form.typed:  # values are text: the tool's schema tells which are numbers
        schemas = [spec.parameters for spec in specs_of(tools) if spec.name == found.name]
        known = properties_of(schemas[0]) if schemas else {}
        arguments = {key: value_of(str(text), known.get(key)) for key, text in arguments.items()}
    return json.dumps(arguments, ensure_ascii=False)
