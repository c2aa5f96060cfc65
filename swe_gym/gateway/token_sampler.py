"""A sampler of token ids, whose prompts are built from what it sampled."""

from __future__ import annotations

from collections.abc import Sequence

from ..actions import describe_tools
from ..errors import PolicyError, unknown_name
from ..rollout.tokens import ChatTemplate, Completion, Generator, same_text
from ..trajectories.trajectory import PolicyInfo, Usage
from ..types import JsonObject
from .anchors import ids_after
from .calls import Answer, Call, Finish, Refusal, Tokens
from .faults import refused
from .history import Node, Place
from .parsing import arguments_of
from .tool_calls import STYLES, read_message, specs_of, style_of

UNREADABLE = "the model's chat template cannot render these messages"
"""What is refused with a template's error: it is a program, and the agent writes its input."""


class TokenSampler:
    """Samples from a generator and keeps every token.

    If a call continues an answer, its prompt is the prompt of that answer, the sampled tokens, and what the chat
    template puts after them. Tool calls are read from the sampled text. Nothing that an agent sets changes the
    distribution: only `max_tokens`, `stop` and `tool_choice` "none" have an effect. Text after a stop string is sampled
    and not sent.

    Args:
        generator: Samples tokens; it may be shared.
        template: Chat template of the generator's model.
        model: Model name.
        temperature: Sampling temperature.
        max_tokens: Maximum tokens of one answer.
        max_context: Maximum tokens of a conversation.
        append_only: Never render earlier messages again, even if the template would rewrite them.
        style: How the model writes tool calls, one of `STYLES`. Empty: as the template teaches.

    Raises:
        UsageError: The style is unknown.
    """

    settings = frozenset({"stop", "tool_choice"})

    def __init__(
        self,
        generator: Generator,
        template: ChatTemplate,
        *,
        model: str = "model",
        temperature: float = 1.0,
        max_tokens: int = 4096,
        max_context: int = 32768,
        append_only: bool = False,
        style: str = "",
    ) -> None:
        if style and style not in STYLES:
            raise unknown_name("style of tool calls", style, STYLES)
        self.model = model
        self._generator, self._template = generator, template
        self._temperature, self._max_tokens, self._max_context = temperature, max_tokens, max_context
        self._append_only = append_only
        self._style = style or style_of(template.source)
        self._shows_tools = self._renders_tools()
        options = {"max_context": max_context, "append_only": append_only, "style": self._style}
        sampling = {"temperature": temperature, "max_tokens": max_tokens}
        self.info = PolicyInfo(name="agent", model=model, sampling=sampling, options=options)

    def _renders_tools(self) -> bool:
        question: list[JsonObject] = [{"role": "user", "content": "?"}]
        tool = {"name": "probe", "description": "", "parameters": {"type": "object", "properties": {}}}
        return "probe" in self._template.render(question, [{"type": "function", "function": tool}])

    def sample(self, call: Call, place: Place, *, seed: int | None) -> Answer:
        """See `Sampler`."""
        with refused(UNREADABLE):
            base, new = self._prompt(call, place)
        prompt = [*base, *new]
        room = min(call.max_tokens or self._max_tokens, self._max_tokens, self._max_context - len(prompt))
        if room < 1:
            raise PolicyError(f"{len(prompt)} tokens > {self._max_context} maximum", reason="context")
        completion = self._generator.generate(prompt, max_tokens=room, temperature=self._temperature, seed=seed)
        if len(completion.logprobs) != len(completion.token_ids) or not completion.token_ids:
            raise PolicyError("the sampler returned no tokens, or not one log-probability each", reason="bad_reply")
        return self._answer(call, Tokens(new, bool(base), completion, self._temperature), len(prompt))

    def _answer(self, call: Call, tokens: Tokens, length: int) -> Answer:
        completion = tokens.completion
        text = self._template.decode(_said(completion))
        tools = () if call.settings.get("tool_choice") == "none" else call.tools
        message = read_message(_stopped(text, call.settings.get("stop")), tools, self._style)
        finish: Finish = "tool_calls" if message.get("tool_calls") else completion.finish
        usage = Usage(prompt_tokens=length, completion_tokens=len(completion.token_ids), calls=1)
        return Answer(message=message, text=text, finish=finish, usage=usage, tokens=tokens)

    def count(self, call: Call) -> int:
        """Return the tokens of the rendered messages."""
        with refused(UNREADABLE):
            return len(self._template.encode(self._render(list(map(_plain, call.messages)), call.tools)))

    # --- prompts --------------------------------------------------------------------------------------------

    def _prompt(self, call: Call, place: Place) -> tuple[list[int], list[int]]:
        """Return the prompt in two parts: what was sampled and read up to the answer that it continues, and the rest.

        The first part is empty if the prompt does not begin with it.
        """
        rendered = self._render([*_shown(place.before), *_new(place)], call.tools)
        before = place.before
        if before is not None and before.answer.tokens is not None and before.place.tools == place.tools:
            base, end = ids_after(before), self._template.decode(_end(before.answer.tokens.completion))
            messages, tools = self._with_tools(_shown(before)[:-1], call.tools)
            delta = self._template.between(end, *_new(place), before=messages, tools=tools)
            new = self._template.encode(delta)
            if self._append_only or same_text(rendered, self._template.decode([*base, *new])):
                return base, new
        return [], self._template.encode(rendered)

    def _render(self, messages: Sequence[JsonObject], tools: Sequence[JsonObject]) -> str:
        shown, named = self._with_tools(messages, tools)
        return self._template.render(shown, named)

    def _with_tools(
        self, messages: Sequence[JsonObject], tools: Sequence[JsonObject]
    ) -> tuple[list[JsonObject], Sequence[JsonObject]]:
        """Return messages and tools for the template. Without a place for tools there, the first message holds them."""
        specs = specs_of(tools)
        if not tools or self._shows_tools:
            return list(messages), [spec.openai() for spec in specs]  # templates expect every field
        text = describe_tools(specs, STYLES[self._style])
        if messages and messages[0]["role"] == "system":
            return [{**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}, *messages[1:]], ()
        return [{"role": "system", "content": text}, *messages], ()


