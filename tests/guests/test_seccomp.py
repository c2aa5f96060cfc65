"""The filter of system calls: its table and its program, without installing it."""

import socket
import struct

import pytest

from swe_gym.guests.seccomp import FAMILIES, calls_of, make_program

MACHINES = ("x86_64", "aarch64", "riscv64")


@pytest.mark.parametrize("machine", MACHINES)
def test_every_kind_of_program_has_all_numbers(machine: str) -> None:
    for calls in calls_of(machine).values():
        assert all(isinstance(number, int) for number in (calls.socket, calls.socketpair, calls.setpriority))
        assert len(calls.on_process) == 5
        assert len(calls.host) >= 5
        assert len({*calls.host, *calls.ipc, *calls.on_process}) == sum(
            map(len, (calls.host, calls.ipc, calls.on_process))
        )


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("families", [FAMILIES, [socket.AF_INET], [socket.AF_UNIX]])
def test_jumps_stay_within_the_program(machine: str, families: list[int]) -> None:
    program = [struct.unpack("HBBI", step) for step in make_program(machine, families, ipc=False)]
    assert len(program) < 4096
    assert program[-1][0] == 0x06  # it ends with a return
    assert all(place + 1 + skip < len(program) for place, (code, _, skip, _) in enumerate(program) if code == 0x15)


def test_an_unknown_machine_is_an_error() -> None:
    with pytest.raises(OSError, match="no table of system calls for vax"):
        make_program("vax", FAMILIES, ipc=True)


def test_families_are_those_of_this_platform() -> None:
    assert FAMILIES == (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
