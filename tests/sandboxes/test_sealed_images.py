"""Tasks whose images know too much: nothing of it is there during an episode, and the reward is right after it."""

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from image_layouts import FIX, LAYOUTS, Planted

from swe_gym.envs.group import SandboxGroup
from swe_gym.envs.swe_env import SweEnv
from swe_gym.sandboxes import Sandbox
from swe_gym.tasks import load_source
from swe_gym.testing.cheats import CHEATS, HONEST, Cheat, play_cheat, read_cheats
from swe_gym.types import Task

docker = pytest.importorskip("docker")

Row = tuple[str, Path, Planted]
"""Name of the task source, the file with the row, and what its image knows."""


OPTIONS: dict[str, dict[str, Any]] = {
    "docker": {"pull": "never"},
    "kubernetes": {"image_pull_policy": "Never"},
    "local": {},
}


def options(backend: str) -> dict[str, Any]:
    return {"options": OPTIONS[backend]}


@pytest.fixture(scope="module")
def rows(docker_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Row]]:
    """Builds an image in the layout of a dataset, and its row, once; removes the image in the end."""
    built: dict[str, Row] = {}

    def build(name: str) -> Row:
        if name not in built:
            folder = tmp_path_factory.mktemp(name)
            row, planted = LAYOUTS[name](folder, docker_image)
            file = folder / "rows.jsonl"
            file.write_text(json.dumps(row) + "\n")
            built[name] = name, file, planted
        return built[name]

    yield build
    with closing(docker.APIClient(version="auto")) as engine:
        for name, file, _ in built.values():
            task = task_of((name, file, built[name][2]))
            engine.remove_image(task.image, force=True)


def task_of(row: Row) -> Task:
    source = load_source(row[0], path=str(row[1]))
    return source.get(source.ids()[0])


def bash(command: str) -> str:
    return json.dumps({"name": "bash", "arguments": {"command": command}})


SUBMIT = json.dumps({"name": "submit", "arguments": {}})
LOOKS = (
    "git rev-list --all --reflog --not HEAD; git fsck --unreachable --no-reflogs --lost-found 2>&1 | grep -v ^notice",
    "git remote -v; git tag; git stash list; git reflog; git branch -a | grep -v '^\\*'",
    "find / -xdev \\( -name '*r2e_tests*' -o -name 'run_tests.sh' -o -name 'test_add.py' -o -name eval.sh \\) "
    "-not -path '/proc/*' 2>/dev/null",
    "git ls-files | grep test_add; git status --short | grep -vF .venv/; git diff; git diff --cached",
    "grep -rl 'return a + b' /testbed",
)
"""What a policy might look with; each must print nothing."""


def shown(env: SweEnv, command: str) -> str:
    """What a command prints in an episode."""
    return env.sandbox.exec(command, timeout=60, merge=True).text


def check_episode(row: Row, backend: str) -> None:
    name, file, planted = row
    with closing(SweEnv(name, {"path": str(file)}, backend=backend, sandbox_options=options(backend))) as env:
        env.reset()
        for look in LOOKS:
            assert shown(env, look) == "", look
        for commit in planted.future:
            assert not env.sandbox.exec(["git", "cat-file", "-e", commit]).ok
        assert "state" in shown(env, "git log --format=%s")
        assert env.step(bash(f"git apply - <<'EOF'\n{FIX}EOF\ngit diff --stat"))[0].count("adder.py") == 1
        assert env.patch().paths == ("adder.py",)
        _, reward, terminated, _, info = env.step(SUBMIT)
        assert (reward, terminated, info["cheat_signs"]) == (1.0, True, 0), env.verdict
        env.reset()
        _, reward, _, _, info = env.step(SUBMIT)
        assert (reward, info["reward_valid"]) == (0.0, True)


@pytest.mark.parametrize("name", LAYOUTS)
def test_nothing_of_the_solution_is_there_and_the_reward_is_right(name: str, rows: Callable[[str], Row]) -> None:
    check_episode(rows(name), "docker")


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_same_without_an_engine(name: str, rows: Callable[[str], Row], import_image: Callable[[str], str]) -> None:
    import_image(task_of(rows(name)).image or "")
    check_episode(rows(name), "local")


@pytest.mark.usefixtures("kubernetes")
def test_the_same_in_a_pod(rows: Callable[[str], Row]) -> None:
    pytest.importorskip("kubernetes")
    check_episode(rows("r2e"), "kubernetes")


def test_the_past_of_the_base_commit_stays(rows: Callable[[str], Row]) -> None:
    with SandboxGroup(task_of(rows("swebench")), "docker", options("docker")) as group:
        box = group.open_sealed()
        assert box.exec("git log --format=%s").text == "state 1\nstate 0\n"
        assert box.exec("git rev-parse HEAD").text.strip() == rows("swebench")[2].base
        assert box.exec("git symbolic-ref HEAD").text == "refs/heads/main\n"


