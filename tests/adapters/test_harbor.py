"""Harbor: its own command plays over our sandboxes; what they cannot do is refused before anything starts."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

if "harbor" not in os.environ.get("SWE_GYM_REQUIRE", "").split(","):
    pytest.importorskip("harbor", reason="Harbor is tested in a separate environment")

from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy, TaskConfig
from harbor.models.trial.config import ResourceMode
from harbor.models.trial.paths import TrialPaths
from harbor_folders import TOML, harbor_task, script

from swe_gym.adapters.harbor import SweGymEnvironment
from swe_gym.curation.harbor import export_harbor
from swe_gym.errors import SweGymError, TaskError, Unsupported
from swe_gym.sandboxes.images import ImageName, ImageStore
from swe_gym.sandboxes.images.sources import engine_source
from swe_gym.sandboxes.local import problem
from swe_gym.tasks import load_source
from swe_gym.tasks.harbor_config import HarborConfig
from swe_gym.types import JsonObject

pytestmark = pytest.mark.filterwarnings("ignore")  # its dependencies emit warnings

HARBOR = Path(sys.executable).with_name("harbor")
PLACE = "swe_gym.adapters.harbor:SweGymEnvironment"
DOCKERFILE = """\
FROM {base}
RUN command -v python || ln -s $(command -v python3) /usr/local/bin/python
RUN useradd -m -u 1234 worker
WORKDIR /app
COPY x.txt .
"""


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with Python, git and bash, in the engine and in the store of local sandboxes."""
    if not (image := os.environ.get("SWE_GYM_TEST_IMAGE")):
        pytest.skip("no image to test with: set SWE_GYM_TEST_IMAGE to one with Python, git and bash")
    store = ImageStore()
    try:
        with engine_source(image, tmp_path_factory.mktemp("image")) as source:
            store.add(ImageName.parse(image), source, deadline=time.monotonic() + 600)
    except SweGymError as error:
        pytest.skip(str(error))
    return image


@pytest.fixture(params=["local", "docker"])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "local" and (why := problem("namespace")):
        pytest.skip(f"no tier namespace on this machine: {why}")
    return str(request.param)


def make(folder: Path, config: JsonObject | None = None, **arguments: Any) -> SweGymEnvironment:
    """Return the environment of a task folder, as Harbor makes it."""
    paths = TrialPaths(trial_dir=folder / "trial")
    paths.mkdir()
    return SweGymEnvironment(
        environment_dir=folder / "environment",
        environment_name=folder.name,
        session_id="session__env",
        trial_paths=paths,
        task_env_config=EnvironmentConfig(**(config or {})),
        **{"network_policy": NetworkPolicy(network_mode=NetworkMode.NO_NETWORK), **arguments},
    )


def task(folder: Path, base: str, dockerfile: str = DOCKERFILE, **files: str) -> Path:
    steps = dockerfile.format(base=base)
    return harbor_task(folder, **{"environment/Dockerfile": steps, "environment/x.txt": "old\n", **files})


@contextlib.asynccontextmanager
async def started(environment: SweGymEnvironment) -> AsyncIterator[SweGymEnvironment]:
    try:
        await environment.start(force_build=False)
        yield environment
    finally:
        await environment.stop(delete=True)


def ask(environment: SweGymEnvironment, *commands: str, **options: Any) -> list[str]:
    """Return what commands print."""

    async def run() -> list[str]:
        async with started(environment) as one:
            return [((await one.exec(command, **options)).stdout or "").strip() for command in commands]

    return asyncio.run(run())


async def processes(environment: SweGymEnvironment) -> str:
    """Return the command line of each process of the sandbox."""
    return (await environment.exec("for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done")).stdout or ""


# --- played by Harbor ----------------------------------------------------------------------------------------


