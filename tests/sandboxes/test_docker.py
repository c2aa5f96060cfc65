"""Docker sandboxes beyond the contract: configuration, errors, and cleanup."""

import gc
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from swe_gym.errors import SandboxClosed, SandboxError, SandboxLost, SandboxStartError, Unsupported, UsageError
from swe_gym.sandboxes import Sandbox, SandboxSpec, open_sandbox
from swe_gym.testing.sandbox_contract.case import Background, eventually
from swe_gym.types import PythonEnv

docker = pytest.importorskip("docker")

BACKEND = "swe_gym.sandboxes.docker:DockerSandbox"
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_the_required_engine_works(docker_problem: str) -> None:
    assert "docker" not in os.environ.get("SWE_GYM_REQUIRE", "").split(",") or docker_problem == ""


@pytest.fixture
def make(docker_image: str) -> Iterator[Callable[..., Sandbox]]:
    opened: list[Sandbox] = []

    def open_one(**fields: object) -> Sandbox:
        opened.append(open_sandbox(SandboxSpec.model_validate({"image": docker_image, **fields}), BACKEND))
        return opened[-1]

    yield open_one
    for sandbox in opened:
        sandbox.close()


@pytest.fixture
def derived(docker_image: str, engine: docker.APIClient) -> Iterator[Callable[..., str]]:
    """Builds an image by running a command in the tests' image."""
    made: list[str] = []

    def make_image(command: str, **config: object) -> str:
        container = engine.create_container(docker_image, ["sh", "-c", command], network_disabled=True)["Id"]
        engine.start(container)
        assert engine.wait(container, timeout=60)["StatusCode"] == 0
        made.append(f"swe-gym/test-{os.getpid()}:{len(made)}")
        engine.commit(container, *made[-1].split(":"), conf=config)
        engine.remove_container(container)
        return made[-1]

    yield make_image
    for image in made:
        users = {"ancestor": image}
        eventually(lambda users=users: not engine.containers(all=True, filters=users), 60, "nothing uses the image")
        engine.remove_image(image)


# --- configuration --------------------------------------------------------------------------------------------


def test_limits_and_labels_are_on_by_default(make: Callable[..., Sandbox], engine: docker.APIClient) -> None:
    box = make(labels={"team": "red"}, ttl=100)
    found = engine.inspect_container(f"swe-gym-{box.id}")
    host, config = found["HostConfig"], found["Config"]
    assert host["Memory"] == host["MemorySwap"] == 4096 << 20
    assert host["PidsLimit"] == 512
    assert host["CpuQuota"] / host["CpuPeriod"] == 2.0
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["NetworkMode"] == "none"
    assert not host["Privileged"]
    assert not host["Binds"]
    assert host["AutoRemove"]
    assert host["LogConfig"]["Type"] == "none"
    assert config["StdinOnce"]
    assert config["Labels"]["team"] == "red"
    assert config["Labels"]["swe_gym.sandbox"] == box.id
    assert 0 < int(config["Labels"]["swe_gym.expires"]) - time.time() <= 100


FIRST_ADDRESS = ["python3", "-c", "import socket; print(socket.getaddrinfo('localhost', 80)[0][4][0])"]


OWN_NAMES = """
import socket
print(socket.gethostbyname(socket.gethostname()))
with socket.create_server(("::1", 0), family=socket.AF_INET6) as server: print("listens")
"""


@pytest.mark.parametrize("user", [None, "0", "nobody"])
def test_the_loopback_device_is_the_same_for_every_user(
    user: str | None, make: Callable[..., Sandbox], engine: docker.APIClient
) -> None:
    box = make(user=user)
    assert box.exec(FIRST_ADDRESS).text == "127.0.0.1\n"
    assert box.exec(["python3", "-c", OWN_NAMES]).text == "127.0.0.1\nlistens\n"
    assert box.exec(["ls", "/sys/class/net"]).text == "lo\n"
    found = engine.inspect_container(f"swe-gym-{box.id}")
    assert (found["HostConfig"]["NetworkMode"], found["Config"].get("NetworkDisabled", False)) == ("none", True)


def test_an_image_with_a_user_has_its_host_names(derived: Callable[..., str], make: Callable[..., Sandbox]) -> None:
    box = make(image=derived("true", User="nobody"))
    assert box.exec(["python3", "-c", OWN_NAMES]).text == "127.0.0.1\nlistens\n"


