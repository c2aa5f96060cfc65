"""The table of generators, which sample tokens for training. Each is a `TrainGenerator`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from pydantic import ValidationError

from ...errors import PolicyError, UsageError, unknown_name, wrong_fields
from ...registry import Registry
from ...rollout.tokens import Generator
from ...types import Frozen
from ..config import GenerationConfig
from ..model import PolicyModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Options = TypeVar("Options", bound=Frozen)


class WeightsLost(PolicyError):
    """The sampler stopped or was restarted, so it does not have the weights that were synced."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason="connection", retryable=True)


class TrainGenerator(Generator, Protocol):
    """A generator that samples from the trained weights.

    Its constructor takes the configuration, the model and the model's tokenizer. An attribute `Options` of the class, a
    pydantic model, names its options and their types. If `generate` raises `WeightsLost`, the weights are synced again,
    which may wait for a new sampler.
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
        "vllm": "swe_gym.train.generators.vllm:VllmGenerator [train]",
        "hf": "swe_gym.train.generators.hf:HfGenerator [train]",
        "scripted": "swe_gym.train.generators.scripted:ScriptedGenerator",
    },
    group="swe_gym.generators",
)


def check_options(config: GenerationConfig) -> None:
    """Check the options of the generator that a configuration names. It needs no model.

    Raises:
        UsageError: The generator's name or an option is unknown, or an option has another type.
        MissingDependency: The generator needs an extra that is not installed.
    """
    options = getattr(GENERATORS.load(config.backend), "Options", None)
    if options is not None:
        read_options(options, config)


def read_options(model: type[Options], config: GenerationConfig) -> Options:
    """Return a generator's options by its pydantic model.

    Raises:
        UsageError: An option is unknown, or has another type.
    """
    for name in config.options:
        if name not in model.model_fields:
            raise unknown_name(f"option of generator {config.backend!r}:", name, model.model_fields)
    try:
        return model.model_validate(config.options)
    except ValidationError as error:
        raise UsageError(f"generation.options: {wrong_fields(error)}") from error


def make_generator(
    config: GenerationConfig, model: PolicyModel, tokenizer: "PreTrainedTokenizerBase"
) -> TrainGenerator:
    """Make the generator that a configuration names. The caller closes it.

    Raises:
        UsageError: The name is unknown, or the generator does not take these options.
        MissingDependency: The generator needs an extra that is not installed.
    """
    make, urls = GENERATORS.load(config.backend), config.url.split()
    if len(urls) < 2:
        return make(config, model, tokenizer)
    if not hasattr(make, "is_up"):
        raise UsageError(f"generation.url names {len(urls)} servers: generation.backend {config.backend!r} takes one")
    from .routing import RoutedGenerator, ServerGenerator

    served = cast("Callable[..., ServerGenerator]", make)
    servers: list[ServerGenerator] = []
    try:
        servers.extend(served(config.model_copy(update={"url": url}), model, tokenizer) for url in urls)
    except BaseException:
        for server in servers:
            server.close()
        raise
    return RoutedGenerator(servers)
