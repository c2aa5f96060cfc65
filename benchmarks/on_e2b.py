"""The E2B backend beside the calls of E2B's SDK, against the server of the tests on this machine.

    python benchmarks/on_e2b.py

It measures our part and the SDK's, not the service's: that server's sandboxes are folders of this machine.
"""

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import e2b
from rich.console import Console
from rich.table import Table

from swe_gym.cli.bench import alternate, start_and_close, throughput
from swe_gym.sandboxes import SandboxSpec, open_sandbox

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # where the servers are
from servers.e2b_server import E2BServer


def main() -> None:
    """Measure and print the table."""
    table = Table("what", "swe_gym", "the SDK alone")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        server = stack.enter_context(E2BServer(folder))
        spec = SandboxSpec(**server.sandbox_options())
        there = {"api_key": server.api_key, "api_url": server.url, "sandbox_url": server.url}
        box = stack.enter_context(open_sandbox(spec, "e2b"))
        bare = e2b.Sandbox.create("base", **there)
        stack.callback(bare.kill)
        ours, theirs = alternate(lambda: box.exec(["true"]), lambda: bare.commands.run("true"), 200)
        table.add_row("a command, median", f"{ours:.1f} ms", f"{theirs:.1f} ms")
        start, close = start_and_close(spec, "e2b", 20)
        table.add_row("open and first command, median", f"{start:.0f} ms")
        table.add_row("close, median", f"{close:.0f} ms")
        table.add_row("sixteen sandboxes together", f"{throughput(spec, 'e2b')[0]:.0f} commands/s")
    Console().print(table)


if __name__ == "__main__":
    main()
