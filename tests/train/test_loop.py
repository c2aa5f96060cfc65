"""Whole runs: a tiny model, real sandboxes, real tests. A run that was killed goes on as if nothing had happened."""

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from swe_gym.cli import main  # noqa: E402
from swe_gym.errors import PolicyError, UsageError  # noqa: E402  only where torch is there
from swe_gym.rollout.tokens import Completion, Conversation  # noqa: E402
from swe_gym.train.batch import segments_batch  # noqa: E402
from swe_gym.train.config import GenerationConfig, TrainConfig, make_config  # noqa: E402
from swe_gym.train.generators.scripted import ScriptedGenerator  # noqa: E402
from swe_gym.train.log import read_log  # noqa: E402
from swe_gym.train.loop import Trainer, TrainingStopped, train  # noqa: E402
from swe_gym.trajectories.run_folder import take_lock  # noqa: E402


@pytest.fixture
def model_folder(tiny_lm: Any, tokenizer: Any, tmp_path: Path) -> str:
    folder = tmp_path / "start"
    tiny_lm.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def config(start: str, output: Path, **sections: dict[str, Any]) -> TrainConfig:
    values: dict[str, Any] = {
        "run": {"output": str(output), "updates": 3, "evaluate_every": 0, "checkpoint_every": 1},
        "model": {"path": start},
        "env": {
            "options": {"max_turns": 1, "difficulty": 1},
            "train": {"first": 0, "count": 4},
            "held_out": {"first": 100, "count": 4},
            "system": "One JSON tool call.",
            "workers": 4,
        },
        "generation": {"backend": "hf", "max_tokens": 6, "max_context": 400},
        "algorithm": {"tasks": 2, "attempts": 2, "advantage": "grpo"},
        "optim": {"lr": 1e-3, "micro_tokens": 400},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return make_config(values)


def says_by_seed(prompt: str, seed: int | None) -> str:
    """Right for even seeds, wrong for odd ones: so that there is something to learn."""
    if "Create the file" not in prompt:
        return "four"
    words = prompt.split("Create the file `")[1]
    path, rest = words.split("`", 1)
    word = rest.split(": ")[1].split()[0].removesuffix("<|im_end|>")
    command = f"echo {word} > {path}" if seed is None or seed % 2 == 0 else "true"
    return json.dumps({"name": "bash", "arguments": {"command": command}})


SCRIPTED = {
    "backend": "scripted",
    "options": {"reply": "test_loop:says_by_seed"},
    "max_tokens": 100,
    "max_context": 500,
    "max_gap": 100.0,
}


def weights(trainer: Trainer) -> Any:
    return torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()])


def numbers(output: Path) -> list[dict[str, Any]]:
    """What was logged of updates, without clocks."""
    clocks = ("time", "minutes", "seconds")
    lines = [line for line in read_log(output / "log.jsonl") if line["event"] == "update"]
    return [{name: value for name, value in line.items() if name not in clocks} for line in lines]


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {
            "generation": SCRIPTED,
            "optim": {"lr": 1e-3, "micro_tokens": 600},
            "warm_start": {"episodes": 2, "lr": 1e-2},
            "algorithm": {"tasks": 2, "attempts": 2, "kl": 0.1},
        },
        {
            "generation": SCRIPTED,
            "optim": {"lr": 1e-3, "micro_tokens": 600},
            "algorithm": {
                "tasks": 2,
                "attempts": 2,
                "advantage": "gae",
                "overlap": True,
                "minibatches": 2,
                "epochs": 2,
            },
            "model": {"value_head": True},
        },
    ],
    ids=["hf", "scripted, held to what a warm start left", "scripted, overlapping, with a value head"],
)
def test_a_run_that_was_stopped_goes_on_bit_by_bit(model_folder: str, tmp_path: Path, sections: Any) -> None:
    whole = Trainer(config(model_folder, tmp_path / "whole", **sections))
    whole.run()
    Trainer(config(model_folder, tmp_path / "cut", run={"updates": 1}, **sections)).run()
    with (tmp_path / "cut" / "log.jsonl").open("a") as log:  # of an update whose checkpoint was never written
        log.write('{"event": "update", "update": 2, "loss": 99.0}\n{"event": "upd')
    shutil.copytree(tmp_path / "cut" / "checkpoints" / "00000001", tmp_path / "cut" / "checkpoints" / "00000009.part")
    resumed = Trainer(config(model_folder, tmp_path / "cut", **sections))
    resumed.run()
    assert torch.equal(weights(whole), weights(resumed))
    assert numbers(tmp_path / "whole") == numbers(tmp_path / "cut")
    assert [line["update"] for line in numbers(tmp_path / "cut")] == [1, 2, 3]


