"""The names that users import."""

from typing import get_type_hints

import pytest

import swe_gym


def test_every_public_name_exists_and_is_listed_in_order() -> None:
    assert sorted(swe_gym.__all__) == swe_gym.__all__
    assert dir(swe_gym) == swe_gym.__all__
    assert all(getattr(swe_gym, name) is not None for name in swe_gym.__all__)
    assert {"SweEnv", "SweVectorEnv", "Task", "Trajectory", "UsageError", "play", "validate"} <= set(swe_gym.__all__)


def test_a_star_import_brings_them_all() -> None:
    names: dict[str, object] = {}
    exec("from swe_gym import *", names)
    assert set(swe_gym.__all__) <= set(names)


def test_other_names_are_attribute_errors() -> None:
    for name in ("SweEnvs", "__wrapped__"):
        with pytest.raises(AttributeError, match=name):
            getattr(swe_gym, name)


def test_public_things_are_documented() -> None:
    assert [name for name in swe_gym.__all__ if not getattr(swe_gym, name).__doc__] == []


def test_many_environments_have_the_type_that_can_send_and_receive() -> None:
    assert get_type_hints(swe_gym.make_vec)["return"] is swe_gym.SweVectorEnv
    with swe_gym.make_vec("SWE/Toy-v0", num_envs=2) as envs:
        assert isinstance(envs, swe_gym.SweVectorEnv)
    with pytest.raises(swe_gym.UsageError, match=r"'CartPole-v1' makes a .*: use gymnasium\.make_vec"):
        swe_gym.make_vec("CartPole-v1", 2)


def test_the_version_is_the_distributions() -> None:
    from importlib.metadata import version

    assert swe_gym.__version__ == version("swe-gym")
