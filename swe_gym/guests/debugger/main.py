"""The debugger inside the sandbox: a `pdb` whose prompt is a channel to the `pdb` tool.

`pdb_session.BOOT` runs it on a pseudo-terminal under the program's own Python.
"""

from .at_start import STARTED_WITH  # noqa: F401, I001  first: the imports of all others follow

import linecache
import os
import signal
import sys

from .channel import DebuggerChannel
from .frames import HERE, Watch
from .program import run
from .stops import Debugger
from .test_runners import catch_set_trace


def main(token: str, arguments: "list[str]") -> None:
    """Take over the terminal, report it, and run the program of the first request."""
    channel = DebuggerChannel(token)
    linecache.clearcache()  # Python 3.13 and later keep the text of BOOT there
    with open(os.devnull) as empty:
        os.dup2(empty.fileno(), 0)
    channel.reply()
    request = channel.request()
    watch = Watch()
    watch.root = os.path.join(os.path.realpath(request["root"]), "")
    debugger = Debugger(channel, watch)
    debugger.restore(request["breakpoints"])
    for number in (signal.SIGURG, signal.SIGINT):
        signal.signal(number, debugger.on_interrupt)
    if hasattr(os, "register_at_fork"):  # Python 3.7
        os.register_at_fork(after_in_child=debugger.leave_child)
    catch_set_trace(debugger)
    if request["arguments"] is not None:
        arguments[1:] = request["arguments"]
    run(debugger, arguments)


if __name__ == HERE:
    main(sys.argv[1], sys.argv[2:])
