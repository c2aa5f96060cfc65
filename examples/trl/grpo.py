"""GRPO with TRL on generated tasks: the tokens, rewards and held-out reward of swe_gym, the trainer of TRL.

python examples/trl/grpo.py --config examples/trl/cpu.yaml
"""

from dataclasses import dataclass, field
from typing import Any

import gymnasium
from trl import GRPOConfig, GRPOTrainer, TrlParser

import swe_gym  # noqa: F401  registers the environments
from swe_gym.adapters.trl import Rollouts, swe_reward, task_dataset


@dataclass
class Experiment:
    """Arguments beyond those of TRL's GRPOConfig."""

    model: str
    difficulty: list[int] = field(default_factory=lambda: [1])
    tools: list[str] = field(default_factory=lambda: ["bash"])
    max_turns: int = 1
    system: str = ""
    max_tokens: int = 48
    max_context: int = 256
    train_tasks: int = 100_000
    held_out_tasks: int = 96


def main(experiment: Experiment, args: GRPOConfig) -> None:
    def make_env(**numbers: int) -> gymnasium.Env[Any, Any]:
        return gymnasium.make(
            "SWE/Micro-v0",
            difficulty=experiment.difficulty,
            tools=experiment.tools,
            max_turns=experiment.max_turns,
            disable_env_checker=True,
            **numbers,
        )

    limits = {"max_tokens": experiment.max_tokens, "max_context": experiment.max_context}
    trainer = GRPOTrainer(
        model=experiment.model,
        args=args,
        reward_funcs=swe_reward,
        rollout_func=Rollouts(make_env, system=experiment.system, **limits),
        train_dataset=task_dataset(lambda: make_env(first=0, count=experiment.train_tasks)),
        eval_dataset=task_dataset(lambda: make_env(first=900_000, count=experiment.held_out_tasks)),
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main(*TrlParser([Experiment, GRPOConfig]).parse_args_and_config())
