"""Four bundled tasks for algorithms without text: choose the right patch from a menu.

An observation is the issue, or later the output of a tool, hashed into 256 numbers. An action is one of five calls:
apply one of four patches, or submit. The issue tells which patch is right; the others do not apply. Sandboxes, tests
and rewards are those of `SWE/Toy-v0`.
"""

import argparse

import gymnasium

import swe_gym  # noqa: F401  registers the environments
from swe_gym.tasks import load_source
from swe_gym.wrappers import HashedText, ToolMenu

SOURCE = load_source("toy")
TASKS = list(SOURCE.ids())[:4]

MENU = [
    *(
        # The gold patches are on the menu, so this only shows that an algorithm learns.
        {"name": "bash", "arguments": {"command": f"git apply <<'END'\n{SOURCE.get(task).oracle.gold_patch}\nEND"}}
        for task in TASKS
    ),
    {"name": "submit", "arguments": {}},
]


class OneOf(gymnasium.Wrapper):
    """Starts each episode with one of a few tasks."""

    def __init__(self, env: gymnasium.Env, tasks: list[str]) -> None:
        super().__init__(env)
        self.tasks = tasks

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.np_random = gymnasium.utils.seeding.np_random(seed)[0]
        task = self.tasks[int(self.np_random.integers(len(self.tasks)))]
        return self.env.reset(seed=seed, options={"task_id": task, **(options or {})})


def make_env() -> gymnasium.Env:
    """Make an environment that grades after two turns at the latest."""
    env = gymnasium.make("SWE/Toy-v0", max_turns=2, disable_env_checker=True)
    return HashedText(ToolMenu(OneOf(env, TASKS), MENU), size=256)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(*make_env().get_wrapper_attr("calls"), sep="\n")
