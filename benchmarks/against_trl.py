"""Compare the reference trainer with TRL's GRPO: the same model, tasks, groups, loss and number of episodes.

    python benchmarks/against_trl.py MODEL                       # on a CPU; both sample with transformers
    python benchmarks/against_trl.py MODEL --vllm --updates 100  # on a GPU; both sample with vLLM

MODEL is a local folder. It must solve some of the tasks: see examples/trl/sft.toml. Each trainer runs in its own
process. The held-out reward is compared at the largest number of sampled tokens that both have reached.
"""

import json
import resource
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from common import show

SYSTEM = 'Do it with one bash command, in JSON: {"name": "bash", "arguments": {"command": "..."}}'
HELD_OUT = 900_000


@dataclass(frozen=True)
class Settings:
    """What both trainers get."""

    model: str
    updates: int
    evaluate_every: int
    prompts: int
    group: int
    microbatch: int
    max_tokens: int
    max_context: int
    lr: float
    held_out: int
    vllm: bool

    @property
    def env(self) -> dict[str, Any]:
        """Arguments of the environment."""
        return {"difficulty": [1], "max_turns": 1, "tools": ["bash"]}


@dataclass
class Curve:
    """What one trainer did; one number per update, except for `rewards` and `tokens_at`."""

    seconds: list[float]
    tokens: list[float]
    rewards: list[float]
    tokens_at: list[float]
    megabytes: float


def run_reference(settings: Settings, folder: Path) -> Curve:
    """Train with `swe_gym.train`."""
    from swe_gym.train.config import make_config
    from swe_gym.train.log import read_log
    from swe_gym.train.loop import train

    generation = {"max_tokens": settings.max_tokens, "max_context": settings.max_context}
    config = {
        "run": {
            "output": str(folder),
            "updates": settings.updates,
            "evaluate_every": settings.evaluate_every,
            "checkpoint_every": settings.updates,
        },
        "model": {"path": settings.model},
        "env": {
            "id": "SWE/Micro-v0",
            "options": settings.env,
            "train": {"first": 0, "count": 100_000},
            "held_out": {"first": HELD_OUT, "count": settings.held_out},
            "system": SYSTEM,
            "workers": settings.prompts * settings.group,
        },
        "generation": {"backend": "vllm" if settings.vllm else "hf", **generation},
        "algorithm": {"advantage": "grpo", "prompts_per_step": settings.prompts, "group_size": settings.group},
        "optim": {"lr": settings.lr, "max_tokens_per_microbatch": settings.microbatch * settings.max_context},
        "evaluation": {"tasks": settings.held_out},
    }
    train(make_config(config))
    lines = read_log(folder / "log.jsonl")
    updates = [line for line in lines if line["event"] == "update"]
    tokens = [line["tokens_per_episode"] * line["episodes"] for line in updates]
    sums = np.cumsum([0.0, *tokens])
    evaluations = [line for line in lines if line["event"] == "evaluation"]
    return Curve(
        seconds=[line["seconds"]["update"] for line in updates],
        tokens=tokens,
        rewards=[line["reward"] for line in evaluations],
        tokens_at=[float(sums[line["update"]]) for line in evaluations],
        megabytes=peak(),
    )


