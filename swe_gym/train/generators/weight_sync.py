"""Weight sync to a vLLM server.

| method | how | needs |
|---|---|---|
| "file" | the server reads a Hugging Face folder | a folder that both see |
| "ipc" | the server copies from the trainer's GPU memory (CUDA IPC) | one GPU that trainer and server share |
| "nccl" | a broadcast from the trainer's GPU to the server's | separate GPUs; vLLM in the trainer's Python |

LoRA adapters are sent as adapters, in a folder. Merged into bfloat16 weights, most of their small steps would be lost.
"""

import base64
import contextlib
import importlib.util
import itertools
import math
import os
import pickle
import shutil
import socket
import urllib.parse
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.multiprocessing import reductions

from ...errors import MissingDependency, PolicyError, SweGymError, UsageError, unknown_name
from ...threads import in_thread
from ...types import Json, JsonMapping, JsonObject
from ..config import GenerationConfig, TrainConfig
from ..model import PolicyModel, explain_writing

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator


Call = Callable[[str, str, JsonObject | None], Json]
"""Sends method, path and JSON body to the server and returns its answer, or raises `PolicyError`."""

METHODS = ("file", "ipc", "nccl")

_SHORT = {"-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-dp": "--data-parallel-size"}
"""Arguments of `vllm serve` that multiply its number of GPUs."""


class WeightSync(Protocol):
    """A method of weight sync.

    Attributes:
        args: Arguments that the server must be started with.
        env: Environment variables that the server must be started with.
        model: Name by which requests ask for the synced weights; empty for the server's model.
    """

    args: Sequence[str]
    env: Mapping[str, str]
    model: str

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
    if model.lora_rank:
        method = config.options.get("weight_sync", "file")
        if method != "file":
            raise UsageError(
                f"generation.options.weight_sync = {method!r} sends whole weights, and model.lora_rank trains "
                "adapters: use 'file'"
            )
        return AdapterSync(model, folder)
    method = choose(config, next(model.parameters()).device)
    if method == "ipc":
        return IpcSync(model)
    if method == "nccl":
        return NcclSync(model, config.url)
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


def shares_card(config: TrainConfig, processes: int) -> bool:
    """Return whether a vLLM server that the trainer starts uses a GPU of a training process, also where there is none.

    Without `CUDA_VISIBLE_DEVICES`, GPUs have their numbers as names.
    """
    kind, _, number = config.model.device.partition(":")
    if config.generation.backend != "vllm" or config.generation.url or kind == "cpu":
        return False
    first = int(number or 0) if processes == 1 else 0  # torchrun's processes use the first ones
    used = range(first, first + processes)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    seen = {**os.environ, **config.generation.options.get("env", {})}.get("CUDA_VISIBLE_DEVICES")
    ours = [*map(str, used)] if visible is None else [visible.split(",")[index] for index in used]
    count = _count_gpus(config.generation.options)
    theirs = [*map(str, range(count))] if seen is None else str(seen).split(",")[:count]
    return not {name.strip() for name in ours}.isdisjoint(name.strip() for name in theirs)


def check_sleep(config: TrainConfig) -> None:
    """Check that a server that sleeps frees memory of the trainer's GPU.

    Raises:
        UsageError: The trainer starts it on another GPU, or trains on a CPU.
    """
    if config.generation.sleeps and not config.generation.url and not shares_card(config, 1):
        raise UsageError(
            "generation.options.sleep is for a vLLM server on the trainer's GPU, and by model.device and "
            "CUDA_VISIBLE_DEVICES they share none: leave it out"
        )


def read_arguments(options: JsonMapping) -> dict[str, str]:
    """Return the arguments of a server that the trainer starts, by their long names."""
    given = {}
    for argument, following in itertools.pairwise([*map(str, options.get("args", ())), ""]):
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            name = name.replace("_", "-")  # as vLLM reads them
        if name.startswith("-"):
            given[_SHORT.get(name, name)] = value if equals else following
    return given


