"""The ways of weight sync to a vLLM server: a folder, CUDA IPC on one GPU, an NCCL broadcast to others."""

import base64
import pickle
import shutil
import socket
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.multiprocessing import reductions

from ...errors import MissingDependency, PolicyError, SweGymError
from ...threads import in_thread
from ...types import JsonObject
from ..model import PolicyModel
from .weight_sync import Call, describe_weights

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator


TIMEOUT = 600.0
"""Seconds for the server to read the weights, to form the group, and for a broadcast."""


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


class NcclSync:
    """Broadcasts the weights from rank 0 to the server's workers, which join the group at the first sync.

    Args:
        model: The model, on a GPU that the server does not use.
        url: Address of a server on another machine, which must be able to connect to this one. Empty for this machine.
    """

    args: Sequence[str] = ("--weight-transfer-config", '{"backend": "nccl"}')
    env: Mapping[str, str] = {}

    def __init__(self, model: PolicyModel, url: str) -> None:
        self._model = model
        self._host = urllib.parse.urlsplit(url).hostname or "127.0.0.1"
        self._group: PyNcclCommunicator = None

    def send(self, version: int, call: Call) -> None:
        """See `WeightSync`."""
        if self._group is None:
            self._join(call)
        weights = self._model.weights()
        call("POST", "/start_weight_update", {})
        coming = {"update_info": describe_weights(weights)}
        _run_together(lambda: call("POST", "/update_weights", coming), lambda: self._broadcast(weights))
        call("POST", "/finish_weight_update", {"weight_version": str(version)})

    def _join(self, call: Call) -> None:
        """Form the NCCL group."""
        try:
            from vllm.distributed.weight_transfer.nccl_common import trainer_init
        except ImportError as error:
            raise MissingDependency(
                f"generation.options.weight_sync = 'nccl' needs vLLM 0.26 or newer in the trainer's Python ({error})"
            ) from error
        workers = call("GET", "/get_world_size", None)["world_size"]
        place = {**_rendezvous(self._host), "world_size": 1 + workers}
        invitation = {"init_info": {**place, "rank_offset": 1}}

        def join() -> None:
            with torch.cuda.device(self._device()):  # a new thread uses the first GPU
                self._group = trainer_init(place)

        _run_together(lambda: call("POST", "/init_weight_transfer_engine", invitation), join)
        if self._group.disabled:  # vLLM only logs it
            self._group = None
            raise PolicyError("vLLM could not load NCCL in the trainer: see vLLM's log", reason="server")

    def _broadcast(self, weights: Mapping[str, Tensor]) -> None:
        with torch.cuda.device(self._device()):
            for weight in weights.values():
                self._group.broadcast(weight.detach().contiguous(), src=0)
            torch.cuda.synchronize()

    def _device(self) -> torch.device:
        device: torch.device = next(self._model.parameters()).device
        return device


def _run_together(*calls: Callable[[], object]) -> None:
    """Run calls that wait for each other until all return or one fails.

    The threads are daemons: one whose counterpart failed cannot be stopped and must not block the exit.
    """
    running = [in_thread(call, "weight-sync") for call in calls]
    ended, left = wait(running, TIMEOUT, FIRST_EXCEPTION)
    failure = next(filter(None, (one.exception() for one in ended)), None)
    if isinstance(failure, SweGymError):
        raise failure
    if failure is not None:
        raise PolicyError(f"weight sync over NCCL failed: {failure}", reason="server") from failure
    if left:
        raise PolicyError(f"vLLM and the trainer did not connect over NCCL within {TIMEOUT:.0f} s", reason="timeout")


def _rendezvous(host: str) -> JsonObject:
    """Return a free port of this machine and the address at which a host reaches it."""
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # sends no packet
        except OSError as error:
            raise PolicyError(f"no IPv4 route to {host}: {error}", reason="connection") from error
        address = probe.getsockname()[0]
    with socket.socket() as free:
        free.bind((address, 0))
        return {"master_address": address, "master_port": free.getsockname()[1]}
