"""Weight sync to a vLLM server on the trainer's GPU, by CUDA IPC."""

import base64
import pickle
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.multiprocessing import reductions

from ..model import PolicyModel
from .weight_sync import Call, describe_weights

GROUP_BYTES = 1 << 30
"""Bytes of weights to copy at a time. A larger weight is copied alone."""


class IpcSync:
    """Sends CUDA IPC handles of copies of the weights.

    It copies because shared memory stays marked as shared: a weight would gather a mark with each sync. The handles are
    sent as a pickle, which the server must be allowed to read (`VLLM_ALLOW_INSECURE_SERIALIZATION`). Keep its port
    unreachable for others.

    Args:
        model: The model, on the server's GPU.
    """

    args: Sequence[str] = ("--weight-transfer-config", '{"backend": "ipc"}')
    env: Mapping[str, str] = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}

    def __init__(self, model: PolicyModel) -> None:
        self._model = model
        self._known = False

    def send(self, version: int, call: Call) -> None:
        """See `WeightSync`."""
        if not self._known:
            call("POST", "/init_weight_transfer_engine", {"init_info": {}})
            self._known = True
        call("POST", "/start_weight_update", {})
        for group in _groups(self._model.weights()):
            copies = {name: weight.detach().clone().contiguous() for name, weight in group.items()}
            call(
                "POST",
                "/update_weights",
                {"update_info": {**describe_weights(copies), "ipc_handles_pickled": _at(copies)}},
            )
        call("POST", "/finish_weight_update", {"weight_version": str(version)})
        torch.cuda.ipc_collect()  # frees what the server released


def _groups(weights: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    group: dict[str, Tensor] = {}
    size = 0
    for name, weight in weights.items():
        if group and size + weight.nbytes > GROUP_BYTES:
            yield group
            group, size = {}, 0
        group[name] = weight
        size += weight.nbytes
    if group:
        yield group


def _at(copies: Mapping[str, Tensor]) -> str:
    """Return the pickled handles by GPU UUID, so that a server on another GPU notices."""
    device = next(iter(copies.values())).device
    gpu = str(torch.cuda.get_device_properties(device).uuid)
    handles = [{gpu: reductions.reduce_tensor(copy)[1]} for copy in copies.values()]
    return base64.b64encode(pickle.dumps(handles)).decode()
