"""Writes tasks as Harbor's task folders, which Harbor and swe_gym's source `harbor` play.

ID/instruction.md                   the problem statement
ID/task.toml                        schema version 1.4
ID/environment/Dockerfile           a base image, the task's requirements and its code
ID/environment/repository.tar.gz    the code, as one git commit
ID/tests/                           the hidden tests, and a program that runs them and writes the reward
ID/solution/                        the gold patch, and a script that applies it
"""

import gzip
import json
import shlex
import shutil
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..commands import git_environment, run_command
from ..errors import UsageError
from ..grading import STEADY_ENV, Protection, parse_command
from ..guard import TemporaryFolder
from ..guests import bundle
from ..sandboxes import default_image
from ..sandboxes.contents import prepare_workspace
from ..toml import VARIABLE
from ..types import ExitCode, SandboxNeeds, Task, TestCommand
from .bundle import DATE

AGENT_SECONDS = 1800.0
"""Time limit of the policy in tasks that set none, as `time_limit` of environments."""

RUNNER = "/tests/stand_alone.py"

TOML = """\
schema_version = "1.4"

[task]
name = {name}
keywords = {tags}

[metadata]
difficulty = {difficulty}
repo = {repo}

[environment]
workdir = {workdir}
{needs}
[environment.env]
{env}
[agent]
timeout_sec = {agent_seconds}

[verifier]
timeout_sec = {seconds}
"""

TEST = """\
#!/bin/bash
# Puts the task's tests in place of the policy's, runs them and writes the reward.
cd {workdir} || exit 1
export {env}
rm -f /tests/results.json
python3 {runner} restore || exit 1
({command}
)
{reward}
"""

BY_TESTS = f"python3 {RUNNER} reward /logs/verifier/reward.txt"
BY_EXIT_CODE = "if [ $? = 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt"

SOLVE = """\
#!/bin/bash
cd {workdir} && git apply --whitespace=nowarn /solution/patch.diff
"""