def _count_gpus(options: JsonMapping) -> int:
    given = read_arguments(options)
    return math.prod(int(given[name]) for name in _SHORT.values() if given.get(name, "").isdecimal())


def _gpus_of_server(options: JsonMapping) -> list[str]:
    """Return the GPUs of a server that the trainer starts: the first of those visible to it."""
    return _visible({**os.environ, **options.get("env", {})})[: _count_gpus(options)]


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


TIMEOUT = 600.0
"""Seconds for the server to read the weights, to form the group, and for a broadcast."""


def write_folder(model: PolicyModel, tokenizer: "PreTrainedTokenizerBase", folder: Path) -> None:
    """Write a folder that vLLM reads.

    On a CPU, vLLM 0.32 repacks the output embedding only when it reads one. A tied embedding would keep its first
    values, so it is written untied there. Adapters are left out.

    Raises:
        UsageError: There is no room.
    """
    with explain_writing("the weights for vLLM", folder, _NO_ROOM):
        model.export(folder, tokenizer, untied=not torch.cuda.is_available(), base=True)


_NO_ROOM = (
    "Set generation.options.weight_sync_folder to a folder with room for them, or give a container more of /dev/shm "
    "(docker run --shm-size)"
)


class FileSync:
    """Writes a Hugging Face folder, makes the server read it, and removes it.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        folder: The parent folder, which the server must see.
    """

    args: Sequence[str] = ()
    env: Mapping[str, str] = {}
    model = ""

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


_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's `--max-lora-rank`."""


class AdapterSync:
    """Sends LoRA adapters as an adapter of vLLM, under a new name for each version.

    Under the same name, vLLM would keep using what its prefix cache holds, and read the folder again for each batch.

    Args:
        model: The model.
        folder: The parent folder, which the server must see.

    Raises:
        UsageError: vLLM has no room for adapters of this rank.
    """

    env: Mapping[str, str] = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}

    def __init__(self, model: PolicyModel, folder: Path) -> None:
        self._model, self._folder = model, folder
        room = next((rank for rank in _RANKS if rank >= model.lora_rank), None)
        if room is None:
            raise UsageError(f"model.lora_rank = {model.lora_rank}: vLLM serves adapters up to rank {_RANKS[-1]}")
        self.args: Sequence[str] = ("--enable-lora", "--max-loras", "1", "--max-lora-rank", str(room))
        self.model = ""
        self._run = uuid.uuid4().hex[:8]  # a server of one's own may hold adapters of other runs
        self._sent = itertools.count()

    def send(self, version: int, call: Call) -> None:
        """See `WeightSync`."""
        name = f"swe-gym-{self._run}-{version}-{next(self._sent)}"  # a resumed run sends the same version again
        folder = self._folder / name
        with explain_writing("the adapters for vLLM", folder, _NO_ROOM):
            self._model.lm.save_pretrained(folder, save_embedding_layers=False)  # True asks the Hugging Face Hub
        try:
            if self.model:
                with contextlib.suppress(PolicyError):  # a server that was restarted does not have it
                    call("POST", "/v1/unload_lora_adapter", {"lora_name": self.model})
                self.model = ""
            self._load(name, folder, call)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self.model = name

    def _load(self, name: str, folder: Path, call: Call) -> None:
        try:
            call("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
            listed = [model["id"] for model in call("GET", "/v1/models", None)["data"]]
        except PolicyError as error:
            if error.reason not in ("refused", "server"):
                raise
            variables = " ".join(f"{variable}={value}" for variable, value in self.env.items())
            raise PolicyError(
                f"{error}. A server of your own must see {self._folder} and be started with {variables} and "
                f"{' '.join(self.args)}",
                reason=error.reason,
                retryable=error.retryable,
            ) from error
        if name not in listed:
            raise PolicyError(f"vLLM accepted the adapter {name}, but lists only {listed}", reason="server")


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
    model = ""

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
    model = ""

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