def test_every_limit_can_be_set(make: Callable[..., Sandbox], engine: docker.APIClient) -> None:
    options = {"cap_add": [], "security_opt": []}
    box = make(cpus=0.5, memory_mb=256, pids=64, network="egress", user="nobody", options=options)
    host = engine.inspect_container(f"swe-gym-{box.id}")["HostConfig"]
    assert (host["Memory"], host["PidsLimit"], host["NetworkMode"]) == (256 << 20, 64, "bridge")
    assert host["CpuQuota"] / host["CpuPeriod"] == 0.5
    assert not host["CapAdd"]
    assert box.exec("id -un; grep CapEff /proc/self/status").text.split() == ["nobody", "CapEff:", "0" * 16]


@pytest.fixture
def network(engine: docker.APIClient) -> Iterator[str]:
    """A network of the engine's."""
    name = f"swe-gym-test-{os.getpid()}"
    engine.create_network(name)
    yield name
    attached = {"network": name}
    eventually(lambda: not engine.containers(all=True, filters=attached), 60, "nothing uses the network")
    engine.remove_network(name)


def test_egress_goes_through_the_network_of_the_option(
    make: Callable[..., Sandbox], engine: docker.APIClient, network: str
) -> None:
    box = make(network="egress", options={"egress_network": network})
    assert list(engine.inspect_container(f"swe-gym-{box.id}")["NetworkSettings"]["Networks"]) == [network]
    gateway = engine.inspect_network(network)["IPAM"]["Config"][0]["Gateway"]
    route = "{:02X}{:02X}{:02X}{:02X}".format(*reversed([int(part) for part in gateway.split(".")]))
    assert route in box.exec("cat /proc/net/route").text
    box.close()


def test_a_storage_option_is_the_engines(make: Callable[..., Sandbox]) -> None:
    with pytest.raises(SandboxStartError, match=r"(?is)refused to create a container.*(nothing|storage)"):
        make(options={"storage_opt": {"nothing": "1"}})


def test_more_cores_than_the_machine_has_are_allowed(make: Callable[..., Sandbox]) -> None:
    assert make(cpus=4096).exec("true").ok


def test_commands_inherit_the_environment_of_the_image(
    derived: Callable[..., str], make: Callable[..., Sandbox]
) -> None:
    command = (
        "mkdir -p /opt/miniconda3/envs/testbed/bin && ln -s /usr/bin/python3 /opt/miniconda3/envs/testbed/bin/python"
    )
    image = derived(command, Env=["PATH=/image/bin:/usr/bin:/bin", "FROM_IMAGE=a b=c"], WorkingDir="/elsewhere")
    box = make(image=image)
    said = box.exec('echo "$FROM_IMAGE"; echo "$PATH"; echo "$VIRTUAL_ENV"; pwd; command -v python').text.splitlines()
    testbed = "/opt/miniconda3/envs/testbed"
    assert said == ["a b=c", f"{testbed}/bin:/image/bin:/usr/bin:/bin", testbed, "/testbed", f"{testbed}/bin/python"]
    plain = make(image=image, options={"activate": ""})
    assert plain.exec('echo "$PATH"').text == "/image/bin:/usr/bin:/bin\n"


def test_an_image_can_be_named_by_its_digest(
    make: Callable[..., Sandbox], engine: docker.APIClient, docker_image: str
) -> None:
    assert make(image=engine.inspect_image(docker_image)["Id"]).exec("true").ok


# --- errors -----------------------------------------------------------------------------------------------------


def test_options_are_checked_before_anything_starts() -> None:
    with pytest.raises(UsageError, match="Did you mean 'runtime'"):
        open_sandbox(SandboxSpec(image="x", options={"runtim": "runsc"}), BACKEND)
    with pytest.raises(Unsupported, match="runsc"):
        open_sandbox(SandboxSpec(image="x", min_isolation="vm"), BACKEND)
    with pytest.raises(Unsupported, match="requirements"):
        open_sandbox(SandboxSpec(python=PythonEnv(requirements=("attrs",))), BACKEND)


