"""Engines reached over TCP and TLS, configured by DOCKER_HOST and its companions."""

import shutil
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from servers.docker_proxy import DockerProxy

from swe_gym.sandboxes import Sandbox, SandboxSpec, open_sandbox
from swe_gym.testing import sandbox_contract
from swe_gym.testing.sandbox_contract import Case

pytest.importorskip("docker")

STREAM_CASES = ["hello", "any_bytes", "large_output_comes_whole", "fifty_megabytes", "files_from_many_threads"]

CERTIFICATE = """
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1
-keyout key.pem -out cert.pem
"""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for DOCKER_CERT_PATH; server and client share it."""
    if not shutil.which("openssl"):
        pytest.skip("no openssl to make certificates with")
    folder = tmp_path_factory.mktemp("certificates")
    subprocess.run(CERTIFICATE.split(), cwd=folder, check=True, capture_output=True)
    shutil.copy(folder / "cert.pem", folder / "ca.pem")
    return folder


@contextmanager
def opener(image: str) -> Iterator[Callable[..., Sandbox]]:
    opened: list[Sandbox] = []

    def make(**fields: object) -> Sandbox:
        spec = SandboxSpec.model_validate({"image": image, **fields})
        opened.append(open_sandbox(spec, "swe_gym.sandboxes.docker:DockerSandbox"))
        return opened[-1]

    yield make
    for box in opened:
        box.close()


@sandbox_contract.parametrize(only=STREAM_CASES)
def test_over_tcp(case: Case, docker_image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with DockerProxy(tcp=True) as proxy, opener(docker_image) as make:
        monkeypatch.setenv("DOCKER_HOST", proxy.base_url)
        case.run(make)
        assert any(request.path.endswith("/start") for request in proxy.requests)


@sandbox_contract.parametrize(only=STREAM_CASES)
def test_over_tls(case: Case, docker_image: str, certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from swe_gym.sandboxes.docker.engine import connect

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificates / "ca.pem"))
    context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificates / "unrelated-authority.pem"))
    with DockerProxy(tcp=True, tls=context) as proxy, opener(docker_image) as make:
        monkeypatch.setenv("DOCKER_HOST", proxy.base_url)
        monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
        monkeypatch.setenv("DOCKER_CERT_PATH", str(certificates))
        case.run(make)
        with closing(connect(None, 10)) as client:
            assert client.base_url.startswith("https://")


def test_a_rootless_engine_is_found_by_its_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from swe_gym.sandboxes.docker import engine

    monkeypatch.setattr(engine, "SOCKETS", ("{runtime}/docker.sock", "{runtime}/podman/podman.sock"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    assert engine.address(None) is None
    (tmp_path / "podman").mkdir()
    (tmp_path / "podman" / "podman.sock").touch()
    assert engine.address(None) == f"unix://{tmp_path}/podman/podman.sock"
    (tmp_path / "docker.sock").touch()
    assert engine.address(None) == f"unix://{tmp_path}/docker.sock"
    assert engine.address("tcp://host:2376") == "tcp://host:2376"
    monkeypatch.setenv("DOCKER_HOST", "tcp://other:2376")
    assert engine.address(None) is None
