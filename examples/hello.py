"""Run an episode: read the issue, view the code, fix it, submit.

python examples/hello.py
"""

import argparse
import json

import gymnasium as gym

import swe_gym  # noqa: F401  registers the environments


def call(tool: str, **arguments: object) -> str:
    """Write an action as JSON, the simplest of the action formats."""
    return json.dumps({"name": tool, "arguments": arguments})


ACTIONS = [
    call("view", path="larder/cache.py", start=38, end=46),
    call(
        "edit",
        command="str_replace",
        path="larder/cache.py",
        old_str="if len(self._entries) >=",
        new_str="if key not in self._entries and len(self._entries) >=",
    ),
    call(
        "edit",
        command="str_replace",
        path="larder/cache.py",
        old_str="Entry(value, self._deadline(ttl))\n",
        new_str="Entry(value, self._deadline(ttl))\n        self._entries.move_to_end(key)\n",
    ),
    call("eval"),
    "All tests pass, so I submit.\n" + call("submit"),
]

argparse.ArgumentParser(description=__doc__).parse_args()
with gym.make("SWE/Toy-v0", task_id="larder-overwrite-evicts") as env:
    observation, info = env.reset()
    print(observation)
    for action in ACTIONS:
        observation, reward, terminated, truncated, info = env.step(action)
        print(f">>> {action}\n{observation}\n")

print(f"reward {reward}: {info['fail_to_pass_passed']} of {info['fail_to_pass_total']} failing tests now pass")
