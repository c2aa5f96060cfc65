"""The debugger in real sandboxes."""

import sys
import time
from collections.abc import Callable, Iterator

import pytest

from swe_gym.errors import SandboxClosed, ToolError
from swe_gym.sandboxes import Sandbox
from swe_gym.tools import ToolContext
from swe_gym.tools.pdb import Pdb
from swe_gym.types import ToolResult

PROGRAM = """\
import sys

def total(numbers):
    result = 0
    for number in numbers:
        result += number
    return result

print("sum", total(range(4)))
print("args", sys.argv[1:])
"""

FAILING = """\
def divide(a, b):
    return a / b

def main():
    zero = 0
    divide(1, zero)

main()
"""


class Debugger:
    """A tool and its context."""

    def __init__(self, tool: Pdb, context: ToolContext) -> None:
        self.tool = tool
        self.context = context
        self.sandbox = context.sandbox

    def result(self, command: str, **more: object) -> ToolResult:
        return self.tool.run(self.context, command=command, **more)

    def __call__(self, command: str, **more: object) -> str:
        return self.result(command, **more).text


@pytest.fixture
def debug(sandbox_factory: Callable[..., Sandbox]) -> Iterator[Callable[..., Debugger]]:
    """Return a function that makes a debugger for `files` with the entrypoint `eval_cmd`."""
    tools: list[Pdb] = []

    def make(files: dict[str, str], eval_cmd: str = "python prog.py", with_pytest: bool = False) -> Debugger:
        options = {"options": {"python_prefix": sys.prefix}} if with_pytest else {}
        tools.append(Pdb())
        return Debugger(tools[-1], ToolContext(sandbox_factory(files, **options), eval_cmd=eval_cmd))

    yield make
    for tool in tools:
        tool.reset()


def stopped_at(text: str) -> str:
    """Return the place that an observation names, such as "prog.py:6 in total"."""
    places = [line for line in text.splitlines() if line.startswith("Stopped at ")]
    assert len(places) == 1, text
    return places[0].removeprefix("Stopped at ").split(", frame")[0].split(" (")[0]


# --- the plain way ----------------------------------------------------------------------------------------


def test_one_call_sets_a_breakpoint_runs_to_it_and_shows_everything(debug: Callable[..., Debugger]) -> None:
    text = debug({"prog.py": PROGRAM})("b 6, number == 2\nc\np number, result")

    assert text == (
        "Started: python prog.py\n\n"
        "Breakpoint 1 at prog.py:6\n"
        "> prog.py(6)total()\n"
        "-> result += number\n"
        "(2, 1)\n\n"
        "Stopped at prog.py:6 in total (breakpoint 1), frame 2 of 2.\n"
        "       1  import sys\n"
        "       2\n"
        "       3  def total(numbers):\n"
        "       4      result = 0\n"
        "       5      for number in numbers:\n"
        "B->    6          result += number\n"
        "       7      return result\n"
        "       8\n"
        '       9  print("sum", total(range(4)))\n'
        '      10  print("args", sys.argv[1:])\n'
        "Breakpoints:\n"
        "  1  prog.py:6, if number == 2, reached 3 times"
    )


def test_the_session_persists_between_calls(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"prog.py": PROGRAM})

    assert stopped_at(pdb("b total")).startswith("prog.py:1 in <module>")
    assert stopped_at(pdb("c")) == "prog.py:4 in total"
    assert stopped_at(pdb("n")) == "prog.py:5 in total"
    pdb("numbers = [40, 2]")
    pdb("j 5")
    assert "It is about to return 42." in pdb("r")
    assert stopped_at(pdb("up")) == "prog.py:9 in <module>"
    assert pdb("c").startswith("sum 42\nargs []\n\nThe program ended with exit code 0.")


def test_a_program_that_ended_starts_again_with_its_breakpoints(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"prog.py": PROGRAM})
    pdb("tbreak 7\nb 4, len(numbers) > 3\ndisable 2\nignore 1 3\nb 10")

    ended = pdb.result("c\nc")
    again = pdb("c")

    assert ended.exit_code == 0
    assert again.startswith("Started: python prog.py\n\nsum 6\n")
    assert stopped_at(again) == "prog.py:10 in <module>"
    for expected in (
        "1  prog.py:7, temporary, ignored 1 more times",
        "2  prog.py:4, if len(numbers) > 3, disabled",
        "3  prog.py:10",
    ):
        assert expected in again


