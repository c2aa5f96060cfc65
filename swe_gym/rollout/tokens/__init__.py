"""Conversations as token ids, so that training uses exactly the sampled tokens.

The next prompt is the last prompt, the sampler's completion, and the text that the chat template puts between an answer
and the next message (the delta). Sampled tokens are never encoded again. If a template rewrites earlier messages, for
example drops earlier thoughts, a new segment starts with the rendered text as its prompt; the tokens sampled before
stay in their own segment. An append-only conversation does not follow such templates: it is always one segment.
"""

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import gymnasium

from ...envs import ToolEnv
from ...errors import PolicyError, UsageError
from ...spaces import Info
from ...trajectories import PolicyInfo, Segment, Usage
from ...types import Json, JsonObject, ToolSpec
from ..policies import PolicyReport, message_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Completion(NamedTuple):
    """A sampled answer.

    Attributes:
        token_ids: Sampled token ids, the end token included.
        logprobs: Log-probability of each token under the sampling distribution.
        finish: "stop" if the model ended the answer, "length" if the limit did.
        version: Version of the weights.
        cached: Number of prompt tokens that the server had in its cache; 0 if it does not tell.
    """

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    finish: Literal["stop", "length"]
    version: int
    cached: int = 0


def as_sampled(ids: Sequence[int], end: int) -> Completion:
    """Return the answer of a model that was sure of these tokens and then ended."""
    return Completion([*ids, end], [0.0] * (len(ids) + 1), "stop", 0)


def usage_of(prompt: Sequence[int], completion: Completion) -> Usage:
    """Return the tokens of a prompt and its answer."""
    return Usage(
        prompt_tokens=len(prompt),
        cached_tokens=min(completion.cached, len(prompt)),
        completion_tokens=len(completion.token_ids),
        calls=1,
    )


def read_completion(reply: Json, version: int) -> Completion:
    """Parse an answer of vLLM's `/v1/completions` or `/inference/v1/generate`.

    Raises:
        LookupError, TypeError: It is in another form.
        PolicyError: The server aborted the answer.
    """
    choice = reply["choices"][0]
    finish = choice["finish_reason"]
    if finish not in ("stop", "length"):
        raise PolicyError(f"the server aborted an answer: finish_reason {finish!r}", reason="bad_reply", retryable=True)
    said = choice["logprobs"]
    logprobs = [entry["logprob"] for entry in said["content"]] if "content" in said else said["token_logprobs"]
    return Completion(choice["token_ids"], logprobs, finish, version, _cached_tokens(reply))


def _cached_tokens(reply: JsonObject) -> int:
    try:
        cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
    except (LookupError, TypeError):  # a server need not tell
        return 0
    return cached if isinstance(cached, int) else 0


class Generator(Protocol):
    """Samples tokens. Called from many threads at once."""

    def generate(self, prompt: Sequence[int], *, max_tokens: int, temperature: float, seed: int | None) -> Completion:
        """Continue a prompt.

        Args:
            prompt: Token ids.
            max_tokens: Maximum number of new tokens.
            temperature: Sampling temperature, without other transformations; 0 is greedy.
            seed: Sampling seed.

        Raises:
            PolicyError: The sampler did not answer.
        """
        ...