@pytest.mark.parametrize("left_behind", [False, True], ids=["no socket", "a socket of an engine that has ended"])
def test_an_unreachable_engine_is_an_error_with_a_fix(left_behind: bool, tmp_path: Path) -> None:
    if left_behind:
        with socket.socket(socket.AF_UNIX) as ended:
            ended.bind(f"{tmp_path}/docker.sock")
    spec = SandboxSpec(image="x", options={"base_url": f"unix://{tmp_path}/docker.sock"})
    with pytest.raises(SandboxStartError, match=r"no Docker engine answers at .*systemctl start docker.*DOCKER_HOST"):
        open_sandbox(spec, BACKEND)
    gc.collect()  # a socket that is left open would be a warning


def test_an_invalid_address_is_an_error() -> None:
    with pytest.raises(SandboxStartError, match=r"'engine' is not an address of a Docker engine") as caught:
        open_sandbox(SandboxSpec(image="x", options={"base_url": "engine"}), BACKEND)
    assert (caught.value.reason, caught.value.retryable) == ("setup", False)
    with pytest.raises(SandboxStartError, match=r"ssh://me@host cannot be used over ssh. Forward its socket") as caught:
        open_sandbox(SandboxSpec(image="x", options={"base_url": "ssh://me@host"}), BACKEND)
    assert (caught.value.reason, caught.value.retryable) == ("setup", False)


@pytest.mark.usefixtures("docker_image")
def test_a_missing_image_is_an_error() -> None:
    with pytest.raises(
        SandboxStartError, match="the Docker engine has no image 'nobody/nothing:1', and pull='never'"
    ) as error:
        open_sandbox(SandboxSpec(image="nobody/nothing:1", options={"pull": "never"}), BACKEND)
    assert error.value.reason == "image"


def test_capabilities_mention_an_unprotected_runner(make: Callable[..., Sandbox]) -> None:
    assert not any("slow down the runner" in note for note in make().capabilities.notes)
    notes = make(options={"security_opt": []}).capabilities.notes
    assert any("slow down the runner" in note and "Permission denied" in note for note in notes)


def test_an_image_without_python_is_lent_one_that_commands_cannot_see(
    derived: Callable[..., str], make: Callable[..., Sandbox]
) -> None:
    image = derived("rm -rf /usr/bin/python* /usr/lib/python3* /bin/bash /usr/bin/bash")
    for _ in range(2):
        box = make(image=image)
        assert box.exec("command -v python3").exit_code == 127  # dash's answer for a missing program
        assert box.exec('echo $0; case ":$PATH:" in *swe-gym*) exit 1; esac').text == "sh\n"
        assert box.exec("sleep 60 & sleep 60", timeout=0.5).timed_out
        box.write_file("folder/file", b"content")
        assert list(box.manifest()) == ["folder/file"]
        assert box.get_tar("folder")
        with closing(box.open_pty(["cat"])) as terminal:
            terminal.write(b"typed\n")
            assert terminal.read_until(b"typed", timeout=10)[1]
        assert any("has no Python" in note for note in box.capabilities.notes)


def test_an_image_without_python_is_an_error_if_none_is_lent(
    derived: Callable[..., str], make: Callable[..., Sandbox]
) -> None:
    image = derived("rm -f /usr/bin/python*")
    with pytest.raises(SandboxStartError, match="no Python found in the image") as error:
        make(image=image, options={"copy_python": False})
    assert error.value.reason == "setup"
    assert not error.value.retryable


def test_an_image_without_a_shell_is_an_error(derived: Callable[..., str], make: Callable[..., Sandbox]) -> None:
    image = derived("rm -f /bin/sh /usr/bin/sh")
    with pytest.raises(SandboxStartError, match="the image has no /bin/sh") as error:
        make(image=image)
    assert (error.value.reason, error.value.retryable) == ("image", False)


def test_a_nearly_full_disk_prevents_a_pull(make: Callable[..., Sandbox]) -> None:
    with pytest.raises(SandboxStartError, match=r"has .* MiB left, less than min_free_mb") as error:
        make(image="nobody/nothing:1", options={"min_free_mb": 1 << 40})
    assert error.value.reason == "capacity"


def test_running_limits_concurrent_commands(make: Callable[..., Sandbox]) -> None:
    first, second = (make(options={"running": 1}) for _ in range(2))
    long = Background(lambda: first.exec("touch begun; sleep 60", timeout=90))
    eventually(lambda: "begun" in first.manifest(), 60, "the first command runs")
    with pytest.raises(SandboxError, match="was not run: all 1 places") as error:
        second.exec("true", timeout=0.3)
    assert error.value.retryable
    waiting = Background(lambda: second.exec("echo then", timeout=30))
    first.close()
    with pytest.raises(SandboxClosed):
        long.result(60)
    assert waiting.result(60).text == "then\n"