def test_commands_of_a_breakpoint_survive_a_restart(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"prog.py": PROGRAM})

    first = pdb("b 6\ncommands 1\nsilent\np number * 10\nc\nend\nc")
    second = pdb("c")

    assert "0\n10\n20\n30\nsum 6" in first
    assert second.startswith("Started: python prog.py\n\n0\n10\n20\n30\nsum 6")


def test_restart_takes_new_arguments(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"prog.py": PROGRAM})

    assert "args ['x y', 'z']" in pdb("restart 'x y' z\nc")
    assert "args ['x y', 'z']" in pdb("c")
    assert "args []" in pdb("c", entrypoint="python ./prog.py")


def test_quit_ends_the_session_and_keeps_the_breakpoints(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"prog.py": PROGRAM})

    assert pdb("b 4\nq").startswith("Started: python prog.py\n\nBreakpoint 1 at prog.py:4\n\nThe session is closed.")
    assert stopped_at(pdb("c")) == "prog.py:4 in total"


def test_invalid_breakpoints_are_errors(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"prog.py": PROGRAM})

    for command, message in (
        ("b 99", "End of file"),
        ("b 2", "Blank or comment"),
        ("b nowhere.py:3", "'nowhere.py' not found"),
        ("b 6, x =", "Invalid condition x ="),
        ("b nothing", "not a function"),
    ):
        result = pdb.result(command)
        assert not result.ok
        assert message in result.text
        assert result.text.endswith("No breakpoints.")


def test_a_breakpoint_on_a_line_without_code_gives_a_note(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"prog.py": "if False:\n    pass\nelse:\n    x = 1\n"})

    assert "*** No code starts on line 3, so the program never stops there: the next line with code is 4." in pdb("b 3")


def test_clear_needs_no_answer(debug: Callable[..., Debugger]) -> None:
    text = debug({"prog.py": PROGRAM})("b 4\nb 6\ncl")

    assert "Deleted breakpoint 1 at prog.py:4\nDeleted breakpoint 2 at prog.py:6\n" in text
    assert text.endswith("No breakpoints.")


def test_statements_of_several_lines_work(debug: Callable[..., Debugger]) -> None:
    text = debug({"prog.py": PROGRAM})(
        "for i in range(2):\n    print(i)\n\nelse:\n    print('done')\n# a comment\nx = [\n  1,\n]\nx"
    )

    assert "\n0\n1\ndone\n[1]\n" in text


def test_variables_may_have_the_names_of_commands(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"prog.py": PROGRAM})

    text = pdb("c = [1, 2]\nc[0] += 5\nc\n")
    assert text.startswith("Started: python prog.py\n\nsum 6\n")
    pdb("n = 7\nr = {'k': n}")
    assert pdb("r['k'] == 7 ;; n == 7 ;; p(n) ;; c = 3 ;; !c").startswith("True\nTrue\n7\n3\n")


def test_a_round_trip_takes_milliseconds(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"prog.py": PROGRAM})
    pdb("b 6\nc")

    times = []
    for _ in range(20):
        start = time.perf_counter()
        pdb("p result")
        times.append(time.perf_counter() - start)

    assert sorted(times)[10] < 0.05


# --- edits ------------------------------------------------------------------------------------------------


def test_breakpoints_follow_edits_and_the_program_starts_again(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"prog.py": PROGRAM})
    pdb("b 6, number == 2\nb 10\nc")

    pdb.sandbox.exec("sed -i '1i # one\\n# two' prog.py && sed -i '$d' prog.py")
    text = pdb("c")

    assert text.startswith(
        "Changed since the program was started: prog.py.\n"
        "Started: python prog.py\n"
        "Breakpoint 1 moved from prog.py:6 to line 8.\n"
        "Breakpoint 2 at prog.py:10 was dropped: its line is gone.\n"
    )
    assert stopped_at(text) == "prog.py:8 in total"
    assert text.endswith("Breakpoints:\n  1  prog.py:8, if number == 2, reached 3 times")


