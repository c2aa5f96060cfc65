"""The formats in which models write tool calls and reasoning: their readers, and which family of models uses which."""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from ..actions import FoundCall, TooManyCalls, find_calls
from ..syntax import parse
from ..types import JsonObject
from .parsing import parse_json

MOST_CALLS = 1000
"""Places that could start a call; a text with more has none."""

MOST_TAGS = 10
"""Tags in a thought that are tried as the start of a call."""


class Reading(NamedTuple):
    """What a text says.

    Attributes:
        reasoning: The reasoning, with its white space.
        said: The text after the reasoning, calls included.
        calls: The calls, by their place in `said`.
    """

    reasoning: str
    said: str
    calls: list[FoundCall]


Finder = Callable[[str], list[FoundCall]]


class CallFormat(NamedTuple):
    """A format of tool calls.

    Attributes:
        find: Finds the calls of a text.
        action: The format of actions that describes it to a model whose template shows no tools; empty if none does.
        wrapper: What else may stand around calls, and is no content.
        typed: Whether arguments have types. Otherwise they are text, and the tool's schema tells which are numbers.
        split: Divides a text into reasoning and the rest, for formats without `<think>`.
        opening: Tag of a call that ends reasoning; empty if a call in reasoning is reasoning.
        beside: What stands beside calls and is content: the text "before" the first one, all "around", or "nothing".
        ends: Tags that end a call, if a call without them may lack arguments.
        bare: Whether a call needs no tag, so that only the name of a tool tells it from text.
    """

    find: Finder
    action: str = ""
    wrapper: str = ""
    typed: bool = True
    split: Callable[[str], tuple[str, str]] | None = None
    opening: str = ""
    beside: Literal["before", "around", "nothing"] = "before"
    ends: tuple[str, ...] = ()
    bare: bool = False

    def find_whole(self, text: str, *, cut: bool = False) -> list[FoundCall]:
        """Return the calls of a text, which may be cut, that have no flaw; none if it has too many."""
        try:
            found = [one for one in self.find(text) if not one.flaw]
        except (RecursionError, TooManyCalls):
            return []
        return [one for one in found if not cut or not self.ends or text.endswith(self.ends, 0, one.end)]


def read_text(text: str, form: CallFormat, *, opened: bool, cut: bool) -> Reading:
    """Read a sampled text.

    Args:
        text: The text, without the token that ends it.
        form: How the model writes calls.
        opened: Whether the prompt has opened the reasoning.
        cut: Whether a limit or a stop string has cut the text.
    """
    reasoning, said = form.split(text) if form.split else _split_think(text, opened=opened)
    start = _start_of_calls(reasoning, form, cut=cut)
    said = reasoning[start:] + said
    return Reading(reasoning[:start], said, form.find_whole(said, cut=cut))


def _start_of_calls(reasoning: str, form: CallFormat, *, cut: bool) -> int:
    """Return where calls end the reasoning: at the first tag that starts one. A thought may talk about the tag."""
    tags = re.finditer(re.escape(form.opening), reasoning) if form.opening else iter(())
    for tag in itertools.islice(tags, MOST_TAGS):
        found = form.find_whole(reasoning[tag.start() :], cut=cut)
        if found and found[0].start == 0:
            return tag.start()
    return len(reasoning)


_THOUGHT = re.compile(r"\A\s*+(?:<think>)?+(.*?)</think>", re.DOTALL)
"""A thought; chat templates often put the opening tag into the prompt."""


def _split_think(text: str, *, opened: bool) -> tuple[str, str]:
    if match := _THOUGHT.match(text):
        return match[1], text[match.end() :]
    if opened or text.lstrip().startswith("<think>"):
        return text.lstrip().removeprefix("<think>") if not opened else text, ""
    return "", text


# --- the formats of actions ---------------------------------------------------------------------------------


def _of_actions(name: str) -> Finder:
    return lambda text: find_calls(text, (name,), unclosed=True).found


# --- blocks ---------------------------------------------------------------------------------------------------


