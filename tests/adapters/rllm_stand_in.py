"""Stand-ins for the parts of rLLM that its adapter uses, since rLLM is not on the package index.

Names, fields, arguments and rules are those of rLLM at commit 9beb6e0f (0.3.0.pre, August 2026): `rllm.types`,
`rllm.engine.rollout.rollout_engine`, `rllm.workflows.workflow`, and how its
transform for verl joins steps to rows. No code of rLLM is here.
"""

import dataclasses
import enum
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest


class TerminationReason(enum.Enum):
    MAX_RESPONSE_LENGTH_EXCEEDED = "max_response_length_exceeded"
    ENV_DONE = "env_done"
    MAX_TURNS_EXCEEDED = "max_turns_exceeded"
    TIMEOUT = "timeout"
    UNKNOWN = "unknown"
    ERROR = "error"


@dataclasses.dataclass
class ModelOutput:
    prompt_ids: list[int] | None = None
    completion_ids: list[int] | None = None
    logprobs: list[float] | None = None
    prompt_length: int = 0
    completion_length: int = 0
    weight_version: int | None = None


@dataclasses.dataclass
class Step:
    model_output: ModelOutput


@dataclasses.dataclass
class Trajectory:
    name: str
    task: Any
    steps: list[Step]
    reward: float | None


@dataclasses.dataclass
class Episode:
    id: str
    task: Any
    trajectories: list[Trajectory]
    is_correct: bool
    termination_reason: TerminationReason
    metrics: dict[str, float]
    metadata: dict[str, Any]


class Workflow:
    def __init__(self, rollout_engine: Any, executor: Any, timeout: float = 1e6, store: Any = None) -> None:
        self.rollout_engine, self.executor, self.timeout, self.store = rollout_engine, executor, timeout, store


@dataclasses.dataclass
class TokenOutput:
    token_ids: list[int]
    log_probs: list[float] | None
    stop_reason: str


class Letters:
    """A tokenizer whose tokens are letters, with ChatML's template."""

    chat_template = "ChatML"
    eos_token_id = 0x110000

    def apply_chat_template(self, messages: list[dict[str, str]], **_options: Any) -> str:
        told = "".join(f"<{message['role']}>{message['content']}<|im_end|>" for message in messages)
        return f"{told}<assistant>"

    def encode(self, text: str, **_options: Any) -> list[int]:
        return [ord(letter) for letter in text.replace("<|im_end|>", "\0")]

    def decode(self, ids: list[int], **_options: Any) -> str:
        return "".join("<|im_end|>" if one in (0, self.eos_token_id) else chr(one) for one in ids)


class Engine:
    """rLLM's engine of verl without servers."""

    max_prompt_length, max_response_length = 4000, 8000
    supports_token_in_token_out = True
    weight_version = 7
    tokenizer = Letters()

    def __init__(self, answer: Callable[[str, int], str]) -> None:
        self._answer = answer
        self.calls: dict[str, list[tuple[list[int], list[int]]]] = {}

    async def get_token_output_from_token_input(
        self, token_input: list[int], *, application_id: str, max_tokens: int, enforce_max_prompt_length: bool
    ) -> TokenOutput:
        assert not enforce_max_prompt_length  # else a prompt longer than the first one's limit ends the episode
        calls = self.calls.setdefault(application_id, [])
        text = self._answer(self.tokenizer.decode(token_input), len(calls))
        ids = [*self.tokenizer.encode(text), self.tokenizer.eos_token_id][:max_tokens]
        calls.append((list(token_input), ids))
        return TokenOutput(ids, [-0.5] * len(ids), "stop")


def join(steps: list[Step]) -> list[tuple[list[int], list[int]]]:
    """Join steps as rLLM's transform for verl does: ids and mask of each row."""
    rows: list[tuple[list[int], list[int]]] = []
    for step in steps:
        prompt, ids = step.model_output.prompt_ids or [], step.model_output.completion_ids or []
        if rows and prompt[: len(rows[-1][0])] == rows[-1][0]:
            row, mask = rows.pop()
            row, mask = prompt, mask + [0] * (len(prompt) - len(row))
        else:
            row, mask = prompt, [0] * len(prompt)
        rows.append((row + ids, mask + [1] * len(ids)))
    return rows


def install(patch: pytest.MonkeyPatch) -> None:
    """Offer the stand-ins under rLLM's names."""
    parts: dict[str, tuple[Any, ...]] = {
        "rllm": (),
        "rllm.types": (Episode, Step, Trajectory),
        "rllm.engine": (),
        "rllm.engine.rollout": (),
        "rllm.engine.rollout.rollout_engine": (ModelOutput,),
        "rllm.workflows": (),
        "rllm.workflows.workflow": (TerminationReason, Workflow),
    }
    for name, members in parts.items():
        module = types.ModuleType(name)
        vars(module).update({member.__name__: member for member in members})
        patch.setitem(sys.modules, name, module)
        if "." in name:
            setattr(sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2], module)
