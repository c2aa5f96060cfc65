"""pytest's configuration in files, which a policy may fill with anything."""

import pytest

from swe_gym.grading.staging import pytest_section


def test_changes_outside_pytest_sections_are_ignored() -> None:
    old = b'[project]\nname = "a"\n[tool.pytest.ini_options]\naddopts = "-q"\n'
    assert pytest_section("pyproject.toml", old) == {"ini_options": {"addopts": "-q"}}
    assert pytest_section("pyproject.toml", old.replace(b'"a"', b'"b"')) == pytest_section("pyproject.toml", old)
    assert pytest_section("setup.cfg", b"[a]\nb = 1\n[tool:pytest]\nc = 2\n") == ["[tool:pytest]", "c = 2"]
    assert pytest_section("setup.cfg", b"[tool:pytest]\nc = 2\n[a]\nb = 1\n") == ["[tool:pytest]", "c = 2"]
    assert pytest_section("setup.cfg", b"[pytest]\n") is None


@pytest.mark.parametrize("header", ["[tool:pytest] ", "[tool:pytest]\t# x", "[tool:pytest];]", "a = 1\f[tool:pytest]"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_sections_are_found_as_pytest_finds_them(header: str, end: str) -> None:
    data = f"[a]{end}b = 1{end}{header}{end}addopts = -p other{end}".encode()
    assert str(pytest_section("setup.cfg", data)).endswith("'addopts = -p other']")


@pytest.mark.parametrize(
    "data",
    [b"a = " + b"[" * 100_000, b"a = " + b"1" * 5000, b"a." * 100_000 + b"b = 1", b"# x\n" * 500_000, b"a = ", b"\xff"],
    ids=["deep", "digits", "dots", "long", "broken", "no text"],
)
def test_invalid_toml_is_compared_as_text(data: bytes) -> None:
    assert pytest_section("pyproject.toml", data) == data.decode("utf-8", "replace")