def _said(completion: Completion) -> Sequence[int]:
    """Return the tokens without the end token."""
    return completion.token_ids[:-1] if completion.finish == "stop" else completion.token_ids


def _end(completion: Completion) -> Sequence[int]:
    """Return the end token; nothing if the answer was cut off."""
    return completion.token_ids[len(_said(completion)) :]


def _stopped(text: str, stop: object) -> str:
    """Return a text up to the first stop string."""
    for one in [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []:
        if isinstance(one, str) and one:
            text = text.partition(one)[0]
    return text


def _shown(node: Node | None) -> list[JsonObject]:
    """Return a conversation as the template gets it: answers as the model wrote them."""
    line = [] if node is None else node.line
    return [message for one in line for message in (*_new(one.place), _raw(one))]


def _new(place: Place) -> list[JsonObject]:
    known = place.known
    return [_raw(known[index]) if index in known else _plain(message) for index, message in enumerate(place.new)]


def _raw(node: Node) -> JsonObject:
    return {"role": "assistant", "content": node.answer.text}


def _plain(message: JsonObject) -> JsonObject:
    """Return a message for a template: text, and arguments as objects.

    Raises:
        Refusal: It has other content, such as images.
    """
    content = message.get("content") or ""
    if not isinstance(content, str):
        raise Refusal(400, "only text is supported: the model reads no images or files")
    calls = [
        {**call, "function": {**call["function"], "arguments": arguments_of(call)}}
        for call in message.get("tool_calls") or ()
    ]
    return {**message, "content": content, **({"tool_calls": calls} if calls else {})}
