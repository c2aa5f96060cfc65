"""Train with and without `async_rollout` on episodes with a slow tail: 5 % of them take 20 times as long.

    python benchmarks/async_tail.py               # three seeds, about 10 minutes on two cores
    python benchmarks/async_tail.py --updates 10 --seeds 0

The environment simulates its sandboxes: a turn is a pause, and the reward is the share of right answers. The trainer,
a model of two layers that learns from scratch, its sampling and its weight sync are real. Held-out episodes are fast.
"""

import argparse
import copy
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import gymnasium
from common import show

from swe_gym.envs.swe_env import SweEnv
from swe_gym.types import Task

Run = tuple[list[dict[str, Any]], list[float]]
"""The lines of the updates, and the held-out rewards."""

KINDS = 6
"""Number of different tasks, each with one right answer."""

TURNS = 2


class Words:
    """A task source: each task names a word, to be answered by another word.

    Args:
        first: Number of the first task.
        count: Number of tasks.
        slow: Share of slow episodes.
        pause: Seconds of a turn. Those of a slow episode are 20 times as long.
    """

    def __init__(self, first: int, count: int, slow: float, pause: float) -> None:
        self.slow, self.pause = slow, pause
        self._numbers = range(first, first + count)

    def ids(self) -> Sequence[str]:
        """Return the ids."""
        return [str(number) for number in self._numbers]

    def get(self, task_id: str) -> Task:
        """Return a task."""
        return Task(task_id=task_id, problem_statement=f"ask{int(task_id) % KINDS}")


