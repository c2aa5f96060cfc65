"""The bundled tasks, and an episode of each that is the same on every backend, byte for byte."""

import json
from contextlib import closing
from typing import Any

from swe_gym.envs.swe_env import SweEnv
from swe_gym.tasks import load_source

TASKS = load_source("toy").ids()


def actions(task_id: str) -> list[str]:
    """Something of every tool.

    Not asked for is what is the machine's or the image's own: clocks, numbers of processes, sizes of folders, the
    version of Python, PATH and what else an image sets.
    """
    patch = load_source("toy").get(task_id).oracle.gold_patch
    file = next(line[6:] for line in patch.splitlines() if line.startswith("--- a/"))
    calls: list[tuple[str, dict[str, Any]]] = [
        ("listdir", {"path": "."}),
        ("view", {"path": file}),
        ("view", {"path": "no/such/file"}),
        ("grep", {"pattern": "def "}),
        ("bash", {"command": "git log --format='%h %an %s' | head; git status --short; git diff --stat"}),
        ("bash", {"command": "find . -path ./.git -prune -o -printf '%M %u %g %p %l\\n' | sort; wc -c README.md"}),
        ("bash", {"command": "id; pwd; umask; env | grep -v -e ^PATH= -e ^PIP_ | sort"}),
        ("eval", {}),
        ("bash", {"command": "python -c 'import sys, site; print(sys.prefix, sys.flags, site.ENABLE_USER_SITE)'"}),
        ("bash", {"command": "echo out; echo err >&2; exit 3"}),
        ("bash", {"command": "sleep 30", "timeout": 1}),
        ("bash", {"command": "no-such-command"}),
        ("rewrite", {"path": "notes/new.txt", "new_code": "änd\n"}),
        (
            "bash",
            {"command": "cat notes/new.txt; git status --short; ls -l --time-style=+ notes; touch x; stat -c %a x"},
        ),
        (
            "bash",
            {"command": "git add -A && git -c user.name=a -c user.email=b commit -qm c && git log --format=%T -1"},
        ),
        ("submit", {}),
    ]
    return [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]


def play(task_id: str, **settings: Any) -> list[str]:
    """All that the environment says of one episode."""
    with closing(SweEnv("toy", task_id=task_id, **settings)) as env:
        said = [repr(env.reset(seed=0))]
        said += [repr(env.step(action)) for action in actions(task_id)]
    return said
