"""The data of training pages, computed from the logs of runs."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..errors import UsageError
from ..files import whole_lines
from ..trajectories.comparison import config_differences, distinct_names
from ..types import Json, JsonMapping, JsonObject

Line = JsonMapping
"""An event of a log."""

EPISODES_NAME = re.compile(r"(update|evaluation)-[0-9]+")
"""Name of the episodes of an update or evaluation."""


@dataclasses.dataclass(frozen=True, slots=True)
class TrainingRun:
    """The configuration and the log of a training run.

    Attributes:
        name: Last part of the folder's path, or as many parts as distinguish it from the others.
        config: Configuration.
        updates: Events of updates, in order.
        evaluations: Events of evaluations.
        saves: Events of checkpoints.
        minutes: Wall-clock minutes, over all resumes.
        episodes: Trajectory files of updates and evaluations by name, such as "update-3", in order.
    """

    name: str
    config: JsonObject
    updates: tuple[Line, ...]
    evaluations: tuple[Line, ...]
    saves: tuple[Line, ...]
    minutes: float
    episodes: Mapping[str, Path]


def is_training(path: str | os.PathLike[str]) -> bool:
    """Return whether a folder is a run folder of `swe-gym train`."""
    return Path(path, "log.jsonl").is_file() and Path(path, "config.json").is_file()


def read_training(paths: Iterable[str | os.PathLike[str]]) -> tuple[TrainingRun, ...]:
    """Read training runs.

    Raises:
        UsageError: A folder is not a training run, is given twice, or has a log that cannot be read.
    """
    folders = [Path(path) for path in paths]
    return tuple(_read(folder, name) for folder, name in zip(folders, distinct_names(folders), strict=True))


def _read(folder: Path, name: str) -> TrainingRun:
    if not is_training(folder):
        raise UsageError(f"not a training run: {folder} has no config.json and log.jsonl, which `swe-gym train` writes")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        lines = [json.loads(line) for _, line in whole_lines(folder / "log.jsonl")]
    except ValueError as error:
        raise UsageError(f"cannot read the training run {folder}: {error}") from error

    def about(event: str) -> tuple[Line, ...]:
        return tuple(line for line in lines if line["event"] == event)

    minutes = max((line.get("minutes", 0.0) for line in lines), default=0.0)
    files = [path for path in folder.glob("episodes/*.jsonl") if EPISODES_NAME.fullmatch(path.stem)]
    kept = {path.stem: path for path in sorted(files, key=lambda path: int(path.stem.rpartition("-")[2]))}
    return TrainingRun(name, config, about("update"), about("evaluation"), about("checkpoint"), minutes, kept)


# --- curves -------------------------------------------------------------------------------------------------


class Point(NamedTuple):
    """A point of a curve.

    Attributes:
        update: Number of updates.
        minutes: Wall-clock minutes.
        value: Value, or NaN.
        low: Lower end of the 95 % confidence interval, or NaN.
        high: Upper end of it.
    """

    update: int
    minutes: float
    value: float
    low: float = math.nan
    high: float = math.nan


class Metric(NamedTuple):
    """A metric of updates.

    Attributes:
        title: Title of its plot.
        about: Description.
        names: Names in the log. Those present are summed.
        share: Whether the values are between 0 and 1 and shown in percent.
        from_zero: Whether the axis starts at 0.
    """

    title: str
    about: str
    names: tuple[str, ...]
    share: bool = False
    from_zero: bool = True


METRICS = (
    Metric("Reward in training", "Mean over the episodes of the update.", ("reward",)),
    Metric("Valid calls", "Share of turns with a valid tool call.", ("calls_valid",), share=True),
    Metric("Tokens per episode", "Mean number of sampled tokens.", ("tokens_per_episode",)),
    Metric("Turns per episode", "Mean number of turns.", ("turns",)),
    Metric("Cut episodes", "Share of episodes that a limit ended: turns, time or context.", ("frac_cut",), share=True),
    Metric(
        "Cached prompts", "Share of the prompts' tokens that servers had in their caches.", ("frac_cached",), share=True
    ),
    Metric(
        "Groups with nonzero variance",
        "Share of episodes in groups whose rewards differ. The others have no gradient in a group estimator.",
        ("frac_nonzero_variance",),
        share=True,
    ),
    Metric(
        "Log-probability difference",
        "Mean absolute difference between sampler and trainer over the sampled tokens, before the update.",
        ("logprob_diff",),
    ),
    Metric(
        "Log-probability difference after weight sync",
        "The same for the answer to a fixed question, after each weight sync.",
        ("sync_logprob_diff",),
    ),
    Metric(
        "Effective sample size",
        "Effective share of the tokens under the importance weights between sampler and trainer.",
        ("ess",),
        share=True,
    ),
    Metric("Approximate KL", "KL divergence between the policies before and after the update (k3).", ("approx_kl",)),
    Metric("KL penalty", "KL divergence from the reference model.", ("kl",)),
    Metric(
        "Clipped tokens",
        "Share of the loss that the lower, upper or dual clip bounds.",
        ("clip_frac_low", "clip_frac_high", "clip_frac_dual"),
        share=True,
    ),
    Metric(
        "Ratio", "Mean ratio of new to old probability. 1 at the first step of an update.", ("ratio",), from_zero=False
    ),
    Metric(
        "Tails of the ratio",
        "Share of the loss's weight on tokens whose probability has more than doubled or halved within the update.",
        ("frac_ratio_tails",),
        share=True,
    ),
    Metric("Entropy", "Mean entropy of a token's distribution, in nats.", ("entropy",)),
    Metric("Gradient norm", "Before clipping.", ("grad_norm",)),
    Metric("Value loss", "Loss of the value head.", ("value_loss",)),
    Metric(
        "Explained variance",
        "Share of the returns' variance that the value head explains.",
        ("explained_variance",),
    ),
    Metric("Staleness", "Mean age of the trained tokens, in updates.", ("staleness_mean",)),
    Metric("Stale tokens", "Share of tokens too old to be trained.", ("frac_stale_tokens",), share=True),
    Metric("Sampler idle", "Share of the time in which no answer was sampled.", ("rollout_idle_frac",), share=True),
    Metric("Trainer idle", "Share of the time that the trainer waited.", ("train_idle_frac",), share=True),
    Metric(
        "Dropped episodes",
        "Lost to the infrastructure, too stale, or with values that are not finite.",
        ("lost", "stale", "nonfinite"),
    ),
)
"""The metrics of the page, in order."""


def curve(run: TrainingRun, metric: Metric) -> list[Point]:
    """Return a metric of a run; empty if the log does not have it."""
    points = [Point(line["update"], line["minutes"], _sum(line, metric.names)) for line in run.updates]
    return points if any(math.isfinite(point.value) for point in points) else []


def held_out(run: TrainingRun) -> list[Point]:
    """Return the mean reward of each evaluation, with its interval."""
    names = ("reward", "reward_low", "reward_high")
    return [Point(line["update"], line["minutes"], *(number(line, name) for name in names)) for line in run.evaluations]


def pass_at(run: TrainingRun) -> dict[str, list[Point]]:
    """Return pass@k of the evaluations by name, such as "pass@4"."""
    names = {name for line in run.evaluations for name in line if name.startswith("pass@")} - {"pass@1"}
    return {
        name: [Point(line["update"], line["minutes"], number(line, name)) for line in run.evaluations]
        for name in sorted(names, key=lambda name: int(name.removeprefix("pass@")))
    }


def smooth(points: Sequence[Point], width: int) -> list[Point]:
    """Return the running mean over the last `width` points."""
    found = []
    for index, point in enumerate(points):
        near = [one.value for one in points[max(0, index - width + 1) : index + 1] if math.isfinite(one.value)]
        found.append(point._replace(value=sum(near) / len(near) if near else math.nan))
    return found


def number(line: Line, name: str) -> float:
    """Return a number of an event; NaN if it is missing or text, which the log uses for values that are not finite."""
    value = line.get(name)
    return float(value) if isinstance(value, int | float) else math.nan


def _sum(line: Line, names: Iterable[str]) -> float:
    found = [number(line, name) for name in names if name in line]
    return sum(found) if found else math.nan


# --- time ---------------------------------------------------------------------------------------------------

PARTS = {
    "generation": "sampling, with rendering and encoding of the conversation",
    "tools": "tool calls in sandboxes",
    "reset": "start of sandboxes and repositories",
    "grading": "hidden tests",
    "lost tries": "episodes lost to the infrastructure",
    "idle": "threads without an episode while the last ones finish",
    "forward": "log-probabilities, before and in the update",
    "backward": "gradients",
    "optimizer": "optimizer steps",
    "weight sync": "weight sync and its check",
    "trainer": "overhead: batches, advantages, log, checkpoints, and code between the calls of an episode",
}
"""Part of the wall-clock time of an update -> description."""

_PLAYING = {
    "generation": "policy",
    "tools": "tools",
    "reset": "start",
    "grading": "grading",
    "lost tries": "lost",
    "idle": "idle",
    "trainer": "rest",
}
"""Part -> name in the log, for the summed times of the rollout threads."""

_LEARNING = {"forward": "forward", "backward": "backward", "optimizer": "step", "weight sync": "weight_sync"}


def spent(line: Line, saving: float = 0.0) -> dict[str, float]:
    """Return the wall-clock seconds of an update by part. They add up to the whole update.

    Many episodes run at once, and the log has sums over their threads. The time that the update waited for episodes is
    split in proportion to these sums.

    Args:
        line: Event of an update.
        saving: Seconds of the checkpoint after it.
    """
    seconds: Mapping[str, float] = line["seconds"]
    threads = {part: seconds.get(name, 0.0) for part, name in _PLAYING.items()}
    played = sum(threads.values())
    waited = seconds.get("waited", seconds["all"]) if played else 0.0
    found = {part: waited * threads.get(part, 0.0) / (played or 1.0) for part in PARTS}
    for part, name in _LEARNING.items():
        found[part] = seconds.get(name, 0.0)
    left = seconds["update"] - sum(found.values())
    found["trainer"] += max(0.0, left) + saving
    return found


def spent_by_update(run: TrainingRun) -> list[tuple[int, dict[str, float]]]:
    """Return `spent` of each update with its number. A checkpoint belongs to the update before it."""
    saving = {line["update"]: line["seconds"] for line in run.saves}
    return [(line["update"], spent(line, saving.get(line["update"], 0.0))) for line in run.updates]


def spent_in_all(run: TrainingRun) -> dict[str, float]:
    """Return the sum of `spent` over all updates."""
    updates = spent_by_update(run)
    return {part: sum(parts[part] for _, parts in updates) for part in PARTS}


def overhead(run: TrainingRun) -> float:
    """Return the share of the updates' time outside model and sandboxes; NaN without updates."""
    parts = spent_in_all(run)
    whole = sum(parts.values())
    return parts["trainer"] / whole if whole else math.nan


# --- configuration ------------------------------------------------------------------------------------------


def differences(runs: Sequence[TrainingRun]) -> dict[str, list[Json]]:
    """Return the fields in which the configurations differ: field -> value in each run, or None."""
    found = config_differences([run.config for run in runs])
    return {name: values for name, values in found.items() if name != "run.output"}