def test_edits_between_sessions_are_followed_too(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"prog.py": PROGRAM})
    pdb("b 6\nq")

    pdb.sandbox.write_file("prog.py", ("\n" + PROGRAM.replace("result += number", "result -= number")).encode())

    assert stopped_at(pdb("c")) == "prog.py:7 in total"


def test_an_edit_of_an_imported_module_is_noticed(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"prog.py": "import lib\n\nprint(lib.value)\n", "lib.py": "value = 1\n"})
    pdb("n")

    pdb.sandbox.write_file("lib.py", b"value = 2\n")

    assert pdb("c").startswith("Changed since the program was started: lib.py.\nStarted: python prog.py\n\n2\n")


def test_a_deleted_file_drops_its_breakpoints(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"prog.py": "import lib\n", "lib.py": "value = 1\n"})
    pdb("b lib.py:1")

    pdb.sandbox.exec("rm lib.py")
    text = pdb("c")

    assert "Breakpoint 1 at lib.py:1 was dropped: its line is gone." in text
    assert "ModuleNotFoundError" in text


# --- exceptions and ends ----------------------------------------------------------------------------------


def test_an_uncaught_exception_is_a_stop_where_it_was_raised(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"prog.py": FAILING})

    text = pdb("c")

    assert text.startswith("Started: python prog.py\n\nTraceback (most recent call last):\n")
    assert '  File "<debugger>"' not in text
    assert "bdb.py" not in text
    assert stopped_at(text) == "prog.py:2 in divide"
    assert "(post-mortem, the program is over), frame 3 of 3.\nZeroDivisionError: division by zero\n" in text
    assert pdb("up\np zero").startswith("0\n\nStopped at prog.py:6 in main (post-mortem")
    assert pdb("w").startswith("  prog.py(8)<module>()\n-> main()\n> prog.py(6)main()\n-> divide(1, zero)\n")
    assert pdb.result("c").exit_code == 1


@pytest.mark.parametrize(
    ("code", "exit_code", "said"),
    [
        ("import sys; sys.exit('fatal')", 1, "fatal\n"),
        ("import os; print('x', end=''); os._exit(7)", 7, ""),
        ("raise SystemExit(3)", 3, ""),
        ("import os; os.kill(os.getpid(), 9)", 137, "killed by signal 9 (Killed)"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 139, "killed by signal 11"),
    ],
)
def test_every_end_is_reported(debug: Callable[..., Debugger], code: str, exit_code: int, said: str) -> None:
    pdb = debug({"prog.py": f"x = 1\n{code}\n"})

    result = pdb.result("b 1\nc\nc")

    assert result.exit_code == exit_code
    assert said in result.text
    assert "Breakpoints are kept" in result.text
    assert stopped_at(pdb("p x")) == "prog.py:1 in <module>"


@pytest.mark.parametrize(
    ("entrypoint", "message"),
    [
        ("python broken.py", "SyntaxError"),
        ("python missing.py", "can't open file 'missing.py': No such file or directory"),
        ("python -m missing", "No module named missing"),
    ],
)
def test_a_program_that_does_not_reach_its_first_line_says_why(
    debug: Callable[..., Debugger], entrypoint: str, message: str
) -> None:
    result = debug({"broken.py": "x = (\n"}).result("b 3\nc", entrypoint=entrypoint)

    assert not result.ok
    assert message in result.text
    assert "\nNot run: b 3 ;; c\n" in result.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"command": " \n"}, "The command is empty"),
        ({"command": "p 1", "timeout": 0}, "timeout is 0"),
        ({"command": "p 1", "entrypoint": "make test"}, "python -m MODULE ARGS"),
        ({"command": "p 1", "entrypoint": "cd nowhere && python prog.py"}, "did not start: .*nowhere"),
        ({"command": "p 1", "entrypoint": "/no/python prog.py"}, "did not start: .*No such file"),
        ({"command": "p 1", "entrypoint": "python \0"}, "NUL"),
        ({"command": "p " + "x" * 60_000}, "at most 50,000"),
    ],
)
def test_an_invalid_call_explains_valid_ones(
    debug: Callable[..., Debugger], arguments: dict[str, object], message: str
) -> None:
    pdb = debug({"prog.py": PROGRAM})

    with pytest.raises(ToolError, match=message):
        pdb.tool.run(pdb.context, **arguments)

    assert stopped_at(pdb("p 1", entrypoint="python prog.py")) == "prog.py:1 in <module>"


