"""Real tasks converted to the forms of other datasets, validated on Docker."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
import real_tasks
from image_layouts import write_files

from swe_gym.curation.validation import validate
from swe_gym.envs.group import SandboxGroup, task_spec
from swe_gym.errors import MissingInterpreter
from swe_gym.grading.log_parsers import load_parser
from swe_gym.grading.patch import apply_diff
from swe_gym.sandboxes.contents.pythons import find_interpreter
from swe_gym.sandboxes.contents.workspaces import prepare_workspace
from swe_gym.tasks import r2e, swesmith
from swe_gym.types import FolderWorkspace, Task

docker = pytest.importorskip("docker")
build = pytest.importorskip("swe_gym.sandboxes.docker.build")

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"
XMLTODICT, CACHETOOLS = "pypi__xmltodict-1.0.3", "pypi__cachetools-7.3.2"
OPTIONS = {"options": {"pull": "never"}}


class Only(NamedTuple):
    """A source with one task."""

    task: Task

    def ids(self) -> Sequence[str]:
        return (self.task.task_id,)

    def get(self, _: str) -> Task:
        return self.task


@pytest.fixture
def real(request: pytest.FixtureRequest, docker_image: str) -> Task:
    """A collected task for local sandboxes."""
    assert docker_image
    if not DATA.is_dir():
        pytest.skip(f"the folder {DATA} of collected tasks is missing")
    try:
        find_interpreter("3.11", timeout=60)
    except MissingInterpreter as error:
        pytest.skip(str(error))
    return real_tasks.RealTasks(DATA / "real_tasks", None).get(request.param)


@pytest.fixture
def build_image(docker_image: str) -> Iterator[Callable[..., str]]:
    """Builds the image of a task and removes it after the test; its base layers stay."""
    made: list[str] = []

    def make(task: Task, **options: object) -> str:
        made.append(build.build_image(task_spec(task, {}), docker_image, **options))
        return made[-1]

    yield make
    with closing(docker.APIClient(version="auto")) as engine:
        for image in made:
            engine.remove_image(image, force=True)


def tree_with(task: Task, folder: Path, *diffs: str) -> Path:
    """Returns a copy of the task's repository with diffs applied."""
    assert task.workspace is not None
    shutil.copytree(prepare_workspace(task.workspace, timeout=600), folder, symlinks=True)
    shutil.rmtree(folder / ".git")
    env = {**os.environ, "GIT_DIR": "/nonexistent"}
    for diff in diffs:
        command = ["git", "apply", "--whitespace=nowarn", "-"]
        subprocess.run(command, cwd=folder, env=env, input=diff.encode(), check=True)
    return folder


def check(task: Task) -> None:
    (record,) = validate(Only(task), backend="docker", sandbox_options=OPTIONS, times=1)
    assert (record.status, record.reason) == ("valid", "")


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("real", [XMLTODICT], indirect=True)
def test_a_real_task_in_the_form_of_r2e(real: Task, build_image: Callable[..., str], tmp_path: Path) -> None:
    tests = tree_with(real, tmp_path / "tree", real.oracle.test_patch) / "tests"
    path = real.env["PYTHONPATH"].replace("{workdir}", "/testbed")
    script = f"PYTHONPATH={path} .venv/bin/python -W ignore -m pytest -p no:cacheprovider -rA r2e_tests\n"
    told = write_files(tmp_path / "told", {"run_tests.sh": script})
    image = build_image(real, venv="/testbed/.venv", extra=[("/r2e_tests", tests), ("/testbed", told)])
    row = {
        "repo_name": real.repo,
        "docker_image": image,
        "commit_hash": "0" * 40,
        "problem_statement": f"[ISSUE]\n{real.problem_statement}\n[/ISSUE]",
        "expected_output_json": json.dumps({"to be": "PASSED"}),
    }
    task = r2e.task_from_row(row)
    with SandboxGroup(task, "docker", OPTIONS) as group, group.fresh() as box:
        apply_diff(box, real.oracle.gold_patch)
        script = task.oracle.eval_script.replace("{workdir}", box.workdir)
        log = box.exec(script, timeout=300, merge=True).text
    expected = load_parser("r2e")(log)
    assert len(expected) > 20, log[-3000:]
    oracle = task.oracle.model_copy(update={"expected": expected, "gold_patch": real.oracle.gold_patch})
    check(task.model_copy(update={"oracle": oracle}))


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("real", [CACHETOOLS], indirect=True)
def test_a_real_task_in_the_form_of_swe_smith(real: Task, build_image: Callable[..., str], tmp_path: Path) -> None:
    solved = tree_with(real, tmp_path / "tree", real.oracle.test_patch, real.oracle.gold_patch)
    image = build_image(real.model_copy(update={"workspace": FolderWorkspace(path=str(solved))}))
    row = {
        "instance_id": f"{real.task_id}.lm_rewrite__1",
        "repo": f"swesmith/someone__{real.repo}.12345678",
        "patch": swesmith.reverse_diff(real.oracle.gold_patch),
        "FAIL_TO_PASS": list(real.oracle.fail_to_pass),
        "PASS_TO_PASS": list(real.oracle.pass_to_pass),
        "image_name": image,
        "problem_statement": real.problem_statement,
    }
    task = swesmith.task_from_row(row).model_copy(update={"env": real.env})
    assert task.oracle.gold_patch == real.oracle.gold_patch
    check(task)
