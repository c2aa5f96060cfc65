"""Typical mistakes: each ends at once in one message that names its fix, and no traceback. And facts as JSON."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import swe_gym  # noqa: F401  registers the environments
from swe_gym.errors import MissingDependency, UsageError
from swe_gym.tasks.file import write_tasks
from swe_gym.types import Task

TASK = "larder-overwrite-evicts"
NOWHERE = "tcp://127.0.0.1:9"

COMMAND_MISTAKES: list[tuple[str, str]] = [
    # names
    ("rolout", "No such command 'rolout'. Did you mean 'rollout'"),
    ("tasks shwo x", "No such command 'shwo'. Did you mean 'show'"),
    ("demo --worker 3", "--workers"),
    ("rollout toys", "unknown task source 'toys'. Did you mean 'toy'?"),
    ("tasks show toy rota-month-ends", "unknown task 'rota-month-ends'. Did you mean 'rota-month-end'?"),
    ("tasks show tasks.jsonl", "`swe-gym tasks list tasks.jsonl` lists them"),
    ("tasks show toy rota-month-end now", "write swe-gym tasks show [SOURCE] TASK_ID"),
    ("validate --backend dokcer", "unknown backend 'dokcer'. Did you mean 'docker'?"),
    ("clean --backend dokcer", "Did you mean 'docker'?"),
    ("rollout toy policy=god", "unknown policy 'god'. Did you mean 'gold'?"),
    ("rollout toy env.bakend=docker", "unknown argument of SweEnv 'bakend'. Did you mean 'backend'?"),
    ("rollout toy runs.retries=0", "unknown field of the configuration 'runs'. Did you mean 'run'?"),
    ("rollout toy -p gold --model m --check", "unknown option of policy 'gold': 'model'"),
    ("rollout toy --seed 3", "no option --seed: write seed=VALUE"),
    ("export tasks.jsonl out.jsonl --to sftt", "unknown export format 'sftt'. Did you mean 'sft'?"),
    # values
    ("rollout toy attempts=many", "attempts: Input should be a valid integer"),
    ("rollout toy env.max_turns=two", "max_turns must be a positive whole number, not 'two'"),
    ("rollout toy run.retries=-1", "run.retries: Input should be greater than or equal to 0"),
    ("rollout toy env=3", "env is a section of fields, not a value: write for example env.max_turns=20"),
    ("rollout toy attempts", "write section.field=value, for example run.retries=0"),
    ("validate --slice 5", "--slice '5' is invalid: write START:STOP"),
    ("validate --sandbox-option memory_mb", "is not NAME=VALUE"),
    ("validate --sandbox-option options=1 --sandbox-option options.x=1", "'options' has the value 1 already"),
    ("bench rollout --workers 1,a", "write numbers separated by commas, for example 1,4,16"),
    ("doctor --backend-option namespace=x", "needs exactly one --backend"),
    ("tasks split parts --part train", "expected NAME=SHARE, such as train=0.9"),
    ("tasks new", "pass --from-pypi PACKAGE OLD NEW (or all), --mutate PACKAGE VERSION COUNT, or --from-git FOLDER"),
    # files
    ("tasks list nowhere.jsonl", "nowhere.jsonl"),
    ("validate nowhere.jsonl", "file not found"),
    ("rollout nowhere.toml", "cannot read the configuration nowhere.toml"),
    ("rollout broken.toml", "broken.toml is not valid TOML"),
    ("rollout wrong.toml", "unknown field of the configuration 'polcy'. Did you mean 'policy'?"),
    ("train broken.toml", "broken.toml is not valid TOML"),
    ("view nowhere", "nowhere is neither a run folder nor a trajectory file"),
    ("view tasks.jsonl", "tasks.jsonl is not a trajectory file; `swe-gym import` converts"),
    ("report nowhere", "nowhere is neither a run folder nor a trajectory file"),
    ("replay nowhere", "nowhere is neither a run folder nor a trajectory file"),
    ("import nowhere.json out.jsonl", "file not found: nowhere.json"),
    ("tasks export out.csv", "the file name must end in .parquet, .jsonl, .json"),
    # this machine
    ("images list", f"no Docker engine answers at {NOWHERE}. Start it"),
    ("images check", f"no Docker engine answers at {NOWHERE}. Start it"),
    ("tasks list swebench", "pip install 'swe-gym[hf]', or pass a file"),
    ("tasks export out.parquet", "pip install 'swe-gym[parquet]'"),
    (f"play {TASK} --sandbox-option min_isolation=vm", "less than min_isolation='vm'"),
]

TOY, FILE, LOCAL, SWEBENCH = (f"SWE/{name}-v0" for name in ("Toy", "Tasks", "Local", "SWEBench"))

MAKE_MISTAKES: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("SWE/Toys-v0", {}, gym.error.NameNotFound, "Did you mean: `Toy`"),
    ("SWE/Toy-v7", {}, gym.error.VersionNotFound, "v0"),
    (TOY, {"bakend": "local"}, UsageError, "unexpected keyword argument 'bakend'. Did you mean 'backend'?"),
    (
        LOCAL,
        {"test_command": "true"},
        UsageError,
        "LocalEnv.__init__() got an unexpected keyword argument 'test_command'. Did you mean 'test_cmd'",
    ),
    (SWEBENCH, {"spilt": "test"}, UsageError, "unexpected keyword argument 'spilt'. Did you mean 'split'?"),
    (TOY, {"source": "swebench"}, UsageError, "unexpected keyword argument 'source'"),
    (TOY, {"backend": "locl"}, UsageError, "unknown backend 'locl'. Did you mean 'local'?"),
    (TOY, {"task_id": "rota-month-ends"}, UsageError, "Did you mean 'rota-month-end'?"),
    (TOY, {"tools": "defualt"}, UsageError, "unknown preset of tools 'defualt'. Did you mean 'default'?"),
    (TOY, {"reward": "binery"}, UsageError, "Did you mean 'binary'?"),
    (TOY, {"max_turns": "ten"}, UsageError, "max_turns must be a positive whole number, not 'ten'"),
    (TOY, {"sandbox_options": {"memory": 1}}, UsageError, "Did you mean 'memory_mb'?"),
    (TOY, {"record": "nowhere.jsonl"}, UsageError, "`swe-gym validate --record nowhere.jsonl` writes one"),
    (TOY, {"render_mode": "rgb_array"}, MissingDependency, "pip install 'swe-gym[render]'"),
    (FILE, {}, UsageError, "requires the argument 'path'"),
    (FILE, {"path": "nowhere.jsonl"}, UsageError, "file not found"),
    (FILE, {"path": "rows.parquet"}, MissingDependency, "pip install 'swe-gym[parquet]'"),
    (LOCAL, {"path": "nowhere", "test_cmd": "true"}, UsageError, "folder not found"),
    (LOCAL, {"path": "."}, UsageError, "requires the argument 'test_cmd'"),
    (SWEBENCH, {"path": "nowhere.parquet", "backend": "local"}, UsageError, "file or folder not found"),
    (SWEBENCH, {"backend": "local"}, MissingDependency, "pip install 'swe-gym[hf]', or pass a file as path="),
    ("SWE/Harbor-v0", {"backend": "local"}, UsageError, "requires the argument 'path'"),
    ("SWE/GraphPlanner-v0", {"backend": "local"}, UsageError, "requires the argument 'path'"),
    ("SWE/Micro-v0", {"difficulty": 9}, UsageError, "unknown difficulty 9: choose from 1 to 8"),
]


@pytest.fixture
def _bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy: Task) -> None:
    """A folder with broken files, on a machine without extras and without an engine."""
    (tmp_path / "broken.toml").write_text("x = [")
    (tmp_path / "wrong.toml").write_text("polcy = 'gold'")
    (tmp_path / "rows.parquet").write_bytes(b"")
    write_tasks([toy], tmp_path / "tasks.jsonl")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", NOWHERE)
    for package in ("PIL", "huggingface_hub", "pyarrow"):
        monkeypatch.setitem(sys.modules, package, None)


@pytest.mark.usefixtures("_bare")
@pytest.mark.parametrize(("line", "words"), COMMAND_MISTAKES, ids=[line for line, _ in COMMAND_MISTAKES])
def test_a_mistake_in_a_command_is_one_message(cli: Any, line: str, words: str) -> None:
    if line.startswith("images"):
        pytest.importorskip("docker")
    result = cli(*line.split())
    assert result.status == 2
    assert words in " ".join(result.err.split())
    assert "Traceback" not in result.err + result.out


@pytest.mark.usefixtures("_bare")
@pytest.mark.filterwarnings("ignore:.*that is not in the possible render_modes")
@pytest.mark.parametrize(("env_id", "arguments", "error", "words"), MAKE_MISTAKES)
def test_a_mistake_in_make_is_found_in_make(
    env_id: str, arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error) as raised:
        gym.make(env_id, **arguments)
    assert words in str(raised.value)


def test_a_policy_may_be_given_as_a_field(cli: Any) -> None:
    (config,) = json.loads(cli("rollout", "policy=gold", "--check", "--json").out)["runs"]
    assert config["policy"] == "gold"


def test_a_failed_first_command_does_not_block_the_corrected_one(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("docker")
    monkeypatch.setenv("DOCKER_HOST", NOWHERE)
    command = ("rollout", "toy", "policy=gold", "--match", TASK, "run.retries=0")
    faults = '[{at="start", nth="every", error="SandboxStartError"}]'
    assert cli(*command, "--backend", "docker").status == 2
    assert cli(*command, "--backend", "fake", f"env.sandbox_options.options.faults={faults}").status == 1
    assert cli(*command).status == 0
    assert not Path("runs/toy-gold/failed.jsonl").read_text()
    other = cli(*command, "--max-turns", 7)
    assert other.status == 2
    assert "holds a run of another configuration (env.max_turns: 50, now 7): choose another name" in other.err
    assert (
        cli("replay", "runs/toy-gold", "--json").out
        == json.dumps([{"task_id": TASK, "attempt": 0, "difference": None}], indent=2) + "\n"
    )


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "swe_gym", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


def test_a_terminal_without_unicode_shows_the_rest(tmp_path: Path, toy: Task) -> None:
    write_tasks([toy.model_copy(update={"problem_statement": "A bug \N{BUG} here"})], tmp_path / "tasks.jsonl")
    done = run("tasks", "list", str(tmp_path / "tasks.jsonl"), PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "A bug ? here" in done.stdout


def test_a_home_that_cannot_be_written_is_named_with_the_fix() -> None:
    done = run("play", TASK, SWE_GYM_CACHE="/proc/nowhere")
    assert done.returncode == 2
    assert "Set SWE_GYM_CACHE to a writable folder" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_kernel_without_user_namespaces_is_named_with_the_fix() -> None:
    switch = "/proc/sys/user/max_user_namespaces"
    inside = ["unshare", "--user", "--map-root-user", "sh", "-c", f'echo 0 > {switch} && exec "$@"', "sh"]
    if not shutil.which("unshare") or subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("this machine cannot make a user namespace to forbid them in")
    command = [*inside, sys.executable, "-m", "swe_gym", "doctor"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, "DOCKER_HOST": NOWHERE}
    )
    assert "no  tier namespace" in done.stdout
    assert "fix: sysctl user.max_user_namespaces=15000" in done.stdout
    assert "extra" not in done.stdout.replace("the extra is not installed; only public datasets need it", "")


@pytest.mark.parametrize(
    ("line", "keys"),
    [
        ("tasks list toy", {"task_id", "repo", "difficulty", "tags", "issue"}),
        ("tasks list tasks.jsonl", {"task_id", "repo", "difficulty", "tags", "issue"}),
        (f"tasks show {TASK}", {"task_id", "problem_statement", "workspace"}),
        (f"tasks show tasks.jsonl {TASK} --oracle", {"oracle"}),
        ("validate tasks.jsonl --times 1", {"task_id", "status", "reason", "counter_tests"}),
        ("clean --backend docker", {"docker"}),
    ],
)
@pytest.mark.usefixtures("_bare")
def test_facts_are_json_on_request(cli: Any, line: str, keys: set[str]) -> None:
    if "docker" in line:
        pytest.importorskip("docker")
    result = cli(*line.split(), "--json")
    said = json.loads(result.out)
    said = said[0] if isinstance(said, list) else said
    assert keys <= set(said)
    assert ("oracle" in said) == ("--oracle" in line)
