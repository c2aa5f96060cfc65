"""Proves that a chat template renders tool calls and their results, and that the calls are read back."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from typing import Protocol

from ..types import JsonObject
from .calls import tool_call
from .parsing import arguments_of

SHOWN = 300
"""Characters of a rendered message in errors."""


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


class Provable(Protocol):
    """What is proven: see `Renderer`."""

    shape: Shape

    def render(self, messages: Sequence[JsonObject], tools: Sequence[JsonObject] = ()) -> str:
        """Return a conversation as text."""
        ...

    def render_answer(self, before: Sequence[JsonObject], message: JsonObject) -> tuple[str, str]:
        """Return the text of an answer as the template renders it, and the end of its prompt."""
        ...

    def read_first(self, text: str, tools: Sequence[JsonObject], prompt: str) -> JsonObject:
        """Return the first message that a text may be."""
        ...


class Unproven(Exception):
    """A chat template does not do what a sampler needs; the message says what."""


def find_shape(renderer: Provable, *, native: bool) -> Shape:
    """Return the first shape with which a template renders what is read back.

    Args:
        renderer: The renderer; its `shape` is changed.
        native: Whether the template shows tools.

    Raises:
        Unproven: There is none.
    """
    first: Unproven | None = None
    for shape in _shapes(native=native):
        renderer.shape = shape
        try:
            _prove(renderer)
        except Unproven as error:
            first = first or error
        else:
            return _with_details(renderer, shape)
    raise first or Unproven("there is no shape to try")


def _with_details(renderer: Provable, shape: Shape) -> Shape:
    """Return a proven shape with what the template does in addition."""
    for later in (True, False):
        for alternating in sorted({shape.alternating, True}):
            renderer.shape = dataclasses.replace(shape, later=later, alternating=alternating)
            if _renders_agents_messages(renderer):
                return dataclasses.replace(renderer.shape, parallel=_renders_two_calls(renderer))
    raise Unproven("a system message after the first message is neither rendered nor taken as a user's")


def _prove(renderer: Provable) -> None:
    """Render calls and results, and read them back.

    Raises:
        Unproven: A part is missing or is read otherwise.
    """
    for reasoning, content in (("", ""), ("", "I look."), ("Hm.", "")):
        _prove_call(renderer, _said(content, reasoning, ARGUMENTS))
    _prove_text(renderer)
    _prove_rounds(renderer)


def _prove_text(renderer: Provable) -> None:
    """Render an answer without calls: its text is read as text. It has reasoning, unless the prompt ends reasoning."""
    said: JsonObject = {"role": "assistant", "content": "Yes."}
    for message in ({**said, "reasoning_content": "Hm."}, said):
        text, prompt = _render_answer(renderer, [_SYSTEM, QUESTION], message)
        if prompt:
            found = renderer.read_first(text, [PROBE], prompt)
            if "Yes." not in found["content"]:
                raise Unproven(f"an answer was rendered as {shown(text)}, and nothing of it was read as text")
            return


def _prove_call(renderer: Provable, message: JsonObject) -> None:
    text, prompt = _render_answer(renderer, [_SYSTEM, QUESTION], message)
    found = renderer.read_first(text, [PROBE], prompt)
    calls = [(one["function"]["name"], arguments_of(one)) for one in found.get("tool_calls") or ()]
    if calls != [(PROBE_NAME, ARGUMENTS)]:
        raise Unproven(f"a tool call was rendered as {shown(text)} and read as {calls or 'no call'}")
    if PROBE_NAME in found["content"]:
        raise Unproven(f"a tool call was rendered as {shown(text)}, and a part of it was read as text")


def _prove_rounds(renderer: Provable) -> None:
    """Render two calls after one another: both look alike, and both results are there."""
    said = _said("I look.", "", ARGUMENTS)
    before = [_SYSTEM, QUESTION]
    first, _ = _render_answer(renderer, before, said)
    told = [*before, said, _result("A first result.")]
    second, _ = _render_answer(renderer, told, said)
    if _from_content(first) not in _from_content(second):
        raise Unproven(f"a first tool call was rendered as {shown(first)}, and the next one as {shown(second)}")
    try:
        whole = renderer.render([*told, said, _result("A second result.")], [PROBE])
    except Exception as error:
        raise Unproven(f"the result of a tool was not rendered: {error!r}") from error
    if not _in_order(whole, "A rule.", "A question.", "A first result.", "A second result."):
        raise Unproven(f"a conversation with two results of tools was rendered as {shown(whole[-SHOWN:])}")


def _from_content(text: str) -> str:
    """Return a rendered call from its content or name on: what stands before may be the end of a prompt."""
    start = min(place for one in ("I look.", PROBE_NAME) if (place := text.find(one)) >= 0)
    return re.sub(rf"(?<={PROBE_NAME}:)\d+", "0", text[start:].strip())  # some ids count calls


def _renders_agents_messages(renderer: Provable) -> bool:
    """Return whether all messages are rendered in their order: a later system message, and two of the user."""
    parts = ("A rule.", "A question.", "Yes.", "Another rule.", "Another question.", "And one more.")
    roles = ("system", "user", "assistant", "system", "user", "user")
    try:
        text = renderer.render([{"role": role, "content": part} for role, part in zip(roles, parts, strict=True)])
    except Exception:  # noqa: BLE001  the template refuses it in its own words
        return False
    return _in_order(text, *parts)


def _renders_two_calls(renderer: Provable) -> bool:
    said = _said("", "", ARGUMENTS, {"command": "pwd"})
    try:
        text, prompt = renderer.render_answer([QUESTION], said)
        whole = renderer.render([QUESTION, said, _result("One."), _result("Two.", 1)], [PROBE])
    except Exception:  # noqa: BLE001  the template refuses it in its own words
        return False
    found = renderer.read_first(text, [PROBE], prompt).get("tool_calls") or ()
    return [arguments_of(one) for one in found] == [ARGUMENTS, {"command": "pwd"}] and _in_order(whole, "One.", "Two.")


def _render_answer(renderer: Provable, before: Sequence[JsonObject], message: JsonObject) -> tuple[str, str]:
    try:
        return renderer.render_answer(before, message)
    except Exception as error:
        raise Unproven(f"a tool call was not rendered: {error!r}") from error


def _in_order(text: str, *parts: str) -> bool:
    places = [text.find(part) for part in parts]
    return -1 not in places and places == sorted(places)


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

ARGUMENTS: JsonObject = {"command": "grep -n 'a, b' \"x.py\" | head\nls <y>", "lines": 20}
_SYSTEM: JsonObject = {"role": "system", "content": "A rule."}
QUESTION: JsonObject = {"role": "user", "content": "A question."}


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


def shown(text: str) -> str:
    """Return a text for an error."""
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")
