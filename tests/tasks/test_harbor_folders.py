"""Harbor's folders: what is read, and what is refused by name."""

import os
import re
from pathlib import Path

import pytest
from harbor_folders import NAME, SOLVE, TEST, TOML, harbor_task

from swe_gym.errors import TaskError, UsageError
from swe_gym.grading.in_place import judging_seconds
from swe_gym.task_folder import LARGEST_TREE, MOST_FILES
from swe_gym.tasks import load_source
from swe_gym.tasks.file import FileSource, write_tasks
from swe_gym.types import FileContent, ImageBuild, RewardScript, SandboxNeeds, Task

ENVIRONMENT = TOML
OLD = """\
version = "1.0"
[metadata]
author_name = "A"
difficulty = "easy"
category = "programming"
tags = ["python"]
[verifier]
timeout_sec = 120.0
[agent]
timeout_sec = 900.0
[environment]
docker_image = "mine/task:1"
build_timeout_sec = 300.0
cpus = 1
memory = "2G"
storage = "10G"
"""


def read(
    tmp_path: Path, toml: str = TOML, *, options: dict[str, object] | None = None, **files: str | bytes | None
) -> Task:
    harbor_task(tmp_path, **{"task.toml": toml, **files})
    return load_source("harbor", path=str(tmp_path), **(options or {})).get(NAME)


def script_of(task: Task) -> RewardScript:
    assert task.oracle.in_place is not None
    return task.oracle.in_place


def test_folders_are_tasks(tmp_path: Path) -> None:
    harbor_task(tmp_path, "one", **{"task.toml": OLD, "environment/Dockerfile": "FROM x\nWORKDIR /repo\n"})
    harbor_task(tmp_path / "deeper", "two")
    source = load_source("harbor", path=str(tmp_path))
    assert set(source.ids()) == {"one", "two"}
    task = source.get("one")
    assert (task.image, task.workdir, task.difficulty, task.tags) == ("mine/task:1", "/repo", "easy", ("python",))
    assert (task.problem_statement, task.metadata) == ("Make x new.", {"category": "programming"})
    assert (task.oracle.timeout, task.time_limit) == (120.0, 900.0)
    assert task.needs == SandboxNeeds(cpus=1, memory_mb=2048, disk_mb=10240, network="egress", activate=False)
    assert task.oracle.gold_patch.endswith("-old\n+new\n")
    assert task.oracle.has_solution
    assert source.get("two").oracle.grader == "reward"


def test_tasks_survive_files_with_their_binary_files(tmp_path: Path) -> None:
    task = read(tmp_path, **{"tests/data.bin": b"\xff\x00secret", "environment/start.bin": b"\xfe"})
    assert script_of(task).files["/tests/data.bin"] == FileContent(data=b"\xff\x00secret", mode=0o644)
    assert task.needs.files == {"start.bin": FileContent(data=b"\xfe")}
    assert Task.model_validate_json(task.model_dump_json()) == task
    assert "secret" not in repr(task)
    for suffix in ("jsonl", "parquet"):
        write_tasks([task], tmp_path / f"tasks.{suffix}")
        assert FileSource(str(tmp_path / f"tasks.{suffix}")).get(NAME) == task


def test_modes_and_links_inside_the_folder_are_kept(tmp_path: Path) -> None:
    folder = harbor_task(tmp_path, **{"tests/run.py": "pass\n", "tests/lib/a.txt": "a\n"})
    (folder / "tests/run.py").chmod(0o755)
    (folder / "tests/same.txt").symlink_to("lib/a.txt")
    (folder / "tests/more").symlink_to("lib")
    files = script_of(load_source("harbor", path=str(tmp_path)).get(NAME)).files
    assert files["/tests/run.py"].mode == 0o755
    assert files["/tests/same.txt"].data == files["/tests/more/a.txt"].data == b"a\n"


def test_canary_lines_are_not_shown(tmp_path: Path) -> None:
    canary = "<!-- harbor-canary GUID 1 -->\n# canary of b\n\nMake x new.\n# canary stays\n"
    assert read(tmp_path, **{"instruction.md": canary}).problem_statement == "Make x new.\n# canary stays"