class ChatTemplate:
    """The chat template of a tokenizer.

    Args:
        tokenizer: A tokenizer of `transformers`.

    Raises:
        UsageError: It has no chat template, or the template omits the assistant's messages.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        if not tokenizer.chat_template:
            raise UsageError("the tokenizer has no chat template: use an instruct model, or set one")
        self._tokenizer = self.tokenizer = tokenizer
        self._sentinel = f"\u2402{uuid.uuid4().hex}\u2403"  # stands for an answer; in no message
        thinking = {**_assistant("!"), "reasoning_content": self._sentinel}
        try:
            text = self.render([_user("?"), _assistant(self._sentinel), _user("!")])
            self._takes_thoughts = self._sentinel in self.render([_user("?"), thinking])
        except Exception as error:  # a program of the model's authors
            raise UsageError(f"the chat template cannot render messages of text: {error!r}") from error
        if self._sentinel not in text:
            raise UsageError("the chat template omits the assistant's messages")

    @property
    def source(self) -> str:
        """The template itself, as Jinja."""
        return str(self._tokenizer.chat_template)

    @property
    def closing(self) -> str:
        """The text with which the template ends an answer."""
        text = self.render([_user("?"), _assistant(self._sentinel)], generation=False)
        return text.partition(self._sentinel)[2]

    def render(
        self, messages: Sequence[JsonObject], tools: Sequence[JsonObject] = (), *, generation: bool = True
    ) -> str:
        """Return the conversation as text.

        Args:
            messages: The messages.
            tools: Tools, as in OpenAI's chat API.
            generation: Whether the prompt for the next answer follows.
        """
        named = {"tools": list(tools)} if tools else {}
        text: str = self._tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=generation, **named
        )
        return text

    def between(
        self,
        answer: str,
        *messages: JsonObject,
        before: Sequence[JsonObject] = ({"role": "user", "content": "?"},),
        tools: Sequence[JsonObject] = (),
    ) -> str:
        """Return the text between the end of an answer and the start of the next one.

        Args:
            answer: Text of the end token of the answer, which is not repeated; empty if there was none.
            messages: The messages between the two answers.
            before: The messages before the first answer.
            tools: Tools, as in OpenAI's chat API.
        """
        text = self.render([*before, _assistant(self._sentinel), *messages], tools)
        return text[text.index(self._sentinel) + len(self._sentinel) :].removeprefix(answer)

    def answer(self, text: str) -> JsonObject:
        """Return a sampled answer as the message that the template renders as this text, if there is one.

        Some templates take thoughts only from `reasoning_content`: as content, they would be rendered twice or not at
        all.

        Args:
            text: The answer, without its end token.
        """
        plain = _assistant(text)
        if "</think>" not in text or not self._takes_thoughts:
            return plain
        thought, _, said = text.partition("</think>")
        thought = thought.removeprefix("<think>")
        divided = [
            {**_assistant(content), "reasoning_content": reasoning}
            for content in dict.fromkeys([said.strip(), said.lstrip(), said])
            for reasoning in dict.fromkeys([thought.strip(), thought])
        ]
        question = [_user("?")]
        wanted = self.render(question) + text
        return next(
            (one for one in (plain, *divided) if self.render([*question, one], generation=False).startswith(wanted)),
            divided[0],
        )

    @property
    def parses(self) -> bool:
        """Whether the tokenizer has a response template of `transformers`, which reads answers."""
        return bool(getattr(self._tokenizer, "response_template", None))

    def parse(self, text: str, prompt: str, tools: Sequence[JsonObject]) -> JsonObject:
        """Return the message that the tokenizer's response template reads in an answer.

        Args:
            text: The answer.
            prompt: The end of its prompt, from the start of the answer's markup.
            tools: Tools, as in OpenAI's chat API.

        Raises:
            Exception: The answer is not in the expected form.
        """
        found: JsonObject = self._tokenizer.parse_response(text, prefix=prompt, tools=list(tools) or None)
        return found

    def encode(self, text: str) -> list[int]:
        """Return token ids. Special tokens are recognized by name; none is added."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text, special tokens by name."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text


