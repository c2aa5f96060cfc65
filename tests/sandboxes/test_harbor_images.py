"""Harbor's tasks in sandboxes from images: right work earns 1 and no work 0, in containers and without an engine."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from harbor_folders import NAME, SHAPES, START, TOML, harbor_task, script, submit

from swe_gym.cli.preflight import check_sandboxes
from swe_gym.curation.harbor import export_harbor
from swe_gym.curation.validation import validate
from swe_gym.envs.group import task_spec, verifier_spec
from swe_gym.envs.swe_env import SweEnv
from swe_gym.errors import FileError, MissingFile, NoPermission, SandboxStartError, TaskError, Unsupported, UsageError
from swe_gym.rollout.policies.gold import GoldPolicy
from swe_gym.sandboxes import Finding
from swe_gym.sandboxes.docker.build import build_image
from swe_gym.sandboxes.local import problem
from swe_gym.tasks import load_source
from swe_gym.types import JsonObject

pytest.importorskip("docker")


Files = dict[str, str | bytes | None]


def play(folder: Path, image: str, backend: str, command: str, files: Files) -> tuple[float, JsonObject]:
    """Play a task with an image: the one given, or those that are built above it."""
    added: Files = {f"environment/{name}": text for name, text in START.items()}
    harbor_task(folder, **{**added, **files})
    for file in folder.rglob("Dockerfile"):
        file.write_text(file.read_text().replace("{image}", image))
    given = {} if "environment/Dockerfile" in files else {"image": image}
    env = SweEnv("harbor", {"path": str(folder), **given}, backend=backend, tools=["bash", "submit"])
    try:
        env.reset()
        reward, _, _, info = submit(env, command)
        assert info["reward_valid"], env.stats["failure"]
        return reward, info
    finally:
        env.close()


WITHOUT_AN_ENGINE = [  # shapes that ask nothing of an image are played in local sandboxes by the tests of environments
    pytest.param(name, "local", marks=() if shape.image else pytest.mark.thorough) for name, shape in SHAPES.items()
]


@pytest.mark.parametrize(("name", "backend"), [*((name, "docker") for name in SHAPES), *WITHOUT_AN_ENGINE])
def test_every_shape_is_played_right_or_refused_by_name(
    tmp_path: Path, request: pytest.FixtureRequest, name: str, backend: str
) -> None:
    shape = SHAPES[name]
    if shape.refused:
        harbor_task(tmp_path, **shape.files)
        with pytest.raises(TaskError, match=re.escape(f": {shape.refused}")):
            SweEnv("harbor", {"path": str(tmp_path)}, backend=backend).reset()
        return
    if backend == "local" and (why := problem("namespace")):
        pytest.skip(why)
    if backend == "local" and name == "public network" and not shutil.which("pasta"):
        pytest.skip("pasta is not installed")
    image = request.getfixturevalue("stored_image" if backend == "local" else "docker_image")
    try:
        wrong = play(tmp_path / "wrong", image, backend, shape.wrong, dict(shape.files))
        right = play(tmp_path / "right", image, backend, shape.right, dict(shape.files))
        assert (wrong[0], right[0], right[1]["resolved"]) == (0.0, 1.0, True)
    finally:
        task = load_source("harbor", path=str(tmp_path / "wrong")).get(NAME)
        for spec in filter(None, (task_spec(task, {}), verifier_spec(task, {}))):
            if backend == "docker" and spec.build:
                request.getfixturevalue("engine").remove_image(spec.image, force=True)


def test_the_limits_of_the_task_are_those_of_the_container(tmp_path: Path, docker_image: str, engine: Any) -> None:
    toml = TOML + "cpus = 1.5\nmemory_mb = 300\nstorage_mb = 64\n[agent]\nuser = 0\n"
    harbor_task(tmp_path, **{"task.toml": toml})
    env = SweEnv("harbor", {"path": str(tmp_path), "image": docker_image}, backend="docker")
    try:
        env.reset()
        host = engine.inspect_container(f"swe-gym-{env.sandbox.id}")["HostConfig"]
        assert (host["Memory"], host["CpuQuota"] / host["CpuPeriod"]) == (300 << 20, 1.5)
        assert host["NetworkMode"] == "none"
        assert env.sandbox.exec("head -c 70M /dev/zero > /tmp/large").exit_code != 0
        assert env.sandbox.exec("id -u").text == "0\n"
    finally:
        env.close()


def test_a_public_network_is_the_engines(tmp_path: Path, docker_image: str, engine: Any) -> None:
    harbor_task(tmp_path, **{"task.toml": TOML.replace("no-network", "public")})
    env = SweEnv("harbor", {"path": str(tmp_path), "image": docker_image}, backend="docker")
    try:
        env.reset()
        assert engine.inspect_container(f"swe-gym-{env.sandbox.id}")["HostConfig"]["NetworkMode"] == "bridge"
        assert env.sandbox.capabilities.network == "egress"
    finally:
        env.close()


DOCKERFILE = """\
FROM {image}
ENV GREETING=hello
WORKDIR /srv
COPY data.bin given/
RUN echo old > x.txt && \\
    cp given/data.bin /opt/data.bin
