"""Play bundled tasks with each agent and a model that knows the solution, without network.

Shows how many tasks were solved, the seconds from the agent's start to its end, the model's answers included, and the
most memory of its processes, in excess of the sandbox's own. Memory is measured on local sandboxes only.

    python benchmarks/agents.py mini pi --tasks 3 --backend local
"""

import argparse
import contextlib
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from common import LiveTable

from swe_gym.envs.swe_env import SweEnv
from swe_gym.errors import SweGymError
from swe_gym.gateway.agents import AGENTS
from swe_gym.gateway.kits import PLACE
from swe_gym.rollout.episode import play
from swe_gym.rollout.policies import make_players
from swe_gym.tasks import load_source
from swe_gym.testing.openai_server import OpenAIServer
from swe_gym.trajectories.trajectory import Trajectory

sys.path.append(str(Path(__file__).parents[1] / "tests" / "gateway"))
from agent_parts import gold, saying  # the tests' own model

TEXT_ONLY = {"aider"}
"""Agents that no shell command reaches."""


class Memory:
    """The most memory, in MB, of the processes that run from a kit."""

    def __init__(self) -> None:
        self.most, self._over = 0.0, threading.Event()

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Measure during the block."""
        thread = threading.Thread(target=self._measure)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _measure(self) -> None:
        while not self._over.wait(0.2):
            self.most = max(self.most, sum(map(_megabytes, Path("/proc").glob("[0-9]*"))))


def _megabytes(process: Path) -> float:
    with contextlib.suppress(OSError, StopIteration):
        if PLACE.encode() in (process / "cmdline").read_bytes():
            lines = (process / "smaps_rollup").read_text().splitlines()
            return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) / 1000
    return 0.0


def play_task(agent: str, task: str, backend: str) -> Trajectory:
    """Play a task with an agent."""
    ending = AGENTS.load(agent).ending
    with OpenAIServer(saying(*gold(task), *filter(None, [ending])), model="scripted") as server:
        llm = {"model": "scripted", "base_url": server.base_url, "api_key": server.api_key, "retries": 0}
        with contextlib.closing(make_players("llm", llm, agent, {})) as players:
            env = SweEnv("toy", task_id=task, backend=backend)
            with contextlib.closing(env):
                return play(env, players(env, seed=1))


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("agents", nargs="*", default=sorted(set(AGENTS) - {"command"} - TEXT_ONLY))
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--backend", default="local")
    given = parser.parse_args()
    tasks = load_source("toy").ids()[: given.tasks]
    table = LiveTable("agent", "solved", "seconds", "episode", "memory", "segments or error")
    for agent in given.agents:
        ran, whole, solved, memory, notes = [], [], 0, Memory(), set()
        with memory.watch():
            for task in tasks:
                started = time.monotonic()
                try:
                    found = play_task(agent, task, given.backend)
                except SweGymError as error:
                    notes.add(f"{task}: {str(error)[:200]}")
                    continue
                whole.append(time.monotonic() - started)
                ran.append(found.seconds["tools"] + found.seconds["policy"])
                solved += found.reward == 1.0
                notes |= {turn.info["segment"] for turn in found.turns if "segment" in turn.info}
        seconds = [f"{statistics.median(one):.1f} s" if one else "-" for one in (ran, whole)]
        table.add(agent, f"{solved} of {len(tasks)}", *seconds, f"{memory.most:.0f} MB", "; ".join(sorted(notes)))


if __name__ == "__main__":
    main()