def test_a_missing_entrypoint_lists_the_forms(debug: Callable[..., Debugger]) -> None:
    with pytest.raises(ToolError, match=r"nothing to run.*python -m MODULE"):
        debug({}, eval_cmd="")("c")


def test_an_exception_in_a_statement_is_an_error_of_the_command(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"prog.py": PROGRAM})

    for command, message in (
        ("p nothing", "*** NameError: name 'nothing' is not defined"),
        ("raise KeyError(1)", "*** KeyError: 1"),
        ("import sys; sys.exit(4)", "*** SystemExit: 4"),
        ("p type('T', (), {'__repr__': lambda self: 1 / 0})()", "*** ZeroDivisionError: division by zero"),
        ("interact", "*** interact is not available"),
    ):
        result = pdb.result(command)
        assert not result.ok
        assert message in result.text


def test_breakpoints_set_in_the_call_that_ends_the_program_are_kept(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"prog.py": "x = 1\ny = 2\n"})

    pdb("b 2 ;; import os; os._exit(3)")

    assert stopped_at(pdb("c")) == "prog.py:2 in <module>"


# --- programs that do not play along ----------------------------------------------------------------------


def test_printed_text_is_never_taken_for_a_reply(debug: Callable[..., Debugger]) -> None:
    lines = ["(Pdb) ", "<0123456789abcdef:{}:0123456789abcdef>", ":>", "--Return--", "Stop", "\x1b[31mred\x1b[0m"]
    pdb = debug({"prog.py": f"for line in {lines!r}:\n    print(line)\nx = 1\n"})

    text = pdb("b 3\nc")

    assert "\n(Pdb) \n<0123456789abcdef:{}:0123456789abcdef>\n:>\n--Return--\nStop\nred\n\nStopped" in text
    assert stopped_at(text) == "prog.py:3 in <module>"


def test_a_program_that_forges_a_reply_loses_its_session_and_no_breakpoint(debug: Callable[..., Debugger]) -> None:
    program = (
        "import gc, os\nchannel = next(item for item in gc.get_objects() if type(item).__name__ == 'DebuggerChannel')\n"
        "os.write(1, '<{0}:{{}}:{0}>'.format(channel.nonce).encode())\n"
    )
    pdb = debug({"prog.py": program})
    pdb("b 3")

    with pytest.raises(ToolError, match="wrote into the debugger's reply"):
        pdb("c\nc")

    assert stopped_at(pdb("c")) == "prog.py:3 in <module>"


def test_the_programs_input_is_empty(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"prog.py": "import sys\nprint(repr(sys.stdin.read()))\ninput('name? ')\n"})

    text = pdb("c\np 'next'")

    assert "''\nname? " in text
    assert "EOFError" in text
    assert "'next'" in text
    assert "standard input is empty" in text
    assert "*** EOFError" in pdb("!input()")


def test_a_sleeping_program_is_interrupted_where_it_is(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"prog.py": "import time\n\ndef nap():\n    time.sleep(1000)\n    return 1\n\nnap()\nprint('over')\n"})

    start = time.monotonic()
    result = pdb.result("b 8\nc", timeout=0.3)

    assert time.monotonic() - start < 20
    assert not result.ok
    assert stopped_at(result.text) == "prog.py:4 in nap"
    assert "(interrupted)" in result.text
    assert result.text.endswith("Breakpoints:\n  1  prog.py:8")
    assert "'time'" in pdb("p time.__name__")