def test_before_an_update_the_ratio_is_one_and_sampler_and_trainer_agree(model_folder: str, tmp_path: Path) -> None:
    Trainer(config(model_folder, tmp_path / "run")).run()
    lines = numbers(tmp_path / "run")
    assert all(abs(line["ratio"] - 1) < 1e-3 for line in lines)
    assert all(line["gap"] < 1e-4 for line in lines)
    assert all(line["episodes"] == 4 for line in lines)


def test_what_is_rewarded_becomes_likelier(model_folder: str, tmp_path: Path) -> None:
    sections = {
        "generation": SCRIPTED,
        "optim": {"lr": 3e-3, "micro_tokens": 600},
        "run": {"updates": 6},
        "algorithm": {"tasks": 4, "attempts": 4, "advantage": "rloo", "importance_cap": 0},
    }
    trainer = Trainer(config(model_folder, tmp_path / "run", **sections))
    before = _likelihoods(trainer)
    trainer.run()
    after = _likelihoods(trainer)
    assert after["right"] - after["wrong"] > before["right"] - before["wrong"] + 1.0


def _likelihoods(trainer: Trainer) -> dict[str, float]:
    found = {}
    prompt = "Create the file `x.txt` with this one word in it: maple\n"
    for name, seed in (("right", 0), ("wrong", 1)):
        conversation = Conversation(trainer.template, [{"role": "user", "content": prompt}])
        ids = trainer.template.encode(says_by_seed(prompt, seed))
        conversation.answer(Completion(ids, [0.0] * len(ids), "length", 0), 1.0)
        found[name] = float(trainer.learner.look(segments_batch([conversation.segments])).logprobs.sum())
    return found


def test_a_warm_start_makes_the_expert_likelier(model_folder: str, tmp_path: Path) -> None:
    warm = {"episodes": 4, "epochs": 6, "lr": 1e-2, "batch_tokens": 600}
    Trainer(config(model_folder, tmp_path / "run", run={"updates": 0}, warm_start=warm)).run()
    losses = [line["loss"] for line in read_log(tmp_path / "run" / "log.jsonl") if line["event"] == "warm_start"]
    assert losses[-1] < losses[0] - 1


def test_training_is_held_to_what_it_starts_with(model_folder: str, tmp_path: Path) -> None:
    """The divergence is from the weights behind the warm start, not from those that never saw the task's format."""
    sections = {
        "generation": SCRIPTED,
        "optim": {"lr": 1e-3, "micro_tokens": 600},
        "run": {"updates": 1},
        "warm_start": {"episodes": 2, "epochs": 2, "lr": 1e-2},
        "algorithm": {"tasks": 2, "attempts": 2, "kl": 0.1},
    }
    Trainer(config(model_folder, tmp_path / "run", **sections)).run()
    assert numbers(tmp_path / "run")[0]["kl"] == pytest.approx(0.0, abs=1e-6)


class Interrupted(ScriptedGenerator):
    """Says so many things as the option "free" tells; then Ctrl-C comes, and no answer until it is closed."""

    def __init__(self, config: GenerationConfig, model: Any, tokenizer: Any) -> None:
        super().__init__(config, model, tokenizer)
        self._free = config.options["free"]
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def generate(self, prompt: Sequence[int], **how: Any) -> Completion:
        with self._lock:
            self._free -= 1
            left = self._free
        if left >= 0:
            return super().generate(prompt, **how)
        if left == -1:
            os.kill(os.getpid(), signal.SIGINT)
        self._closed.wait(60)
        raise PolicyError("it was closed", reason="closed")

    def close(self) -> None:
        self._closed.set()


