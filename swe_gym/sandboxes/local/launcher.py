"""The program that the local backend starts: becomes the sandbox of the asked tier, then runs the runner.

Its configuration comes as one line of JSON on standard input; what follows is the runner's. What goes wrong before the
runner runs is said on standard error, which is closed when all is well.
"""

import json
import os

import runner  # now: once inside, this package's files are out of sight


def read_line():
    """The first line of standard input, and not a byte more, for the rest belongs to the runner."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            os._exit(1)
        line += byte
    return bytes(line)


def main():
    """Enter the tier, say that it worked by closing standard error, serve."""
    config = json.loads(read_line())
    if config["tier"] == "namespace":
        import namespace as tier
    else:
        import confined as tier
    tier.enter(config)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 2)
    os.close(null)
    os.chdir(config["workdir"])
    runner.serve_standard_streams()
