"""Training on episodes that live across updates."""

import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from test_loop import SCRIPTED, config, numbers, weights  # noqa: E402  only where torch is there

from swe_gym.train.log import read_log  # noqa: E402
from swe_gym.train.loop import Trainer  # noqa: E402

ASYNC = {
    "generation": SCRIPTED,
    "optim": {"lr": 1e-3, "max_tokens_per_microbatch": 600},
    "run": {"updates": 6, "checkpoint_every": 2, "keep": 9},
    "algorithm": {"prompts_per_step": 2, "group_size": 2, "async_rollout": True, "max_staleness": 4},
}


def test_a_killed_run_repeats_its_updates(model_folder: str, tmp_path: Path) -> None:
    whole = Trainer(config(model_folder, tmp_path / "whole", **ASYNC))
    whole.run()
    lines = read_log(tmp_path / "whole" / "log.jsonl")
    updates = [line for line in lines if line["event"] == "update"]
    trained = [group for line in updates for group in line["groups"]]
    assert len(trained) == len(set(trained)) == 12  # each group once
    assert all(0 <= line[f"{name}_idle_frac"] <= 1 for line in updates for name in ("rollout", "train"))
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")  # as after a SIGKILL: the log is ahead of the checkpoint
    for checkpoint in ("00000004", "00000006"):
        shutil.rmtree(tmp_path / "cut" / "checkpoints" / checkpoint)
    resumed = Trainer(config(model_folder, tmp_path / "cut", **ASYNC))
    resumed.run()
    assert torch.equal(weights(whole), weights(resumed))
    assert numbers(tmp_path / "whole") == numbers(tmp_path / "cut")
    (event,) = (line for line in read_log(tmp_path / "cut" / "log.jsonl") if line["event"] == "resume")
    assert event["restarted"] + event["finished"] == 2 * 2 * 4  # max_staleness times the batch