def test_a_killed_container_is_reported(
    make: Callable[..., Sandbox], engine: docker.APIClient, caplog: pytest.LogCaptureFixture
) -> None:
    box = make()
    engine.remove_container(f"swe-gym-{box.id}", force=True)
    with pytest.raises(SandboxLost, match="its container was killed") as error:
        box.exec("true")
    assert error.value.reason == "killed"
    assert f"sandbox {box.id} was lost during exec (killed)" in caplog.text


def test_running_out_of_memory_is_reported(make: Callable[..., Sandbox]) -> None:
    box = make(memory_mb=48)
    with pytest.raises(SandboxLost) as error:  # the first process holds the content in memory
        box.write_file("large", bytes(100 << 20), timeout=60)
    assert error.value.reason == "oom"


def test_an_expired_sandbox_is_reported_and_removed(make: Callable[..., Sandbox], engine: docker.APIClient) -> None:
    box = make(ttl=1.0)
    with pytest.raises(SandboxLost) as error:
        box.exec("sleep 30", timeout=40)
    assert error.value.reason == "expired"
    eventually(lambda: not named(engine, box.id), 60, "its container is gone")


def named(engine: docker.APIClient, sandbox: str) -> list[object]:
    return list(engine.containers(all=True, filters={"name": f"swe-gym-{sandbox}"}))


# --- cleanup ----------------------------------------------------------------------------------------------------


def test_a_closed_sandbox_leaves_nothing_at_once(make: Callable[..., Sandbox], engine: docker.APIClient) -> None:
    box = make()
    box.exec("setsid sleep 600 &")
    box.close()
    eventually(lambda: not named(engine, box.id), 60, "its container is gone")


def test_killed_clients_leave_nothing(docker_image: str) -> None:
    # Ten seconds: the default of two is too short beside other tests.
    options = ["--what", "kill", "--times", "4", "--seconds", "10"]
    command = [sys.executable, str(BENCHMARKS / "on_docker.py"), docker_image, *options]
    end = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert end.returncode == 0, end.stdout + end.stderr


def test_the_sweep_removes_only_abandoned_containers(
    make: Callable[..., Sandbox], engine: docker.APIClient, docker_image: str
) -> None:
    from swe_gym.sandboxes.docker import DockerSandbox
    from swe_gym.sandboxes.docker.owners import labels, owner

    later, before = str(int(time.time()) + 1000), str(int(time.time()) - 1)
    machine, pid, start = owner().rsplit("/", 2)
    of_the_dead = f"{machine}/{pid}/{int(start) - 1}"
    cases = {
        "foreign": ({}, False),
        "foreign-similar": ({"swe_gym": "1", "swe_gym.expires": before}, False),
        "ours-in-use": (labels("a", 1000), False),
        "ours-elsewhere": ({**labels("b", 1000), "swe_gym.owner": f"far/away/1/{pid}/{start}"}, False),
        "ours-expired": ({**labels("c", 1000), "swe_gym.expires": before}, True),
        "ours-of-the-dead": ({**labels("d", 1000), "swe_gym.expires": later, "swe_gym.owner": of_the_dead}, True),
    }
    made = {
        f"test-{os.getpid()}-{name}": (
            engine.create_container(docker_image, "true", name=f"test-{os.getpid()}-{name}", labels=given)["Id"],
            gone,
        )
        for name, (given, gone) in cases.items()
    }
    box = make()
    try:
        swept = DockerSandbox.sweep({})
        left = {container["Id"] for container in engine.containers(all=True)}
        assert {name for name, (_, gone) in made.items() if gone} <= set(swept)
        assert {name: identifier not in left for name, (identifier, _) in made.items()} == {
            name: gone for name, (_, gone) in made.items()
        }
        assert box.exec("true").ok
    finally:
        for identifier, gone in made.values():
            if not gone:
                engine.remove_container(identifier, force=True)


def test_closed_sandboxes_hold_no_thread_and_no_descriptor(make: Callable[..., Sandbox]) -> None:
    make().close()

    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    before = held()
    for _ in range(5):
        make().close()
    eventually(lambda: held() <= before, 60, "nothing is held")