@pytest.mark.parametrize(
    ("dockerfile", "image", "workdir"),
    [
        ("# canary\nFROM --platform=linux/amd64 python:3.12\n\nWORKDIR /app\n", "python:3.12", "/app"),
        ("FROM python:3.12 AS base\nWORKDIR /a\nWORKDIR b/../c\n", "python:3.12", "/a/c"),
        ("FROM python:3.12\n", "python:3.12", None),
        ("FROM python:3.12\nWORKDIR $HOME\n", "python:3.12", None),
        ("FROM python:3.12 AS base\nFROM debian\nWORKDIR /app\n", None, "/app"),
        ("FROM a\nRUN make \\\n  # why\n  all\nWORKDIR /app\n", None, "/app"),
        ("ARG BASE\nFROM $BASE\nWORKDIR /app\n", None, "/app"),
        ("FROM $BASE\nWORKDIR /app\n", None, "/app"),
        ("FROM a\nRUN cat <<EOF\nWORKDIR /b\nEOF\n", None, None),
        ("FROM\n", None, None),
        ("", None, None),
    ],
)
def test_plain_dockerfiles_name_image_and_workdir(
    tmp_path: Path, dockerfile: str, image: str | None, workdir: str | None
) -> None:
    files: dict[str, str | bytes] = {"environment/Dockerfile": dockerfile}
    options = {"image": "r/{task_id}:2", "workdir": "/w"}
    task = read(tmp_path, "", options=options, **files)
    assert (task.image, task.workdir, task.needs.build) == (f"r/{NAME}:2", "/w", None)
    if workdir is None:
        with pytest.raises(TaskError, match=r"environment\.workdir is not set.* workdir=|no image: set |several lines"):
            read(tmp_path, "", **files)
        return
    task = read(tmp_path, "", **files)
    assert task.workdir == workdir
    assert (task.needs.build is None) is (image is not None)
    if image is None:
        assert str(task.image).startswith(f"swe-gym/harbor-{NAME}:")
        assert task.needs.build == ImageBuild(context=str(tmp_path / NAME / "environment"), timeout=600)
    else:
        assert task.image == image


def test_the_name_of_a_built_image_stands_for_its_files(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"environment/Dockerfile": "FROM a\nCOPY x.bin .\nWORKDIR /app\n"}
    first = read(tmp_path, "", **files, **{"environment/x.bin": b"\xff"})
    assert read(tmp_path / "again", "", **files, **{"environment/x.bin": b"\xff"}).image == first.image
    assert read(tmp_path / "other", "", **files, **{"environment/x.bin": b"\xfe"}).image != first.image


@pytest.mark.parametrize(
    ("step", "user"),
    [
        ("USER nobody", "nobody"),
        ("USER nobody:sys", "nobody:sys"),
        ("USER 65534:3", "65534:3"),
        ("USER root:sys", None),
        ("USER $NAME", None),
    ],
)
def test_the_policy_is_the_user_of_the_dockerfile(tmp_path: Path, step: str, user: str | None) -> None:
    task = read(tmp_path, "", **{"environment/Dockerfile": f"FROM a\nRUN b\nWORKDIR /app\n{step}\n"})
    assert (task.needs.user, script_of(task).policy_user) == ("root" if user else None, user)


FETCHES = "an engine fetches addresses outside of any sandbox"


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("ENTRYPOINT ['/start']", "Harbor runs it at the start"),
        ("HEALTHCHECK CMD true", "Harbor runs it at the start"),
        ("RUN --mount=type=secret,id=k make", "--mount=type=secret,id=k needs BuildKit"),
        ("COPY --chmod=755 a b", "--chmod=755 needs BuildKit"),
        ("RUN cat <<EOF > x\nWORKDIR /y\nEOF", "text of several lines"),
        ("RUN cat 0<<CMD > x\nWORKDIR /y\nCMD", "text of several lines"),
        ("ADD http://127.0.0.1:8080/ key", FETCHES),
        (r"ADD http:\//127.0.0.1:8080/ key", FETCHES),
        ("ADD http:'//'127.0.0.1:8080/ key", FETCHES),
        (r'ADD ["http:\/\/127.0.0.1\/", "key"]', FETCHES),
        ('ADD ["a", "b\thttp://127.0.0.1/\tkey"]', FETCHES),  # no JSON, so words
        ("ADD git@example.org:o/r.git key", FETCHES),
        ("ADD --chown=a plain http://127.0.0.1:8080/ key", FETCHES),
        ("ADD $FROM_HERE key", FETCHES),
        ("ADD caf\u00e9 key", FETCHES),
        ("ONBUILD ADD http://127.0.0.1:8080/ key", "it runs in another build"),
        ("RUN cat <<my-eof > x\nWORKDIR /y\nmy-eof", "text of several lines"),
        ("SUMMON demons", "unknown step"),
    ],
)
def test_steps_that_cannot_be_built_are_refused(tmp_path: Path, step: str, message: str) -> None:
    files: dict[str, str | bytes] = {"environment/Dockerfile": f"FROM a\nWORKDIR /app\n{step}\n"}
    toml = "[environment]\nworkdir = '/app'\n"
    with pytest.raises(TaskError, match=rf"environment/Dockerfile: {step.split()[0]} .*{message}.*image="):
        read(tmp_path, toml, **files)
    assert read(tmp_path, toml, options={"image": "i"}, **files).image == "i"
    if "start" in message:  # the prebuilt image has it too
        with pytest.raises(TaskError, match=message):
            read(tmp_path, TOML, **files)
    else:
        assert read(tmp_path, TOML, **files).image == "mine/task:1"


