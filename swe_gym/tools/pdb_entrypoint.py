"""Rewrites a shell command that runs a Python program into one that debugs it."""

import dataclasses
import re
import shlex
from collections.abc import Sequence

from ..errors import ToolError

FORMS = (
    "Give the entrypoint as `python FILE ARGS`, `python -m MODULE ARGS`, `pytest ARGS` or `FILE.py ARGS`. In front of "
    "it may stand NAME=value and other commands with `&&`, as in `cd src && DEBUG=1 python -m pytest tests/test_x.py`."
)

_TOKEN = re.compile(
    r"""(?P<redirect>2>&1)|(?P<word>(?:[^\s'"\\;&|<>()`]|\\.|'[^']*'|"(?:\\.|[^"\\])*")+)"""
    r"""|(?P<operator>&&|\|\||[;\n]|[&|<>()`]+)|(?P<space>[^\S\n]+)""",
    re.DOTALL,
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_PYTHON = re.compile(r"(?:.*/)?(?:python|pypy)[\d.]*", re.DOTALL)
_PYTHON_FLAG = re.compile(r"-(?:[bBdEIOPqRsSuv]+|[WX].+)", re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True)
class Entrypoint:
    """A shell command in three raw parts, which the shell expands.

    Attributes:
        before: Preceding commands and the program's variables.
        python: Interpreter and its options.
        program: `-m MODULE ARGS`, `-c CODE ARGS` or `FILE ARGS`.
    """

    before: str
    python: str
    program: str

    def shell_command(self, first_arguments: Sequence[str]) -> str:
        """Return the command with `first_arguments` before the program, run by `exec`."""
        return f"{self.before}exec {self.python} {shlex.join(first_arguments)} {self.program}"


def parse_entrypoint(text: str) -> Entrypoint:
    """Find the Python program in a shell command.

    Raises:
        ToolError: There is none, or its form cannot be debugged; the message lists the valid forms.
    """
    before, words = _last_command(text)
    while words and (_ASSIGNMENT.match(words[0]) or words[0] in ("env", "exec")):
        assignment = words.pop(0)
        before += f"{assignment} " if "=" in assignment else ""
    if not words:
        raise ToolError(f"The entrypoint {text!r} runs no program. {FORMS}")
    name = _value(words[0])
    if _PYTHON.fullmatch(name):
        options = _interpreter_options(words)
        python, program = words[: 1 + options], _without_pdb(words[1 + options :])
    elif name.rpartition("/")[2] in ("pytest", "py.test"):
        python, program = ["python"], ["-mpytest", *words[1:]]
    elif name.endswith(".py"):
        python, program = ["python"], words
    else:
        raise ToolError(f"The entrypoint {text!r} runs {name!r}, which is no Python program. {FORMS}")
    if not program or program[0] in ("-m", "-c", "-"):
        raise ToolError(f"The entrypoint {text!r} names no program. {FORMS}")
    return Entrypoint(before, " ".join(python), " ".join(program))


def _last_command(text: str) -> tuple[str, list[str]]:
    """Return the text before the last command of a list, and the last command's words."""
    before, words, position = "", [], 0
    stripped = text.rstrip("; \t\n")
    while position < len(stripped):
        match = _TOKEN.match(stripped, position)
        if not match:
            raise ToolError(f"The entrypoint {text!r} has a quote that is never closed. {FORMS}")
        position = match.end()
        if match["word"]:
            words.append(match["word"])
        elif match["operator"] in ("&&", ";", "\n"):
            before, words = stripped[:position] + " ", []
        elif match["operator"]:
            raise ToolError(f"The entrypoint {text!r} holds {match['operator']!r}, which cannot be debugged. {FORMS}")
    return before, words


def _interpreter_options(words: list[str]) -> int:
    """Return the number of interpreter options between the interpreter and the program."""
    count = 0
    for word in words[1:]:
        previous = words[count]
        if word.startswith(("-m", "-c")) or (not word.startswith("-") and previous not in ("-W", "-X")):
            break
        if word not in ("-W", "-X") and previous not in ("-W", "-X") and not _PYTHON_FLAG.fullmatch(word):
            raise ToolError(f"The debugger does not know the option {word!r} of Python. {FORMS}")
        count += 1
    return count


def _without_pdb(program: list[str]) -> list[str]:
    """Return the program without a leading `-m pdb`."""
    if program[:2] == ["-m", "pdb"]:
        program = program[2:]
    elif program[:1] == ["-mpdb"]:
        program = program[1:]
    else:
        return _join_module(program)
    if program and program[0].startswith("-c"):
        raise ToolError("Leave out pdb's own option -c and give its commands in `command` instead.")
    return _join_module(program)


def _join_module(program: list[str]) -> list[str]:
    """Join `-m MODULE` to `-mMODULE`, so that an option without a value is detected."""
    if program[:1] in (["-m"], ["-c"]) and len(program) > 1:
        return [program[0] + program[1], *program[2:]]
    return program


def _value(word: str) -> str:
    """Return a word without variables as the shell expands it."""
    return "".join(shlex.split(word))
