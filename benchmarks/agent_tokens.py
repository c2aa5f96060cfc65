"""Check the tokens of unmodified agents: each sampled token that an agent received stands in exactly one segment.

The agents play bundled tasks in local sandboxes without a network. Their model draws its answers: tool calls, several
at once, broken and unknown ones, thoughts, random ids, answers that are cut off. Build the kits with `swe-gym agents`.

    python benchmarks/agent_tokens.py Qwen/Qwen2.5-Coder-0.5B-Instruct --agents mini,codex --episodes 50
"""

import argparse
import collections
import contextlib
import json
import random
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from common import show
from transformers import AutoTokenizer

from swe_gym.envs.swe_env import SweEnv
from swe_gym.errors import SweGymError
from swe_gym.gateway.agents import make_agent
from swe_gym.gateway.agents.base import Agent
from swe_gym.gateway.calls import tool_call
from swe_gym.gateway.play import AgentPlayer
from swe_gym.gateway.rendering import Renderer
from swe_gym.gateway.session import Limits
from swe_gym.gateway.token_sampler import TokenSampler
from swe_gym.rollout.episode import play
from swe_gym.rollout.tokens import ChatTemplate, Completion
from swe_gym.tasks import load_source
from swe_gym.trajectories.trajectory import Trajectory

AGENTS = ("mini", "claude-code", "codex", "opencode")
COMMANDS = ("ls", "cat *.md | head -5", "printf 'é \\U0001f600\\n' > note.txt; cat note.txt", "false", "git status")
WAYS = {"call": 8, "two": 2, "thought": 2, "noise_and_call": 2, "broken": 1, "unknown": 1, "arguments": 1, "noise": 1}
"""Way of an answer -> its weight. What an agent takes for text without a call ends most agents."""

LAST = 7
"""Number of the answer that tells the agent to end."""

CUT = 0.05
"""Share of answers that are cut off."""


class Drawn:
    """A generator that draws its answers. Each token has a log-probability of its own, by which it is found again.

    Args:
        tokenizer: The tokenizer.
        renderer: Renderer of its chat template.
        agent: The agent, whose shell is called.
        seed: Seed of the answers.
    """

    def __init__(self, tokenizer: Any, renderer: Renderer, agent: Agent, seed: int) -> None:
        self.sampled: list[tuple[tuple[int, ...], Completion]] = []
        self._tokenizer, self._agent, self._draw = tokenizer, agent, random.Random(seed)
        self._renderer = renderer
        self._tokens = 0
        self._lock = threading.Lock()

    def generate(self, prompt: Sequence[int], *, max_tokens: int, temperature: float, seed: int | None) -> Completion:  # noqa: ARG002
        """See `Generator`."""
        with self._lock:
            ids = self._answer()
            if self._draw.random() < CUT:
                ids = ids[: self._draw.randint(1, len(ids))]
            else:
                ids = [*ids, self._tokenizer.eos_token_id]
            ids = ids[:max_tokens]
            first, self._tokens = self._tokens + 1, self._tokens + len(ids)
            logprobs = [-number / 1e6 for number in range(first, self._tokens + 1)]
            ended = ids[-1] == self._tokenizer.eos_token_id
            completion = Completion(ids, logprobs, "stop" if ended else "length", 0)
            self.sampled.append((tuple(prompt), completion))
            return completion

    def _answer(self) -> list[int]:
        if len(self.sampled) >= LAST:
            return self._encode(self._call(self._agent.ending) if self._agent.ending else "Done.")
        (way,) = self._draw.choices(list(WAYS), list(WAYS.values()))
        command = self._draw.choice(COMMANDS)
        call = self._call(command)
        if way == "noise":
            return self._noise()
        if way == "noise_and_call":
            return [*self._noise(), *self._encode(f"\n{call}")]
        texts = {
            "call": self._call(command, "Next."),
            "two": f"{call}\n{self._call('true')}",
            "thought": f"<think>\nHm.\n</think>\n\nSo.\n{call}",
            "broken": call[: self._draw.randrange(1, len(call))],
            "unknown": call.replace(self._agent.shell[0], "sing"),
            "arguments": call.replace(self._agent.shell[1], "lyrics"),
        }
        return self._encode(texts[way])

    def _call(self, command: str, said: str = "") -> str:
        tool, argument = self._agent.shell
        call = tool_call("call00000", tool, json.dumps({argument: command}))
        message = {"role": "assistant", "content": said, "reasoning_content": "Hm.", "tool_calls": [call]}
        return self._renderer.write(message)  # without the reasoning if the template renders none

    def _noise(self) -> list[int]:
        ids = (self._draw.randrange(len(self._tokenizer)) for _ in range(self._draw.randint(1, 60)))
        return [one for one in ids if one != self._tokenizer.eos_token_id] or [1]

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))