class PausingEnv(SweEnv):
    """An environment without sandboxes, whose turns take time."""

    _task: Task | None = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Start an episode; its seed decides whether it is slow."""
        source: Any = self.source
        self._task = source.get(options["task_id"])
        self._pause = source.pause * (20 if Random(seed).random() < source.slow else 1)
        self._turn = self._right = 0
        self._spent = 0.0
        return self._task.problem_statement, self._info()

    def step(self, action: str) -> Any:
        """Wait, and count a right answer."""
        started = time.monotonic()
        time.sleep(self._pause)
        self._spent += time.monotonic() - started
        assert self._task is not None
        self._turn += 1
        self._right += action.strip() == self._task.problem_statement.replace("ask", "say")
        over = self._turn == TURNS
        return "next", self._right / TURNS if over else 0.0, over, False, self._info()

    def _info(self) -> dict[str, Any]:
        assert self._task is not None
        over = self._turn == TURNS
        return {
            "task_id": self._task.task_id,
            "turn": self._turn,
            "outcome": "submitted" if over else "running",
            "reward_valid": over,
            "resolved": over and self._right == TURNS,
            "limit": "",
            "failure": "",
        }

    @property
    def last_action(self) -> None:
        """No action is a tool call."""
        return

    @property
    def stats(self) -> dict[str, Any]:
        """Details of the episode."""
        seconds = {"tools": self._spent}
        return {"repo": "", "seconds": seconds, "sandbox_id": "none", "sandbox": {}, "failure": "", "cheat_signs": []}

    @property
    def verdict(self) -> None:
        """There are no tests."""
        return

    @property
    def judged_diff(self) -> str:
        """There is no work."""
        return ""

    def close(self) -> None:
        """Nothing is open."""


gymnasium.register("Pausing-v0", entry_point=f"{__name__}:PausingEnv")


def make_copying_generator(config: Any, model: Any, tokenizer: Any) -> Any:
    """Make a generator that samples from a copy of the weights, as a server does."""
    from swe_gym.train.generators.hf import HfGenerator

    sampled = copy.deepcopy(model)

    class Copying(HfGenerator):
        def sync_weights(self, version: int) -> None:
            sampled.load_state_dict(model.state_dict())
            super().sync_weights(version)

    return Copying(config, sampled, tokenizer)


def write_model(folder: Path, seed: int) -> None:
    """Write a model of two layers with random weights, and a tokenizer of whole words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = ["<unk>", "<end>", "<begin>", "<answer>", "be", "brief", "next", "\u2402answer\u2403", "?", "!"]
    words += [f"{verb}{number}" for verb in ("ask", "say") for number in range(KINDS)]
    words += [f"other{number}" for number in range(27 - len(words))]
    raw = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<end>", clean_up_tokenization_spaces=False)
    tokenizer.chat_template = (
        "{% for one in messages %}{% if one.role == 'assistant' %}<answer> {{ one.content }} "
        "{% else %}<begin> {{ one.content }} {% endif %}{% endfor %}<answer>"
    )
    torch.manual_seed(seed)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=len(words), max_position_embeddings=128, eos_token_id=1, pad_token_id=1, **size)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def run(folder: Path, *, seed: int, updates: int, staleness: int, pause: float) -> None:
    """Train once. `staleness` 0 is synchronous."""
    from swe_gym.train.config import make_config
    from swe_gym.train.loop import Trainer

    write_model(folder / "start", seed)
    source = {"pause": pause}
    held_out = {"first": 10_000, "count": 48, **source, "slow": 0.0}
    config = {
        "run": {"output": str(folder / "run"), "seed": seed, "updates": updates, "evaluate_every": updates // 5},
        "model": {"path": str(folder / "start"), "device": "cpu"},
        "env": {
            "id": "Pausing-v0",
            "options": {"source": "__main__:Words"},
            "train": {"source_options": {"first": 0, "count": 10_000, **source, "slow": 0.05}},
            "held_out": {"source_options": held_out},
            "system": "be brief",
            "workers": 64,
        },
        "generation": {"backend": "__main__:make_copying_generator", "max_tokens": 1, "max_context": 64},
        "algorithm": {
            "advantage": "grpo",
            "prompts_per_step": 8,
            "group_size": 4,
            "async_rollout": staleness > 0,
            "max_staleness": max(1, staleness),
        },
        "optim": {"lr": 1e-2, "max_tokens_per_microbatch": 512},
        "evaluation": {"tasks": 48},
    }
    Trainer(make_config(config)).run()


def measure(staleness: int, seed: int, updates: int, pause: float) -> Run:
    """Train in a new process; return the lines of the updates, and the held-out rewards."""
    from swe_gym.train.log import read_log

    with tempfile.TemporaryDirectory() as folder:
        options = [str(one) for one in (folder, seed, updates, staleness, pause)]
        subprocess.run([sys.executable, __file__, "--run", *options], check=True, stderr=subprocess.DEVNULL)
        lines = read_log(Path(folder) / "run" / "log.jsonl")
    held_out = [line["reward"] for line in lines if line["event"] == "evaluation"]
    return [line for line in lines if line["event"] == "update"], held_out


MODES = ("synchronous", "asynchronous")


def show_costs(title: str, runs: Mapping[str, Sequence[Run]]) -> None:
    """Print what an update costs in both modes, as means over all updates of all seeds."""
    rows = []
    for mode in MODES:
        lines = [line for lines, _ in runs[mode] for line in lines]

        def mean(name: str, lines: Sequence[Mapping[str, Any]] = lines) -> float:
            return statistics.fmean(line[name] for line in lines if math.isfinite(line.get(name, math.nan)))

        seconds = [statistics.fmean(line["seconds"]["update"] for line in one) for one, _ in runs[mode]]
        base = [statistics.fmean(line["seconds"]["update"] for line in one) for one, _ in runs[MODES[0]]]
        stale = mode == MODES[1]
        rows.append(
            (
                mode,
                "  ".join(f"{one:.2f}" for one in seconds),
                f"{statistics.fmean(seconds) / statistics.fmean(base):.2f}",
                f"{mean('tokens_per_episode') * mean('episodes'):.0f}",
                f"{mean('rollout_idle_frac'):.0%}",
                f"{mean('train_idle_frac'):.0%}",
                f"{mean('staleness_mean'):.1f}" if stale else "",
                f"{mean('frac_stale_tokens'):.1%}" if stale else "",
            )
        )
    columns = ("", "s/update", "ratio", "tokens", "rollout idle", "train idle", "staleness", "masked")
    show(title, columns, rows)


def show_curves(seeds: Sequence[int], runs: Mapping[str, Sequence[Run]]) -> None:
    """Print the held-out rewards of each seed in both modes, and how far the means are apart."""
    rows = []
    for point in range(len(runs[MODES[0]][0][1])):
        rewards = {mode: [held_out[point] for _, held_out in runs[mode]] for mode in MODES}
        apart = statistics.fmean(rewards[MODES[1]]) - statistics.fmean(rewards[MODES[0]])
        noise = math.sqrt(sum(statistics.variance(one) for one in rewards.values()) / len(seeds)) if seeds[1:] else 0.0
        pairs = [f"{one:.2f}  {two:.2f}" for one, two in zip(*rewards.values(), strict=True)]
        rows.append((str(point), *pairs, f"{apart:+.2f}", f"{2 * noise:.2f}"))
    columns = ("evaluation", *(f"seed {seed}: sync, async" for seed in seeds), "difference", "2 standard errors")
    show("Held-out reward", columns, rows)


def main() -> None:
    """Train in both modes and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--staleness", type=int, default=4, help="algorithm.max_staleness of the asynchronous runs")
    parser.add_argument("--pause", type=float, default=0.1, help="seconds of a turn")
    given = parser.parse_args()
    runs: dict[str, list[Run]] = {mode: [] for mode in MODES}
    for seed in given.seeds:
        for mode, limit in zip(MODES, (0, given.staleness), strict=True):
            runs[mode].append(measure(limit, seed, given.updates, given.pause))
    show_costs(f"{given.updates} updates of 8 x 4 episodes, seeds {given.seeds}", runs)
    show_curves(given.seeds, runs)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        _, _, folder, seed, updates, staleness, pause = sys.argv
        run(Path(folder), seed=int(seed), updates=int(updates), staleness=int(staleness), pause=float(pause))
    else:
        main()
