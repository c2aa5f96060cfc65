"""Kilo Code."""

from ..kits import NpmKit
from .opencode import OpenCode


class Kilo(OpenCode):
    """Kilo Code, which is built on opencode. Its kit needs an image with glibc."""

    version = "7.7.9"
    program = "bin/kilo"
    prefix = "KILO"
    quiet = {"KILO_DISABLE_CODEBASE_INDEXING": "1", "KILO_DISABLE_SESSION_INGEST": "1", "KILO_TELEMETRY_LEVEL": "off"}

    @property
    def kit(self) -> NpmKit:
        """See `Agent.kit`."""
        return NpmKit(package="@kilocode/cli-linux-{arch}", version=self.version)