def _blocks(
    pattern: str, read: Callable[[re.Match[str]], list[tuple[str, JsonObject]]], *, all_or_none: bool = False
) -> Finder:
    """Return a finder of blocks that match a pattern. A block that cannot be read is content; with it, all may be.

    A block without its end must match up to the end of the text, as the group `open`: it has no call, and where the
    search failed instead, each later start would search the rest of the text again.
    """
    compiled = re.compile(pattern, re.DOTALL)

    def find(text: str) -> list[FoundCall]:
        found: list[FoundCall] = []
        for number, match in enumerate(compiled.finditer(text)):
            if number == MOST_CALLS:
                raise TooManyCalls
            if match.groupdict().get("open") is not None:
                break
            try:
                calls = read(match)
            except (ValueError, SyntaxError, MemoryError):
                if all_or_none:
                    return []
                continue
            found += [FoundCall("", match.start(), match.end(), name, arguments) for name, arguments in calls]
        return found

    return find


def _object(text: str) -> JsonObject:
    value = parse_json(text.strip() or "{}")
    if not isinstance(value, dict):
        raise ValueError("the arguments are not a JSON object")
    return value


def _json_call(match: re.Match[str]) -> list[tuple[str, JsonObject]]:
    return [(match["name"].strip(), _object(match["arguments"]))]


def _hermes_call(match: re.Match[str]) -> list[tuple[str, JsonObject]]:
    """Read the object of a call; some models write its arguments as JSON in a string, or beside the name."""
    value = _object(match["object"])
    name = value.pop("name", None)
    if not isinstance(name, str) or not name.strip():
        raise ValueError("the call has no name")
    key = next((one for one in ("arguments", "parameters") if one in value), "")
    arguments = value.pop(key) if key else value
    if key and not value.keys() <= _BESIDE:
        raise ValueError("something stands beside the arguments")
    return [(name.strip(), _object(arguments if isinstance(arguments, str) else json.dumps(arguments)))]


_BESIDE = {"id", "call_id", "type", "index"}
"""What may stand beside a call's name and arguments, and is neither."""

_PAIR = re.compile(r"\s*+<arg_key>([^<]*+)</arg_key>\s*+<arg_value>(.*?)</arg_value>", re.DOTALL)


def _pairs_call(match: re.Match[str]) -> list[tuple[str, JsonObject]]:
    """Read GLM's pairs of keys and values."""
    text, pairs, end = match["arguments"], [], 0
    while pair := _PAIR.match(text, end):
        pairs.append((pair[1], pair[2]))
        end = pair.end()
    if text[end:].strip():
        raise ValueError("there is something between the pairs")
    if not pairs and not match[0].endswith("</tool_call>"):
        raise ValueError("the name may be cut off")
    return [(match["name"].strip(), dict(pairs))]


_QUOTE = '<|"|>'
_KEY = re.compile(r"([{,]\s*+)([^\s{}\[\],:\"]++)\s*+:")
_BARE = re.compile(r'([:\[,]\s*)([^\s{}\[\],"][^{}\[\],"]*+|(?<=:)(?=\s*[,}]))')
"""A value without quotes, up to a mark, or a missing one, after its colon or in a list."""


def _gemma_call(match: re.Match[str]) -> list[tuple[str, JsonObject]]:
    """Read Gemma's arguments: JSON without quotes around keys, and with a special token around strings."""
    pieces = f"{{{match['arguments']}}}".split(_QUOTE)
    if len(pieces) % 2 == 0:
        raise ValueError("a string is not closed")
    written = [json.dumps(one) if index % 2 else _quote_bare(one) for index, one in enumerate(pieces)]
    return [(match["name"], _object("".join(written)))]


def _quote_bare(text: str) -> str:
    """Return Gemma's arguments between strings as JSON."""
    keyed = _KEY.sub(r'\1"\2":', text)

    def write(match: re.Match[str]) -> str:
        ends = not match[2] or keyed.startswith((",", "}", "]"), match.end())
        return match[1] + _bare_value(match[2]) if ends else match[0]

    return _BARE.sub(write, keyed)


def _bare_value(text: str) -> str:
    said = text.strip()
    try:
        return json.dumps(parse_json(said.lower() if said.lower() in _JSON_NAMES else said))
    except ValueError:
        return json.dumps(said)


