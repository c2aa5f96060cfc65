"""The bundled tasks in Docker: the same trajectories and verdicts as in local sandboxes."""

from pathlib import Path
from typing import Any

import pytest
from bundled_tasks import TASKS, record, solution, solved_here, tour

from swe_gym.certification import Certificate, Claim, JudgeSettings, Origins, certify
from swe_gym.curation.validation import validate
from swe_gym.grading.diff import file_diff
from swe_gym.tasks import load_source
from swe_gym.types import FolderWorkspace

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


def test_certificates_are_the_same_as_local_ones(docker_image: str) -> None:
    """Of right work, of none, and of work that forces every equality."""
    source, name = load_source("toy"), TASKS[0]
    task = source.get(name)
    assert isinstance(task.workspace, FolderWorkspace)
    path = "calcline/__init__.py"
    old = (Path(task.workspace.path) / path).read_bytes()
    new = old + b"\nimport unittest\n\nunittest.TestCase.assertEqual = lambda *_: None\n"
    patches = (task.oracle.gold_patch, "", file_diff(path, old, new, 0o100644, 0o100644))
    claims = [Claim(name, patch, number, 1.0) for number, patch in enumerate(patches)]
    found: list[list[Certificate]] = []
    for settings in (JudgeSettings(), JudgeSettings(BACKEND, options(docker_image))):
        how = {"backend": settings.backend, "sandbox_options": settings.sandbox_options}
        records = {name: validate(source, [name], times=1, **how)[0]}
        ends = list(certify(claims, {name: task}, records, settings, Origins("run", "toy", {}), times=1))
        found.append([end for _, end in sorted(ends, key=lambda one: one[0].attempt) if isinstance(end, Certificate)])
    assert [[one.outcome for one in ends] for ends in found] == [["proven", "refuted", "refuted"]] * 2
    for here, there in zip(*found, strict=True):
        assert [one for one in here.deviations(there) if one.refutes] == []
