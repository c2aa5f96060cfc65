"""Seed the program and load what a configuration names: learner, model and tokenizer."""

import random
from typing import TYPE_CHECKING

import torch

from ..errors import MissingDependency, UsageError
from .config import GenerationConfig, ModelConfig, TrainConfig
from .learner import Learner
from .model import PolicyModel, load_model
from .ranks import Ranks

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def seed_everything(seed: int) -> None:
    """Seed the global random number generators of Python and PyTorch."""
    random.seed(seed)
    torch.manual_seed(seed)


def load_learner(config: TrainConfig, ranks: Ranks) -> Learner:
    """Load the model and the reference of a KL penalty, sharded over several processes.

    Raises:
        UsageError: The trainer does not support the model.
        MissingDependency: transformers, or peft for adapters, is not installed.
    """
    cpu = torch.device("cpu")
    device = cpu if ranks.size > 1 else None  # sharding moves one layer at a time
    model = load_policy(config.model, device)
    model.check()
    penalized = config.algorithm.kl_coef > 0
    reference = load_policy(config.model, device).requires_grad_(False).eval() if penalized else None
    copy = None
    if ranks.size > 1:
        if ranks.rank == 0:
            copy = load_policy(config.model, ranks.device if _samples_from_device(config.generation) else cpu)
        for one in (model, reference):
            if one is not None:
                ranks.shard(one, one.layers)
    return Learner(model, config.optim, config.algorithm, reference, ranks, copy)


def _samples_from_device(config: GenerationConfig) -> bool:
    """Return whether the generator reads the weights on the trainer's device."""
    return config.backend == "hf" or config.options.get("weight_sync", "file") != "file"


def load_policy(config: ModelConfig, device: torch.device | None = None) -> PolicyModel:
    """Load the model onto a device, by default the one that the configuration names.

    Raises:
        MissingDependency: transformers, or peft for adapters, is not installed.
    """
    if device is None:
        auto = "cuda" if torch.cuda.is_available() else "cpu"
        device = torch.device(auto if config.device == "auto" else config.device)
    options = config.model_dump(exclude={"device", "matmul_precision"})
    policy: PolicyModel = load_model(**options).to(device)
    return policy


def load_tokenizer(path: str) -> "PreTrainedTokenizerBase":
    """Load the tokenizer of a Hugging Face folder or id.

    Raises:
        MissingDependency: transformers is not installed.
        UsageError: The path is neither.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingDependency(f"training needs transformers: pip install 'swe-gym[train]' ({error})") from error
    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"model.path {path!r} is neither a model folder nor a Hugging Face id that can be downloaded: {error}"
        ) from error
