"""Play tasks by Harbor's own command, in sandboxes of swe_gym and in Harbor's Docker environment.

    python benchmarks/on_harbor.py BASE [--environments local,docker,harbor-docker] [--source toy] [--limit N]

BASE is a base image with Python, git and bash, in the engine or in the store of local sandboxes. Run it with a Python
that has Harbor. For each environment and for the agents oracle and nop, it prints the rewards, the trials that failed
and the seconds that Harbor's command took. A first run, which is not shown, builds the images. Exits with status 1 if
an oracle earns less than 1, or a nop more than 0.
"""

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from common import LiveTable

from swe_gym.curation.harbor import export_harbor
from swe_gym.guard import TemporaryFolder
from swe_gym.tasks import load_source

PLACE = "swe_gym.adapters.harbor:SweGymEnvironment"
ENVIRONMENTS = {
    "local": ["--env", PLACE, "--ek", "backend=local"],
    "docker": ["--env", PLACE, "--ek", "backend=docker"],
    "harbor-docker": ["--env", "docker"],
}
EXPECTED = {"oracle": 1.0, "nop": 0.0}
SECONDS = 3600


def play(tasks: Path, agent: str, environment: str, out: Path) -> tuple[Counter[float | None], Counter[str], float]:
    """Return the rewards, the exceptions, and the seconds."""
    harbor = Path(sys.executable).with_name("harbor")
    command = [harbor, "run", "-p", tasks, "-a", agent, *ENVIRONMENTS[environment], "-n", "2", "-o", out, "-y"]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    seconds = time.monotonic() - started
    results = [json.loads(file.read_text()) for file in out.glob("*/*/result.json")]
    if not results:
        sys.exit(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")
    rewards = Counter(((one["verifier_result"] or {}).get("rewards") or {}).get("reward") for one in results)
    failures = Counter(one["exception_info"]["exception_type"] for one in results if one["exception_info"])
    return rewards, failures, seconds


def main() -> None:
    """Play, print, and exit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("base")
    parser.add_argument("--environments", default="local,docker")
    parser.add_argument("--source", default="toy")
    parser.add_argument("--limit", type=int)
    given = parser.parse_args()
    source = load_source(given.source)
    tasks = [source.get(task_id) for task_id in list(source.ids())[: given.limit]]
    good = True
    with TemporaryFolder("swe-gym-harbor-") as scratch:
        folder = scratch.path / "tasks"
        export_harbor(tasks, folder, base=given.base)
        table = LiveTable("environment", "agent", "seconds", "rewards")
        for environment in given.environments.split(","):
            play(folder, "nop", environment, scratch.path / f"{environment}-first")
            for agent, expected in EXPECTED.items():
                out = scratch.path / f"{environment}-{agent}"
                rewards, failures, seconds = play(folder, agent, environment, out)
                good = good and rewards == Counter({expected: len(tasks)})
                said = ", ".join(f"{count} of {len(tasks)}: {reward}" for reward, count in rewards.items())
                table.add(environment, agent, f"{seconds:.1f}", " ".join([said, *map(str, failures.items())]))
    sys.exit(not good)


if __name__ == "__main__":
    main()
