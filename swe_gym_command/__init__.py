"""The `swe-gym` command. It stands beside the package, whose import takes most of a second: help needs none of it."""

import contextlib
import signal
from collections.abc import Iterator, Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. Errors of the user, of values and of files are one message and exit status 2.

    Args:
        arguments: The arguments after `swe-gym`; None takes them from the command line.
    """
    with ending_at_ctrl_c():
        from .app import run
    run(arguments)


@contextlib.contextmanager
def ending_at_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C end the process at once, for imports: nothing needs to be closed yet."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.default_int_handler:  # a process in the background may ignore Ctrl-C
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