def _python_calls(match: re.Match[str]) -> list[tuple[str, JsonObject]]:
    """Read a list of calls in Python's syntax, or one call whose strings hold quotes and line breaks as they are."""
    text = match["arguments"].strip()
    try:
        tree = parse(text, "eval").body
    except SyntaxError:
        return [_loose_call(text)]
    calls = tree.elts if isinstance(tree, ast.List) else [tree]
    return [_python_call(one) for one in calls]


_LOOSE = re.compile(r"\[\s*([\w.\-]+)\((.*)\)\s*\]", re.DOTALL)
_NEXT_ARGUMENT = re.compile(r",\s*(?=\w+=)|\Z")
_ZEROS = re.compile(r"\A0+(?=\d)")


def _loose_call(text: str) -> tuple[str, JsonObject]:
    """Read a call whose strings are not escaped: a string ends with a quote before the next argument or the end."""
    match = _LOOSE.fullmatch(text)
    if match is None:
        raise ValueError("it is no call")
    arguments: JsonObject = {}
    body, start = match[2], 0
    for after in _NEXT_ARGUMENT.finditer(body):
        end = after.start()
        first = body.find("=", start, end) + 1
        if not first:
            raise ValueError("an argument has no name")
        key = body[start : first - 1].strip()
        if not body.startswith("'", first):
            arguments[key] = _python_value(parse(_ZEROS.sub("", body[first:end].strip()), "eval").body)
        elif end - first > 1 and body[end - 1] == "'":
            arguments[key] = body[first + 1 : end - 1]
        else:
            continue  # the comma stands in a string
        start = after.end()
    if start < len(body):
        raise ValueError("a string is not closed")
    return match[1], arguments


_JSON_NAMES = {"true": True, "false": False, "null": None}


def _python_call(node: ast.expr) -> tuple[str, JsonObject]:
    if not isinstance(node, ast.Call) or node.args or not all(one.arg for one in node.keywords):
        raise ValueError("it is no call with named arguments")
    return ast.unparse(node.func), {str(one.arg): _python_value(one.value) for one in node.keywords}


def _python_value(node: ast.expr) -> object:
    """Return the value of a literal as JSON has it: names of JSON count, a set is a list."""
    return parse_json(json.dumps(_literal(node)))


def _literal(node: ast.expr) -> object:
    if isinstance(node, ast.Name) and node.id in _JSON_NAMES:
        return _JSON_NAMES[node.id]
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [_literal(one) for one in node.elts]
    if isinstance(node, ast.Dict):
        keys = [one and str(_literal(one)) for one in node.keys]
        return dict(zip(keys, map(_literal, node.values), strict=True))
    value: object = ast.literal_eval(node)
    if not isinstance(value, str | int | float | None):
        raise ValueError(f"JSON has no {type(value).__name__}")
    return value


# --- harmony --------------------------------------------------------------------------------------------------

_HARMONY = re.compile(
    r"(?P<head>(?:\A\s*+(?:to=[^<]*+)?|<\|(?:start|channel)\|>[^<]*+)(?:<\|(?:start|channel|constrain)\|>[^<]*+)*+)"
    r"(?:<\|message\|>(?P<body>.*?)(?:<\|(?:end|call|return)\|>|\Z))?+",
    re.DOTALL,
)
"""A message, or the head of one whose body is missing."""

_RECIPIENT = re.compile(r"to=(?:functions\.|(?!functions\.|(?:assistant|python|browser|container)\b))([^\s<]+)")
"""The function that a message calls; without `functions.`, some names are tools of the provider."""

_ENDS = ("<|call|>", "<|end|>", "<|return|>")
_TAG = re.compile(r"<\|[a-z]+\|>")


def _harmony(text: str) -> Iterator[tuple[str, str, re.Match[str]]]:
    """Yield channel, recipient and match of each message."""
    for match in _HARMONY.finditer(text):
        if match["body"] is None:
            continue
        channel = re.search(r"<\|channel\|>(\w+)", match["head"])
        recipient = _RECIPIENT.search(match["head"])
        yield channel[1] if channel else "", recipient[1] if recipient else "", match


