"""Commands on this machine: they end by their deadline, with all that they started."""

import time

import pytest

from swe_gym.commands import run_command
from swe_gym.testing.sandbox_contract.case import eventually, new_marker, processes_here


def test_a_command_that_takes_too_long_is_killed_with_its_children() -> None:
    marker = new_marker()
    with pytest.raises(TimeoutError, match="sh timed out and was killed"):
        run_command(["sh", "-c", f"sleep {marker} & sleep {marker}"], deadline=time.monotonic() + 0.2)
    eventually(lambda: not processes_here(marker), 60, "what it started lives on")


def test_a_process_that_left_the_group_does_not_block() -> None:
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        run_command(["sh", "-c", "setsid sleep 10 & sleep 10"], deadline=started + 0.2)
    assert time.monotonic() - started < 10


def test_a_command_that_does_not_exist() -> None:
    with pytest.raises(FileNotFoundError):
        run_command(["/nonexistent/program"], deadline=time.monotonic() + 10)