def harbor_trials(tasks: Path, agent: str, backend: str, out: Path) -> dict[str, JsonObject]:
    """Play all tasks of a folder with Harbor's command. Return task -> result of its trial."""
    command = [HARBOR, "run", "-p", tasks, "-a", agent, "--env", PLACE, "--ek", f"backend={backend}", "-o", out, "-y"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    results = [json.loads(file.read_text()) for file in out.glob("*/*/result.json")]
    assert results, done.stdout + done.stderr
    return {Path(one["task_id"]["path"]).name: one for one in results}


def harbor_run(tasks: Path, agent: str, backend: str, out: Path) -> dict[str, float | None]:
    """Play all tasks of a folder without a failure. Return task -> reward."""
    trials = harbor_trials(tasks, agent, backend, out)
    assert [one["exception_info"] for one in trials.values()] == [None] * len(trials)
    return {name: (one["verifier_result"] or {})["rewards"]["reward"] for name, one in trials.items()}


def test_harbors_command_plays_exported_tasks(tmp_path: Path, base: str, backend: str) -> None:
    toy = load_source("toy")
    tasks = [toy.get(task_id) for task_id in list(toy.ids())[:2]]
    export_harbor(tasks, tmp_path / "tasks", base=base)
    wanted = {one.task_id for one in tasks}
    assert harbor_run(tmp_path / "tasks", "oracle", backend, tmp_path / "oracle") == dict.fromkeys(wanted, 1.0)
    assert harbor_run(tmp_path / "tasks", "nop", backend, tmp_path / "nop") == dict.fromkeys(wanted, 0.0)


USERS = """\
schema_version = "1.4"
[environment]
network_mode = "no-network"
[environment.env]
GREETING = "hello"
[environment.healthcheck]
command = "test -e /app/x.txt"
[agent]
user = "worker"
[verifier]
user = "root"
[[artifacts]]
source = "/app/out.txt"
"""


def test_users_healthchecks_and_artifacts_are_those_of_the_task(tmp_path: Path, base: str, backend: str) -> None:
    dockerfile = DOCKERFILE + "RUN chown worker /app\n"
    wanted = '[ "$(cat /app/out.txt)" = "worker hello" ] && [ "$(id -un)" = root ]'
    files = {
        "task.toml": USERS,
        "solution/solve.sh": script('echo "$(id -un) $GREETING" > out.txt'),
        "tests/test.sh": script(f"if {wanted}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt"),
    }
    task(tmp_path / "tasks", base, dockerfile, **files)
    assert harbor_run(tmp_path / "tasks", "oracle", backend, tmp_path / "out") == {"fix-x": 1.0}
    (artifact,) = (tmp_path / "out").glob("*/*/artifacts/app/out.txt")
    assert artifact.read_text() == "worker hello\n"


# --- commands ------------------------------------------------------------------------------------------------


def test_commands_run_as_the_user_in_the_workdir(tmp_path: Path, base: str, backend: str) -> None:
    environment = make(task(tmp_path, base), {"env": {"A": "1"}}, backend=backend)
    line = "id -u; echo $HOME $A; pwd; cat x.txt"

    async def run() -> list[str | None]:
        async with started(environment) as one:
            said = [(await one.exec(line, user=user)).stdout for user in (None, "root", 0, "worker", 1234, 4321)]
            with one.with_default_user("worker"):
                said.append((await one.exec(line, cwd="/tmp", env={"A": "2"})).stdout)
            with pytest.raises(Unsupported, match=r"as user 'nobody-here': .*has no user"):
                await one.exec("true", user="nobody-here")
            return said

    root, worker = "0\n/root 1\n/app\nold\n", "1234\n/home/worker 1\n/app\nold\n"
    other, elsewhere = "4321\n/ 1\n/app\nold\n", "1234\n/home/worker 2\n/tmp\n"
    assert asyncio.run(run()) == [root, root, root, worker, worker, other, elsewhere]


def test_the_user_of_the_image_runs_commands_unless_root_is_asked_for(tmp_path: Path, base: str, backend: str) -> None:
    environment = make(task(tmp_path, base, DOCKERFILE + "USER worker\n"), backend=backend)

    async def run() -> list[str | None]:
        async with started(environment) as one:
            return [(await one.exec("id -un", user=user)).stdout for user in (None, "root")]

    assert asyncio.run(run()) == ["worker\n", "root\n"]


def test_a_command_that_times_out_or_is_cancelled_ends_with_its_children(
    tmp_path: Path, base: str, backend: str
) -> None:
    environment = make(task(tmp_path, base), backend=backend)

    async def run() -> None:
        async with started(environment) as one:
            await one.exec("sleep 1001 & true")  # a server that stays
            with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
                await one.exec("sleep 1002", timeout_sec=1)
            for user in ("root", "worker"):
                command = asyncio.create_task(one.exec("sleep 1003 & sleep 1003; true", user=user))
                while "sleep 1003" not in await processes(one):
                    pass
                command.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await command
            left = await processes(one)
            assert "sleep 1001" in left
            assert not [line for line in left.splitlines() if line.startswith(("sleep 1002", "sleep 1003"))]

    asyncio.run(run())


def test_files_are_copied_with_their_modes_and_links(tmp_path: Path, base: str, backend: str) -> None:
    environment = make(task(tmp_path / "tasks", base), backend=backend)
    source = tmp_path / "source"
    (source / "in").mkdir(parents=True)
    (source / "in/run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "in/run.sh").chmod(0o755)
    (source / "link").symlink_to("in/run.sh")
    (source / "empty").mkdir()

    async def run() -> None:
        async with started(environment) as one:
            await one.upload_dir(source, "/given")
            await one.upload_file(source / "in/run.sh", "/given/more/again.sh")
            said = await one.exec("ls /given; /given/link; /given/more/again.sh; stat -c %U /given/in/run.sh")
            assert said.stdout == "empty\nin\nlink\nmore\nran\nran\nroot\n"
            await one.exec("ln -s /etc/passwd /given/out; ln -s ../../../x /given/up; mkfifo /given/pipe")
            await one.download_dir("/given", tmp_path / "taken")
            await one.download_file("/given/in/run.sh", tmp_path / "file/run.sh")
            with pytest.raises(SweGymError):
                await one.download_file("/given/none", tmp_path / "none")

    asyncio.run(run())
    taken = {path.relative_to(tmp_path / "taken").as_posix() for path in (tmp_path / "taken").rglob("*")}
    assert taken == {"empty", "in", "in/run.sh", "link", "more", "more/again.sh"}
    assert os.access(tmp_path / "taken/in/run.sh", os.X_OK)
    assert (tmp_path / "file/run.sh").read_text() == "#!/bin/sh\necho ran\n"


def test_tasks_have_the_network_that_they_ask_for(tmp_path: Path, base: str, backend: str) -> None:
    devices = "ls /sys/class/net 2>/dev/null || cut -d: -f1 /proc/net/dev | tail -n +3"
    assert ask(make(task(tmp_path, base), backend=backend), devices) == ["lo"]
    if backend == "docker":
        public = NetworkPolicy(network_mode=NetworkMode.PUBLIC)
        (found,) = ask(make(task(tmp_path, base), backend=backend, network_policy=public), devices)
        assert "eth0" in found


def test_a_list_of_hosts_is_a_proxy_that_knows_them(tmp_path: Path, base: str, backend: str) -> None:
    listed = NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=["a.invalid", "*.b.invalid"])
    fetch = "python -c 'import sys, urllib.request as r; r.urlopen(sys.argv[1])' http://{} 2>&1 | tail -1"
    commands = [fetch.format(host) for host in ("a.invalid", "c.b.invalid", "c.invalid")]
    said = ask(make(task(tmp_path, base), backend=backend, network_policy=listed), *commands)
    assert [line.split()[-2] for line in said] == ["502:", "502:", "403:"]


def test_read_only_folders_can_be_mounted(tmp_path: Path, base: str, backend: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.txt").write_text("given\n")
    mount = {"type": "bind", "source": str(tmp_path / "data"), "target": "/data", "read_only": True}
    environment = make(task(tmp_path / "tasks", base), backend=backend, mounts=[mount])
    assert ask(environment, "cat /data/a.txt; touch /data/b 2>/dev/null || echo no") == ["given\nno"]


def test_limits_are_those_of_the_task(tmp_path: Path, base: str) -> None:
    config = {"cpus": 1.5, "memory_mb": 300, "storage_mb": 64}
    spec = make(task(tmp_path, base), config, backend="docker")._describe(force_build=False)
    assert (spec.cpus, spec.memory_mb, spec.disk_mb) == (1.5, 300, 64)
    free = make(task(tmp_path, base), config, backend="docker", cpu_enforcement_policy=ResourceMode.IGNORE)
    assert free._describe(force_build=False).cpus is None


def test_a_prebuilt_image_plays_in_a_pod(tmp_path: Path, base: str) -> None:
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("no cluster to test on: set KUBECONFIG")
    folder = harbor_task(tmp_path, **{"environment/x.txt": "old\n"})
    config = {"docker_image": base, "workdir": "/app", "cpus": 0.5, "memory_mb": 256}
    assert ask(make(folder, config, backend="kubernetes"), "id -u; cat x.txt", user="nobody") == ["65534\nold"]


# --- refused before anything starts ----------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_refused_task_fails_alone(tmp_path: Path, base: str) -> None:
    if why := problem("namespace"):
        pytest.skip(why)
    tasks = tmp_path / "tasks"
    config = TOML.replace("mine/task:1", base)
    harbor_task(tasks, "good", **{"task.toml": config, "environment/x.txt": "old\n"})
    harbor_task(tasks, "refused", **{"task.toml": config, "environment/docker-compose.yaml": "services:\n  db: {}\n"})
    trials = harbor_trials(tasks, "nop", "local", tmp_path / "jobs")
    assert trials["good"]["verifier_result"]["rewards"] == {"reward": 0.0}
    assert trials["refused"]["exception_info"]["exception_type"] == "Unsupported"
    assert "services of Docker Compose" in trials["refused"]["exception_info"]["exception_message"]


@pytest.mark.parametrize(
    ("config", "arguments", "message"),
    [
        ({"gpus": 1}, {}, "does not support GPU"),
        ({"tpu": {"type": "v6e", "topology": "2x2"}}, {}, "does not support TPU"),
        ({"os": "windows"}, {}, "does not support Windows"),
        (
            {},
            {"network_policy": NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=["1.1.1.1"])},
            "network_mode='allowlist' with IPv4 address",
        ),
        (
            {},
            {"network_policy": NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=["db"])},
            "network: expected none, egress or a list of hosts.*: 'db' is not a host name",
        ),
        ({}, {"mounts": [{"type": "bind", "source": "/tmp", "target": "/x"}]}, "/tmp -> /x: only read-only folders"),
        ({}, {"mounts": [{"type": "volume", "source": "v", "target": "/x"}]}, "v -> /x: only read-only folders"),
        ({}, {"backend": "kubernetes"}, "builds no images"),
    ],
)
def test_what_a_backend_cannot_do_is_refused(
    tmp_path: Path, config: JsonObject, arguments: JsonObject, message: str
) -> None:
    environment = make(task(tmp_path, "base"), config, **arguments)  # an error here would end the whole job
    with pytest.raises((SweGymError, ValueError, RuntimeError), match=message):
        ask(environment)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bakend": "docker"}, "bakend"),
        ({"backend": "nothing"}, "backend"),
        ({"sandbox_options": {"tier": "process"}}, "tier"),
        ({"auto_mounting": True}, "does not support automatic host mounts"),
        ({"stream": True}, "does not support stream"),
    ],
)
def test_an_argument_for_all_trials_ends_the_job(tmp_path: Path, arguments: JsonObject, message: str) -> None:
    with pytest.raises((SweGymError, ValueError), match=message):
        make(task(tmp_path, "base"), **arguments)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"environment/docker-compose.yaml": "services: {}"}, "environment/docker-compose.yaml: services"),
        ({"environment/Dockerfile": "FROM a\nWORKDIR /app\nENTRYPOINT ['/x']"}, "ENTRYPOINT .*Harbor runs it"),
        ({"environment/Dockerfile": "FROM a\nWORKDIR /app\nRUN --mount=type=secret,id=k make"}, "needs BuildKit"),
        ({"environment/Dockerfile": "FROM a\nRUN make\n"}, r"environment\.workdir is not set"),
        ({"environment/Dockerfile": "FROM a\nWORKDIR /app\nFROM b\nWORKDIR /app"}, "stages need an engine"),
    ],
)
def test_folders_that_cannot_be_honoured_are_refused(tmp_path: Path, files: dict[str, str], message: str) -> None:
    with pytest.raises((TaskError, Unsupported), match=message):
        ask(make(task(tmp_path, "base", **files)))