@pytest.mark.parametrize(
    "step",
    [
        "ADD . $APP_HOME",
        "ADD --chown=1:1 a.tar.gz src/*.py /srv/",
        'ADD ["a.tar.gz", "/srv/my files"]',
        "# escape = the way out\nRUN a \\\n# escape=x\n&& b",
    ],
)
def test_steps_that_can_be_built_are_taken(tmp_path: Path, step: str) -> None:
    files: dict[str, str | bytes] = {
        "environment/Dockerfile": f"# A comment.\n# escape=x\nFROM a\nWORKDIR /app\n{step}\n"
    }
    assert read(tmp_path, "", **files).needs.build


@pytest.mark.parametrize(
    "comment", ["# escape=`", "#ESCAPE = `", " # escape=x", "# syntax=a/b:1\n# escape=`", "# escape=\\`"]
)
def test_lines_that_another_character_continues_are_refused(tmp_path: Path, comment: str) -> None:
    """A backslash at the end of a line would hide the next step from us, and only from us."""
    files: dict[str, str | bytes] = {"environment/Dockerfile": f"{comment}\nFROM a\nWORKDIR /app\\\nRUN b\n"}
    with pytest.raises(TaskError, match="only the backslash can continue lines"):
        read(tmp_path, "[environment]\nworkdir = '/app'\n", **files)
    assert read(tmp_path, TOML, **files).workdir == "/app"


# --- fields -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("toml", "field", "expected"),
    [
        ("cpus = 2.5", "cpus", 2.5),
        ("memory_mb = 512", "memory_mb", 512),
        ("storage_mb = 100", "disk_mb", 100),
        ("gpus = 0", "user", None),
        ('os = "Linux"', "user", None),
        ("[agent]\nuser = 0\n[verifier]\nuser = 'root'", "user", "root"),
        ("[verifier]\nnetwork_mode = 'no-network'\nenvironment_mode = 'shared'", "network", "none"),
        ("", "network", "none"),
    ],
)
def test_needs_are_honoured(tmp_path: Path, toml: str, field: str, expected: object) -> None:
    assert getattr(read(tmp_path, TOML + toml).needs, field) == expected


