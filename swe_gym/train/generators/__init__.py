"""The table of generators, which sample tokens for training. Each is a `TrainGenerator`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ...registry import Registry
from ...rollout.tokens import Generator
from ..config import GenerationConfig
from ..model import PolicyModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TrainGenerator(Generator, Protocol):
    """A generator that samples from the trained weights.

    Its constructor takes the configuration, the model and the model's tokenizer.
    """

    def sync_weights(self, version: int) -> None:
        """Sync the model's present weights to the sampler, as version `version`. Nothing may be sampling meanwhile.

        Raises:
            PolicyError: They did not arrive.
        """
        ...

    def close(self) -> None:
        """Stop what the generator started. Idempotent."""
        ...


GENERATORS = Registry[Callable[..., TrainGenerator]](
    "generator",
    {
        "vllm": "swe_gym.train.generators.vllm:VllmGenerator",
        "hf": "swe_gym.train.generators.hf:HfGenerator",
        "scripted": "swe_gym.train.generators.scripted:ScriptedGenerator",
    },
    extras={"vllm": "train", "hf": "train"},
    group="swe_gym.generators",
)


def make_generator(
    config: GenerationConfig, model: PolicyModel, tokenizer: "PreTrainedTokenizerBase"
) -> TrainGenerator:
    """Make the generator that a configuration names. The caller closes it.

    Raises:
        UsageError: The name is unknown, or the generator does not take these options.
        MissingDependency: The generator needs an extra that is not installed.
    """
    return GENERATORS.load(config.backend)(config, model, tokenizer)
