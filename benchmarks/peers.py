"""Compare graded episodes with what others pay for ungraded ones: same image, same actions, one machine.

    python benchmarks/peers.py TASKS.jsonl [--at-once 1 4 16] [--episodes 48] [--rounds 2]

TASKS.jsonl holds tasks with images that the Docker engine has, for example from `swe-gym images build`. The first one
is played. Every player runs the twelve commands of `ACTIONS` in a fresh sandbox. swe_gym also submits, and grades in
fresh sandboxes with counter-tests; the others grade nothing:

swe_gym, local     sandboxes from images without an engine
swe_gym, docker    containers
mini-swe-agent     its DockerEnvironment: `docker run`, then `docker exec` for each command
docker-py          `containers.run`, then `exec_run` for each command

CPU seconds are those of the whole machine, the engine's daemons included: nothing else must run. mini-swe-agent is
installed with uv into a temporary environment. The players take turns.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import gymnasium
from common import import_image, show

import swe_gym  # noqa: F401  registers the environments
from swe_gym.cli.common import open_source
from swe_gym.sandboxes import SandboxSpec, open_sandbox
from swe_gym.types import Task

MINI = "mini-swe-agent==2.4.6"
ACTIONS = (
    "ls -la",
    "git log --oneline | head -5",
    "find . -name '*.py' | head -50",
    "grep -rn 'def ' --include='*.py' . | head -40",
    "cat $(find . -name '*.py' | head -1)",
    "python3 -c 'print(1 + 1)'",
    "echo 'print(2)' > probe.py",
    "python3 probe.py",
    "sed -i s/2/3/ probe.py",
    "git status --short",
    "git diff | head -50",
    "rm probe.py",
)

MINI_DRIVER = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from minisweagent.environments.docker import DockerEnvironment
image, cwd, episodes, at_once, actions = json.loads(sys.stdin.readline())
def play(_):
    environment = DockerEnvironment(image=image, cwd=cwd, run_args=["--rm", "--network", "none"])
    for action in actions:
        environment.execute({"command": action})
    environment.cleanup()
with ThreadPoolExecutor(at_once) as threads:
    list(threads.map(play, range(episodes)))
"""

Play = Callable[[int, int], None]
"""Plays a number of episodes, a number of them at once."""


def swe_gym_player(tasks: str, backend: str) -> Play:
    """Return a player of graded episodes."""

    def episode(_: int) -> None:
        tools = ["bash", "submit"]
        with gymnasium.make("SWE/Tasks-v0", path=tasks, backend=backend, tools=tools, disable_env_checker=True) as env:
            env.reset(options={"task_id": first_task(tasks).task_id})
            for action in ACTIONS:
                env.step(json.dumps({"name": "bash", "arguments": {"command": action}}))
            *_, info = env.step('{"name": "submit", "arguments": {}}')
            assert info["reward_valid"], info

    return in_threads(episode)


def docker_py_player(task: Task) -> Play:
    """Return a player with docker-py."""
    import docker

    client = docker.from_env(max_pool_size=64)

    def episode(_: int) -> None:
        container = client.containers.run(
            task.image, ["sleep", "600"], detach=True, network_mode="none", working_dir=task.workdir
        )
        try:
            for action in ACTIONS:
                container.exec_run(["bash", "-lc", action])
        finally:
            container.remove(force=True)

    return in_threads(episode)


def mini_player(task: Task, python: Path) -> Play:
    """Return a player with mini-swe-agent, in its own process."""

    def play(episodes: int, at_once: int) -> None:
        said = json.dumps([task.image, task.workdir, episodes, at_once, ACTIONS])
        subprocess.run(
            [python, "-c", MINI_DRIVER], input=said, text=True, check=True, timeout=1800, stdout=subprocess.DEVNULL
        )
        while subprocess.run(["docker", "ps", "-q"], capture_output=True, check=True).stdout:
            time.sleep(0.2)  # it removes containers in the background, which is work too

    return play


def in_threads(episode: Callable[[int], None]) -> Play:
    """Return a player that plays an episode in each thread."""

    def play(episodes: int, at_once: int) -> None:
        with ThreadPoolExecutor(at_once) as threads:
            list(threads.map(episode, range(episodes)))

    return play


def first_task(path: str) -> Task:
    """Return the first task of a file."""
    source = open_source(path, None)
    return source.get(source.ids()[0])


def cpu_seconds() -> float:
    """Return the CPU seconds that the machine has spent."""
    user, nice, system, *_rest = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    irq, softirq = _rest[2:4]
    return (user + nice + system + irq + softirq) / 100


@contextmanager
def mini_python() -> Iterator[Path]:
    """Install mini-swe-agent, and yield its Python."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["uv", "venv", "--quiet", "--python", sys.executable, folder], check=True)
        python = Path(folder) / "bin" / "python"
        subprocess.run(["uv", "pip", "install", "--quiet", "--python", python, MINI], check=True)
        yield python


def start_milliseconds(task: Task, backend: str) -> float:
    """Return the median time from nothing to the end of a first command."""
    times = []
    for _ in range(15):
        started = time.perf_counter()
        with open_sandbox(SandboxSpec(image=task.image, workdir=task.workdir), backend) as sandbox:
            sandbox.exec(["true"])
            times.append((time.perf_counter() - started) * 1000)
    return sorted(times)[len(times) // 2]


def main() -> int:
    """Play, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks")
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--episodes", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    task = first_task(given.tasks)
    import_image(task)
    starts = {backend: start_milliseconds(task, backend) for backend in ("local", "docker")}
    rows = []
    with mini_python() as python:
        players = {
            "swe_gym, local, graded": swe_gym_player(given.tasks, "local"),
            "swe_gym, docker, graded": swe_gym_player(given.tasks, "docker"),
            "mini-swe-agent, ungraded": mini_player(task, python),
            "docker-py, ungraded": docker_py_player(task),
        }
        for at_once in given.at_once:
            spent = {name: [0.0, 0.0] for name in players}
            for _ in range(given.rounds):
                for name, play in players.items():
                    before, started = cpu_seconds(), time.monotonic()
                    play(given.episodes, at_once)
                    spent[name][0] += time.monotonic() - started
                    spent[name][1] += cpu_seconds() - before
            total = given.episodes * given.rounds
            theirs = spent["mini-swe-agent, ungraded"]
            for name, (seconds, cpu) in spent.items():
                rows.append(
                    (
                        f"{at_once} at once: {name}",
                        f"{3600 * total / seconds:,.0f}",
                        f"{theirs[0] / seconds:.2f}",
                        f"{cpu / total:.3f} s",
                        f"{cpu / theirs[1]:.2f}",
                    )
                )
    show(
        f"{task.task_id}: {len(ACTIONS)} commands an episode",
        ("player", "episodes/h", "x mini", "CPU/episode", "of mini"),
        rows,
        f"start to first command: local {starts['local']:.0f} ms, docker {starts['docker']:.0f} ms",
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
