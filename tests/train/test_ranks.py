"""Two processes on a CPU train as one does, and read each other's checkpoints."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from test_loop import SCRIPTED, config, numbers, toml, weights  # noqa: E402  only where torch is there

from swe_gym.errors import UsageError  # noqa: E402
from swe_gym.testing.sandbox_contract.case import eventually  # noqa: E402
from swe_gym.train.config import ModelConfig  # noqa: E402
from swe_gym.train.loop import Trainer  # noqa: E402
from swe_gym.train.ranks import explain_broken, open_ranks  # noqa: E402

CLIP = 0.01
"""Smaller than every gradient norm."""

SECTIONS: dict[str, dict[str, Any]] = {
    "run": {"checkpoint_every": 2, "keep": 99},
    "model": {"value_head": True},
    "generation": {**SCRIPTED, "max_tokens": 100, "max_context": 200},
    "algorithm": {"prompts_per_step": 1, "group_size": 3, "advantage": "gae", "kl_coef": 0.1},
    "optim": {"lr": 1e-3, "max_tokens_per_microbatch": 200, "max_grad_norm": CLIP},  # an episode in each microbatch
}
HERE = Path(__file__).parent


def cut(run: Path, to: Path, update: int) -> Path:
    """Copy a run as it was after an update."""
    shutil.copytree(run, to)
    for checkpoint in (to / "checkpoints").iterdir():
        if int(checkpoint.name) > update:
            shutil.rmtree(checkpoint)
    return to


def compare(one: Path, two: Path, looser: float = 1.0) -> None:
    """Check that two runs have the same numbers: losses within 1e-5, whatever their size."""
    for left, right in zip(numbers(one), numbers(two), strict=True):
        assert left.keys() == right.keys()
        for name, value in left.items():
            if name == "played":
                continue
            within = {"rel": 0.0 if name.endswith("loss") else looser * 1e-4, "abs": looser * 1e-5}
            same = right[name] if isinstance(value, str) else pytest.approx(right[name], **within)
            assert value == same, (left["update"], name)
        assert left["grad_norm"] > CLIP


@pytest.mark.thorough
def test_two_processes_train_in_bfloat16_as_one(model_folder: str, tmp_path: Path) -> None:
    """The layers' gains are gathered in bfloat16, so the numbers are near and not equal; the shards stay float32."""
    sections = {
        **SECTIONS,
        "run": {**SECTIONS["run"], "updates": 4},
        "model": {"value_head": True, "precision": "bfloat16"},
    }
    one = Trainer(config(model_folder, tmp_path / "one", **sections))
    one.run()
    two = cut(tmp_path / "one", tmp_path / "two", 2)
    run_two(config(model_folder, two, **sections), tmp_path / "run.toml")
    compare(tmp_path / "one", two, looser=300)
    again = Trainer(config(model_folder, cut(two, tmp_path / "again", 4), **sections))
    again.run()
    assert {weight.dtype for weight in again.model.lm.state_dict().values()} == {torch.float32}
    assert torch.allclose(weights(one), weights(again), atol=3e-3)


def start_two(wanted: Any, path: Path) -> subprocess.Popen[str]:
    """Begin to train in two processes with the command line."""
    values = wanted.model_dump(mode="json")
    path.write_text("".join(f"{name} = {toml(value)}\n" for name, value in values.items()))
    command = [sys.executable, "-m", "swe_gym", "train", str(path), "--nproc", "2"]
    places = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": places, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_two(wanted: Any, path: Path) -> None:
    """Train in two processes with the command line."""
    with start_two(wanted, path) as process:
        said, problem = process.communicate(timeout=500)
    assert process.returncode == 0, problem[-3000:]
    assert said.count("Model: ") == 1


@pytest.mark.parametrize(
    ("updates", "minibatches"),
    [
        (6, 1),  # three microbatches: two in one process, one in the other
        (6, 3),  # one microbatch: none in the other process
        pytest.param(22, 1, marks=pytest.mark.thorough),
    ],
)
def test_two_processes_train_as_one(model_folder: str, tmp_path: Path, updates: int, minibatches: int) -> None:
    run, algorithm = {**SECTIONS["run"], "updates": updates}, {**SECTIONS["algorithm"], "minibatches": minibatches}
    sections = {**SECTIONS, "run": run, "algorithm": algorithm}
    one = Trainer(config(model_folder, tmp_path / "one", **sections))
    one.run()
    two = cut(tmp_path / "one", tmp_path / "two", 2)
    run_two(config(model_folder, two, **sections), tmp_path / "run.toml")
    compare(tmp_path / "one", two)
    again = Trainer(config(model_folder, cut(two, tmp_path / "again", updates - 2), **sections))
    again.run()
    compare(tmp_path / "one", tmp_path / "again")
    assert torch.allclose(weights(one), weights(again), atol=1e-5)
    from transformers import AutoModelForCausalLM

    exported = AutoModelForCausalLM.from_pretrained(two / "model").state_dict()
    trained = one.model.lm.state_dict()
    assert all(torch.allclose(weight, trained[name], atol=1e-5) for name, weight in exported.items())


def test_an_error_of_a_lost_process_says_how_to_resume() -> None:
    lost = RuntimeError("[gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:34455: Connection reset by peer")
    assert "Run the same command again" in str(explain_broken(lost))
    other = RuntimeError("shapes do not match")
    assert explain_broken(other) is other


def test_what_nccl_said_of_a_lost_process_is_kept() -> None:
    told = str(explain_broken(RuntimeError("NCCL error: unhandled system error\nLast error: no bootstrap")))
    assert told.endswith("resumes from its last checkpoint (NCCL error: unhandled system error)")


@pytest.mark.thorough
def test_a_killed_process_ends_the_run_which_resumes(model_folder: str, tmp_path: Path) -> None:
    sections = {**SECTIONS, "run": {**SECTIONS["run"], "checkpoint_every": 1, "updates": 300}}
    wanted, output = config(model_folder, tmp_path / "run", **sections), tmp_path / "run"
    log = output / "log.jsonl"
    with start_two(wanted, tmp_path / "run.toml") as torchrun:
        eventually(lambda: log.exists() and len(numbers(output)) > 1, 300, "two updates")
        children = Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text().split()
        (second,) = (pid for pid in children if b"\0RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes())
        os.kill(int(second), signal.SIGKILL)
        _, said = torchrun.communicate(timeout=100)
    assert torchrun.returncode
    assert "the run resumes from its last checkpoint" in said
    done = len(numbers(output))
    sections["run"]["updates"] = done + 1
    run_two(config(model_folder, output, **sections), tmp_path / "run.toml")
    assert [line["update"] for line in numbers(output)] == [*range(1, done + 2)]


@pytest.mark.parametrize(
    ("variables", "model", "message"),
    [
        ({"LOCAL_WORLD_SIZE": "1"}, {}, "on several machines"),
        ({}, {"lora_rank": 8}, "model.lora_rank needs one process"),
        ({}, {"device": "cuda"}, "2 processes need 2 GPUs"),
    ],
)
def test_what_several_processes_cannot_do(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], model: dict[str, Any], message: str
) -> None:
    started = {"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    for name, value in {**started, **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UsageError, match=message), open_ranks(ModelConfig(path="m", **model)):
        pass
