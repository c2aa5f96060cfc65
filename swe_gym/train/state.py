"""The state of a run apart from the weights: saving, resuming, and the check of the run folder."""

import json
import random
import time
from pathlib import Path

import torch

from ..errors import UsageError
from ..trajectories.run_folder import differences
from ..types import JsonObject
from .checkpoint import Checkpoints, random_state, set_random_state
from .collect import Played
from .config import TrainConfig, stored_config
from .learner import Learner

_MAY_CHANGE = {"run": ("updates", "minutes", "output", "trackers"), "generation": ("url", "options")}
"""The fields that may differ when a run resumes."""


class RunState:
    """The position of a run: what a checkpoint holds beside the learner's state.

    Attributes:
        update: Number of updates made.
        tasks: Random number generator that draws tasks and seeds.
        shuffle: Random number generator that draws minibatches.
        pending: Episodes that were played and not trained on yet.
    """

    def __init__(self, seed: int) -> None:
        self.update = 0
        self.tasks = random.Random(seed)
        self.shuffle = torch.Generator().manual_seed(seed)
        self.pending: Played | None = None
        self._minutes_before = 0.0
        self._started = time.monotonic()

    @property
    def minutes(self) -> float:
        """Wall-clock minutes, over all resumes."""
        return self._minutes_before + (time.monotonic() - self._started) / 60

    def save(self, checkpoints: Checkpoints, learner: Learner) -> None:
        """Write a checkpoint."""
        pending = self.pending
        checkpoints.save(
            self.update,
            tensors={**learner.state(), "shuffle": self.shuffle.get_state()},
            facts={
                "cursor": random_state(self.tasks),
                "minutes": self.minutes,
                "waiting_seconds": pending.seconds if pending else None,
                "lost": list(pending.lost) if pending else [],
            },
            waiting=list(zip(pending.groups, pending.trajectories, strict=True)) if pending else (),
        )

    def resume(self, checkpoints: Checkpoints, learner: Learner) -> bool:
        """Load the last checkpoint.

        Returns:
            Whether there is one.
        """
        checkpoint = checkpoints.last()
        if checkpoint is None:
            return False
        tensors, facts = checkpoint.tensors(), checkpoint.facts
        learner.load(tensors)
        self.shuffle.set_state(tensors["shuffle"])
        set_random_state(facts["cursor"], self.tasks)
        if facts["waiting_seconds"] is not None:
            rows = checkpoint.waiting()
            self.pending = Played(
                trajectories=tuple(trajectory for _, trajectory in rows),
                groups=tuple(group for group, _ in rows),
                lost=tuple(facts["lost"]),
                seconds=facts["waiting_seconds"],
            )
        checkpoint.restore_random(tensors)
        self.update = checkpoint.update
        self._minutes_before = facts["minutes"]
        return True


def check_folder(folder: Path, checkpoints: Checkpoints, config: TrainConfig) -> None:
    """Check that a run folder is empty or holds a run of the same configuration.

    Without a checkpoint a run starts over, whatever its configuration. The length of a run may change.

    Raises:
        UsageError: The folder holds a run of another configuration.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    if checkpoints.last() is None or not path.exists():
        return
    before = stored_config(json.loads(path.read_text()))
    changed = "; ".join(differences(_fixed_fields(before), _fixed_fields(config)))
    if changed:
        raise UsageError(
            f"{folder} holds a run with another configuration ({changed}): resume it unchanged, or choose another "
            "run.output"
        )


def _fixed_fields(config: TrainConfig) -> JsonObject:
    values: JsonObject = json.loads(config.model_dump_json())
    for section, names in _MAY_CHANGE.items():
        for name in names:
            del values[section][name]
    return values
