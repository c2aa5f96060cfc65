"""Tool calls of a search over checkpoints, against independent attempts of the same careless policy.

python benchmarks/tree_search.py                          # the bundled tasks
python benchmarks/tree_search.py --match 'l*' --errs 0.4 --search beam

The policy knows the gold patch and applies it hunk by hunk. At each step it may err: it deletes a random line of the
file and takes the hunk for done. Nobody but the visible tests tells the search.
"""

import argparse
import contextlib
import fnmatch
import json
import os
import random
import re
import statistics
from collections.abc import Sequence
from typing import Any

import gymnasium
from common import show

from swe_gym.envs import SweEnv
from swe_gym.grading import split_diff
from swe_gym.rollout import play
from swe_gym.rollout.policies import make_policies
from swe_gym.tasks import load_source
from swe_gym.trajectories.trajectory import Trajectory

CARELESS = "tree_search:Careless"

DELETE = "import sys; p, n = sys.argv[1], float(sys.argv[2]); s = open(p, newline='').read().split('\\n'); "
DELETE += "full = [i for i, line in enumerate(s) if line.strip()]; del s[full[int(n * len(full))]]; "
DELETE += "open(p, 'w', newline='').write('\\n'.join(s))"


class Careless:
    """Applies the gold patch hunk by hunk, and errs.

    Args:
        env: The environment.
        errs: Probability of an error in a step.
        seed: Seed of the errors.
    """

    def __init__(self, env: gymnasium.Env[str, str], errs: float = 0.3, seed: int | None = None) -> None:
        self._env, self._errs, self._draw = env, errs, random.Random(seed)
        self._turn = 0

    def reset(self, info: Any) -> None:  # noqa: ARG002
        """Start at the first hunk."""
        self._turn = 0

    def resume(self, turns: Sequence[tuple[str, str]], tokens: Sequence[int] = ()) -> None:  # noqa: ARG002
        """Go on with the next hunk."""
        self._turn = len(turns)

    def act(self, observation: str) -> str:  # noqa: ARG002
        """Return the next step."""
        steps = hunks_of(self._env.unwrapped.task.oracle.gold_patch)  # type: ignore[attr-defined]
        self._turn += 1
        if self._turn > len(steps):
            return json.dumps({"name": "submit", "arguments": {}})
        path, hunk = steps[self._turn - 1]
        command = f"GIT_DIR=/nonexistent git apply --whitespace=nowarn - <<'END_OF_HUNK'\n{hunk}END_OF_HUNK"
        if self._draw.random() < self._errs and path:
            command = f'python3 -c "{DELETE}" {path} {self._draw.random()}'
        return json.dumps({"name": "bash", "arguments": {"command": command}})


def hunks_of(patch: str) -> list[tuple[str, str]]:
    """Return file and diff of each hunk; without a file for a new one."""
    found = []
    for names, part in split_diff(patch):
        head, *hunks = re.split(r"^(?=@@ )", part, flags=re.MULTILINE)
        path = "" if "new file mode" in head else next(iter(names))
        found += [(path, head + hunk) for hunk in hunks]
    return found


def run(policy: str, options: dict[str, Any], task: str, seed: int) -> Trajectory:
    """Play an episode."""
    policies = make_policies(policy, options)
    with contextlib.closing(SweEnv("toy")) as env, contextlib.closing(policies):
        return play(env, policies(env, seed=seed), seed=seed, options={"task_id": task})


def main() -> None:
    """Play, and print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--match", default="*")
    parser.add_argument("--errs", type=float, default=0.3)
    parser.add_argument("--search", default="best", choices=["best", "beam"])
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--attempts", type=int, default=4)
    given = parser.parse_args()
    rows, trees, alone = [], [], []
    for task in fnmatch.filter(load_source("toy").ids(), given.match):
        tree = run(
            "tree", {"inner": CARELESS, "errs": given.errs, "search": given.search, "tool_calls": given.calls}, task, 1
        )
        searched: Any = tree.policy.options["searched"]
        calls = searched["tool_calls"] + (tree.reason == "submit")
        attempts = [run(CARELESS, {"errs": given.errs}, task, 100 + n) for n in range(given.attempts)]
        solved = [one.resolved for one in attempts]
        trees.append((tree.resolved, calls, searched["values"]))
        alone.append((sum(solved) / len(solved), statistics.mean(len(one.turns) for one in attempts)))
        rows.append([task, f"{tree.resolved:d}", str(calls), str(searched["values"]), f"{sum(solved)}/{len(solved)}"])
        print(*rows[-1], flush=True)
    show("Tree and attempts", ["task", "tree", "calls", "values", "attempts"], rows, f"load {os.getloadavg()[0]:.0f}")
    made, played, valued = (sum(column) for column in zip(*trees, strict=True))
    share, turns = (statistics.mean(column) for column in zip(*alone, strict=True))
    print(f"tree: {made} of {len(trees)} solved, {played} calls: {100 * made / played:.1f} per 100 calls;")
    print(f"  test runs of the search counted as calls, too: {100 * made / (played + valued):.1f}")
    print(f"one attempt: {share:.2f} of the tasks, {turns:.1f} calls: {100 * share / turns:.1f} per 100 calls")
    for what, spent in (("calls", played), ("calls and test runs", played + valued)):
        times = spent / len(trees) / turns
        equal = statistics.mean(1 - (1 - one) ** times for one, _ in alone)
        print(f"{times:.1f} attempts, the {what} of a tree, the best one chosen: {equal:.2f} of the tasks")


if __name__ == "__main__":
    main()
