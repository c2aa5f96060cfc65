"""The log of a run, `log.jsonl`, and the experiment trackers that receive its numbers."""

import contextlib
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from ..errors import MissingDependency, UsageError, unknown_name
from ..files import append_lines, json_lines, whole_lines, write_text
from ..types import Json, JsonMapping, JsonObject

PROJECT = "swe-gym"


class Tracker(Protocol):
    """An experiment tracker."""

    def add(self, numbers: Mapping[str, float], update: int) -> None:
        """Record the numbers of one event."""
        ...

    def close(self, *, failed: bool) -> None:
        """Flush, and mark the run as finished or failed."""
        ...


class TensorBoard:
    """Writes event files into the run folder."""

    def __init__(self, folder: Path, config: JsonMapping) -> None:  # noqa: ARG002  numbers only
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(folder / "tensorboard")

    def add(self, numbers: Mapping[str, float], update: int) -> None:
        """See `Tracker`."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, update)

    def close(self, *, failed: bool) -> None:  # noqa: ARG002  it has no status
        """See `Tracker`."""
        self._writer.close()


class WandB:
    """Logs to Weights & Biases, configured by its environment variables (`WANDB_PROJECT`, `WANDB_MODE`, ...)."""

    def __init__(self, folder: Path, config: JsonMapping) -> None:
        import wandb

        self._run = wandb.init(name=folder.name, dir=folder, config=dict(config), settings={"silent": True})

    def add(self, numbers: Mapping[str, float], update: int) -> None:
        """See `Tracker`. W&B refuses a step twice, so the update is a metric of its own."""
        self._run.log({**numbers, "at_update": update})

    def close(self, *, failed: bool) -> None:
        """See `Tracker`."""
        self._run.finish(exit_code=int(failed))


class MLflow:
    """Logs to MLflow, configured by `MLFLOW_TRACKING_URI` and `MLFLOW_EXPERIMENT_NAME`."""

    def __init__(self, folder: Path, config: JsonMapping) -> None:
        import mlflow
        from mlflow.entities import Param

        self._client = mlflow.MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        self._run = self._client.create_run(experiment, run_name=folder.name).info.run_id
        parameters = [
            Param(f"{section}.{field}", str(value)[:500])
            for section, values in config.items()
            for field, value in values.items()
        ]
        self._client.log_batch(self._run, params=parameters)

    def add(self, numbers: Mapping[str, float], update: int) -> None:
        """See `Tracker`."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, update) for name, value in numbers.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self, *, failed: bool) -> None:
        """See `Tracker`."""
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


TRACKERS: dict[str, Callable[[Path, JsonMapping], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
}


def make_tracker(name: str, folder: Path, config: JsonMapping) -> Tracker:
    """Start a tracker.

    Args:
        name: "tensorboard", "wandb" or "mlflow".
        folder: The run folder; its name becomes the run's name.
        config: The configuration, by section.

    Raises:
        UsageError: The name is unknown, or the tracker fails to start, for example without a login.
        MissingDependency: The tracker's package is not installed.
    """
    if name not in TRACKERS:
        raise unknown_name("tracker", name, list(TRACKERS))
    try:
        return TRACKERS[name](folder, config)
    except ImportError as error:
        raise MissingDependency(f"run.trackers {name!r} needs its package: pip install {name} ({error})") from error
    except Exception as error:  # any error of a third-party service
        raise UsageError(f"run.trackers {name!r} failed to start: {error}") from error


class Log:
    """A writer of `log.jsonl` that also sends the numbers to trackers.

    Args:
        folder: The run folder.
        trackers: Experiment trackers.

    Attributes:
        path: The file.
        trackers: Experiment trackers.
    """

    def __init__(self, folder: Path, trackers: Iterable[Tracker] = ()) -> None:
        self.path = folder / "log.jsonl"
        self.trackers = list(trackers)

    def truncate(self, update: int) -> list[JsonObject]:
        """Remove and return the events after an update, so that a resumed run logs no update twice."""
        if not self.path.exists():
            return []
        lines = [(json.loads(line), line) for _, line in whole_lines(self.path)]
        write_text(self.path, b"".join(line for event, line in lines if event.get("update", 0) <= update).decode())
        return [event for event, _ in lines if event.get("update", 0) > update]

    def add(self, event: str, update: int, **metrics: Json) -> None:
        """Append an event. Numbers that are not finite become strings."""
        line = {"event": event, "update": update, "time": round(time.time(), 3), **_to_plain(metrics)}
        append_lines(self.path, json.dumps(line, allow_nan=False))
        if numbers := dict(_numbers(event, metrics)):
            for tracker in self.trackers:
                with _tolerate(tracker):
                    tracker.add(numbers, metrics.get("step", update))

    def has(self, event: str) -> bool:
        """Return whether there is a line of this event."""
        return self.path.exists() and any(line["event"] == event for line in read_log(self.path))

    def close(self, *, failed: bool = False) -> None:
        """Close the trackers.

        Args:
            failed: Whether an error ended the run.
        """
        for tracker in self.trackers:
            with _tolerate(tracker):
                tracker.close(failed=failed)


def read_log(path: Path) -> list[JsonObject]:
    """Return the events of a log, in order. An incomplete last line is ignored."""
    return [json.loads(line) for _, line in json_lines(path)]


@contextlib.contextmanager
def _tolerate(tracker: Tracker) -> Iterator[None]:
    """Turn an error of a tracker into a warning: `log.jsonl` is complete without it."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  any error of a third-party service
        warnings.warn(f"{type(tracker).__name__} failed; training continues: {error}", stacklevel=3)


def _to_plain(value: Json) -> Json:
    if isinstance(value, dict):
        return {name: _to_plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    return value


def _numbers(prefix: str, metrics: JsonObject) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for name, value in metrics.items():
        if isinstance(value, dict):
            found += _numbers(f"{prefix}/{name}", value)
        elif isinstance(value, int | float):
            found.append((f"{prefix}/{name}", float(value)))
    return found
