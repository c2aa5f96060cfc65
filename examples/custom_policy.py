"""Write a policy, and load it by name."""

import argparse
import json
from typing import Any

import gymnasium

from swe_gym import Trajectory, make_policies, play

COMMANDS = (
    "sed -i 's/if len(self._entries) >=/if key not in self._entries and len(self._entries) >=/' larder/cache.py",
    "sed -i '/self._entries\\[key\\] = Entry/a\\        self._entries.move_to_end(key)' larder/cache.py",
)


class Commands:
    """A policy that runs fixed commands, ignores their output, and submits."""

    def __init__(self, limit: int = 10) -> None:  # a parameter `env` would receive the environment
        self.limit = limit

    def reset(self, info: dict[str, Any]) -> None:  # noqa: ARG002
        self.commands = iter(COMMANDS[: self.limit])

    def act(self, observation: str) -> str:  # noqa: ARG002
        if command := next(self.commands, None):
            return json.dumps({"name": "bash", "arguments": {"command": command}})
        return json.dumps({"name": "submit", "arguments": {}})


def main() -> Trajectory:
    policies = make_policies(f"{__name__}:Commands", {"limit": 2})  # checks the options
    with gymnasium.make("SWE/Toy-v0", task_id="larder-overwrite-evicts") as env:
        return play(env, policies(env))


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    trajectory = main()
    print([turn.tool for turn in trajectory.turns], trajectory.outcome, trajectory.reward)
