"""Play tasks by Harbor's own command, in sandboxes of swe_gym and in Harbor's Docker environment.

    python benchmarks/on_harbor.py BASE [--environments local,docker,harbor-docker] [--source toy] [--limit N]
                                   [--public]
    python benchmarks/on_harbor.py BASE --round-trip docker [--source FILE] [--limit N]

BASE is a base image with `python3`, pip, git and bash, in the engine or in the store of local sandboxes.

The first form needs a Python that has Harbor. For each environment and for the agents oracle and nop, it prints the
rewards, the trials that failed and the seconds that Harbor's command took. A first run, which is not shown, builds the
images. Exits with status 1 if an oracle earns less than 1, or a nop more than 0. With `--public`, tasks may use the
network. Harbor's Docker environment refuses all others if the kernel lacks the `fib` expression of nftables.

The second form validates tasks in local sandboxes, exports them, validates what the source "harbor" reads, and prints
the verdicts on the gold patch and on no work. Exits with status 1 if any differ.
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
from swe_gym.curation.validation import validate
from swe_gym.guard import TemporaryFolder
from swe_gym.tasks import TaskSource, is_place_of_tasks, load_source
from swe_gym.tasks.file import FileSource

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


def compare(source: TaskSource, ids: list[str], folder: Path, backend: str) -> bool:
    """Print the verdicts on tasks before and after the export; return whether they are equal."""
    table = LiveTable("task", "here", "exported")
    before = validate(source, ids, times=1, workers=2)
    after = validate(load_source("harbor", path=str(folder)), backend=backend, times=1, workers=2)
    verdicts = [
        {one.task_id.lower(): (one.gold, one.empty, one.reason) for one in records} for records in (before, after)
    ]
    for task_id, (gold, empty, _) in verdicts[0].items():
        again = verdicts[1].get(task_id, ((), (), "lost"))
        same = (gold, empty) == again[:2]
        table.add(task_id, f"{gold} {empty}", "equal" if same else f"{again}")
    return {name: one[:2] for name, one in verdicts[0].items()} == {name: one[:2] for name, one in verdicts[1].items()}


def main() -> None:
    """Play, print, and exit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("base")
    parser.add_argument("--environments", default="local,docker")
    parser.add_argument("--source", default="toy")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--public", action="store_true")
    parser.add_argument("--round-trip", metavar="BACKEND")
    given = parser.parse_args()
    source = FileSource(given.source) if is_place_of_tasks(given.source) else load_source(given.source)
    ids = list(source.ids())[: given.limit]
    tasks = [source.get(task_id) for task_id in ids]
    if given.public:
        needs = [task.needs.model_copy(update={"network": "egress"}) for task in tasks]
        tasks = [task.model_copy(update={"needs": need}) for task, need in zip(tasks, needs, strict=True)]
    good = True
    with TemporaryFolder("swe-gym-harbor-") as scratch:
        folder = scratch.path / "tasks"
        export_harbor(tasks, folder, base=given.base)
        if given.round_trip:
            sys.exit(not compare(source, ids, folder, given.round_trip))
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
