"""Training on episodes that live across updates."""

import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from test_loop import SCRIPTED, config, numbers, weights  # noqa: E402  only where torch is there

from swe_gym.rollout.tokens import Completion  # noqa: E402
from swe_gym.train.log import read_log  # noqa: E402
from swe_gym.train.loop import Trainer  # noqa: E402
from swe_gym.train.sampler import SyncedSampler  # noqa: E402

ASYNC: dict[str, dict[str, Any]] = {
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


class Weights:
    """A generator that notices if its weights change during an answer."""

    def __init__(self) -> None:
        self.version = self.running = self.mixed = 0

    def generate(self, prompt: Sequence[int], *, max_tokens: int, temperature: float, seed: int | None) -> Completion:  # noqa: ARG002
        self.running += 1
        version = self.version
        time.sleep(0.002)
        self.mixed += version != self.version
        self.running -= 1
        return Completion([1], [-1.0], "stop", version)

    def sync_weights(self, version: int) -> None:
        self.mixed += self.running > 0
        time.sleep(0.002)
        self.version = version

    def close(self) -> None:
        """Do nothing."""


def test_weights_change_between_answers() -> None:
    weights = Weights()
    sampler = SyncedSampler(weights)
    started = time.monotonic()
    seen: list[int] = []
    synced = threading.Event()

    def play() -> None:
        while not synced.is_set():
            seen.append(sampler.generate([1], max_tokens=1, temperature=1.0, seed=None).version)

    threads = [threading.Thread(target=play) for _ in range(4)]
    for thread in threads:
        thread.start()
    for version in range(1, 21):
        sampler.sync_weights(version)
    synced.set()
    for thread in threads:
        thread.join(30)
    assert weights.mixed == 0
    assert seen
    assert 0 < sampler.busy_seconds() <= time.monotonic() - started
