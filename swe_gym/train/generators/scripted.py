"""A generator that answers with a function, for tests and demonstrations."""

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...errors import UsageError
from ...rollout.tokens import ChatTemplate, Completion
from ..config import GenerationConfig
from ..model import PolicyModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Reply = Callable[[str, int | None], str]
"""Maps a prompt and a seed to an answer, both as text."""


class ScriptedGenerator:
    """Answers with `reply(prompt, seed)`. Every token has log-probability -1.

    Args:
        config: The generation settings. `options["reply"]` is the function, or "module:function".
        model: Unused.
        tokenizer: Tokenizer of prompts and answers.

    Raises:
        UsageError: `options["reply"]` is not a function.
    """

    def __init__(self, config: GenerationConfig, model: PolicyModel, tokenizer: "PreTrainedTokenizerBase") -> None:  # noqa: ARG002  unused
        reply = config.options.get("reply")
        if isinstance(reply, str):
            module, _, name = reply.partition(":")
            reply = getattr(importlib.import_module(module), name)
        if not callable(reply):
            raise UsageError(
                "generation.backend 'scripted' needs generation.options.reply: a function, or 'module:function'"
            )
        self._reply: Reply = reply
        self._template = ChatTemplate(tokenizer)
        self._end = tokenizer.eos_token_id
        self.version = 0

    def generate(self, prompt: Sequence[int], *, max_tokens: int, temperature: float, seed: int | None) -> Completion:  # noqa: ARG002  nothing is drawn
        """Return the function's answer, truncated to `max_tokens`."""
        ids = [*self._template.encode(self._reply(self._template.decode(prompt), seed)), self._end][:max_tokens]
        return Completion(ids, [-1.0] * len(ids), "stop" if ids[-1] == self._end else "length", self.version)

    def sync_weights(self, version: int) -> None:
        """Set the version."""
        self.version = version

    def close(self) -> None:
        """Do nothing."""
