"""A local folder and a test command as a task."""

from pathlib import Path
from typing import Any

import pytest

from swe_gym.envs.families import LocalEnv
from swe_gym.envs.swe_env import SweEnv
from swe_gym.errors import UsageError
from swe_gym.tasks import TaskSource, load_source
from swe_gym.tasks.local import LocalSource
from swe_gym.types import FolderWorkspace, PythonEnv


def test_a_folder_and_a_command_make_a_task(tmp_path: Path) -> None:
    folder = tmp_path / "my project"
    folder.mkdir()
    source = load_source("local", path=str(folder), test_cmd="python -m unittest", test_paths=["tests/*"])
    assert isinstance(source, TaskSource)
    assert list(source.ids()) == ["my-project"]
    task = source.get("my-project")
    assert task.workspace == FolderWorkspace(path=str(folder))
    assert task.python == PythonEnv(no_deps=False)
    assert "python -m unittest" in task.problem_statement
    assert task.eval_cmd == task.oracle.test_cmd == "python -m unittest"
    assert task.oracle.grader == "exit_code"
    assert task.oracle.test_paths == ("tests/*",)


def test_all_arguments_reach_the_task(tmp_path: Path) -> None:
    source = LocalSource(
        str(tmp_path),
        "make check",
        "Repair the parser.",
        python="3.12",
        requirements=["pytest"],
        env={"MODE": "test"},
        timeout=7,
    )
    task = source.get(source.ids()[0])
    assert task.problem_statement == "Repair the parser."
    assert task.python == PythonEnv(version="3.12", requirements=("pytest",), no_deps=False)
    assert task.env == {"MODE": "test"}
    assert task.eval_timeout == task.oracle.timeout == 7


def test_a_folder_of_only_odd_characters_still_has_an_id(tmp_path: Path) -> None:
    (tmp_path / "...").mkdir()
    assert list(LocalSource(str(tmp_path / "..."), "true").ids()) == ["local"]


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="folder not found"):
        LocalSource(str(tmp_path / "missing"), "true")
    for wrong in (" ", ["true"]):
        with pytest.raises(UsageError, match="test_cmd must be a command"):
            LocalSource(str(tmp_path), wrong)  # type: ignore[arg-type]  # as users do
    with pytest.raises(UsageError, match="unknown task 'other'"):
        LocalSource(str(tmp_path), "true").get("other")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test_paths": "tests/*"}, r"test_paths must be a list, such as \['tests/\*'\]"),
        ({"requirements": "pytest"}, r"requirements must be a list, such as \['pytest'\]"),
        ({"python": 3.12}, "task source 'local': version: Input should be a valid string"),
        ({"env": {"SEED": 1}}, "task source 'local': env.SEED: Input should be a valid string"),
        ({"timeout": "long"}, "task source 'local': timeout: Input should be a valid number"),
    ],
)
def test_arguments_of_a_wrong_type_are_named(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SweEnv("local", {"path": str(tmp_path), "test_cmd": "true", **options}).reset()
    with pytest.raises(UsageError, match=message):
        LocalEnv(str(tmp_path), "true", **options).reset()
