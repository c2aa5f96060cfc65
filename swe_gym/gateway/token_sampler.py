"""A sampler of token ids, whose prompts are built from what it sampled."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import PolicyError
from ..rollout.tokens import ChatTemplate, Completion, Generator, usage_of
from ..trajectories import PolicyInfo
from ..types import JsonObject
from .calls import WRITTEN_ID, Answer, Call, Finish, Tokens, keep_written_ids
from .history import AnsweredCall, CallPlace
from .record import ids_after
from .rendering import Renderer
from .sampler import refuse_errors

UNREADABLE = "the model's chat template cannot render these messages"
"""What is refused with a template's error: it is a program, and the agent writes its input."""

PROMPT_END = 64
"""Tokens at the end of a prompt that tell how the answer begins, for example with reasoning."""


class TokenSampler:
    """Samples from a generator and keeps every token.

    Prompts are what the chat template renders for the messages, as a server would. Where the rendered text begins with
    what was read and sampled before, the sampled tokens are kept. Reasoning and tool calls are read from the sampled
    text. Nothing that an agent sets changes the distribution: only `max_tokens`, `stop` and `tool_choice` "none" have
    an effect. Text after a stop string is sampled and not sent.

    Args:
        generator: Samples tokens; it may be shared.
        template: Chat template of the generator's model, or a renderer of it, which has proven itself already.
        model: Model name.
        temperature: Sampling temperature.
        max_tokens: Maximum tokens of one answer.
        max_context: Maximum tokens of a conversation.
        append_only: Never render earlier messages again, even if the template would rewrite them.
        style: How the model writes tool calls; see `Renderer`. Empty: as its family does.

    Raises:
        UsageError: Tool calls cannot be rendered and read with the template; see `Renderer`.
    """

    settings = frozenset({"stop", "tool_choice=none", "tool_choice=auto"})

    def __init__(
        self,
        generator: Generator,
        template: ChatTemplate | Renderer,
        *,
        model: str = "model",
        temperature: float = 1.0,
        max_tokens: int = 4096,
        max_context: int = 32768,
        append_only: bool = False,
        style: str = "",
    ) -> None:
        self.model = model
        self._generator = generator
        self._renderer = template if isinstance(template, Renderer) else Renderer(template, style)
        self._template = self._renderer.template
        self._temperature, self._max_tokens, self._max_context = temperature, max_tokens, max_context
        self._append_only = append_only
        options = {"max_context": max_context, "append_only": append_only, **self._renderer.facts}
        sampling = {"temperature": temperature, "max_tokens": max_tokens}
        self.info = PolicyInfo(name="agent", model=model, sampling=sampling, options=options)

    def sample(self, call: Call, place: CallPlace, *, seed: int | None) -> Answer:
        """See `Sampler`."""
        with refuse_errors(UNREADABLE):
            base, new = self._prompt(call, place)
        prompt = [*base, *new]
        room = min(call.max_tokens or self._max_tokens, self._max_tokens, self._max_context - len(prompt))
        if room < 1:
            raise PolicyError(f"{len(prompt)} tokens > {self._max_context} maximum", reason="context")
        completion = self._generator.generate(prompt, max_tokens=room, temperature=self._temperature, seed=seed)
        if len(completion.logprobs) != len(completion.token_ids) or not completion.token_ids:
            raise PolicyError("the sampler returned no tokens, or not one log-probability each", reason="bad_reply")
        return self._answer(call, Tokens(new, bool(base), completion, self._temperature), prompt)

    def _answer(self, call: Call, tokens: Tokens, prompt: Sequence[int]) -> Answer:
        completion = tokens.completion
        text = self._template.decode(_drop_end(completion))
        tools = () if call.settings.get("tool_choice") == "none" else call.tools
        said = _cut_at_stop(text, call.settings.get("stop"))
        before = self._template.decode(prompt[-PROMPT_END:])
        cut = completion.finish == "length" or said != text
        message, same = self._renderer.read(said, tools, prompt=before, cut=cut)
        if calls := message.get("tool_calls"):
            written = self._renderer.writes_ids or any(WRITTEN_ID.fullmatch(one["id"]) for one in calls)
            kept = keep_written_ids(calls, call.messages) if written else calls
            message, same = {**message, "tool_calls": kept}, same and kept == calls
        finish: Finish = "tool_calls" if message.get("tool_calls") else completion.finish
        usage = usage_of(prompt, completion)
        return Answer(message=message, text=text, finish=finish, usage=usage, tokens=tokens, same=same and said == text)

    def count(self, call: Call) -> int:
        """Return the tokens of the rendered messages."""
        with refuse_errors(UNREADABLE):
            return len(self._template.encode(self._renderer.render(call.messages, call.tools)))

    # --- prompts --------------------------------------------------------------------------------------------

    def _prompt(self, call: Call, place: CallPlace) -> tuple[list[int], list[int]]:
        """Return the prompt in two parts: what was sampled and read up to the answer that it continues, and the rest.

        The first part is empty if the rendered conversation does not begin with it.
        """
        before = place.before
        history, new = self._make_messages(before), self._new(place)
        rendered = self._renderer.render([*history, *new], call.tools)
        if before is not None and before.answer.tokens is not None and before.place.tools == place.tools:
            base = ids_after(before)
            read = self._template.decode(base)
            if rendered.startswith(read):
                return base, self._template.encode(rendered[len(read) :])
            if self._append_only:
                end = self._template.decode(_end(before.answer.tokens.completion))
                return base, self._template.encode(self._renderer.between(history, new, call.tools, end=end))
        return [], self._template.encode(rendered)

    def _make_messages(self, node: AnsweredCall | None) -> list[JsonObject]:
        """Return a conversation as messages for the renderer."""
        line = [] if node is None else node.line
        return [message for one in line for message in (*self._new(one.place), self._renderer.answer(one.answer))]

    def _new(self, place: CallPlace) -> list[JsonObject]:
        known = place.known
        return [
            self._renderer.answer(known[index].answer) if index in known else message
            for index, message in enumerate(place.new)
        ]


def _drop_end(completion: Completion) -> Sequence[int]:
    """Return the tokens without the end token."""
    return completion.token_ids[:-1] if completion.finish == "stop" else completion.token_ids


def _end(completion: Completion) -> Sequence[int]:
    """Return the end token; nothing if the answer was cut off."""
    return completion.token_ids[len(_drop_end(completion)) :]


def _cut_at_stop(text: str, stop: object) -> str:
    """Return a text up to the first stop string."""
    for one in [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []:
        if isinstance(one, str) and one:
            text = text.partition(one)[0]
    return text