class TokenConversation:
    """One episode's conversation as tokens.

    Args:
        template: Chat template of the sampling model.
        messages: Messages before the first answer.
        append_only: Never render earlier messages again: one segment, even if the template would rewrite history.
        tokens: Token ids of `messages` if the last one is an earlier answer, as it was sampled: `tell` comes next.
    """

    def __init__(
        self,
        template: ChatTemplate,
        messages: Sequence[JsonObject],
        *,
        append_only: bool = False,
        tokens: Sequence[int] = (),
    ) -> None:
        self._template = template
        self._append_only = append_only
        self._messages = list(messages)
        self._done: list[Segment] = []
        self._begin(list(tokens) or template.encode(template.render(self._messages)))
        end = template.decode(tokens[-1:])  # the text of the token that ended the last answer
        self._end = end if end and template.closing.startswith(end) else ""

    def _begin(self, prompt: list[int]) -> None:
        self._ids = prompt
        self._mask = [0] * len(prompt)
        self._logprobs = [0.0] * len(prompt)
        self._versions = [-1] * len(prompt)
        self._temperature = 1.0

    @property
    def prompt(self) -> list[int]:
        """The token ids of the next prompt."""
        return list(self._ids)

    @property
    def messages(self) -> tuple[JsonObject, ...]:
        """The messages of the conversation."""
        return tuple(self._messages)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments so far. Segments without sampled tokens are omitted."""
        return (*self._done, self._segment()) if any(self._mask) else tuple(self._done)

    def _segment(self) -> Segment:
        end = max(index for index, one in enumerate(self._mask) if one) + 1  # nothing after it was sampled
        return Segment(
            token_ids=tuple(self._ids[:end]),
            loss_mask=tuple(self._mask[:end]),
            logprobs=tuple(self._logprobs[:end]),
            versions=tuple(self._versions[:end]),
            temperature=self._temperature,
        )

    def answer(self, completion: Completion, temperature: float) -> str:
        """Add a sampled answer.

        Returns:
            Its text, without the end token.

        Raises:
            PolicyError: The numbers of tokens and log-probabilities differ.
        """
        ids = list(completion.token_ids)
        if len(completion.logprobs) != len(ids):
            counts = f"{len(ids)} tokens and {len(completion.logprobs)} log-probabilities"
            raise PolicyError(f"the sampler returned {counts}", reason="bad_reply")
        self._ids += ids
        self._mask += [1] * len(ids)
        self._logprobs += completion.logprobs
        self._versions += [completion.version] * len(ids)
        self._temperature = temperature
        said = ids[:-1] if completion.finish == "stop" else ids
        self._end = self._template.decode(ids[len(said) :])
        text = self._template.decode(said)
        self._messages.append(self._template.answer(text))
        return text

    def tell(self, message: JsonObject) -> None:
        """Add a message of the environment. Tokens that were not sampled are masked."""
        delta = self._template.encode(self._template.between(self._end, message))
        self._messages.append(message)
        if not self._append_only:
            rendered = self._template.render(self._messages)
            if not same_text(rendered, self._template.decode(self._ids + delta)):
                self._done = list(self.segments)
                self._begin(self._template.encode(rendered))
                return
        self._ids += delta
        self._mask += [0] * len(delta)
        self._logprobs += [0.0] * len(delta)
        self._versions += [-1] * len(delta)


def same_text(rendered: str, grown: str) -> bool:
    """Return whether two texts are equal up to white space, which many templates trim."""
    return "".join(rendered.split()) == "".join(grown.split())


class TokenPolicy:
    """A policy that samples from a generator and keeps the token ids.

    Args:
        env: The environment whose tools the system prompt names.
        generator: Samples tokens; shared by all episodes.
        template: Chat template of the generator's model.
        system: System prompt. Empty: a short list of the tools.
        temperature: Sampling temperature.
        max_tokens: Maximum tokens of one answer.
        max_context: Maximum tokens of the conversation. If it is full, the episode ends and is graded.
        seed: Sampling seed; the turn number is added.
        model: Model name in the record.
        append_only: Keep the whole conversation in one segment: the model reads its earlier answers as it sampled them,
            even if the template would rewrite them, for example drop their thoughts.
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
        append_only: bool = False,
    ) -> None:
        if not isinstance(env.unwrapped, ToolEnv):
            raise UsageError(f"the environment must be a SweEnv, not a {type(env.unwrapped).__name__}")
        self._env: ToolEnv = env.unwrapped
        self._generator = generator
        self._template = template
        self._system = system or short_prompt(env.unwrapped.tools)
        self._temperature, self._max_tokens, self._max_context = temperature, max_tokens, max_context
        self._seed = seed
        self._append_only = append_only
        self._info = PolicyInfo(
            name="tokens",
            model=model,
            sampling={"temperature": temperature, "max_tokens": max_tokens, "seed": seed},
            options={"max_context": max_context, "append_only": append_only},
        )
        self._conversation: TokenConversation | None = None
        self._usage = Usage()
        self._turn = 0
        self._earlier: list[JsonObject] = []

    def reset(self, info: Info) -> None:  # noqa: ARG002  the same for every task
        """Start a conversation."""
        self._conversation = None
        self._turn = 0
        self._earlier = [_system(self._system)]

    def resume(self, turns: Sequence[tuple[str, str]], tokens: Sequence[int] = ()) -> None:
        """Take over the turns before a branch. Their tokens have mask 0."""
        for observation, action in turns:
            said = message_of(action, self._env, native=False, call_id="")["content"]
            self._earlier += [_user(observation), self._template.answer(said)]
        self._turn = len(turns)
        if tokens:
            self._conversation = TokenConversation(
                self._template, self._earlier, append_only=self._append_only, tokens=tokens
            )

    def act(self, observation: str) -> str:
        """Sample the next answer.

        Raises:
            PolicyError: The generator failed, or the conversation is full (reason "context").
        """
        self._usage = Usage()
        conversation = self._hear(observation)
        prompt = conversation.prompt
        room = min(self._max_tokens, self._max_context - len(prompt))
        if room < 1:
            raise PolicyError(
                f"the conversation has {len(prompt)} tokens; max_context is {self._max_context}", reason="context"
            )
        seed = None if self._seed is None else self._seed + self._turn
        completion = self._generator.generate(prompt, max_tokens=room, temperature=self._temperature, seed=seed)
        self._turn += 1
        self._usage = usage_of(prompt, completion)
        return conversation.answer(completion, self._temperature)

    def _hear(self, observation: str) -> TokenConversation:
        if self._conversation is None:
            self._conversation = TokenConversation(
                self._template, [*self._earlier, _user(observation)], append_only=self._append_only
            )
        else:
            self._conversation.tell(_user(observation))
        return self._conversation

    def report(self) -> PolicyReport:
        """Return the usage of the last answer, and every token so far."""
        if self._conversation is None:
            return PolicyReport(policy=self._info)
        return PolicyReport(
            policy=self._info,
            usage=self._usage,
            messages=self._conversation.messages,
            segments=self._conversation.segments,
        )


def short_prompt(tools: Sequence[ToolSpec]) -> str:
    """Return a short system prompt: the tools and how to call them."""
    lines = [f"- {spec.name}({', '.join(spec.parameters.get('properties', {}))})" for spec in tools]
    head = 'Solve the task with one tool call, in JSON: {"name": TOOL, "arguments": {ARGUMENTS}}. The tools:'
    return "\n".join([head, *lines])


def _system(text: str) -> JsonObject:
    return {"role": "system", "content": text}


def _user(text: str) -> JsonObject:
    return {"role": "user", "content": text}


def _assistant(text: str) -> JsonObject:
    return {"role": "assistant", "content": text}
