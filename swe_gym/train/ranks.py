"""The processes that train together, one for each GPU of a machine, with the weights sharded by FSDP2.

The first process, rank 0, runs the training: it plays episodes, writes and decides. The others wait for its calls of
the learner and compute with it.
"""

import contextlib
import datetime
import functools
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import MissingDependency, SweGymError, UsageError
from .batch import Pack
from .config import ModelConfig

CALL_TIMEOUT = datetime.timedelta(days=7)
"""How long the other processes wait for a call, for example while rank 0 plays episodes. They end with rank 0."""

_BROKEN = re.compile(r"gloo/transport|NCCL")
"""Errors of collective calls after another process has ended."""


class RankLost(SweGymError):
    """Another training process ended, so training cannot continue. The last checkpoint is intact."""

    def __init__(self, why: str = "") -> None:
        super().__init__(
            "a training process ended, or torchrun was stopped: see the first error above. Run the same command again: "
            f"the run resumes from its last checkpoint{why and f' ({why})'}"
        )


P = ParamSpec("P")
R = TypeVar("R")


class Ranks:
    """The processes of a run; by default this one alone.

    Args:
        rank: Number of this process.
        size: Number of processes.
        device: Device of this process; None for the one that the configuration names.

    Attributes:
        rank: Number of this process.
        size: Number of processes.
        device: As in the arguments.
    """

    def __init__(self, rank: int = 0, size: int = 1, device: torch.device | None = None) -> None:
        self.rank, self.size, self.device = rank, size, device
        self._broken = False
        self._calls = dist.new_group(backend="gloo", timeout=CALL_TIMEOUT) if size > 1 else None

    # --- calls --------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def call(self, name: str, arguments: Sequence[object], options: Mapping[str, object]) -> Iterator[None]:
        """Call a method of the learner in all processes; the body of the `with` statement is the call in this one."""
        if self.size > 1 and self.rank == 0:
            self._broken = True  # unless the call ends
            dist.broadcast_object_list([(name, arguments, options)], group=self._calls)
        try:
            yield
        except RuntimeError as error:
            raise explain_broken(error) from error
        self._broken = False

    def follow(self, learner: object) -> None:
        """Compute what rank 0 calls, until it stops."""
        while True:
            received: list[Any] = [None]
            dist.broadcast_object_list(received, group=self._calls)
            name, arguments, options = received[0]
            if not name:
                return
            getattr(learner, name)(*arguments, **options)

    def stop(self) -> None:
        """End `follow` in the other processes. If a call failed, they fail too and torchrun ends them."""
        if self.size > 1 and self.rank == 0 and not self._broken:
            with self.call("", (), {}):
                pass

    # --- data ---------------------------------------------------------------------------------------------

    def share(self, packs: Sequence[Pack]) -> Iterator[tuple[Pack, bool]]:
        """Yield the microbatches of this process, and whether each counts.

        All processes get equally many, because each takes part in gathering the weights. Where they do not divide
        evenly, some processes compute the first microbatch without counting it.
        """
        for first in range(0, len(packs), self.size):
            mine = first + self.rank
            yield (packs[mine], True) if mine < len(packs) else (packs[0], False)

    def add_up(self, *tensors: Tensor | None) -> None:
        """Replace tensors by their sums over all processes."""
        if self.size > 1:
            for tensor in tensors:
                if tensor is not None:
                    dist.all_reduce(tensor)

    def totals(self, facts: Mapping[str, float]) -> dict[str, float]:
        """Return the sums of numbers over all processes, which have the same names."""
        sums = torch.tensor(list(facts.values()), dtype=torch.float64)
        self.add_up(sums)
        return dict(zip(facts, sums.tolist(), strict=True))

    # --- weights ------------------------------------------------------------------------------------------

    def shard(self, model: nn.Module, layers: Sequence[nn.Module], precision: str) -> None:
        """Shard a model over the processes: each layer, and the rest together.

        With `precision` "bfloat16" the layers' weights are gathered in bfloat16 and their gradients summed in float32.
        Shards stay float32; autocast computes as in one process, except that gains of norms are rounded to bfloat16.

        Raises:
            MissingDependency: PyTorch is too old.
        """
        try:
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        except ImportError as error:
            raise MissingDependency(f"training in several processes needs torch 2.6 or newer ({error})") from error
        assert self.device is not None
        mesh = init_device_mesh(self.device.type, (self.size,))
        half = torch.bfloat16 if precision == "bfloat16" else None
        policy = MixedPrecisionPolicy(half, torch.float32, cast_forward_inputs=False)
        for part in layers:
            fully_shard(part, mesh=mesh, reshard_after_forward=True, mp_policy=policy)
        fully_shard(model, mesh=mesh, reshard_after_forward=True)

    def whole(self, value: Any) -> Any:
        """Return a sharded tensor as a whole one in the memory of rank 0; None in others. Other values stay."""
        if self.size == 1 or not hasattr(value, "full_tensor"):
            return value
        full = value.full_tensor()  # in all processes
        return full.cpu() if self.rank == 0 else None

    def spread(self, value: Any, like: Any) -> Any:
        """Return the part of a whole tensor that this process has of a sharded one."""
        if self.size == 1 or getattr(value, "shape", ()) != like.shape or not hasattr(like, "device_mesh"):
            return value
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def explain_broken(error: RuntimeError) -> Exception:
    """Return what an error of a call in all processes means."""
    said = str(error).strip()
    return RankLost(said.splitlines()[0]) if _BROKEN.search(said) else error


def _end_at_sigterm(*_: object) -> None:
    raise RankLost


class _HasRanks(Protocol):
    @property
    def ranks(self) -> Ranks: ...


S = TypeVar("S", bound=_HasRanks)


def on_all_ranks(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Make a method one that all processes run when rank 0 calls it."""

    @functools.wraps(method)
    def call(self: S, /, *arguments: P.args, **options: P.kwargs) -> R:
        with self.ranks.call(method.__name__, arguments, options):
            return method(self, *arguments, **options)

    return call


@contextlib.contextmanager
def open_ranks(config: ModelConfig) -> Iterator[Ranks]:
    """Join the processes that torchrun started with this one; this one alone without torchrun.

    Raises:
        UsageError: The configuration or the machine does not allow several processes.
    """
    size = int(os.environ["WORLD_SIZE"]) if dist.is_torchelastic_launched() else 1
    if size == 1:
        yield Ranks()
        return
    device = _device(config, size)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    try:
        ranks = Ranks(dist.get_rank(), size, device)
        if ranks.rank > 0:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 stops the others
        else:
            signal.signal(signal.SIGTERM, _end_at_sigterm)  # torchrun sends it once another process has ended
        try:
            yield ranks
        finally:
            ranks.stop()
    finally:
        dist.destroy_process_group()


def _device(config: ModelConfig, size: int) -> torch.device:
    """Return the device of this process."""
    local, number = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
    if local != size:
        raise UsageError(
            f"torchrun started {size} processes on several machines: the trainer runs on one. Use an adapter for "
            "verl or SkyRL for more"
        )
    if config.lora_rank:
        raise UsageError("model.lora_rank needs one process: start without torchrun and without --nproc")
    kind = config.device.partition(":")[0]
    if kind == "cpu" or (kind == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if torch.cuda.device_count() < size:
        raise UsageError(f"{size} processes need {size} GPUs; {torch.cuda.device_count()} are visible")
    return torch.device("cuda", number)