def run_trl(settings: Settings, folder: Path) -> Curve:
    """Train with TRL's `GRPOTrainer`."""
    import gymnasium
    import torch
    from trl import GRPOConfig, GRPOTrainer

    import swe_gym  # noqa: F401  registers the ids
    from swe_gym.adapters.trl import Rollouts, swe_reward, task_dataset

    def make_env(**numbers: int) -> Any:
        return gymnasium.make("SWE/Micro-v0", disable_env_checker=True, **settings.env, **numbers)

    episodes = settings.prompts * settings.group
    gpu = torch.cuda.is_available()
    args = GRPOConfig(
        output_dir=str(folder),
        max_steps=settings.updates,
        learning_rate=settings.lr,
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        num_generations=settings.group,
        per_device_train_batch_size=settings.microbatch,
        gradient_accumulation_steps=episodes // settings.microbatch,
        max_completion_length=settings.max_tokens,
        epsilon_high=0.28,
        eval_strategy="steps",
        eval_steps=settings.evaluate_every,
        eval_on_start=True,
        per_device_eval_batch_size=settings.held_out,
        num_generations_eval=1,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        gradient_checkpointing=False,
        use_cpu=not gpu,
        bf16=gpu,
        use_vllm=settings.vllm,
        vllm_mode="colocate",
        vllm_max_model_length=settings.max_context,
    )
    trainer = GRPOTrainer(
        model=settings.model,
        args=args,
        reward_funcs=swe_reward,
        rollout_func=Rollouts(
            make_env, system=SYSTEM, max_tokens=settings.max_tokens, max_context=settings.max_context
        ),
        train_dataset=task_dataset(lambda: make_env(first=0, count=100_000)),
        eval_dataset=task_dataset(lambda: make_env(first=HELD_OUT, count=settings.held_out)),
    )
    trainer.train()
    lines = trainer.state.log_history
    updates = [line for line in lines if "step_time" in line]
    tokens = [line["completions/mean_length"] * episodes for line in updates]
    sums = np.cumsum([0.0, *tokens])
    evaluations = [line for line in lines if "eval_reward" in line]
    return Curve(
        seconds=[line["step_time"] for line in updates],
        tokens=tokens,
        rewards=[line["eval_reward"] for line in evaluations],
        tokens_at=[float(sums[line["step"]]) for line in evaluations],
        megabytes=peak(),
    )


def peak() -> float:
    """Return the peak memory of this process: of the GPU if there is one."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_reserved() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def measured(trainer: str, settings: Settings) -> Curve:
    """Run a trainer in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "curve.json"
        subprocess.run([sys.executable, __file__, "--run", trainer, json.dumps(asdict(settings)), result], check=True)
        return Curve(**json.loads(result.read_text()))


def compare(
    model: Annotated[str, typer.Argument(help="Folder of the model.")],
    updates: int = 10,
    evaluate_every: int = 5,
    prompts: Annotated[int, typer.Option(help="Tasks per update.")] = 16,
    group: Annotated[int, typer.Option(help="Episodes per task.")] = 4,
    microbatch: Annotated[int, typer.Option(help="Episodes per forward pass.")] = 16,
    max_tokens: int = 48,
    max_context: int = 256,
    lr: float = 2e-5,
    held_out: Annotated[int, typer.Option(help="Held-out tasks.")] = 96,
    vllm: Annotated[bool, typer.Option(help="Sample with vLLM.")] = False,
) -> None:
    """Train with both and print a table."""
    settings = Settings(
        model, updates, evaluate_every, prompts, group, microbatch, max_tokens, max_context, lr, held_out, vllm
    )
    curves = {name: measured(name, settings) for name in ("reference", "trl")}
    common = min(sum(curve.tokens) for curve in curves.values())
    columns = ("", "s/update", "sampled tokens/s", "held-out before", f"at {common:.0f} tokens", "peak memory, MiB")
    show(
        f"{Path(model).name}, {updates} updates of {prompts} x {group} episodes",
        columns,
        [
            (
                name,
                f"{np.mean(curve.seconds):.1f}",
                f"{sum(curve.tokens) / sum(curve.seconds):.0f}",
                f"{curve.rewards[0]:.2f}",
                f"{np.interp(common, curve.tokens_at, curve.rewards):.2f}",
                f"{curve.megabytes:.0f}",
            )
            for name, curve in curves.items()
        ],
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        _, _, trainer, given, result = sys.argv
        folder = Path(result).parent / "run"
        curve = {"reference": run_reference, "trl": run_trl}[trainer](Settings(**json.loads(given)), folder)
        Path(result).write_text(json.dumps(asdict(curve)))
    else:
        typer.run(compare)
