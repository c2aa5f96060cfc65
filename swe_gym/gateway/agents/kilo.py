"""Kilo Code."""

from ..kits import NpmKit
from .opencode import OpenCode


class Kilo(OpenCode):
    """Kilo Code, which is built on opencode. Its kit needs an image with glibc."""

    version = "7.7.9"
    program = "bin/kilo"
    prefix = "KILO"

    @property
    def kit(self) -> NpmKit:
        """See `Agent.kit`."""
        return NpmKit(package="@kilocode/cli-linux-{arch}", version=self.version)
