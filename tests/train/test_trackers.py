"""The numbers of a log reach the experiment trackers, each with its own package."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from swe_gym.errors import UsageError
from swe_gym.train.config import make_config
from swe_gym.train.log import Log, make_tracker, read_log
from swe_gym.train.loop import Trainer

CONFIG: dict[str, Any] = {"run": {"seed": 3}, "optim": {"lr": 1e-5}}


def log_two_updates(folder: Path, name: str) -> None:
    log = Log(folder, [make_tracker(name, folder, CONFIG)])
    for update in (1, 2):
        log.add("update", update, reward=0.25 * update, seconds={"forward": 1.5}, first_lost="")
    log.close()
    assert [line["reward"] for line in read_log(log.path)] == [0.25, 0.5]


def test_tensorboard_writes_event_files_into_the_run_folder(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log_two_updates(tmp_path, "tensorboard")
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in found.Scalars("update/reward")] == [(1, 0.25), (2, 0.5)]
    assert found.Scalars("update/seconds/forward")[0].value == 1.5


def test_mlflow_receives_metrics_and_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tmp_path.as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the small package has no database
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    log_two_updates(tmp_path, "mlflow")
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("swe-gym").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params == {"run.seed": "3", "optim.lr": "1e-05"}
    assert [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, "update/reward")] == [
        (1, 0.25),
        (2, 0.5),
    ]


def test_a_failed_run_is_failed_at_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tmp_path.as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    wanted = {
        "run": {"output": str(tmp_path / "run"), "trackers": ["mlflow"]},
        "model": {"path": str(tmp_path / "no-model")},
        "env": {"held_out": {"first": 1000, "count": 4}, "train": {"first": 0, "count": 4}},
    }
    with pytest.raises(UsageError, match="no-model"):
        Trainer(make_config(wanted))
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("swe-gym").experiment_id])
    assert run.info.status == "FAILED"


def test_wandb_receives_metrics_and_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    tracker = make_tracker("wandb", tmp_path, CONFIG)
    tracker.add({"update/reward": 0.25}, 1)
    tracker.add({"update/reward": 0.5}, 2)
    assert (wandb.run.summary["update/reward"], wandb.run.summary["at_update"]) == (0.5, 2)
    assert wandb.run.config["optim"] == {"lr": 1e-5}
    tracker.close(failed=False)


def test_a_failing_tracker_does_not_stop_the_run(tmp_path: Path) -> None:
    class Gone:
        def add(self, numbers: Mapping[str, float], update: int) -> None:
            raise ConnectionError(f"the service is gone, with {numbers} of update {update}")

        def close(self, *, failed: bool) -> None:
            """Do nothing."""

    log = Log(tmp_path, [Gone()])
    with pytest.warns(UserWarning, match="the service is gone"):
        log.add("update", 1, reward=0.5)
    assert read_log(log.path)[0]["reward"] == 0.5


def test_a_tracker_that_fails_to_start_is_named(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "tensorboard").write_text("a file where a folder is to be")
    with pytest.raises(UsageError, match=r"run\.trackers 'tensorboard' failed to start"):
        make_tracker("tensorboard", tmp_path, CONFIG)


def test_an_unknown_tracker_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="tensorboard"):
        make_tracker("tensorbord", tmp_path, CONFIG)