@pytest.mark.parametrize(("overlap", "free"), [(False, 1), (True, 5)])  # the probe's answer, and those of a batch
def test_an_interrupt_waits_for_no_answer(model_folder: str, tmp_path: Path, overlap: bool, free: int) -> None:
    options = {"reply": "test_loop:says_by_seed", "free": free}
    sections = {
        "generation": {**SCRIPTED, "backend": "test_loop:Interrupted", "options": options},
        "optim": {"lr": 1e-3, "micro_tokens": 600},
        "algorithm": {"tasks": 2, "attempts": 2, "overlap": overlap},
    }
    trainer = Trainer(config(model_folder, tmp_path / "run", **sections))
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    for thread in threading.enumerate():
        if thread.name.startswith(("episode", "next-batch")):
            thread.join(40)
    assert time.monotonic() - started < 50


def test_a_folder_in_which_another_process_trains_is_left_alone(model_folder: str, tmp_path: Path) -> None:
    trainer = Trainer(config(model_folder, tmp_path / "run"))
    with take_lock(tmp_path / "run" / "lock"), pytest.raises(UsageError, match="another process"):
        trainer.run()
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_weights_that_are_no_numbers_end_the_run(model_folder: str, tmp_path: Path) -> None:
    trainer = Trainer(config(model_folder, tmp_path / "run", generation=SCRIPTED, optim={"micro_tokens": 600}))
    with torch.no_grad():
        trainer.model.lm.model.norm.weight.fill_(float("nan"))
    with pytest.raises(TrainingStopped, match="differ by nan"):
        trainer.run()


def test_a_batch_without_a_single_sound_episode_is_left_out(model_folder: str, tmp_path: Path) -> None:
    sections = {
        "generation": SCRIPTED,
        "optim": {"lr": 1e-3, "micro_tokens": 600},
        "run": {"updates": 2},
        "algorithm": {"tasks": 2, "attempts": 2, "advantage": "gae"},
        "model": {"value_head": True},
    }
    trainer = Trainer(config(model_folder, tmp_path / "run", **sections))
    assert trainer.model.value is not None
    with torch.no_grad():
        trainer.model.value.weight.fill_(float("nan"))
    trainer.run()
    lines = numbers(tmp_path / "run")
    assert [(line["broken"], line["trained"]) for line in lines] == [(4, 0), (4, 0)]


def test_evaluation_is_of_held_out_tasks_and_the_model_is_exported(model_folder: str, tmp_path: Path) -> None:
    evaluation = {"tasks": 3, "attempts": 2}
    folder = train(
        config(model_folder, tmp_path / "run", run={"updates": 1, "evaluate_every": 1}, evaluation=evaluation)
    )
    lines = [line for line in read_log(tmp_path / "run" / "log.jsonl") if line["event"] == "evaluation"]
    assert [line["update"] for line in lines] == [0, 1]
    assert lines[0]["episodes"] == 6
    assert all(task.startswith("micro-1-10") for task in lines[0]["tasks"])
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(folder).num_parameters() > 0


def test_what_is_trained_on_is_not_evaluated_on(model_folder: str, tmp_path: Path) -> None:
    env = {"train": {"first": 0, "count": 200}, "held_out": {"first": 100, "count": 4}}
    with pytest.raises(UsageError, match="share tasks, 'micro-1-10"):
        Trainer(config(model_folder, tmp_path / "run", run={"evaluate_every": 1}, env=env))
    Trainer(config(model_folder, tmp_path / "run", run={"evaluate_every": 0}, env=env))


def test_a_folder_of_another_run_is_refused(model_folder: str, tmp_path: Path) -> None:
    right = {"run": {"updates": 0}, "generation": SCRIPTED, "optim": {"lr": 1e-3, "micro_tokens": 600}}
    Trainer(config(model_folder, tmp_path / "run", **right)).run()
    other = {**right, "optim": {"lr": 0.5, "micro_tokens": 600}}
    with pytest.raises(UsageError, match=r"another configuration \(optim.lr: 0.001, now 0.5\): go on with that one"):
        Trainer(config(model_folder, tmp_path / "run", **other))
    longer = {**right, "run": {"updates": 7}}
    Trainer(config(model_folder, tmp_path / "run", **longer))  # a run may be prolonged


def is_interrupted(prompt: str, seed: int | None) -> str:  # noqa: ARG001  as whoever replies is called
    raise KeyboardInterrupt


