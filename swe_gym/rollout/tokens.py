"""Episodes driven by token ids, so that what is trained on is exactly what was sampled.

A conversation grows by concatenation: the next prompt is the last prompt, the sampler's own completion, and what the
chat template puts between an answer and the next question (the delta). Nothing that was sampled is ever encoded anew.
Where a template rewrites what was said before (one that drops earlier thoughts, say), the rendered conversation is no
longer an extension of the tokens at hand: a new segment begins, with the rendered text as its prompt, and what was
sampled before stays in its own segment, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

import gymnasium

from ..envs.swe_env import SweEnv
from ..errors import PolicyError, UsageError
from ..trajectories.trajectory import PolicyInfo, Segment, Usage
from ..types import ToolSpec
from .policy import PolicyReport

_SENTINEL = "\u2402answer\u2403"
"""Stands for an answer while a template is asked what it puts behind one."""


class Completion(NamedTuple):
    """What a sampler gives for one prompt.

    Attributes:
        token_ids: As sampled, the token that ended the answer included.
        logprobs: Of each, under the distribution that it was drawn from.
        finish: "stop" where the model ended the answer, "length" where the limit did.
        version: Of the weights.
    """

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    finish: Literal["stop", "length"]
    version: int


class Generator(Protocol):
    """Samples tokens. Called from many threads at once."""

    def generate(self, prompt: Sequence[int], *, max_tokens: int, temperature: float, seed: int | None) -> Completion:
        """Continue a prompt.

        Args:
            prompt: Token ids.
            max_tokens: At most so many new ones.
            temperature: Of the distribution, with nothing else done to it; 0 takes the likeliest token.
            seed: Of the draw.

        Raises:
            PolicyError: No answer came.
        """
        ...


class ChatTemplate:
    """What a tokenizer's chat template makes of messages.

    Args:
        tokenizer: Of `transformers`, with a chat template.

    Raises:
        UsageError: It has none, or the template hides what the assistant says.
    """

    def __init__(self, tokenizer: Any) -> None:
        if not tokenizer.chat_template:
            raise UsageError("the tokenizer has no chat template: take an instruct model, or set one")
        self._tokenizer = tokenizer
        if _SENTINEL not in self.render([_user("?"), _assistant(_SENTINEL), _user("!")]):
            raise UsageError("the chat template does not show what the assistant said")

    def render(self, messages: Sequence[dict[str, Any]]) -> str:
        """The conversation as text, up to where the assistant speaks next."""
        text: str = self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        return text

    def between(self, answer: str, message: dict[str, Any]) -> str:
        """What stands between the end of an answer and the next one, where `message` comes between.

        Args:
            answer: The text of the token that ended the answer; empty where none did. It is not repeated.
            message: What the assistant is told.
        """
        text = self.render([_user("?"), _assistant(_SENTINEL), message])
        return text[text.index(_SENTINEL) + len(_SENTINEL) :].removeprefix(answer)

    def encode(self, text: str) -> list[int]:
        """Token ids, special tokens by their names, nothing added."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text, special tokens by their names."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text


class Conversation:
    """One episode's conversation as tokens.

    Args:
        template: Of the model that samples.
        messages: What stands before its first answer.
    """

    def __init__(self, template: ChatTemplate, messages: Sequence[dict[str, Any]]) -> None:
        self._template = template
        self._messages = list(messages)
        self._done: list[Segment] = []
        self._begin(template.encode(template.render(self._messages)))
        self._end = ""  # the text of the token that ended the last answer

    def _begin(self, prompt: list[int]) -> None:
        self._ids = prompt
        self._mask = [0] * len(prompt)
        self._logprobs = [0.0] * len(prompt)
        self._versions = [-1] * len(prompt)
        self._temperature = 1.0

    @property
    def prompt(self) -> list[int]:
        """The tokens at hand."""
        return list(self._ids)

    @property
    def messages(self) -> tuple[dict[str, Any], ...]:
        """The same as messages."""
        return tuple(self._messages)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """What was sampled so far, and what it was sampled after; a segment without a sampled token is none."""
        return (*self._done, self._segment()) if any(self._mask) else tuple(self._done)

    def _segment(self) -> Segment:
        end = max(index for index, one in enumerate(self._mask) if one) + 1  # what follows teaches nothing
        return Segment(
            token_ids=tuple(self._ids[:end]),
            loss_mask=tuple(self._mask[:end]),
            logprobs=tuple(self._logprobs[:end]),
            versions=tuple(self._versions[:end]),
            temperature=self._temperature,
        )

    def answer(self, completion: Completion, temperature: float) -> str:
        """Add what was sampled.

        Returns:
            Its text, without the token that ended it.
        """
        ids = list(completion.token_ids)
        self._ids += ids
        self._mask += [1] * len(ids)
        self._logprobs += completion.logprobs
        self._versions += [completion.version] * len(ids)
        self._temperature = temperature
        said = ids[:-1] if completion.finish == "stop" else ids
        self._end = self._template.decode(ids[len(said) :])
        text = self._template.decode(said)
        self._messages.append(_assistant(text))
        return text

    def tell(self, message: dict[str, Any]) -> None:
        """Add what the environment says. Tokens that the sampler did not emit, an end it was denied too, are masked."""
        delta = self._template.encode(self._template.between(self._end, message))
        self._messages.append(message)
        rendered = self._template.render(self._messages)
        if _same(rendered, self._template.decode(self._ids + delta)):
            self._ids += delta
            self._mask += [0] * len(delta)
            self._logprobs += [0.0] * len(delta)
            self._versions += [-1] * len(delta)
        else:
            self._done = list(self.segments)
            self._begin(self._template.encode(rendered))


