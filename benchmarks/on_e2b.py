"""Compare the E2B backend with E2B's SDK, on a test server.

    python benchmarks/on_e2b.py

The server's sandboxes are local folders, so the figures exclude the service.
"""

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import e2b
from common import show

from swe_gym.cli.bench import alternate, start_and_close, throughput
from swe_gym.sandboxes import SandboxSpec, open_sandbox

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # where the servers are
from servers.e2b_server import E2BServer


def main() -> None:
    """Measure and print the table."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        server = stack.enter_context(E2BServer(folder))
        spec = SandboxSpec(**server.sandbox_options())
        there = {"api_key": server.api_key, "api_url": server.url, "sandbox_url": server.url}
        box = stack.enter_context(open_sandbox(spec, "e2b"))
        bare = e2b.Sandbox.create("base", **there)
        stack.callback(bare.kill)
        ours, theirs = alternate(lambda: box.exec(["true"]), lambda: bare.commands.run("true"), 200)
        start, close = start_and_close(spec, "e2b", 20)
        rows = [
            ("a command, median", f"{ours:.1f} ms", f"{theirs:.1f} ms"),
            ("open and first command, median", f"{start:.0f} ms"),
            ("close, median", f"{close:.0f} ms"),
            ("sixteen sandboxes together", f"{throughput(spec, 'e2b')[0]:.0f} commands/s"),
        ]
    show("E2B, test server", ("what", "swe_gym", "SDK"), rows)


if __name__ == "__main__":
    main()
