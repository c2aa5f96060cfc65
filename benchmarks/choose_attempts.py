"""Attempts of a policy that knows the solution and spoils it, for `swe-gym select` on real tasks.

python benchmarks/real_tasks.py LINES --rows ROWS --only ID ID --write tasks.jsonl
PYTHONPATH=benchmarks swe-gym rollout tasks.jsonl --policy choose_attempts:Mixed --attempts 8 --name mixed
swe-gym select runs/mixed

With policy.tests=0.25, a quarter of the attempts also write the hidden tests.
"""

import json
import random
from typing import Any

import gymnasium

from swe_gym.curation.audit_checks import read_files
from swe_gym.curation.audit_variants import ChangedFile, Variant, make_variants, split_sections
from swe_gym.envs import SweEnv
from swe_gym.grading.patch import apply_diff
from swe_gym.sandboxes import Sandbox

SHARES = {"gold": 25, "formatted": 10, "hunk": 20, "mutant": 35, "nothing": 10}
"""Kind of attempt -> its share in percent: gold, gold in another layout, one hunk less, one thing changed, no work."""

MOST_VARIANTS = 60


class Mixed:
    """Leaves one kind of work in the sandbox and submits. It reads the oracle.

    Args:
        env: The environment.
        tests: Share of the attempts that also write the hidden tests.
        seed: Seed of its draws.
    """

    def __init__(self, env: gymnasium.Env[str, str], tests: float = 0.0, seed: int | None = None) -> None:
        self._env, self._tests, self._draw = env, tests, random.Random(seed)

    def reset(self, info: Any) -> None:  # noqa: ARG002  it reads the task
        """Do the work."""
        env = self._env.unwrapped
        assert isinstance(env, SweEnv)
        gold, sandbox = env.task.oracle.gold_patch, env.sandbox
        (kind,) = self._draw.choices(list(SHARES), list(SHARES.values()))
        if kind in ("hunk", "mutant"):
            found = [one for one in find_variants(sandbox, gold) if (one.kind == "hunk") == (kind == "hunk")]
            apply_diff(sandbox, self._draw.choice(found).diff if found else gold)
        elif kind != "nothing":
            apply_diff(sandbox, gold)
        if kind == "formatted":
            for path, text in read_files(sandbox, [one.path for one in split_sections(gold)]).items():
                if path.endswith(".py"):
                    sandbox.write_file(path, text + b"\n\n# Done.\n")
        if self._draw.random() < self._tests:
            apply_diff(sandbox, env.task.oracle.test_patch)

    def act(self, observation: str) -> str:  # noqa: ARG002  it does not look
        """Submit."""
        return json.dumps({"name": "submit", "arguments": {}})


def find_variants(sandbox: Sandbox, gold: str) -> list[Variant]:
    """Return the wrong solutions near gold that apply. The files of the sandbox stay as they are."""
    paths = [one.path for one in split_sections(gold)]
    before = read_files(sandbox, paths)
    apply_diff(sandbox, gold)
    after = read_files(sandbox, paths)
    for path in paths:
        if path in before:
            sandbox.write_file(path, before[path])
        elif path in after:
            sandbox.exec(["rm", path])
    changed = [ChangedFile(path, before.get(path), after.get(path)) for path in paths if path.endswith(".py")]
    return make_variants(gold, changed, MOST_VARIANTS)
