import time
from collections.abc import Callable

import pytest

from swe_gym.errors import ToolError
from swe_gym.tools import ToolContext
from swe_gym.tools.shell import bash as bash_tool
from swe_gym.tools.shell import run_eval, submit


def bash(context: ToolContext, command: str, **more: float) -> str:
    return bash_tool.run(context, command, **more).text


def test_both_streams_come_in_order_and_the_exit_code_last(context_for: Callable[..., ToolContext]) -> None:
    result = bash_tool.run(context_for(), "echo one; echo two >&2; echo three; exit 3")

    assert result.text == "one\ntwo\nthree\n[exit code 3]"
    assert (result.ok, result.exit_code, result.submitted) == (False, 3, False)


def test_a_command_without_output_tells_its_exit_code(context_for: Callable[..., ToolContext]) -> None:
    result = bash_tool.run(context_for(), "true")

    assert (result.text, result.ok, result.exit_code) == ("[exit code 0]", True, 0)


def test_each_command_starts_in_the_workdir_by_a_new_shell(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"sub/file.txt": "here\n"})

    assert bash(context, "cd sub && X=1 && cat file.txt") == "here\n[exit code 0]"
    assert bash(context, "echo ${X-unset}; cat sub/file.txt") == "unset\nhere\n[exit code 0]"


def test_a_timeout_keeps_the_output_and_says_so(context_for: Callable[..., ToolContext]) -> None:
    result = bash_tool.run(context_for(), "echo started; sleep 60", timeout=0.5)

    assert result.text == "started\n[timed out after 0.5 s; it was stopped, with everything it started]"
    assert (result.ok, result.exit_code) == (False, None)


def test_the_time_of_the_episode_ends_a_command_early(context_for: Callable[..., ToolContext]) -> None:
    context = context_for()
    context.deadline = time.monotonic() + 0.5

    assert bash(context, "sleep 60").endswith("the time of the episode is up]")


def test_a_signal_is_named(context_for: Callable[..., ToolContext]) -> None:
    result = bash_tool.run(context_for(), "kill -SEGV $$")

    assert (result.text, result.exit_code) == ("[killed by signal 11 (SIGSEGV)]", 139)


def test_a_flood_is_bounded_and_keeps_its_last_line(context_for: Callable[..., ToolContext]) -> None:
    context = context_for(max_output=2000)

    text = bash(context, "seq 1000000; echo the end")

    assert len(text) <= 2000
    assert text.startswith("1\n2\n3\n")
    assert text.endswith("1000000\nthe end\n[exit code 0]")
    assert "bytes cut ...]" in text


def test_binary_output_and_terminal_control_are_harmless(context_for: Callable[..., ToolContext]) -> None:
    context = context_for()

    assert bash(context, r"printf 'a\0b\xff\033[31mred\033[0m\n'") == "a\u2400b\ufffdred\n[exit code 0]"
    assert bash(context, r"printf '10 %%\r100 %%\n'") == "100 %\n[exit code 0]"
    bash(context, "head -c 300000 /dev/urandom").encode("utf-8")


@pytest.mark.parametrize("command", ["", "  \n", "echo \0", "echo \ud800"])
def test_a_command_with_nul_or_surrogates_is_an_error(context_for: Callable[..., ToolContext], command: str) -> None:
    with pytest.raises(ToolError):
        bash(context_for(), command)


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan")])
def test_a_timeout_that_is_not_positive_is_an_error(context_for: Callable[..., ToolContext], timeout: float) -> None:
    with pytest.raises(ToolError, match="more than 0 seconds"):
        bash(context_for(), "true", timeout=timeout)


def test_eval_runs_the_visible_test_command_with_its_timeout(context_for: Callable[..., ToolContext]) -> None:
    context = context_for({"check.sh": "echo checked; exit 1\n"}, eval_cmd="sh check.sh", eval_timeout=30.0)

    result = run_eval.run(context)

    assert (result.text, result.ok, result.exit_code) == ("checked\n[exit code 1]", False, 1)
    context.eval_cmd, context.eval_timeout = "sleep 60", 0.3
    assert "timed out after 0.3 s" in run_eval.run(context).text


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("Ran 3 tests in 0.012s", "Ran 3 tests in ..."),
        ("Ran 1 test in 61.5s", "Ran 1 test in ..."),
        ("2 failed, 3 passed in 0.12s", "2 failed, 3 passed in ..."),
        ("328 passed in 65.78s (0:01:05)", "328 passed in ..."),
        ("===== 1 failed, 2 subtests passed in 1.50s =====", "=== 1 failed, 2 subtests passed in ... ==="),
        ("=========== 7 passed in 100.00s (0:01:40) ===========", "=== 7 passed in ... ==="),
        ("no tests ran in 0.01s", "no tests ran in ..."),
        ("it took 5 steps in 0.5s", "it took 5 steps in 0.5s"),
        ("assert 3 == 4 in 5s", "assert 3 == 4 in 5s"),
    ],
)
def test_eval_removes_the_duration_of_the_tests(
    context_for: Callable[..., ToolContext], printed: str, shown: str
) -> None:
    context = context_for({"out.txt": f"first\n{printed}\nlast\n"}, eval_cmd="cat out.txt")

    assert run_eval.run(context).text == f"first\n{shown}\nlast\n[exit code 0]"


def test_eval_without_a_test_command_is_an_error(context_for: Callable[..., ToolContext]) -> None:
    with pytest.raises(ToolError, match="nothing to run"):
        run_eval.run(context_for())


def test_submit_ends_the_episode(context_for: Callable[..., ToolContext]) -> None:
    context = context_for()

    assert submit.run(context).submitted
    assert submit.run(context, message="All done.").submitted
