"""Python environments are built once, by pip, and say what is wrong where they cannot be."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from swe_gym.errors import MissingInterpreter, SandboxStartError, TaskError
from swe_gym.sandboxes.contents.pythons import PreparedPython, find_interpreter, prepare_python
from swe_gym.types import PythonEnv

pytestmark = pytest.mark.slow

RUNNING = "{}.{}.{}".format(*sys.version_info)


def prepare(**fields: object) -> PreparedPython:
    return prepare_python(PythonEnv.model_validate(fields), timeout=120)


def ask(python: PreparedPython, code: str) -> object:
    command = [python.prefix / "bin" / "python", "-I", "-c", f"import json, sys; print(json.dumps({code}))"]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two wheels, of which one needs the other, that pip is configured to use instead of an index."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name, needs in (("leaf_dist", ""), ("stem_dist", "Requires-Dist: leaf_dist\n")):
        info = f"{name}-1.0.dist-info"
        with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}.py", "value = 1\n")
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_no_requirements_give_an_empty_environment_of_the_running_python() -> None:
    python = prepare()
    assert python.version == RUNNING
    assert python.base_prefix == Path(sys.base_prefix)
    assert ask(python, "sys.prefix") == str(python.prefix)
    assert ask(python, "sys.base_prefix") == sys.base_prefix
    assert [path.name for path in python.prefix.glob("lib/python*/site-packages/*")] == []
    assert prepare() == python
    assert prepare(version="{}.{}".format(*sys.version_info)) == python


def test_requirements_are_installed_once_compiled_and_shared(wheels: Path) -> None:
    python = prepare(requirements=["leaf_dist==1.0"])
    assert ask(python, "__import__('leaf_dist').value") == 1
    assert list(python.prefix.glob("lib/python*/site-packages/__pycache__/leaf_dist.*.pyc"))
    for wheel in wheels.iterdir():
        wheel.unlink()
    assert prepare(requirements=["leaf_dist==1.0"]) == python


@pytest.mark.usefixtures("wheels")
def test_dependencies_come_along_only_where_asked_for() -> None:
    alone = prepare(requirements=["stem_dist"])
    together = prepare(requirements=["stem_dist"], no_deps=False)
    assert alone != together
    find = "__import__('importlib.util').util.find_spec('leaf_dist') is not None"
    assert ask(alone, find) is False
    assert ask(together, find) is True


@pytest.mark.usefixtures("wheels")
def test_a_requirement_that_does_not_exist_is_a_broken_task_with_pips_own_words() -> None:
    with pytest.raises(TaskError, match=r"No matching distribution found for leaf_dist==9") as caught:
        prepare(requirements=["leaf_dist==9"])
    assert not isinstance(caught.value, MissingInterpreter)


def test_a_missing_interpreter_has_its_own_error() -> None:
    with pytest.raises(MissingInterpreter, match=r"Python 3\.1 is not installed"):
        prepare(version="3.1")
    with pytest.raises(MissingInterpreter):
        prepare(version=RUNNING + "9")


def test_a_version_does_not_match_one_with_the_same_prefix() -> None:
    short = RUNNING.rsplit(".", 1)[0][:-1]  # 3.1 for 3.11
    with pytest.raises((MissingInterpreter, TaskError)):
        find_interpreter(short, timeout=30)
    with pytest.raises(TaskError, match="invalid version of Python"):
        find_interpreter("three", timeout=30)


def test_interpreters_are_found_on_the_path_and_in_pyenv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = '{"executable": "/bin/sh", "base_prefix": "/", "version": "%s", "has_ensurepip": true}'
    fake = f"#!/bin/sh\necho '{answer}'\n"
    for path, version in (
        ("path/python3.4", "3.4.9"),
        ("shims/python3.3", "3.3.9"),
        ("pyenv/versions/3.2.6/bin/python3.2", "3.2.6"),
        ("uv/cpython-3.1.5-linux/bin/python3.1", "3.1.5"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(fake % version)
        (tmp_path / path).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/path:{tmp_path}/shims:{os.environ['PATH']}")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "uv"))
    for version, full in (("3.4", "3.4.9"), ("3.2", "3.2.6"), ("3.2.6", "3.2.6"), ("3.1", "3.1.5")):
        assert find_interpreter(version, timeout=30).version == full
    for version in ("3.3", "3.2.5", "3.4.1"):
        with pytest.raises(MissingInterpreter):
            find_interpreter(version, timeout=30)


def test_an_interpreter_without_its_own_pip_is_served_by_ours(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = json.dumps(
        {"executable": sys.executable, "base_prefix": sys.base_prefix, "version": "3.4.9", "has_ensurepip": False}
    )
    folder = tmp_path / "path"
    folder.mkdir()
    (folder / "python3.4").write_text(f"#!/bin/sh\necho '{answer}'\n")
    (folder / "python3.4").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    python = prepare(version="3.4", requirements=["leaf_dist"])
    assert wheels.is_dir()
    assert ask(python, "__import__('leaf_dist').value") == 1
    assert not (python.prefix / "bin" / "pip").exists()


def test_time_is_up_at_the_deadline() -> None:
    with pytest.raises(SandboxStartError) as caught:
        prepare_python(PythonEnv(requirements=("never-installed==1",)), timeout=0.001)
    assert caught.value.reason == "timeout"
    assert caught.value.retryable
