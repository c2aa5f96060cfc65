"""Chat templates of real models on a tokenizer of bytes."""

import importlib.util
import os
import threading
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest

from swe_gym.gateway.call_formats import VLLM, family_of
from swe_gym.gateway.matrix import ENDINGS, first_tag
from swe_gym.gateway.rendering import Renderer
from swe_gym.rollout.tokens import ChatTemplate, Completion


def skip_without_vllm(source: str) -> None:
    """Skip a test whose template needs parsers of vLLM, unless `SWE_GYM_REQUIRE` names vLLM."""
    family = family_of(source)
    if family is not None and family.style.startswith(VLLM):
        require_vllm()


def require_vllm() -> None:
    """Import vLLM, which warns; skip the test if it is missing."""
    if not importlib.util.find_spec("vllm") and "vllm" not in os.environ.get("SWE_GYM_REQUIRE", "").split(","):
        pytest.skip("vLLM reads the tool calls of this family: pip install vllm")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import vllm.tokenizers.hf
        import vllm.tool_parsers.mistral_tool_parser  # noqa: F401  it imports all of the engine-based parsers


class Writer:
    """A generator that writes messages or texts, messages as the model of a template would.

    Args:
        template: The template.
        say: Number of the call -> a message, or a text.
        cut: Numbers of the answers that the limit cuts.
    """

    def __init__(self, template: ChatTemplate, say: Callable[[int], Any], cut: Collection[int] = ()) -> None:
        self.template, self.renderer, self.say, self.cut = template, Renderer(template), say, cut
        self.sampled: list[tuple[list[int], Completion]] = []
        self.lock = threading.Lock()

    def generate(self, prompt: Sequence[int], *, max_tokens: int, temperature: float, seed: int | None) -> Completion:  # noqa: ARG002
        with self.lock:
            number = len(self.sampled)
            said = self.say(number)
            text, end = self.write(said) if isinstance(said, dict) else (said, self.end)
            ids = self.template.encode(text)
            if number in self.cut and ids:
                ids, end = ids[: max(1, len(ids) * 3 // 4)], ""
            ids += self.template.encode(end)
            logprobs = [-(number * 1000 + index + 1) / 1e6 for index in range(len(ids))]
            made = Completion(ids, logprobs, "stop" if end else "length", number)
            self.sampled.append((list(prompt), made))
        return made

    def write(self, message: dict[str, Any]) -> tuple[str, str]:
        """Return the text of a message and the token that ends it; nothing if the template refuses it."""
        import jinja2  # only where templates are rendered

        try:
            return self.render_answer(message)
        except jinja2.TemplateError:
            return "", self.end

    def render_answer(self, message: dict[str, Any]) -> tuple[str, str]:
        """Return the text of a message and the token that ends it."""
        if not self.renderer.shape.parallel and message.get("tool_calls"):
            message = {**message, "tool_calls": message["tool_calls"][:1]}
        text = self.renderer.write(message)
        end = next((one for one in ENDINGS if text.endswith(one)), "")
        if not end and message.get("tool_calls") and "<|observation|>" in self.template.source:
            end = "<|observation|>"
        return text.removesuffix(end), end or self.end

    @property
    def end(self) -> str:
        return first_tag(self.template.closing)
