"""The table of generators, which sample tokens for training. Each is a `TrainGenerator`.

`ScriptedGenerator` answers with a function, for tests and demonstrations.
"""

import contextlib
import importlib
import urllib.parse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from pydantic import ValidationError

from ...errors import PolicyError, UsageError, unknown_name, wrong_fields
from ...registry import Registry
from ...rollout.tokens import ChatTemplate, Completion, Generator
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
    which may wait for a new sampler. A method `begin_learning()`, if there is one, is called before the weights change:
    without `async_rollout` nothing is sampled until the next sync, and the sampler may free memory.
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


def announce_learning(generator: TrainGenerator) -> None:
    """Call `begin_learning` of a generator that has it."""
    if hasattr(generator, "begin_learning"):
        generator.begin_learning()


GENERATORS = Registry[Callable[..., TrainGenerator]](
    "generator",
    {
        "vllm": "swe_gym.train.generators.vllm:VllmGenerator [train]",
        "hf": "swe_gym.train.generators.hf:HfGenerator [train]",
        "scripted": "swe_gym.train.generators:ScriptedGenerator",
    },
    group="swe_gym.generators",
)


def check_options(config: GenerationConfig) -> None:
    """Check the options and addresses of the generator that a configuration names. It needs no model.

    Raises:
        UsageError: The generator's name or an option is unknown, an option has another type, or an address is wrong.
        MissingDependency: The generator needs an extra that is not installed.
    """
    make = GENERATORS.load(config.backend)
    options = getattr(make, "Options", None)
    if options is not None:
        read_options(options, config)
    _read_addresses(config, make)


def _read_addresses(config: GenerationConfig, make: object) -> list[str]:
    """Return the addresses of `generation.url`, after a check of those that a server's client will use.

    No message quotes them: they may hold a password.
    """
    urls = config.url.split()
    if config.backend in ("hf", "scripted") and config.url:
        raise UsageError(f"generation.backend {config.backend!r} samples in this process: leave generation.url out")
    if not hasattr(make, "is_up"):
        if len(urls) > 1:
            raise UsageError(
                f"generation.backend {config.backend!r} does not sample from {len(urls)} servers: name one"
            )
        return urls
    if len(urls) > 1 and config.sleeps:
        raise UsageError(
            "generation.options.sleep is for one server, which shares the trainer's GPU: leave it out, or name one in "
            "generation.url"
        )
    if config.url and not urls:
        raise UsageError("generation.url is blank: name a server, or leave it out and the trainer starts one")
    for number, url in enumerate(urls, 1):
        if trouble := _find_trouble(url):
            raise UsageError(f"address {number} of generation.url {trouble}")
    if len({url.rstrip("/").removesuffix("/v1") for url in urls}) < len(urls):
        raise UsageError("generation.url names a server twice, which would get twice the requests: name each once")
    return urls


def _find_trouble(url: str) -> str:
    """Return what is wrong with the address of a server; empty if nothing is."""
    if "," in url:
        return "has a comma: separate addresses by blanks"
    with contextlib.suppress(ValueError):  # brackets without an end, or a port that is no number
        parts = urllib.parse.urlsplit(url)
        if "@" in parts.netloc:
            return "has a user or password: use generation.options.api_key, which no file or log keeps"
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return ""
    return "is none of a server: write http://HOST:PORT"


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
    make = GENERATORS.load(config.backend)
    urls = _read_addresses(config, make)
    if len(urls) < 2:
        return make(config.model_copy(update={"url": "".join(urls)}), model, tokenizer)
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
