"""`swe-gym clean`."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from swe_gym.cli import app
from swe_gym.errors import UsageError


def clean(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, because docker-py leaves a socket open where there is no engine."""
    code = "from swe_gym.cli import main; main()"
    env = {**os.environ, "DOCKER_HOST": "unix:///nowhere/docker.sock"}
    return subprocess.run([sys.executable, "-c", code, "clean", *arguments], env=env, capture_output=True, text=True)


def test_a_backend_that_needs_no_cleaning_is_an_error_that_says_which_do() -> None:
    result = CliRunner().invoke(app, ["clean", "--backend", "local"])
    assert isinstance(result.exception, UsageError)
    assert "docker" in str(result.exception)


def test_without_an_engine_it_says_so_and_only_who_asked_for_it_has_failed() -> None:
    pytest.importorskip("docker")
    everything, asked = clean(), clean("--backend", "docker")
    assert everything.stdout.startswith("docker: ")
    assert (everything.returncode, asked.returncode) == (0, 1)