@pytest.mark.parametrize(
    ("toml", "network"),
    [
        ("", "egress"),
        ("network_mode = 'public'", "egress"),
        ("allow_internet = false", "none"),
        ("allow_internet = true", "egress"),
        ("allow_internet = false\nnetwork_mode = 'public'", "egress"),
        ("network_mode = 'allowlist'\nallowed_hosts = ['PyPI.org', '*.debian.org']", ("pypi.org", "*.debian.org")),
        ("network_mode = 'allowlist'\nallowed_hosts = []", "none"),
        ("network_mode = 'allowlist'", "none"),
        (
            "network_mode = 'allowlist'\nallowed_hosts = ['a.org']\n"
            "[agent]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['a.org']",
            ("a.org",),
        ),
        (
            "network_mode = 'allowlist'\nallowed_hosts = ['a.org', 'b.org']\n"
            "[agent]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['b.org', 'a.org', 'B.org']",
            ("b.org", "a.org", "b.org"),
        ),
        (
            "[verifier]\nenvironment_mode = 'separate'\n[agent]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['a.org']",
            ("a.org",),
        ),
    ],
)
def test_the_network_is_that_of_the_task(tmp_path: Path, toml: str, network: str | tuple[str, ...]) -> None:
    base = "[environment]\ndocker_image = 'i'\nworkdir = '/app'\n"
    assert read(tmp_path, base + toml).needs.network == network


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("gpus = 1", r"environment\.gpus = 1: sandboxes have no GPU"),
        ("gpu_types = ['H100']", r"environment\.gpu_types = "),
        ("tpu = {type = 'v6e', topology = '2x2'}", r"environment\.tpu = "),
        ("os = 'windows'", r"environment\.os = 'windows': only Linux"),
        ("skills_dir = '/skills'", r"environment\.skills_dir = '/skills'"),
        ("healthcheck = {interval_sec = 1}", r"environment\.healthcheck\.command = .*: Field required"),
        ("healthcheck = {command = 'a', retries = 0}", r"environment\.healthcheck\.retries = 0: "),
        ("healthcheck = {command = 'a', timeout_sec = inf}", r"environment\.healthcheck\.timeout_sec = inf: "),
        (
            "[[environment.mcp_servers]]\nname = 'm'\ntransport = 'stdio'\ncommand = 'touch /m'",
            r"mcp_servers = \['m'\]",
        ),
        ("allowed_hosts = ['pypi.org']", r"environment = .*: allowed_hosts needs network_mode = 'allowlist'"),
        ("cpus = 0", r"environment\.cpus = 0: "),
        ("cpus = nan", r"environment\.cpus = nan: "),
        ("memory_mb = -1", r"environment\.memory_mb = -1: "),
        ("memory = '2X'", r'environment = .*: not a size such as "2G"'),
        ("memory = '1G'\nmemory_mb = 2", r"memory and memory_mb contradict each other"),
        ("work_dir = '/x'", r"environment\.work_dir = '/x': unknown field"),
        ("[agent]\nnetwork_mode = 'public'", r"agent\.network_mode = 'public': a sandbox keeps its network"),
        (
            "[agent]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['a.org']",
            r"agent\.network_mode = 'allowlist': a sandbox keeps its network.*allowed_hosts",
        ),
        ("[agent]\ntimeout_sec = 0", r"agent\.timeout_sec = 0"),
        ("[verifier]\nnetwork_mode = 'public'", r"verifier\.network_mode = 'public'"),
        (
            "[verifier]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['a.org']",
            r"verifier\.network_mode = 'allowlist': a sandbox keeps its network.*allowed_hosts",
        ),
        (
            "[verifier]\nenvironment_mode = 'shared'\n[verifier.environment]\ncpus = 1",
            r"verifier = .*'shared' contradicts",
        ),
        ("[verifier.environment]\ngpus = 1", r"verifier\.environment\.gpus = 1: sandboxes have no GPU"),
        ("[verifier.environment]\nos = 'windows'", r"verifier\.environment\.os = 'windows': only Linux"),
        (
            "[verifier.environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['::1']",
            r"verifier\.environment\.allowed_hosts\.0 = '::1': not a host",
        ),
        ("[verifier.environment]\nwork_dir = '/x'", r"verifier\.environment\.work_dir = '/x': unknown field"),
        (
            "[verifier.environment]\nhealthcheck = {command = 'a'}",
            r"verifier\.environment\.healthcheck = True: Harbor never runs it",
        ),
        (
            "[verifier.environment]\n[agent]\nnetwork_mode = 'public'\n[[verifier.collect]]\ncommand = 'dump'",
            r"agent\.network_mode = 'public': a sandbox keeps its network",
        ),
        (
            "[[verifier.collect]]\ncommand = 'dump'\nservice = 'db'",
            r"verifier\.collect\.0\.service = 'db': services of",
        ),
        ("[[verifier.collect]]\ncommand = 'dump'\ntimeout_sec = 0", r"verifier\.collect\.0\.timeout_sec = 0: "),
        ("[[verifier.collect]]\nservice = 'main'", r"verifier\.collect\.0\.command = .*: Field required"),
        ("[rewards]\nmean = true", r"rewards = .*: unknown field"),
        ("[verifier]\ntimeout_sec = 'long'", r"verifier\.timeout_sec = 'long': "),
        ("[verifier]\ntimeout_sec = inf", r"verifier\.timeout_sec = inf: "),
        ("[verifier.env]\nA = 1", r"verifier\.env\.A = 1: "),
        (
            "[[steps]]\nname = 'a'\n[[steps]]\nname = 'b'\nagent = {user = 'root'}",
            r"steps\.0\.agent\.user = .the image's.: another step's is root",
        ),
        ("[[steps]]\nname = '../a'", r"steps\.0\.name = '\.\./a': "),
        ("[[steps]]\nname = 'a'\n[[steps]]\nname = 'a'", r"steps = 'a': two steps have this name"),
        ("[[steps]]\nname = 'a'\nmin_reward = {style = 1}", r"steps\.0\.min_reward = \['style'\]: only the value"),
        ("[[steps]]\nname = 'a'\n[steps.agent]\nnetwork_mode = 'public'", r"steps\.0\.agent\.network_mode = 'public'"),
        (
            "[[steps]]\nname = 'a'\n[verifier]\nenvironment_mode = 'separate'",
            r"verifier\.environment_mode = 'separate'",
        ),
        ("multi_step_reward_strategy = 'best'", r"environment\.multi_step_reward_strategy = "),
        ("[[artifacts]]\nsource = '/app'\nservice = 'db'", r"artifacts\.0\.service = 'db': services of"),
        ("[[artifacts]]\nsource = 'app'", r"artifacts\.0\.source = 'app': "),
        ("[[artifacts]]\nsource = '/app/../etc'", r"artifacts\.0\.source = '/app/\.\./etc': a path with"),
        ("[[artifacts]]\nsource = '/'", r"artifacts\.0\.source = '/': the whole root folder"),
        ("[[artifacts]]\nfrom = '/app'", r"artifacts\.0\.source = .*: Field required"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(tmp_path: Path, toml: str, message: str) -> None:
    with pytest.raises(TaskError, match=rf"{NAME}/task\.toml: {message}" if message[0] != "m" else message):
        read(tmp_path, TOML + toml)


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("nonsense", "task.toml: "),
        ("environment = 'docker'\n", "task.toml: environment = 'docker': "),
        ("schema_version = '2.0'\n", r"schema_version = '2\.0': known: 1\.0, "),
        ("version = 1.0\n", r"schema_version = 1\.0: "),
        *(
            (
                f"[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['{host}']\n",
                r"environment\.allowed_hosts\.0 = '.*': not a host name such as",
            )
            for host in ("10.0.0.0/8", "1.1.1.1", "2606:4700::1", "http://pypi.org", "pypi.org:443", "db", "*")
        ),
        (
            "[agent]\nnetwork_mode = 'public'\nallowed_hosts = ['a.org']\n",
            "agent = .*: allowed_hosts needs network_mode",
        ),
        ("a = " + "[" * 100_000, "task.toml: "),
    ],
)
def test_files_that_are_no_tasks_are_refused(tmp_path: Path, toml: str, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        read(tmp_path, toml)


@pytest.mark.parametrize("name", ["environment/docker-compose.yaml", "trajectory.json", "tests/.harborignore"])
def test_files_that_change_what_harbor_runs_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(TaskError, match=name):
        read(tmp_path, **{name: ""})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (
            "services:\n  main:\n    image: a\n  db:\n    image: b\n    healthcheck:\n      test: x\nvolumes:\n  v:\n",
            "main, db",
        ),
        (
            "version: '3'\nservices: # all\n    # first\n    'web':\n        a: 1\n\n    cache-1:\n        image: c\n",
            "web, cache-1",
        ),
        ("services: {main: {}}\n", "none"),
        ("nothing", "none"),
    ],
)
@pytest.mark.parametrize("folder", ["environment", "tests"])
def test_services_are_refused_by_their_names(tmp_path: Path, folder: str, text: str, names: str) -> None:
    name = f"{folder}/docker-compose.yaml"
    with pytest.raises(TaskError, match=re.escape(f"{name}: services of Docker Compose ({names}) are not supported")):
        read(tmp_path, SEPARATE, **{name: text})


