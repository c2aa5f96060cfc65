"""A tokenizer of single bytes, and a stand-in of verl's server client that answers at once."""

import json
import random
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FORGETFUL = (  # like Qwen3's: drops the thoughts of earlier turns
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and not loop.last and '</think>' in m.content %}"
    "{{ m.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer(template: str = CHATML) -> Any:
    """A token for each byte, and ChatML's."""
    alphabet = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    raw = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|im_end|>", clean_up_tokenization_spaces=False
    )
    made.chat_template = template
    return made


def bash(command: str) -> str:
    return json.dumps({"name": "bash", "arguments": {"command": command}})


def solve(prompt: str, _turn: int) -> str:
    """The call that solves a task of difficulty 1."""
    found = re.search(r"file `(.+?)` with this one word in it: (\w+)", prompt)
    assert found
    return bash(f"printf %s {found[2]} > {found[1]}")


class StandInClient:
    """verl's `LLMServerClient` without servers.

    Attributes:
        calls: Request id -> prompts and sampled ids of its answers, in order.
    """

    def __init__(
        self, tokenizer: Any, answer: Callable[[str, int], str], ready: Callable[[], Any] | None = None
    ) -> None:
        self._tokenizer, self._answer, self._ready = tokenizer, answer, ready
        self.calls: dict[str, list[tuple[list[int], list[int]]]] = defaultdict(list)

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        calls = self.calls[request_id]
        if self._ready and not calls:
            await self._ready()
        ids = self.sample(prompt_ids, len(calls))[: sampling_params["max_tokens"]]
        calls.append((list(prompt_ids), ids))
        steps = {"global_steps": 3 + len(calls)}
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids), stop_reason="completed", extra_fields=steps)

    def sample(self, prompt_ids: list[int], turn: int) -> list[int]:
        text = self._answer(self._tokenizer.decode(prompt_ids), turn)
        return [*self._tokenizer.encode(text, add_special_tokens=False), self._tokenizer.eos_token_id]


class RandomClient(StandInClient):
    """Samples random bytes, which are rarely text, with thoughts before them."""

    def __init__(self, tokenizer: Any, seed: int) -> None:
        super().__init__(tokenizer, lambda *_: "")
        self._random = random.Random(seed)

    def sample(self, prompt_ids: list[int], turn: int) -> list[int]:  # noqa: ARG002  as random as any
        drawn = [self._random.randrange(256) for _ in range(self._random.randrange(1, 40))]
        thought = self._tokenizer.encode("</think>", add_special_tokens=False)
        return drawn + self._random.choice([[], thought + drawn[::-1]]) + [self._tokenizer.eos_token_id]
