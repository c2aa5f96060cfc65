"""Complete runs with a tiny model, real sandboxes and real tests. A resumed run equals one that never stopped."""

import contextlib
import json
import os
import resource
import shutil
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from chat_templates import CHATML

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from swe_gym.errors import PolicyError, UsageError  # noqa: E402  only where torch is there
from swe_gym.rollout.tokens import Completion, TokenConversation  # noqa: E402
from swe_gym.tasks.record import TaskRate, TaskRecord  # noqa: E402
from swe_gym.train.batch import segments_batch  # noqa: E402
from swe_gym.train.config import GenerationConfig, TrainConfig, make_config  # noqa: E402
from swe_gym.train.generators import ScriptedGenerator  # noqa: E402
from swe_gym.train.log import read_log  # noqa: E402
from swe_gym.train.loop import Trainer, TrainingStopped, train  # noqa: E402
from swe_gym.trajectories.run_folder import take_lock  # noqa: E402
from swe_gym_command import main  # noqa: E402

ENV = {
    "options": {"max_turns": 1, "difficulty": 1},
    "train": {"first": 0, "count": 4},
    "held_out": {"first": 100, "count": 4},
    "system": "One JSON tool call.",
    "workers": 4,
}


def config(start: str, output: Path, **sections: dict[str, Any]) -> TrainConfig:
    values: dict[str, Any] = {
        "run": {"output": str(output), "updates": 3, "evaluate_every": 0, "checkpoint_every": 1},
        "model": {"path": start},
        "env": ENV,
        "generation": {"backend": "hf", "max_tokens": 6, "max_context": 400},
        "algorithm": {"prompts_per_step": 2, "group_size": 2, "advantage": "grpo"},
        "optim": {"lr": 1e-3, "max_tokens_per_microbatch": 400},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return make_config(values)


def says_by_seed(prompt: str, seed: int | None) -> str:
    """Answer correctly for even seeds only."""
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
    "max_logprob_diff": 100.0,
}


def weights(trainer: Trainer) -> Any:
    return torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()])


def numbers(output: Path) -> list[dict[str, Any]]:
    """Return the logged metrics of updates, without times."""
    clocks = ("time", "minutes", "seconds", "rollout_idle_frac", "train_idle_frac", "staleness_mean", "staleness_max")
    lines = [line for line in read_log(output / "log.jsonl") if line["event"] == "update"]
    return [{name: value for name, value in line.items() if name not in clocks} for line in lines]


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {
            "generation": SCRIPTED,
            "optim": {"lr": 1e-3, "max_tokens_per_microbatch": 600},
            "sft": {"episodes": 2, "lr": 1e-2},
            "algorithm": {"prompts_per_step": 2, "group_size": 2, "kl_coef": 0.1, "curriculum": "thompson"},
        },
        {
            "generation": SCRIPTED,
            "optim": {"lr": 1e-3, "max_tokens_per_microbatch": 600},
            "algorithm": {
                "prompts_per_step": 2,
                "group_size": 2,
                "advantage": "gae",
                "async_rollout": True,
                "minibatches": 2,
                "epochs": 2,
            },
            "model": {"value_head": True},
            "env": {**ENV, "workers": 1},  # several workers end episodes in any order
        },
    ],
    ids=["hf", "scripted, sft and kl penalty", "scripted, async, value head"],
)
def test_a_resumed_run_is_identical_bit_by_bit(model_folder: str, tmp_path: Path, sections: Any) -> None:
    whole = Trainer(config(model_folder, tmp_path / "whole", **sections))
    whole.run()
    Trainer(config(model_folder, tmp_path / "cut", run={"updates": 1}, **sections)).run()
    with (tmp_path / "cut" / "log.jsonl").open("a") as log:  # an update without a checkpoint
        log.write('{"event": "update", "update": 2, "loss": 99.0}\n{"event": "upd')
    shutil.copytree(tmp_path / "cut" / "checkpoints" / "00000001", tmp_path / "cut" / "checkpoints" / "00000009.part")
    resumed = Trainer(config(model_folder, tmp_path / "cut", **sections))
    resumed.run()
    assert torch.equal(weights(whole), weights(resumed))
    assert numbers(tmp_path / "whole") == numbers(tmp_path / "cut")
    assert [line["update"] for line in numbers(tmp_path / "cut")] == [1, 2, 3]


