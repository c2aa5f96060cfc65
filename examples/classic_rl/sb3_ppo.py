"""Train PPO of Stable-Baselines3 on the menu, to a mean return of 0.9 in a few minutes on two cores.

pip install -e '.[sb3]'
python examples/classic_rl/sb3_ppo.py            # PPO
python examples/classic_rl/sb3_ppo.py --masked   # MaskablePPO, which takes no action twice
"""

import argparse

from menu import make_env
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecMonitor

from swe_gym.adapters.sb3 import SB3VecEnv
from swe_gym.vector import SweVectorEnv

GOAL = 0.9
STEPS = 6_000


class StopAtGoal(BaseCallback):
    """Stops training at the goal."""

    def _on_step(self) -> bool:
        returns = [episode["r"] for episode in self.model.ep_info_buffer]
        return len(returns) < 100 or sum(returns) / len(returns) < GOAL


def train(masked: bool = False, steps: int = STEPS) -> float:
    """Train and return the mean return of the last 100 episodes."""
    if masked:
        from sb3_contrib import MaskablePPO as algorithm
    else:
        algorithm = PPO
    with SweVectorEnv([make_env] * 8, autoreset_mode="SameStep") as envs:
        model = algorithm(
            "MlpPolicy",
            VecMonitor(SB3VecEnv(envs)),
            n_steps=32,
            batch_size=64,
            n_epochs=8,
            learning_rate=2e-3,
            gamma=1.0,
            ent_coef=0.01,
            seed=0,
            device="cpu",
        )
        model.learn(steps, callback=StopAtGoal())
        returns = [episode["r"] for episode in model.ep_info_buffer]
    return sum(returns) / len(returns)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--masked", action="store_true", help="use MaskablePPO")
    print(f"mean return of the last 100 episodes: {train(parser.parse_args().masked):.2f}")
