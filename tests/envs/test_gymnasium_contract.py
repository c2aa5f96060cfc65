"""Gymnasium's requirements, for every family and on the real local sandbox."""

import gc
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from env_parts import FIX, SUBMIT, call
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import RecordEpisodeStatistics, RenderCollection

from swe_gym.errors import SandboxClosed, UsageError
from swe_gym.sandboxes.local import LocalSandbox
from swe_gym.tasks import CATALOG, load_source
from swe_gym.tasks.file import write_tasks

Make = Callable[..., gym.Env[str, str]]


@pytest.fixture(params=[f"SWE/{one.family}-v0" for one in CATALOG.values() if one.family and not one.about])
def family(request: pytest.FixtureRequest, project: dict[str, str], tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """Every family id but those of datasets, and the arguments of `gym.make`."""
    if request.param == "SWE/Local-v0":
        return request.param, dict(project)
    toys = load_source("toy")
    if request.param == "SWE/Tasks-v0":
        path = tmp_path / "tasks.jsonl"
        write_tasks([toys.get(task_id) for task_id in toys.ids()[:3]], path)
        return request.param, {"path": str(path)}
    return request.param, {}


def test_the_checker_finds_nothing(make_env: Make, family: tuple[str, dict[str, Any]]) -> None:
    env_id, arguments = family
    env = make_env(env_id, **arguments).unwrapped
    check_env(env, skip_render_check=True)  # warnings are errors


def test_the_checker_finds_nothing_in_rendering(make_env: Make, project: dict[str, str]) -> None:
    # the checker makes an environment per render mode and leaves closing them to the collector
    env = make_env("SWE/Local-v0", render_mode="ansi", **project).unwrapped
    check_env(env, skip_close_check=True)


def test_rollouts_are_equal_to_the_byte(make_env: Make, family: tuple[str, dict[str, Any]]) -> None:
    env_id, arguments = family
    one, two = (make_env(env_id, max_turns=100, **arguments) for _ in range(2))
    assert one.reset(seed=7) == two.reset(seed=7)
    one.action_space.seed(11)
    for _ in range(50):
        action = one.action_space.sample()
        first, second = one.step(action), two.step(action)
        assert first == second
        if first[2] or first[3]:
            assert one.reset() == two.reset()


PLAY = """
import json, sys, gymnasium
arguments, actions = json.loads(sys.argv[1])
with gymnasium.make("swe_gym:SWE/Toy-v0", **arguments) as env:
    results = [env.reset(seed=1)] + [env.step(action) for action in actions]
print(json.dumps(results))
"""


def test_two_processes_give_the_same_bytes() -> None:
    commands = ["ls -lR", "python -c 'print(set(\"abcdef\"))'", "git log --stat | cat", "env | sort"]
    actions = [*(call("bash", command=command) for command in commands), call("listdir"), SUBMIT]
    play = [sys.executable, "-c", PLAY, json.dumps([{"max_turns": 20}, actions])]
    outputs = [subprocess.run(play, capture_output=True, check=True, timeout=120).stdout for _ in range(2)]
    assert outputs[0] == outputs[1]
    assert len(json.loads(outputs[0])) == len(actions) + 1


def test_every_family_is_registered_by_strings_that_survive_json(family: tuple[str, dict[str, Any]]) -> None:
    spec = gym.spec(family[0])
    assert isinstance(spec.entry_point, str)
    assert EnvSpec.from_json(spec.to_json()) == spec
    assert not spec.nondeterministic


def test_a_made_environment_is_remade_from_the_json_of_its_spec(
    make_env: Make, family: tuple[str, dict[str, Any]]
) -> None:
    env_id, arguments = family
    env = make_env(env_id, **arguments)
    assert env.spec is not None
    other = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert other.unwrapped.config == env.unwrapped.config  # type: ignore[attr-defined]  # an Env to the checker


def test_an_unknown_argument_is_named(family: tuple[str, dict[str, Any]]) -> None:
    env_id, arguments = family
    with pytest.raises(UsageError, match=r"'bakend'\. Did you mean 'backend'"):
        gym.make(env_id, bakend="local", **arguments)


def test_arguments_hold_no_live_objects(make_env: Make, family: tuple[str, dict[str, Any]]) -> None:
    env_id, arguments = family
    config = make_env(env_id, **arguments).unwrapped.config  # type: ignore[attr-defined]  # an Env to the checker
    assert json.loads(json.dumps(config)) == config


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_gymnasiums_vector_environments_return_the_observations(
    make_env: Make, project: dict[str, str], mode: str
) -> None:
    actions = [call("bash", command=f"echo '{text}'") for text in ("první", "第二")]
    single = make_env("SWE/Local-v0", **project)
    first = single.reset(seed=0)[0]
    expected = tuple(single.step(action)[0] for action in actions)
    options = {"context": "forkserver"} if mode == "async" else {}
    envs = gym.make_vec("swe_gym:SWE/Local-v0", num_envs=2, vectorization_mode=mode, vector_kwargs=options, **project)
    try:
        observations, infos = envs.reset(seed=0)
        assert tuple(observations) == (first, first)
        assert list(infos["task_id"]) == ["adder", "adder"]
        observations, rewards, _, _, infos = envs.step(tuple(actions))
        assert tuple(observations) == expected
        assert list(infos["exit_code"]) == [0, 0]
        _, rewards, _, _, _ = envs.step((FIX, "nothing"))
        _, rewards, terminations, _, infos = envs.step((SUBMIT, SUBMIT))
        assert list(rewards) == [1.0, 0.0]
        assert list(terminations) == [True, True]
        assert list(infos["resolved"]) == [True, False]
    finally:
        envs.close()


def test_gymnasiums_statistics_see_the_episode(make_env: Make, project: dict[str, str]) -> None:
    env = RecordEpisodeStatistics(make_env("SWE/Local-v0", **project))
    env.reset()
    env.step(FIX)
    info = env.step(SUBMIT)[4]
    assert (info["episode"]["r"], info["episode"]["l"]) == (1.0, 2)


def test_ansi_shows_the_last_turns(make_env: Make, project: dict[str, str]) -> None:
    env = make_env("SWE/Local-v0", render_mode="ansi", **project)
    env.reset()
    assert "python -m unittest" in str(env.render())
    env.step(call("bash", command="printf 'red\\033[31m\\a\\n'"))
    shown = str(env.render())
    assert "[1] > " in shown
    assert "\x1b" not in shown
    assert "\a" not in shown


def test_human_prints_each_turn_as_it_comes(
    make_env: Make, project: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    env = make_env("SWE/Local-v0", render_mode="human", **project)
    env.reset()
    assert "python -m unittest" in capsys.readouterr().out
    env.step(call("bash", command="echo it was $((40 + 2))"))
    assert "it was 42" in capsys.readouterr().out
    assert env.render() is None
    env.step(SUBMIT)
    assert capsys.readouterr().out.endswith("\nThe episode ended by submit with reward 0: not resolved.\n")


def test_an_environment_dropped_without_close_leaves_nothing(project: dict[str, str]) -> None:
    env = gym.make("SWE/Local-v0", **project)
    env.reset()
    sandbox = env.unwrapped.sandbox  # type: ignore[attr-defined]  # an Env to the checker
    del env  # its resources would warn, which is an error here
    gc.collect()
    with pytest.raises(SandboxClosed):
        sandbox.exec(["true"])


BUSY = threading.Lock()


class BusySandbox(LocalSandbox):
    """A sandbox whose `close` needs a lock of the process, as pods and microVMs do."""

    def _close(self) -> None:
        with BUSY:
            super()._close()


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_an_environment_may_be_dropped_by_a_thread_that_holds_a_lock(project: dict[str, str]) -> None:
    env = gym.make("SWE/Local-v0", backend=f"{__name__}:BusySandbox", **project)
    env.reset()
    sandbox = env.unwrapped.sandbox  # type: ignore[attr-defined]  # an Env to the checker
    with BUSY:  # the garbage collector may run here
        del env
        gc.collect()
    with pytest.raises(SandboxClosed):
        sandbox.exec(["true"])


def test_rgb_array_is_an_image_that_changes(make_env: Make, project: dict[str, str]) -> None:
    env = RenderCollection(make_env("SWE/Local-v0", render_mode="rgb_array", **project))
    env.reset()
    env.step(call("bash", command="echo 'žluť 第二'"))
    frames: Any = env.render()
    assert [frame.shape for frame in frames] == [(640, 960, 3)] * 2
    assert all(frame.dtype == np.uint8 for frame in frames)
    assert not np.array_equal(*frames)
    assert len(np.unique(frames[0].reshape(-1, 3), axis=0)) > 1
