"""A fake of CUDA IPC in this process's memory, for machines without a GPU."""

import contextlib
import types
import weakref
from typing import Any

import torch
from torch.multiprocessing import reductions

GPU = "GPU-11111111-2222-3333-4444-555555555555"


class SharedMemory:
    """The shared tensors that are alive, by handle."""

    def __init__(self) -> None:
        self._tensors: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()
        self.exports = 0

    def export(self, tensor: torch.Tensor) -> tuple[Any, tuple[Any, ...]]:
        """Act as `reduce_tensor` of a CUDA tensor; the seventh argument is the device."""
        self.exports += 1
        self._tensors[self.exports] = tensor
        return None, (torch.Tensor, tensor.shape, tensor.stride(), 0, None, tensor.dtype, 7, self.exports)

    def open(self, *arguments: Any) -> torch.Tensor:
        """Act as `rebuild_cuda_tensor`; the memory must still be alive."""
        assert arguments[6] == 0, "the receiver puts in its own device"
        return self._tensors[arguments[7]]


def pretend(monkeypatch: Any) -> SharedMemory:
    """Give this process a fake GPU."""
    memory = SharedMemory()
    monkeypatch.setattr(reductions, "reduce_tensor", memory.export)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: types.SimpleNamespace(uuid=GPU))
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    for name in ("ipc_collect", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    for name in ("current_stream", "current_device"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: 0)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda *_: None)
    return memory