SEPARATE = TOML + "[verifier]\nenvironment_mode = 'separate'\n"


def read_artifacts(tmp_path: Path, artifacts: str) -> list[str]:
    verifier = script_of(read(tmp_path, SEPARATE.replace("[env", f"artifacts = {artifacts}\n[env", 1))).verifier
    assert verifier is not None
    return [one.path for one in verifier.artifacts]


@pytest.mark.parametrize(
    ("artifacts", "paths"),
    [
        ("[]", ["/logs/artifacts"]),
        ("['/app/out/', '/srv/x']", ["/logs/artifacts", "/app/out", "/srv/x"]),
        ("['/srv', '/logs/artifacts']", ["/srv", "/logs/artifacts"]),
        ("['/app', '/app/out', '/app', '/logs/artifacts/a']", ["/app", "/logs/artifacts"]),
        ("[{source = '/a', destination = 'one'}, {source = '/b/one'}]", ["/logs/artifacts", "/a", "/b/one"]),
    ],
)
def test_artifacts_are_those_that_harbor_hands_over(tmp_path: Path, artifacts: str, paths: list[str]) -> None:
    assert sorted(read_artifacts(tmp_path, artifacts)) == sorted(paths)


@pytest.mark.parametrize(
    "artifacts",
    [
        "['/app/out', '/app']",
        "['/logs']",
        "[{source = '/app', exclude = ['x']}, '/app/out']",
        "[{source = '/a', destination = 'b'}, '/b']",
        "[{source = '/a', exclude = ['x']}, '/a']",
    ],
)
def test_artifacts_that_overlap_are_refused(tmp_path: Path, artifacts: str) -> None:
    """Harbor keeps the first of them, and hands over parts of it as the second."""
    with pytest.raises(TaskError, match=r"artifacts = .*overlap, and Harbor keeps only the first"):
        read_artifacts(tmp_path, artifacts)


