import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from rich.console import Console

from swe_gym.envs.swe_env import SweEnv
from swe_gym.rollout.episode import play
from swe_gym.rollout.policies.human import HumanPolicy
from swe_gym.trajectories.trajectory import Trajectory

TASK = "larder-overwrite-evicts"
REPAIR = """\
sed -i 's/if len(self._entries) >=/if key not in self._entries and len(self._entries) >=/' larder/cache.py
:edit str_replace larder/cache.py 'Entry(value, self._deadline(ttl))
' 'Entry(value, self._deadline(ttl))
        self._entries.move_to_end(key)
'
:submit
"""


def test_a_person_solves_a_task(cli, tmp_path: Path) -> None:
    result = cli("play", TASK, "--output", "runs/mine.jsonl", typed=REPAIR)
    assert (result.status, result.err) == (0, "")
    assert "# Overwriting a key in a full cache" in result.out
    assert "Reward 1: resolved in 3 turns." in result.out
    assert "5 of 5 tests that must start passing pass, 12 of 12 still pass." in result.out
    (trajectory,) = Trajectory.read(tmp_path / "runs/mine.jsonl")
    assert [turn.tool for turn in trajectory.turns] == ["bash", "edit", "submit"]
    assert trajectory.resolved


def test_a_person_continues_an_episode(cli, tmp_path: Path) -> None:
    """It is played again first; text that may differ is named, and another task is not played beside it."""
    assert cli("play", TASK, "-o", "runs/mine.jsonl", "--tools", "bash,submit", typed="date +%N\n").status == 0
    place = f"runs/mine.jsonl/{TASK}/0:1"
    differs = cli("play", "--from", place, typed=":submit\n")
    assert differs.status == 2
    assert "turn 1: observation differs at byte" in differs.err
    result = cli("play", "--from", place, "--ignore", r"\d+", "-o", "more.jsonl", typed=":submit\n")
    assert "Reward 0: not resolved in 1 turns." in result.out
    assert '\n> {"name": "bash", "arguments": {"command": "date +%N"}}\n' in result.out
    assert "tools: bash, submit" in result.out
    (branch,) = Trajectory.read(tmp_path / "more.jsonl")
    assert (branch.parent, branch.branch_turn) == (f"mine.jsonl/{TASK}/0:1", 1)
    for words, named in ((("play", TASK), TASK), (("play", "--tools", "bash"), "bash"), (("play", "-s", "toy"), "toy")):
        refused = cli(*words, "--from", place)
        assert (refused.status, refused.err.strip().endswith(f"omit {named}")) == (2, True)


def test_giving_up_skips_grading_and_keeps_the_record(cli, tmp_path: Path) -> None:
    result = cli("play", TASK, "-o", "mine.jsonl", typed="ls\n")
    assert result.status == 0
    assert result.out.endswith("\nGave up; nothing was graded.\n")
    (trajectory,) = Trajectory.read(tmp_path / "mine.jsonl")
    assert (trajectory.outcome, len(trajectory.turns)) == ("running", 1)


def test_an_unwritable_output_fails_before_the_episode(cli) -> None:
    result = cli("play", TASK, "-o", "/proc/nowhere/mine.jsonl", typed="ls\n")
    assert result.status == 2
    assert "No such file or directory: '/proc/nowhere'" in result.err
    assert result.out == ""


def test_the_same_seed_draws_the_same_task(cli) -> None:
    first, second, other = (cli("play", "--seed", seed).out.splitlines()[0] for seed in (1, 1, 2))
    assert first == second != other
    assert first.startswith("Task ")


def test_tasks_of_a_file_are_played(cli, task_file: Path) -> None:
    result = cli("play", "useless-gold", "-s", task_file, typed=":submit\n")
    assert "Task useless-gold" in result.out
    assert "Reward 0: not resolved in 1 turns." in result.out


def test_a_failed_sandbox_gives_no_reward(cli) -> None:
    options = '{"files": {"a": ""}, "faults": [{"at": "exec", "error": "SandboxLost"}]}'
    result = cli("play", TASK, "--backend", "fake", "--sandbox-option", f"options={options}", typed="ls\n")
    assert result.status == 1
    assert "No reward: SandboxLost" in result.out
    assert "Reward 0" not in result.out


# --- what a person types ------------------------------------------------------------------------------------


def talk(lines: Iterable[str], tools: str | list[str] = "default") -> tuple[str, Trajectory]:
    """What the terminal shows while a person types these lines, and the record of it."""
    typed = iter([*lines, ":submit"])

    def ask(prompt: str) -> str:
        line = next(typed)
        if line == "^D":
            raise EOFError
        console.print(f"{prompt}{line}")
        return line

    with open(os.devnull, "w") as nowhere, SweEnv("toy", task_id=TASK, tools=tools) as env:
        console = Console(file=nowhere, record=True, highlight=False, markup=False, emoji=False, width=200)
        trajectory = play(env, HumanPolicy(env, console, ask))
        return console.export_text(), trajectory


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        (":view larder/cache.py 38 40", {"path": "larder/cache.py", "start": 38, "end": 40}),
        (":view end=40 larder/cache.py 38", {"path": "larder/cache.py", "start": 38, "end": 40}),
        (":grep pattern='def put' larder", {"pattern": "def put", "path": "larder"}),
        ("echo 'a  b' | cat -A", {"command": "echo 'a  b' | cat -A"}),
        (":bash 'echo \"it'\"'\"'s\"'", {"command": 'echo "it\'s"'}),
        ("echo a=b \\", {"command": "echo a=b \\"}),
        (":eval", {}),
    ],
)
def test_lines_become_calls(line: str, arguments: dict[str, object]) -> None:
    _, trajectory = talk([line])
    assert trajectory.turns[0].arguments == arguments
    assert trajectory.turns[0].info["tool_ok"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (":help", "A line is a shell command."),
        (":", "A line is a shell command."),
        (":veiw", "unknown tool 'veiw'; known: bash, view, "),
        (":view", ":view path [start] [end]"),
        (":view a 1 2 3", "too many arguments: view takes path, start, end"),
        (":eval now", "too many arguments: eval takes none"),
        ("", ""),
    ],
)
def test_an_invalid_line_is_explained_and_takes_no_turn(line: str, said: str) -> None:
    shown, trajectory = talk([line])
    assert said in shown
    assert [turn.tool for turn in trajectory.turns] == ["submit"]


def test_an_open_quote_continues_on_the_next_line() -> None:
    shown, trajectory = talk(["printf 'a", "b'", "echo 'x", "^D"])
    assert [turn.arguments for turn in trajectory.turns] == [{"command": "printf 'a\nb'"}, {}]
    assert "... b'" in shown
    assert "open quote; nothing was run" in shown


def test_without_a_shell_a_command_is_refused() -> None:
    shown, _ = talk(["ls"], tools=["view", "submit"])
    assert "the environment has no shell tool: use :view, :submit" in shown


def test_observations_are_shown_verbatim() -> None:
    shown, _ = talk(["echo '[bold]x[/bold] :smile:' " + "y" * 300])
    assert "[bold]x[/bold] :smile: " + "y" * 300 + "\n" in shown
