"""A filter of system calls, for what namespaces, containers and Landlock do not keep apart.

In every sandbox it protects the runner, which is a process of the same user as the commands: whoever lowers its limits
or its priority ends or loses the sandbox. The local tiers also close what of the host has no name in a file system: the
user's keys, the kernel's log, sockets of unusual kinds and, without an IPC namespace, shared memory and message queues.

The runner of a container needs the same code, so this file keeps to Python 3.6 and the standard library, and is sent as
text in front of it. `ctypes` is imported late, for not every Python has it.
"""

import collections
import errno
import os
import struct

PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
LOAD, AND, JUMP_IF_EQUAL, RETURN = 0x20, 0x54, 0x15, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, SECOND_ARGUMENT = 0, 4, 16, 24  # where they lie in what the filter sees
ALLOW, FAIL_WITH = 0x7FFF0000, 0x00050000
X32 = 0x40000000
"""x86-64 takes each of its calls under a second number too."""
IO_URING_SETUP = 425
AF_UNIX, SOCK_DGRAM = 1, 2  # of `socket`, which is large to import
OF_A_PROCESS, OF_A_GROUP = 0, 1  # what setpriority's first argument says that the second one names; the third: a user

Calls = collections.namedtuple("Calls", "socket socketpair host ipc on_process setpriority ioprio_set")
"""Numbers of system calls: `host` reaches the host's keys and kernel log, or makes sockets unseen (add_key,
request_key, keyctl, syslog, io_uring_setup, socketcall); `ipc` is System V's and POSIX message queues (get, use and
control of shared memory, semaphores and messages, mq_open, mq_unlink); `on_process` changes the process that the first
argument names (prlimit64, sched_setscheduler, sched_setparam, sched_setattr, sched_setaffinity)."""

GENERIC = Calls(
    198,
    199,
    (217, 218, 219, 116, IO_URING_SETUP),
    (180, 181, 186, 187, 188, 189, 190, 191, 192, 193, 194, 195, 196),
    (261, 119, 118, 274, 122),
    140,
    30,
)
CALLS = {  # machine -> AUDIT_ARCH_* of each kind of its programs -> its calls
    "x86_64": {
        0xC000003E: Calls(
            41,
            53,
            (248, 249, 250, 103, IO_URING_SETUP),
            (29, 30, 31, 64, 65, 66, 68, 69, 70, 71, 220, 240, 241),
            (302, 144, 142, 314, 203),
            141,
            251,
        ),
        0x40000003: Calls(
            359,
            360,
            (286, 287, 288, 103, IO_URING_SETUP, 102),
            (117, 277, 278, 393, 394, 395, 396, 397, 399, 400, 401, 402, 420),
            (340, 156, 154, 351, 241),
            97,
            289,
        ),
    },
    "aarch64": {
        0xC00000B7: GENERIC,
        0x40000028: Calls(
            281,
            288,
            (309, 310, 311, 103, IO_URING_SETUP, 102),
            (274, 275, 298, 299, 300, 301, 302, 303, 304, 305, 307, 308, 312, 420),
            (369, 156, 154, 380, 241),
            97,
            314,
        ),
    },
    "riscv64": {0xC00000F3: GENERIC},
}


def restrict_calls(families=None, host=True, ipc=True):
    """From here on nobody may limit or slow down this very process; it and all that it starts keep to the filter.

    Pairs of sockets can always be made; of datagrams, where each end can write to others, only if `AF_UNIX` is allowed.

    Args:
        families: The kinds of sockets that may be made; None allows all.
        host: Whether the host's keys and the kernel's log may be asked for.
        ipc: Whether System V's IPC and POSIX message queues may be used.

    Raises:
        OSError: The kernel refuses, or the machine is an unknown one.
        ImportError: This Python has no ctypes.
    """
    import ctypes

    machine = os.uname().machine
    if machine not in CALLS:
        raise OSError(errno.ENOSYS, "the numbers of system calls are not known on " + machine)
    program = [load(ARCHITECTURE)]
    for architecture, calls in CALLS[machine].items():
        refused = (() if host else calls.host) + (() if ipc else calls.ipc)
        steps = [load(NUMBER), step(AND, 0xFFFFFFFF ^ X32)]
        for number in refused:
            steps += when(number, [fail(errno.ENOSYS)])
        if families is not None:
            steps += rules_of_sockets(calls, families)
        program += when(architecture, steps + rules_of_the_runner(calls) + [step(RETURN, ALLOW)])
    program.append(fail(errno.ENOSYS))
    code = ctypes.create_string_buffer(b"".join(program))
    head = struct.pack("HP", len(program), ctypes.addressof(code))
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.c_char_p(head), 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, "the kernel refuses a filter of system calls: " + os.strerror(number))


def rules_of_sockets(calls, families):
    """The instructions that let sockets of these kinds only be made."""
    family = [load(FIRST_ARGUMENT)]
    for allowed in families:
        family += when(allowed, [step(RETURN, ALLOW)])
    steps = when(calls.socket, family + [fail(errno.EACCES)])
    if AF_UNIX not in families:
        datagrams = when(SOCK_DGRAM, [fail(errno.EACCES)])
        pair = [load(SECOND_ARGUMENT), step(AND, 0xF)] + datagrams + [step(RETURN, ALLOW)]
        steps += when(calls.socketpair, pair)
    return steps


def rules_of_the_runner(calls):
    """The instructions that keep others from changing this process: by its number, its group's or its user's."""
    process, group = os.getpid(), os.getpgrp()
    steps = []
    for number in calls.on_process:
        steps += when(number, [load(FIRST_ARGUMENT)] + spare(process))
    for number, first in ((calls.setpriority, 0), (calls.ioprio_set, 1)):
        chosen = when(OF_A_PROCESS + first, [load(SECOND_ARGUMENT)] + spare(process))
        # A group of another PID namespace is 0 here, which no call can name: to a call, 0 is its own.
        chosen += when(OF_A_GROUP + first, [load(SECOND_ARGUMENT)] + spare(group or process))
        steps += when(number, [load(FIRST_ARGUMENT)] + chosen + [fail(errno.EPERM)])
    return steps


def spare(process):
    """Allow what is done to anything but this one."""
    return when(process, [fail(errno.EPERM)]) + [step(RETURN, ALLOW)]


def when(value, steps):
    """Do the steps, the last of which returns, where what was loaded is `value`."""
    return [step(JUMP_IF_EQUAL, value, skip_else=len(steps))] + steps


def load(offset):
    """Take a word of what the filter sees."""
    return step(LOAD, offset)


def fail(number):
    """Let the call fail with an error's number."""
    return step(RETURN, FAIL_WITH | number)


def step(code, operand, skip_else=0):
    """One instruction in the kernel's language for filters."""
    return struct.pack("HBBI", code, 0, skip_else, operand)
