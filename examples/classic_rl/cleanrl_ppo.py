"""PPO in one file, in the style of CleanRL. It handles three details that such files often get wrong.

1. The vector environment resets in the step after the end of an episode (NEXT_STEP). That step is not a transition, so
   it is left out of the batch.
2. A time limit truncates an episode: the value of the last state is bootstrapped. A termination has no such value.
3. A budget of the environment (`max_turns`) ends with grading, so it counts as a termination even if truncated.

    python examples/classic_rl/cleanrl_ppo.py                  # the menu of patches
    python examples/classic_rl/cleanrl_ppo.py CartPole-v1      # any environment with vectors and discrete actions
"""

import argparse
import collections

import gymnasium
import numpy as np
import torch
from torch import nn

ENVS, STEPS, EPOCHS, MINIBATCHES = 8, 32, 8, 4
LEARNING_RATE, LAMBDA, CLIP, ENTROPY, VALUE, NORM = 2e-3, 0.95, 0.2, 0.01, 0.5, 0.5


class Agent(nn.Module):
    """A policy network and a value network of two layers each."""

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, actions))
        self.value = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 1))
        with torch.no_grad():
            self.policy[-1].weight.mul_(0.01)

    def act(self, observations, actions=None):
        distribution = torch.distributions.Categorical(logits=self.policy(observations))
        actions = distribution.sample() if actions is None else actions
        return actions, distribution.log_prob(actions), distribution.entropy(), self.value(observations)[:, 0]


def is_final(terminated, truncated, infos):
    """Return whether a step is final, so that the value of its state is not bootstrapped."""
    return terminated | truncated & infos.get("reward_valid", False)


def advantages_of(rewards, values, following, final, ended, gamma):
    """Return GAE over (steps, envs). `following` is the value of the next state of each step."""
    found, running = torch.zeros_like(rewards), 0.0
    for step in reversed(range(len(rewards))):
        delta = rewards[step] + gamma * following[step] * ~final[step] - values[step]
        running = delta + gamma * LAMBDA * ~ended[step] * running
        found[step] = running
    return found


def train(envs: gymnasium.vector.VectorEnv, steps: int, goal: float, gamma: float, seed: int = 0) -> float:
    """Train until the mean return of the last 100 episodes reaches the goal, or for a number of steps."""
    torch.manual_seed(seed)
    agent = Agent(int(np.prod(envs.single_observation_space.shape)), int(envs.single_action_space.n))
    optimizer = torch.optim.Adam(agent.parameters(), lr=LEARNING_RATE, eps=1e-5)
    returns, running = collections.deque(maxlen=100), np.zeros(envs.num_envs)
    observation = torch.tensor(envs.reset(seed=seed)[0], dtype=torch.float32)
    resetting = torch.zeros(envs.num_envs, dtype=torch.bool)
    for _ in range(0, steps, ENVS * STEPS):
        rows = []
        for _ in range(STEPS):
            with torch.no_grad():
                action, logprob, _, value = agent.act(observation)
            after, reward, terminated, truncated, infos = envs.step(action.numpy())
            after = torch.tensor(after, dtype=torch.float32)
            with torch.no_grad():  # NEXT_STEP returns the final observation
                following = agent.value(after)[:, 0]
            ended = torch.tensor(terminated | truncated)
            final = torch.tensor(is_final(terminated, truncated, infos))
            reward = torch.tensor(reward, dtype=torch.float32)
            rows.append((observation, action, logprob, value, reward, following, final, ended | resetting, ~resetting))
            running += reward.numpy()
            for index in ended.nonzero()[:, 0].tolist():
                returns.append(running[index])
                running[index] = 0.0
            observation, resetting = after, ended
        columns = [torch.stack(column) for column in zip(*rows, strict=True)]
        learn(agent, optimizer, columns, gamma)
        mean = float(np.mean(returns)) if returns else 0.0
        print(f"{len(returns)} episodes, mean return {mean:.2f}", flush=True)
        if len(returns) == 100 and mean >= goal:
            break
    return mean


def learn(agent, optimizer, columns, gamma):
    """Run one PPO update, on real transitions only."""
    observations, actions, logprobs, values, rewards, following, final, ended, real = columns
    advantages = advantages_of(rewards, values, following, final, ended, gamma)
    targets = advantages + values
    flat = [column[real] for column in (observations, actions, logprobs, advantages, targets)]
    observations, actions, logprobs, advantages, targets = flat
    for _ in range(EPOCHS):
        for part in torch.randperm(len(actions)).chunk(MINIBATCHES):
            _, new, entropy, value = agent.act(observations[part], actions[part])
            ratio = (new - logprobs[part]).exp()
            chosen = advantages[part]
            chosen = (chosen - chosen.mean()) / (chosen.std() + 1e-8)
            gain = torch.minimum(ratio * chosen, ratio.clamp(1 - CLIP, 1 + CLIP) * chosen).mean()
            loss = -gain + VALUE * 0.5 * (value - targets[part]).pow(2).mean() - ENTROPY * entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), NORM)
            optimizer.step()


def main(env_id: str | None = None) -> float:
    """Train on the menu, or on an environment id."""
    if env_id:
        with gymnasium.make_vec(env_id, num_envs=ENVS, vectorization_mode="sync") as envs:
            return train(envs, steps=200_000, goal=195.0, gamma=0.99)
    from menu import make_env

    from swe_gym.vector import SweVectorEnv

    with SweVectorEnv([make_env] * ENVS) as envs:
        return train(envs, steps=8_000, goal=0.9, gamma=1.0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env_id", nargs="?", help="environment id (default: the menu)")
    print(f"mean return of the last 100 episodes: {main(parser.parse_args().env_id):.2f}")
