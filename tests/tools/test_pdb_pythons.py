"""The guest program under every installed Python: `pdb` itself differs between versions."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from swe_gym.sandboxes import Sandbox
from swe_gym.tools import ToolContext
from swe_gym.tools.pdb import Pdb

PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
PREFIXES = sorted(path.parent.parent for path in PYENV.glob("3.*/bin/python"))

PROGRAM = """\
import time

def work(n):
    total = 0
    for i in range(n):
        total += i
    return total

print(work(3))
while True:
    time.sleep(1000)
"""


@pytest.mark.parametrize("prefix", PREFIXES, ids=lambda path: path.name)
def test_a_session(sandbox_factory: Callable[..., Sandbox], prefix: Path) -> None:
    sandbox = sandbox_factory({"prog.py": PROGRAM}, options={"python_prefix": str(prefix)})
    context = ToolContext(sandbox, eval_cmd="python prog.py")
    tool = Pdb()

    def pdb(command: str, timeout: float = 10.0) -> str:
        return tool.run(context, command=command, timeout=timeout).text

    try:
        first = pdb("b 6, i == 1\nb 6\ncommands 2\nsilent\np 'at', i\nc\nend\ndisable 2\nc")
        assert "\nStopped at prog.py:6 in work (breakpoint 1), frame 2 of 2.\n" in first
        assert "  1  prog.py:6, if i == 1, reached 2 times\n  2  prog.py:6, disabled, runs p 'at', i; c" in first
        assert pdb("for k in range(2):\n    print(k)\np total").startswith("0\n1\n0\n")
        assert pdb("w").startswith("  prog.py(9)<module>()\n-> print(work(3))\n> prog.py(6)work()\n-> total += i\n")
        assert pdb("n = 9 ;; n == 9 ;; p(n)").startswith("True\n9\n")
        assert "prog.py:9 in <module>" in pdb("up")
        assert pdb("down\ncl 1\nn").startswith("Deleted breakpoint 1 at prog.py:6\n")
        assert "It is about to return 3.\n" in pdb("r\nenable 2")
        assert "Stopped at prog.py:11 in <module> (interrupted), frame 1 of 1.\n" in pdb("c", timeout=0.3)
        sandbox.write_file("prog.py", ("# new\n" + PROGRAM.replace("while True", "if 1 / 0")).encode())
        last = pdb("c")
        assert "Breakpoint 2 moved from prog.py:6 to line 7.\n" in last
        assert "('at', 0)\n('at', 1)\n('at', 2)\n3\n" in last
        assert "\nStopped at prog.py:11 in <module> (post-mortem, the program is over), frame 1 of 1.\n" in last
        assert "\nZeroDivisionError: division by zero\n" in last
        assert "The program ended with exit code 1." in pdb("n")
    finally:
        tool.reset()
