"""Weight sync to a vLLM server.

| method | how | needs |
|---|---|---|
| "file" | the server reads a Hugging Face folder | a folder that both see |
| "ipc" | the server copies from the trainer's GPU memory (CUDA IPC) | one GPU that trainer and server share |
| "nccl" | a broadcast from the trainer's GPU to the server's | separate GPUs; vLLM in the trainer's Python |
"""

import importlib.util
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from ...errors import UsageError, unknown_name
from ...types import Json, JsonMapping, JsonObject
from ..config import GenerationConfig
from ..model import PolicyModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Call = Callable[[str, str, JsonObject | None], Json]
"""Sends method, path and JSON body to the server and returns its answer, or raises `PolicyError`."""

METHODS = ("file", "ipc", "nccl")

_PARALLEL = ("--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp")
"""Arguments of `vllm serve` that multiply its number of GPUs."""


class WeightSync(Protocol):
    """A method of weight sync.

    Attributes:
        args: Arguments that the server must be started with.
        env: Environment variables that the server must be started with.
    """

    args: Sequence[str]
    env: Mapping[str, str]

    def send(self, version: int, call: Call) -> None:
        """Send the model's present weights; the server has them when this returns.

        Raises:
            PolicyError: The server refused them, or did not take them in time.
        """
        ...


def make_weight_sync(
    config: GenerationConfig, model: PolicyModel, tokenizer: "PreTrainedTokenizerBase", folder: Path
) -> WeightSync:
    """Make the method that `options["weight_sync"]` names, "file" by default.

    Args:
        config: The generation settings.
        model: The model.
        tokenizer: Its tokenizer, for "file".
        folder: The folder for "file".

    Raises:
        UsageError: The name is unknown, or the method does not work here; the message says why.
    """
    method = choose(config, next(model.parameters()).device)
    if method == "ipc":
        from .sync_ways import IpcSync

        return IpcSync(model)
    if method == "nccl":
        from .sync_ways import NcclSync

        return NcclSync(model, config.url)
    from .sync_ways import FileSync

    return FileSync(model, tokenizer, folder)


def choose(config: GenerationConfig, device: torch.device) -> str:
    """Return the name of the method for a model on a device.

    Raises:
        UsageError: As in `make_weight_sync`.
    """
    method = config.options.get("weight_sync", "file")
    if method not in METHODS:
        raise unknown_name("method of weight sync", str(method), METHODS)
    if obstacle := _obstacle(method, config, device):
        raise UsageError(f"generation.options.weight_sync = {method!r} does not work here: {obstacle}")
    return str(method)


def _obstacle(method: str, config: GenerationConfig, device: torch.device) -> str:
    """Return why a method cannot work; empty if it can."""
    if method == "file":
        return ""
    if device.type != "cuda":
        return f"it needs a GPU, and the model is on {device.type!r}; use 'file'"
    if method == "nccl" and importlib.util.find_spec("vllm") is None:
        return "it needs vLLM in the trainer's Python: pip install vllm, or use 'file'"
    if config.url:
        return ""  # the GPUs of a running server are unknown here
    ours = _visible(os.environ)[device.index or 0]
    theirs = _gpus_of_server(config.options)
    if method == "ipc" and theirs != [ours]:
        return f"the trainer is on GPU {ours} and the server on {', '.join(theirs)}; use 'nccl' or 'file'"
    if method == "nccl" and ours in theirs:
        return (
            f"trainer and server share GPU {ours}, which NCCL does not support; use 'ipc' or 'file', "
            "or give the server other GPUs: generation.options.env = { CUDA_VISIBLE_DEVICES = ... }"
        )
    return ""


def _gpus_of_server(options: JsonMapping) -> list[str]:
    """Return the GPUs of a server that the trainer starts: the first of those visible to it."""
    count = 1
    for argument, following in itertools.pairwise([*map(str, options.get("args", ())), ""]):
        name, equals, value = argument.partition("=")
        number = value if equals else following
        if name in _PARALLEL and number.isdecimal():
            count *= int(number)
    return _visible({**os.environ, **options.get("env", {})})[:count]


def _visible(environment: Mapping[str, str]) -> list[str]:
    """Return the GPUs visible to a process, by the driver's names."""
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return [str(index) for index in range(torch.cuda.device_count())]
    return [name.strip() for name in named.split(",")]


def describe_weights(weights: Mapping[str, Tensor]) -> JsonObject:
    """Return names, types and shapes of weights as vLLM's API expects them."""
    return {
        "names": list(weights),
        "dtype_names": [str(weight.dtype).removeprefix("torch.") for weight in weights.values()],
        "shapes": [list(weight.shape) for weight in weights.values()],
    }