def test_a_verifiers_own_image_holds_the_tests(tmp_path: Path) -> None:
    toml = SEPARATE + "[verifier.environment]\ndocker_image = 'mine/verifier:1'\n"
    with pytest.raises(
        TaskError, match=r"verifier\.environment\.workdir is not set, and no WORKDIR of tests/Dockerfile"
    ):
        read(tmp_path, toml)
    script = script_of(read(tmp_path, toml + "workdir = '/tests'\n", **{"tests/test.sh": None}))
    assert (script.verifier.image, script.files) == ("mine/verifier:1", {})  # type: ignore[union-attr]
    built = read(tmp_path / "built", SEPARATE, **{"tests/Dockerfile": "FROM a\nWORKDIR /t\nCOPY . /tests\n"})
    verifier = script_of(built).verifier
    assert verifier is not None
    assert verifier.image.startswith(f"swe-gym/harbor-{NAME}-verifier:")
    assert verifier.needs.build == ImageBuild(context=str(tmp_path / "built" / NAME / "tests"), timeout=600)
    assert judging_seconds(built) == judging_seconds(built.in_image("i")) + 600
    assert script_of(built.in_image("i")).verifier.needs.build is None  # type: ignore[union-attr]
    with pytest.raises(TaskError, match=r"tests/docker-compose\.yaml: services of"):
        read(tmp_path / "services", SEPARATE, **{"tests/docker-compose.yaml": ""})
    assert read(tmp_path / "shared", TOML, **{"tests/docker-compose.yaml": ""}).oracle.in_place


def test_a_verifiers_own_sandbox_is_that_of_the_task_unless_it_says_otherwise(tmp_path: Path) -> None:
    toml = SEPARATE.replace("[verifier]", "cpus = 2\nenv = {A = 'a'}\n[verifier]") + "network_mode = 'public'\n"
    task = read(tmp_path, toml, **{"environment/x.txt": "old"})
    verifier = script_of(task).verifier
    assert verifier is not None
    assert (verifier.image, verifier.workdir, verifier.env) == (task.image, "/app", {"A": "a"})
    assert verifier.needs == task.needs.model_copy(update={"network": "egress"})
    verifier = script_of(read(tmp_path / "other", toml + "[verifier.environment]\nworkdir = '/w'\ncpus = 1\n")).verifier
    assert verifier is not None
    assert (verifier.image, verifier.workdir, verifier.env, verifier.needs.cpus) == ("mine/task:1", "/w", {}, 1)


def test_description_is_metadata(tmp_path: Path) -> None:
    toml = (
        "source = 'adapter'\n[task]\nname = 'a/b'\nversion = '3'\nkeywords = ['k']\ncolour = 'red'\n"
        "[[task.authors]]\nname = 'A'\n[metadata]\ndifficulty = 3\nanything = {goes = 1}\n"
    )
    task = read(tmp_path, toml + TOML.partition("\n")[2])
    assert (task.tags, task.difficulty) == (("k",), "3")
    assert task.metadata == {"name": "a/b", "version": "3", "source": "adapter"}


def test_broken_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no folder with a task\.toml"):
        load_source("harbor", path=str(tmp_path))
    (harbor_task(tmp_path, "a") / "instruction.md").unlink()
    (harbor_task(tmp_path, "b") / "tests/test.sh").unlink()
    source = load_source("harbor", path=str(tmp_path))
    for task_id, message in (("a", "not found: .*instruction.md"), ("b", "not found: .*test.sh")):
        with pytest.raises(TaskError, match=message):
            source.get(task_id)


# --- variables ----------------------------------------------------------------------------------------------


def test_variables_of_this_machine_enter_only_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "s3cret")
    toml = TOML + "[verifier.env]\nKEY = '${MY_SECRET}'\nMODE = 'a-${MY_SECRET}'\nOTHER = '${MY_SECRET:-none}'\n"
    with pytest.raises(
        TaskError, match=r"verifier\.env\.KEY = .*: the variable MY_SECRET may not be .*--source-option"
    ):
        read(tmp_path, toml)
    for options, key in (({"variables": ["MY_SECRET"]}, "s3cret"),):
        env = script_of(read(tmp_path, toml, options=options)).env
        assert env == {"KEY": key, "MODE": "a-${MY_SECRET}", "OTHER": key}
    monkeypatch.delenv("MY_SECRET")
    with pytest.raises(TaskError, match="MY_SECRET is not set on this machine"):
        read(tmp_path, toml, options={"variables": ["MY_SECRET"]})


@pytest.mark.parametrize("table", ["environment.env", "verifier.env", "solution.env"])
def test_a_default_stands_for_a_variable_that_may_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    monkeypatch.setenv("MY_SECRET", "s3cret")
    task = read(tmp_path, f"{TOML}[{table}]\nKEY = '${{MY_SECRET:-plain}}'\n")
    script = script_of(task)
    assert [task.env, script.env, script.solution_env].count({"KEY": "plain"}) == 1
    with pytest.raises(TaskError, match=rf"{table}\.KEY = "):
        read(tmp_path, f"{TOML}[{table}]\nKEY = '${{MY_SECRET}}'\n")
    with pytest.raises(TaskError, match=rf"{table}\.KEY = .*workdir.* has another meaning"):
        read(tmp_path, f"{TOML}[{table}]\nKEY = 'at {{workdir}}'\n")


