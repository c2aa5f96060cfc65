"""`swe-gym clean`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from servers.kubernetes_server import KubernetesServer
from typer.testing import CliRunner

from swe_gym.errors import UsageError
from swe_gym_command.app import app


def clean(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs in a process of its own, because docker-py leaks a socket without an engine."""
    code = "from swe_gym_command import main; main()"
    nowhere = {"DOCKER_HOST": "unix:///nowhere/docker.sock", "KUBECONFIG": "/nowhere/config"}
    env = {**os.environ, **nowhere}
    return subprocess.run([sys.executable, "-c", code, "clean", *arguments], env=env, capture_output=True, text=True)


def test_an_unknown_backend_is_an_error_that_lists_the_known() -> None:
    result = CliRunner().invoke(app, ["clean", "--backend", "dokcer"])
    assert isinstance(result.exception, UsageError)
    assert "Did you mean 'docker'?" in str(result.exception)


def test_a_backend_whose_sandboxes_end_with_their_client_says_so(cli) -> None:
    assert cli("clean", "--backend", "local").out == "local: nothing to clean: its sandboxes end with their client\n"


def test_a_missing_engine_is_an_error_only_if_named() -> None:
    pytest.importorskip("docker")
    everything, asked = clean(), clean("--backend", "docker")
    assert [line.partition(": ")[0] for line in everything.stdout.splitlines()] == [
        "docker"
    ]  # no cluster is configured
    assert (everything.returncode, asked.returncode) == (0, 1)
    pytest.importorskip("kubernetes")
    assert "the backend options `kubeconfig` and `context`" in clean("--backend", "kubernetes").stdout


def test_backend_options_select_the_engine(cli, tmp_path: Path) -> None:
    pytest.importorskip("kubernetes")
    with KubernetesServer() as server:
        where = [f"kubeconfig={server.kubeconfig(tmp_path)}", "namespace=sandboxes"]
        options = [word for pair in where for word in ("--backend-option", pair)]
        assert cli("clean", "--backend", "kubernetes", *options).out == "kubernetes: 0 removed\n"
        assert server.paths() == ["GET /api/v1/namespaces/sandboxes/pods"]
    assert "Did you mean 'namespace'" in cli("clean", "--backend", "kubernetes", "--backend-option", "namespce=x").out
    pytest.importorskip("docker")
    somewhere = clean("--backend", "docker", "--backend-option", "base_url=tcp://127.0.0.1:9")
    assert "no Docker engine answers at tcp://127.0.0.1:9" in somewhere.stdout
    assert "needs exactly one --backend" in cli("clean", "--backend-option", "namespace=x").err
