import pytest

from swe_gym.errors import ToolError
from swe_gym.tools.pdb_session import Entrypoint, parse_entrypoint


@pytest.mark.parametrize(
    ("text", "before", "python", "program"),
    [
        ("python script.py a 'b c'", "", "python", "script.py a 'b c'"),
        ("python3.9 -m pytest tests -x", "", "python3.9", "-mpytest tests -x"),
        ("python -mpytest -q", "", "python", "-mpytest -q"),
        ("python -c 'print(1)' a", "", "python", "-c'print(1)' a"),
        ("pytest -k 'a and b' tests/*.py", "", "python", "-mpytest -k 'a and b' tests/*.py"),
        ("venv/bin/pytest", "", "python", "-mpytest"),
        ("tests/run_all.py --fast", "", "python", "tests/run_all.py --fast"),
        ("./run.py", "", "python", "./run.py"),
        (
            "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' .venv/bin/python -W ignore -m pytest -rA x",
            "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' ",
            ".venv/bin/python -W ignore",
            "-mpytest -rA x",
        ),
        ("cd src && export A=1; B=2 python -B -Wd x.py", "cd src && export A=1; B=2 ", "python -B -Wd", "x.py"),
        ("env A=1 exec python x.py", "A=1 ", "python", "x.py"),
        (". venv/bin/activate\npython x.py\n", ". venv/bin/activate\n ", "python", "x.py"),
        ("python x.py 2>&1", "", "python", "x.py"),
        ("python x.py;", "", "python", "x.py"),
        ("python -m pdb x.py 1", "", "python", "x.py 1"),
        ("python -m pdb -m pkg.tool 1", "", "python", "-mpkg.tool 1"),
        ('"python" "my script.py"', "", '"python"', '"my script.py"'),
    ],
)
def test_a_python_program_is_found_in_a_shell_command(text: str, before: str, python: str, program: str) -> None:
    assert parse_entrypoint(text) == Entrypoint(before, python, program)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("make test", "'make', which is no Python program"),
        ("", "runs no program"),
        ("A=1", "runs no program"),
        ("cd src &&", "runs no program"),
        ("python", "names no program"),
        ("python -W ignore", "names no program"),
        ("python -m", "names no program"),
        ("python -m pdb", "names no program"),
        ("python -", "option '-'"),
        ("python -i x.py", "option '-i'"),
        ("python -m pdb -c continue x.py", "pdb's own option -c"),
        ("python x.py | tail", r"holds '\|'"),
        ("python x.py > log", "holds '>'"),
        ("python x.py &", "holds '&'"),
        ("(cd a && python x.py)", r"holds '\('"),
        ("python $(ls)", r"holds '\('"),
        ("python `ls`", "holds '`'"),
        ("python 'x.py", "never closed"),
    ],
)
def test_an_unsupported_entrypoint_lists_the_forms(text: str, reason: str) -> None:
    with pytest.raises(ToolError, match=reason) as caught:
        parse_entrypoint(text)

    assert "python -m MODULE" in str(caught.value) or "pdb's own option" in str(caught.value)


def test_the_shell_expands_the_raw_text() -> None:
    entrypoint = parse_entrypoint('cd "$HOME" && A="$B" python *.py "$C"')

    assert entrypoint.shell_command(["-c", "it's"]) == ("""cd "$HOME" && A="$B" exec python -c 'it'"'"'s' *.py "$C\"""")
