"""Train PPO of Ray RLlib on the menu, to a mean return of 0.9 in a few minutes on two cores.

pip install -e '.[rllib]'
python examples/classic_rl/rllib_ppo.py
"""

import argparse
import os

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
from menu import make_env
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from swe_gym.adapters.rllib import LeaveOutFailures, MaskedObservations, MaskedPPOModule, register_env

GOAL = 0.9
STEPS = 8_000


def make_config(name: str) -> PPOConfig:
    """Configure PPO in this process with eight environments; `num_env_runners=4` adds four processes."""
    return (
        PPOConfig()
        .environment(name)
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=8,
            rollout_fragment_length=32,
            gym_env_vectorize_mode="vector_entry_point",
            env_to_module_connector=MaskedObservations.make,
        )
        .learners(num_learners=0)
        .rl_module(
            rl_module_spec=RLModuleSpec(
                module_class=MaskedPPOModule,
                model_config=DefaultModelConfig(fcnet_hiddens=[64], fcnet_activation="tanh", vf_share_layers=False),
            )
        )
        .callbacks(LeaveOutFailures)
        .training(
            train_batch_size_per_learner=256,
            minibatch_size=64,
            num_epochs=8,
            lr=2e-3,
            gamma=1.0,
            lambda_=0.95,
            clip_param=0.2,
            entropy_coeff=0.01,
            vf_loss_coeff=0.5,
            grad_clip=0.5,
            use_kl_loss=False,
        )
        .reporting(metrics_num_episodes_for_smoothing=100)
        .debugging(seed=0, log_level="ERROR")
    )


def train(steps: int = STEPS) -> float:
    """Train and return the mean return of the last 100 episodes."""
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    register_env("menu", make_env)
    algorithm = make_config("menu").build_algo()
    try:
        for _ in range(0, steps, 256):
            found = algorithm.train()["env_runners"]
            mean, episodes = found["episode_return_mean"], found["num_episodes_lifetime"]
            print(f"{episodes:.0f} episodes, mean return {mean:.2f}", flush=True)
            if episodes >= 100 and mean >= GOAL:
                break
    finally:
        algorithm.stop()
        ray.shutdown()
    return mean


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(f"mean return of the last 100 episodes: {train():.2f}")