@pytest.mark.parametrize("breakpoint", ["", "b 3, i < 0\n"], ids=["untraced", "traced"])
def test_a_busy_program_is_interrupted_and_can_be_stepped(debug: Callable[..., Debugger], breakpoint: str) -> None:
    pdb = debug({"prog.py": "i = 0\nwhile True:\n    i += 1\n"})

    text = pdb(f"{breakpoint}c", timeout=0.3)

    assert stopped_at(text) in ("prog.py:2 in <module>", "prog.py:3 in <module>")
    assert stopped_at(pdb("n")) in ("prog.py:2 in <module>", "prog.py:3 in <module>")
    assert "True" in pdb("p i > 0")


def test_a_program_that_ignores_ctrl_c_is_interrupted(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"prog.py": "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(1000)\n"})

    assert stopped_at(pdb("c", timeout=0.3)) == "prog.py:3 in <module>"


@pytest.mark.slow
def test_a_program_that_cannot_be_interrupted_is_killed_and_no_breakpoint_is_lost(
    debug: Callable[..., Debugger],
) -> None:
    hang = "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); ctypes.PyDLL(None).sleep(1000)"  # keeps the GIL
    pdb = debug({"prog.py": f"import ctypes, signal; x = 1\n{hang}\n"})

    start = time.monotonic()
    result = pdb.result("b 2, x == 1\nc\nc", timeout=0.3)

    assert time.monotonic() - start > 5
    assert not result.ok
    assert "could not be interrupted, and it was killed" in result.text
    assert result.text.endswith("Breakpoints:\n  1  prog.py:2, if x == 1, reached 1 times")
    assert stopped_at(pdb("c")) == "prog.py:2 in <module>"
    assert pdb.sandbox.exec("ps -eo args | grep -c '[p]rog.py'").text.strip() == "1"


def test_a_hanging_command_is_interrupted_and_the_program_stays(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"prog.py": PROGRAM})
    pdb("b 6\nc")

    for command in ("while True: pass", "p [0 for _ in iter(int, 1)]", "import os; os.system('sleep 100')"):
        result = pdb.result(f"{command}\np 'not run'", timeout=0.3)
        assert not result.ok
        assert "The command took too long and was interrupted." in result.text
        assert "\nNot run: p 'not run'\n" in result.text
        assert stopped_at(result.text) == "prog.py:6 in total"


def test_a_flood_of_output_is_bounded_and_ends_at_the_timeout(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"prog.py": "while True:\n    print('(Pdb) ' * 1000)\n"})

    text = pdb("c", timeout=0.3)

    assert len(text) <= pdb.context.max_output
    assert " cut ...]" in text
    assert stopped_at(text) == "prog.py:2 in <module>"
    assert "2" in pdb("p 1 + 1")


def test_long_lines_and_unicode_travel_both_ways(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"prog.py": "x = 'é世😀'\ny = '" + "z" * 100_000 + "'\n"})

    text = pdb("n")
    assert " more characters]" in text
    assert len(text) < 1_000
    assert pdb(f"p x, len('{'w' * 20_000}')").startswith("('é世😀', 20000)\n")
    assert len(pdb("n\np y * 100")) <= pdb.context.max_output


def test_a_terminal_that_the_program_changed_still_works(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"prog.py": "import os\nos.system('stty sane')\nprint('a\\tb')\nx = 1\n"})

    text = pdb("b 4\nc")

    assert "a\tb\n" in text
    assert pdb(f"p '{'v' * 8000}'").startswith(f"{'v' * 8000!r}\n")


def test_breakpoints_in_threads_stop_in_the_thread(debug: Callable[..., Debugger]) -> None:
    pdb = debug(
        {
            "prog.py": "import threading\n\ndef work(n):\n    double = n * 2\n    return double\n\n"
            "thread = threading.Thread(target=work, args=(21,), name='worker')\nthread.start()\nthread.join()\n"
            "print('x')\n"
        }
    )

    text = pdb("b 4\nc")

    assert "prog.py:4 in work (breakpoint 1)" in text
    assert ", thread worker." in text
    assert stopped_at(pdb("n")) == "prog.py:5 in work"
    assert "42" in pdb("p double")
    assert pdb("c").startswith("x\n\nThe program ended with exit code 0.")


