"""Weight sync to a vLLM server on other GPUs, by an NCCL broadcast."""

import socket
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...errors import MissingDependency, PolicyError, SweGymError
from ...threads import in_thread
from ...types import JsonObject
from ..model import PolicyModel
from .weight_sync import Call, describe_weights

if TYPE_CHECKING:
    from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator

TIMEOUT = 600.0
"""Seconds to form the group, and for a broadcast."""


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
