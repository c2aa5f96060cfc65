"""The policy that asks a language model, on any server that speaks OpenAI's chat protocol."""

from __future__ import annotations

import json
import os
from typing import Any, Literal

import gymnasium
from pydantic import Field, PrivateAttr, SecretStr

from ...actions import describe_tools
from ...envs.swe_env import SweEnv
from ...errors import UsageError
from ...trajectories.trajectory import PolicyInfo, Usage
from ...types import Frozen
from ..policy import PolicyReport
from .calls import swe_env
from .chat_client import Answer, ChatClient, ContextExceeded
from .history import History
from .prompts import system_prompt

FULL = 0.95
"""Part of the room for the prompt that may be used; what a text's tokens will be is only estimated."""

SHRUNK = 0.6
"""Part of it that is used after something was left out: not every turn shall rewrite what the server has cached."""

REPLY_ROOM = 2048
"""Tokens kept free for the answer where `max_tokens` says nothing; at most a quarter of the context."""

MAX_SEED = 1 << 31
"""Seeds are less: not every server takes more."""

TOKENS_PER_CHARACTER = 0.3
"""What is taken for true before the first answer has said how many tokens the prompt had."""


class Prices(Frozen):
    """US dollars for a million tokens.

    Attributes:
        input: Read.
        cached: Read from the server's cache; None is the price of `input`.
        output: Written.
    """

    input: float = Field(default=0.0, ge=0)
    cached: float | None = Field(default=None, ge=0)
    output: float = Field(default=0.0, ge=0)

    def cost(self, usage: Usage) -> float:
        """What the tokens cost."""
        cached = self.input if self.cached is None else self.cached
        read = (usage.prompt_tokens - usage.cached_tokens) * self.input + usage.cached_tokens * cached
        return (read + usage.completion_tokens * self.output) / 1e6


class LLMPolicies(Frozen):
    """A model on a server, and how it is asked. Called with an environment, it gives the policy of one episode.

    Attributes:
        model: Its name on the server.
        base_url: Such as "http://localhost:8000/v1"; None is the variable OPENAI_BASE_URL, or else OpenAI.
        api_key: None is the variable that `api_key_variable` names. A server of one's own often needs none.
        api_key_variable: Where the key stands.
        calls: "native" gives the tools to the server, and the model calls them through it. "text" teaches them in
            the system prompt, in the environment's action format. None is native where that format is "auto" or
            "openai", else text.
        system: The system prompt, in place of the one for the preset of tools. In text mode the tools are added.
        temperature: None is the server's default, as for all of these.
        max_tokens: Of one answer.
        seed: Of the sampling. It is added to the episode's seed, and grows by one each turn. None sends none.
        stop: Texts at which an answer ends.
        request: More fields of the request, as in `{"top_k": 20, "chat_template_kwargs": {...}}`.
        context: Tokens that the model can take, prompt and answer; None learns it when the server says so.
        timeout: Seconds that the server may be silent in one try.
        deadline: Seconds for an answer with all its tries.
        retries: How often a request is tried again; see `ChatClient`.
        prices: What tokens cost.
    """

    model: str
    base_url: str | None = None
    api_key: SecretStr | None = None
    api_key_variable: str = "OPENAI_API_KEY"
    calls: Literal["native", "text"] | None = None
    system: str | None = None
    temperature: float | None = Field(default=None, ge=0)
    max_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    request: dict[str, Any] = {}
    context: int | None = Field(default=None, ge=256)
    timeout: float = Field(default=300.0, gt=0)
    deadline: float = Field(default=900.0, gt=0)
    retries: int = Field(default=6, ge=0)
    prices: Prices = Prices()
    _client: ChatClient = PrivateAttr()

    def model_post_init(self, _: Any, /) -> None:
        """Open the connection; nothing is sent yet."""
        if self.base_url is not None and not self.base_url.startswith(("http://", "https://")):
            raise UsageError(f"base_url {self.base_url!r} is no address such as http://localhost:8000/v1")
        if self.context is not None and self.max_tokens is not None and self.max_tokens >= self.context:
            raise UsageError(f"max_tokens={self.max_tokens} leaves nothing of context={self.context} for the prompt")
        self._client = ChatClient(
            self.base_url, self._key(), timeout=self.timeout, deadline=self.deadline, retries=self.retries
        )

    def __call__(self, env: gymnasium.Env[str, str], *, seed: int | None = None) -> LLMPolicy:
        """The policy of one episode."""
        return LLMPolicy(env, self, self._client, seed)

    def close(self) -> None:
        """Close the connection: policies that wait for an answer raise `PolicyError`."""
        self._client.close()

    def _key(self) -> str:
        key = self.api_key.get_secret_value() if self.api_key else os.environ.get(self.api_key_variable)
        if key is None and self.base_url is None and "OPENAI_BASE_URL" not in os.environ:
            raise UsageError(f"there is no key for the model's server: set {self.api_key_variable}, or give base_url")
        return key or "none"

    @property
    def sampling(self) -> dict[str, Any]:
        """How tokens are drawn, as far as it was said."""
        given = {"temperature": self.temperature, "max_tokens": self.max_tokens, "stop": list(self.stop) or None}
        return {name: value for name, value in given.items() if value is not None}


