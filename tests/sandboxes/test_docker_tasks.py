"""The bundled tasks in Docker: the same trajectories and verdicts as in local sandboxes."""

from typing import Any

import pytest
from bundled_tasks import TASKS, record, solution, solved_here, tour

from swe_gym.curation.validation import validate
from swe_gym.tasks import load_source

pytest.importorskip("docker")

BACKEND = "docker"


def options(image: str) -> dict[str, Any]:
    return {"options": {"default_image": image, "pull": "never"}}


@pytest.mark.parametrize("task_id", TASKS[::3])
def test_a_solution_gives_the_same_trajectory_as_locally(task_id: str, docker_image: str) -> None:
    there = record(solution(task_id), task_id, BACKEND, **options(docker_image))
    for here, turn in zip(solved_here(task_id), there, strict=True):
        assert turn == here


def test_every_tool_gives_the_same_observation_as_locally(docker_image: str) -> None:
    here = record(tour(TASKS[0]), TASKS[0])
    there = record(tour(TASKS[0]), TASKS[0], BACKEND, **options(docker_image))
    for turn, same in zip(there, here, strict=True):
        assert turn == same


def test_the_gold_patch_resolves_and_the_untouched_repository_does_not(docker_image: str) -> None:
    for task in validate(
        load_source("toy"), TASKS[:1], backend=BACKEND, sandbox_options=options(docker_image), times=1, workers=2
    ):
        assert (task.status, task.gold, task.empty) == ("valid", (True,), (False,)), task.reason