def test_sampler_and_trainer_agree_and_the_first_ratio_is_one(model_folder: str, tmp_path: Path) -> None:
    Trainer(config(model_folder, tmp_path / "run")).run()
    lines = numbers(tmp_path / "run")
    assert all(abs(line["ratio"] - 1) < 1e-3 for line in lines)
    assert all(line["logprob_diff"] < 1e-4 for line in lines)
    assert all(line["episodes"] == 4 for line in lines)


def test_rewarded_answers_become_likelier(model_folder: str, tmp_path: Path) -> None:
    sections = {
        "generation": SCRIPTED,
        "optim": {"lr": 1e-2, "max_tokens_per_microbatch": 600},
        "run": {"updates": 4},
        "algorithm": {"prompts_per_step": 2, "group_size": 4, "advantage": "rloo", "tis_cap": 0},
    }
    trainer = Trainer(config(model_folder, tmp_path / "run", **sections))
    before = _likelihoods(trainer)
    trainer.run()
    after = _likelihoods(trainer)
    assert after["right"] - after["wrong"] > before["right"] - before["wrong"] + 1.0


def test_groups_without_a_gradient_are_played_again_with_other_tasks(model_folder: str, tmp_path: Path) -> None:
    sections = {
        "generation": SCRIPTED,
        "optim": {"max_tokens_per_microbatch": 600},
        "algorithm": {"zero_variance_groups": "refill", "max_refills": 20, "tis_cap": 0},
    }
    trainer = Trainer(config(model_folder, tmp_path / "run", **sections))
    trainer.run()
    lines = numbers(tmp_path / "run")
    assert [line["trained"] for line in lines] == [4, 4, 4]
    assert sum(line["episodes"] for line in lines) == 2 * trainer.state.drawn > 12


def _likelihoods(trainer: Trainer) -> dict[str, float]:
    found = {}
    prompt = "Create the file `x.txt` with this one word in it: maple\n"
    for name, seed in (("right", 0), ("wrong", 1)):
        conversation = TokenConversation(trainer.template, [{"role": "user", "content": prompt}])
        ids = trainer.template.encode(says_by_seed(prompt, seed))
        conversation.answer(Completion(ids, [0.0] * len(ids), "length", 0), 1.0)
        found[name] = float(trainer.learner.compute_logprobs(segments_batch([conversation.segments])).logprobs.sum())
    return found


def test_sft_makes_the_expert_likelier(model_folder: str, tmp_path: Path) -> None:
    warm = {"episodes": 4, "epochs": 6, "lr": 1e-2, "batch_tokens": 600}
    Trainer(config(model_folder, tmp_path / "run", run={"updates": 0}, sft=warm)).run()
    losses = [line["loss"] for line in read_log(tmp_path / "run" / "log.jsonl") if line["event"] == "sft"]
    assert losses[-1] < losses[0] - 1


def test_the_reference_of_the_kl_penalty_is_the_model_after_sft(model_folder: str, tmp_path: Path) -> None:

    sections = {
        "generation": SCRIPTED,
        "optim": {"lr": 1e-3, "max_tokens_per_microbatch": 600},
        "run": {"updates": 1},
        "sft": {"episodes": 2, "epochs": 2, "lr": 1e-2},
        "algorithm": {"prompts_per_step": 2, "group_size": 2, "kl_coef": 0.1},
    }
    Trainer(config(model_folder, tmp_path / "run", **sections)).run()
    assert numbers(tmp_path / "run")[0]["kl"] == pytest.approx(0.0, abs=1e-6)


class Interrupted(ScriptedGenerator):
    """Answers as often as the option "free" says, then sends Ctrl-C and blocks until it is closed."""

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
        self._closed.wait(500)
        raise PolicyError("it was closed", reason="closed")

    def close(self) -> None:
        self._closed.set()


