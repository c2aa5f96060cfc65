"""Checkpoints: whole or not there, and enough to go on as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..errors import UsageError
from ..trajectories.trajectory import Trajectory

_COMPLETE = "complete"


class Checkpoints:
    """The checkpoints of a run folder, `checkpoints/00000017` after update 17.

    One is written beside the others and renamed at the end, so that a kill at any moment leaves the last whole one.

    Args:
        folder: The run folder.
        keep: How many of the last to keep.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder / "checkpoints"
        self._keep = keep

    def save(self, update: int, *, tensors: dict[str, Any], facts: dict[str, Any], waiting: Sequence[Any] = ()) -> Path:
        """Write one.

        Args:
            update: How many updates were made.
            tensors: State dictionaries by name; the generators' states are added.
            facts: Plain JSON: the data cursor and so on.
            waiting: Episodes that were played and not yet trained on, as (group, trajectory).
        """
        target = self._folder / f"{update:08d}"
        partial = target.with_name(f"{target.name}.part")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        torch.save({**tensors, "torch_rng": torch.get_rng_state()}, partial / "state.pt")
        if torch.cuda.is_available():
            torch.save(torch.cuda.get_rng_state_all(), partial / "cuda_rng.pt")
        lines = [json.dumps([group, trajectory.model_dump(mode="json")]) for group, trajectory in waiting]
        (partial / "waiting.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        (partial / "facts.json").write_text(json.dumps({**facts, "update": update, "random": _random_state()}))
        (partial / _COMPLETE).touch()
        _sync(partial)
        shutil.rmtree(target, ignore_errors=True)
        partial.replace(target)
        for old in self._all()[: -self._keep]:
            shutil.rmtree(old, ignore_errors=True)
        return target

    def last(self) -> Checkpoint | None:
        """The last whole one."""
        found = self._all()
        return Checkpoint(found[-1]) if found else None

    def _all(self) -> list[Path]:
        return sorted(path.parent for path in self._folder.glob(f"[0-9]*[0-9]/{_COMPLETE}"))


class Checkpoint:
    """One checkpoint.

    Args:
        folder: Where it lies.

    Raises:
        UsageError: It is not whole.
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / _COMPLETE).exists():
            raise UsageError(f"{folder} is no whole checkpoint")
        self.folder = folder
        self.facts: dict[str, Any] = json.loads((folder / "facts.json").read_text())
        self.update: int = self.facts["update"]

    def tensors(self) -> dict[str, Any]:
        """The state dictionaries."""
        state: dict[str, Any] = torch.load(self.folder / "state.pt", map_location="cpu", weights_only=True)
        return state

    def waiting(self) -> list[tuple[int, Trajectory]]:
        """The episodes that were played and not trained on."""
        lines = (self.folder / "waiting.jsonl").read_text(encoding="utf-8").splitlines()
        return [(group, Trajectory.model_validate(row)) for group, row in map(json.loads, lines)]

    def restore_random(self, state: dict[str, Any]) -> None:
        """Put the random generators of Python and torch back to where they were; `state` is `tensors()`."""
        version, internal, gauss = self.facts["random"]
        random.setstate((version, tuple(internal), gauss))
        torch.set_rng_state(state["torch_rng"])
        if (self.folder / "cuda_rng.pt").exists() and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(torch.load(self.folder / "cuda_rng.pt", weights_only=True))


def _random_state() -> list[Any]:
    version, internal, gauss = random.getstate()
    return [version, list(internal), gauss]


def _sync(folder: Path) -> None:
    """Have the disk keep it before it gets its name."""
    for path in [*folder.iterdir(), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
