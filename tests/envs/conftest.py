"""Environments that are closed after the test, and their sandboxes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import env_parts
import gymnasium as gym
import pytest

from swe_gym.envs.registration import register_families
from swe_gym.envs.swe_env import SweEnv

register_families()


@pytest.fixture
def make_env() -> Iterator[Callable[..., gym.Env[str, str]]]:
    """`gym.make`, with a close after the test."""
    made: list[gym.Env[str, str]] = []

    def make(env_id: str, **arguments: Any) -> gym.Env[str, str]:
        made.append(gym.make(env_id, **arguments))
        return made[-1]

    yield make
    for env in made:
        env.close()


@pytest.fixture
def project(tmp_path: Path) -> dict[str, str]:
    """A folder with one bug and a test for it: the arguments of `SWE/Local-v0`."""
    folder = tmp_path / "adder"
    folder.mkdir()
    (folder / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (folder / "test_calc.py").write_text(
        "import unittest\nfrom calc import add\n\n\nclass AddTest(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(add(2, 3), 5)\n"
    )
    return {"path": str(folder), "test_cmd": "python -m unittest"}


@pytest.fixture
def local_env(make_env: Callable[..., gym.Env[str, str]], project: dict[str, str]) -> Callable[..., SweEnv]:
    """`SWE/Local-v0` on the project, without Gymnasium's wrappers."""
    return lambda **arguments: make_env("SWE/Local-v0", **project, **arguments).unwrapped


@pytest.fixture
def fake_env() -> Iterator[Callable[..., SweEnv]]:
    """Return a function that makes an environment on `CountedSandbox`es with the given options."""
    env_parts.CountedSandbox.started.clear()
    made: list[SweEnv] = []

    def make(arguments: dict[str, Any] | None = None, **options: Any) -> SweEnv:
        settings = {
            "backend": "env_parts:CountedSandbox",
            "sandbox_options": {"options": {"files": {"a.py": "x = 1\n"}, **options}},
        }
        made.append(SweEnv("env_parts:ManySource", **{**settings, **(arguments or {})}))
        return made[-1]

    yield make
    for env in made:
        env.close()
