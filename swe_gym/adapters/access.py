"""Who may use the server of an environment."""

import contextlib
import ipaddress
import secrets
from collections.abc import Sequence

from starlette.requests import HTTPConnection

from ..errors import UsageError

UNPROTECTED = "/health"
"""The only path that needs no token."""


class AccessRules:
    """The rules of access. Browsers are always refused.

    Args:
        token: Token that clients send as `Authorization: Bearer TOKEN`. None accepts every client.
        allowed_hosts: Host names by which clients may call the server, besides localhost and IP addresses.

    Raises:
        UsageError: The token is invalid.
    """

    def __init__(self, token: str | None, allowed_hosts: Sequence[str]) -> None:
        self._token = token and token.strip()
        if self._token is not None and not (self._token and self._token.isprintable()):
            raise UsageError("the token must be one line of text; None accepts every client")
        self._hosts = {"localhost", *(name.lower() for name in allowed_hosts)}

    def refusal(self, request: HTTPConnection) -> tuple[int, str]:
        """Return status and reason of a refusal; status 0 accepts the request."""
        if "origin" in request.headers:
            return 403, "web pages may not use this server"
        if not self._is_known_host(request.headers.get("host", "")):
            return 403, "unknown Host: start the server with --allow-host NAME"
        given = request.headers.get("authorization", "").encode("utf-8", "replace")
        wanted = f"Bearer {self._token}".encode()
        if self._token and request.scope["path"] != UNPROTECTED and not secrets.compare_digest(given, wanted):
            return 401, "missing or wrong token: send the header 'Authorization: Bearer TOKEN'"
        return 0, ""

    def _is_known_host(self, host: str) -> bool:
        """Return whether a Host header is an IP address or a known name; others may be DNS rebinding."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        name = name.removeprefix("[").removesuffix("]").lower()
        with contextlib.suppress(ValueError):
            return "%" not in name and bool(ipaddress.ip_address(name))  # an IPv6 zone may hold any character
        return name in self._hosts
