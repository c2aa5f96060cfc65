"""Weight sync, and the checks that sampler and trainer agree on log-probabilities."""

from ..errors import SweGymError
from ..rollout.tokens import ChatTemplate, TokenConversation
from .batch import Batch, segments_batch
from .generators import TrainGenerator
from .learner import Learner, OldLogprobs
from .losses import ess, kl

_QUESTION = "What is two and two?"


class TrainingStopped(SweGymError):
    """Training cannot continue; the message says why. The last checkpoint is intact."""


def mismatch(batch: Batch, old: OldLogprobs) -> dict[str, float]:
    """Compare the log-probabilities of sampler and trainer under the same weights.

    Returns:
        Metrics: the mean and largest absolute difference, the k3 estimate of the KL divergence, and the effective
        sample size of the importance weights as a share. Empty without sampled tokens.
    """
    if not batch.tokens:
        return {}
    difference = old.logprobs - batch.sampler
    return {
        "logprob_diff": float(difference.abs().mean()),
        "logprob_diff_max": float(difference.abs().max()),
        "sampler_kl": float(kl(batch.sampler, old.logprobs).mean()),
        "ess": ess(difference.exp()),
    }


def check_logprob_diff(difference: float, limit: float, update: int) -> None:
    """Check that a mean difference of log-probabilities is finite and within its limit.

    Raises:
        TrainingStopped: It is not.
    """
    if not difference <= limit:  # NaN compares false
        raise TrainingStopped(
            f"after update {update}: the mean log-probabilities of sampler and trainer differ by {difference:.2f}, "
            f"more than generation.max_logprob_diff = {limit}: their weights or their precision differ, or the "
            "sampler modifies the logits"
        )


def sync_weights(
    generator: TrainGenerator, learner: Learner, template: ChatTemplate, *, version: int, limit: float
) -> float:
    """Sync the weights to the generator, then check its log-probabilities of an answer to a fixed question.

    Args:
        generator: The generator.
        learner: The learner that has the weights.
        template: The chat template of the model.
        version: The number of the weights.
        limit: The largest mean difference to accept.

    Returns:
        The mean absolute difference between sampler and trainer.

    Raises:
        TrainingStopped: The difference is above the limit: the weights did not arrive.
        PolicyError: The generator failed.
    """
    learner.gather()
    generator.sync_weights(version)
    conversation = TokenConversation(template, [{"role": "user", "content": _QUESTION}])
    prompt = conversation.prompt
    conversation.answer(generator.generate(prompt, max_tokens=16, temperature=1.0, seed=0), 1.0)
    batch = segments_batch([conversation.segments])
    difference = mismatch(batch, learner.compute_logprobs(batch)).get("logprob_diff", 0.0)
    check_logprob_diff(difference, limit, version)
    return difference
