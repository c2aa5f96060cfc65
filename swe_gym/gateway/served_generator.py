"""Token ids from a vLLM server that runs already."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import PolicyError
from ..rollout.policies import LLMPolicies
from ..rollout.tokens import Completion, read_completion


class ServedGenerator:
    """A `Generator` that samples from a vLLM server's `/v1/completions`, which takes and returns token ids.

    For log-probabilities under the sampling distribution, start the server with
    `--logprobs-mode processed_logprobs --generation-config vllm`.

    Args:
        options: Model, server, retries and further fields of the request.
        version: Version of the server's weights, for the record.
    """

    def __init__(self, options: LLMPolicies, *, version: int = 0) -> None:
        self._options, self.version = options, version
        self._client = options.connect(timeout=options.timeout, deadline=options.deadline, retries=options.retries)

    def generate(self, prompt: Sequence[int], *, max_tokens: int, temperature: float, seed: int | None) -> Completion:
        """See `Generator`."""
        request = {"model": self._options.model, "prompt": list(prompt), "return_token_ids": True, "logprobs": 0}
        request |= {"max_tokens": max_tokens, "temperature": temperature, **self._options.request}
        version = self.version
        reply = self._client.post("/completions", request if seed is None else {**request, "seed": seed})
        try:
            return read_completion(reply, version)
        except (LookupError, TypeError) as error:
            text = f"the server's answer holds no token ids; is it vLLM 0.10.2 or newer? {str(reply)[:200]}"
            raise PolicyError(text, reason="bad_reply") from error

    def close(self) -> None:
        """Close the connection: waiting calls raise `PolicyError`. Idempotent."""
        self._client.close()