def test_ctrl_c_says_how_to_go_on(model_folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generation = {**SCRIPTED, "options": {"reply": "test_loop:is_interrupted"}}
    wanted = config(model_folder, tmp_path / "run", generation=generation, optim={"micro_tokens": 600})
    path = tmp_path / "run.toml"
    path.write_text("".join(f"{name} = {_toml(value)}\n" for name, value in wanted.model_dump(mode="json").items()))
    with pytest.raises(SystemExit) as ended:
        main(["train", str(path)])
    assert ended.value.code == 130
    said = capsys.readouterr().out
    assert "log.jsonl" in said
    assert "Interrupted. The same command goes on from the last checkpoint." in said


def _toml(value: Any) -> str:
    """Plain data in TOML's notation."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(one)}" for name, one in value.items()) + "}"
    return json.dumps(value)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": {"path": "/nowhere/model"}}, "model.path '/nowhere/model' is no folder of a model"),
        ({"env": {"id": "SWE/Mirco-v0"}}, "env: 'SWE/Mirco-v0' cannot be made"),
        ({"env": {"options": {"max_turn": 1}}}, "max_turn"),
        ({"env": {"options": {"max_turns": 0}}}, "max_turns must be a positive whole number"),
        ({"env": {"held_out": {"difficulty": 9}}, "run": {"evaluate_every": 1}}, "no difficulty 9"),
    ],
)
def test_a_mistake_that_is_mended_leaves_the_folder_free(
    model_folder: str, tmp_path: Path, sections: Any, message: str
) -> None:
    right = {"run": {"updates": 0}, "generation": SCRIPTED, "optim": {"lr": 1e-3, "micro_tokens": 600}}
    with pytest.raises(UsageError) as refused:
        Trainer(config(model_folder, tmp_path / "run", **{**right, **sections}))
    assert message in str(refused.value)
    Trainer(config(model_folder, tmp_path / "run", **right)).run()


def fails(prompt: str, seed: int | None) -> str:
    if "Create the file" in prompt and (seed is None or seed % 2):
        raise PolicyError("the server hangs", reason="timeout", retryable=True)
    return says_by_seed(prompt, seed)


def test_lost_episodes_are_left_out_and_named(model_folder: str, tmp_path: Path) -> None:
    sections = {
        "generation": {**SCRIPTED, "options": {"reply": "test_loop:fails"}},
        "optim": {"lr": 1e-3, "micro_tokens": 600},
        "run": {"updates": 2, "max_failed": 1.0},
        "algorithm": {"tasks": 4, "attempts": 4},
    }
    Trainer(config(model_folder, tmp_path / "run", **sections)).run()
    for line in numbers(tmp_path / "run"):
        assert line["episodes"] + line["lost"] == 16
        assert line["lost"] > 0
        assert line["first_lost"] == "PolicyError: the server hangs"
    sections["run"] = {"updates": 2, "max_failed": 0.1}
    with pytest.raises(TrainingStopped, match="the server hangs"):
        Trainer(config(model_folder, tmp_path / "other", **sections)).run()


def test_the_seconds_of_an_update_are_told_by_part(model_folder: str, tmp_path: Path) -> None:
    sections = {
        "generation": {**SCRIPTED, "options": {"reply": "test_loop:fails"}},
        "optim": {"lr": 1e-3, "micro_tokens": 600},
        "run": {"updates": 2, "max_failed": 1.0},
        "algorithm": {"tasks": 3, "attempts": 2, "advantage": "gae"},
        "model": {"value_head": True},
    }
    Trainer(config(model_folder, tmp_path / "run", **sections)).run()
    lines = read_log(tmp_path / "run" / "log.jsonl")
    for line in (line for line in lines if line["event"] == "update"):
        seconds = line["seconds"]
        threads = sum(seconds[name] for name in ("start", "tools", "grading", "policy", "rest", "lost", "idle"))
        assert threads == pytest.approx(4 * seconds["all"], rel=0.01)
        assert seconds["lost"] > 0
        learning = sum(seconds[name] for name in ("forward", "backward", "step", "push"))
        assert 0 < seconds["waited"] + learning <= seconds["update"] + 1e-3
        assert line["explained_variance"] == "nan" or line["explained_variance"] <= 1.0
    saved = [line for line in lines if line["event"] == "checkpoint"]
    assert [line["update"] for line in saved] == [0, 1, 2]
    assert all(line["seconds"] > 0 for line in saved)
