"""What a sandbox may not do or see of the kernel: a seccomp filter of system calls, and masks of /proc and /sys.

The filter is for what namespaces, containers and Landlock do not isolate, and is the same in every sandbox. It protects
the runner, which is a process of the same user as the commands: a command that lowers its limits or its priority could
end the sandbox. And it closes parts of the host that have no name in a file system: the user's keys, the kernel's log
and counters, unusual sockets (those of virtual machines belong to no namespace) and, without an IPC namespace, shared
memory and queues.

`ctypes` is imported late: not every Python has it.

The files of `MASKED` tell of the machine, and so of other sandboxes: keys, memory maps, counts of open files. Those of
`READ_ONLY` have one mode and owner for all sandboxes: whoever may change these can leave a message.
"""

import collections
import errno
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
LOAD, AND, JUMP_IF_EQUAL, RETURN = 0x20, 0x54, 0x15, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, SECOND_ARGUMENT = 0, 4, 16, 24  # offsets in struct seccomp_data
ALLOW, FAIL_WITH = 0x7FFF0000, 0x00050000
X32 = 0x40000000
"""Bit of the second number under which x86-64 takes each call."""
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, SOCK_DGRAM = 1, 2, 10, 16, 2  # as in `socket`, which is slow to import
FAMILIES = (AF_UNIX, AF_INET, AF_INET6, AF_NETLINK)
"""Address families of sockets where each sandbox has a network of its own."""
OF_A_PROCESS, OF_A_GROUP = 0, 1  # first argument of setpriority: what the second one names


Calls = collections.namedtuple("Calls", "socket socketpair host ipc on_process setpriority ioprio_set")
"""Numbers of system calls.

`host`: add_key, request_key, keyctl, syslog, io_uring_setup and socketcall, which make sockets past the filter, and
perf_event_open, bpf and userfaultfd, which container engines refuse too.
`ipc`: shared memory, semaphores and messages of System V (get, use, control), mq_open, mq_unlink.
`on_process`: prlimit64, sched_setscheduler, sched_setparam, sched_setattr, sched_setaffinity.
"""

TABLE = """
x86_64 c000003e 41 53 248,249,250,103,425,298,321,323 29,30,31,64,65,66,68,69,70,71,220,240,241 \
  302,144,142,314,203 141 251
x86_64 40000003 359 360 286,287,288,103,425,102,336,357,374 117,277,278,393,394,395,396,397,399,400,401,402,420 \
  340,156,154,351,241 97 289
aarch64 c00000b7 198 199 217,218,219,116,425,241,280,282 180,181,186,187,188,189,190,191,192,193,194,195,196 \
  261,119,118,274,122 140 30
aarch64 40000028 281 288 309,310,311,103,425,102,364,386,388 274,275,298,299,300,301,302,303,304,305,307,308,312,420 \
  369,156,154,380,241 97 314
riscv64 c00000f3 198 199 217,218,219,116,425,241,280,282 180,181,186,187,188,189,190,191,192,193,194,195,196 \
  261,119,118,274,122 140 30
"""
"""A machine, the AUDIT_ARCH_* of one kind of its programs, and the fields of `Calls`."""


def calls_of(machine: str) -> "dict[int, Calls]":
    """Return the system calls of every kind of program of a machine, by AUDIT_ARCH_*."""
    kinds = {}
    for row in (line.split() for line in TABLE.split("\n") if line.startswith(machine + " ")):
        fields = [tuple(map(int, field.split(","))) for field in row[2:]]
        kinds[int(row[1], 16)] = Calls(*(field if len(field) > 1 else field[0] for field in fields))
    return kinds


def restrict_calls(families: "Iterable[int]" = FAMILIES, ipc: bool = True) -> None:
    """Apply the filter to this process and all that it starts. Nobody can limit or slow down this process any more.

    Socket pairs are always allowed; pairs of datagram sockets, whose ends can write to others, only with `AF_UNIX`.

    Args:
        families: Address families of the sockets to allow.
        ipc: Allow System V IPC and POSIX message queues.

    Raises:
        OSError: The kernel refuses, or the architecture is unknown.
        ImportError: This Python lacks ctypes.
    """
    import ctypes

    program = make_program(os.uname().machine, families, ipc)
    code = ctypes.create_string_buffer(b"".join(program))
    head = struct.pack("HP", len(program), ctypes.addressof(code))
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.c_char_p(head), 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, "the kernel refuses a filter of system calls: " + os.strerror(number))


