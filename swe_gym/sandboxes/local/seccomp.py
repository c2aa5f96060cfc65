"""System calls that reach what no namespace keeps apart: the host user's keys, and the kernel's log."""

import ctypes
import errno
import os
import struct

from linux import check, libc

PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
RETURN_ERROR, RETURN_ALLOW = 0x00050000, 0x7FFF0000
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
NUMBER_AT, ARCHITECTURE_AT = 0, 4
FORBIDDEN = {  # machine -> AUDIT_ARCH_* of each of its kinds of program -> add_key, request_key, keyctl, syslog
    "x86_64": {0xC000003E: (248, 249, 250, 103), 0x40000003: (286, 287, 288, 103)},
    "aarch64": {0xC00000B7: (217, 218, 219, 116), 0x40000028: (309, 310, 311, 103)},
    "riscv64": {0xC00000F3: (217, 218, 219, 116)},
    "ppc64le": {0xC0000015: (269, 270, 271, 103)},
    "s390x": {0x80000016: (278, 279, 280, 103)},
}
X32 = 0x40000000
"""x86-64 takes each of its calls under a second number too."""


def forbid_keys_and_log():
    """Make these calls fail as on a kernel without them, for this process and all that it starts."""
    machine = os.uname().machine
    if machine not in FORBIDDEN:
        raise OSError(errno.ENOSYS, f"the numbers of system calls are not known on {machine}")
    program = b"".join(instructions(FORBIDDEN[machine]))
    filters = ctypes.create_string_buffer(program)
    head = struct.pack("HP", len(program) // 8, ctypes.addressof(filters))
    check(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.c_char_p(head), 0, 0), "seccomp")


def instructions(forbidden):
    """The filter in the language that the kernel takes; a jump's targets count from the instruction after it."""
    for architecture, numbers in forbidden.items():
        numbers += tuple(number | X32 for number in numbers)
        yield struct.pack("HBBI", LOAD, 0, 0, ARCHITECTURE_AT)
        yield struct.pack("HBBI", JUMP_IF_EQUAL, 0, len(numbers) + 3, architecture)
        yield struct.pack("HBBI", LOAD, 0, 0, NUMBER_AT)
        for index, number in enumerate(numbers):
            yield struct.pack("HBBI", JUMP_IF_EQUAL, len(numbers) - index, 0, number)
        yield struct.pack("HBBI", RETURN, 0, 0, RETURN_ALLOW)
        yield struct.pack("HBBI", RETURN, 0, 0, RETURN_ERROR | errno.ENOSYS)
    yield struct.pack("HBBI", RETURN, 0, 0, RETURN_ERROR | errno.ENOSYS)