def _split_harmony(text: str) -> tuple[str, str]:
    """Divide messages into those of the channel for reasoning and the rest, whose texts lose their tags."""
    parts = list(_harmony(text))
    thoughts = [match["body"] for channel, recipient, match in parts if channel == "analysis" and not recipient]
    rest = [
        "<|start|>" + match[0].removeprefix("<|start|>") if recipient else _TAG.sub("", match["body"])
        for channel, recipient, match in parts
        if recipient or channel != "analysis"
    ]
    return "\n".join(thoughts), "\n".join(rest) if parts else _TAG.sub("", text)


def _find_harmony(text: str) -> list[FoundCall]:
    found: list[FoundCall] = []
    for _, recipient, match in _harmony(text):
        if recipient:
            try:
                found.append(FoundCall("", match.start(), match.end(), recipient, _object(match["body"])))
            except ValueError:
                continue
    return found


# --- Gemma's reasoning ----------------------------------------------------------------------------------------

_CHANNEL = re.compile(r"\A\s*+<\|channel>thought\n?(.*?)(?:<channel\|>|\Z)", re.DOTALL)


def _split_gemma(text: str) -> tuple[str, str]:
    match = _CHANNEL.match(text)
    return (match[1], text[match.end() :]) if match else ("", text)


_DEEPSEEK = (
    r"<｜tool▁call▁begin｜>\s*+\w*+\s*+<｜tool▁sep｜>\s*+(?P<name>[^\n`<]++)\n```(?:json)?\n"
    r"(?P<arguments>.*?)(?:\n```\s*+(?:<｜tool▁call▁end｜>|\Z)|(?P<open>\Z))"
)

_TOOL_CALL = "<tool_call>"

FORMATS: Mapping[str, CallFormat] = {
    "hermes": CallFormat(
        _blocks(r"<tool_call>(?P<object>.*?)(?:</tool_call>|\Z)", _hermes_call, all_or_none=True),
        "hermes",
        opening=_TOOL_CALL,
    ),
    "qwen3_coder": CallFormat(
        _of_actions("r2e"), "r2e", typed=False, opening=_TOOL_CALL, ends=("</function>", "</tool_call>")
    ),
    "llama": CallFormat(_of_actions("json"), "json", r"<\|python_tag\|>", beside="nothing", bare=True),
    "deepseek_v3": CallFormat(_blocks(_DEEPSEEK, _json_call), wrapper="<｜tool▁calls▁(?:begin|end)｜>"),
    "glm45": CallFormat(
        _blocks(r"<tool_call>\s*(?P<name>[^\s<>]+)(?P<arguments>.*?)(?:</tool_call>|\Z)", _pairs_call),
        typed=False,
        opening=_TOOL_CALL,
        ends=("</tool_call>",),
    ),
    "openai": CallFormat(_find_harmony, wrapper=_TAG.pattern, split=_split_harmony, beside="around", ends=_ENDS),
    "gemma4": CallFormat(
        _blocks(
            r"<\|tool_call>call:(?P<name>[\w.\-]++)\{(?P<arguments>.*?)(?:\}<tool_call\|>|(?P<open>\Z))", _gemma_call
        ),
        split=_split_gemma,
        wrapper=r"<\|tool_response>",
        opening="<|tool_call>",
    ),
    "lfm2": CallFormat(
        _blocks(r"<\|tool_call_start\|>(?P<arguments>.*?)(?:<\|tool_call_end\|>|(?P<open>\Z))", _python_calls),
        beside="around",
    ),
}
"""Name of a format -> its reader. The names are those of vLLM's `--tool-call-parser`, apart from `llama`.

- "hermes": `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen2.5, Qwen3, SmolLM3.
- "qwen3_coder": `<function=NAME><parameter=KEY>VALUE</parameter></function>`: Qwen3-Coder, Qwen3.5, Nemotron 3.
- "llama": `{"name": ..., "parameters": {...}}`: Llama 3.
- "deepseek_v3": a fenced JSON object between special tokens.
- "glm45": `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`.
- "openai": channels of gpt-oss.
- "gemma4": `<|tool_call>call:NAME{KEY:VALUE}<tool_call|>`.
- "lfm2": `<|tool_call_start|>[NAME(KEY=VALUE)]<|tool_call_end|>`.
"""


