"""Checkpoints, complete or absent, and the state of a run: sufficient to resume it bit by bit."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

import torch

from ..errors import UsageError
from ..rollout import Failure
from ..tasks import ShuffledOrder, read_rates
from ..trajectories import Trajectory
from ..trajectories.run_folder import differences
from ..types import Json, JsonObject
from .collect import End, TrainSlot
from .config import TrainConfig, make_config
from .model import is_full
from .prefixes import Prefixes

if TYPE_CHECKING:  # it imports this module
    from .learner import Learner

logger = logging.getLogger(__name__)

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

        Raises:
            UsageError: It could not be written, for example because the disk is full. Earlier ones are intact.
        """
        target = self._folder / f"{update:08d}"
        partial = target.with_name(f"{target.name}.part")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            self._write(partial, update, tensors, facts, waiting)
        except (OSError, RuntimeError) as error:  # torch.save raises either if the disk is full
            shutil.rmtree(partial, ignore_errors=True)
            if isinstance(error, RuntimeError) and not is_full(error):
                raise
            last = self.last()
            rest = f"checkpoint {last.update} is intact" if last else "there is no earlier one"
            told = "Free disk space" if is_full(error) else "Make the folder writable"
            raise UsageError(
                f"the checkpoint of update {update} could not be written to {self._folder}: {error}; {rest}. {told} "
                "and run the same command again"
            ) from error
        shutil.rmtree(target, ignore_errors=True)
        partial.replace(target)
        for old in self._all()[: -self._keep]:
            shutil.rmtree(old, ignore_errors=True)
        return target

    def _write(
        self, partial: Path, update: int, tensors: State, facts: State, waiting: Iterable[tuple[int, Trajectory]]
    ) -> None:
        partial.mkdir(parents=True)
        torch.save({**tensors, "torch_rng": torch.get_rng_state()}, partial / "state.pt")
        if torch.cuda.is_available():
            torch.save(torch.cuda.get_rng_state_all(), partial / "cuda_rng.pt")
        lines = [json.dumps([number, trajectory.model_dump(mode="json")]) for number, trajectory in waiting]
        (partial / "waiting.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        (partial / "facts.json").write_text(json.dumps({**facts, "update": update, "random": random_state(random)}))
        (partial / _COMPLETE).touch()
        _sync(partial)

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


CANDIDATES = 4
"""Tasks that a Thompson draw looks at for each one that it takes."""


class PassRates:
    """What the policy has solved so far, as a Beta distribution of each task's pass rate.

    After an update in which s of k episodes of a task were resolved (MoPPS, arXiv 2507.04632, section 3):

        alpha' = l alpha + (1 - l) 1 + s        beta' = l beta + (1 - l) 1 + k - s

    l < 1 forgets what an older policy did. The tasks are chosen whose sampled rate r ~ Beta(alpha, beta) is nearest to
    1/2, where the episodes of a group differ most. Unknown tasks have Beta(1, 1), so they are tried, too.

    Args:
        counts: alpha and beta by task id, as in the attribute.

    Attributes:
        counts: alpha and beta of the tasks that were played.
    """

    FORGET = 0.5

    def __init__(self, counts: Mapping[str, Sequence[float]] | None = None) -> None:
        self.counts = {task_id: (alpha, beta) for task_id, (alpha, beta) in (counts or {}).items()}

    @classmethod
    def recorded(cls, place: str) -> Self:
        """Return the rates of `algorithm.pass_rates`, as if one update had played their attempts; none if it is empty.

        Raises:
            UsageError: There is no such record, or it does not have these rates.
        """
        if not place:
            return cls()
        policy, _, path = place.rpartition("=")
        if not Path(path).is_file():
            raise UsageError(f"algorithm.pass_rates: {path} is not a file: write FILE or NAME=FILE")
        rates = read_rates(path, policy)
        return cls({name: (1.0 + one.resolved, 1.0 + one.attempts - one.resolved) for name, one in rates.items()})

    def add(self, trajectories: Iterable[Trajectory]) -> None:
        """Count the episodes of an update."""
        found: dict[str, list[bool]] = {}
        for one in trajectories:
            found.setdefault(one.task_id, []).append(one.resolved)
        for task_id, resolved in found.items():
            kept = [self.FORGET * count + 1 - self.FORGET for count in self.counts.get(task_id, (1.0, 1.0))]
            self.counts[task_id] = (kept[0] + sum(resolved), kept[1] + len(resolved) - sum(resolved))

    def choose(self, task_ids: Sequence[str], count: int, draw: random.Random) -> list[int]:
        """Return the places of `count` candidates, in order."""
        far = [abs(draw.betavariate(*self.counts.get(task_id, (1.0, 1.0))) - 0.5) for task_id in task_ids]
        again = [task_id in task_ids[:place] for place, task_id in enumerate(task_ids)]  # a pass of all ends between
        return sorted(sorted(range(len(far)), key=lambda place: (again[place], far[place]))[:count])


_MAY_CHANGE = {
    "run": ("updates", "minutes", "output", "trackers", "keep_episodes"),
    "generation": ("url", "options"),
    "collect": ("ignore",),
    "optim": ("offload",),
}
"""The fields that may differ when a run resumes."""


class RunState:
    """The position of a run: what a checkpoint holds beside the learner's state.

    Attributes:
        update: Number of updates made.
        drawn: Number of tasks drawn, as candidates or to be played. Each is drawn once before any twice.
        tasks: Random number generator that draws seeds.
        shuffle: Random number generator that draws minibatches.
        in_flight: Episodes that were drawn and not trained on when the run was saved, and how they ended.
        rates: What the policy has solved so far, for the Thompson curriculum.
        prefixes: Successes from which failed groups start again.
    """

    def __init__(self, seed: int) -> None:
        self.update = self.drawn = 0
        self.tasks = random.Random(seed)
        self._order = ShuffledOrder(1, seed)
        self.shuffle = torch.Generator().manual_seed(seed)
        self.in_flight: list[tuple[TrainSlot, End]] = []
        self.rates = PassRates()
        self.prefixes = Prefixes()
        self._minutes_before = 0.0
        self._started = time.monotonic()

    @property
    def minutes(self) -> float:
        """Wall-clock minutes, over all resumes."""
        return self._minutes_before + (time.monotonic() - self._started) / 60

    def draw(self, task_ids: Sequence[str], groups: int, size: int, curriculum: str = "shuffled") -> list[TrainSlot]:
        """Draw the episodes of groups: a task each, without replacement, and a seed for each episode.

        With the curriculum "thompson" the tasks are chosen from `CANDIDATES` times as many.
        """
        if self._order.count != len(task_ids):
            self._order = ShuffledOrder(len(task_ids), self._order.seed)
        count = groups
        if curriculum == "thompson":
            count = max(groups, min(CANDIDATES * groups, len(task_ids)))
            if len(task_ids) <= groups and not self.drawn:
                logger.warning(
                    "algorithm.curriculum = 'thompson' changes nothing: an update plays %d groups, and there are %d "
                    "tasks. Lower algorithm.prompts_per_step, or add tasks",
                    groups,
                    len(task_ids),
                )
        first, self.drawn = self.drawn, self.drawn + count
        tasks = [task_ids[self._order[place]] for place in range(first, self.drawn)]
        chosen = self.rates.choose(tasks, groups, self.tasks) if curriculum == "thompson" else range(groups)
        return [
            TrainSlot(tasks[place], first + place, self.tasks.getrandbits(31)) for place in chosen for _ in range(size)
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
                "pass_rates": self.rates.counts,
                "prefixes": self.prefixes.facts(),
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
        self.rates = PassRates(facts.get("pass_rates"))
        self.prefixes = Prefixes(facts.get("prefixes"), self.prefixes.ignore)
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
