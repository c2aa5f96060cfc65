"""`swe-gym images` on a real engine; without one these tests are skipped."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from servers.docker_proxy import DockerProxy, Fault
from typer.testing import CliRunner, Result

from swe_gym.cli.images import app
from swe_gym.curation.validation import validate
from swe_gym.errors import MissingDependency
from swe_gym.tasks.file import FileSource, write_tasks
from swe_gym.types import ImageBuild, PythonEnv, SandboxNeeds, Task

docker = pytest.importorskip("docker")

MISSING = "swe-gym/there-is-no-such-image:1"


@pytest.fixture
def image() -> str:
    if "SWE_GYM_TEST_IMAGE" not in os.environ:
        pytest.skip("no image to test Docker with: set SWE_GYM_TEST_IMAGE")
    return os.environ["SWE_GYM_TEST_IMAGE"]


@pytest.fixture
def tagged(image: str) -> Iterator[str]:
    """Another name of the tests' image."""
    name = f"swe-gym/test-images:{os.getpid()}"
    with closing(docker.APIClient(version="auto")) as engine:
        engine.tag(image, *name.split(":"))
        yield name
        if engine.images(name):
            engine.remove_image(name)


@pytest.fixture
def tasks(toy: Task, tmp_path: Path, tagged: str) -> Path:
    path = tmp_path / "tasks.jsonl"
    images = {"a": tagged, "b": MISSING, "c": tagged}
    write_tasks([toy.model_copy(update={"task_id": name, "image": image}) for name, image in images.items()], path)
    return path


def run(*arguments: object, typed: str = "") -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=typed)


def test_tasks_that_need_a_built_image_are_skipped(tasks: Path, toy: Task, tagged: str) -> None:
    python = PythonEnv(version="3.9", requirements=("attrs==24.2.0",))
    needy = toy.model_copy(update={"task_id": "d", "image": None, "python": python})
    write_tasks([FileSource(str(tasks)).get("a"), needy], tasks)
    result = run("list", "--source", tasks)
    assert "skipped 1 of 2 tasks: they have requirements and no image. Build one: swe-gym images build" in result.output
    assert tagged in result.output
    assert "python:3.9" not in result.output


def test_list_shows_present_and_missing_images(tasks: Path, tagged: str) -> None:
    result = run("list", "--source", tasks)
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.output.splitlines()]
    assert next(row for row in rows if row[-1] == tagged)[1] == "2"
    assert ["missing", "1", MISSING] in rows
    assert "1 missing. Pull them: swe-gym images pull" in result.output


def test_check_opens_a_sandbox_of_each_image(tasks: Path, tagged: str) -> None:
    result = run("check", "--source", tasks)
    assert result.exit_code == 1
    assert f"ok  {tagged}" in result.output
    assert f"no  {MISSING}" in result.output
    assert run("check", "--source", tasks, "--match", "a").exit_code == 0


def remove_when_free(engine: docker.APIClient, image: str) -> None:
    """The engine goes on removing a container for a moment after it has ended, and keeps its image so long."""
    deadline = time.monotonic() + 60
    while engine.containers(all=True, filters={"ancestor": image}) and time.monotonic() < deadline:
        time.sleep(0.05)
    engine.remove_image(image)


def test_built_images_need_nothing_else(toy: Task, image: str, tmp_path: Path) -> None:
    task = toy.model_copy(update={"task_id": "Odd.Name"})
    write_tasks([task, toy.model_copy(update={"task_id": "bare", "workspace": None})], tmp_path / "tasks.jsonl")
    output = tmp_path / "built" / "tasks.jsonl"
    result = run("build", output, "--base", image, "--source", tmp_path / "tasks.jsonl")
    assert result.exit_code == 1
    assert "bare  task-bare has neither a workspace nor a Dockerfile" in result.output
    (built,) = map(FileSource(str(output)).get, ["Odd.Name"])
    assert built.image is not None
    assert (built.workspace, built.python, built.oracle) == (None, None, task.oracle)
    try:
        (record,) = validate(FileSource(str(output)), backend="docker", times=1)
        assert (record.status, record.reason) == ("valid", "")
        assert record.image.startswith("sha256:")
    finally:
        with closing(docker.APIClient(version="auto")) as engine:
            remove_when_free(engine, built.image)