def without_calls(said: str, found: Sequence[FoundCall], form: CallFormat) -> list[str]:
    """Return the content beside calls, with more or less of the white space before them; at least one text."""
    if not found:
        return list(dict.fromkeys([re.sub(form.wrapper or r"\Z", "", said).strip(), said.strip(), said.lstrip(), said]))
    if form.beside == "nothing":
        return [""]
    parts, start = [], 0
    for one in found:
        parts.append(said[start : one.start])
        start = max(start, one.end)
    parts.append(said[start:])
    if form.wrapper:
        parts = [re.sub(form.wrapper, "", part) for part in parts]
    if form.beside == "before":
        parts = parts[:1]
    trimmed = [part.strip(" \n;") for part in parts]
    before = parts[0].lstrip()
    ends = [before.removesuffix("\n"), before.removesuffix("\n\n"), before] if not any(trimmed[1:]) else []
    return list(dict.fromkeys(["\n".join(filter(None, trimmed)), *ends]))


VLLM = "vllm:"
"""Start of a style that names parsers of vLLM: "vllm:TOOL+REASONING"."""


class Family(NamedTuple):
    """A family of models.

    Attributes:
        name: Name for people.
        marks: Regular expressions that its chat template matches, all of them.
        style: How it writes tool calls, one of `FORMATS` or parsers of vLLM; empty if nothing reads them.
        reasoning: Field of a message from which the template takes the reasoning.
        text_beside: Whether a message with reasoning and tool calls may have text, too.
        writes_ids: Whether it writes the ids of tool calls itself: "functions.NAME:NUMBER".
    """

    name: str
    marks: tuple[str, ...]
    style: str
    reasoning: str = "reasoning_content"
    text_beside: bool = True
    writes_ids: bool = False


FAMILIES = (
    Family("gpt-oss", (r"<\|channel\|>", r"<\|call\|>"), "openai", "thinking", text_beside=False),
    Family("Gemma 4", (r"<\|tool_call>call:",), "gemma4"),
    Family("Muse Glimmer", ("<atem:function_calls>",), "vllm:muse_glimmer+muse_glimmer"),
    Family("DeepSeek V4", ("DSML", "tool_calls>"), "vllm:deepseek_v4+deepseek_v4"),
    Family("DeepSeek V3.2", ("DSML",), "vllm:deepseek_v32+deepseek_v3"),
    Family("DeepSeek", ("<｜tool▁calls▁begin｜>",), "deepseek_v3"),
    Family("GLM-4.5", ("<arg_key>",), "glm45"),
    Family("Kimi K2 Thinking", (r"<\|im_middle\|>", "think"), "vllm:kimi_k2+kimi_k2", writes_ids=True),
    Family("Kimi K2", (r"<\|tool_calls_section_begin\|>|<\|im_middle\|>",), "vllm:kimi_k2", writes_ids=True),
    Family("Kimi K3", (r"<\|open\|>", r"<\|close\|>"), "vllm:kimi_k3+kimi_k3"),
    Family("MiniMax M3", (r"\]<\]minimax\[>\[",), "vllm:minimax_m3+minimax_m3"),
    Family("MiniMax M2", ("minimax:tool_call",), "vllm:minimax_m2+minimax_m2"),
    Family("Seed-OSS", ("seed:tool_call",), "vllm:seed_oss+seed_oss"),
    Family("LFM2", (r"<\|tool_(?:call|list)_start\|>",), "lfm2", "thinking"),
    Family("Mistral", (r"\[TOOL_CALLS\]",), "vllm:mistral+mistral"),
    Family("Granite 3", (r"<\|start_of_role\|>", r"<\|tool_call\|>"), "vllm:granite+granite"),
    Family("Phi-4", (r"<\|/?tool(?:_call)?\|>",), "vllm:phi4_mini_json"),
    Family("Command", (r"<\|START_ACTION\|>",), "vllm:cohere_command3+cohere_command3"),
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
