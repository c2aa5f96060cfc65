"""Conversations as a chat template renders them, after a proof that the template's tool calls are read back."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Iterator, Sequence

from ..actions import describe_tools, render_call
from ..errors import UsageError, unknown_name
from ..rollout.tokens import ChatTemplate
from ..types import JsonObject, ToolCall
from .call_formats import FORMATS
from .calls import Answer, Refusal, tool_call
from .families import Family, family_of
from .parsing import arguments_of
from .system_messages import arranged
from .tool_calls import read_message, readings, specs_of

SHOWN = 300
"""Characters of a rendered message in errors."""

TEXT_STYLE = "hermes"
"""How a model is told to write tool calls if its template shows no tools."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """What a chat template expects of messages.

    Attributes:
        native: Whether it renders tools and tool calls. Otherwise both are text.
        arguments: Whether arguments of tool calls are objects, or their JSON as text.
        results: Role of a tool's result.
        system: Whether it renders a system message. Otherwise that is the start of the first user message.
        later: Whether system messages after the first message stay system messages, or become user messages.
        alternating: Whether roles must alternate, so that neighbouring user messages become one.
        parallel: Whether it renders several tool calls of one message.
    """

    native: bool = True
    arguments: str = "objects"
    results: str = "tool"
    system: bool = True
    later: bool = True
    alternating: bool = False
    parallel: bool = True


class Unproven(Exception):
    """A chat template does not do what a sampler needs; the message says what."""


class Renderer:
    """Renders conversations for a chat template, and reads what the model writes.

    At its construction it renders tool calls and their results, and reads the calls back.

    Args:
        template: The chat template.
        style: How the model writes tool calls, one of `FORMATS`. Empty: as its family does.

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
        if style and style not in FORMATS:
            raise unknown_name("style of tool calls", style, FORMATS)
        self.template = template
        self._family = family_of(template.source)
        self.family = self._family.name if self._family else "unknown"
        native = self._renders_tools()
        self.style = style or self._own_style(native=native)
        if not native and not FORMATS[self.style].action:
            raise self._refuse(f"it shows no tools to the model, which style {self.style!r} needs", native)
        self.shape = Shape(native=native)
        self.shape = self._find_shape(native=native)

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
        shown = [{**spec.openai()} for spec in specs_of(tools)] if self.shape.native else []
        return self.template.render(self.prepared(messages, tools), shown, generation=generation)

    def prepared(self, messages: Sequence[JsonObject], tools: Sequence[JsonObject] = ()) -> list[JsonObject]:
        """Return messages as the template expects them: one system message, and text where it renders nothing else."""
        leading = sum(1 for _ in itertools.takewhile(lambda message: message["role"] == "system", messages))
        told: list[JsonObject] = []
        if tools and not self.shape.native:
            told = [{"role": "system", "content": describe_tools(specs_of(tools), FORMATS[self.style].action)}]
        names: dict[str, str] = {}
        shown = arranged([*messages[:leading], *told, *messages[leading:]], "system" if self.shape.later else "user")
        found = [self._one(message, names) for message in shown]
        if not self.shape.system and found and found[0]["role"] == "system":
            found[0] = {**found[0], "role": "user"}
        return _merged(found) if self.shape.alternating or not self.shape.system else found

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
        return closing + _after(before, whole)

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
            return self._said(message) if self.shape.native else _as_text(message, FORMATS[self.style].action)
        if role == "tool":
            name = names.get(message.get("tool_call_id") or "")
            told = {"role": self.shape.results, "content": _text(message)}
            if self.shape.results != "tool":
                return told
            return {**told, "tool_call_id": message.get("tool_call_id") or "", **({"name": name} if name else {})}
        return {"role": role, "content": _text(message)}

    def _said(self, message: JsonObject) -> JsonObject:
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
        arguments = arguments_of(call)
        shown = arguments if self.shape.arguments == "objects" else json.dumps(arguments, ensure_ascii=False)
        return {**call, "type": "function", "function": {**call["function"], "arguments": shown}}

    # --- texts --------------------------------------------------------------------------------------------------

    def read(self, text: str, tools: Sequence[JsonObject], *, prompt: str) -> tuple[JsonObject, bool]:
        """Return a sampled text as a message, and whether the template renders that message as this text.

        Of several ways to divide the text, the one that is rendered as the text is taken. If the template cannot render
        any, the text is content without the model's special tokens.

        Args:
            text: The text, without the token that ends it.
            tools: Tools of the call.
            prompt: The end of the prompt.
        """
        opened = self._opens(prompt)
        first = read_message(text, tools, self.style, opened=opened, parallel=self.shape.parallel)
        if not self.shape.native:
            return first, self._is_rendered({"role": "assistant", "content": text}, text)
        try:
            for message in readings(text, tools, self.style, opened=opened, parallel=self.shape.parallel):
                if self._is_rendered(message, text):
                    return message, True
        except Exception:  # noqa: BLE001  templates are programs, and models write their input
            return {"role": "assistant", "content": _SPECIAL.sub("", text)}, False
        return first, False

    def write(self, message: JsonObject) -> str:
        """Return the text that a model would write for a message, without the token that ends it."""
        if not self.shape.native:
            return str(_as_text(message, FORMATS[self.style].action)["content"])
        return self._written([_QUESTION], message, [PROBE])[0]

    def _is_rendered(self, message: JsonObject, text: str) -> bool:
        prompt = self.render([_QUESTION])
        rendered = self.render([_QUESTION, message], generation=False)
        return not rendered.startswith(prompt) or rendered[len(prompt) :].startswith(text)

    def _opens(self, prompt: str) -> bool:
        return prompt.rstrip().endswith("<think>")

    def _written(
        self, before: Sequence[JsonObject], message: JsonObject, tools: Sequence[JsonObject]
    ) -> tuple[str, bool]:
        """Return the text of an answer as the template renders it, and whether the prompt has opened its reasoning."""
        rendered = self.render([*before, message], tools, generation=False)
        prompt = self.render(before, tools)
        if opened := rendered.startswith(prompt):
            text = rendered[len(prompt) :]
        else:
            prompt = self.render(before, tools, generation=False)
            text = _after(prompt, rendered)
        end = self.template.closing
        return text.removesuffix(end) if end else text, opened and self._opens(prompt)

    # --- the proof ----------------------------------------------------------------------------------------------

    def _renders_tools(self) -> bool:
        try:
            return PROBE_NAME in self.template.render([_QUESTION], [PROBE])
        except Exception as error:
            raise UsageError(f"the chat template of {self.family} cannot render a tool: {error!r}") from error

    def _own_style(self, *, native: bool) -> str:
        """Return how the family writes tool calls."""
        if self._family and self._family.style:
            return self._family.style
        if self._family is None and not native:
            return TEXT_STYLE
        what = "it is in no known format" if self._family is None else f"nothing here reads {self.family}"
        text = self._try_call()
        raise self._refuse(f"{what}: it was rendered as {_shown(text)}" if text else what, native)

    def _try_call(self) -> str:
        """Return how the template renders a tool call, as far as that is possible; for an error."""
        call = {"id": "call_0001", "type": "function", "function": {"name": PROBE_NAME, "arguments": dict(_ARGUMENTS)}}
        said = {"role": "assistant", "content": "", "tool_calls": [call]}
        try:
            before = self.template.render([_QUESTION], [PROBE])
            text = self.template.render([_QUESTION, said], [PROBE], generation=False)
        except Exception:  # noqa: BLE001  the error is about something else
            return ""
        return _after(before, text)

    def _refuse(self, what: str, native: bool) -> UsageError:
        described = [name for name, form in FORMATS.items() if form.action]
        known = ", ".join(FORMATS if native else described)
        return UsageError(
            f"tool calls with the chat template of {self.family}: {what}. Name the format of the model's tool calls "
            f"({known}), as style= of TokenSampler or generation.tool_call_style of a training, or give the tokenizer "
            "another chat template"
        )

    def _find_shape(self, *, native: bool) -> Shape:
        """Return the first shape with which the template renders what is read back.

        Raises:
            UsageError: There is none.
        """
        first: Unproven | None = None
        for shape in _shapes(native=native):
            self.shape = shape
            try:
                self._prove()
            except Unproven as error:
                first = first or error
            else:
                return self._with_details(shape)
        raise self._refuse(f"style {self.style!r}: {first}", native) from first

    def _with_details(self, shape: Shape) -> Shape:
        """Return a proven shape with what the template does in addition."""
        found = shape
        for change in ({"later": True}, {"later": False}, {"later": False, "alternating": True}):
            self.shape = found = dataclasses.replace(shape, **change)  # type: ignore[arg-type]  # by their names
            if self._renders_later_system():
                break
        else:
            raise self._refuse(
                "a system message after the first message is neither rendered nor taken as a user's", True
            )
        self.shape = found
        return dataclasses.replace(found, parallel=self._renders_two_calls())

    def _prove(self) -> None:
        """Render calls and results, and read them back.

        Raises:
            Unproven: A part is missing or is read otherwise.
        """
        for reasoning, content in (("", ""), ("", "I look."), ("Hm.", "")):
            self._prove_call(_said(content, reasoning, _ARGUMENTS))
        self._prove_rounds()

    def _prove_call(self, message: JsonObject) -> None:
        text, opened = self._try_written([_SYSTEM, _QUESTION], message)
        found = read_message(text, [PROBE], self.style, opened=opened)
        calls = [(one["function"]["name"], arguments_of(one)) for one in found.get("tool_calls") or ()]
        if calls != [(PROBE_NAME, _ARGUMENTS)]:
            raise Unproven(f"a tool call was rendered as {_shown(text)} and read as {calls or 'no call'}")
        if PROBE_NAME in found["content"]:
            raise Unproven(f"a tool call was rendered as {_shown(text)}, and a part of it was read as text")

    def _prove_rounds(self) -> None:
        """Render two calls after one another: both look alike, and both results are there."""
        said = _said("I look.", "", _ARGUMENTS)
        before = [_SYSTEM, _QUESTION]
        first, _ = self._try_written(before, said)
        told = [*before, said, _result("A first result.")]
        second, _ = self._try_written(told, said)
        if first.strip() not in second:
            raise Unproven(f"a first tool call was rendered as {_shown(first)}, and the next one as {_shown(second)}")
        whole = self._try_render([*told, said, _result("A second result.")])
        places = [whole.find(part) for part in ("A rule.", "A question.", "A first result.", "A second result.")]
        if -1 in places or places != sorted(places):
            raise Unproven(f"a conversation with two results of tools was rendered as {_shown(whole[-SHOWN:])}")

    def _renders_later_system(self) -> bool:
        parts = ("A rule.", "A question.", "Yes.", "Another rule.", "Another question.")
        roles = ("system", "user", "assistant", "system", "user")
        try:
            text = self.render([{"role": role, "content": part} for role, part in zip(roles, parts, strict=True)])
        except Exception:  # noqa: BLE001  the template refuses it in its own words
            return False
        places = [text.find(part) for part in parts]
        return -1 not in places and places == sorted(places)

    def _renders_two_calls(self) -> bool:
        said = _said("", "", _ARGUMENTS, {"command": "pwd"})
        try:
            text, opened = self._written([_QUESTION], said, [PROBE])
            whole = self.render([_QUESTION, said, _result("One."), _result("Two.", 1)], [PROBE])
        except Exception:  # noqa: BLE001  the template refuses it in its own words
            return False
        found = read_message(text, [PROBE], self.style, opened=opened).get("tool_calls") or ()
        return [arguments_of(one) for one in found] == [_ARGUMENTS, {"command": "pwd"}] and "Two." in whole

    def _try_written(self, before: Sequence[JsonObject], message: JsonObject) -> tuple[str, bool]:
        try:
            return self._written(before, message, [PROBE])
        except Exception as error:
            raise Unproven(f"a tool call was not rendered: {error!r}") from error

    def _try_render(self, messages: Sequence[JsonObject]) -> str:
        try:
            return self.render(messages, [PROBE])
        except Exception as error:
            raise Unproven(f"the result of a tool was not rendered: {error!r}") from error


