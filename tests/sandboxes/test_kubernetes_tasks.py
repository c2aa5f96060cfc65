"""The bundled tasks in Kubernetes: the same trajectories and verdicts as in local sandboxes."""

import os
from pathlib import Path
from typing import Any

import pytest
from bundled_tasks import TASKS, record, solution, solved_here, tour
from harbor_folders import TOML, harbor_task, judge, submit

from swe_gym.curation.validation import validate
from swe_gym.envs.swe_env import SweEnv
from swe_gym.tasks import load_source

pytest.importorskip("kubernetes")

BACKEND = "kubernetes"
pytestmark = pytest.mark.usefixtures("kubernetes")


def options() -> dict[str, Any]:
    return {"options": {"default_image": os.environ["SWE_GYM_TEST_IMAGE"], "image_pull_policy": "Never"}}


@pytest.mark.parametrize("task_id", TASKS[1::5])
def test_a_solution_gives_the_same_trajectory_as_locally(task_id: str) -> None:
    there = record(solution(task_id), task_id, BACKEND, **options())
    for here, turn in zip(solved_here(task_id), there, strict=True):
        assert turn == here


def test_every_tool_gives_the_same_observation_as_locally() -> None:
    here = record(tour(TASKS[0]), TASKS[0])
    there = record(tour(TASKS[0]), TASKS[0], BACKEND, **options())
    for turn, same in zip(there, here, strict=True):
        assert turn == same


def test_the_gold_patch_resolves_and_the_untouched_repository_does_not() -> None:
    for task in validate(
        load_source("toy"), TASKS[-1:], backend=BACKEND, sandbox_options=options(), times=1, workers=2
    ):
        assert (task.status, task.gold, task.empty) == ("valid", (True,), (False,)), task.reason


AS_NOBODY = judge(
    '[ "$(cat /tmp/who) $(stat -c %U /tmp/who)" = "nobody /nonexistent nobody" ] && [ "$(id -u)" = 0 ]'
    " && [ ! -e /etc/more ]"
)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ('echo "$(id -un) $HOME" > /tmp/who; ! touch /etc/more', 1.0),
        ("touch /etc/more; echo nobody / > /tmp/who", 0.0),
        ("ln -s /etc/more /tmp/who; echo nobody /nonexistent > /tmp/who", 0.0),
    ],
)
def test_a_policy_has_the_rights_of_the_tasks_user(tmp_path: Path, command: str, expected: float) -> None:
    harbor_task(tmp_path, **{"task.toml": TOML + "[agent]\nuser = 'nobody'\n", **AS_NOBODY})
    source = {"path": str(tmp_path), "image": os.environ["SWE_GYM_TEST_IMAGE"]}
    pull = {"options": {"image_pull_policy": "Never"}}
    env = SweEnv("harbor", source, backend=BACKEND, sandbox_options=pull, tools=["bash", "submit"])
    try:
        env.reset()
        reward, _, _, info = submit(env, command)
        assert info["reward_valid"], env.stats["failure"]
        assert reward == expected
    finally:
        env.close()