def test_variables_are_a_list(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="variables must be a list of names"):
        read(tmp_path, options={"variables": "HOME"})


# --- hostile folders ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["task.toml", "instruction.md", "tests/more", "solution/more", "environment/Dockerfile", "environment/more"]
)
def test_links_out_of_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text(TOML)
    for number, target in enumerate((outside, outside / "file")):
        folder = harbor_task(tmp_path / f"tasks{number}")
        (folder / name).unlink(missing_ok=True)
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(target)
        with pytest.raises(TaskError, match=f"{name}: leads out of the task's folder"):
            load_source("harbor", path=str(folder)).get(NAME)


def test_folders_that_are_links_out_are_refused(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    folder = harbor_task(tmp_path / "tasks", **{"tests/test.sh": ""})
    (folder / "tests/test.sh").unlink()
    (folder / "tests").rmdir()
    (folder / "tests").symlink_to(tmp_path / "outside")
    with pytest.raises(TaskError, match="leads out of the task's folder"):
        load_source("harbor", path=str(tmp_path / "tasks")).get(NAME)


@pytest.mark.parametrize("target", [".", "..", "loop", "gone"])
def test_links_in_circles_and_into_nothing_are_refused(tmp_path: Path, target: str) -> None:
    (harbor_task(tmp_path) / "tests/loop").symlink_to(target)
    with pytest.raises(TaskError, match=r"a link to a folder above it|cannot be read"):
        load_source("harbor", path=str(tmp_path)).get(NAME)


@pytest.mark.slow
def test_links_that_multiply_folders_are_refused(tmp_path: Path) -> None:
    folder = harbor_task(tmp_path) / "tests"
    for number in range(20):
        (folder / f"d{number}").mkdir()
        for name in "ab":
            (folder / f"d{number}" / name).symlink_to(f"../d{number + 1}")
    (folder / "d20").mkdir()
    with pytest.raises(TaskError, match=f"more than {MOST_FILES} files and folders"):
        load_source("harbor", path=str(tmp_path)).get(NAME)


def test_large_files_and_pipes_are_refused_unread(tmp_path: Path) -> None:
    folder = harbor_task(tmp_path, "large")
    with (folder / "tests/data").open("wb") as file:
        file.truncate(LARGEST_TREE + 1)
    os.mkfifo(harbor_task(tmp_path, "pipe") / "tests/pipe")
    with (harbor_task(tmp_path, "text") / "instruction.md").open("wb") as file:
        file.truncate(1 << 30)
    source = load_source("harbor", path=str(tmp_path))
    for task_id, message in (("large", "more than 64 MiB"), ("pipe", "neither a file"), ("text", "larger than 1 MiB")):
        with pytest.raises(TaskError, match=message):
            source.get(task_id)


def test_large_build_contexts_are_refused_unread(tmp_path: Path) -> None:
    folder = harbor_task(tmp_path, **{"task.toml": "", "environment/Dockerfile": "FROM a\nRUN b\nWORKDIR /c\n"})
    with (folder / "environment/disk.img").open("wb") as file:
        file.truncate(1 << 42)
    with pytest.raises(TaskError, match=r"environment: more than 4096 MiB in all"):
        load_source("harbor", path=str(tmp_path)).get(NAME)


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("[metadata]\n" + ".".join(["a"] * 100_000) + " = 1", "a key of more than 50 parts"),
        ("[" + " . ".join(["'a'"] * 100_000) + "]", "a key of more than 50 parts"),
        ("[metadata]\na = " + "{a = " * 900 + "1" + "}" * 900, "recursion"),
        ("[metadata]\na = " + "9" * 5000, "digits"),
        ("cpus = 1e308", r"environment\.cpus = 1e\+308: "),
        ("memory_mb = 1" + "0" * 40, r"environment\.memory_mb = 1000"),
        ("storage = '" + "9" * 400 + "G'", 'not a size such as "2G"'),
        ("build_timeout_sec = 1e300", r"environment\.build_timeout_sec = 1e\+300: "),
        ("[agent]\ntimeout_sec = 1e300", r"agent\.timeout_sec = 1e\+300: "),
        ("[verifier]\ntimeout_sec = 1e300", r"verifier\.timeout_sec = 1e\+300: "),
        ("[[verifier.collect]]\ncommand = 'a'\ntimeout_sec = 1e300", r"verifier\.collect\.0\.timeout_sec = 1e\+300: "),
        ('[[verifier.collect]]\ncommand = "a\\u0000"', r"verifier\.collect\.0\.command = .*: a NUL character"),
        ('healthcheck = {command = "a\\u0000"}', r"environment\.healthcheck\.command = .*: a NUL character"),
        ("[agent]\nuser = -1", r"agent\.user = -1: not a user"),
        ("[agent]\nuser = ''", r"agent\.user = '': not a user"),
        ("[verifier]\nuser = 99999999999", r"verifier\.user = 99999999999: not a user"),
        ('[environment.env]\nA = "b\\u0000"', r"environment\.env\.A = .*: a NUL character"),
        ("[verifier.env]\n'A=B' = 'c'", r"verifier\.env\.A=B.* = 'A=B': not the name of a variable"),
        ("[solution.env]\n'' = 'c'", r"solution\.env\..* = '': not the name of a variable"),
        ("[solution.env]\nA = '" + "x" * 900_000 + "'", r"solution\.env\.A = .*: more than 100000 bytes"),
        (
            "[verifier.environment]\nworkdir = '/a'\nenv = {KEY = '${MY_SECRET}'}",
            r"verifier\.environment\.env\.KEY = .* may not be read",
        ),
        (
            "[verifier.environment]\ndocker_image = '--net'",
            r"verifier\.environment\.docker_image = .*: not the",
        ),
    ],
    ids=range(22),
)
def test_bombs_and_values_that_no_sandbox_takes_are_refused_by_name(tmp_path: Path, toml: str, message: str) -> None:
    with pytest.raises(TaskError, match=rf"{NAME}/task\.toml: .*{message}"):
        read(tmp_path, TOML + toml)


