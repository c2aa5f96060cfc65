"""Ids of families and of single tasks."""

import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.registration import ENV_ID_RE, EnvSpec

from swe_gym.envs.registration import ENV_IDS, register_families, register_tasks
from swe_gym.errors import UsageError


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    before = dict(gym.registry)
    yield
    gym.registry.clear()
    gym.registry.update(before)


def test_registering_the_families_again_changes_nothing() -> None:
    before = dict(gym.registry)
    register_families()
    assert gym.registry == before
    assert set(ENV_IDS) <= set(before)


def test_a_fresh_process_needs_only_the_module_in_the_id() -> None:
    code = "import gymnasium as gym; print(gym.make('swe_gym:SWE/Toy-v0').unwrapped.spec.id)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("SWE/Toy-v0\n", "")


def test_importing_again_does_not_warn() -> None:
    code = "import importlib, swe_gym, gymnasium; importlib.reload(swe_gym); gymnasium.register_envs(swe_gym)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_task_gets_a_working_id() -> None:
    ids = register_tasks("toy")
    assert all(re.fullmatch(r"SWE-toy/[A-Za-z0-9._-]+-v0", env_id) for env_id in ids)
    env = gym.make(ids[1])
    assert env.unwrapped.config["task_id"] == ids[1].removeprefix("SWE-toy/").removesuffix("-v0")  # type: ignore[attr-defined]  # an Env to the checker
    assert EnvSpec.from_json(gym.spec(ids[0]).to_json()) == gym.spec(ids[0])


def test_awkward_task_ids_keep_their_own_version() -> None:
    names = ["django__django-11099", "a.b_c-v2", "x-v0", "7"]
    ids = register_tasks("env_parts:ManySource", names, prefix="Odd")
    assert [gym.spec(env_id).kwargs["task_id"] for env_id in ids] == names
    assert [gym.spec(env_id).version for env_id in ids] == [0] * 4
    assert all(ENV_ID_RE.fullmatch(env_id) for env_id in ids)


def test_registering_twice_is_idempotent_but_taken_ids_are_rejected() -> None:
    first = register_tasks("env_parts:ManySource", ["one"], prefix="Twice")
    assert register_tasks("env_parts:ManySource", ["one"], prefix="Twice") == first
    with pytest.raises(UsageError, match="prefix"):
        register_tasks("toy", ["two", "one"], prefix="Twice")
    assert "Twice/two-v0" not in gym.registry


def test_a_prefix_must_be_valid() -> None:
    with pytest.raises(UsageError, match="prefix"):
        register_tasks("env_parts:ManySource")
    with pytest.raises(UsageError, match="prefix"):
        register_tasks("toy", prefix="A/B")


def test_one_id_is_not_a_list_of_ids() -> None:
    with pytest.raises(UsageError, match=r"write ids=\['jot-recurring-steps'\]"):
        register_tasks("toy", "jot-recurring-steps")


def test_twenty_five_thousand_ids_are_registered() -> None:
    names = [f"repo__task-{number}" for number in range(25_000)]
    ids = register_tasks("env_parts:ManySource", names, prefix="Large")
    assert len(set(ids)) == 25_000
    assert gym.spec(ids[-1]).kwargs["task_id"] == names[-1]


@pytest.mark.parametrize("make", [gym.make, partial(gym.make_vec, vectorization_mode="sync")], ids=["make", "sync"])
def test_a_limit_that_truncates_without_a_grade_is_warned_of(make: Any) -> None:
    with pytest.warns(UserWarning, match="max_episode_steps=3 truncates an episode without grading.*max_turns=3"):
        env = make("SWE/Toy-v0", max_episode_steps=3)
    env.close()


def test_a_limit_that_is_graded_is_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gym.make("SWE/Toy-v0", max_turns=3).close()
        gym.make("SWE/Toy-v0", max_episode_steps=-1).close()