def _same(rendered: str, grown: str) -> bool:
    """Whether a template would show the conversation as it grew. Many trim blanks, and that rewrites nothing."""
    return "".join(rendered.split()) == "".join(grown.split())


class TokenPolicy:
    """Plays by token ids, and keeps them.

    Args:
        env: Whose tools it is told of.
        generator: What samples; shared by all episodes.
        template: Of the generator's model.
        system: What the model is told first; empty names the tools in a few lines.
        temperature: Of sampling.
        max_tokens: Of one answer.
        max_context: Of the whole conversation. Where it is full, the episode ends and the work is graded.
        seed: Of the draws; the number of the turn is added.
        model: The model's name, for the record.
    """

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        generator: Generator,
        template: ChatTemplate,
        *,
        system: str = "",
        temperature: float = 1.0,
        max_tokens: int = 512,
        max_context: int = 8192,
        seed: int | None = None,
        model: str = "",
    ) -> None:
        if not isinstance(env.unwrapped, SweEnv):
            raise UsageError(f"this policy plays SweEnv, not {type(env.unwrapped).__name__}")
        self._generator = generator
        self._template = template
        self._system = system or short_prompt(env.unwrapped.tools)
        self._temperature, self._max_tokens, self._max_context = temperature, max_tokens, max_context
        self._seed = seed
        self._info = PolicyInfo(
            name="tokens",
            model=model,
            sampling={"temperature": temperature, "max_tokens": max_tokens, "seed": seed},
            options={"max_context": max_context},
        )
        self._conversation: Conversation | None = None
        self._usage = Usage()
        self._turn = 0

    def reset(self, info: dict[str, Any]) -> None:  # noqa: ARG002  every task begins the same way
        """Begin a conversation."""
        self._conversation = None
        self._turn = 0

    def act(self, observation: str) -> str:
        """Sample the next answer.

        Raises:
            PolicyError: The generator failed, or, with the reason "context", the conversation is full.
        """
        self._usage = Usage()
        conversation = self._hear(observation)
        prompt = conversation.prompt
        room = min(self._max_tokens, self._max_context - len(prompt))
        if room < 1:
            raise PolicyError(
                f"the conversation has {len(prompt)} tokens, of {self._max_context} allowed", reason="context"
            )
        seed = None if self._seed is None else self._seed + self._turn
        completion = self._generator.generate(prompt, max_tokens=room, temperature=self._temperature, seed=seed)
        self._turn += 1
        self._usage = Usage(prompt_tokens=len(prompt), completion_tokens=len(completion.token_ids), calls=1)
        return conversation.answer(completion, self._temperature)

    def _hear(self, observation: str) -> Conversation:
        if self._conversation is None:
            self._conversation = Conversation(self._template, [_system(self._system), _user(observation)])
        else:
            self._conversation.tell(_user(observation))
        return self._conversation

    def report(self) -> PolicyReport:
        """What the last answer used, and every token so far."""
        if self._conversation is None:
            return PolicyReport(policy=self._info)
        return PolicyReport(
            policy=self._info,
            usage=self._usage,
            messages=self._conversation.messages,
            segments=self._conversation.segments,
        )


def short_prompt(tools: Sequence[ToolSpec]) -> str:
    """The tools and how to call them in as few tokens as a small model can do with."""
    lines = [f"- {spec.name}({', '.join(spec.parameters.get('properties', {}))})" for spec in tools]
    head = 'Solve the task with one tool call, in JSON: {"name": TOOL, "arguments": {ARGUMENTS}}. The tools:'
    return "\n".join([head, *lines])


def _system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}
