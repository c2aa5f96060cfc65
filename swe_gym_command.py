"""The `swe-gym` command. It stands beside the package, whose import takes most of a second."""

import signal


def main() -> None:
    """Run the command line. Ctrl-C ends the process at once until that is imported: nothing needs to be closed yet."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # a process in the background may ignore Ctrl-C
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from swe_gym.cli import main as run

    signal.signal(signal.SIGINT, handler)
    run()
