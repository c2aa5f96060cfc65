"""What a node of a Ray cluster takes over from the driver, and how a cluster refuses it."""

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if "ray" not in os.environ.get("SWE_GYM_REQUIRE", "").split(","):
    pytest.importorskip("ray", reason="Ray is tested in a separate environment")

import executors

import swe_gym
from swe_gym.errors import UsageError
from swe_gym.remote.ray_cluster import Setup, digest_code
from swe_gym.rollout.executors import named_variables

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray emits warnings

KEY = "/a/key/that/looks/like/a/path"
DRIVER = {
    "HTTPS_PROXY": "http://proxy:3128",
    "no_proxy": "10.0.0.0/8",
    "HF_ENDPOINT": "https://hub.example.com",
    "PIP_INDEX_URL": "https://pip.example.com/simple",
    "SWE_GYM_REGISTRY_MIRRORS": "docker.io=mirror.example.com",
    "AGS_REGION": "ap-guangzhou",
    "SSL_CERT_FILE": "/nowhere/ca.pem",
    "MY_KEY": KEY,
    "HOME_OF_NOBODY": "stays here",
}


def on_a_node(code: str, *, path: Path | None = None, **variables: str) -> str:
    """Run Python code in a process whose environment is a node's, and return its output."""
    clean = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME")}
    command, env = [sys.executable, "-c", code], {**clean, **variables}
    result = subprocess.run(command, env=env, cwd=path, capture_output=True, text=True, timeout=120)
    return result.stdout + result.stderr


def test_mirrors_proxies_and_named_keys_reach_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in DRIVER.items():
        monkeypatch.setenv(name, value)
    setup = Setup.of_this_process(["MY_KEY"])
    with pytest.raises(UsageError, match="variables: NOT_SET is not set in this process"):
        Setup.of_this_process(["MY_KEY", "NOT_SET"])
    assert KEY not in repr(setup)
    assert "MY_KEY" in repr(setup)
    imports = "import os; from swe_gym.remote.ray_cluster import Setup"
    code = f"{imports}; Setup{tuple(setup)!r}.apply(); print(dict(os.environ))"
    there = on_a_node(code, https_proxy="http://proxy-of-the-node:3128")
    for name in ("no_proxy", "HF_ENDPOINT", "PIP_INDEX_URL", "SWE_GYM_REGISTRY_MIRRORS", "AGS_REGION", "MY_KEY"):
        assert f"{name!r}: {DRIVER[name]!r}" in there
    assert "'https_proxy': 'http://proxy-of-the-node:3128'" in there  # the node's own is kept
    assert not any(f"{name!r}" in there for name in ("HTTPS_PROXY", "SSL_CERT_FILE", "HOME_OF_NOBODY"))


def test_names_of_keys_are_found_in_a_configuration() -> None:
    sandbox = {"options": {"api_key_env": "MY_SANDBOX_KEY", "other": [{"api_key_variable": "DEEP"}]}}
    config = {"policy_options": {"api_key_variable": "MY_KEY", "api_key": "secret"}, "sandbox_options": sandbox}
    assert named_variables(config) == ["DEEP", "MY_KEY", "MY_SANDBOX_KEY"]


def test_a_node_with_other_code_of_the_same_version_is_refused(tmp_path: Path) -> None:
    copy = tmp_path / "swe_gym"
    shutil.copytree(Path(swe_gym.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    ask = "from swe_gym.remote.ray_cluster import *; print(digest_code())"
    assert on_a_node(ask, path=tmp_path).strip() == digest_code()  # the same build elsewhere
    with (copy / "tasks/swebench_specs.toml").open("a") as file:
        file.write("# another commit\n")
    apply = f"from swe_gym.remote.ray_cluster import *; Setup({digest_code()!r}, '', [], {{}}).apply()"
    said = on_a_node(apply, path=tmp_path)
    assert f"in {copy}, digest" in said
    assert f"is not the driver's (digest {digest_code()[:12]}): install the same build or commit on all nodes" in said


@pytest.fixture(scope="module")
def locked() -> Iterator[str]:
    """Address of a cluster that asks for a token. Ray reads its mode once, so that it is another process's."""
    code = (
        "from executors import *\nwith machines(0) as made:\n    print(made.address, flush=True)\n    sys.stdin.read()"
    )
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    env = {**os.environ, **token, "PYTHONPATH": str(Path(executors.__file__).parent)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, "-c", code], env=env, text=True, **pipes) as cluster:
        assert cluster.stdout
        yield cluster.stdout.readline().strip()
        cluster.communicate(timeout=60)


@pytest.mark.parametrize(
    ("mode", "token"), [("token", "0" * 64), ("token", None), (None, None)], ids=["wrong", "missing", "disabled"]
)
def test_a_refused_token_is_an_error_of_one_line(
    locked: str, tmp_path: Path, mode: str | None, token: str | None
) -> None:
    code = (
        "import sys\nfrom swe_gym.errors import UsageError\nfrom swe_gym.rollout.executors import open_executor\n"
        "try:\n    open_executor('ray', {'address': sys.argv[1]}).__enter__()\n"
        "except UsageError as error:\n    print(error)\n"
    ).replace("sys.argv[1]", repr(locked))
    given = {"RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN": token, "HOME": str(tmp_path)}
    said = on_a_node(code, **{name: value for name, value in given.items() if value})
    (line,) = (one for one in said.splitlines() if "gcs_client" not in one)
    assert line == (
        f"the Ray cluster {locked} refused the authentication token (RAY_AUTH_MODE is {mode or 'not set'}): "
        "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the token that `ray get-auth-token` "
        "prints on the head node"
    )
