"""Experiment trackers: TensorBoard, Weights & Biases and MLflow. Each receives the numbers of the log."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from ..errors import MissingDependency, UsageError, unknown_name
from ..types import JsonMapping

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
