"""Conversations as a chat template renders them, after a proof that the template's tool calls are read back."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Iterator, Sequence

from ..actions import describe_tools, render_call
from ..errors import UsageError, unknown_name
from ..rollout.tokens import ChatTemplate
from ..types import JsonObject, ToolCall
from .call_formats import FORMATS, VLLM, Family, family_of
from .calls import WRITTEN_ID, Answer, Refusal, arrange_system_messages
from .parsing import arguments_of, object_of
from .template_proof import ARGUMENTS, PROBE, PROBE_NAME, QUESTION, Shape, Unproven, find_shape, shown
from .tool_calls import VllmParsers, as_served, parse_message, readings, specs_of

RESPONSE = "response_template"
"""Style of a tokenizer whose own response template reads what the model writes."""

TEXT_STYLE = "hermes"
"""How a model is told to write tool calls if its template shows no tools."""


class Renderer:
    """Renders conversations for a chat template, and reads what the model writes.

    At its construction it renders tool calls and their results, and reads the calls back.

    Args:
        template: The chat template.
        style: How the model writes tool calls, one of `FORMATS`. "response_template" lets the tokenizer's own response
            template read them, "vllm:TOOL+REASONING" parsers of vLLM. Empty: as its family does.

    Attributes:
        template: The chat template.
        style: How the model writes tool calls.
        family: Name of the model's family.
        shape: What the template expects.

    Raises:
        UsageError: The style is unknown, the template's tool calls are in an unknown format, or a message was rendered
            in a way that is not read back. The error shows what was rendered and names the option that helps.
    """

    def __init__(self, template: ChatTemplate, style: str = "") -> None:
        if style and style not in (*FORMATS, RESPONSE) and not style.startswith(VLLM):
            raise unknown_name("style of tool calls", style, (*FORMATS, RESPONSE, "vllm:TOOL+REASONING"))
        self.template = template
        self._family = family_of(template.source)
        self.family = self._family.name if self._family else "unknown"
        native = self._renders_tools()
        self.style = style or self._describe_style(native=native)
        if not native and not self._action:
            raise self._refuse(f"it shows no tools to the model, which style {self.style!r} needs", native)
        self.shape = Shape(native=native)
        try:
            self._vllm = VllmParsers(self.style, template) if self.style.startswith(VLLM) else None
            self.shape = find_shape(self, native=native)
        except Unproven as error:
            raise self._refuse(f"style {self.style!r}: {error}", native) from error

    @property
    def _action(self) -> str:
        """The format of actions that describes tool calls to the model; empty if none does."""
        return FORMATS[self.style].action if self.style in FORMATS else ""

    @property
    def writes_ids(self) -> bool:
        """Whether the model writes the ids of tool calls itself."""
        return bool(self._family and self._family.writes_ids)

    @property
    def facts(self) -> JsonObject:
        """What the record tells of the rendering."""
        return {
            "family": self.family,
            "style": self.style,
            "later_system_messages": "system" if self.shape.later else "user",
        }

    # --- messages -----------------------------------------------------------------------------------------------

    def render(
        self, messages: Sequence[JsonObject], tools: Sequence[JsonObject] = (), *, generation: bool = True
    ) -> str:
        """Return a conversation as text.

        Args:
            messages: Messages of OpenAI's chat API.
            tools: Tools as in OpenAI's chat API.
            generation: Whether the prompt for the next answer follows.

        Raises:
            Refusal: A message has other content than text.
        """
        shown = [as_served(tool) for tool in tools] if self.shape.native else []
        return self.template.render(self.prepare_messages(messages, tools), shown, generation=generation)

    def prepare_messages(self, messages: Sequence[JsonObject], tools: Sequence[JsonObject] = ()) -> list[JsonObject]:
        """Return messages as the template expects them: one system message, and text where it renders nothing else."""
        leading = sum(1 for _ in itertools.takewhile(lambda message: message["role"] == "system", messages))
        told: list[JsonObject] = []
        if tools and not self.shape.native:
            told = [{"role": "system", "content": describe_tools(specs_of(tools), self._action)}]
        names: dict[str, str] = {}
        shown = arrange_system_messages(
            [*messages[:leading], *told, *messages[leading:]], "system" if self.shape.later else "user"
        )
        found = [self._one(message, names) for message in (_write_ids(shown) if self.writes_ids else shown)]
        if not self.shape.system and found and found[0]["role"] == "system":
            found[0] = {**found[0], "role": "user"}
        return _merge_users(found) if self.shape.alternating or not self.shape.system else found

    def between(
        self, history: Sequence[JsonObject], new: Sequence[JsonObject], tools: Sequence[JsonObject], *, end: str
    ) -> str:
        """Return the text between the last answer of a conversation and the next one.

        Args:
            history: Messages up to the last answer, which is included.
            new: The messages after it.
            tools: Tools as in OpenAI's chat API.
            end: Text of the token that ended the answer, which is not repeated; empty if there was none.
        """
        closing = self.template.closing.removeprefix(end)
        before = self.render(history, tools, generation=False)
        whole = self.render([*history, *new], tools)
        if whole.startswith(before):
            return closing + whole[len(before) :]
        question, said = {"role": "user", "content": "?"}, self._without_reasoning(history[-1])
        before = self.render([question, said], generation=False)
        whole = self.render([question, said, *new])
        return closing + _cut_common(before, whole)

    def _without_reasoning(self, message: JsonObject) -> JsonObject:
        return {key: value for key, value in message.items() if key != "reasoning_content"}

    def answer(self, answer: Answer) -> JsonObject:
        """Return an answer as a message for `render`."""
        return answer.message if self.shape.native else {"role": "assistant", "content": answer.text}

    def _one(self, message: JsonObject, names: dict[str, str]) -> JsonObject:
        """Return a message as the template expects it. `names` maps the ids of calls to their tools."""
        role = message["role"]
        if role == "assistant":
            names.update({call["id"]: call["function"]["name"] for call in message.get("tool_calls") or ()})
            return self._prepare_message(message) if self.shape.native else _as_text(message, self._action)
        if role == "tool":
            name = names.get(message.get("tool_call_id") or "")
            told = {"role": self.shape.results, "content": _text(message)}
            if self.shape.results != "tool":
                return told
            return {**told, "tool_call_id": message.get("tool_call_id") or "", **({"name": name} if name else {})}
        return {"role": role, "content": _text(message)}

    def _prepare_message(self, message: JsonObject) -> JsonObject:
        """Return a message of the model with its reasoning and calls."""
        content, reasoning = _text(message), message.get("reasoning_content") or message.get("reasoning") or ""
        calls = message.get("tool_calls") or ()
        family = self._family or _PLAIN
        if calls and reasoning and content and not family.text_beside:
            content, reasoning = "", f"{reasoning}\n\n{content}"
        said: JsonObject = {"role": "assistant", "content": content}
        if reasoning:
            said[family.reasoning] = reasoning
        if calls:
            said["tool_calls"] = [self._call(call) for call in calls]
        return said

    def _call(self, call: JsonObject) -> JsonObject:
        arguments = object_of(call) or {}  # as vLLM shows arguments that are no object
        shown = arguments if self.shape.arguments == "objects" else json.dumps(arguments, ensure_ascii=False)
        return {**call, "type": "function", "function": {**call["function"], "arguments": shown}}

    # --- texts --------------------------------------------------------------------------------------------------

    def read(
        self, text: str, tools: Sequence[JsonObject], *, prompt: str, cut: bool = False
    ) -> tuple[JsonObject, bool]:
        """Return a sampled text as a message, and whether the template renders that message as this text.

        Of several ways to divide the text, the one that is rendered as the text is taken. If the template cannot render
        any, the text is content without the model's special tokens.

        Args:
            text: The text, without the token that ends it.
            tools: Tools of the call.
            prompt: The end of the prompt.
            cut: Whether a limit or a stop string has cut the text. No call of it that may lack arguments is read.
        """
        if not self.shape.native:
            same = self._is_rendered({"role": "assistant", "content": text}, text)
            return self.read_first(text, tools, prompt, cut=cut), same
        first: JsonObject | None = None
        try:
            for message in self._readings(text, tools, prompt, cut=cut):
                first = first or message
                if self._is_rendered(message, text):
                    return message, True
        except Exception:  # noqa: BLE001  templates are programs, and models write their input
            first = None
        return first or {"role": "assistant", "content": _SPECIAL.sub("", text)}, False

    def read_first(self, text: str, tools: Sequence[JsonObject], prompt: str, *, cut: bool = False) -> JsonObject:
        """Return the first message that a text may be. Arguments are those of `read`."""
        return next(self._readings(text, tools, prompt, cut=cut))

    def _readings(self, text: str, tools: Sequence[JsonObject], prompt: str, *, cut: bool) -> Iterator[JsonObject]:
        parallel = self.shape.parallel
        if self.style == RESPONSE:
            return iter([parse_message(self.template, text, tools, prompt, cut=cut, parallel=parallel)])
        if self._vllm is not None:
            return self._vllm.readings(text, tools, prompt, cut=cut, parallel=parallel)
        opened = prompt.rstrip().endswith("<think>")
        return readings(text, tools, self.style, opened=opened, cut=cut, parallel=parallel)

    def write(self, message: JsonObject) -> str:
        """Return the text that a model would write for a message, without the token that ends it."""
        if not self.shape.native:
            return str(_as_text(message, self._action)["content"])
        return self.render_answer([QUESTION], message)[0]

    @functools.cached_property
    def _prompt(self) -> str:
        return self.render([QUESTION])

    def _is_rendered(self, message: JsonObject, text: str) -> bool:
        prompt = self._prompt
        rendered = self.render([QUESTION, message], generation=False)
        if self.writes_ids:  # some templates count the calls of the conversation
            rendered, text = _ID_NUMBER.sub("0", rendered), _ID_NUMBER.sub("0", text)
        return not rendered.startswith(prompt) or rendered[len(prompt) :].startswith(text)

    def render_answer(self, before: Sequence[JsonObject], message: JsonObject) -> tuple[str, str]:
        """Return the text of an answer as the template renders it, and the end of its prompt.

        The end is empty if the template renders the answer otherwise than after its prompt.
        """
        rendered = self.render([*before, message], [PROBE], generation=False)
        prompt = self.render(before, [PROBE])
        if rendered.startswith(prompt):
            text = rendered[len(prompt) :]
        else:
            text, prompt = _cut_common(self.render(before, [PROBE], generation=False), rendered), ""
        end = self.template.closing
        return text.removesuffix(end) if end else text, prompt

    # --- its style ----------------------------------------------------------------------------------------------

    def _renders_tools(self) -> bool:
        try:
            return PROBE_NAME in self.template.render([QUESTION], [PROBE])
        except Exception as error:
            raise UsageError(f"the chat template of {self.family} cannot render a tool: {error!r}") from error

    def _describe_style(self, *, native: bool) -> str:
        """Return how the family writes tool calls."""
        known = self._family.style if self._family else ""
        if native and self.template.parses and known not in FORMATS:
            return RESPONSE
        if known:
            return known
        if self._family is None and not native:
            return TEXT_STYLE
        what = "it is in no known format" if self._family is None else f"nothing here reads {self.family}"
        text = self._try_call()
        raise self._refuse(f"{what}: it was rendered as {shown(text)}" if text else what, native)

    def _try_call(self) -> str:
        """Return how the template renders a tool call, as far as that is possible; for an error."""
        call = {"id": "call_0001", "type": "function", "function": {"name": PROBE_NAME, "arguments": dict(ARGUMENTS)}}
        said = {"role": "assistant", "content": "", "tool_calls": [call]}
        try:
            before = self.template.render([QUESTION], [PROBE])
            text = self.template.render([QUESTION, said], [PROBE], generation=False)
        except Exception:  # noqa: BLE001  the error is about something else
            return ""
        return _cut_common(before, text)

    def _refuse(self, what: str, native: bool) -> UsageError:
        described = [name for name, form in FORMATS.items() if form.action]
        known = ", ".join([*FORMATS, "vllm:TOOL+REASONING"] if native else described)
        own = "give the tokenizer a response_template of transformers, or " if native else "give the tokenizer "
        return UsageError(
            f"tool calls with the chat template of {self.family}: {what}. Name the format of the model's tool calls "
            f"({known}), as style= of TokenSampler or generation.tool_call_style of a training, {own}another chat "
            "template"
        )


_PLAIN = Family("unknown", (), TEXT_STYLE)
_ID_NUMBER = re.compile(r"(?<=:)\d+(?=<)")
_SPECIAL = re.compile(r"<[|｜][^<>\n]{0,40}[|｜]?>")


def _text(message: JsonObject) -> str:
    """Return the text of a message.

    Raises:
        Refusal: It has other content, such as images.
    """
    content = message.get("content") or ""
    if not isinstance(content, str):
        raise Refusal(400, "only text is supported: the model reads no images or files")
    return content


def _as_text(message: JsonObject, form: str) -> JsonObject:
    """Return a message of the model whose calls are text."""
    calls = [
        render_call(ToolCall(name=call["function"]["name"], arguments=arguments_of(call)), form)
        for call in message.get("tool_calls") or ()
    ]
    return {"role": "assistant", "content": "\n".join(filter(None, [_text(message), *calls]))}


def _write_ids(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """Return messages whose tool calls have ids in the form that models of Kimi write."""
    ids: dict[str, str] = {}
    numbers = itertools.count()
    found: list[JsonObject] = []
    for message in messages:
        if made := message.get("tool_calls"):
            for call, number in zip(made, numbers, strict=False):
                own = f"functions.{call['function']['name']}:{number}"
                ids[call["id"]] = call["id"] if WRITTEN_ID.fullmatch(call["id"]) else own
            found.append({**message, "tool_calls": [{**call, "id": ids[call["id"]]} for call in made]})
        elif asked := message.get("tool_call_id"):
            found.append({**message, "tool_call_id": ids.get(asked, asked)})
        else:
            found.append(message)
    return found


def _cut_common(before: str, text: str) -> str:
    """Return a text after what it has in common with another one, which does not end in a tag."""
    same = next((index for index, (one, other) in enumerate(zip(before, text, strict=False)) if one != other), None)
    common = text[: min(len(before), len(text)) if same is None else same]
    tag = common.rfind("<")
    return text[tag if tag > common.rfind(">") else len(common) :]


def _merge_users(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """Return messages with neighbouring messages of users as one."""
    found: list[JsonObject] = []
    for message in messages:
        if found and message["role"] == "user" == found[-1]["role"]:
            found[-1] = {**message, "content": f"{found[-1]['content']}\n\n{message['content']}"}
        else:
            found.append(message)
    return found