PROBE_NAME = "look_up"
PROBE: JsonObject = {
    "type": "function",
    "function": {
        "name": PROBE_NAME,
        "description": "Looks something up.",
        "parameters": {
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "What to look up."},
                "lines": {"type": "integer", "description": "Most lines."},
            },
            "required": ["command"],
        },
    },
}
"""A tool with which templates are proven."""

_ARGUMENTS: JsonObject = {"command": "grep -n 'a, b' \"x.py\" | head\nls <y>", "lines": 20}
_SYSTEM: JsonObject = {"role": "system", "content": "A rule."}
_QUESTION: JsonObject = {"role": "user", "content": "A question."}
_PLAIN = Family("unknown", (), TEXT_STYLE)
_SPECIAL = re.compile(r"<[|｜][^<>\n]{0,40}[|｜]?>")


def _said(content: str, reasoning: str, *arguments: JsonObject) -> JsonObject:
    calls = [tool_call(f"call{number:05}", PROBE_NAME, json.dumps(one)) for number, one in enumerate(arguments)]
    said: JsonObject = {"role": "assistant", "content": content, "tool_calls": calls}
    return {**said, "reasoning_content": reasoning} if reasoning else said


def _result(text: str, number: int = 0) -> JsonObject:
    return {"role": "tool", "tool_call_id": f"call{number:05}", "content": text}


def _shapes(*, native: bool) -> Iterator[Shape]:
    """Yield what a template may expect, the most usual first."""
    if native:
        yield from (Shape(), Shape(arguments="texts"))
        return
    for results in ("tool", "user"):
        for system, alternating in ((True, False), (True, True), (False, True)):
            yield Shape(native=False, results=results, system=system, alternating=alternating)


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


def _after(before: str, text: str) -> str:
    """Return a text after what it has in common with another one, which does not end in a tag."""
    same = next((index for index, (one, other) in enumerate(zip(before, text, strict=False)) if one != other), None)
    common = text[: min(len(before), len(text)) if same is None else same]
    tag = common.rfind("<")
    return text[tag if tag > common.rfind(">") else len(common) :]


def _merged(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """Return messages with neighbouring messages of users as one."""
    found: list[JsonObject] = []
    for message in messages:
        if found and message["role"] == "user" == found[-1]["role"]:
            found[-1] = {**message, "content": f"{found[-1]['content']}\n\n{message['content']}"}
        else:
            found.append(message)
    return found


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")
