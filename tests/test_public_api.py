"""The names that users import."""

import swe_gym


def test_the_public_names_are_these_and_exist() -> None:
    assert sorted(swe_gym.__all__) == swe_gym.__all__
    public = {name for name in vars(swe_gym) if not name.startswith("_")}
    modules = {name for name in public if type(getattr(swe_gym, name)) is type(swe_gym)}
    assert public - modules == set(swe_gym.__all__) - {"__version__"}


def test_public_things_are_documented() -> None:
    assert [name for name in swe_gym.__all__ if not getattr(swe_gym, name).__doc__] == []


def test_the_version_is_the_distributions() -> None:
    from importlib.metadata import version

    assert swe_gym.__version__ == version("swe-gym")
