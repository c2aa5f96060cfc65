"""The program that local sandboxes are forked from: small, single-threaded, with everything loaded.

Each message on its socket (standard input) starts one sandbox. It holds the configuration as JSON and two descriptors:
the runner's stream and a pipe for the start. The forked process becomes the sandbox's supervisor. It writes its pid to
the pipe, then any error; the end of the pipe means that the runner serves. The launcher ends with its socket; sandboxes
notice by their own streams that the host process is gone.
"""

import gc
import json
import os
import resource
import signal
import socket
import sys
import traceback
from typing import NoReturn

from ..runner.serve import serve_standard_streams
from . import confined, namespace
from .linux import Config, close_all_but


def main() -> None:
    """Fork a sandbox for every message until the host process closes the socket."""
    close_all_but(0, 1, 2)
    os.chdir("/")
    os.umask(0o022)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a low soft limit is the host process's own
    server = socket.socket(fileno=0)
    listen_to_signals()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps supervisors; the host waits on pidfds
    gc.freeze()  # a collection would touch, and so copy, every page that is shared with the sandboxes
    while True:
        message, fds, _, _ = socket.recv_fds(server, 1 << 20, 2)
        if not message:
            return
        if os.fork() == 0:
            server.detach()
            become_sandbox(json.loads(message), fds)
        for fd in fds:
            os.close(fd)


def listen_to_signals() -> None:
    """Ignore no signal that the host process ignores, as under nohup: commands would inherit that."""
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:  # Python ignores these, for itself only
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def become_sandbox(config: Config, fds: "list[int]") -> "NoReturn":
    """Turn this process into a sandbox's supervisor and, in a child, its runner. Does not return."""
    stream, report = fds
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # out of memory, a sandbox dies first, not the host process
        os.write(report, b"%d\n" % os.getpid())
        os.dup2(stream, 0)
        os.dup2(stream, 1)
        os.close(stream)
        tier = namespace if config["tier"] == "namespace" else confined
        fork_terminal, kept = tier.enter(config)
        os.chdir(config["workdir"])
    except Exception as error:  # noqa: BLE001  the host process must learn of any error
        os.write(report, "".join(traceback.format_exception_only(error)).encode())
        os._exit(1)
    try:
        close_all_but(0, 1, 2, *kept)
        serve_standard_streams(fork_terminal)
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
    sys.exit()
