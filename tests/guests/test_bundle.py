"""Guests joined into programs: one namespace, Python 3.6 syntax, nothing left to import from each other."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from swe_gym import guests
from swe_gym.guests import bundle
from swe_gym.sandboxes.runner_sandbox import runner_source

FOLDER = Path(guests.__file__).parent
PROGRAMS = {
    "runner": ["local/linux", "unplug", "seccomp", "runner/serve"],  # as Kubernetes sends it; others send less
    **{
        name: [name] for name in ("as_user", "debugger/main", "file_request", "observe", "pack_python", "relay", "seal")
    },
    **{name: [name] for name in ("report_pytest", "report_unittest")},
}


def source(program: str) -> str:
    return "\n".join(bundle(name) for name in PROGRAMS[program])


def defined(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            names = [name for target in node.targets for name in getattr(target, "elts", [target])]
            yield from (name.id for name in names if isinstance(name, ast.Name))


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_two_modules_of_a_program_define_the_same_name(program: str) -> None:
    names = [name for name in defined(ast.parse(source(program))) if name != "TYPE_CHECKING"]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_is_python_3_6_without_annotations_and_relative_imports(program: str) -> None:
    tree = ast.parse(source(program), feature_version=(3, 6))
    for node in ast.walk(tree):
        assert not isinstance(node, ast.AnnAssign)
        assert not (isinstance(node, ast.ImportFrom) and node.level)
        assert not (isinstance(node, ast.arg) and node.annotation)
        assert not (isinstance(node, ast.FunctionDef) and node.returns)


def test_a_program_is_complete_in_the_order_of_its_imports() -> None:
    program = runner_source()
    places = [
        program.index(text)
        for text in (
            "def send_signal",
            "class Reaper",
            "class Commands",
            "class Runner",
            "serve_standard_streams(protect",
        )
    ]
    assert places == sorted(places)
    assert program.count("class Reaper") == 1
    assert len(program) < 88 << 10  # it is one argument of a command, and compiled at every start


def test_a_module_keeps_its_line_numbers() -> None:
    ours, sent = (FOLDER / "gitignore.py").read_text().splitlines(), bundle("gitignore").splitlines()
    assert len(ours) == len(sent)
    assert all(ours[number] == line for number, line in enumerate(sent) if line.startswith("        return "))


def test_every_annotated_variable_has_a_value() -> None:
    trees = {path: ast.parse(path.read_text()) for path in FOLDER.rglob("*.py")}
    bare = [
        (path, node.lineno)
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and not node.value
    ]
    assert bare == []  # `bundle` would leave the name alone, which fails