class Checked(NamedTuple):
    """What was found in an episode.

    Attributes:
        calls: Sampled answers.
        tokens: Sampled tokens.
        unused: Answers that the agent did not take.
        segments: Segments.
        aside: Segments of side calls.
        reasons: Reasons for which segments start.
        wrong: What is wrong; empty if nothing is.
    """

    calls: int
    tokens: int
    unused: int
    segments: int
    aside: int
    reasons: tuple[str, ...]
    wrong: str = ""


def checked(found: Trajectory, sampled: Sequence[tuple[tuple[int, ...], Completion]]) -> Checked:
    """Compare the segments of an episode with what was sampled."""
    masked = collections.Counter(
        pair
        for one in found.segments
        for pair, mask in zip(zip(one.token_ids, one.logprobs, strict=True), one.loss_mask, strict=True)
        if mask
    )
    pairs = [list(zip(made.token_ids, made.logprobs, strict=True)) for _, made in sampled]
    taken = [one for one in pairs if masked[one[0]]]
    unused = sum(not turn.info.get("used", True) for turn in found.turns)
    reasons = tuple(str(turn.info["segment"]) for turn in found.turns if turn.info.get("segment"))
    ends = {(*prompt, *made.token_ids) for prompt, made in sampled}
    wrong = {
        "a token is missing or stands twice": masked != collections.Counter(pair for one in taken for pair in one),
        "a turn is missing": len(found.turns) != len(sampled),
        "an answer is missing": len(taken) + unused != len(sampled),
        "a segment is no prompt with its answer": any(one.token_ids not in ends for one in found.segments),
        "a plain conversation has several segments": not reasons and len(found.segments) != 1,
    }
    return Checked(
        calls=len(sampled),
        tokens=sum(map(len, pairs)),
        unused=unused,
        segments=len(found.segments),
        aside=sum(one.side_call for one in found.segments),
        reasons=reasons,
        wrong="; ".join(name for name, broken in wrong.items() if broken),
    )


def episode(name: str, tokenizer: Any, seed: int) -> Checked | str:
    """Play and check an episode. Return why, if it has no record."""
    agent, tasks = make_agent(name), load_source("toy").ids()
    renderer = Renderer(ChatTemplate(tokenizer))
    generator = Drawn(tokenizer, renderer, agent, seed)
    sampler = TokenSampler(generator, renderer, max_tokens=400, max_context=1 << 20)
    player = AgentPlayer(name, agent, sampler, limits=Limits(calls=2 * LAST))
    with contextlib.closing(SweEnv("toy", task_id=tasks[seed % len(tasks)], time_limit=1800.0)) as env:
        try:
            found = play(env, player)
            return checked(found, generator.sampled) if found.reward_valid else f"{found.reason}: {found.failure}"
        except SweGymError as error:
            return f"{type(error).__name__}: {error}"


def row(name: str, found: Sequence[Checked | str]) -> list[str]:
    """Return a row of the table, and print what is wrong."""
    played = [one for one in found if isinstance(one, Checked)]
    for one in found:
        if isinstance(one, str) or one.wrong:
            print(f"{name}: {one if isinstance(one, str) else one.wrong}", file=sys.stderr)
    reasons = collections.Counter(reason for one in played for reason in one.reasons)
    return [
        name,
        str(len(played)),
        *(f"{sum(getattr(one, column) for one in played):,}" for column in ("calls", "tokens", "unused", "segments")),
        str(sum(not one.reasons for one in played)),
        str(sum(one.aside for one in played)),
        ", ".join(f"{reason} {count}" for reason, count in reasons.most_common()) or "-",
        str(sum(bool(one.wrong) for one in played)),
    ]


def main() -> int:
    """Play the episodes of each agent. The exit status is 1 if a token was lost or doubled, or nothing was played."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="tokenizer with a chat template")
    parser.add_argument("--agents", default=",".join(AGENTS))
    parser.add_argument("--episodes", type=int, default=50, help="episodes of each agent")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    tokenizer, rows = AutoTokenizer.from_pretrained(given.model), []
    for name in given.agents.split(","):
        started = time.monotonic()
        with ThreadPoolExecutor(given.workers) as pool:
            seeds = range(given.seed, given.seed + given.episodes)
            found = list(pool.map(lambda seed, name=name: episode(name, tokenizer, seed), seeds))
        rows.append(row(name, found))
        print(f"{'  '.join(rows[-1])}  ({time.monotonic() - started:.0f} s)", flush=True)
    columns = ("agent", "episodes", "calls", "tokens", "unused", "segments", "plain", "side calls", "reasons", "wrong")
    show("Tokens of agents", columns, rows, "plain: conversations that only grew; each is one segment")
    return int(any(one[-1] != "0" or one[1] == "0" for one in rows))


if __name__ == "__main__":
    sys.exit(main())
