"""The state of a run apart from the weights: saving, resuming, and the check of the run folder."""

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from ..errors import UsageError
from ..rollout import Failure
from ..tasks import ShuffledOrder
from ..trajectories import Trajectory
from ..trajectories.run_folder import differences
from ..types import JsonObject
from .async_collect import End
from .checkpoint import Checkpoints, random_state, set_random_state
from .collect import TrainSlot
from .config import TrainConfig, make_config
from .learner import Learner

_MAY_CHANGE = {"run": ("updates", "minutes", "output", "trackers"), "generation": ("url", "options")}
"""The fields that may differ when a run resumes."""


class RunState:
    """The position of a run: what a checkpoint holds beside the learner's state.

    Attributes:
        update: Number of updates made.
        drawn: Number of groups drawn. Each task is drawn once before any twice.
        tasks: Random number generator that draws seeds.
        shuffle: Random number generator that draws minibatches.
        in_flight: Episodes that were drawn and not trained on when the run was saved, and how they ended.
    """

    def __init__(self, seed: int) -> None:
        self.update = self.drawn = 0
        self.tasks = random.Random(seed)
        self._order = ShuffledOrder(1, seed)
        self.shuffle = torch.Generator().manual_seed(seed)
        self.in_flight: list[tuple[TrainSlot, End]] = []
        self._minutes_before = 0.0
        self._started = time.monotonic()

    @property
    def minutes(self) -> float:
        """Wall-clock minutes, over all resumes."""
        return self._minutes_before + (time.monotonic() - self._started) / 60

    def draw(self, task_ids: Sequence[str], groups: int, size: int) -> list[TrainSlot]:
        """Draw the episodes of groups: a task each, without replacement, and a seed for each episode."""
        if self._order.count != len(task_ids):
            self._order = ShuffledOrder(len(task_ids), self._order.seed)
        first, self.drawn = self.drawn, self.drawn + groups
        tasks = [task_ids[self._order[place]] for place in range(first, self.drawn)]
        return [
            TrainSlot(task_id, group, self.tasks.getrandbits(31))
            for group, task_id in enumerate(tasks, first)
            for _ in range(size)
        ]

    def save(self, checkpoints: Checkpoints, learner: Learner) -> None:
        """Write a checkpoint."""
        ends = [end for _, end in self.in_flight]
        checkpoints.save(
            self.update,
            tensors={**learner.state(), "shuffle": self.shuffle.get_state()},
            facts={
                "cursor": random_state(self.tasks),
                "minutes": self.minutes,
                "drawn": self.drawn,
                "in_flight": [slot for slot, _ in self.in_flight],
                "lost": [[index, *end] for index, end in enumerate(ends) if isinstance(end, Failure)],
            },
            waiting=[(index, end) for index, end in enumerate(ends) if isinstance(end, Trajectory)],
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
        learner.load(checkpoint.state)
        self.shuffle.set_state(tensors["shuffle"])
        set_random_state(facts["cursor"], self.tasks)
        self.drawn = facts["drawn"]
        ends: dict[int, End] = dict(checkpoint.waiting())
        ends |= {index: Failure(*fields) for index, *fields in facts["lost"]}
        self.in_flight = [(TrainSlot(*slot), ends.get(index)) for index, slot in enumerate(facts["in_flight"])]
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
    before = make_config(json.loads(path.read_text()))
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
