"""Kill a rollout of agents with SIGKILL at moments drawn by a seed, and check that nothing of it is left.

After each kill, no process, no folder of a sandbox and no container may be left, and the next start resumes the run.
For Docker, set SWE_GYM_TEST_IMAGE to an image with Python and git.

    python benchmarks/agent_kills.py [local|docker] --times 20 --seed 0
"""

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import LiveTable, wait_until
from rollout import below

from swe_gym.testing.sandbox_contract.case import new_marker, processes_here
from swe_gym.trajectories.run_folder import FAILED, TRAJECTORIES
from swe_gym.trajectories.trajectory import Trajectory

AGENT = Path(__file__).parents[1] / "tests" / "gateway"
"""Folder of `tiny_agent.py`."""

LONGEST = 6.0
"""Seconds after the model's first call in which a rollout is killed."""

LEFT = 20.0
"""Seconds in which everything must be gone."""

CLIENT = """
import json, sys
from swe_gym.rollout.engine import RolloutOptions, rollout
from swe_gym.rollout.plan import Plan
from swe_gym.testing.openai_server import OpenAIServer, Reply

folder, agent, marker, env = sys.argv[1:]

def say(request):
    print("playing\\n", end="", flush=True)
    number = sum(message["role"] == "assistant" for message in request["messages"])
    command = f"setsid sleep {marker} > /dev/null 2>&1 & echo {number} > file; sleep 0.1"
    return Reply("Done.") if number > 4 else Reply("Next.", tool_calls=[("bash", json.dumps({"command": command}))])

with OpenAIServer(say, model="m") as server:
    policy = {"model": "m", "base_url": server.base_url, "api_key": server.api_key}  # not part of the configuration
    options = {"command": "python3 {kit}/tiny_agent.py {issue}", "folder": agent}
    plan = Plan(source="toy", attempts=100, policy="llm", policy_options=policy, agent="command",
        agent_options=options, env=json.loads(env))
    rollout(plan, folder, RolloutOptions(workers=2))
"""


def kill_once(backend: str, folder: Path, scratch: Path, marker: str, delay: float) -> tuple[float, list[object]]:
    """Kill a rollout some seconds after its first call. Return after how long everything was gone, and what is left."""
    options = {"labels": {"test": marker}}
    if backend == "docker":
        options |= {"image": os.environ["SWE_GYM_TEST_IMAGE"]}
    env = json.dumps({"backend": backend, "sandbox_options": options})
    command = [sys.executable, "-c", CLIENT, str(folder), str(AGENT), marker, env]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(scratch)}) as client:
        try:
            assert client.stdout is not None
            assert client.stdout.readline() == b"playing\n"
            with contextlib.suppress(subprocess.TimeoutExpired):
                client.wait(delay)
                raise RuntimeError(f"the rollout ended by itself with status {client.returncode}")
            started = below(client.pid)
        finally:
            client.kill()

    def left() -> list[object]:
        alive: list[object] = [f"process {pid}" for pid in started if Path(f"/proc/{pid}").exists()]
        return [*alive, *processes_here(marker), *scratch.iterdir(), *containers(backend, marker)]

    killed = time.monotonic()
    wait_until(lambda: not left(), LEFT)
    return time.monotonic() - killed, left()


def containers(backend: str, label: str) -> list[object]:
    """Return the containers of a rollout."""
    if backend != "docker":
        return []
    import docker

    with contextlib.closing(docker.APIClient(version="auto")) as engine:
        return list(engine.containers(all=True, filters={"label": f"test={label}"}))


def main() -> int:
    """Kill rollouts one after the other. The exit status is 1 if anything was left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backend", nargs="?", default="local", choices=("local", "docker"))
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    moments, marker, total = random.Random(given.seed), new_marker(), 0
    table = LiveTable("killed after", "gone after", "episodes done", "killed ones", "left")
    with tempfile.TemporaryDirectory(prefix="swe-gym-kill-") as place:
        folder, scratch = Path(place) / "run", Path(place) / "tmp"
        scratch.mkdir()
        for _ in range(given.times):
            delay = moments.uniform(0, LONGEST)
            seconds, left = kill_once(given.backend, folder, scratch, marker, delay)
            total += len(left)
            played = [len(list(Trajectory.read(file))) if file.exists() else 0 for file in files(folder)]
            table.add(f"{delay:.2f} s", f"{seconds:.1f} s", *map(str, played), ", ".join(map(str, left)) or "nothing")
    print(f"{given.times} kills, {total} things left")
    return int(total > 0)


def files(folder: Path) -> tuple[Path, Path]:
    """Return the records of a run, which must stay readable."""
    return folder / TRAJECTORIES, folder / FAILED


if __name__ == "__main__":
    sys.exit(main())
