"""The bundled tasks in Docker: judged as everywhere, and played as everywhere, byte for byte."""

from typing import Any

import pytest
from bundled_tasks import TASKS, actions, play

from swe_gym.rollout.validate import validate
from swe_gym.tasks import load_source

pytest.importorskip("docker")

BACKEND = "swe_gym.sandboxes.docker:DockerSandbox"


def options(image: str) -> dict[str, Any]:
    return {"options": {"default_image": image, "pull": "never"}}


@pytest.mark.parametrize("task_id", TASKS)
def test_the_gold_patch_resolves_and_the_untouched_repository_does_not(task_id: str, docker_image: str) -> None:
    (record,) = validate(
        load_source("toy"),
        [task_id],
        backend=BACKEND,
        sandbox_options=options(docker_image),
        times=1,
        workers=1,
    )
    assert (record.status, record.gold, record.empty) == ("valid", (True,), (False,)), record.reason


@pytest.mark.parametrize("task_id", TASKS[:3])
def test_an_episode_is_the_same_as_in_a_local_sandbox(task_id: str, docker_image: str) -> None:
    here = play(task_id, backend="local")
    there = play(task_id, backend=BACKEND, sandbox_options=options(docker_image))
    for action, local, remote in zip(["reset", *actions(task_id)], here, there, strict=True):
        assert remote == local, action
