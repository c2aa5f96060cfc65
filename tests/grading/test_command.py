"""Test commands with our reporter in the runner's place."""

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from swe_gym import guests
from swe_gym.grading.plan import parse_command
from swe_gym.grading.reporter import START, STARTER


@pytest.mark.parametrize(
    ("command", "module", "reported"),
    [
        ("python -m pytest -q tests", "pytest", "python /r.py -q tests"),
        ("python -m unittest", "unittest", "python /r.py"),
        ("pytest -x a.py", "pytest", "python /r.py -x a.py"),
        ("cd /w/sub && FOO='1 2' py.test", "pytest", "cd /w/sub && FOO='1 2' python /r.py"),
        (".venv/bin/pytest tests", "pytest", ".venv/bin/python /r.py tests"),
        ("python -W error -m pytest tests", "pytest", "python -W error /r.py tests"),
        ("A=1 coverage run -m unittest discover", "unittest", "A=1 coverage run /r.py discover"),
        ("pip install pytest-x; python3.9 -m pytest", "pytest", "pip install pytest-x; python3.9 /r.py"),
        ("bash -c 'python -m pytest a'", "pytest", "bash -c 'python /r.py a'"),
        ("export A=1\npytest tests", "pytest", "export A=1\npython /r.py tests"),
    ],
)
def test_the_reporter_takes_the_runners_place(command: str, module: str, reported: str) -> None:
    parsed = parse_command(command)
    assert parsed is not None
    assert (parsed.module, parsed.text("/r.py")) == (module, reported)


@pytest.mark.parametrize(
    "command",
    [
        "",
        "run() { python $@; }; run -m pytest",
        "function run { python $@; }\nA=1 run -m pytest",
        "alias run='python -X dev'\nrun -m pytest",
        "make test",
        "tox -e py",
        "echo pytest",
        "python -m pytest_x",
        "pytest a; pytest b",
        "ls -m pytest-x",
    ],
)
def test_other_commands_have_no_runner(command: str) -> None:
    assert parse_command(command) is None


def test_options_precede_the_arguments() -> None:
    parsed = parse_command("A=1 python -m pytest -q tests/a.py")
    assert parsed is not None
    assert parsed.text("/r.py", ["-c", "/w/with space"]) == "A=1 python /r.py -c '/w/with space' -q tests/a.py"


@pytest.mark.parametrize(
    ("command", "alone"),
    [
        ("python -m pytest", True),
        ("A=1 B='x' /opt/bin/python3.9 -W ignore -X dev -m pytest", True),
        ("pytest", True),
        ("cd src && python -m pytest", False),
        ("pip install . && python -m pytest", False),
        ("PATH=bin:$PATH python -m pytest", False),
        (".venv/bin/python -m pytest", False),
        ("A=$(bin/setup) python -m pytest", False),
        ("A=1;bin/setup python -m pytest", False),
        ("coverage run -m pytest", False),
    ],
)
def test_whether_the_workspace_could_stop_the_runner(command: str, alone: bool) -> None:
    parsed = parse_command(command)
    assert parsed is not None
    assert parsed.only_runs_tests is alone


