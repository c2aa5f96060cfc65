"""Seed the program and load what a configuration names: model and tokenizer."""

import random
from typing import Any

import torch

from ..errors import MissingDependency, UsageError
from .config import ModelConfig
from .model import PolicyModel, load_model


def seed_everything(seed: int) -> None:
    """Seed the global random number generators of Python and PyTorch."""
    random.seed(seed)
    torch.manual_seed(seed)


def load_policy(config: ModelConfig) -> PolicyModel:
    """Load the model onto its device.

    Raises:
        MissingDependency: transformers, or peft for adapters, is not installed.
    """
    device = config.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    options = config.model_dump(exclude={"device", "matmul_precision"})
    policy: PolicyModel = load_model(**options).to(torch.device(device))
    return policy


def load_tokenizer(path: str) -> Any:
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
