"""Names of images: "python:3.11" means "docker.io/library/python:3.11"."""

import ipaddress
import os
import re
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from ...errors import UsageError

DOCKER_HUB = "docker.io"
DOCKER_HOSTS = ("registry-1.docker.io", "index.docker.io")
"""Host of its API, and its old name."""
MIRRORS = "SWE_GYM_REGISTRY_MIRRORS"
"""Environment variable of mirrors: "docker.io=mirror.example.com,ghcr.io=http://10.0.0.1:5000"."""

_NAME = re.compile(
    r"(?:(?P<registry>localhost(?::\d+)?|[A-Za-z0-9-]+(?:(?:\.[A-Za-z0-9-]+)+(?::\d+)?|:\d+))/)?(?P<repository>[a-z0-9]+(?:(?:[._]|__|-+|/)[a-z0-9]+)*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)


class ImageName(NamedTuple):
    """The parsed name of an image.

    Attributes:
        registry: Host, and port if there is one.
        repository: Path in the registry.
        tag: Tag; empty if there is only a digest.
        digest: Digest of the manifest, or an empty text.
    """

    registry: str
    repository: str
    tag: str
    digest: str

    @classmethod
    def parse(cls, name: str) -> Self:
        """Parse a name as Docker does.

        Raises:
            UsageError: It is not the name of an image.
        """
        found = _NAME.fullmatch(name)
        if not found:
            raise UsageError(f"{name!r} is not an image name, such as python:3.11 or ghcr.io/owner/image@sha256:...")
        registry, repository, tag, digest = (found[part] or "" for part in cls._fields)
        registry = DOCKER_HUB if registry in ("", *DOCKER_HOSTS) else registry
        if registry == DOCKER_HUB and "/" not in repository:
            repository = f"library/{repository}"
        return cls(registry, repository, tag or ("" if digest else "latest"), digest)

    def __str__(self) -> str:
        tag = self.tag and f":{self.tag}"
        return f"{self.registry}/{self.repository}{tag}" + (self.digest and f"@{self.digest}")

    @property
    def server(self) -> str:
        """Address of the registry's API, or of its mirror if one is configured; without a scheme if that is not known.

        Registries of a loopback interface may use HTTP or HTTPS. All others use HTTPS, unless the mirror says http.
        """
        pairs = (pair.partition("=") for pair in os.environ.get(MIRRORS, "").split(",") if pair)
        mirrors = {name.strip(): mirror.strip().rstrip("/") for name, _, mirror in pairs}
        host = mirrors.get(self.registry) or (DOCKER_HOSTS[0] if self.registry == DOCKER_HUB else self.registry)
        return host if "://" in host or is_loopback(host) else f"https://{host}"


def is_loopback(address: str) -> bool:
    """Return whether a URL or a host, perhaps with a port, is on the loopback interface."""
    host = urlsplit(address if "://" in address else f"//{address}").hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
