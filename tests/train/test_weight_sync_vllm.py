"""The ways of weights against vLLM's own routes and transfer engines: all of it but CUDA and NCCL themselves.

Runs where vLLM is installed, with a GPU or without.
"""

import asyncio
import copy
import types
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # by vLLM, at import
    api_router = pytest.importorskip("vllm.entrypoints.rl.online.api_router", reason="vLLM 0.32 is not installed")
    from vllm.distributed.device_communicators import pynccl
    from vllm.distributed.weight_transfer import ipc_engine, nccl_engine
    from vllm.model_executor.model_loader import reload, weight_utils

import fake_cuda  # noqa: E402  only where vLLM is there
from fastapi import FastAPI  # noqa: E402
from fastapi.testclient import TestClient  # noqa: E402

from swe_gym.train.generators import weight_sync  # noqa: E402
from swe_gym.train.generators.weight_sync import IpcSync, NcclSync, WeightSync  # noqa: E402
from swe_gym.train.model import PolicyModel  # noqa: E402

PARALLEL = types.SimpleNamespace(world_size_across_dp=1, world_size=1, data_parallel_index=0, rank=0)


class Served(torch.nn.Module):  # type: ignore[misc]  # torch is untyped for mypy
    """A model that loads weights as vLLM's do."""

    def __init__(self, lm: Any) -> None:
        super().__init__()
        self.lm = lm

    def load_weights(self, weights: Any) -> None:
        for name, weight in weights:
            parameter = dict(self.lm.named_parameters())[name]
            getattr(parameter, "weight_loader", weight_utils.default_weight_loader)(parameter, weight)


class Engine:
    """The engine behind vLLM's routes, with a real transfer engine and without worker processes."""

    def __init__(self, engine_class: Any, model: Served) -> None:
        reload.record_metadata_for_reloading(model)
        config = types.SimpleNamespace(dtype=torch.float32)
        self.vllm_config = types.SimpleNamespace(parallel_config=PARALLEL, model_config=config)
        self.transfer = engine_class(None, self.vllm_config, torch.device("cpu:0"), model)
        self.version: str | None = None

    async def init_weight_transfer_engine(self, request: Any) -> None:
        info = self.transfer.parse_init_info(request.init_info)
        await asyncio.to_thread(self.transfer.init_transfer_engine, info)

    async def start_weight_update(self) -> None:
        self.transfer.start_weight_update()

    async def update_weights(self, request: Any) -> None:
        await asyncio.to_thread(self.transfer.update_weights, request.update_info)

    async def finish_weight_update(self, version: str | None) -> None:
        self.transfer.finish_weight_update()
        self.version = version


class Wire:
    """A stand-in for NCCL: the group that vLLM forms for it, over a socket."""

    disabled = False

    def __init__(self, group: Any, device: Any) -> None:  # noqa: ARG002  as vLLM's
        self._group = group

    def broadcast(self, weight: Any, src: int, stream: Any = None) -> None:  # noqa: ARG002  as vLLM's
        sends = self._group.rank == src
        came = self._group.broadcast_obj(weight if sends else None, src)
        if not sends:
            weight.copy_(came)

    def destroy(self) -> None:
        pass


def sync_twice(sync: WeightSync, model: PolicyModel, engine: Engine, served: Served) -> None:
    """Sync before and after training; the first sync also forms the connection."""
    app = FastAPI()
    app.include_router(api_router.router)
    app.state.engine_client = engine
    client = TestClient(app)

    def call(method: str, path: str, body: dict[str, Any] | None) -> Any:
        answer = client.request(method, path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    for version in (1, 2):
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1.5)
        sync.send(version, call)
        assert engine.version == str(version)
        theirs = dict(served.lm.named_parameters())
        assert all(torch.equal(theirs[name], weight) for name, weight in model.weights().items())


def test_ipc(tiny_lm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = fake_cuda.pretend(monkeypatch)
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", IpcSync.env["VLLM_ALLOW_INSECURE_SERIALIZATION"])
    monkeypatch.setattr(ipc_engine, "rebuild_cuda_tensor", memory.open)
    monkeypatch.setattr(weight_sync, "GROUP_BYTES", 20_000)  # weights of one layer come in several groups
    served = Served(copy.deepcopy(tiny_lm))
    model = PolicyModel(tiny_lm)
    sync_twice(IpcSync(model), model, Engine(ipc_engine.IPCWeightTransferEngine, served), served)


def test_nccl(tiny_lm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda.pretend(monkeypatch)
    monkeypatch.setattr(pynccl, "PyNcclCommunicator", Wire)
    served = Served(copy.deepcopy(tiny_lm))
    model = PolicyModel(tiny_lm)
    sync_twice(NcclSync(model, ""), model, Engine(nccl_engine.NCCLWeightTransferEngine, served), served)
