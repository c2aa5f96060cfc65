"""Checkpoints: complete or absent, and sufficient to resume a run bit by bit."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..errors import UsageError
from ..trajectories import Trajectory
from ..types import Json

State = dict[str, Any]
"""State dictionaries, or plain JSON."""

_COMPLETE = "complete"


class Checkpoints:
    """The checkpoints of a run folder, such as `checkpoints/00000017` after update 17.

    A checkpoint is written under another name and renamed at the end, so a kill leaves the previous one intact.

    Args:
        folder: The run folder.
        keep: Number of checkpoints to keep.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder / "checkpoints"
        self._keep = keep

    def save(
        self, update: int, *, tensors: State, facts: State, waiting: Iterable[tuple[int, Trajectory]] = ()
    ) -> Path:
        """Write a checkpoint.

        Args:
            update: Number of updates made.
            tensors: State dictionaries by name. The states of the global random number generators are added.
            facts: Plain JSON.
            waiting: Episodes that were played and not trained on yet, as (number, trajectory).
        """
        target = self._folder / f"{update:08d}"
        partial = target.with_name(f"{target.name}.part")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        torch.save({**tensors, "torch_rng": torch.get_rng_state()}, partial / "state.pt")
        if torch.cuda.is_available():
            torch.save(torch.cuda.get_rng_state_all(), partial / "cuda_rng.pt")
        lines = [json.dumps([number, trajectory.model_dump(mode="json")]) for number, trajectory in waiting]
        (partial / "waiting.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        (partial / "facts.json").write_text(json.dumps({**facts, "update": update, "random": random_state(random)}))
        (partial / _COMPLETE).touch()
        _sync(partial)
        shutil.rmtree(target, ignore_errors=True)
        partial.replace(target)
        for old in self._all()[: -self._keep]:
            shutil.rmtree(old, ignore_errors=True)
        return target

    def last(self) -> Checkpoint | None:
        """Return the last complete checkpoint."""
        found = self._all()
        return Checkpoint(found[-1]) if found else None

    def _all(self) -> list[Path]:
        return sorted(path.parent for path in self._folder.glob(f"[0-9]*[0-9]/{_COMPLETE}"))


class Checkpoint:
    """A checkpoint on disk.

    Args:
        folder: Its folder.

    Raises:
        UsageError: The checkpoint is incomplete.
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / _COMPLETE).exists():
            raise UsageError(f"not a complete checkpoint: {folder / _COMPLETE} is missing")
        self.folder = folder
        self.state = folder / "state.pt"
        self.facts: State = json.loads((folder / "facts.json").read_text())
        self.update: int = self.facts["update"]

    def tensors(self) -> State:
        """Return the state dictionaries."""
        state: State = torch.load(self.state, map_location="cpu", weights_only=True, mmap=True)
        return state

    def waiting(self) -> list[tuple[int, Trajectory]]:
        """Return the episodes that were played and not trained on yet."""
        lines = (self.folder / "waiting.jsonl").read_text(encoding="utf-8").splitlines()
        return [(number, Trajectory.model_validate(row)) for number, row in map(json.loads, lines)]

    def restore_random(self, state: State) -> None:
        """Restore the global random number generators of Python and PyTorch; `state` is `tensors()`."""
        set_random_state(self.facts["random"], random)
        torch.set_rng_state(state["torch_rng"])
        if (self.folder / "cuda_rng.pt").exists() and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(torch.load(self.folder / "cuda_rng.pt", weights_only=True))


def random_state(draw: random.Random | ModuleType) -> list[Json]:
    """Return the state of a `random.Random`, or of the module `random`, as plain JSON."""
    version, internal, gauss = draw.getstate()
    return [version, list(internal), gauss]


def set_random_state(state: list[Json], draw: random.Random | ModuleType) -> None:
    """Restore what `random_state` returned."""
    version, internal, gauss = state
    draw.setstate((version, tuple(internal), gauss))


def _sync(folder: Path) -> None:
    """Flush a folder to disk before it is renamed."""
    for path in [*folder.iterdir(), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
