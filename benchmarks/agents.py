"""Play bundled tasks with each agent and a model that knows the solution, without network.

Shows how many tasks were solved, and medians of an episode: seconds of the sandbox's start, of the agent, of grading
and in total, CPU seconds of the agent's processes, and their most memory. The first row is the policy `gold`, which is
what the sandbox takes without an agent. The agents' processes must be visible on this machine, and readable.

    python benchmarks/agents.py mini pi --tasks 3 --backend local
    python benchmarks/agents.py --backend docker --image registry.example/python-git:3.11
"""

import argparse
import contextlib
import os
import statistics
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import LiveTable

from swe_gym.envs.swe_env import SweEnv
from swe_gym.errors import SweGymError
from swe_gym.gateway.agents import AGENTS
from swe_gym.rollout.episode import play
from swe_gym.rollout.policies import make_players, make_policies
from swe_gym.tasks import load_source
from swe_gym.testing.openai_server import ModelReply, OpenAIServer, in_turn
from swe_gym.trajectories.trajectory import Trajectory
from swe_gym.types import JsonObject

sys.path.append(str(Path(__file__).parents[1] / "tests" / "gateway"))
from agent_parts import gold, saying  # the tests' own model

GOLD = "gold"
POLL = 0.5


class Processes:
    """CPU seconds and the most memory, in MB, of the processes whose environment holds a mark."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self.most = 0.0
        self._used: dict[str, float] = {}
        self._over = threading.Event()

    @property
    def cpu(self) -> float:
        """CPU seconds."""
        return sum(self._used.values())

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
        while not self._over.wait(POLL):
            self.most = max(self.most, sum(map(self._look, Path("/proc").glob("[0-9]*"))))

    def _look(self, process: Path) -> float:
        """Note the CPU time of a process; return its memory."""
        with contextlib.suppress(OSError, StopIteration):
            if self.mark.encode() in (process / "environ").read_bytes():
                used = (process / "stat").read_text().rpartition(")")[2].split()[11:13]
                self._used[process.name] = sum(map(int, used)) / os.sysconf("SC_CLK_TCK")
                lines = (process / "smaps_rollup").read_text().splitlines()
                return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) / 1000
        return 0.0


def model_for(agent: str, task: str) -> tuple[Any, JsonObject]:
    """Return a model that solves the task with the agent, and the agent's options."""
    kind = AGENTS.load(agent)
    if kind.shell[0]:
        return saying(*gold(task), *filter(None, [kind.ending])), {}
    files = load_source("toy").get(task).oracle.gold_patch.split("diff --git ")[1:]
    edit = "\n".join(f"```diff\n{one[one.index('--- a/') :]}```\n" for one in files)
    return in_turn(ModelReply(edit), *[ModelReply("Done.")] * 9), {"arguments": ["--edit-format", "udiff"]}


def play_task(agent: str, task: str, settings: Any, mark: str) -> Trajectory:
    """Play a task with an agent, or with the policy `gold`."""
    with contextlib.ExitStack() as stack:
        env = stack.enter_context(contextlib.closing(SweEnv("toy", task_id=task, **settings)))
        if agent == GOLD:
            return play(env, make_policies(GOLD)(env))
        model, options = model_for(agent, task)
        server = stack.enter_context(OpenAIServer(model, model="scripted"))
        llm = {"model": "scripted", "base_url": server.base_url, "api_key": server.api_key, "retries": 0}
        players = make_players("llm", llm, agent, {**options, "env": {"MARK": mark}})
        stack.enter_context(contextlib.closing(players))
        return play(env, players(env, seed=1))


def measure(agent: str, tasks: list[str], settings: Any) -> list[str]:
    """Play tasks; return the cells of the agent's row."""
    played, cpu, memory, solved, notes = [], [], [], 0, set()
    for task in tasks:
        processes = Processes()
        with processes.watch():
            try:
                found = play_task(agent, task, settings, processes.mark)
            except SweGymError as error:
                notes.add(f"{task}: {str(error)[:200]}")
                continue
        seconds = found.seconds
        played.append([seconds["start"], seconds["tools"] + seconds["policy"], seconds["grading"], seconds["total"]])
        cpu.append(processes.cpu)
        memory.append(processes.most)
        solved += found.reward == 1.0
        notes |= {turn.info["segment"] for turn in found.turns if "segment" in turn.info}
    spent = [f"{statistics.median(one):.1f}" for one in (*zip(*played, strict=True), cpu) if one] or ["-"] * 5
    most = f"{statistics.median(memory):.0f}" if memory else "-"
    return [agent, f"{solved} of {len(tasks)}", *spent, most, "; ".join(sorted(notes))]


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("agents", nargs="*", default=sorted(set(AGENTS) - {"command"}))
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--backend", default="local")
    parser.add_argument("--image", help="image of the sandboxes, with Python and git")
    given = parser.parse_args()
    options = {"default_image": given.image} if given.image else {}
    settings = {"backend": given.backend, "sandbox_options": {"options": options}}
    tasks = load_source("toy").ids()[: given.tasks]
    table = LiveTable("agent", "solved", "start", "agent", "grading", "episode", "CPU", "MB", "segments or error")
    for agent in [GOLD, *given.agents]:
        table.add(*measure(agent, tasks, settings))
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"\n{given.backend}; load average of {os.cpu_count()} CPUs: {load}")


if __name__ == "__main__":
    main()
