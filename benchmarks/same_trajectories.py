"""Check that two versions of the package record the same trajectories of the bundled tasks, byte for byte.

    OLD/bin/python benchmarks/same_trajectories.py record old.jsonl
    NEW/bin/python benchmarks/same_trajectories.py record new.jsonl
    python benchmarks/same_trajectories.py compare old.jsonl new.jsonl

`record` plays each task with the gold patch and with a script of good and bad calls. A Docker image with Python may
follow the file. `compare` leaves out `MEASURED`, counts the differences in `CHANGED`, and fails at any other.
"""

import collections
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium

import swe_gym

MEASURED = ("seconds", "policy_seconds", "started")
"""Fields of clocks."""

ADDED = "added since, with its default"
COUNTED = "wrong work whose first run ran all tests is counted as well; the reward is the same"
CHANGED = {
    **dict.fromkeys(("env.alarm_reward", "policy.server", "parent", "branch_turn"), ADDED),
    **{
        f"{place}.{name}": ADDED
        for place in ("info", "turns.info")
        for name in ("alarms", "already_passes", "unproven")
    },
    **{
        f"{place}.{name}": ADDED
        for place in ("usage", "turns.usage")
        for name in ("answered_as", "cached_answers", "retries", "shortened", "uncounted")
    },
    **{
        f"{place}.{kind}_passed": COUNTED
        for place in ("info", "turns.info")
        for kind in ("fail_to_pass", "pass_to_pass")
    },
    **dict.fromkeys(("usage.cost", "turns.usage.cost"), "unknown without prices, no longer 0"),
    "sandbox.notes": "the memory of a sandbox is watched as a whole",
}
"""Field -> why it differs from the records of commit 3b98661."""

CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("bash", {"command": "ls -a; git log --oneline | head -3; echo err >&2; exit 3"}),
    ("listdir", {"path": ".", "depth": 2}),
    ("grep", {"pattern": "def "}),
    ("view", {"path": "README.md"}),
    ("view", {"path": "no/such/file"}),
    ("edit", {"path": "NEW.md", "old": "", "new": "text\n"}),
    ("rewrite", {"path": "NEW.md", "new_code": "one\ntwo\n"}),
    ("rewrite", {"path": "NEW.md", "start": 2, "new_code": "three\n"}),
    ("bash", {"command": "seq 1 20000"}),
    ("bash", {"command": "sleep 60", "timeout": 0.5}),
    ("no_such_tool", {}),
    ("eval", {}),
    ("bash", {"command": "kill -9 $$"}),
    ("submit", {"message": "done"}),
)
SCRIPT = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in CALLS]
SCRIPT.insert(3, "No call at all.")


def main() -> None:
    """Record or compare, as the arguments say."""
    match sys.argv[1:]:
        case ["record", file, *image]:
            Path(file).write_text("".join(f"{line}\n" for line in record(*image)))
        case ["compare", old, new]:
            sys.exit(compare(Path(old), Path(new)))
        case _:
            sys.exit(__doc__)


def record(image: str = "") -> Iterator[str]:
    """Play all tasks with both policies, locally or in containers, and yield the trajectories as JSON."""
    options = {"options": {"default_image": image, "pull": "never"}} if image else {}
    env = gymnasium.make("SWE/Toy-v0", backend="docker" if image else "local", sandbox_options=options)
    with env:
        tasks = list(env.unwrapped.source.ids())
        for policy in (swe_gym.GoldPolicy(env), swe_gym.ScriptedPolicy(SCRIPT)):
            for task_id in tasks:
                yield swe_gym.play(env, policy, seed=7, options={"task_id": task_id}).model_dump_json()


def compare(old: Path, new: Path) -> int:
    """Print the fields that differ and how often; return the exit status."""
    pairs = [[json.loads(line) for line in file.read_text().splitlines()] for file in (old, new)]
    if len(pairs[0]) != len(pairs[1]):
        print(f"{len(pairs[0])} and {len(pairs[1])} trajectories")
        return 1
    found: dict[str, list[str]] = collections.defaultdict(list)
    turns = 0
    for one, other in zip(*pairs, strict=True):
        turns += len(one["turns"])
        for field, values in differences(one, other):
            found[field].append(f"{one['task_id']}: {values}")
    for field, places in sorted(found.items()):
        print(f"{field}: {len(places)} ({CHANGED.get(field, 'NOT EXPECTED')}), first {places[0][:300]}")
    unexpected = found.keys() - CHANGED.keys()
    print(f"{len(pairs[0])} trajectories, {turns} turns: {len(unexpected)} fields differ unexpectedly")
    return int(bool(unexpected))


def differences(one: Any, other: Any, field: str = "") -> Iterator[tuple[str, str]]:
    """Yield the fields in which two values differ, with both values."""
    if field.rpartition(".")[2] in MEASURED:
        return
    if isinstance(one, dict) and isinstance(other, dict):
        for name in [*one, *(name for name in other if name not in one)]:
            inner = f"{field}.{name}".lstrip(".")
            yield from differences(one.get(name, "(no field)"), other.get(name, "(no field)"), inner)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for left, right in zip(one, other, strict=True):
            yield from differences(left, right, field)
    elif one != other:
        yield field, f"{one!r} -> {other!r}"


if __name__ == "__main__":
    main()