@pytest.mark.parametrize("target", ["/etc", "/etc/passwd", ".."])
def test_links_out_of_the_folder_are_refused(tmp_path: Path, target: str) -> None:
    folder = task(tmp_path, "base")
    (folder / "environment/more").symlink_to(target)
    with pytest.raises(TaskError, match=r"leads out of the task's folder|a link to a folder above"):
        ask(make(folder))


def test_variables_of_the_machine_are_harbors_to_give(
    tmp_path: Path, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands see what Harbor resolves, and nothing else of this machine."""
    if why := problem("namespace"):
        pytest.skip(why)
    monkeypatch.setenv("MY_SECRET", "s3cret")
    environment = make(task(tmp_path, base), {"env": {"GIVEN": "${MY_SECRET}"}})
    said = ask(environment, "env | grep -c s3cret; echo $GIVEN")
    assert said == ["1\ns3cret"]
    with pytest.raises(Unsupported, match=r"variable A: \{workdir\} has another meaning"):
        ask(environment, "true", env={"A": "{workdir}"})


# --- its schema ------------------------------------------------------------------------------------------------

SEEN = {"steps", "artifacts", "mcp_servers", "tpu", "collect", "authors"}
"""Tables that are refused whole, or only describe."""


def fields(model: type[BaseModel], prefix: str = "") -> set[str]:
    """Return the dotted names of a model's fields, also of the tables in it."""
    found = set()
    for name, field in model.model_fields.items():
        found.add(f"{prefix}{name}")
        inside = [one for one in (field.annotation, *get_args(field.annotation)) if isinstance(one, type)]
        tables = [one for one in inside if issubclass(one, BaseModel)]
        if tables and name not in SEEN and f"{prefix}{name}" != "verifier.environment":
            found |= fields(tables[0], f"{prefix}{name}.")
    return found


def test_we_know_every_field_of_its_schema() -> None:
    """Each is honoured or refused: our models refuse what they do not know."""
    theirs, ours = fields(TaskConfig), fields(HarborConfig)
    assert {name for name in theirs - ours if not name.startswith("task.")} == set()
    assert {name for name in ours - theirs if not name.startswith("task.")} == set()


# --- killed -----------------------------------------------------------------------------------------------------

KILLED = """\
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from adapters.test_harbor import make

async def run():
    one = make(Path({folder!r}), backend={backend!r})
    await one.start(force_build=False)
    print(one._sandbox.id, flush=True)
    await one.exec("sleep 98765{number}")

asyncio.run(run())
"""


def test_nothing_is_left_when_harbor_is_killed(tmp_path: Path, base: str, backend: str) -> None:
    folder = task(tmp_path, base)
    number = os.getpid()
    program = KILLED.format(tests=str(Path(__file__).parents[1]), folder=str(folder), backend=backend, number=number)
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    sandbox = process.stdout.readline().strip()
    assert sandbox
    until(lambda: is_running(number))
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    process.stdout.close()
    until(lambda: not is_running(number))
    if backend == "docker":
        until(
            lambda: (
                not subprocess.run(
                    ["docker", "ps", "-aq", "--filter", f"name=swe-gym-{sandbox}"],
                    capture_output=True,
                    check=True,
                    timeout=30,
                ).stdout
            )
        )


def is_running(number: int) -> bool:
    """Whether the command of the killed program runs, in any namespace of this machine."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if file.read_bytes() == f"sleep\x0098765{number}\x00".encode():
                return True
    return False


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
