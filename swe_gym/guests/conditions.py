"""Changes the conditions under which Python programs run, as their `sitecustomize`, and notes what they see then.

The sender appends a call of `surround`.
"""

import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

FIRST, RUN, STOP = 0.005, 0.05, 0.1  # seconds in turn, under load; the first stop comes early, as quick tests end soon
RUNNERS = ("pytest", "py.test", "unittest")
PLUGIN = "swe_gym_order"
MARK = "SWE_GYM_TESTS"  # variable of the programs that the process of the tests starts

# x86-64 code: asks the kernel for the time and adds seconds. {0} stands for the seconds, {1} for the address of
# `syscall`, which asks for other clocks.
SHIFTED = "85ff 7513 b8e4000000 0f05 85c0 7507 488106{0} c3 4889f2 89fe bfe4000000 48b8{1} ffe0"
NOW = {"localtime": 0, "gmtime": 0, "ctime": 0, "asctime": 0, "strftime": 1}  # function of `time` -> place of "now"
PAGE, EVERYTHING, PRIVATE = 4096, 7, 0x22


class Dated(object):
    """A function of `time` that is told what time it is. The C library may take that from the kernel by itself."""

    def __init__(self, name: str, place: int) -> None:
        self.real: Any = getattr(time, name)
        self.place = place
        self.__name__ = name
        self.__doc__ = self.real.__doc__

    def __call__(self, *args: "Any") -> "Any":
        if len(args) == self.place:
            now = time.time()
            args += (time.localtime(now) if self.__name__ in ("asctime", "strftime") else now,)
        return self.real(*args)


def shift_clock(seconds: int) -> None:
    """Replace the function of the C library that tells the date, in this process. Programs that it starts do so too."""
    if os.uname().machine != "x86_64" or sys.maxsize < 2**32 or not seconds or waits_by_date():
        return
    try:
        import ctypes
    except ImportError:
        return
    library = ctypes.CDLL(None)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    library.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def place_of(name: str) -> int:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0

    numbers = [seconds.to_bytes(4, "little").hex(), place_of("syscall").to_bytes(8, "little").hex()]
    code = bytes.fromhex(SHIFTED.format(*numbers).replace(" ", ""))
    new, old = library.mmap(None, PAGE, EVERYTHING, PRIVATE, -1, 0), place_of("clock_gettime")
    jump = b"\x48\xb8" + (new or 0).to_bytes(8, "little") + b"\xff\xe0"
    first = old & -PAGE
    size = old + len(jump) - first
    if new in (None, ctypes.c_void_p(-1).value) or library.mprotect(first, size, EVERYTHING):
        return  # this system forbids it
    ctypes.memmove(new, code, len(code))
    ctypes.memmove(old, jump, len(jump))
    library.mprotect(first, size, EVERYTHING & ~2)
    for name, place in NOW.items():
        setattr(time, name, Dated(name, place))


def waits_by_date() -> bool:
    """Whether locks with a time limit wait until a date of the kernel: under another date, they would wait on."""
    import sysconfig

    return sys.version_info >= (3, 11) and not sysconfig.get_config_var("HAVE_SEM_CLOCKWAIT")


def name_host(name: str) -> None:
    """Have Python's functions return another name of this machine."""
    import _socket

    real = os.uname()
    parts = [real[0], name, *real[2:]]
    os.uname = lambda: os.uname_result(parts)
    _socket.gethostname = lambda: name


def reverse_order(folder: str) -> None:
    """Run tests in the reversed order: pytest by a plugin, which `PYTEST_PLUGINS` names, unittest by its suites.

    Sessions and suites that a test runs keep their order.
    """
    import unittest.suite as suites

    running: Any = []
    run: Any = suites.TestSuite.run

    def reverse(items: "Any") -> None:
        running.append(True)
        items.reverse()
        if len(items) > 1:
            note(folder, {"reversed": True})

    def reverse_all(suite: "Any") -> bool:
        tests = getattr(suite, "_tests", None)
        if not isinstance(tests, list):
            return False
        tests.reverse()
        return any([*map(reverse_all, tests), len(tests) > 1])

    def run_backwards(suite: "Any", *args: "Any", **kwargs: "Any") -> "Any":
        if running:
            return run(suite, *args, **kwargs)
        running.append(True)
        if reverse_all(suite):
            note(folder, {"reversed": True})
        try:
            return run(suite, *args, **kwargs)
        finally:
            running.pop()

    def hide(config: "Any") -> None:
        """Take the plugin from the variables again, which programs without this module may inherit."""
        names = [name for name in os.environ.pop("PYTEST_PLUGINS", "").split(",") if name not in ("", PLUGIN)]
        if names:
            os.environ["PYTEST_PLUGINS"] = ",".join(names)

    plugin: Any = sys.modules[PLUGIN]
    plugin.pytest_configure = hide
    plugin.pytest_collection_modifyitems = lambda items: None if running else reverse(items)
    suites.TestSuite.run = run_backwards  # type: ignore[method-assign, assignment]


def stop_often(folder: str) -> None:
    """Stop the processes of this command again and again until they end, as on a machine that is busy with others."""
    try:
        os.close(os.open(folder + "/stopped", os.O_CREAT | os.O_EXCL))
    except OSError:
        return  # another process of the command does it
    group = os.getpgrp()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    os.closerange(3, 1024)
    run = FIRST
    try:
        while True:
            time.sleep(run)
            os.killpg(group, signal.SIGSTOP)
            if run == FIRST:
                note(folder, {"stopped": True})
            time.sleep(STOP)
            os.killpg(group, signal.SIGCONT)
            run = RUN
    except OSError:
        os._exit(0)


def note(folder: str, seen: "Dict[str, Any]") -> None:
    with open(folder + "/seen", "a") as file:
        file.write(ascii(seen) + "\n")


def runs_tests() -> bool:
    """Whether this process is a test runner that no other one started."""
    with open("/proc/self/cmdline", "rb") as file:
        words = file.read().decode("utf-8", "replace").split("\0")[1:]
    called = words[:1] + [words[place + 1] for place, word in enumerate(words[:-1]) if word == "-m"]
    ours = any("/report_" in word for word in words)
    return MARK not in os.environ and (ours or any(os.path.basename(word) in RUNNERS for word in called))


def look() -> "Dict[str, Any]":
    """Return what this process sees of its conditions."""
    user = os.environ.get("LOGNAME") or os.environ.get("USER")
    return {
        "hash seed": hash("seed"),
        "zone": time.strftime("%H %z", time.localtime(1)),
        "clock": time.time(),
        "locale": sys.getfilesystemencoding(),
        "folder": os.getcwd(),
        "user": [user, os.path.expanduser("~")],
        "host": os.uname().nodename,
    }


def surround(folder: str, clock: int, host: str, order: bool, load: bool) -> None:
    """Change the conditions of this process, and run the `sitecustomize` of its environment.

    The process of the tests notes what it sees of them. Only it reverses tests and is stopped.
    """
    shift_clock(clock)
    if host:
        name_host(host)
    if order:
        sys.modules[PLUGIN] = type(sys)(PLUGIN, "PYTEST_DONT_REWRITE")
    if runs_tests():
        os.environ[MARK] = "1"
        if order:
            reverse_order(folder)
        note(folder, look())
        if load:
            stop_often(folder)
    while folder in sys.path:
        sys.path.remove(folder)
    ours = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except ImportError:
        sys.modules["sitecustomize"] = ours
