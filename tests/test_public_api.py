"""The names that users import."""

import swe_gym


def test_the_public_names_are_these_and_exist() -> None:
    assert sorted(swe_gym.__all__) == swe_gym.__all__
    assert dir(swe_gym) == swe_gym.__all__
    assert all(getattr(swe_gym, name) is not None for name in swe_gym.__all__)


def test_public_things_are_documented() -> None:
    assert [name for name in swe_gym.__all__ if not getattr(swe_gym, name).__doc__] == []


def test_the_version_is_the_distributions() -> None:
    from importlib.metadata import version

    assert swe_gym.__version__ == version("swe-gym")