@pytest.mark.parametrize("image", ["--privileged", "-v/:/host", "../../etc/passwd", "a b", "${HOME}", "/etc"])
def test_names_of_images_are_neither_options_nor_paths(tmp_path: Path, image: str) -> None:
    with pytest.raises(TaskError, match=r"environment\.docker_image = .*: not the name of an image"):
        read(tmp_path, TOML.replace("mine/task:1", image))


@pytest.mark.parametrize("name", ["task.toml", "instruction.md", "solution/solve.sh", "environment/Dockerfile"])
@pytest.mark.parametrize("text", [TOML.encode("utf-16"), b"\xff"], ids=["UTF-16", "no text"])
def test_files_in_other_encodings_are_refused(tmp_path: Path, name: str, text: bytes) -> None:
    harbor_task(tmp_path, **{name: text})
    with pytest.raises(TaskError, match=f"{name}: not UTF-8 text"):
        load_source("harbor", path=str(tmp_path)).get(NAME)


@pytest.mark.parametrize("folder", ["tests", "environment"])
def test_file_names_that_are_not_text_are_refused(tmp_path: Path, folder: str) -> None:
    dockerfile = "FROM a\nRUN b\nWORKDIR /c\n"
    harbor_task(tmp_path, **{"task.toml": "", "environment/Dockerfile": dockerfile, f"{folder}/\udcff\U0001f600": "x"})
    with pytest.raises(TaskError, match=rf"{folder}/\\udcff.*: its name is not UTF-8"):
        load_source("harbor", path=str(tmp_path)).get(NAME)


@pytest.mark.parametrize("name", ["--help", "$(touch x)", "a;b", "{task_id}", "a\nb", "..."])
def test_odd_names_of_folders_and_files_are_only_names(tmp_path: Path, name: str) -> None:
    files: dict[str, str | bytes] = {"environment/Dockerfile": "FROM a\nRUN b\nWORKDIR /c\n", f"tests/{name}": b"x"}
    harbor_task(tmp_path, name, **{"task.toml": "", **files})
    source = load_source("harbor", path=str(tmp_path))
    task = source.get(source.ids()[0])
    assert script_of(task).files[f"/tests/{name}"].data == b"x"
    assert re.fullmatch(r"swe-gym/harbor-[a-z0-9._-]*:[0-9a-f]{16}", str(task.image))


def test_a_solution_may_be_a_patch(tmp_path: Path) -> None:
    folder = harbor_task(tmp_path, **{"solution/patch.diff": "diff --git a/x b/x\n", "tests/test.sh": TEST})
    task = load_source("harbor", path=str(tmp_path)).get(NAME)
    assert script_of(task).solution["/solution/solve.sh"].data == SOLVE.encode()
    assert task.oracle.gold_patch == "diff --git a/x b/x\n"
    (folder / "solution/solve.sh").unlink()
    script = script_of(load_source("harbor", path=str(tmp_path)).get(NAME))
    assert b"git apply /solution/patch.diff" in script.solution[script.solve].data
    (folder / "solution/patch.diff").unlink()
    assert not load_source("harbor", path=str(tmp_path)).get(NAME).oracle.has_solution