@pytest.mark.parametrize(("ahead", "free"), [(False, 1), (True, 5)])  # the weight-sync check, and a batch
def test_an_interrupt_does_not_wait_for_answers(model_folder: str, tmp_path: Path, ahead: bool, free: int) -> None:
    options = {"reply": "test_loop:says_by_seed", "free": free}
    sections = {
        "generation": {**SCRIPTED, "backend": "test_loop:Interrupted", "options": options},
        "optim": {"lr": 1e-3, "max_tokens_per_microbatch": 600},
        "algorithm": {"prompts_per_step": 2, "group_size": 2, "async_rollout": ahead},
    }
    trainer = Trainer(config(model_folder, tmp_path / "run", **sections))
    others = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    for thread in set(threading.enumerate()) - others:
        if thread.name.startswith("episode"):
            thread.join(60)
            assert not thread.is_alive()


def test_a_run_folder_in_use_is_refused(model_folder: str, tmp_path: Path) -> None:
    trainer = Trainer(config(model_folder, tmp_path / "run"))
    with take_lock(tmp_path / "run" / "lock"), pytest.raises(UsageError, match="another process"):
        trainer.run()
    assert not (tmp_path / "run" / "checkpoints").exists()


class Closed:
    """A tracker that records how it was closed."""

    def __init__(self) -> None:
        self.failed: bool | None = None

    def add(self, numbers: Any, update: int) -> None:
        """Do nothing."""

    def close(self, *, failed: bool) -> None:
        self.failed = failed


def test_trackers_learn_whether_the_run_failed(model_folder: str, tmp_path: Path) -> None:
    for limit, updates, failed in ((100.0, 0, False), (1e-9, 1, True)):
        generation = {**SCRIPTED, "max_logprob_diff": limit}
        sections = {"generation": generation, "run": {"updates": updates}, "optim": {"max_tokens_per_microbatch": 600}}
        trainer = Trainer(config(model_folder, tmp_path / str(failed), **sections))
        tracker = Closed()
        trainer.log.trackers.append(tracker)
        with pytest.raises(TrainingStopped) if failed else contextlib.nullcontext():
            trainer.run()
        assert tracker.failed is failed


def test_nan_weights_stop_the_run(model_folder: str, tmp_path: Path) -> None:
    trainer = Trainer(
        config(model_folder, tmp_path / "run", generation=SCRIPTED, optim={"max_tokens_per_microbatch": 600})
    )
    with torch.no_grad():
        trainer.model.lm.model.norm.weight.fill_(float("nan"))
    with pytest.raises(TrainingStopped, match="differ by nan"):
        trainer.run()


def test_a_batch_of_nonfinite_episodes_is_dropped(model_folder: str, tmp_path: Path) -> None:
    sections = {
        "generation": SCRIPTED,
        "optim": {"lr": 1e-3, "max_tokens_per_microbatch": 600},
        "run": {"updates": 2},
        "algorithm": {"prompts_per_step": 2, "group_size": 2, "advantage": "gae"},
        "model": {"value_head": True},
    }
    trainer = Trainer(config(model_folder, tmp_path / "run", **sections))
    assert trainer.model.value is not None
    with torch.no_grad():
        trainer.model.value.weight.fill_(float("nan"))
    trainer.run()
    lines = numbers(tmp_path / "run")
    assert [(line["nonfinite"], line["trained"]) for line in lines] == [(4, 0), (4, 0)]


def test_evaluation_uses_held_out_tasks_and_the_model_is_exported(model_folder: str, tmp_path: Path) -> None:
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


def test_shared_tasks_of_training_and_evaluation_are_refused(model_folder: str, tmp_path: Path) -> None:
    env = {"train": {"first": 0, "count": 200}, "held_out": {"first": 100, "count": 4}}
    with pytest.raises(UsageError, match="share tasks, for example 'micro-1-10"):
        Trainer(config(model_folder, tmp_path / "run", run={"evaluate_every": 1}, env=env))
    Trainer(config(model_folder, tmp_path / "run", run={"evaluate_every": 0}, env=env))


