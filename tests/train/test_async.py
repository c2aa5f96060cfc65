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

from swe_gym.errors import PolicyError  # noqa: E402
from swe_gym.rollout.tokens import Completion  # noqa: E402
from swe_gym.testing.sandbox_contract.case import eventually  # noqa: E402
from swe_gym.train.generators import WeightsLost  # noqa: E402
from swe_gym.train.log import read_log  # noqa: E402
from swe_gym.train.loop import Trainer  # noqa: E402
from swe_gym.train.sampler import SyncedSampler, TrainingStopped  # noqa: E402

ASYNC: dict[str, dict[str, Any]] = {
    "generation": SCRIPTED,
    "optim": {"lr": 1e-3, "max_tokens_per_microbatch": 600},
    "run": {"updates": 6, "checkpoint_every": 2, "keep": 9},
    "algorithm": {
        "prompts_per_step": 2,
        "group_size": 2,
        "tokens_per_step": 150,
        "async_rollout": True,
        "max_staleness": 4,
    },
}


def test_a_killed_run_repeats_its_updates(model_folder: str, tmp_path: Path) -> None:
    whole = Trainer(config(model_folder, tmp_path / "whole", **ASYNC))
    whole.run()
    lines = read_log(tmp_path / "whole" / "log.jsonl")
    updates = [line for line in lines if line["event"] == "update"]
    trained = [group for line in updates for group in line["groups"]]
    assert len(trained) == len(set(trained)) == sum(line["episodes"] for line in updates) / 2  # each group once
    assert all(line["tokens_per_episode"] * line["episodes"] >= 150 for line in updates)
    assert all(2 < len(line["groups"]) < 8 for line in updates)
    assert all(0 <= line[f"{name}_idle_frac"] <= 1 for line in updates for name in ("rollout", "train"))
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")  # as after a SIGKILL: the log is ahead of the checkpoint
    for checkpoint in ("00000004", "00000006"):
        shutil.rmtree(tmp_path / "cut" / "checkpoints" / checkpoint)
    resumed = Trainer(config(model_folder, tmp_path / "cut", **ASYNC))
    resumed.run()
    assert torch.equal(weights(whole), weights(resumed))
    assert numbers(tmp_path / "whole") == numbers(tmp_path / "cut")
    (event,) = (line for line in read_log(tmp_path / "cut" / "log.jsonl") if line["event"] == "resume")
    assert event["restarted"] + event["finished"] == 2 * (2 * 5 - 1)  # the last group is not replaced yet


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
        while not (seen and synced.is_set()):
            seen.append(sampler.generate([1], max_tokens=1, temperature=1.0, seed=None).version)

    threads = [threading.Thread(target=play) for _ in range(4)]
    for thread in threads:
        thread.start()
    for version in range(1, 21):
        sampler.sync_weights(version)
        if version == 10:
            eventually(lambda: 10 in seen, 60, "an answer came between two syncs")
    synced.set()
    for thread in threads:
        thread.join(60)
    assert weights.mixed == 0
    assert 0 < sampler.busy_seconds() <= time.monotonic() - started


class Forgetful(Weights):
    """A generator that loses its weights before its next answers."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.left = times
        self.syncs: list[int] = []
        self.asked = threading.Event()

    def generate(self, prompt: Sequence[int], *, max_tokens: int, temperature: float, seed: int | None) -> Completion:
        self.asked.set()
        if self.left:
            self.left -= 1
            raise WeightsLost("the server was restarted")
        return super().generate(prompt, max_tokens=max_tokens, temperature=temperature, seed=seed)

    def sync_weights(self, version: int) -> None:
        super().sync_weights(version)
        self.syncs.append(version)


def sample(sampler: SyncedSampler) -> Completion:
    return sampler.generate([1], max_tokens=1, temperature=1.0, seed=None)


def test_lost_weights_are_sent_again_and_the_answer_is_asked_for_again() -> None:
    weights = Forgetful(2)
    sampler = SyncedSampler(weights)
    sampler.sync_weights(4)
    assert sample(sampler).version == 4
    assert weights.syncs == [4, 4, 4]
    weights.left = 3
    with pytest.raises(WeightsLost):  # a prompt that ends every server must not keep the run busy for ever
        sample(sampler)


def test_weights_lost_while_the_trainer_learns_wait_for_its_sync() -> None:
    """The model's weights are then neither those that were synced nor those of a whole update."""
    weights = Forgetful(1)
    sampler = SyncedSampler(weights)
    sampler.sync_weights(4)
    sampler.begin_learning()
    versions: list[int] = []
    thread = threading.Thread(target=lambda: versions.append(sample(sampler).version))
    thread.start()
    assert weights.asked.wait(30)
    sampler.sync_weights(5)
    thread.join(30)
    assert (versions, weights.syncs) == ([5], [4, 5])


def test_weights_that_cannot_be_sent_again_end_every_episode() -> None:
    class Gone(Forgetful):
        def sync_weights(self, version: int) -> None:
            if version == 4 and not self.left:
                raise PolicyError("the server is gone", reason="connection")
            super().sync_weights(version)

    sampler = SyncedSampler(Gone(1))
    sampler.sync_weights(4)
    for _ in range(2):
        with pytest.raises(TrainingStopped, match="lost weights 4 and did not take them: the server is gone"):
            sample(sampler)
