"""Simulate prefix forks and advantages: a tabular policy learns tasks of five right calls, at equal sampled calls.

    python benchmarks/prefix_forks.py               # 16 runs of each way, 3 seconds of CPU time
    python benchmarks/prefix_forks.py --runs 64 --right 0.42
    python benchmarks/prefix_forks.py --advantages  # needs torch, 10 seconds

A task is resolved by `CALLS` right calls among `TURNS`; a wrong call changes nothing. The policy is a softmax over
`CHOICES` calls for each state. The groups, their successes and the length of their prefixes are those of
`swe_gym.train.prefixes`; without torch and sandboxes, whose part is tested in `tests/train/test_prefixes.py`. With
--advantages, those of `swe_gym.train.objective` are compared without prefixes; a state is the number of right calls.
"""

import argparse
import math
import statistics
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from swe_gym.train.prefixes import steer_length

CALLS, CHOICES, TURNS = 5, 20, 8
GROUP, TASKS, RATE = 8, 2, 0.15
BUDGET, WANTED = 12_000, 0.6

Matrix = npt.NDArray[np.float64]


class Success(NamedTuple):
    """The calls of a resolved episode, right or wrong, and how many of them a group is given."""

    calls: list[bool]
    length: int


class Policy:
    """A softmax policy over calls, one row per state. Call 0 is the right one.

    Args:
        right: Probability of the right call at first.
        seed: Seed of its draws.
        advantage: Name of the advantage.
    """

    def __init__(self, right: float, seed: int, advantage: str = "rloo") -> None:
        self.sampled, self._advantage = 0, advantage
        self._weights: Matrix = np.zeros((CALLS, CHOICES))
        self._weights[:, 0] = math.log(right / (1 - right) * (CHOICES - 1))
        self._draw = np.random.default_rng(seed)
        self.prepare()

    def prepare(self) -> None:
        """Compute the probabilities of an update."""
        raised = np.exp(self._weights - self._weights.max(1, keepdims=True))
        self._odds: Matrix = raised / raised.sum(1, keepdims=True)
        self._sums = self._odds.cumsum(1)
        self._gradient = np.zeros_like(self._weights)

    def resolved(self) -> float:
        """Return the exact share of episodes that are resolved from the start."""
        at = np.eye(CALLS + 1)[0]
        for _ in range(TURNS):
            right = at[:CALLS] * self._odds[:, 0]
            at = at - np.append(right, 0) + np.append(0, right)
        return float(at[CALLS])

    def play(self, given: list[bool]) -> list[list[bool]]:
        """Play a group after some given calls, and add its gradient."""
        episodes, made = [], []
        for _ in range(GROUP):
            calls, steps = list(given), []
            while len(calls) < TURNS and sum(calls) < CALLS:
                state = sum(calls)
                call = min(int(np.searchsorted(self._sums[state], self._draw.random())), CHOICES - 1)
                steps.append((state, call))
                calls.append(call == 0)
            episodes.append(calls)
            made.append(steps)
            self.sampled += len(steps)
        rewards = np.array([float(sum(calls) == CALLS) for calls in episodes])
        flat = [step for steps in made for step in steps]
        for advantage, (state, call) in zip(self._advantages(rewards, made), flat, strict=True):
            self._gradient[state] -= advantage * self._odds[state]
            self._gradient[state, call] += advantage
        return episodes

    def _advantages(self, rewards: npt.NDArray[np.float64], made: list[list[tuple[int, int]]]) -> list[float]:
        """Return the advantage of each step of a group."""
        lengths = [len(steps) for steps in made]
        if self._advantage == "rloo":
            return list(np.repeat((rewards * GROUP - rewards.sum()) / (GROUP - 1), lengths))
        import torch

        from swe_gym.train import objective

        episodes = torch.arange(GROUP).repeat_interleave(torch.tensor(lengths))
        earned, group = torch.tensor(rewards), torch.zeros(GROUP, dtype=torch.long)
        if self._advantage == "grpo":
            return list(objective.grpo(earned, group)[episodes].tolist())
        states, calls = torch.tensor([step for steps in made for step in steps]).T
        left = torch.cat([torch.arange(length).flip(0) for length in lengths])
        gamma, credit = {"gigpo": (0.95, objective.gigpo), "rtmc": (0.99, objective.rtmc)}[self._advantage]
        discounts = gamma ** left.to(earned.dtype)
        rows = objective.EpisodeSteps(
            episodes, states, states * CHOICES + calls, earned[episodes] * discounts, discounts
        )
        return list(credit(earned, group, rows).tolist())

    def learn(self) -> None:
        """Take the step of an update."""
        self._weights += RATE * self._gradient / TASKS / GROUP
        self.prepare()


def simulate(right: float, seed: int, *, prefixes: bool, budget: int = BUDGET, advantage: str = "rloo") -> int | None:
    """Return the sampled calls after which a policy resolves a share of `WANTED`; None if it does not."""
    policy, known = Policy(right, seed, advantage), dict[int, Success]()
    while policy.sampled < budget:
        if policy.resolved() > WANTED:
            return policy.sampled
        for task in range(TASKS):
            good = [calls for calls in policy.play([]) if sum(calls) == CALLS]
            for calls in good if prefixes else ():
                old = known.get(task)
                if old is None or len(calls) <= len(old.calls):
                    most = len(calls) - 1
                    known[task] = Success(calls, min(old.length, most) if old else math.ceil(most / 2))
            if prefixes and not good and task in known:
                calls, length = known[task]
                share = statistics.mean(sum(one) == CALLS for one in policy.play(calls[:length]))
                known[task] = Success(calls, steer_length(length, share, len(calls) - 1))
        policy.learn()
    return None


def main() -> None:
    """Print how many runs of each way learn, and after how many calls."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--right", type=float, default=0.3)
    parser.add_argument("--advantages", action="store_true", help="compare advantages")
    given = parser.parse_args()
    table = Table("groups", f"runs that reach {WANTED}", "median sampled calls of these")
    ways = [("rloo", False), ("rloo", True)]
    if given.advantages:
        ways = [(name, False) for name in ("rloo", "grpo", "gigpo", "rtmc")]
    for advantage, prefixes in ways:
        name = advantage + ", prefix forks" * prefixes
        ends = [simulate(given.right, seed, prefixes=prefixes, advantage=advantage) for seed in range(given.runs)]
        reached = [end for end in ends if end is not None]
        table.add_row(name, f"{len(reached)}/{given.runs}", f"{statistics.median(reached):,.0f}" if reached else "")
    at_first = Policy(given.right, 0).resolved()
    Console().print(
        f"resolved at first: {at_first:.3f}; {BUDGET:,} sampled calls, those from the start included", table
    )


if __name__ == "__main__":
    main()
