"""Weight sync through a folder that the vLLM server reads."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..model import PolicyModel
from .weight_sync import Call

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TIMEOUT = 600.0
"""Seconds for the server to read the weights."""


def write_folder(model: PolicyModel, tokenizer: "PreTrainedTokenizerBase", folder: Path) -> None:
    """Write a folder that vLLM reads.

    On a CPU, vLLM 0.32 repacks the output embedding only when it reads one. A tied embedding would keep its first
    values, so it is written untied there.
    """
    model.export(folder, tokenizer, untied=not torch.cuda.is_available())


class FileSync:
    """Writes a Hugging Face folder, makes the server read it, and removes it.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        folder: The parent folder, which the server must see.
    """

    args: Sequence[str] = ()
    env: Mapping[str, str] = {}

    def __init__(self, model: PolicyModel, tokenizer: "PreTrainedTokenizerBase", folder: Path) -> None:
        self._model, self._tokenizer, self._folder = model, tokenizer, folder

    def send(self, version: int, call: Call) -> None:
        """See `WeightSync`."""
        folder = self._folder / str(version)
        write_folder(self._model, self._tokenizer, folder)
        try:
            arguments = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
            call("POST", "/collective_rpc", {**arguments, "timeout": TIMEOUT})
        finally:
            shutil.rmtree(folder, ignore_errors=True)