def test_forked_children_run_on_without_the_debugger(debug: Callable[..., Debugger]) -> None:
    pdb = debug(
        {
            "prog.py": "import os\n\ndef work():\n    return 1\n\nif os.fork() == 0:\n    work()\n    os._exit(0)\n"
            "os.wait()\nwork()\n"
        }
    )

    assert stopped_at(pdb("b 4\nc")) == "prog.py:4 in work"
    assert "The program ended with exit code 0." in pdb("c")


def test_child_processes_end_with_the_session(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"prog.py": "import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)\nx = 1\n"})
    pdb("b 3\nc")
    assert "sleep 1000" in pdb.sandbox.exec("ps -eo args").text

    pdb.tool.reset()

    assert "sleep 1000" not in pdb.sandbox.exec("ps -eo args").text


def test_files_of_the_program_do_not_shadow_modules_of_the_debugger(debug: Callable[..., Debugger]) -> None:
    mine = {f"{name}.py": "value = 'mine'\n" for name in ("pdb", "bdb", "json", "unittest", "cmd")}
    pdb = debug({**mine, "prog.py": "import pdb, json, unittest\nprint(pdb.value, json.value, unittest.value)\n"})

    assert "mine mine mine" in pdb("b 2\nc\nn")


def test_breakpoint_in_the_program_stops_there(debug: Callable[..., Debugger]) -> None:
    program = "import pdb\n\ndef f():\n    breakpoint()\n    x = 1\n    pdb.set_trace()\n    y = 2\n\nf()\n"
    pdb = debug({"prog.py": program})

    assert stopped_at(pdb("c")) == "prog.py:5 in f"
    assert stopped_at(pdb("c")) == "prog.py:7 in f"


# --- entrypoints ------------------------------------------------------------------------------------------


def test_the_shell_sets_variables_and_folder(debug: Callable[..., Debugger]) -> None:
    code = "import os, sys\nprint(os.getcwd(), os.environ['A'], sys.argv, __name__, sys.flags.optimize)\n"
    pdb = debug({"sub/run.py": code, "sub/a.txt": "", "sub/b.txt": ""})

    text = pdb("c", entrypoint="cd sub && export B=2; A=1$B python -O run.py *.txt 'x y' 2>&1")

    assert "/testbed/sub 12 ['run.py', 'a.txt', 'b.txt', 'x y'] __main__ 1" in text


def test_a_module_runs_as_python_would_run_it(debug: Callable[..., Debugger]) -> None:
    files = {
        "pkg/__init__.py": "",
        "pkg/__main__.py": "import sys\nfrom . import part\nprint(__name__, __package__, sys.argv, part.value)\n",
        "pkg/part.py": "value = 1\n",
    }

    text = debug(files)("b pkg/part.py:1\nc\nc", entrypoint="python -m pkg 7")

    assert "> pkg/part.py(1)<module>()" in text
    assert "__main__ pkg ['/testbed/pkg/__main__.py', '7'] 1" in text


def test_a_new_entrypoint_starts_a_new_session_and_the_old_one_is_remembered(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"prog.py": PROGRAM, "other.py": "x = 1\n"})
    pdb("b other.py:1")

    assert stopped_at(pdb("p 1", entrypoint="python other.py")) == "other.py:1 in <module>"
    assert "Started" not in pdb("p 2", entrypoint="python other.py")
    assert "Started" not in pdb("p 3")


# --- test runners -----------------------------------------------------------------------------------------

TESTS = """\
import unittest

import pytest

from calc import add

def test_add():
    two = 2
    assert add(two, 2) == 5

class TestAdd(unittest.TestCase):
    def test_method(self):
        three = 3
        self.assertEqual(add(three, 3), 7)

@pytest.fixture
def broken():
    raise RuntimeError("no fixture")

def test_fixture(broken):
    pass

@pytest.mark.xfail
def test_expected():
    assert False

def test_passes(capsys):
    print("hidden")
    assert capsys.readouterr().out == "hidden\\n"
"""

CALC = "def add(a, b):\n    return a + b\n"


