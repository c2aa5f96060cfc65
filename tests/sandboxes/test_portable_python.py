"""The Python that is copied into images without one: it stands alone, and has all that the runner imports."""

import ast
import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from swe_gym.guests import bundle
from swe_gym.sandboxes.contents import pythons
from swe_gym.sandboxes.runner_sandbox import runner_source

SENT_FIRST = ("unplug",)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    source = bundle("pack_python")
    subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"{source}\npack_python({str(folder)!r}, {str(folder)!r})"],
        check=True,
        timeout=60,
    )
    return folder


def run(packed: Path, program: str) -> str:
    command = [str(packed / "python3"), "-I", "-S", "-c", program]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30, env={}).stdout


def test_it_finds_nothing_but_itself(packed: Path) -> None:
    program = (
        "import sys, tarfile, ctypes, hashlib; print(*sys.path, *(m.__file__ for m in (tarfile, ctypes)), sep='\\n')"
    )
    assert all(line.startswith(f"{packed}/") for line in run(packed, program).splitlines())
    libraries = run(packed, "print(*{line.split()[-1] for line in open('/proc/self/maps') if '.so' in line})").split()
    assert all(library.startswith(f"{packed}/") for library in libraries)


def test_it_has_what_the_runner_imports(packed: Path) -> None:
    sources = [runner_source(), *(bundle(name) for name in SENT_FIRST)]
    imported = {
        name.split(".")[0]
        for source in sources
        for node in ast.walk(ast.parse(source))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert {"subprocess", "tarfile", "ctypes", "socket"} <= imported
    assert run(packed, f"import {', '.join(sorted(imported))}; print('all')") == "all\n"


def test_the_archive_is_at_its_place_and_readable_to_all() -> None:
    if pythons.why_not_portable("amd64") and pythons.why_not_portable("arm64"):
        pytest.skip("this machine has no Python to copy")
    with tarfile.open(fileobj=io.BytesIO(pythons.pack_portable_python())) as archive:
        members = archive.getmembers()
    assert all(f"/{member.name}/".startswith(f"{pythons.PORTABLE_FOLDER}/") for member in members)
    assert all(member.mode & 0o004 and (member.uid, member.gid) == (0, 0) for member in members)
    assert sum(member.size for member in members) < 80 << 20


def test_a_machine_of_another_kind_lends_nothing() -> None:
    assert "this machine's is for" in pythons.why_not_portable("riscv64")
