"""Commands in a real terminal: progress displays and Ctrl-C."""

import os
import pty
import select
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Self

from runs_on_disk import trajectory, write_run

from swe_gym.curation.validation import read_records
from swe_gym.testing.sandbox_contract.case import eventually, new_marker, processes_here

TASK = "larder-overwrite-evicts"


class Terminal:
    """The command on a pseudo-terminal."""

    def __init__(self, *arguments: str, cwd: Path) -> None:
        self._screen, inside = pty.openpty()
        code = "from swe_gym_command import main; main()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            cwd=cwd,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
            preexec_fn=lambda: os.login_tty(0),
        )
        os.close(inside)
        self.shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(60)
        os.close(self._screen)

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def read_until(self, marker: str) -> None:
        while marker not in self.shown:
            assert self._read(), f"{marker!r} was not shown: {self.shown}"

    def press_until(self, key: str, marker: str) -> None:
        """Press a key; again after 5 s of silence, as `readline` misses a signal that arrives just before it waits."""
        for _ in range(12):
            self.type(key)
            while marker not in self.shown and self._is_readable(5):
                self._read()
            if marker in self.shown:
                return
        raise AssertionError(f"{marker!r} was not shown: {self.shown}")

    def status(self) -> int:
        """The exit status. What is shown meanwhile is read, or it could not end."""
        while self._read():
            pass
        return self._process.wait(10)

    def _read(self) -> bool:
        """Read what is shown next; False at the end."""
        assert self._is_readable(60), f"nothing more is shown: {self.shown}"
        try:
            self.shown += os.read(self._screen, 4096).decode("utf-8", "replace")
        except OSError:  # how a pseudo-terminal ends
            return False
        return True

    def _is_readable(self, seconds: float) -> bool:
        return bool(select.select([self._screen], [], [], seconds)[0])


def test_ctrl_c_ends_a_running_command_and_the_game_goes_on(tmp_path: Path) -> None:
    marker = new_marker()
    with Terminal("play", TASK, cwd=tmp_path) as terminal:
        terminal.read_until("swe-gym> ")
        terminal.type(f"echo $((6 * 7)) > made; sleep {marker}\n")
        eventually(lambda: bool(processes_here(marker)), 60, "the command runs")
        terminal.type("\x03")
        eventually(lambda: not processes_here(marker), 60, "the command has ended")
        terminal.type("cat made\n")
        terminal.read_until("42\r\n[exit code 0]\r\nswe-gym> ")
        terminal.type("half a line")
        terminal.read_until("swe-gym> half a line")  # else Ctrl-C drops keys for which `readline` waits already
        terminal.press_until("\x03", "nothing was run; Ctrl-D gives up the task\x1b[0m\r\nswe-gym> ")
        terminal.type("\x04")
        assert terminal.status() == 0
    assert terminal.shown.endswith("Gave up; nothing was graded.\r\n")
    assert not processes_here(marker)


def test_ctrl_c_ends_the_demo_at_once(tmp_path: Path) -> None:
    with Terminal("demo", "--workers", "2", cwd=tmp_path) as terminal:
        terminal.read_until("running")
        terminal.type("\x03")
        assert terminal.status() == 130
    assert "Traceback" not in terminal.shown
    assert "28 of 28" not in terminal.shown


def test_an_interrupted_validation_says_how_to_resume(tmp_path: Path) -> None:
    with Terminal("validate", "--workers", "2", "--record", "r.jsonl", cwd=tmp_path) as terminal:
        terminal.read_until("gold 3/3")
        terminal.type("\x03")
        assert terminal.status() == 130
    assert "Interrupted. Run the same command to resume from r.jsonl." in terminal.shown
    assert 0 < len(read_records(tmp_path / "r.jsonl")) < 14


def test_the_issue_is_rendered(tmp_path: Path) -> None:
    with Terminal("tasks", "show", TASK, cwd=tmp_path) as terminal:
        assert terminal.status() == 0
    assert "```" not in terminal.shown
    assert "\x1b[1m" in terminal.shown
    assert max(len(line) for line in terminal.shown.replace("\r", "").split("\n") if "\x1b" not in line) <= 80


def test_ctrl_c_lets_the_episodes_of_a_rollout_end(tmp_path: Path) -> None:
    with Terminal("rollout", "toy", "--policy", "gold", "-k", "40", "--workers", "2", cwd=tmp_path) as terminal:
        terminal.read_until("running in 2 sandboxes")
        terminal.type("\x03")
        terminal.read_until("no new episodes start")
        assert terminal.status() == 130
    assert "Interrupted. Run the same command to resume." in terminal.shown
    assert list((tmp_path / "runs" / "toy-gold" / "live").iterdir()) == []


def test_a_table_is_not_cut_in_a_narrow_terminal(tmp_path: Path) -> None:
    records = [trajectory(f"t-{number}", resolved=True) for number in range(120)]
    name = "a-run-with-a-name-of-many-words-and-a-date-2026-11-23"
    write_run(tmp_path / "runs" / name, *records, attempts=1, tasks=tuple(one.task_id for one in records))
    for command, shown in (("runs", "26,400"), ("compare", "26,400")):
        runs = ["runs/" + name, "runs/" + name + "-2"] if command == "compare" else []
        if runs:
            shutil.copytree(tmp_path / runs[0], tmp_path / runs[1])
        with Terminal(command, *runs, cwd=tmp_path) as terminal:
            terminal.read_until(shown)
            terminal.read_until("95 % interval")