def make_program(machine: str, families: "Iterable[int]", ipc: bool) -> "list[bytes]":
    """Return the instructions of the filter."""
    kinds = calls_of(machine)
    if not kinds:
        raise OSError(errno.ENOSYS, "no table of system calls for " + machine)
    program = [load(ARCHITECTURE)]
    for architecture, calls in kinds.items():
        steps = [load(NUMBER), step(AND, 0xFFFFFFFF ^ X32)]
        for number in calls.host + (() if ipc else calls.ipc):
            steps += when(number, [fail(errno.ENOSYS)])
        steps += rules_of_sockets(calls, families)
        program += when(architecture, steps + rules_of_the_runner(calls) + [step(RETURN, ALLOW)])
    return [*program, fail(errno.ENOSYS)]


def rules_of_sockets(calls: Calls, families: "Iterable[int]") -> "list[bytes]":
    """Return the instructions that allow only sockets of these families."""
    family = [load(FIRST_ARGUMENT)]
    for allowed in families:
        family += when(allowed, [step(RETURN, ALLOW)])
    steps = when(calls.socket, [*family, fail(errno.EACCES)])
    if AF_UNIX not in families:
        datagrams = when(SOCK_DGRAM, [fail(errno.EACCES)])
        pair = [load(SECOND_ARGUMENT), step(AND, 15), *datagrams, step(RETURN, ALLOW)]
        steps += when(calls.socketpair, pair)
    return steps


def rules_of_the_runner(calls: Calls) -> "list[bytes]":
    """Return the instructions that keep others from changing this process, by its number, group or user."""
    process, group = os.getpid(), os.getpgrp()
    steps: list[bytes] = []
    for number in calls.on_process:
        steps += when(number, [load(FIRST_ARGUMENT), *spare(process)])
    for number, first in ((calls.setpriority, 0), (calls.ioprio_set, 1)):
        chosen = when(OF_A_PROCESS + first, [load(SECOND_ARGUMENT), *spare(process)])
        # A group of another PID namespace is 0 here, which no call can name: to a call, 0 is its own.
        chosen += when(OF_A_GROUP + first, [load(SECOND_ARGUMENT), *spare(group or process)])
        steps += when(number, [load(FIRST_ARGUMENT), *chosen, fail(errno.EPERM)])
    return steps


def spare(process: int) -> "list[bytes]":
    """Refuse a call on this process, and allow it on any other."""
    return [*when(process, [fail(errno.EPERM)]), step(RETURN, ALLOW)]


def when(value: int, steps: "list[bytes]") -> "list[bytes]":
    """Run `steps`, the last of which returns, if the loaded word is `value`."""
    return [step(JUMP_IF_EQUAL, value, skip_else=len(steps)), *steps]


def load(offset: int) -> bytes:
    """Load a word of struct seccomp_data."""
    return step(LOAD, offset)


def fail(number: int) -> bytes:
    """Fail the call with an errno."""
    return step(RETURN, FAIL_WITH | number)


def step(code: int, operand: int, skip_else: int = 0) -> bytes:
    """Return one BPF instruction."""
    return struct.pack("HBBI", code, 0, skip_else, operand)


MASKED = """
/proc/1/autogroup /proc/acpi /proc/allocinfo /proc/asound /proc/buddyinfo /proc/interrupts /proc/kcore /proc/key-users
/proc/keys /proc/kmsg /proc/kpagecgroup /proc/kpagecount /proc/kpageflags /proc/latency_stats /proc/pagetypeinfo
/proc/pressure /proc/sched_debug /proc/schedstat /proc/scsi /proc/slabinfo /proc/softirqs /proc/sys/fs/aio-nr
/proc/sys/fs/dentry-state /proc/sys/fs/file-nr /proc/sys/fs/inode-nr /proc/sys/fs/inode-state /proc/sys/kernel/pty/nr
/proc/sysrq-trigger /proc/timer_list /proc/timer_stats /proc/vmallocinfo /proc/zoneinfo /sys/devices/virtual/powercap
/sys/firmware
""".split()

READ_ONLY = """
bootconfig bus cgroups cmdline config.gz consoles cpu cpuinfo crypto devices diskstats dma driver dynamic_debug
execdomains fb filesystems fs iomem ioports irq kallsyms loadavg lockdep lockdep_chains lockdep_stats lock_stat locks
mdstat meminfo misc modules mtrr partitions stat swaps sys sysvipc tty uptime version version_signature vmstat xen
""".split()
"""Names in /proc, as far as kernels have them."""