@pytest.mark.parametrize(
    ("command", "started"),
    [
        ("pytest -x", "S python /r.py -x"),
        (
            "cd x && A='a b':$A python3 -W error -m pytest",
            "cd x && A='a b':$A S python3 -W error /r.py",
        ),
        ("export A=1\npython -m pytest", "export A=1\nS python /r.py"),
        ("bash -c 'cd x; python -m pytest a'", "bash -c 'cd x; S python /r.py a'"),
        ("A=$(b) python -m pytest", "A=$(b) S python /r.py"),
        ("exec time -p coverage run -m pytest", "exec time -p S coverage run /r.py"),
        ("if python -W x \\\n -m pytest; then :; fi", "if S python -W x \\\n /r.py; then :; fi"),
        ("A=${B:+c;d} python -m pytest 2>&1", "A=${B:+c;d} S python /r.py 2>&1"),
        ("A=$(pwd)/src B=`c d` python -m pytest", "A=$(pwd)/src B=`c d` S python /r.py"),
        ('A="$(b "c d")" python -m pytest', 'A="$(b "c d")" S python /r.py'),
        ("$(which python) -m pytest", "S $(which python) /r.py"),
        ('"${A:-$(b)}" -m pytest', 'S "${A:-$(b)}" /r.py'),
        ("A+=:b C=d\\ e python -m pytest", "A+=:b C=d\\ e S python /r.py"),
        ('sh -c "A=\\"b c\\" python -m pytest"', 'sh -c "A=\\"b c\\" S python /r.py"'),
        ("A=b \\\n  python -m pytest", "A=b \\\n  S python /r.py"),
        ("# don't\npython -W 'a' -m pytest", "# don't\nS python -W 'a' /r.py"),
        ("function f { python -m pytest; }; f", "function f { S python /r.py; }; f"),
        ("f() { python -m pytest $@; }; f a", "f() { S python /r.py $@; }; f a"),
        ("exec -a b python -m pytest", "exec -a b S python /r.py"),
        ("command -p python -m pytest", "command -p S python /r.py"),
        ("A=b env -i timeout 60 python -m pytest", "A=b S env -i timeout 60 python /r.py"),
        ("(cd x; nice python -m pytest)", "(cd x; S nice python /r.py)"),
        ("bash <<'E'\npython -m pytest\nE", "bash <<'E'\nS python /r.py\nE"),
    ],
)
def test_a_starter_precedes_the_program_of_the_simple_command(command: str, started: str) -> None:
    parsed = parse_command(command)
    assert parsed is not None
    assert parsed.text("/r.py", starter="S") == started


TELL = """
import json
early = [path for path in sys.path[1:] if path.startswith(WORKDIR)]
path = [os.path.relpath(path, WORKDIR) for path in start_path() if path.startswith(WORKDIR)]
print(json.dumps([early, path, os.environ.get("PYTHONPATH"), "A-B" in os.environ, sys.argv[1:]]))
"""


@pytest.mark.parametrize(
    ("command", "path", "named", "arguments"),
    [
        ("PYTHONPATH=$PWD/src:/usr/lib: python -m pytest", ["src", "."], "{}/src:/usr/lib:", []),
        ("PYTHONPATH=lib env PYTHONPATH=src python -m pytest PYTHONPATH=a", ["src"], "src", ["PYTHONPATH=a"]),
        ("PYTHONPATH=src env -u PYTHONPATH python -m pytest", [], None, []),
        ("PYTHONPATH=gone:-:x.zip/sub python -m pytest", ["gone", "-", "x.zip/sub"], "gone:-:x.zip/sub", []),
        ("cd src; CDPATH=.. PYTHONPATH=lib:. python -E -m pytest", [], "lib:.", []),
    ],
)
def test_python_starts_without_folders_of_the_workspace_and_gets_them_back(
    tmp_path: Path, command: str, path: list[str], named: str | None, arguments: list[str]
) -> None:
    work, script = tmp_path / "w x", tmp_path / "r" / "r.py"
    for folder in (work / "src", work / "lib", script.parent):
        folder.mkdir(parents=True)
    source = (Path(guests.__file__).parent / "import_path.py").read_text("utf-8")  # not imported: it changes `sys.path`
    start_path, tell = source.split("START_PATH = ")[0], TELL.replace("WORKDIR", repr(str(work)))
    script.write_text(STARTER.format(workdir=shlex.quote(str(work))) + start_path + tell)
    parsed = parse_command(command)
    assert parsed is not None
    run = ["bash", "-c", parsed.text(str(script), starter=START.format(script=script))]
    environment = {"PATH": os.environ["PATH"], "A-B": "1"}
    said = json.loads(subprocess.run(run, cwd=work, env=environment, capture_output=True, check=True).stdout)
    assert said == [[], path, named.format(work) if named else None, True, arguments]


@pytest.mark.parametrize(
    "command",
    [
        "env -S 'PYTHONPATH=lib PYTHONPATH=src python' -m pytest",
        "A=1 timeout 9 env -u B -ivS 'A=1 PYTHONPATH=src' python -m pytest",
        "bash -c 'export PYTHONPATH+=:src; exec \"$@\"' _ python -m pytest",
    ],
)
def test_a_text_that_sets_the_path_does_not_start(tmp_path: Path, command: str) -> None:
    script = tmp_path / "r.py"
    script.write_text(STARTER.format(workdir=shlex.quote(str(tmp_path))))
    parsed = parse_command(command)
    assert parsed is not None
    run = ["bash", "-c", parsed.text(str(script), starter=START.format(script=script))]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, check=False, text=True)
    assert done.returncode == 96
    assert "set it before the program" in done.stderr
