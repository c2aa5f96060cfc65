"""The command line: help, version and errors."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from swe_gym_command.app import COMMANDS, load_command

SUBCOMMANDS = ["demo", "play", "validate", "doctor", "tasks", "bench"]


def test_help_names_every_command(cli) -> None:
    result = cli("--help")
    assert result.status == 0
    for name in SUBCOMMANDS:
        assert f" {name} " in result.out
        assert cli(name, "-h").status == 0


def test_every_command_in_the_list_exists() -> None:
    for name in COMMANDS:
        command = load_command(name)
        assert command.help, name


def commands(command: Any, *path: str) -> Iterator[tuple[str, Any]]:
    """Yield the commands below a command, with their names."""
    below = getattr(command, "commands", None)
    if below is None:
        yield " ".join(path), command
    for name, one in (below or {}).items():
        yield from commands(one, *path, name)


EVERY_COMMAND = [found for name in COMMANDS for found in commands(load_command(name), name)]
CHOICES = {"counter"}
"""Options whose help shows their values."""


@pytest.mark.parametrize(("name", "command"), EVERY_COMMAND, ids=[name for name, _ in EVERY_COMMAND])
def test_help_has_one_style(name: str, command: Any) -> None:
    first = command.help.partition("\n")[0]
    assert re.match(r"[A-Z].*\.$", first), name
    assert "Exit status 1" not in command.help
    for one in command.params:
        said, place = one.help, f"{name} {one.opts[-1]}: {one.help}"
        if one.name == "help":
            continue
        assert re.match(r"[A-Z\d].*\.$", said), f"{place}: a sentence ends with a period"
        assert not re.search(r"may be repeated|[Dd]efaults? (?:to|is)|\. Default", said), place
        assert said.count("(default") <= 1, place
        if one.param_type_name == "argument" or not (one.is_flag or one.name in CHOICES):
            assert re.fullmatch(
                r"[\[\]A-Z_/:.,=|N]+|harbor\|rllm\|verl|(PACKAGE|FOLDER) (OLD NEW|VERSION COUNT|COMMIT)",
                one.metavar or "",
            ), f"{place}: the metavariable is {one.metavar}"
        assert not (one.nargs == -1 and one.metavar.endswith("...")), f"{place}: the usage line adds the dots"


def test_the_list_of_commands_imports_none_of_them() -> None:
    code = (
        "import sys; from swe_gym_command import main; sys.argv[1:] = ['-h']\ntry: main()\nfinally: print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    loaded = set(done.stdout.split())
    assert "typer" in loaded
    assert not loaded & {"gymnasium", "numpy", "pydantic", "rich.console", "swe_gym"}


def test_completion_knows_commands_and_options() -> None:
    for words, found in (
        ("swe-gym vali", "validate"),
        ("swe-gym tasks sh", "show"),
        ("swe-gym doctor --verb", "--verbose"),
    ):
        env = {**os.environ, "_SWE_GYM_COMPLETE": "complete_bash", "COMP_WORDS": words}
        env["COMP_CWORD"] = str(len(words.split()) - 1)
        done = subprocess.run([sys.executable, "-m", "swe_gym"], env=env, capture_output=True, text=True, timeout=60)
        assert found in done.stdout.split()


def test_without_a_command_the_help_is_shown(cli) -> None:
    result = cli()
    assert result.status == 2
    assert "Usage: swe-gym" in result.out + result.err


def test_version(cli) -> None:
    status, out, err = cli("--version")
    assert (status, err) == (0, "")
    for line in (
        f"swe-gym {version('swe-gym')}",
        f"python {sys.version.split()[0]}",
        f"gymnasium {version('gymnasium')}",
    ):
        assert line in out.splitlines()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tasks", "show", "rota-month-ends"], "unknown task 'rota-month-ends'. Did you mean 'rota-month-end'?"),
        (["tasks", "show", "[red]x[/]"], "unknown task '[red]x[/]'."),
        (["tasks", "list", "-s", "toys"], "unknown task source 'toys'. Did you mean 'toy'?"),
        (["tasks", "list", "-m", "none-*"], "no task matches 'none-*'"),
        (["tasks", "list", "--tag", "none"], "no task matches: relax the filters"),
        (["tasks", "export", "tasks.csv"], "tasks.csv: the file name must end in .parquet, .jsonl, .json"),
        (["tasks", "export", "/proc/nowhere/tasks.jsonl"], "No such file or directory: '/proc/nowhere'"),
        (["play", "rota"], "unknown task 'rota'."),
        (["play", "--tools", "none"], "unknown preset of tools 'none'."),
        (["play", "--backend", "locl"], "unknown backend 'locl'. Did you mean 'local'?"),
        (["demo", "--backend", "locl"], "unknown backend 'locl'. Did you mean 'local'?"),
        (["demo", "--output", "/proc/nowhere"], "the run folder has no room: 0 MiB are free in /proc"),
        (["demo", "-m", "l*", "--sandbox-option", "min_isolation=vm"], "less than min_isolation='vm'"),
        (["validate", "none.jsonl"], "file not found"),
        (["validate", "-m", "none"], "no task matches 'none'"),
        (["validate", "--backend", "locl"], "unknown backend 'locl'. Did you mean 'local'?"),
        (["validate", "--sandbox-option", "memory"], "--sandbox-option 'memory' is not NAME=VALUE"),
        (["validate", "--sandbox-option", "memory=1"], "unknown sandbox option 'memory'. Did you mean 'memory_mb'?"),
        (["validate", "--sandbox-option", "runtime=runsc"], "Options of a backend belong under `options`."),
        (
            ["validate", "--sandbox-option", "memory_mb=-1"],
            "sandbox options: memory_mb: Input should be greater than 0",
        ),
        (["bench", "sandbox", "--backend", "locl"], "unknown backend 'locl'. Did you mean 'local'?"),
    ],
    ids=" ".join,
)
def test_mistakes_are_one_message(cli, arguments: list[str], message: str) -> None:
    result = cli(*arguments)
    assert result.status == 2
    assert result.err.startswith("Error: ")
    assert message in result.err
    assert "Traceback" not in result.err


def test_a_broken_task_file_is_named_row_by_row(cli, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"task_id": 3, "problem_statement": "[bold]"}\nnonsense\n')
    for command in (["tasks", "list", "-s"], ["validate"], ["play", "-s"]):
        result = cli(*command, "bad.jsonl")
        assert result.status == 2
        assert "bad.jsonl has broken rows:\n  line 1, field 'task_id': " in result.err
        assert "\n  line 2, not JSON: " in result.err


def test_a_broken_record_file_is_named(cli, tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text("nonsense\n")
    result = cli("validate", "-m", "larder*", "--record", "r.jsonl")
    assert result.status == 2
    assert result.err.startswith("Error: r.jsonl, line 1 is not a validation record")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "No such command 'nothing'"),
        (["validate", "--nothing"], "No such option"),
        (["demo", "--workers", "0"], "--workers"),
        (["tasks", "show"], "TASK_ID"),
        (["tasks", "new", "--from-pypi", "a", "b"], "--from-pypi"),
        (["tasks", "new", "--from-pypi", "a", "1", "2", "--statement", "nowhere.md"], "nowhere.md"),
    ],
    ids=" ".join,
)
def test_misuse_is_explained(cli, arguments: list[str], message: str) -> None:
    result = cli(*arguments)
    assert result.status == 2
    assert message in result.err
    assert "Traceback" not in result.err


def test_a_closed_pipe_is_not_an_error() -> None:
    code = "from swe_gym_command import main; main()"
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, "tasks", "list"], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60
        )
    finally:
        os.close(writing)
    assert done.returncode == 1
    assert done.stderr == ""


def test_the_installed_command_is_this_one() -> None:
    command = Path(sys.executable).with_name("swe-gym")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, f"swe-gym {version('swe-gym')}")


def test_ctrl_c_during_the_imports_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "gymnasium.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    code = "from swe_gym_command import main; main()"
    path = os.pathsep.join([str(tmp_path), *sys.path])
    ended = subprocess.run(
        [sys.executable, "-c", code, "doctor"], env={**os.environ, "PYTHONPATH": path}, capture_output=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, b"", b"")
