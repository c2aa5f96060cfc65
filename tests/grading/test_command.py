"""Test commands with our reporter in the runner's place."""

import pytest

from swe_gym.grading.plan import parse_command


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
    ["", "make test", "tox -e py", "echo pytest", "python -m pytest_x", "pytest a; pytest b", "ls -m pytest-x"],
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
    ],
)
def test_a_starter_precedes_the_program_of_the_simple_command(command: str, started: str) -> None:
    parsed = parse_command(command)
    assert parsed is not None
    assert parsed.text("/r.py", starter="S") == started