class LLMPolicy:
    """Asks a model for each action. It is made by `LLMPolicies`, which holds the connection.

    A tool call through the API reaches the environment as the JSON of the message that holds it, a text as it is, with
    its reasoning in `<think>` before it. What is no valid call is an action too: the environment says what is wrong
    with it, and the model reads that.

    Args:
        env: Whose tools it uses.
        options: Which model, and how it is asked.
        client: The connection.
        seed: Of the episode.

    Raises:
        UsageError: Native calls are asked for, and the environment does not read them.
    """

    factory = LLMPolicies

    def __init__(
        self, env: gymnasium.Env[str, str], options: LLMPolicies, client: ChatClient, seed: int | None = None
    ) -> None:
        own = swe_env(env)
        self._options = options
        self._client = client
        self._native = _is_native(options.calls, own.config["action_format"])
        self._system = _system(own, options.system, native=self._native)
        self._fixed = _fixed(own, options, native=self._native)
        self._seed = None if options.seed is None else options.seed + (seed or 0)
        self.reset({})

    def reset(self, info: dict[str, Any]) -> None:  # noqa: ARG002  the issue comes with the first observation
        """A new conversation."""
        self._history = History(self._system)
        self._usage = Usage()
        self._turn = 0
        self._context = self._options.context
        self._density = TOKENS_PER_CHARACTER

    def act(self, observation: str) -> str:
        """What the model says to the observation.

        Raises:
            PolicyError: The model did not answer; the conversation stays as it was, with the observation.
        """
        self._usage = Usage()
        self._history.observed(observation)
        answer = self._ask()
        self._history.answered(answer.message)
        self._turn += 1
        return _action(answer.message)

    def report(self) -> PolicyReport:
        """See `ReportingPolicy`."""
        options = self._options
        asked = {"calls": "native" if self._native else "text", "context": self._context, "request": options.request}
        return PolicyReport(
            policy=PolicyInfo(name="llm", model=options.model, sampling=options.sampling, options=asked),
            usage=self._usage,
            messages=tuple(self._history.messages),
        )

    # --- one answer -----------------------------------------------------------------------------------------

    def _ask(self) -> Answer:
        """The model's answer, to a conversation that is as short as it has to be."""
        if self._context is not None and self._tokens() > FULL * self._room(self._context):
            self._shrink(SHRUNK * self._room(self._context))
        while True:
            try:
                answer = self._client.complete(self._request())
            except ContextExceeded as error:
                self._context = error.limit or self._context
                room = self._tokens() if self._context is None else min(self._tokens(), self._room(self._context))
                if not self._shrink(SHRUNK * room):
                    raise  # the system prompt, the issue and the last turn alone are too long
            else:
                self._count(answer.usage)
                return answer

    def _count(self, usage: Usage) -> None:
        if usage.prompt_tokens:
            self._density = usage.prompt_tokens / self._size()
        self._usage = usage.model_copy(update={"cost": self._options.prices.cost(usage)})

    def _request(self) -> dict[str, Any]:
        seed = {} if self._seed is None else {"seed": (self._seed + self._turn) % MAX_SEED}
        return {**self._fixed, **seed, "messages": self._history.messages}

    # --- how long the conversation is -------------------------------------------------------------------------

    def _room(self, context: int) -> float:
        """Tokens that the prompt may have."""
        return context - (self._options.max_tokens or min(REPLY_ROOM, context // 4))

    def _size(self) -> int:
        """Characters of the prompt, the tools' descriptions included."""
        return self._history.size + len(json.dumps(self._fixed.get("tools", "")))

    def _tokens(self) -> float:
        """Tokens of the prompt, estimated from how many the last one had."""
        return self._size() * self._density

    def _shrink(self, tokens: float) -> bool:
        tools = self._size() - self._history.size
        return self._history.shrink(max(0, int(tokens / self._density) - tools))


def _is_native(calls: str | None, action_format: str) -> bool:
    reads_native = action_format in ("auto", "openai")
    if calls == "native" and not reads_native:
        raise UsageError(
            f"native tool calls are written in the action format 'openai', which an environment with "
            f"action_format={action_format!r} does not read: make it with 'openai' or 'auto', or set calls='text'"
        )
    return reads_native if calls is None else calls == "native"


def _system(env: SweEnv, given: str | None, *, native: bool) -> str:
    tools = env.config["tools"]
    text = system_prompt(tools if isinstance(tools, str) else "") if given is None else given
    return text if native else f"{text}\n\n{describe_tools(env.tools, env.config['action_format'])}"


def _fixed(env: SweEnv, options: LLMPolicies, *, native: bool) -> dict[str, Any]:
    """The part of the request that is the same in every turn."""
    tools = {"tools": [spec.openai() for spec in env.tools]} if native else {}
    return {"model": options.model, **options.sampling, **tools, **options.request}


def _action(message: dict[str, Any]) -> str:
    """The model's message as the environment reads it."""
    if message.get("tool_calls"):
        return json.dumps(message, ensure_ascii=False)
    text: str = message["content"] or ""
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    return f"<think>\n{reasoning}\n</think>\n\n{text}" if reasoning else text