def test_build_fails_without_its_base_image(tasks: Path, tmp_path: Path) -> None:
    result = run("build", tmp_path / "t.jsonl", "--base", MISSING, "--source", tasks, "--match", "a")
    assert result.exit_code == 1
    assert f"lacks the base image '{MISSING}'. Run `docker pull {MISSING}`" in result.output


def test_pull_waits_as_long_as_the_registry_asks(tasks: Path) -> None:
    busy = Fault(
        "POST", "/images/create", "error", status=429, message="toomanyrequests", headers=(("Retry-After", "1"),)
    )
    done = Fault("POST", "/images/create", "error", nth=2, status=200, message="as if it had come")
    with DockerProxy(busy, done) as proxy:
        result = run("pull", "--source", tasks, "--engine", proxy.base_url)
        asked = [request.path for request in proxy.requests if request.method == "POST"]
    assert result.exit_code == 0, result.output
    assert "1 pulled, 0 failed" in result.output
    assert len(asked) == 2, "a present image is not pulled"


@pytest.mark.parametrize("command", ["pull", "fetch"])
def test_no_registry_is_asked_for_images_that_are_built(toy: Task, tmp_path: Path, command: str) -> None:
    needs = SandboxNeeds(build=ImageBuild(context=str(tmp_path)))
    write_tasks([toy.model_copy(update={"image": MISSING, "needs": needs})], tmp_path / "tasks.jsonl")
    result = run(command, "--source", tmp_path / "tasks.jsonl")
    assert result.exit_code == 0, result.output
    assert "skipped 1 of 1 tasks: their images are built from Dockerfiles" in result.output
    assert f"0 {command}ed, 0 failed" in result.output


@pytest.mark.parametrize(
    ("status", "message", "told"),
    [
        (404, "manifest unknown", "does not exist"),
        (403, "pull access denied for x", "does not exist or is private. Try `docker login`"),
        (500, "write /layer: no space left on device", "disk is full"),
        (429, "toomanyrequests", "the rate limit of the registry"),
    ],
)
def test_a_failed_pull_is_reported(status: int, message: str, told: str, tasks: Path) -> None:
    with DockerProxy(Fault("POST", "/images/create", "error", nth=0, status=status, message=message)) as proxy:
        result = run("pull", "--source", tasks, "--engine", proxy.base_url, "--timeout", "2")
    assert result.exit_code == 1
    assert told in result.output
    assert "0 pulled, 1 failed" in result.output


def test_a_stalled_pull_times_out(tasks: Path) -> None:
    with DockerProxy(Fault("POST", "/images/create", "stall")) as proxy:
        result = run("pull", "--source", tasks, "--engine", proxy.base_url, "--timeout", "1")
    assert result.exit_code == 1
    assert "was not pulled in time" in result.output


def test_remove_asks_and_removes_only_images_of_the_tasks(tasks: Path, tagged: str, image: str) -> None:
    assert run("remove", "--source", tasks, typed="n\n").exit_code == 1
    result = run("remove", "--source", tasks, typed="y\n")
    assert result.exit_code == 0, result.output
    with closing(docker.APIClient(version="auto")) as engine:
        assert not engine.images(tagged)
        assert engine.images(image)
    assert "None of the images is present." in run("remove", "--source", tasks, "--yes").output


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("swe_gym.sandboxes.docker")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(MissingDependency, match=r"pip install 'swe-gym\[docker\]'"):
        CliRunner().invoke(app, ["list"], catch_exceptions=False)
