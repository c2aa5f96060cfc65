"""The first example does what its readers are told."""

import subprocess
import sys
from pathlib import Path

HELLO = Path(__file__).parents[2] / "examples" / "hello.py"


def test_hello_solves_its_task() -> None:
    done = subprocess.run([sys.executable, str(HELLO)], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines()[-1].startswith("reward 1.0: ")
