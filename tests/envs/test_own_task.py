"""A folder of the user's that is no task: its command succeeds before any work."""

import concurrent.futures
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import swe_gym  # noqa: F401  registers the ids
from swe_gym.errors import SandboxClosed, SandboxError
from swe_gym.testing.sandbox_contract.case import eventually, new_marker, processes_here


@pytest.fixture
def healthy(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "app.py").write_text("ready = True\n")
    return {"path": str(tmp_path), "test_cmd": "touch tested; python -c 'import app; assert app.ready'"}


def test_a_command_that_already_succeeds_is_told_once(healthy: dict[str, Any]) -> None:
    env = gymnasium.make("SWE/Local-v0", disable_env_checker=True, **healthy)
    with pytest.warns(UserWarning, match="already succeeds on the unchanged folder"):
        _, info = env.reset()
    assert info["already_passes"]
    _, info = env.reset()  # any warning is an error
    assert info["already_passes"]
    seen = env.step('{"name": "bash", "arguments": {"command": "ls"}}')[0]
    assert "app.py" in seen
    assert "tested" not in seen  # the policy's sandbox is untouched
    env.close()


def test_slots_of_a_vector_environment_find_out_once(healthy: dict[str, Any]) -> None:
    envs = gymnasium.make_vec("swe_gym:SWE/Local-v0", num_envs=3, **healthy)
    with pytest.warns(UserWarning, match="already succeeds on the unchanged folder") as told:
        _, infos = envs.reset()
    assert infos["already_passes"].tolist() == [True] * 3
    assert len(told) == 1
    envs.close()


def test_close_ends_a_reset_that_waits_for_the_first_one(healthy: dict[str, Any]) -> None:
    marker = new_marker()
    arguments = {**healthy, "test_cmd": f"sleep {marker}"}
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        envs = [gymnasium.make("SWE/Local-v0", disable_env_checker=True, **arguments) for _ in range(2)]
        first = threads.submit(envs[0].reset)
        eventually(lambda: bool(processes_here(marker)), 60, "the first one tries the command")
        second = threads.submit(envs[1].reset)
        eventually(lambda: envs[1].unwrapped._group is not None, 60, "the second one has started")
        envs[1].close()
        with pytest.raises(SandboxClosed):
            second.result(60)
        assert not first.done()
        envs[0].close()
        with pytest.raises(SandboxError):
            first.result(60)


@pytest.mark.parametrize("test_cmd", ["python -c 'import app; assert not app.ready'", "sleep 60"])
def test_a_command_that_fails_or_times_out_is_a_task(healthy: dict[str, Any], test_cmd: str) -> None:
    env = gymnasium.make("SWE/Local-v0", **{**healthy, "test_cmd": test_cmd}, timeout=2.0, disable_env_checker=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, info = env.reset()
    assert not info["already_passes"]
    env.close()