def export_harbor(tasks: Sequence[Task], folder: Path, *, base: str = "", timeout: float = 600.0) -> None:
    """Write each task as a folder, which is named after its id.

    A verdict in Harbor trusts the sandbox of the policy and has no counter-tests: see "Trust a reward".

    Args:
        tasks: Tasks with a workspace, judged by a command.
        folder: Folder to make. It must be missing or empty.
        base: Base image, with Python, git and bash; empty is the official image of the task's Python.
        timeout: Seconds that preparing the code of one task may take.

    Raises:
        UsageError: The folder holds files, or Harbor cannot express a task; the message names its field.
        TaskError: The code of a task cannot be read, or its test patch does not apply.
    """
    folder = folder.expanduser().absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not an empty folder: choose another one, or remove it first")
    for task in tasks:
        for field, why in _find_inexpressible(task):
            raise UsageError(f"task {task.task_id} cannot be exported to Harbor: {field}: {why}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryFolder(f".{folder.name}.", folder.parent) as scratch:
        new = scratch.path / "tasks"
        for task in tasks:
            _write(task, new / task.task_id, base or default_image(task.python), time.monotonic() + timeout)
        new.replace(folder)


def _find_inexpressible(task: Task) -> Iterator[tuple[str, str]]:
    """Yield each field of a task that an exported task would lack, and why."""
    oracle = task.oracle
    if oracle.in_place:
        yield "evaluation", "it is one of Harbor's already. Copy its folder"
    elif oracle.own_grader or not isinstance(oracle.evaluation, TestCommand | ExitCode):
        yield "grader", f"only the graders 'tests' and 'exit_code' can be exported, not {oracle.grader!r}"
    elif isinstance(oracle.evaluation, TestCommand) and parse_command(oracle.test_cmd) is None:
        yield "test_cmd", "it must call pytest or unittest exactly once"
    elif isinstance(oracle.evaluation, TestCommand) and not (oracle.fail_to_pass or oracle.pass_to_pass):
        yield "fail_to_pass", "it names no test"
    if task.workspace is None:
        yield "workspace", "missing"
    parts = [
        ("", oracle, ("setup_cmd", "start_patch", "hidden_paths"), "Harbor has nothing like it"),
        ("needs.", task.needs, ("user", "activate", "build", "files"), "it is not exported"),
    ]
    for place, part, fields, why in parts:
        yield from ((f"{place}{field}", why) for field in fields if getattr(part, field))
    for name, value in task.env.items():
        if VARIABLE.fullmatch(value):
            yield f"env.{name}", "Harbor would replace it by a variable of its own machine"


def _write(task: Task, folder: Path, base: str, deadline: float) -> None:
    assert task.workspace is not None
    oracle = task.oracle
    tree = prepare_workspace(task.workspace, timeout=max(1.0, deadline - time.monotonic()))
    for name in ("environment", "tests/files", "solution"):
        (folder / name).mkdir(parents=True)
    (folder / "instruction.md").write_text(f"{task.problem_statement.rstrip()}\n", encoding="utf-8")
    (folder / "task.toml").write_text(_toml(task), encoding="utf-8")
    (folder / "environment/Dockerfile").write_text(_dockerfile(task, base), encoding="utf-8")
    _archive(tree, folder / "environment/repository.tar.gz")
    _write_tests(task, tree, folder / "tests", deadline)
    if oracle.gold_patch:
        (folder / "solution/patch.diff").write_text(oracle.gold_patch, encoding="utf-8", newline="\n")
        _script(folder / "solution/solve.sh", SOLVE.format(workdir=shlex.quote(task.workdir)))


def _toml(task: Task) -> str:
    env = {name: value.replace("{workdir}", task.workdir) for name, value in task.env.items()}
    return TOML.format(
        name=_quote(f"swe-gym/{task.task_id.replace('..', '-')}"),
        tags=f"[{', '.join(map(_quote, task.tags))}]",
        difficulty=_quote(task.difficulty),
        repo=_quote(task.repo),
        workdir=_quote(task.workdir),
        needs="".join(f"{name} = {value}\n" for name, value in _needs(task.needs)),
        env="".join(f"{_quote(name)} = {_quote(value)}\n" for name, value in env.items()),
        agent_seconds=float(task.time_limit or AGENT_SECONDS),
        seconds=float(task.oracle.timeout),
    )


def _needs(needs: SandboxNeeds) -> Iterator[tuple[str, str]]:
    """Yield the fields of the table `environment` that state a task's network and limits, as TOML."""
    if isinstance(needs.network, tuple):
        yield "network_mode", _quote("allowlist")
        yield "allowed_hosts", f"[{', '.join(map(_quote, needs.network))}]"
    else:
        yield "network_mode", _quote("public" if needs.network == "egress" else "no-network")
    limits = {"cpus": needs.cpus, "memory_mb": needs.memory_mb, "storage_mb": needs.disk_mb}
    yield from ((name, str(value)) for name, value in limits.items() if value is not None)


def _quote(text: str) -> str:
    """Return a TOML string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _dockerfile(task: Task, base: str) -> str:
    python = task.python
    steps = [f"FROM {base}"]
    if python and base != default_image(python):  # commands of tests say `python`, which Debian's images lack
        steps.append('RUN command -v python || ln -s "$(command -v python3)" /usr/local/bin/python')
    if python and python.requirements:
        options = "--no-cache-dir --no-deps" if python.no_deps else "--no-cache-dir"
        steps.append(f"RUN python3 -m pip install {options} {shlex.join(python.requirements)}")
    steps += [f"WORKDIR {task.workdir}", f"ADD {json.dumps(['repository.tar.gz', f'{task.workdir}/'])}"]
    return "\n".join([*steps, ""])


def _archive(tree: Path, file: Path) -> None:
    """Write a prepared workspace, with its git repository, so that equal ones give equal bytes."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        member.mtime = DATE
        return member

    with (
        file.open("wb") as raw,
        gzip.GzipFile("", "wb", mtime=0, fileobj=raw) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as tar,
    ):
        tar.add(tree, ".", filter=plain)


def _write_tests(task: Task, tree: Path, folder: Path, deadline: float) -> None:
    """Write the script, and every file that belongs to the tests as it is with the hidden tests."""
    oracle = task.oracle
    required = [*oracle.fail_to_pass, *oracle.pass_to_pass]
    order = {"test_paths": list(oracle.test_paths), "required": required}
    (folder / "order.json").write_text(json.dumps(order, indent=2), encoding="utf-8")
    (folder / "stand_alone.py").write_text(bundle("stand_alone"), encoding="utf-8")
    command = oracle.test_cmd.replace("{workdir}", task.workdir)
    call = parse_command(command) if isinstance(oracle.evaluation, TestCommand) else None
    script = TEST.format(
        workdir=shlex.quote(task.workdir),
        env=shlex.join(f"{name}={value}" for name, value in STEADY_ENV.items() if name not in task.env),
        runner=RUNNER,
        command=call.text(RUNNER, ["run", call.module]) if call else command,
        reward=BY_TESTS if call else BY_EXIT_CODE,
    )
    _script(folder / "test.sh", script)
    protection = Protection(task)
    with TemporaryFolder("swe-gym-harbor-") as scratch:
        copy = scratch.path / "code"
        shutil.copytree(tree, copy, symlinks=True)
        _add_hidden_tests(task, copy, deadline)
        for path in sorted(copy.rglob("*")):
            name = path.relative_to(copy).as_posix()
            if name.startswith(".git/") or path.is_symlink() or not path.is_file() or not protection.protects(name):
                continue
            (folder / "files" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder / "files" / name)


def _add_hidden_tests(task: Task, code: Path, deadline: float) -> None:
    if task.oracle.test_patch:
        patch = code.parent / "test.patch"
        patch.write_text(task.oracle.test_patch, encoding="utf-8", newline="\n")
        failure = f"task {task.task_id}: the test patch does not apply"
        command = ["git", "apply", "--whitespace=nowarn", str(patch)]
        run_command(command, deadline=deadline, cwd=code, env=git_environment(), failure=failure)
    for name, text in task.oracle.test_files.items():
        if not (code / name).resolve().is_relative_to(code.resolve()):
            raise UsageError(
                f"task {task.task_id} cannot be exported to Harbor: test_files: {name} is outside the code"
            )
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text(text, encoding="utf-8", newline="\n")


def _script(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8", newline="\n")
    file.chmod(0o755)