def test_a_run_folder_of_another_configuration_is_refused(model_folder: str, tmp_path: Path) -> None:
    right = {"run": {"updates": 0}, "generation": SCRIPTED, "optim": {"lr": 1e-3, "max_tokens_per_microbatch": 600}}
    Trainer(config(model_folder, tmp_path / "run", **right)).run()
    other = {**right, "optim": {"lr": 0.5, "max_tokens_per_microbatch": 600}}
    offloaded = {**right, "optim": {**right["optim"], "offload": True}}
    Trainer(config(model_folder, tmp_path / "run", **offloaded)).run()
    with pytest.raises(UsageError, match=r"another configuration \(optim.lr: 0.001, now 0.5\): resume it unchanged"):
        Trainer(config(model_folder, tmp_path / "run", **other))
    longer = {**right, "run": {"updates": 7}}
    Trainer(config(model_folder, tmp_path / "run", **longer))  # a longer run is allowed


def is_interrupted(prompt: str, seed: int | None) -> str:  # noqa: ARG001  the signature of a reply
    raise KeyboardInterrupt


def test_ctrl_c_says_how_to_resume(model_folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generation = {**SCRIPTED, "options": {"reply": "test_loop:is_interrupted"}}
    wanted = config(model_folder, tmp_path / "run", generation=generation, optim={"max_tokens_per_microbatch": 600})
    path = tmp_path / "run.toml"
    path.write_text("".join(f"{name} = {toml(value)}\n" for name, value in wanted.model_dump(mode="json").items()))
    with pytest.raises(SystemExit) as ended:
        main(["train", str(path)])
    assert ended.value.code == 130
    said = capsys.readouterr().out
    assert "log.jsonl" in said
    assert "Interrupted. Run the same command to resume from the last checkpoint." in said


def toml(value: Any) -> str:
    """Write plain data as TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml(one)}" for name, one in value.items()) + "}"
    return json.dumps(value)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": {"path": "/nowhere/model"}}, "model.path '/nowhere/model' is neither a model folder"),
        ({"env": {"id": "SWE/Mirco-v0"}}, "unknown environment 'SWE/Mirco-v0'. Did you mean 'SWE/Micro-v0'"),
        ({"env": {"options": {"max_turn": 1}}}, "max_turn"),
        ({"env": {"options": {"max_turns": 0}}}, "max_turns must be a positive whole number"),
        ({"env": {"held_out": {"difficulty": 9}}, "run": {"evaluate_every": 1}}, "unknown difficulty 9"),
    ],
)
def test_a_run_folder_is_usable_after_a_configuration_error(
    model_folder: str, tmp_path: Path, sections: Any, message: str
) -> None:
    right = {"run": {"updates": 0}, "generation": SCRIPTED, "optim": {"lr": 1e-3, "max_tokens_per_microbatch": 600}}
    with pytest.raises(UsageError) as refused:
        Trainer(config(model_folder, tmp_path / "run", **{**right, **sections}))
    assert message in str(refused.value)
    Trainer(config(model_folder, tmp_path / "run", **right)).run()


@pytest.mark.parametrize(
    ("generation", "message"),
    [
        ({"backend": "vllm", "options": {"env": {"OMP_NUM_THREADS": [2]}}}, "generation.options: env.OMP_NUM_THREADS"),
        (
            {"backend": "vllm", "options": {"argz": []}},
            "unknown option of generator 'vllm': 'argz'. Did you mean 'args'",
        ),
        ({"backend": "hf", "options": {"env": {}}}, "unknown option of generator 'hf': 'env'"),
    ],
)
def test_options_of_the_generator_are_checked_before_the_model_is_loaded(
    tmp_path: Path, generation: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        Trainer(config("/nowhere/model", tmp_path / "run", generation=generation))
    assert message in str(refused.value)


def test_tool_calls_that_cannot_be_read_are_refused_before_the_weights_are_loaded(
    tokenizer: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "no_weights"
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text("{# [TOOL_CALLS] #}{{ tools | tojson }}" + CHATML)
    with pytest.raises(UsageError, match=r"chat template of Mistral: .*generation\.tool_call_style"):
        Trainer(config(str(folder), tmp_path / "run", env={**ENV, "agent": "mini"}))


def test_options_of_the_agent_are_checked_before_the_model_is_loaded(tmp_path: Path) -> None:
    env = {**ENV, "agent": "mini", "agent_options": {"confg": {}}}
    with pytest.raises(UsageError, match="unknown option of agent 'mini': 'confg'"):
        Trainer(config("/nowhere/model", tmp_path / "run", env=env))
    with pytest.raises(UsageError, match="an agent learns with executor 'threads' only, not 'ray'"):
        config("/nowhere/model", tmp_path / "run", env={**ENV, "agent": "mini", "executor": "ray"})


def test_a_run_that_dies_in_its_first_evaluation_keeps_its_sft(model_folder: str, tmp_path: Path) -> None:
    sections: dict[str, Any] = {
        "generation": {**SCRIPTED, "options": {"reply": "test_loop:is_interrupted"}},
        "optim": {"lr": 1e-3, "max_tokens_per_microbatch": 600},
        "run": {"updates": 1, "evaluate_every": 1},
        "sft": {"episodes": 2, "lr": 1e-2},
        "evaluation": {"tasks": 2},
    }
    with pytest.raises(KeyboardInterrupt):
        Trainer(config(model_folder, tmp_path / "run", **sections)).run()
    episodes = tmp_path / "run" / "episodes"
    episodes.mkdir()
    for name in ("update-7", "notes-7", "update-7-copy"):  # the first as if updates after the checkpoint were lost
        (episodes / f"{name}.jsonl").touch()
    sections["generation"] = SCRIPTED
    for _ in range(2):  # the second has nothing to do
        Trainer(config(model_folder, tmp_path / "run", **sections)).run()
    events = [(line["event"], line["update"]) for line in read_log(tmp_path / "run" / "log.jsonl")]
    assert [one for one in events if one[0] in ("demonstrations", "evaluation", "checkpoint")] == [
        ("demonstrations", 0),
        ("checkpoint", 0),
        ("evaluation", 0),
        ("evaluation", 1),
        ("checkpoint", 1),
    ]
    kept = ["evaluation-0", "evaluation-1", "notes-7", "update-1", "update-7-copy"]
    assert sorted(path.stem for path in episodes.iterdir()) == kept


def test_episodes_that_cannot_be_kept_do_not_end_the_run(
    model_folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sections = {"generation": SCRIPTED, "optim": {"max_tokens_per_microbatch": 600}, "run": {"updates": 1}}
    trainer = Trainer(config(model_folder, tmp_path / "run", **sections))
    (tmp_path / "run").mkdir(exist_ok=True)
    (tmp_path / "run" / "episodes").touch()
    trainer.run()
    assert "the episodes of update-1 are not kept" in caplog.text


def fails(prompt: str, seed: int | None) -> str:
    if "Create the file" in prompt and (seed is None or seed % 2):
        raise PolicyError("the server hangs", reason="timeout", retryable=True)
    return says_by_seed(prompt, seed)


def test_lost_episodes_are_dropped_and_named(model_folder: str, tmp_path: Path) -> None:
    sections = {
        "generation": {**SCRIPTED, "options": {"reply": "test_loop:fails"}},
        "optim": {"lr": 1e-3, "max_tokens_per_microbatch": 600},
        "run": {"updates": 2, "max_failed": 1.0},
        "algorithm": {"prompts_per_step": 4, "group_size": 4},
    }
    Trainer(config(model_folder, tmp_path / "run", **sections)).run()
    for line in numbers(tmp_path / "run"):
        assert line["episodes"] + line["lost"] == 16
        assert line["lost"] > 0
        assert line["first_lost"] == "PolicyError: the server hangs"
    sections["run"] = {"updates": 2, "max_failed": 0.1}
    with pytest.raises(TrainingStopped, match="the server hangs"):
        Trainer(config(model_folder, tmp_path / "other", **sections)).run()


def hangs(prompt: str, seed: int | None) -> str:
    if "Create the file" in prompt:
        raise PolicyError("the server hangs", reason="timeout")
    return says_by_seed(prompt, seed)


def test_an_update_whose_episodes_are_all_lost_changes_nothing(model_folder: str, tmp_path: Path) -> None:
    sections = {
        "generation": {**SCRIPTED, "options": {"reply": "test_loop:hangs"}},
        "optim": {"lr": 1e-3, "max_tokens_per_microbatch": 600},
        "run": {"updates": 2, "max_failed": 1.0},
        "algorithm": {
            **{"prompts_per_step": 2, "group_size": 2, "curriculum": "thompson"},
            "pass_rates": str(tmp_path / "r.jsonl"),
        },
    }
    rates = {"m": TaskRate(resolved=3, attempts=8, low=0.1, high=0.7)}
    record = TaskRecord(task_id="a", status="valid", backend="local", rates=rates)
    (tmp_path / "r.jsonl").write_text(record.model_dump_json() + "\n")
    trainer = Trainer(config(model_folder, tmp_path / "run", **sections))
    before = weights(trainer).clone()
    trainer.run()
    assert trainer.state.rates.counts == {"a": (4.0, 6.0)}
    assert torch.equal(weights(trainer), before)
    lines = numbers(tmp_path / "run")
    assert [(line["episodes"], line["lost"], line["trained"]) for line in lines] == [(0, 4, 0)] * 2


def test_a_full_disk_keeps_the_last_checkpoint_and_the_run_resumes(model_folder: str, tmp_path: Path) -> None:
    sections = {"generation": SCRIPTED, "optim": {"max_tokens_per_microbatch": 600}}
    Trainer(config(model_folder, tmp_path / "run", run={"updates": 1}, **sections)).run()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, limits[1]))  # the weights are larger, the log is not
    try:
        message = r"update 2 could not be written.*checkpoint 1 is intact.*Free disk space"
        with pytest.raises(UsageError, match=message):
            Trainer(config(model_folder, tmp_path / "run", run={"updates": 2}, **sections)).run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list((tmp_path / "run" / "checkpoints").glob("*.part"))
    Trainer(config(model_folder, tmp_path / "run", run={"updates": 2}, **sections)).run()
    assert [line["update"] for line in numbers(tmp_path / "run")] == [1, 2]


def test_the_seconds_of_an_update_add_up(model_folder: str, tmp_path: Path) -> None:
    sections = {
        "generation": {**SCRIPTED, "options": {"reply": "test_loop:fails"}},
        "optim": {"lr": 1e-3, "max_tokens_per_microbatch": 600},
        "run": {"updates": 2, "max_failed": 1.0},
        "algorithm": {"prompts_per_step": 3, "group_size": 2, "advantage": "gae"},
        "model": {"value_head": True},
    }
    Trainer(config(model_folder, tmp_path / "run", **sections)).run()
    lines = read_log(tmp_path / "run" / "log.jsonl")
    for line in (line for line in lines if line["event"] == "update"):
        seconds = line["seconds"]
        threads = sum(seconds[name] for name in ("start", "tools", "grading", "policy", "rest", "lost", "idle"))
        assert threads == pytest.approx(4 * seconds["all"], rel=0.01)
        assert seconds["lost"] > 0
        learning = sum(seconds[name] for name in ("forward", "backward", "step", "weight_sync"))
        assert 0 < seconds["waited"] + learning <= seconds["update"] + 1e-3
        assert line["explained_variance"] == "nan" or line["explained_variance"] <= 1.0
    saved = [line for line in lines if line["event"] == "checkpoint"]
    assert [line["update"] for line in saved] == [0, 1, 2]
    assert all(line["seconds"] > 0 for line in saved)