@pytest.fixture
def without_python(rows: Callable[[str], Row]) -> Iterator[Row]:
    """The same image, of which the Python was removed."""
    name, file, planted = rows("swesmith")
    image = f"swe-gym/test-sealed-{os.getpid()}:x"
    with closing(docker.APIClient(version="auto")) as engine:
        command = ["sh", "-c", "rm -rf /usr/bin/python* /usr/local/bin/python* /usr/lib/python3*"]
        container = engine.create_container(task_of((name, file, planted)).image, command, network_disabled=True)["Id"]
        engine.start(container)
        assert engine.wait(container, timeout=60)["StatusCode"] == 0
        engine.commit(container, *image.split(":"))
        engine.remove_container(container)
        row = json.loads(file.read_text())
        other = file.with_name("without.jsonl")
        other.write_text(json.dumps({**row, "image_name": image}) + "\n")
        yield name, other, planted
        engine.remove_image(image, force=True)


@pytest.mark.parametrize("backend", ["docker", "local"])
def test_an_image_without_python_is_sealed_too(
    backend: str, without_python: Row, import_image: Callable[[str], str]
) -> None:
    task = task_of(without_python)
    if backend == "local":
        import_image(task.image or "")
    with SandboxGroup(task, backend, options(backend)) as group:
        box = group.open_sealed()
        assert not box.exec("command -v python3").ok
        assert (
            box.exec("git log --all --reflog --format=%s; git status --short; ls tests").text
            == "state 0\ntest_old.py\n"
        )


def play(cheats: list[Cheat], task: Task, backend: str, workers: int) -> list[str]:
    """Play cheats, several at once; what went wrong."""

    def open_box(task: Task) -> Sandbox:
        return SandboxGroup(task, backend, options(backend)).open()

    def one(cheat: Cheat) -> str:
        result = play_cheat(cheat, task, open_box)
        problem = result.verdict.resolved is not cheat.resolved or result.leaked
        return f"{cheat.name}: {result.verdict.reason}: {result.output}" if problem else ""

    with ThreadPoolExecutor(workers) as threads:
        return [problem for problem in threads.map(one, cheats) if problem]


SLOW = {"many-files", "sparse-file"}
"""Up to a minute each in an engine."""

OF_THE_MACHINE = {"plugin-entry-point", "sitecustomize", "library-shadow", "preload", "environment", "system-tools"}
OF_THE_MACHINE |= {cheat.name for group in ("artefacts", "searches") for cheat in read_cheats(group)}
"""Cheats outside of the repository and of the process of the tests, where a container differs from a local sandbox."""

ELSEWHERE = [cheat for cheat in CHEATS if cheat.name not in OF_THE_MACHINE]
IN_CONTAINERS = [cheat for cheat in CHEATS if cheat.name in OF_THE_MACHINE - SLOW] + ELSEWHERE[::12]
"""A sample for CI. The grading tests play all cheats on the local backend."""


@pytest.mark.timeout(900)
def test_only_honest_work_counts_in_a_container(rows: Callable[[str], Row]) -> None:
    assert play([*IN_CONTAINERS, *HONEST[::3]], task_of(rows("swebench")), "docker", workers=4) == []


@pytest.mark.timeout(900)
def test_only_honest_work_counts_without_an_engine(
    rows: Callable[[str], Row], import_image: Callable[[str], str]
) -> None:
    import_image(task_of(rows("swebench")).image or "")
    assert play([*IN_CONTAINERS[::3], *HONEST[::3]], task_of(rows("swebench")), "local", workers=4) == []


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("kubernetes")
def test_only_honest_work_counts_in_a_pod(rows: Callable[[str], Row]) -> None:
    pytest.importorskip("kubernetes")
    sample = IN_CONTAINERS[::4]  # a pod runs the containers of the test above: a sample shows that the backend is right
    assert play([*sample, *HONEST[::3]], task_of(rows("swebench")), "kubernetes", workers=6) == []


@pytest.mark.thorough
@pytest.mark.timeout(5400)
def test_all_cheats_in_a_container(rows: Callable[[str], Row]) -> None:
    assert play([*CHEATS, *HONEST], task_of(rows("swebench")), "docker", workers=2) == []


@pytest.mark.thorough
@pytest.mark.timeout(5400)
@pytest.mark.usefixtures("kubernetes")
def test_all_cheats_in_a_pod(rows: Callable[[str], Row]) -> None:
    pytest.importorskip("kubernetes")
    assert play([*CHEATS, *HONEST], task_of(rows("swebench")), "kubernetes", workers=4) == []


def test_the_required_engines_work(docker_problem: str, kubernetes_problem: str) -> None:
    required = os.environ.get("SWE_GYM_REQUIRE", "").split(",")
    assert not ("docker" in required and docker_problem)
    assert not ("kubernetes" in required and kubernetes_problem)