"""


def build_task(folder: Path, image: str) -> None:
    """Write a task whose image must be built. The solution needs what the build makes."""
    wanted = 'cmp -s /opt/data.bin /tests/data.bin && [ "$(cat /srv/x.txt)" = "hello /srv" ]'
    toml = "[environment]\nnetwork_mode = 'no-network'\n"
    harbor_task(
        folder,
        **{
            "task.toml": toml,
            "environment/Dockerfile": DOCKERFILE.format(image=image),
            "environment/data.bin": b"\xff\x00",
            "tests/data.bin": b"\xff\x00",
            "tests/test.sh": script(f"if {wanted}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt"),
            "solution/solve.sh": "#!/bin/sh\necho $GREETING $PWD > x.txt\n",
        },
    )


def test_a_dockerfile_is_built_once(tmp_path: Path, docker_image: str, engine: Any) -> None:
    build_task(tmp_path, docker_image)
    source = load_source("harbor", path=str(tmp_path))
    name = source.get(NAME).image
    try:
        (record,) = validate(source, backend="docker", times=1)
        assert (record.status, record.gold, record.empty) == ("valid", (True,), (False,)), record.reason
        made = engine.inspect_image(name)
        assert build_image(task_spec(source.get(NAME), {}), "unused") == name
        assert engine.inspect_image(name)["Id"] == made["Id"]
    finally:
        engine.remove_image(name, force=True)


def test_a_build_that_fails_says_why(tmp_path: Path, docker_image: str) -> None:
    files = {"environment/Dockerfile": f"FROM {docker_image}\nWORKDIR /srv\nRUN echo because >&2; exit 3\n"}
    harbor_task(tmp_path, **{"task.toml": "", **files})
    env = SweEnv("harbor", {"path": str(tmp_path)}, backend="docker")
    with pytest.raises(SandboxStartError, match=r"(?s)environment/Dockerfile was not built.*because"):
        env.reset()


def test_a_backend_that_builds_no_image_refuses_it(tmp_path: Path) -> None:
    files = {"environment/Dockerfile": "FROM a\nRUN make\nWORKDIR /srv\n"}
    harbor_task(tmp_path, **{"task.toml": "[environment]\nallow_internet = false\n", **files})
    env = SweEnv("harbor", {"path": str(tmp_path)}, backend="kubernetes")
    with pytest.raises(Unsupported, match=r"builds no images, and the task needs one of .*/environment"):
        env.reset()


def test_the_check_before_a_run_knows_what_is_built(tmp_path: Path, docker_image: str) -> None:
    build_task(tmp_path, docker_image)
    tasks = [load_source("harbor", path=str(tmp_path)).get(NAME)]
    assert check_sandboxes("docker", {}, tasks) == [Finding("images", True, "0 present, 1 to build")]
    if problem("namespace"):
        return
    assert check_sandboxes("local", {}, tasks) == [Finding("images", True, "0 present, 0 to fetch, 1 to build")]
    with (tmp_path / NAME / "environment/Dockerfile").open("a") as file:
        file.write("COPY --from=builder a b\n")
    tasks = [load_source("harbor", path=str(tmp_path)).get(NAME)]
    with pytest.raises(UsageError, match="COPY --from=builder a b: --from=builder needs an engine"):
        check_sandboxes("local", {}, tasks)


def test_a_dockerfile_is_built_without_an_engine(tmp_path: Path, stored_image: str) -> None:
    if why := problem("namespace"):
        pytest.skip(why)
    build_task(tmp_path, stored_image)
    (record,) = validate(load_source("harbor", path=str(tmp_path)), backend="local", times=1)
    assert (record.status, record.gold, record.empty) == ("valid", (True,), (False,)), record.reason


def test_exported_tasks_are_judged_as_here(tmp_path: Path, docker_image: str, engine: Any) -> None:
    toy, micro = load_source("toy"), load_source("micro")
    tasks = [toy.get(toy.ids()[0]), toy.get(toy.ids()[1]), micro.get(micro.ids()[0])]
    export_harbor(tasks, tmp_path / "out", base=docker_image)
    source = load_source("harbor", path=str(tmp_path / "out"))
    try:
        records = validate(source, backend="docker", times=1, workers=2)
        assert [(one.status, one.gold, one.empty) for one in records] == [("valid", (True,), (False,))] * 3, records
    finally:
        for task_id in source.ids():
            engine.remove_image(source.get(task_id).image, force=True)


@pytest.mark.thorough
def test_all_bundled_tasks_have_the_same_verdicts_after_a_round_trip(tmp_path: Path, stored_image: str) -> None:
    if why := problem("namespace"):
        pytest.skip(why)
    toy = load_source("toy")
    export_harbor([toy.get(task_id) for task_id in toy.ids()], tmp_path / "out", base=stored_image)
    again = load_source("harbor", path=str(tmp_path / "out"))
    verdicts = [
        {one.task_id: (one.gold, one.empty) for one in validate(source, backend="local", times=1, workers=2)}
        for source in (toy, again)
    ]
    assert verdicts[0] == verdicts[1]
    assert set(verdicts[0].values()) == {((True,), (False,))}


def test_a_graded_reward_and_a_solution_in_a_container(tmp_path: Path, docker_image: str) -> None:
    graded = script('echo "0.$(wc -l < x.txt)" > /logs/verifier/reward.txt')
    reward, info = play(tmp_path, docker_image, "docker", "seq 5 > x.txt", {"tests/test.sh": graded})
    assert (reward, info["resolved"]) == (0.5, False)
    harbor_task(tmp_path / "valid", **{"environment/x.txt": "old\n", "solution/patch.diff": "", "tests/run": b"\x00"})
    source = load_source("harbor", path=str(tmp_path / "valid"), image=docker_image)
    (record,) = validate(source, [NAME], backend="docker", times=1)
    assert (record.status, record.gold, record.empty) == ("valid", (True,), (False,)), record.reason


@pytest.mark.parametrize("backend", ["docker", "local"])
def test_the_script_runs_as_another_user(tmp_path: Path, docker_image: str, stored_image: str, backend: str) -> None:
    if backend == "local" and (why := problem("namespace")):
        pytest.skip(why)
    image = stored_image if backend == "local" else docker_image
    as_nobody = script('[ "$(id -un) $HOME" = "nobody /nonexistent" ] && echo 1 > /logs/verifier/reward.txt')
    files: dict[str, str | bytes] = {"task.toml": TOML + "[verifier]\nuser = 'nobody'\n", "tests/test.sh": as_nobody}
    assert play(tmp_path, image, backend, "true", files)[0] == 1.0
    with pytest.raises(TaskError, match=r"verifier\.user = 'no-such': the image has no user"):
        play(tmp_path, image, backend, "true", {"task.toml": TOML + "[verifier]\nuser = 'no-such'\n"})


@pytest.mark.parametrize("backend", ["docker", "local"])
def test_commands_terminals_and_files_of_the_policy_have_the_rights_of_its_user(
    tmp_path: Path, docker_image: str, stored_image: str, backend: str
) -> None:
    if backend == "local" and (why := problem("namespace")):
        pytest.skip(why)
    image = stored_image if backend == "local" else docker_image
    toml = TOML + "[agent]\nuser = 'nobody'\n"
    harbor_task(tmp_path, **{"task.toml": toml, "environment/x.txt": "old\n"})
    env = SweEnv("harbor", {"path": str(tmp_path), "image": image}, backend=backend)
    try:
        env.reset()
        box, root = env.sandbox, env.sandbox.privileged
        assert root.exec("install -d -o nobody /given && install -m 600 /dev/null /secret").ok
        assert box.exec("id -un; id -Gn; echo $HOME; pwd").text.split() == ["nobody", "nogroup", "/nonexistent", "/app"]
        assert box.exec("echo $HOME", env={"HOME": "/tmp"}).text == "/tmp\n"
        assert box.exec(f"id -un; echo {'x' * 200_000} | wc -c").text.split() == ["nobody", "200001"]
        assert (box.exec(["no-such"]).exit_code, box.exec(["/etc"]).exit_code) == (127, 126)
        assert not box.exec("cat /secret").ok
        for work in (
            lambda: box.read_file("/secret"),
            lambda: box.write_file("/secret", b""),
            lambda: box.write_file("/etc/new", b""),
            lambda: box.put_tar("/etc/new", root.get_tar("/given")),
        ):
            with pytest.raises(NoPermission):
                work()
        with pytest.raises(MissingFile):
            box.read_file("/none")
        with pytest.raises(FileError, match="larger than 3 bytes"):
            box.read_file("x.txt", max_bytes=3)
        data = bytes(range(256)) * 1000 + b"\n\n"
        box.write_file("/given/deep/new", data, mode=0o640)
        assert box.read_file("/given/deep/new") == root.read_file("/given/deep/new") == data
        assert root.exec("stat -c '%U %a' /given/deep/new").text == "nobody 640\n"
        box.put_tar("/given/copy", box.get_tar("/given/deep"))
        assert {name: entry.size for name, entry in box.manifest("/given/copy").items()} == {"new": len(data)}
        terminal = box.open_pty("id -un")
        assert terminal.read_until(b"nobody", timeout=30)[1]
        observation, *_ = env.step('{"name": "bash", "arguments": {"command": "id -un"}}')
        assert observation.startswith("nobody")
    finally:
        env.close()
    with pytest.raises(TaskError, match=r"agent\.user = 'no-such': the image has no user"):
        play(tmp_path, image, backend, "true", {"task.toml": TOML + "[agent]\nuser = 'no-such'\n"})


@pytest.mark.parametrize("backend", ["docker", "local"])
def test_solutions_of_steps_run_as_the_user_of_each_step(
    tmp_path: Path, docker_image: str, stored_image: str, backend: str
) -> None:
    if backend == "local" and (why := problem("namespace")):
        pytest.skip(why)
    image = stored_image if backend == "local" else docker_image
    folder: Files = {
        "task.toml": TOML + "[agent]\nuser = 'nobody'\n[[steps]]\nname = 'one'\n[[steps]]\nname = 'two'\n"
        "agent = {user = 'root'}\n",
        "instruction.md": None,
        "tests/test.sh": None,
        "solution/solve.sh": None,
    }
    for name, wanted in (("one", "700 nobody one"), ("two", "755 root two")):
        judge = f'[ "$(stat -c %a /tests) $(cat /tmp/{name})" = "{wanted}" ] && echo 1 > /logs/verifier/reward.txt'
        folder[f"steps/{name}/instruction.md"] = "Write a file.\n"
        folder[f"steps/{name}/tests/test.sh"] = script(judge)
        folder[f"steps/{name}/solution/solve.sh"] = script(f'echo "$(id -un) {name}" > /tmp/{name}')
    harbor_task(tmp_path, **{**folder, "environment/x.txt": "old\n"})
    env = SweEnv("harbor", {"path": str(tmp_path), "image": image}, backend=backend, tools=["bash", "submit"])
    try:
        policy = GoldPolicy(env)
        observation, info = env.reset()
        policy.reset(info)
        ended = False
        while not ended:
            observation, reward, ended, truncated, info = env.step(policy.act(observation))
            assert not truncated, env.stats["failure"]
        assert (reward, info["resolved"]) == (1.0, True), env.verdict
    finally:
        env.close()


OWN_PATH = "PATH = '/own:/usr/local/bin:/usr/bin:/bin'\n"
FAKE = "#!/bin/sh\nid -un >> /own/ran\nexit 3\n"


@pytest.mark.parametrize("backend", ["docker", "local"])
def test_programs_of_the_policy_on_the_path_run_with_its_rights_alone(
    tmp_path: Path, docker_image: str, stored_image: str, backend: str
) -> None:
    if backend == "local" and (why := problem("namespace")):
        pytest.skip(why)
    image = stored_image if backend == "local" else docker_image
    toml = TOML + f"[environment.env]\n{OWN_PATH}[agent]\nuser = 'nobody'\n[verifier]\nuser = 'nobody'\n"
    judge = script('[ "$(id -un) $(sort -u /own/ran)" = "nobody nobody" ] && echo 1 > /logs/verifier/reward.txt')
    harbor_task(tmp_path, **{"task.toml": toml, "tests/test.sh": judge})
    env = SweEnv(
        "harbor", {"path": str(tmp_path), "image": image}, backend=backend, sandbox_options={"activate": False}
    )
    try:
        env.reset()
        box = env.sandbox
        assert box.privileged.exec("install -d -o nobody /own").ok
        for name in ("python3", "python", "rm", "chmod"):
            box.write_file(f"/own/{name}", FAKE.encode(), mode=0o755)
        assert box.exec("python3").exit_code == 3
        assert box.exec("id -un").text == "nobody\n"
        assert box.read_file("/own/ran") == b"nobody\n"
        assert set(box.manifest("/own")) == {"python3", "python", "rm", "chmod", "ran"}
        assert box.open_pty("id -un").read_until(b"nobody", timeout=30)[1]
        assert submit(env, "true")[0] == 1.0, env.stats["failure"]
    finally:
        env.close()


@pytest.mark.parametrize("backend", ["docker", "local"])
def test_the_users_of_a_task_may_be_that_of_its_image(
    tmp_path: Path, docker_image: str, stored_image: str, backend: str
) -> None:
    if backend == "local" and (why := problem("namespace")):
        pytest.skip(why)
    image = stored_image if backend == "local" else docker_image
    folders = "/app /logs /tests /solution"
    files: Files = {
        "task.toml": "[environment]\nnetwork_mode = 'no-network'\n[agent]\nuser = 'nobody'\n[verifier]\nuser = 65534\n",
        "environment/Dockerfile": f"FROM {{image}}\nRUN mkdir -p {folders} && chown -R nobody {folders}\n"
        "WORKDIR /app\nUSER nobody\n",
    }
    for user in ("nobody", "daemon"):  # any other than the image's works too: the sandbox starts as root
        files["task.toml"] = files["task.toml"].replace("'nobody'", f"'{user}'")
        check = f'[ "$(id -un) $(cat /tmp/x.txt)" = "nobody {user}" ] && echo 1 > /logs/verifier/reward.txt'
        files["tests/test.sh"] = script(check)
        assert play(tmp_path, image, backend, "id -un > /tmp/x.txt", files)[0] == 1.0