def test_pytest_stops_at_every_failed_test(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"calc.py": CALC, "test_calc.py": TESTS}, "pytest -q test_calc.py", with_pytest=True)

    first = pdb("c")
    assert "E       assert 4 == 5" in first
    assert stopped_at(first) == "test_calc.py:9 in test_add"
    assert "(post-mortem of a failed test), frame 1 of 1.\nAssertionError: assert 4 == 5\n" in first
    assert pdb("p two").startswith("2\n")
    second = pdb("c")
    assert stopped_at(second) == "test_calc.py:14 in test_method"
    assert "frame 1 of 3" in second
    assert pdb("p three").startswith("3\n")
    assert stopped_at(pdb("n")) == "test_calc.py:18 in broken"
    end = pdb.result("c")
    assert "2 failed, 1 passed, 1 xfailed, 1 error" in end.text
    assert end.exit_code == 1


def test_breakpoints_work_inside_tests_whatever_the_plugins_do(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"calc.py": CALC, "test_calc.py": TESTS}, with_pytest=True)

    start = pdb("b calc.py:2, a == 3", entrypoint="python -m pytest -q --pdb -n 2 test_calc.py")
    assert "\nStopped at the start of pytest: no test has run yet.\nBreakpoints:\n" in start
    text = pdb("c\nc")

    assert stopped_at(text) == "calc.py:2 in add"
    assert "(breakpoint 1), frame 2 of 2." in text
    assert pdb("w").startswith("  test_calc.py(14)test_method()\n-> self.assertEqual(add(three, 3), 7)\n> calc.py(2)")


def test_a_test_file_that_cannot_be_imported_is_a_stop_at_the_import(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"test_bad.py": "x = 1\nimport nothing_of_that_name\n"}, with_pytest=True)

    text = pdb("c", entrypoint="pytest -q test_bad.py")

    assert stopped_at(text) == "test_bad.py:2 in <module>"
    assert "ModuleNotFoundError: No module named 'nothing_of_that_name'" in text


def test_unittest_stops_at_every_failed_test(debug: Callable[..., Debugger]) -> None:
    tests = (
        "import unittest\n\nclass T(unittest.TestCase):\n    def test_a(self):\n        v = 1\n"
        "        self.assertEqual(v, 2)\n\n    def test_b(self):\n        for i in range(2):\n"
        "            with self.subTest(i=i):\n                self.assertTrue(i)\n\n"
        "    def test_c(self):\n        raise KeyError('k')\n"
    )
    pdb = debug({"test_x.py": tests}, "python -m unittest -q test_x")

    first = pdb("c")
    assert stopped_at(first) == "test_x.py:6 in test_a"
    assert "AssertionError: 1 != 2" in first
    assert "case.py" not in first
    assert pdb("p v").startswith("1\n")
    assert stopped_at(pdb("c")) == "test_x.py:11 in test_b"
    assert stopped_at(pdb("c")) == "test_x.py:14 in test_c"
    assert "FAILED (failures=2, errors=1)" in pdb("c")


# --- the tool's life --------------------------------------------------------------------------------------


def test_reset_forgets_everything(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"prog.py": PROGRAM, "other.py": "x = 1\n"})
    pdb("b 1", entrypoint="python other.py")

    pdb.tool.reset()

    text = pdb("p 1")
    assert stopped_at(text) == "prog.py:1 in <module>"
    assert text.endswith("No breakpoints.")


def test_a_closed_sandbox_raises(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"prog.py": PROGRAM})
    pdb("p 1")
    pdb.sandbox.close()

    with pytest.raises(SandboxClosed):
        pdb("p 2")
    pdb.tool.reset()


def test_the_same_calls_give_the_same_text(debug: Callable[..., Debugger]) -> None:
    calls = ("b 6, number > 1\nc", "p locals()", "w", "n", "c\nc\nc")
    one, other = debug({"prog.py": PROGRAM}), debug({"prog.py": PROGRAM})

    assert [one(call) for call in calls] == [other(call) for call in calls]


def test_the_episodes_deadline_bounds_a_call(debug: Callable[..., Debugger]) -> None:
    pdb = debug({"prog.py": "import time\ntime.sleep(1000)\n"})
    pdb.context.deadline = time.monotonic() + 0.5

    start = time.monotonic()
    pdb("c", timeout=60)

    assert time.monotonic() - start < 20
